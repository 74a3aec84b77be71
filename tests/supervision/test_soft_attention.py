# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Targets, divergences and head weights against plain loops, eager maps, and what the authors' code computed.

attention_grounding.safetensors: labels and head weights of GUI-AIMA (809f168), GUI-Actor (d98d1bb) and V2P (4aeef7b),
run on small random inputs with torch 2.13 and transformers 4.51.3.
"""

import itertools
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors import safe_open
from torch.nn.functional import one_hot
from torch.testing import assert_close

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.supervision.actor import ActorHead
from grounded_attention.supervision.method import TARGETS
from grounded_attention.supervision.soft_attention import QUERIES, asked_before
from grounded_attention.supervision.soft_targets import log_weights, soft_targets
from tests.helpers.closeness import below
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import make_processor

FILE = Path(__file__).parents[1] / "fixtures" / "attention_grounding.safetensors"
KINDS = {"aima": ("gaussian", 0.8), "overlap": ("overlap", 1.0), "actor": ("touched", 1.0), "v2p": ("fitts", 1.0)}


@pytest.fixture(scope="module")
def parity():
    with safe_open(FILE, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


def grid(rows, columns):
    """Boxes of tokens, row by row."""
    corners = []
    for y in range(rows):
        for x in range(columns):
            corners.append([x, y, x + 1, y + 1])
    return torch.tensor(corners).double() / torch.tensor([columns, rows, columns, rows])


def assert_near(found, theirs):
    assert (found - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def three_regions_and_words(words):
    return {"text_positions": torch.arange(3, 3 + words)[None], "region_positions": torch.arange(3)[None]}


# Targets


@pytest.mark.parametrize("source", KINDS)
def test_labels_are_those_of_the_authors(parity, source):
    compared = 0
    for key, theirs in below(parity, "labels.").items():
        name, kind = key.split(".")
        if kind == source and name not in ("zero_width", "reversed", "outside"):
            boxes = parity[f"labels.{name}.box"].double()
            tokens = grid(*parity[f"labels.{name}.grid"].tolist())
            ours = log_weights(boxes, tokens[None], *KINDS[source])[0].exp()
            assert_close(ours, theirs.double(), atol=1e-6, rtol=1e-5)
            compared += 1
    assert compared >= 11


def one_box(box, rows=4, columns=5):
    tokens = grid(rows, columns)
    return {
        "phrase_regions": torch.ones(1, 1, len(tokens)),
        "phrase_boxes": torch.tensor(box).double().reshape(1, 1, -1, 4),
        "region_boxes": tokens[None],
    }


@pytest.mark.parametrize("name", ["one_pixel_wide", "one_pixel_high"])
def test_a_thin_box_has_a_target(parity, name):
    """The authors' label is divided by 1e-8 and vanishes."""
    theirs = parity[f"labels.{name}.aima"]
    total = theirs.sum()
    assert total / (total + 1e-8) < 1e-10
    box = parity[f"labels.{name}.box"].tolist()
    size = parity[f"labels.{name}.grid"].tolist()
    ours = soft_targets(one_box(box, *size), "gaussian", 0.8)[0, 0]
    assert ours.sum() == pytest.approx(1.0, abs=1e-6)
    assert ours[theirs == 0].eq(0).all()


@pytest.mark.parametrize("kind, spread", KINDS.values())
def test_a_box_without_width_has_a_target_and_one_that_is_none_has_not(parity, kind, spread):
    """The authors' labels of a box without width are 0 or NaN."""
    assert parity["labels.zero_width.aima"].sum() == 0
    assert parity["labels.zero_width.v2p"].isnan().any()
    thin = soft_targets(one_box([0.5, 0.1, 0.5, 0.4]), kind, spread)
    assert thin.sum() == pytest.approx(1.0, abs=1e-6)
    for box in ([1.2, 0.1, 1.4, 0.4], [-1.0] * 4, [0.6, 0.1, 0.4, 0.4]):  # outside, padding, reversed
        assert soft_targets(one_box(box), kind, spread).sum() == 0


def covered(low, high, start, end):
    """The part of tokens from `start` to `end` that is between two numbers."""
    inside = torch.minimum(high, end) - torch.maximum(low, start)
    return inside.clamp(min=0) / (end - start)


