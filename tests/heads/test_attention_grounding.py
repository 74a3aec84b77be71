# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention grounding against plain loops over full eager attention maps; the choice of layer and head; accuracies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grounded_attention.heads.attention_grounding import AttentionGrounding, best_head, summarise
from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.metrics.significance import Estimate
from grounded_attention.pages.tables import conclusion
from grounded_attention.supervision import supervised_implementation
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.phrase_attention import phrase_attention
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table

INPUTS = TASKS["vgp"].model_inputs


@pytest.fixture(scope="module")
def rows():
    """Sixteen rows of unlike lengths, some of whose phrases have two gold boxes and some none."""
    table = tiny_table(8)

    def second_box(row):
        for index, phrase in enumerate(row["phrases"]):
            if index % 2 and phrase["boxes"]:
                phrase["boxes"].append(table[row["image_id"]].boxes[0].tolist())
        return row

    return tiny_rows(table).map(second_box)


def collate(rows):
    return Collator(TASKS["vgp"], tiny_processor(), tiny_table(8))(list(rows))


def model_with(implementation):
    model = tiny_model(seed=5, num_hidden_layers=3, initializer_range=0.5).eval()  # sharp: no ties, favourites differ
    model.set_attn_implementation(implementation)
    return model


def given(batch):
    """What the model reads of a batch."""
    return {name: batch[name] for name in INPUTS if name in batch}


@torch.no_grad()
def eager_maps(batch):
    """(L, B, H, N, N) attention of the eager back end."""
    outputs = model_with("eager")(**given(batch), output_attentions=True)
    return torch.stack(outputs.attentions)


@torch.no_grad()
def streamed(batches):
    """The state of the metric after these batches."""
    model = model_with("sdpa")
    metric = AttentionGrounding()
    model.set_attn_implementation(supervised_implementation(model))
    for batch in batches:
        metric.update(model(**given(batch), **metric.forward_kwargs(batch)), batch)
    return metric.state()


def grounded_tokens(batch):
    """(example, token, candidate columns of the sequence, gold ones among them) of every token that counts."""
    words = batch["input_ids"].shape[1]
    for example in range(len(batch["input_ids"])):
        candidates = [words + r for r in batch["region_candidate_mask"][example].nonzero().flatten().tolist()]
        gold = {}
        for phrase, regions in zip(batch["phrase_mask"][example], batch["phrase_regions"][example], strict=True):
            for token in phrase.nonzero().flatten().tolist():
                for region in regions.nonzero().flatten().tolist():
                    gold.setdefault(token, set()).add(words + region)
        for token, columns in gold.items():
            yield example, token, candidates, columns


def brute_force(batch):
    """The figures of `AttentionGrounding`, token by token and head by head."""
    maps = eager_maps(batch)
    tokens, (layers, _, heads, size, _) = list(grounded_tokens(batch)), maps.shape
    accuracy = np.zeros((layers, heads))
    share = np.zeros((layers, heads))
    rollout = np.zeros(layers)
    for example, token, candidates, gold in tokens:
        flow = torch.eye(size)
        for layer in range(layers):
            for head in range(heads):
                row = maps[layer, example, head, token]
                accuracy[layer, head] += max(candidates, key=lambda column: row[column].item()) in gold
                share[layer, head] += sum(row[column].item() for column in candidates)
            flow = (maps[layer, example].mean(0) + torch.eye(size)) / 2 @ flow
            rollout[layer] += max(candidates, key=lambda column: flow[token, column].item()) in gold
    chance = sum(len(gold) / len(candidates) for _, _, candidates, gold in tokens)
    count = len(tokens)
    return count, accuracy / count, share / count, rollout / count, chance / count


