# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Terms on the attention of responses against loops over eager maps, in value and in gradient."""

import math

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.supervision.distillation import TEACHER, AttentionDistillation, shared_areas
from grounded_attention.supervision.earlier import EARLIER, EarlierAttention
from grounded_attention.supervision.margin import AttentionMargin
from grounded_attention.supervision.supervise import find_language_model
from grounded_attention.training.loop.responses import response_batch, response_rows
from tests.helpers.tiny_vlm_models import make_pair

FAMILIES = ["llava", "qwen2_5_vl"]
BOXES = [[[0.1, 0.2, 0.7, 0.6], [0.5, 0.5, 0.9, 1.0]], [[0.3, 0.3, 0.8, 0.9]], [], [[0.0, 0.0, 0.5, 0.5]]]
SIZES = [(56, 40), (48, 64), (40, 40), (64, 48)]
ANSWERS = ["a dog near a red cat", "two red balls", "a cat", "here is a small dog"]


def responses(family, seed=0):
    """A model, its inputs, and the rows of four responses."""
    model, processor = make_pair(family)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in find_language_model(model).named_parameters():  # other, uneven attention in each seed
        if "q_proj" in name or "k_proj" in name:
            weight.data = 0.4 * torch.randn(weight.shape, generator=generator)
    patches = PatchGroundingProcessor(processor, family)
    rows = [
        {"image": Image.new("RGB", size, (9 * i, 99, 200)), "phrases": [{"boxes": [box]} for box in boxes]}
        for i, (size, boxes) in enumerate(zip(SIZES, BOXES, strict=True))
    ]
    made = patches(["what is this ?"] * 4, ANSWERS, images=[row["image"] for row in rows], labels=True)
    return model.eval(), patches, dict(patches.model_inputs(made)), rows


def answer_places(inputs):
    return [(row >= 0).nonzero().flatten().tolist() for row in inputs["labels"]]


def both_ways(family, method, batch, inputs, loop):
    """The loss of a method beside SDPA and that of a loop over eager maps, each with the gradients of all weights."""
    found = []
    for eager in (False, True):
        model, *_ = responses(family)
        passed = {key: value for key, value in inputs.items() if key != "labels"}
        if eager:
            model.set_attn_implementation("eager")
            loss = loop(model(**passed, output_attentions=True).attentions)
        else:
            method.prepare(model)
            total, count = method.losses(model(**passed, **method.forward_kwargs(batch)), batch)["text_to_region"]
            assert int(count) == int(method.counts(batch)["text_to_region"]) > 0
            loss = total / count
        loss.backward()
        language = find_language_model(model)
        grads = {key: each.grad for key, each in language.named_parameters() if each.grad is not None}
        found.append((loss.detach(), grads))
    (ours, gradients), (theirs, expected) = found
    torch.testing.assert_close(ours.double(), theirs.double(), atol=1e-6, rtol=1e-5)
    assert max(each.abs().max() for each in expected.values()) > 1e-4
    for key, each in expected.items():
        torch.testing.assert_close(gradients.get(key, torch.zeros_like(each)), each, atol=1e-5, rtol=1e-4)
    return float(ours)


def over_image(layer, b, row, columns):
    """(H, K): the attention of a row over some columns, each head 1 in sum."""
    picked = layer[b, :, row, columns]
    return picked / picked.sum(-1, keepdim=True)


def kl(target, found):
    return sum(t * (math.log(t) - found[i].log()) for i, t in enumerate(target) if t > 0)


def mixture(boxes, tokens, spread, background):
    """EASE's target by its words: a Gaussian for each box, each 1 in sum, and a background."""
    shares = []
    for x1, y1, x2, y2 in boxes:
        weights = []
        for left, top, right, bottom in tokens:
            across = ((left + right) / 2 - (x1 + x2) / 2) / (spread * (x2 - x1))
            down = ((top + bottom) / 2 - (y1 + y2) / 2) / (spread * (y2 - y1))
            weights.append(math.exp(-(across**2 + down**2) / 2))
        shares.append([each / sum(weights) for each in weights])
    mixed = [sum(each) / len(boxes) for each in zip(*shares, strict=True)]
    return [(1 - background) * each + background / len(mixed) for each in mixed]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_on_rewarded_rollouts(family):
    _, patches, inputs, rows = responses(family)
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.9])  # the third has no boxes
    batch = response_batch(patches, inputs, rows, keep=rewards > 0.5)
    method = get_method("kl_attention", rows="words", target="mixture", spread=0.25, background=0.1, layers=[1])
    batch |= method.prepare_batch(batch)

    def loop(maps):
        losses = []
        for b in (0, 3):
            known = batch["region_positions"][b] >= 0
            columns = batch["region_positions"][b][known]
            tokens = batch["region_boxes"][b][known].tolist()
            target = mixture(BOXES[b], tokens, 0.25, 0.1)
            for row in answer_places(inputs)[b]:
                losses.append(kl(target, over_image(maps[1], b, row, columns).mean(0)))
        return sum(losses) / len(losses)

    both_ways(family, method, batch, inputs, loop)