def test_two_boxes_weigh_the_same_however_large_they_are():
    boxes = torch.tensor([[0.05, 0.1, 0.45, 0.6], [0.7, 0.7, 0.95, 0.8]]).double()
    found = soft_targets(one_box(boxes.tolist()), "gaussian", 0.8)[0, 0]
    left, top, right, bottom = grid(4, 5).T
    expected = torch.zeros(20)
    for x1, y1, x2, y2 in boxes:
        share = covered(x1, x2, left, right) * covered(y1, y2, top, bottom)
        across = (left + right - x1 - x2) / 2 / (0.8 * (x2 - x1))
        down = (top + bottom - y1 - y2) / 2 / (0.8 * (y2 - y1))
        label = share * torch.exp(-(across**2 + down**2) / 2)
        expected += label / label.sum() / 2
    assert_close(found, expected, atol=1e-6, rtol=0)


def test_tokens_of_other_images_and_dropped_phrases_have_no_target():
    batch = one_box([0.0, 0.0, 1.0, 1.0])
    batch["region_image"] = torch.arange(20)[None] // 10
    batch["phrase_image"] = torch.ones(1, 1)
    assert soft_targets(batch, "overlap", 1.0)[0, 0, :10].sum() == 0
    batch["phrase_regions"] = torch.zeros(1, 1, 20)
    assert soft_targets(batch, "overlap", 1.0).sum() == 0


@pytest.mark.parametrize("target, weight, words", [("overlap", 1, "phrase_boxes"), ("given", -1, "below 0")])
def test_regions_that_are_no_target_are_refused(target, weight, words):
    with pytest.raises(ValueError, match=words):
        soft_targets({"phrase_regions": torch.full((1, 1, 20), weight)}, target, 1.0)


# GUI-AIMA's head weights and loss