def test_figures_equal_brute_force_over_eager_maps(rows):
    batch = collate(rows)
    assert (batch["attention_mask"] == 0).any()
    assert (batch["region_attention_mask"] == 0).any()
    assert {len(gold) for *_, gold in grounded_tokens(batch)} > {1}  # several gold regions occur
    count, accuracy, share, rollout, chance = brute_force(batch)
    figures = AttentionGrounding().compute(streamed([batch]))
    assert figures["text_to_region_tokens"] == count > 20
    assert figures["text_to_region_chance"] == pytest.approx(chance)
    np.testing.assert_allclose(figures["text_to_region_by_head"], accuracy)
    np.testing.assert_allclose(figures["text_to_region_share_by_head"], share, atol=1e-5)
    np.testing.assert_allclose(figures["text_to_region_rollout_by_layer"], rollout)
    assert figures["text_to_region_all_heads"] == pytest.approx(accuracy.mean())
    assert figures["text_to_region_best_layer"] == pytest.approx(accuracy.mean(1).max())
    assert figures["text_to_region_best_head"] == pytest.approx(accuracy.max())
    assert len(set(accuracy.flatten())) > 2  # heads differ, or the comparison says little


@pytest.mark.parametrize("sizes", [(1,) * 16, (3, 7, 6), (15, 1)])
def test_the_split_into_batches_does_not_matter(rows, sizes):
    starts = np.cumsum((0, *sizes[:-1]))
    parts = [collate(rows.select(range(a, a + n))) for a, n in zip(starts, sizes, strict=True)]
    assert len({part["input_ids"].shape[1] for part in parts}) > 1  # padded to other widths
    whole = streamed([collate(rows)])
    split = streamed(parts)
    assert whole.keys() == split.keys()
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, atol=1e-4, rtol=0)


def test_without_grounding_nothing_counts(rows):
    bare = collate(rows.map(lambda row: {"phrases": [{**phrase, "boxes": []} for phrase in row["phrases"]]}))
    figures = AttentionGrounding().compute(streamed([bare]))
    assert figures["text_to_region_tokens"] == 0
    assert figures["text_to_region_chance"] == 0
    assert figures["text_to_region_all_heads"] == 0


@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("whole_image", [False, True])
def test_phrase_attention_equals_renormalised_eager_maps(rows, head, whole_image):
    batch = collate(rows.select(range(6)))
    found = phrase_attention(model_with("sdpa"), batch, layer=1, head=head, whole_image=whole_image)
    words = batch["input_ids"].shape[1]
    maps = eager_maps(batch)[1]
    heads = range(maps.shape[1]) if head is None else [head]
    expected = torch.zeros(batch["phrase_regions"].shape)
    allowed = batch["region_attention_mask" if whole_image else "region_candidate_mask"].bool()
    for example, phrase in batch["phrase_mask"].any(-1).nonzero().tolist():
        tokens = batch["phrase_mask"][example, phrase].nonzero().flatten().tolist()
        for token in tokens:
            for each in heads:
                row = maps[example, each, token, words:-1] * allowed[example]
                expected[example, phrase] += row / row.sum() / len(tokens) / len(heads)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    real = batch["phrase_mask"].any(-1)
    torch.testing.assert_close(found.sum(-1), real.float())
    assert not real.all()  # padded phrases occur, and stay 0
    assert (found[:, :, 0] > 0).any() == whole_image


def figures(by_head, rollout, chance):
    return {
        "text_to_region_by_head": by_head,
        "text_to_region_rollout_by_layer": rollout,
        "text_to_region_chance": chance,
    }


def test_layer_and_head_are_chosen_on_validation_and_reported_on_test():
    validation = figures([[0.1, 0.9], [0.6, 0.7]], [0.4, 0.3], 0.2)  # best layer 1, best head (0, 1), rollout 0
    test = figures([[0.8, 0.5], [0.2, 0.3]], [0.1, 0.9], 0.15)  # here each would be another one
    found = summarise(validation, test)
    assert (found["layer"], found["head"], found["rollout_layer"]) == (1, [0, 1], 0)
    assert found["all_heads"] == pytest.approx(0.45)
    assert found["best_layer"] == pytest.approx(0.25)
    assert found["best_head"] == pytest.approx(0.5)
    assert found["rollout"] == pytest.approx(0.1)
    assert found["chance"] == 0.15


LOGITS = torch.tensor([[[3.0, 1, 0], [0, 1, 2], [9, 0, 0]], [[0, 5, 1], [1, 0, 0], [0, 0, 1]]])
LABELS = torch.tensor([[0, 1, -100], [1, 1, 2]])  # right, wrong, not counted; right, wrong, right