def plain_row(layer, b, row, columns):
    """RAL's row: the mean over heads, over the columns without the row itself."""
    columns = [each for each in columns if each < row]
    picked = layer[b, :, row, columns].mean(0)
    return dict(zip(columns, picked / picked.sum(), strict=True))


@pytest.mark.parametrize(
    ("columns", "sign", "layers", "divergence"), [("sequence", 1, None, "jsd"), ("image", -1, [0, 1], "kl")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_divergence_to_earlier_attention(family, columns, sign, layers, divergence):
    _, patches, inputs, rows = responses(family)
    method = EarlierAttention(layers, columns=columns, sign=sign, divergence=divergence)
    batch = response_batch(patches, inputs, rows, columns)
    passed = {key: value for key, value in inputs.items() if key != "labels"}
    earlier, *_ = responses(family, seed=1)
    method.prepare(earlier)
    with torch.no_grad():
        batch[EARLIER] = method.read(earlier(**passed, **method.forward_kwargs(batch)), batch)
    earlier.set_attn_implementation("eager")
    with torch.no_grad():
        old = earlier(**passed, output_attentions=True).attentions
    batch["advantages"] = torch.tensor([1.5, -0.5, 0.25, -2.0])

    def loop(maps):
        total = 0.0
        count = 0
        for b, places in enumerate(answer_places(inputs)):
            seen = inputs["attention_mask"][b].nonzero().flatten().tolist()
            if columns == "image":
                seen = [each for each in batch["region_positions"][b].tolist() if each >= 0]
            for row in places:
                for layer in layers or [-1]:
                    p = plain_row(old[layer], b, row, seen)
                    q = plain_row(maps[layer], b, row, seen)
                    middle = {each: (p[each] + q[each]) / 2 for each in p}
                    pairs = [(p, q)] if divergence == "kl" else [(p, middle), (q, middle)]
                    apart = [sum(a[i] * (a[i] / b[i]).log() for i in p if a[i] > 0) / len(pairs) for a, b in pairs]
                    total = total + sign * batch["advantages"][b] * sum(apart)
                    count = count + 1
        return total / count

    value = both_ways(family, method, batch, inputs, loop)
    assert abs(value) > 1e-5
    with torch.no_grad():  # the same model has not moved
        same, *_ = responses(family)
        method.prepare(same)
        batch[EARLIER] = method.read(outputs := same(**passed, **method.forward_kwargs(batch)), batch)
        assert float(method.losses(outputs, batch)["text_to_region"][0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_margin_of_chosen_and_rejected(family):
    _, patches, inputs, rows = responses(family)
    batch = response_batch(patches, inputs, [rows[0], rows[1], rows[2], rows[3]])
    method = AttentionMargin(beta=2.0, heads=[[0, 1], [1, 0], [1, 2]])

    def evidence(maps, b):
        values = []
        for layer, heads in ((0, [1]), (1, [0, 2])):
            known = batch["region_positions"][b] >= 0
            gold = batch["phrase_regions"][b].any(0)[known]
            for row in answer_places(inputs)[b]:
                mean = over_image(maps[layer], b, row, batch["region_positions"][b][known])[heads].mean(0)
                values.append(mean[gold].sum().log())
        return sum(values) / len(values)

    def loop(maps):  # the pair of rows 0 and 2 has no boxes in 2
        return -F.logsigmoid(2.0 * (evidence(maps, 1) - evidence(maps, 3)))

    both_ways(family, method, batch, inputs, loop)


@pytest.mark.parametrize("family", FAMILIES)
def test_distillation_from_other_image_tokens(family):
    other = FAMILIES[1 - FAMILIES.index(family)]
    _, patches, inputs, rows = responses(family)
    teacher, their_patches, theirs, _ = responses(other, seed=2)
    batch = response_batch(patches, inputs, rows, "image")
    read = response_batch(their_patches, theirs, rows, "image")
    ours = [(1, 2), (0, 1)]
    taught = [(0, 3), (1, 0)]
    passed = {key: value for key, value in theirs.items() if key != "labels"}
    reader = AttentionDistillation(taught)
    reader.prepare(teacher)
    with torch.no_grad():
        seen = teacher(**passed, **reader.forward_kwargs(read))
        batch[TEACHER] = reader.hand_over(seen, read, batch)
        lower = batch["region_candidate_mask"] & (batch["region_boxes"][..., 1] >= 0.5)
        part = reader.hand_over(seen, read, {**batch, "region_candidate_mask": lower}).sum(-1)
    torch.testing.assert_close(part, torch.ones_like(part))  # a student that shows less
    teacher.set_attn_implementation("eager")
    with torch.no_grad():
        old = teacher(**passed, output_attentions=True).attentions

    def looks(maps, b, places, given, head):
        columns = given["region_positions"][b]
        rows_of = [over_image(maps[head[0]], b, row, columns[columns >= 0])[head[1]] for row in places[b]]
        return sum(rows_of) / len(rows_of)

    def loop(maps):
        losses = []
        for b in range(4):
            for mine, wise in zip(ours, taught, strict=True):
                told = [0.0] * int((batch["region_positions"][b] >= 0).sum())
                for share, box in zip(
                    looks(old, b, answer_places(theirs), read, wise), read["region_boxes"][b].tolist(), strict=False
                ):
                    areas = [
                        max(0.0, min(box[2], x2) - max(box[0], x1)) * max(0.0, min(box[3], y2) - max(box[1], y1))
                        for x1, y1, x2, y2 in batch["region_boxes"][b].tolist()[: len(told)]
                    ]
                    told = [
                        each + float(share) * area / (sum(areas) or 1) for each, area in zip(told, areas, strict=True)
                    ]
                told = [each / sum(told) for each in told]
                losses.append(kl(told, looks(maps, b, answer_places(inputs), batch, mine)))
        return sum(losses) / len(losses)

    method = AttentionDistillation(ours)
    both_ways(family, method, batch, inputs, loop)
    unseen = {**batch, TEACHER: batch[TEACHER].index_fill(0, torch.tensor([1]), 0.0)}  # it saw no image there
    method.prepare(model := responses(family)[0])
    passed = {key: value for key, value in inputs.items() if key != "labels"}
    assert int(method.losses(model(**passed, **method.forward_kwargs(unseen)), unseen)["text_to_region"][1]) == 3
    few = AttentionDistillation(ours[:1])
    few.prepare(model := responses(family)[0])
    with pytest.raises(ValueError, match="2 heads"):
        few.losses(model(**passed, **few.forward_kwargs(batch)), batch)


def test_a_token_hands_its_attention_to_tokens_of_its_image():
    """By shared areas: half to the second, a fourth to the third; the first has another image, the last no place."""
    boxes = torch.tensor([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.5, 0, 1.0, 0.5], [0.5, 0.5, 1, 1.0]])
    student = {"region_boxes": boxes[None], "region_image": torch.tensor([[0, 1, 1, 1]])}
    student["region_candidate_mask"] = torch.tensor([[True, True, True, False]])
    teacher = {"region_boxes": boxes[None, :1].repeat(1, 2, 1), "region_image": torch.ones(1, 2, dtype=torch.long)}
    teacher["region_candidate_mask"] = torch.tensor([[True, False]])
    found = shared_areas(teacher, student)[0].tolist()
    assert found == [pytest.approx([0, 2 / 3, 1 / 3, 0]), [0, 0, 0, 0]]


def test_long_responses_are_thinned_evenly():
    wanted = torch.zeros(3, 40, dtype=torch.bool)
    wanted[0, 4:38] = wanted[1, 7:10] = True
    found = response_rows(wanted, 5)
    assert found[1].tolist() == [7, 8, 9, -1, -1]
    assert found[2].tolist() == [-1] * 5
    steps = found[0].diff()
    assert found[0, 0] - 4 == 37 - found[0, -1]
    assert steps.min() >= 6
    assert steps.max() <= 7
    assert response_rows(wanted, None)[0, :34].tolist() == list(range(4, 38))


def test_wrong_batches():
    model, patches, inputs, rows = responses("llava")
    with pytest.raises(ValueError, match="'bbox'"):
        response_batch(patches, inputs, [{**rows[0], "phrases": [{"bbox": [0, 0, 1, 1]}]}, *rows[1:]])
    with pytest.raises(ValueError, match="row 1 of the batch"):
        response_batch(patches, inputs, [rows[0], {**rows[1], "image": None}, *rows[2:]])
    method = AttentionMargin()
    batch = response_batch(patches, inputs, rows)
    with pytest.raises(ValueError, match="pairs"):
        method.counts({key: value[:3] for key, value in batch.items()})
    method = EarlierAttention()
    method.prepare(model)
    batch = response_batch(patches, inputs, rows, "sequence")
    passed = {key: value for key, value in inputs.items() if key != "labels"}
    with pytest.raises(ValueError, match="advantages"):
        method.losses(model(**passed, **method.forward_kwargs(batch)), batch)
