# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention grounding against plain loops over full eager attention maps; the choice of layer and head; accuracies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

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
        for phrase in row["phrases"][1::2]:
            if phrase["boxes"]:
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
    for example, candidates in enumerate(batch["region_candidate_mask"]):
        gold = torch.einsum(
            "pt,pr->tr", batch["phrase_mask"][example].float(), batch["phrase_regions"][example].float()
        )
        for token in gold.any(1).nonzero()[:, 0].tolist():
            yield example, token, words + candidates.nonzero()[:, 0], words + gold[token].nonzero()[:, 0]


def brute_force(batch):
    """The figures of `AttentionGrounding`, token by token."""
    maps = eager_maps(batch)
    tokens = list(grounded_tokens(batch))
    itself = torch.eye(maps.shape[-1])
    found = {"accuracy": [], "share": [], "rollout": [], "chance": []}
    for example, token, candidates, gold in tokens:
        rows = maps[:, example, :, token, candidates]  # (layers, heads, candidates)
        is_gold = torch.isin(candidates, gold)
        found["accuracy"].append(is_gold[rows.argmax(-1)].double())
        found["share"].append(rows.sum(-1))
        found["chance"].append(is_gold.double().mean())
        flow = itself
        right = []
        for layer in maps[:, example]:
            flow = (layer.mean(0) + itself) / 2 @ flow
            right.append(is_gold[flow[token, candidates].argmax()])
        found["rollout"].append(torch.tensor(right).double())
    return {"tokens": len(tokens), **{name: torch.stack(values).mean(0).numpy() for name, values in found.items()}}


def test_figures_equal_brute_force_over_eager_maps(rows):
    batch = collate(rows)
    assert (batch["attention_mask"] == 0).any()
    assert (batch["region_attention_mask"] == 0).any()
    assert max(len(gold) for *_, gold in grounded_tokens(batch)) > 1
    expected = brute_force(batch)
    accuracy = expected["accuracy"]
    figures = AttentionGrounding().compute(streamed([batch]))
    assert figures["text_to_region_tokens"] == expected["tokens"] > 20
    assert figures["text_to_region_chance"] == pytest.approx(float(expected["chance"]))
    assert_allclose(figures["text_to_region_by_head"], accuracy)
    assert_allclose(figures["text_to_region_share_by_head"], expected["share"], atol=1e-5)
    assert_allclose(figures["text_to_region_rollout_by_layer"], expected["rollout"])
    assert figures["text_to_region_all_heads"] == pytest.approx(accuracy.mean())
    assert figures["text_to_region_best_layer"] == pytest.approx(accuracy.mean(1).max())
    assert figures["text_to_region_best_head"] == pytest.approx(accuracy.max())
    assert len(np.unique(accuracy)) > 2  # heads differ, or the comparison says little


@pytest.mark.parametrize("sizes", [(1,) * 16, (3, 7, 6), (15, 1)])
def test_the_split_into_batches_does_not_matter(rows, sizes):
    parts = []
    start = 0
    for size in sizes:
        parts.append(collate(rows.select(range(start, start + size))))
        start += size
    assert len({part["input_ids"].shape[1] for part in parts}) > 1  # padded to other widths
    assert_close(streamed(parts), streamed([collate(rows)]), atol=1e-4, rtol=0)


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
    allowed = batch["region_attention_mask" if whole_image else "region_candidate_mask"]
    maps = eager_maps(batch)[1, :, :, :words, words:-1] * allowed[:, None, None]
    maps = maps / maps.sum(-1, keepdim=True)
    maps = maps.mean(1) if head is None else maps[:, head]  # (examples, words, regions)
    real = batch["phrase_mask"].any(-1)
    expected = torch.zeros(batch["phrase_regions"].shape)
    for example, phrase in real.nonzero().tolist():
        expected[example, phrase] = maps[example, batch["phrase_mask"][example, phrase]].mean(0)
    assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert not real.all()  # padded phrases occur, and stay 0
    assert found[:, :, 0].any() == whole_image


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
    expected = {"all_heads": 0.45, "best_layer": 0.25, "best_head": 0.5, "rollout": 0.1, "chance": 0.15}
    assert {name: found[name] for name in expected} == pytest.approx(expected)