CASES = {
    "query_1": ("queries_hard", 1),
    "query_3": ("queries_hard", 3),
    "query_3_part": ("queries_hard", 3),
    "query_kl": ("queries_soft", 1),
    "query_kl_part": ("queries_soft", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_gui_aima(parity, case):
    reduction, top_queries = CASES[case]
    method = get_method("pointer", target="given", reduction=reduction, top_queries=top_queries)
    attentions = parity["head.attentions"].clone().requires_grad_()
    states = parity["head.hidden_states"].clone().requires_grad_()
    length = attentions.shape[-1]
    losses = []
    for sample in range(2):
        theirs = below(parity, f"head.{case}.{sample}.")
        batch = {
            "phrase_mask": one_hot(theirs["anchor"], length)[None].bool(),
            "phrase_anchor": torch.ones(1, 1).bool(),
            "phrase_regions": parity[f"head.{sample}.labels"][None],
            "text_positions": torch.arange(length)[None],
            "region_positions": parity[f"head.{sample}.images"][None],
        }
        batch |= method.prepare_batch(batch)
        queries = batch[TARGETS][QUERIES]
        if "part" not in case:  # theirs leave out the token before the anchor too
            count = len(theirs["queries"])
            assert torch.equal(queries["rows"][0, :count], theirs["queries"])
        queries["rows"] = theirs["queries"][None]
        maps = [layer[sample, None] for layer in attentions]
        hidden = [layer[sample, None] for layer in states]
        total, count = method.maps_losses(maps, batch, hidden_states=hidden)["text_to_region"]
        assert count == 1
        assert_close(total, theirs["loss"], atol=1e-6, rtol=1e-6)
        losses.append(total)
    torch.stack(losses).mean().backward()
    for sample in range(2):
        theirs = below(parity, f"head.{case}.{sample}.")
        rows = attentions.grad[:, sample][:, :, theirs["grad_rows"]]
        assert_near(rows[..., theirs["grad_columns"]], theirs["grad"])
    if reduction == "queries_soft":
        assert_near(states.grad, parity[f"head.{case}.grad_hidden_states"])


@pytest.mark.parametrize("divergence", ["kl", "jsd", "cross_entropy"])
def test_a_map_without_attention_on_a_token_has_finite_gradients(divergence):
    """Theirs is NaN: the logarithm of the map has no floor."""
    maps = torch.rand(1, 2, 6, 6)
    maps[..., 1] = 0.0
    maps.requires_grad_()
    batch = three_regions_and_words(3)
    batch["phrase_mask"] = torch.tensor([[[0, 0, 1]]])
    batch["phrase_regions"] = torch.tensor([[[0.5, 0.0, 0.5]]])
    method = get_method("pointer", rows="words", target="given", divergence=divergence)
    batch |= method.prepare_batch(batch)
    states = [torch.rand(1, 6, 4)] * 2
    total, _ = method.maps_losses([maps], batch, hidden_states=states)["text_to_region"]
    total.backward()
    assert total.isfinite()
    assert maps.grad.isfinite().all()


def test_each_anchor_has_the_queries_after_the_one_before():
    """Against a loop; anchors side by side share theirs (the authors' code reads those before the first alone)."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(40):
        places = torch.randperm(12, generator=rng)
        anchors = places[:4].sort().values
        queries = places[4:].sort().values
        padded = torch.cat([anchors, torch.tensor([-1])])
        found = asked_before(queries[None], padded[None])[0]
        assert not found[-1].any()
        before = -1
        after = -1  # the anchor before this one
        for row, known in zip(anchors.tolist(), found[:-1], strict=True):
            if row != after + 1:
                before = after
            after = row
            expected = queries[(queries > before) & (queries < row)]
            assert torch.equal(queries[known], expected)


@pytest.mark.parametrize("reduction", ["queries_hard", "queries_soft"])
def test_the_weights_of_an_anchor_do_not_depend_on_others(reduction):
    """Two anchors in one sequence have the maps that each has alone with its own queries."""
    torch.manual_seed(0)
    maps = torch.rand(2, 1, 2, 9, 9)
    states = torch.rand(3, 1, 9, 4)
    gold = torch.tensor([[[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]])
    words = one_hot(torch.tensor([[2, 5]]), 6)  # tokens at 5 and 8
    method = get_method("pointer", target="given", reduction=reduction)
    losses = []
    for chosen in (slice(0, 2), slice(0, 1), slice(1, 2)):
        batch = three_regions_and_words(6)
        batch["phrase_mask"] = words[:, chosen]
        batch["phrase_regions"] = gold[:, chosen]
        batch["phrase_anchor"] = gold[:, chosen].any(-1)
        batch |= method.prepare_batch(batch)
        if chosen.start:
            batch[TARGETS][QUERIES]["rows"] = torch.tensor([[6, 7]])
        losses.append(method.maps_losses(maps, batch, hidden_states=states)["text_to_region"][0])
    assert_close(losses[0], losses[1] + losses[2])


# GUI-Actor's head


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("source", ["actor", "v2p"])
def test_the_head_is_that_of_gui_actor_and_v2p(parity, source, number):
    """Map, loss and gradients; V2P adds the attention outside its target."""
    theirs = below(parity, f"action.{source}.{number}.")
    images = theirs["images"][None].clone().requires_grad_()
    head = ActorHead(images.shape[2]).eval()
    head.load_state_dict(below(theirs, "state."))
    everywhere = torch.ones(images.shape[:2]).bool()
    logs = head(images, everywhere, theirs["anchors"][None])
    assert_close(logs[0].exp(), theirs["map"], atol=1e-6, rtol=0)
    method = get_method("actor", outside=float(source == "v2p"))
    losses, _ = method._compare(theirs["labels"].float()[None], logs)
    loss = losses.mean()
    assert_close(loss, theirs["loss"], atol=1e-6, rtol=1e-6)
    loss.backward()
    assert_near(images.grad[0], theirs["grad_images"])
    gradients = below(theirs, "grad.")
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert (head.get_parameter(name).grad - gradient).abs().max() <= 1e-5 * largest


def test_an_adapter_is_refused_by_the_method_with_a_head():
    model, _ = make_pair("llava")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="adapter"):
        get_method("actor").prepare(adapted)


# Every choice against a plain loop over eager maps, on models with images

DIVERGENCES = {
    "cross_entropy": lambda y, m: -torch.xlogy(y, m).sum(),
    "kl": lambda y, m: torch.xlogy(y, y / m).sum(),
    "reverse_kl": lambda y, m: torch.xlogy(m, m / y).sum(),
    "jsd": lambda y, m: (DIVERGENCES["kl"](y, (y + m) / 2) + DIVERGENCES["kl"](m, (y + m) / 2)) / 2,
}
CHOICES = [*itertools.product(("each", "mean"), DIVERGENCES, (0.0,)), ("queries_hard", "kl", 1.0), ("mean", "kl", 0.5)]


def plain_loss(method, batch, maps):
    """The mean over rows of `each` and `mean`, by loops over full maps."""
    options = method.options
    divergence = DIVERGENCES[options["divergence"]]
    wanted = method.targets(batch)["text_to_region"]
    found = []
    for b, q in (wanted.rows >= 0).nonzero().tolist():
        row = batch["text_positions"][b, wanted.rows[b, q]]
        columns = batch["region_positions"][b]
        columns = columns[columns >= 0]
        target = wanted.gold[b, q, : len(columns)].double()
        outside = target == 0
        target = target.lerp(torch.full_like(target, 1 / len(columns)), options["background"])
        for layer in maps:
            heads = layer[b, :, row, columns].double()
            heads = heads / heads.sum(-1, keepdim=True)
            if options["reduction"] == "mean":
                heads = heads.mean(0, keepdim=True)
            for head in heads:
                found.append(divergence(target, head) + options["outside"] * head[outside].sum())
    return float(torch.stack(found).mean())


def example(family):
    model, processor = make_pair(family)
    patches = PatchGroundingProcessor(processor, family)
    pictures = [Image.new("RGB", (56, 40)), Image.new("RGB", (48, 64))]
    cat = {"text": "the small cat", "boxes": [[0.1, 0.2, 0.7, 0.6]]}
    balls = {"text": "red balls", "boxes": [[0, 0, 0.4, 0.9]]}
    dog = {"text": "a dog", "boxes": [[0.3, 0.3, 0.31, 0.9], [0.5, 0.5, 1.0, 1.0]]}
    texts = ["what is the small cat near two red balls ?", "is it a dog ?"]
    return model.eval(), patches, patches(texts, images=pictures, phrases=[[cat, balls], [dog]])


@torch.no_grad()
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_every_choice_equals_loops_over_eager_maps(family):
    model, patches, batch = example(family)
    eager = example(family)[0]
    eager.set_attn_implementation("eager")
    inputs = patches.model_inputs(batch)
    seen = eager(**inputs, output_attentions=True, output_hidden_states=True)
    for reduction, divergence, outside in CHOICES:
        chosen = {"reduction": reduction, "divergence": divergence, "outside": outside}
        if divergence == "reverse_kl":
            chosen["background"] = 0.2
        method = get_method("pointer", rows="words", **chosen)
        method.prepare(model)
        given = {**batch, **method.prepare_batch(batch)}
        outputs = model(**inputs, **method.forward_kwargs(given))
        total, count = method.losses(outputs, given)["text_to_region"]
        assert count == method.counts(given)["text_to_region"] > 4
        by_maps, _ = method.maps_losses(seen.attentions, given, hidden_states=seen.hidden_states)["text_to_region"]
        assert_close(total, by_maps, atol=0, rtol=1e-4)
        if not method.weighs_heads:
            assert float(total / count) == pytest.approx(plain_loss(method, given, seen.attentions), rel=1e-4)


@pytest.fixture(scope="module")
def pointing():
    """A tokenizer and a batch, whose answer has words and an anchor."""
    processor = make_processor("llava")
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    patches = PatchGroundingProcessor(processor, "llava")
    box = {"boxes": [[0.1, 0.2, 0.7, 0.6]]}
    phrases = [[{"text": "the small cat", **box}, {"text": "<point>", **box}]]
    images = [Image.new("RGB", (56, 40))]
    batch = patches(["what is the small cat ?"], ["a dog <point>"], images=images, phrases=phrases, labels=True)
    return processor.tokenizer, batch


@pytest.mark.parametrize(
    "rows, words",
    [
        ("words", "the small cat <point>"),
        ("last_word", "cat <point>"),
        ("anchor", "<point>"),
        ("answer", "a dog <point>"),
        ("last_answer", "<point>"),
    ],
)
def test_rows_of_words_answers_and_anchors(pointing, rows, words):
    tokenizer, batch = pointing
    assert batch["phrase_anchor"].tolist() == [[False, True]]
    method = get_method("pointer", rows=rows, reduction="mean")
    found = method.prepare_batch(batch)[TARGETS]["text_to_region"]["rows"][0]
    places = batch["text_positions"][0, found[found >= 0]]
    ids = batch["input_ids"][0, places].tolist()
    assert tokenizer.convert_ids_to_tokens(ids) == words.split()


@pytest.mark.parametrize("rows, missing", [("answer", "labels"), ("anchor", "phrase_anchor")])
def test_a_batch_without_these_rows_is_refused(pointing, rows, missing):
    batch = {**pointing[1]}
    del batch[missing]
    with pytest.raises(ValueError, match=missing):
        get_method("pointer", rows=rows).prepare_batch(batch)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("kl_attention", {"divergence": "reverse_kl"}, "background"),
        ("pointer", {"target": "gausian"}, "gaussian.*gausian"),
    ],
)
def test_options_that_cannot_be(name, options, words):
    with pytest.raises(ValueError, match=words):
        get_method(name, **options)


def test_rows_without_an_anchor_are_named(monkeypatch):
    """A batch of captions teaches no anchor: the line says what is missing, and training ends."""
    monkeypatch.setattr("grounded_attention.supervision.method.EMPTY_LIMIT", 2)
    model, patches, batch = example("llava")
    method = get_method("pointer")
    method.prepare(model)
    outputs = model(**patches.model_inputs(batch), **method.forward_kwargs(batch))
    _, count = method.losses(outputs, batch)["text_to_region"]
    assert count == 0
    with pytest.raises(ValueError, match=r"options\.expressions=point"):
        method.losses(outputs, batch)