def test_accuracy_of_a_hand_counted_case():
    metric = ClassificationAccuracy("vgp", "logits", "labels")
    assert metric.forward_kwargs({}) == {}
    metric.update(SimpleNamespace(logits=LOGITS), {"labels": LABELS})
    found = metric.compute(metric.state())
    assert found == {"vgp_accuracy": 3 / 5, "vgp_majority": 3 / 5, "vgp_chance": 1 / 3, "vgp_count": 5}


def test_states_of_batches_and_of_processes_add_up():
    streaming = ClassificationAccuracy("vgp", "logits", "labels")
    parts = []
    for row in range(2):
        outputs = SimpleNamespace(logits=LOGITS[row])
        batch = {"labels": LABELS[row]}
        streaming.update(outputs, batch)
        alone = ClassificationAccuracy("vgp", "logits", "labels")
        alone.update(outputs, batch)
        parts.append(alone.state())
    added = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    assert added["classes"].tolist() == [1, 3, 1]
    assert streaming.compute(added) == streaming.compute(streaming.state())
    assert streaming.compute(added)["vgp_accuracy"] == 3 / 5


def test_accuracy_without_a_label():
    metric = ClassificationAccuracy("vgp", "logits", "labels")
    metric.update(SimpleNamespace(logits=LOGITS[:, :0]), {"labels": LABELS[:, :0]})
    assert metric.compute(metric.state()) == {"vgp_count": 0}


def test_outputs_without_supervised_attention_are_refused_with_the_reason():
    batch = {"phrase_mask": torch.ones(1, 1, 2), "phrase_regions": torch.ones(1, 1, 3)}
    with pytest.raises(ValueError, match="no supervised attention"):
        AttentionGrounding().update(SimpleNamespace(attentions=()), batch)


def test_intervals_draw_whole_images(rows):
    """Against a bootstrap of its own, with other draws; two processes share the images."""
    parts = [collate(rows.select(range(place, len(rows), 2))) for place in range(2)]
    names = [[row["image_id"] for row in rows.select(range(place, len(rows), 2))] for place in range(2)]
    states = [streamed([{**batch, "image_id": images}]) for batch, images in zip(parts, names, strict=True)]
    merged = {key: sum(state.get(key, 0) for state in states) for key in {**states[0], **states[1]}}
    figures = AttentionGrounding().compute(merged)
    sums = [value.numpy() for key, value in merged.items() if key.startswith("image:") and value[0, 0, 0] > 0]
    counts = np.stack(
        [np.append(items[0, 0], right) for items, _, right, _ in sums]
    )  # tokens, then right ones by head
    accuracy = np.ravel(figures["text_to_region_by_head"])
    assert counts[:, 0].sum() == figures["text_to_region_tokens"]
    np.testing.assert_allclose(counts[:, 1:].sum(0) / counts[:, 0].sum(), accuracy)
    drawn = counts[np.random.default_rng(7).integers(len(counts), size=(4000, len(counts)))].sum(1)
    expected = np.quantile(drawn[:, 1:] / drawn[:, :1], [0.025, 0.975], axis=0)
    found = figures["text_to_region_intervals"]
    np.testing.assert_allclose([np.ravel(found["low"]), np.ravel(found["high"])], expected, atol=0.04)
    assert found["images"] == len(counts) > 1
    headline = summarise(figures, figures)
    best = best_head(headline)
    assert (best.value, best.count) == (pytest.approx(accuracy.max()), figures["text_to_region_tokens"])
    assert best.low <= best.value <= best.high
    assert "text_to_region_intervals" not in AttentionGrounding().compute(streamed(parts)), "no names of images"


@pytest.mark.parametrize("same", [False, True])
def test_a_headline_has_interval_number_and_choice(same):
    heads = {"none": ("0-1", Estimate(0.25, 0.2, 0.3, 1234)), "direct": ("1-0", Estimate(1.0, 0.9, 1.0, 1234))}
    text = conclusion(heads, 0.125, "words", same)
    wanted = ("direct", "1-0", "100.0%", "90.0% to 100.0%", "1,234 words", "25.0%", "20.0% to 30.0%", "12.5%")
    assert all(part in text for part in wanted)
    assert ("same items" in text) is same