LOGITS = torch.tensor([[[3.0, 1, 0], [0, 1, 2], [9, 0, 0]], [[0, 5, 1], [1, 0, 0], [0, 0, 1]]])
LABELS = torch.tensor([[0, 1, -100], [1, 1, 2]])  # right, wrong, not counted; right, wrong, right


@pytest.fixture
def accuracy():
    return ClassificationAccuracy("vgp", "logits", "labels")


def test_accuracy_of_a_hand_counted_case(accuracy):
    assert accuracy.forward_kwargs({}) == {}
    accuracy.update(SimpleNamespace(logits=LOGITS), {"labels": LABELS})
    found = accuracy.compute(accuracy.state())
    assert found == {"vgp_accuracy": 3 / 5, "vgp_majority": 3 / 5, "vgp_chance": 1 / 3, "vgp_count": 5}


def test_states_of_batches_and_of_processes_add_up(accuracy):
    added = {}
    for logits, labels in zip(LOGITS, LABELS, strict=True):
        alone = ClassificationAccuracy("vgp", "logits", "labels")
        for metric in (alone, accuracy):
            metric.update(SimpleNamespace(logits=logits), {"labels": labels})
        for name, value in alone.state().items():
            added[name] = added.get(name, 0) + value
    assert added["classes"].tolist() == [1, 3, 1]
    assert accuracy.compute(added) == accuracy.compute(accuracy.state())


def test_accuracy_without_a_label(accuracy):
    accuracy.update(SimpleNamespace(logits=LOGITS[:, :0]), {"labels": LABELS[:, :0]})
    assert accuracy.compute(accuracy.state()) == {"vgp_count": 0}


def test_outputs_without_supervised_attention_are_refused_with_the_reason():
    batch = {"phrase_mask": torch.ones(1, 1, 2), "phrase_regions": torch.ones(1, 1, 3)}
    with pytest.raises(ValueError, match="no supervised attention"):
        AttentionGrounding().update(SimpleNamespace(attentions=()), batch)


def test_intervals_draw_whole_images(rows):
    """Against a bootstrap of its own, with other draws; two processes share the images."""
    parts = [rows.select(range(start, len(rows), 2)) for start in range(2)]
    merged = {}
    for part in parts:
        state = streamed([{**collate(part), "image_id": part["image_id"]}])
        for key, value in state.items():
            merged[key] = merged.get(key, 0) + value
    figures = AttentionGrounding().compute(merged)
    tokens = []
    right = []
    for key, value in merged.items():
        if key.startswith("image:") and value[0, 0, 0] > 0:
            tokens.append(float(value[0, 0, 0]))
            right.append(value[2].flatten().numpy())
    tokens = np.array(tokens)
    right = np.array(right)  # (images, heads)
    accuracy = np.ravel(figures["text_to_region_by_head"])
    assert tokens.sum() == figures["text_to_region_tokens"]
    assert_allclose(right.sum(0) / tokens.sum(), accuracy)
    drawn = np.random.default_rng(7).integers(len(tokens), size=(4000, len(tokens)))
    samples = right[drawn].sum(1) / tokens[drawn].sum(1, keepdims=True)
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    found = figures["text_to_region_intervals"]
    assert_allclose(np.ravel(found["low"]), low, atol=0.04)
    assert_allclose(np.ravel(found["high"]), high, atol=0.04)
    assert found["images"] == len(tokens) > 1
    best = best_head(summarise(figures, figures))
    assert best.value == pytest.approx(accuracy.max())
    assert best.count == figures["text_to_region_tokens"]
    assert best.low <= best.value <= best.high


def test_without_names_of_images_there_are_no_intervals(rows):
    assert "text_to_region_intervals" not in AttentionGrounding().compute(streamed([collate(rows)]))


@pytest.mark.parametrize("same", [False, True])
def test_a_headline_has_interval_number_and_choice(same):
    heads = {"none": ("0-1", Estimate(0.25, 0.2, 0.3, 1234)), "direct": ("1-0", Estimate(1.0, 0.9, 1.0, 1234))}
    text = conclusion(heads, 0.125, "words", same)
    for words in ("direct", "1-0", "100.0%", "90.0% to 100.0%", "1,234 words", "25.0%", "20.0% to 30.0%", "12.5%"):
        assert words in text
    assert ("same items" in text) is same
