# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Targets, divergences and head weights against plain loops, eager maps, and what the authors' code computed.

attention_grounding.safetensors: labels and head weights of GUI-AIMA (809f168), GUI-Actor (d98d1bb) and V2P (4aeef7b),
run on small random inputs with torch 2.13 and transformers 4.51.3.
"""

import itertools
import math
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors import safe_open

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.supervision.actor import ActorHead
from grounded_attention.supervision.method import TARGETS
from grounded_attention.supervision.soft_attention import QUERIES, asked_before, head_weights, query_nearness
from grounded_attention.supervision.soft_targets import log_weights, soft_targets
from tests.helpers.tiny_vlm_models import make_pair

FILE = Path(__file__).parents[1] / "fixtures" / "attention_grounding.safetensors"
KINDS = {"aima": ("gaussian", 0.8), "overlap": ("overlap", 1.0), "actor": ("touched", 1.0), "v2p": ("fitts", 1.0)}


@pytest.fixture(scope="module")
def parity():
    with safe_open(FILE, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


def grid(rows, columns):
    y, x = torch.meshgrid(torch.arange(rows).double(), torch.arange(columns).double(), indexing="ij")
    return torch.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], -1).reshape(-1, 4)


def label_names(parity):
    return sorted({key.split(".")[1] for key in parity if key.startswith("labels.")})


# Targets


@pytest.mark.parametrize("source", KINDS)
def test_labels_are_those_of_the_authors(parity, source):
    compared = 0
    for name in label_names(parity):
        theirs = parity.get(f"labels.{name}.{source}")
        if theirs is None or name in ("zero_width", "reversed", "outside"):
            continue
        boxes = parity[f"labels.{name}.box"].double()
        tokens = grid(*parity[f"labels.{name}.grid"].tolist())
        ours = log_weights(boxes, tokens[None], *KINDS[source])[0].exp()
        torch.testing.assert_close(ours, theirs.double(), atol=1e-6, rtol=1e-5)
        compared += 1
    assert compared >= 11


def one_box(box, rows=4, columns=5, **more):
    tokens = grid(rows, columns)
    boxes = torch.tensor(box, dtype=torch.float64).reshape(1, 1, -1, 4)
    return {
        "phrase_regions": torch.ones(1, 1, len(tokens)),
        "phrase_boxes": boxes,
        "region_boxes": tokens[None],
        **more,
    }


def test_faults_of_the_authors_targets_are_not_ours(parity):
    """Their label of a thin box is divided by 1e-8 and vanishes, and that of a box without width is 0 or NaN."""
    for name in ("one_pixel_wide", "one_pixel_high"):
        theirs = parity[f"labels.{name}.aima"]
        box = parity[f"labels.{name}.box"]
        rows, columns = parity[f"labels.{name}.grid"].tolist()
        assert theirs.sum() / (theirs.sum() + 1e-8) < 1e-10
        ours = soft_targets(one_box(box.tolist(), rows, columns), "gaussian", 0.8)[0, 0]
        assert ours.sum() == pytest.approx(1.0, abs=1e-6)
        assert bool((ours[theirs == 0] == 0).all())
    assert parity["labels.zero_width.aima"].sum() == 0
    assert parity["labels.zero_width.v2p"].isnan().any()
    for kind, spread in KINDS.values():
        thin = soft_targets(one_box([0.5, 0.1, 0.5, 0.4]), kind, spread)
        assert thin.isfinite().all()
        assert thin.sum() == pytest.approx(1.0, abs=1e-6)
        for box in ([1.2, 0.1, 1.4, 0.4], [-1.0] * 4, [0.6, 0.1, 0.4, 0.4]):  # outside, padding, reversed
            assert soft_targets(one_box(box), kind, spread).sum() == 0


def test_a_target_is_what_its_words_say():
    """A loop over tokens and boxes; two boxes weigh the same, however large they are."""
    boxes = [[0.05, 0.1, 0.45, 0.6], [0.7, 0.7, 0.95, 0.8]]
    tokens = grid(4, 5)
    found = soft_targets(one_box(boxes), "gaussian", 0.8)[0, 0]
    expected = torch.zeros(20, dtype=torch.float64)
    for x1, y1, x2, y2 in boxes:
        label = []
        for left, top, right, bottom in tokens.tolist():
            across = max(min(x2, right) - max(x1, left), 0) / (right - left)
            down = max(min(y2, bottom) - max(y1, top), 0) / (bottom - top)
            far_x = ((left + right) / 2 - (x1 + x2) / 2) / (0.8 * (x2 - x1))
            far_y = ((top + bottom) / 2 - (y1 + y2) / 2) / (0.8 * (y2 - y1))
            label.append(across * down * math.exp(-(far_x**2 + far_y**2) / 2))
        expected += torch.tensor(label, dtype=torch.float64) / sum(label) / 2
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def test_tokens_of_other_images_and_dropped_phrases_have_no_target():
    images = torch.tensor([[0] * 10 + [1] * 10])
    batch = one_box([0.0, 0.0, 1.0, 1.0], region_image=images, phrase_image=torch.tensor([[1]]))
    assert soft_targets(batch, "overlap", 1.0)[0, 0, :10].sum() == 0
    assert soft_targets({**batch, "phrase_regions": torch.zeros(1, 1, 20)}, "overlap", 1.0).sum() == 0
    with pytest.raises(ValueError, match="phrase_boxes"):
        soft_targets({"phrase_regions": torch.ones(1, 1, 20)}, "overlap", 1.0)
    with pytest.raises(ValueError, match="below 0"):
        soft_targets({"phrase_regions": -torch.ones(1, 1, 20)}, "given", 1.0)


# GUI-AIMA's head weights and loss

CASES = ["query_1", "query_3", "query_3_part", "query_kl", "query_kl_part"]


@pytest.mark.parametrize("case", CASES)
def test_weights_maps_losses_and_gradients_are_those_of_gui_aima(parity, case):
    attentions = parity["head.attentions"].clone().requires_grad_()
    states = parity["head.hidden_states"].clone().requires_grad_()
    length = attentions.shape[-1]
    losses = []
    form = "queries_soft" if "kl" in case else "queries_hard"
    method = get_method(
        "pointer", target="given", reduction=form, top_queries=1 if "kl" in case else int(case.split("_")[1])
    )
    for sample in range(2):
        wanted = {
            key: parity[f"head.{case}.{sample}.{key}"] for key in ("queries", "anchor", "weights", "map", "loss")
        }
        images = parity[f"head.{sample}.images"]
        batch = {
            "phrase_mask": torch.nn.functional.one_hot(wanted["anchor"], length)[None].bool(),
            "phrase_anchor": torch.ones(1, 1, dtype=torch.bool),
            "phrase_regions": parity[f"head.{sample}.labels"][None],
            "text_positions": torch.arange(length)[None],
            "region_positions": images[None],
        }
        batch |= method.prepare_batch(batch)
        if "part" not in case:  # theirs leave out the token before the anchor too
            made = batch[TARGETS][QUERIES]["rows"]
            assert made[made >= 0].tolist()[: len(wanted["queries"])] == wanted["queries"].tolist()
        rows = wanted["queries"][None]
        batch[TARGETS][QUERIES]["rows"] = rows
        maps = [layer[sample, None] for layer in attentions]
        hidden = [layer[sample, None] for layer in states]
        total, count = method.maps_losses(maps, batch, hidden_states=hidden)["text_to_region"]
        assert int(count) == 1
        losses.append(total)
        shares = torch.cat([layer[:, :, rows[0]][..., images].sum(-1).log() for layer in maps], 1)
        nearness = query_nearness(hidden, rows, images[None])
        weights = head_weights(shares, nearness, rows[:, None] >= 0, method.options["top_queries"], form)[:, 0].exp()
        torch.testing.assert_close(weights.reshape(wanted["weights"].shape), wanted["weights"], atol=1e-6, rtol=0)
        anchor = torch.cat([layer[0, :, wanted["anchor"], :][..., images] for layer in maps])[:, 0]
        pointed = (weights[0, :, None] * anchor).sum(0)
        torch.testing.assert_close(pointed / pointed.sum(), wanted["map"], atol=1e-6, rtol=0)
        torch.testing.assert_close(total, wanted["loss"], atol=1e-6, rtol=1e-6)
    (sum(losses) / 2).backward()
    for sample in range(2):
        rows = parity[f"head.{case}.{sample}.grad_rows"]
        columns = parity[f"head.{case}.{sample}.grad_columns"]
        theirs = parity[f"head.{case}.{sample}.grad"]
        ours = attentions.grad[:, sample][:, :, rows][..., columns]
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    if "kl" in case:
        theirs = parity[f"head.{case}.grad_hidden_states"]
        assert (states.grad - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_a_map_without_attention_on_a_token_has_finite_gradients():
    """Theirs is NaN: the logarithm of the map has no floor."""
    maps = torch.rand(1, 2, 6, 6)
    maps[..., 1] = 0.0
    maps.requires_grad_()
    batch = {
        "phrase_mask": torch.nn.functional.one_hot(torch.tensor([2]), 3)[None],
        "phrase_regions": torch.tensor([[[0.5, 0.0, 0.5]]]),
        "text_positions": torch.arange(3, 6)[None],
        "region_positions": torch.arange(3)[None],
    }
    for divergence in ("kl", "jsd", "cross_entropy"):
        method = get_method("pointer", rows="words", target="given", divergence=divergence)
        batch |= method.prepare_batch(batch)
        total, _ = method.maps_losses([maps], batch, hidden_states=[torch.rand(1, 6, 4)] * 2)["text_to_region"]
        (gradient,) = torch.autograd.grad(total, maps)
        assert total.isfinite()
        assert gradient.isfinite().all()


def test_each_anchor_has_the_queries_after_the_one_before():
    """Against a loop; anchors side by side share theirs (the authors' code reads those before the first alone)."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(40):
        places = torch.randperm(12, generator=rng)
        rows = places[:4].sort().values
        queries = places[4:].sort().values
        found = asked_before(queries[None], torch.cat([rows, torch.tensor([-1])])[None])[0]
        assert not found[-1].any()
        for row, known in zip(rows.tolist(), found, strict=False):
            start = row
            while start - 1 in rows:
                start -= 1
            before = max((each for each in rows.tolist() if each < start), default=-1)
            assert queries[known].tolist() == [each for each in queries.tolist() if before < each < start]


def test_the_weights_of_an_anchor_do_not_depend_on_others():
    """Two anchors in one sequence have the maps that each has alone with its own queries."""
    torch.manual_seed(0)
    maps = [torch.rand(1, 2, 9, 9) for _ in range(2)]
    states = [torch.rand(1, 9, 4) for _ in range(3)]
    shared = {"text_positions": torch.arange(3, 9)[None], "region_positions": torch.arange(3)[None]}
    gold = torch.tensor([[[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]])
    for reduction in ("queries_hard", "queries_soft"):
        method = get_method("pointer", target="given", reduction=reduction)
        losses = []
        for chosen in ([0, 1], [0], [1]):
            words = torch.nn.functional.one_hot(torch.tensor([[2, 5]]), 6)[:, chosen]  # tokens at 5 and 8
            batch = {**shared, "phrase_mask": words, "phrase_regions": gold[:, chosen]}
            batch["phrase_anchor"] = torch.ones(1, len(chosen), dtype=torch.bool)
            batch |= method.prepare_batch(batch)
            if chosen == [1]:
                batch[TARGETS][QUERIES]["rows"] = torch.tensor([[6, 7]])
            losses.append(method.maps_losses(maps, batch, hidden_states=states)["text_to_region"][0])
        torch.testing.assert_close(losses[0], losses[1] + losses[2])


# GUI-Actor's head


@pytest.mark.parametrize("source", ["actor", "v2p"])
def test_the_head_is_that_of_gui_actor_and_v2p(parity, source):
    """Map, loss and gradients; V2P adds the attention outside its target."""
    for number in range(3):
        start = f"action.{source}.{number}."
        found = {key.removeprefix(start): value for key, value in parity.items() if key.startswith(start)}
        state = {key[6:]: value for key, value in found.items() if key.startswith("state.")}
        head = ActorHead(found["images"].shape[1]).eval()
        head.load_state_dict(state)
        images = found["images"][None].clone().requires_grad_()
        logs = head(images, torch.ones(images.shape[:2], dtype=torch.bool), found["anchors"][None])
        torch.testing.assert_close(logs[0].exp(), found["map"], atol=1e-6, rtol=0)
        method = get_method("actor", outside=float(source == "v2p"))
        losses, _ = method._compare(found["labels"].float()[None], logs)
        torch.testing.assert_close(losses.mean(), found["loss"], atol=1e-6, rtol=1e-6)
        losses.mean().backward()
        theirs = {key[5:]: value for key, value in found.items() if key.startswith("grad.")}
        largest = max(float(value.abs().max()) for value in theirs.values())
        for name, value in theirs.items():
            assert (head.get_parameter(name).grad - value).abs().max() <= 1e-5 * largest
        assert (images.grad[0] - found["grad_images"]).abs().max() <= 1e-5 * found["grad_images"].abs().max()


def test_an_adapter_is_refused_by_the_method_with_a_head():
    model, _ = make_pair("llava")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="adapter"):
        get_method("actor").prepare(adapted)


# Every choice against a plain loop over eager maps, on models with images

DIVERGENCES = {
    "cross_entropy": lambda y, m: -sum(a * math.log(b) for a, b in zip(y, m, strict=True) if a > 0),
    "kl": lambda y, m: sum(a * math.log(a / b) for a, b in zip(y, m, strict=True) if a > 0),
    "reverse_kl": lambda y, m: sum(b * math.log(b / a) for a, b in zip(y, m, strict=True)),
    "jsd": lambda y, m: sum(
        (a * math.log(2 * a / (a + b)) if a > 0 else 0) / 2 + b * math.log(2 * b / (a + b)) / 2
        for a, b in zip(y, m, strict=True)
    ),
}
CHOICES = [*itertools.product(("each", "mean"), DIVERGENCES, (0.0,)), ("queries_hard", "kl", 1.0), ("mean", "kl", 0.5)]


def plain_loss(method, batch, maps):
    """The mean over rows of `each` and `mean`, by loops over full maps."""
    options = method.options
    found = []
    wanted = method.targets(batch)["text_to_region"]
    places = batch["text_positions"]
    for b, q in (wanted.rows >= 0).nonzero().tolist():
        row = int(places[b, wanted.rows[b, q]])
        columns = batch["region_positions"][b]
        columns = columns[columns >= 0]
        target = wanted.gold[b, q, : len(columns)].double()
        outside = target == 0
        target = (1 - options["background"]) * target + options["background"] / len(columns)
        of_layers = []
        for layer in maps:
            heads = layer[b, :, row, columns].double()
            heads = heads / heads.sum(-1, keepdim=True)
            if options["reduction"] == "mean":
                heads = heads.mean(0, keepdim=True)
            losses = [
                DIVERGENCES[options["divergence"]](target.tolist(), head.tolist())
                + options["outside"] * float(head[outside].sum())
                for head in heads
            ]
            of_layers.append(sum(losses) / len(losses))
        found.append(sum(of_layers) / len(of_layers))
    return sum(found) / len(found)


def example(family):
    model, processor = make_pair(family)
    patches = PatchGroundingProcessor(processor, family)
    pictures = [Image.new("RGB", (56, 40)), Image.new("RGB", (48, 64))]
    phrases = [
        [
            {"text": "the small cat", "boxes": [[0.1, 0.2, 0.7, 0.6]]},
            {"text": "red balls", "boxes": [[0, 0, 0.4, 0.9]]},
        ],
        [{"text": "a dog", "boxes": [[0.3, 0.3, 0.31, 0.9], [0.5, 0.5, 1.0, 1.0]]}],
    ]
    batch = patches(["what is the small cat near two red balls ?", "is it a dog ?"], images=pictures, phrases=phrases)
    return model.eval(), patches, batch


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_every_choice_equals_loops_over_eager_maps(family):
    model, patches, batch = example(family)
    eager, _, _ = example(family)
    eager.set_attn_implementation("eager")
    inputs = patches.model_inputs(batch)
    with torch.no_grad():
        seen = eager(**inputs, output_attentions=True, output_hidden_states=True)
    for reduction, divergence, outside in CHOICES:
        background = 0.2 if divergence == "reverse_kl" else 0.0
        chosen = {"reduction": reduction, "divergence": divergence, "outside": outside, "background": background}
        method = get_method("pointer", rows="words", **chosen)
        method.prepare(model)
        given = {**batch, **method.prepare_batch(batch)}
        with torch.no_grad():
            outputs = model(**inputs, **method.forward_kwargs(given))
        total, count = method.losses(outputs, given)["text_to_region"]
        assert int(count) == int(method.counts(given)["text_to_region"]) > 4
        by_maps, _ = method.maps_losses(seen.attentions, given, hidden_states=seen.hidden_states)["text_to_region"]
        assert float(total) == pytest.approx(float(by_maps), rel=1e-4)
        if not method.weighs_heads:
            assert float(total / count) == pytest.approx(plain_loss(method, given, seen.attentions), rel=1e-4)


def test_rows_of_words_answers_and_anchors():
    _, processor = make_pair("llava")
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    patches = PatchGroundingProcessor(processor, "llava")
    box = {"boxes": [[0.1, 0.2, 0.7, 0.6]]}
    phrases = [[{"text": "the small cat", **box}, {"text": "<point>", **box}]]
    batch = patches(
        ["what is the small cat ?"],
        ["a dog <point>"],
        images=[Image.new("RGB", (56, 40))],
        phrases=phrases,
        labels=True,
    )
    assert batch["phrase_anchor"].tolist() == [[False, True]]
    ids = batch["input_ids"][0]
    places = batch["text_positions"][0]

    def said(rows, **options):
        method = get_method("pointer", rows=rows, reduction="mean", **options)
        found = method.prepare_batch(batch)[TARGETS]["text_to_region"]["rows"][0]
        return processor.tokenizer.convert_ids_to_tokens(ids[places[found[found >= 0]]].tolist())

    assert said("words") == ["the", "small", "cat", "<point>"]
    assert said("last_word") == ["cat", "<point>"]
    assert said("anchor") == ["<point>"]
    assert said("answer") == ["a", "dog", "<point>"]
    assert said("last_answer") == ["<point>"]
    del batch["labels"], batch["phrase_anchor"]
    for rows, missing in (("answer", "labels"), ("anchor", "phrase_anchor")):
        with pytest.raises(ValueError, match=missing):
            said(rows)


def test_options_that_cannot_be():
    with pytest.raises(ValueError, match="background"):
        get_method("kl_attention", divergence="reverse_kl")
    with pytest.raises(ValueError, match=r"gaussian.*gausian"):
        get_method("pointer", target="gausian")
    method = get_method("pointer", layers=[1], spread=0.5)
    assert get_method(**method.get_config_dict()).get_config_dict() == method.get_config_dict()


def test_rows_without_an_anchor_are_named(monkeypatch, caplog):
    """A batch of captions teaches no anchor: the line says what is missing, and training ends."""
    monkeypatch.setattr("grounded_attention.supervision.method.EMPTY_LIMIT", 2)
    model, processor = make_pair("llava")
    patches = PatchGroundingProcessor(processor)
    phrases = [[{"text": "dog", "boxes": [[0.1, 0.1, 0.6, 0.6]]}]]
    batch = patches([f"{patches.placeholder} a dog"], images=[Image.new("RGB", (40, 40))], phrases=phrases)
    method = get_method("pointer")
    method.prepare(model)
    outputs = model(**patches.model_inputs(batch), **method.forward_kwargs(batch))
    assert int(method.losses(outputs, batch)["text_to_region"][1]) == 0
    with pytest.raises(ValueError, match=r"options\.expressions=point"):
        method.losses(outputs, batch)
