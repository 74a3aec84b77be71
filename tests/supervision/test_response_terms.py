# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Terms on the attention of responses against loops over eager maps, in value and in gradient."""

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.testing import assert_close

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
    images = [Image.new("RGB", size, "teal") for size in SIZES]
    rows = []
    for image, boxes in zip(images, BOXES, strict=True):
        rows.append({"image": image, "phrases": [{"boxes": [box]} for box in boxes]})
    patches = PatchGroundingProcessor(processor, family)
    batch = patches(["what is this ?"] * 4, ANSWERS, images=images, labels=True)
    return model.eval(), patches, dict(patches.model_inputs(batch)), rows


def answer_places(inputs, b):
    return (inputs["labels"][b] >= 0).nonzero()[:, 0].tolist()


def read_losses(model, method, inputs, batch):
    outputs = model(**inputs, **method.forward_kwargs(batch))
    return method.losses(outputs, batch)["text_to_region"]


def image_places(batch, b):
    places = batch["region_positions"][b]
    return places[places >= 0]


def both_ways(family, method, batch, inputs, loop):
    """Compares the loss of a method beside SDPA with a loop over eager maps, and the gradients of all weights."""
    eager = responses(family)[0]
    eager.set_attn_implementation("eager")
    expected = loop(eager(**inputs, output_attentions=True).attentions)
    expected.backward()
    model = responses(family)[0]
    method.prepare(model)
    total, count = read_losses(model, method, inputs, batch)
    assert count == method.counts(batch)["text_to_region"] > 0
    loss = total / count
    loss.backward()
    assert_close(loss.double(), expected.double(), atol=1e-6, rtol=1e-5)
    largest = 0
    parameters = find_language_model(model).parameters()
    for ours, theirs in zip(parameters, find_language_model(eager).parameters(), strict=True):
        if theirs.grad is not None:
            found = torch.zeros_like(ours) if ours.grad is None else ours.grad
            assert_close(found, theirs.grad, atol=1e-5, rtol=1e-4)
            largest = max(largest, theirs.grad.abs().max())
    assert largest > 1e-4
    return float(loss)


def over_image(layer, b, row, columns):
    """(H, K): the attention of a row over some columns, each head 1 in sum."""
    picked = layer[b, :, row, columns]
    return picked / picked.sum(-1, keepdim=True)


def kl(target, found):
    return torch.xlogy(target, target / found).sum()


def mixture(boxes, tokens, spread, background):
    """EASE's target by its words: a Gaussian for each box, each 1 in sum, and a background."""
    left, top, right, bottom = tokens.T
    found = torch.zeros(len(tokens))
    for x1, y1, x2, y2 in boxes:
        across = (left + right - x1 - x2) / 2 / (spread * (x2 - x1))
        down = (top + bottom - y1 - y2) / 2 / (spread * (y2 - y1))
        weights = torch.exp(-(across**2 + down**2) / 2)
        found += weights / weights.sum() / len(boxes)
    return (1 - background) * found + background / len(tokens)


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
            columns = image_places(batch, b)
            target = mixture(BOXES[b], batch["region_boxes"][b][: len(columns)], 0.25, 0.1)
            for row in answer_places(inputs, b):
                losses.append(kl(target, over_image(maps[1], b, row, columns).mean(0)))
        return torch.stack(losses).mean()

    both_ways(family, method, batch, inputs, loop)


def plain_row(layer, b, row, columns):
    """RAL's row: the mean over heads, over the columns without the row itself."""
    picked = layer[b, :, row, columns[columns < row]].mean(0)
    return picked / picked.sum()


@pytest.mark.parametrize(
    "columns, sign, layers, divergence", [("sequence", 1, None, "jsd"), ("image", -1, [0, 1], "kl")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_divergence_to_earlier_attention(family, columns, sign, layers, divergence):
    _, patches, inputs, rows = responses(family)
    method = EarlierAttention(layers, columns=columns, sign=sign, divergence=divergence)
    batch = response_batch(patches, inputs, rows, columns)
    batch["advantages"] = torch.tensor([1.5, -0.5, 0.25, -2.0])
    earlier = responses(family, seed=1)[0]
    method.prepare(earlier)
    with torch.no_grad():
        batch[EARLIER] = method.read(earlier(**inputs, **method.forward_kwargs(batch)), batch)
        earlier.set_attn_implementation("eager")
        old = earlier(**inputs, output_attentions=True).attentions

    def loop(maps):
        losses = []
        for b, advantage in enumerate(batch["advantages"]):
            visible = inputs["attention_mask"][b].nonzero()[:, 0]
            if columns == "image":
                visible = image_places(batch, b)
            for row in answer_places(inputs, b):
                for layer in layers or [-1]:
                    p = plain_row(old[layer], b, row, visible)
                    q = plain_row(maps[layer], b, row, visible)
                    apart = kl(p, q)
                    if divergence == "jsd":
                        middle = (p + q) / 2
                        apart = (kl(p, middle) + kl(q, middle)) / 2
                    losses.append(sign * advantage * apart)
        return torch.stack(losses).mean()

    assert abs(both_ways(family, method, batch, inputs, loop)) > 1e-5


@torch.no_grad()
def test_a_model_that_has_not_moved_has_no_divergence():
    model, patches, inputs, rows = responses("llava")
    method = EarlierAttention()
    batch = response_batch(patches, inputs, rows, "sequence")
    batch["advantages"] = torch.ones(4)
    method.prepare(model)
    outputs = model(**inputs, **method.forward_kwargs(batch))
    batch[EARLIER] = method.read(outputs, batch)
    total, _ = method.losses(outputs, batch)["text_to_region"]
    assert float(total) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_margin_of_chosen_and_rejected(family):
    _, patches, inputs, rows = responses(family)
    batch = response_batch(patches, inputs, rows)
    method = AttentionMargin(beta=2.0, heads=[[0, 1], [1, 0], [1, 2]])

    def evidence(maps, b):
        columns = image_places(batch, b)
        gold = batch["phrase_regions"][b].any(0)[: len(columns)]
        values = []
        for row in answer_places(inputs, b):
            for layer, heads in ((0, [1]), (1, [0, 2])):
                mean = over_image(maps[layer], b, row, columns)[heads].mean(0)
                values.append(mean[gold].sum().log())
        return torch.stack(values).mean()

    def loop(maps):  # the pair of rows 0 and 2 has no boxes in 2
        return -F.logsigmoid(2.0 * (evidence(maps, 1) - evidence(maps, 3)))

    both_ways(family, method, batch, inputs, loop)


def handed_over(shares, boxes, student):
    """Attention on the boxes of a teacher's tokens, on those of a student: by the areas that both share."""
    left, top, right, bottom = student.T
    found = torch.zeros(len(student))
    for share, (x1, y1, x2, y2) in zip(shares, boxes, strict=True):
        width = torch.minimum(right, x2) - torch.maximum(left, x1)
        height = torch.minimum(bottom, y2) - torch.maximum(top, y1)
        areas = width.clamp(min=0) * height.clamp(min=0)
        found += share * areas / areas.sum().clamp(min=1e-9)
    return found / found.sum()


STUDENT_HEADS = [(1, 2), (0, 1)]
TEACHER_HEADS = [(0, 3), (1, 0)]


@pytest.mark.parametrize("family", FAMILIES)
def test_distillation_from_other_image_tokens(family):
    _, patches, inputs, rows = responses(family)
    batch = response_batch(patches, inputs, rows, "image")
    teacher, their_patches, theirs, _ = responses(FAMILIES[1 - FAMILIES.index(family)], seed=2)
    read = response_batch(their_patches, theirs, rows, "image")
    reader = AttentionDistillation(TEACHER_HEADS)
    reader.prepare(teacher)
    with torch.no_grad():
        outputs = teacher(**theirs, **reader.forward_kwargs(read))
        batch[TEACHER] = reader.hand_over(outputs, read, batch)
        teacher.set_attn_implementation("eager")
        old = teacher(**theirs, output_attentions=True).attentions
    lower = batch["region_candidate_mask"] & (batch["region_boxes"][..., 1] >= 0.5)  # a student that shows less
    part = reader.hand_over(outputs, read, {**batch, "region_candidate_mask": lower}).sum(-1)
    assert_close(part, torch.ones_like(part))

    def mean_row(maps, b, layer, head, given, places):
        columns = image_places(given, b)
        found = [over_image(maps[layer], b, row, columns)[head] for row in places]
        return torch.stack(found).mean(0)

    def loop(maps):
        losses = []
        for b in range(4):
            boxes = read["region_boxes"][b][: len(image_places(read, b))]
            student = batch["region_boxes"][b][: len(image_places(batch, b))]
            for ours, taught in zip(STUDENT_HEADS, TEACHER_HEADS, strict=True):
                shares = mean_row(old, b, *taught, read, answer_places(theirs, b))
                target = handed_over(shares, boxes, student)
                losses.append(kl(target, mean_row(maps, b, *ours, batch, answer_places(inputs, b))))
        return torch.stack(losses).mean()

    both_ways(family, AttentionDistillation(STUDENT_HEADS), batch, inputs, loop)


def test_a_teacher_that_saw_no_image_and_one_of_other_heads():
    model, patches, inputs, rows = responses("llava")
    batch = response_batch(patches, inputs, rows, "image")
    method = AttentionDistillation(STUDENT_HEADS)
    method.prepare(model)
    outputs = model(**inputs, **method.forward_kwargs(batch))
    batch[TEACHER] = method.hand_over(outputs, batch, batch).detach()
    batch[TEACHER][1] = 0.0  # it saw no image there
    assert method.losses(outputs, batch)["text_to_region"][1] == 3
    few = AttentionDistillation(STUDENT_HEADS[:1])
    few.prepare(model)
    with pytest.raises(ValueError, match="2 heads"):
        read_losses(model, few, inputs, batch)


def test_a_token_hands_its_attention_to_tokens_of_its_image():
    """By shared areas: half to the second, a fourth to the third; the first has another image, the last no place."""
    boxes = torch.tensor([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.5, 0, 1.0, 0.5], [0.5, 0.5, 1, 1.0]])
    student = {
        "region_boxes": boxes[None],
        "region_image": torch.tensor([[0, 1, 1, 1]]),
        "region_candidate_mask": torch.tensor([[True, True, True, False]]),
    }
    teacher = {
        "region_boxes": boxes[None, [0, 0]],
        "region_image": torch.tensor([[1, 1]]),
        "region_candidate_mask": torch.tensor([[True, False]]),
    }
    expected = torch.tensor([[[0, 2 / 3, 1 / 3, 0], [0, 0, 0, 0]]])
    assert_close(shared_areas(teacher, student), expected)


def test_long_responses_are_thinned_evenly():
    wanted = torch.zeros(3, 40, dtype=torch.bool)
    wanted[0, 4:38] = True
    wanted[1, 7:10] = True
    long, short, none = response_rows(wanted, 5)
    assert none.tolist() == [-1] * 5
    assert short.tolist() == [7, 8, 9, -1, -1]
    assert long[0] - 4 == 37 - long[-1]
    assert set(long.diff().tolist()) <= {6, 7}
    assert response_rows(wanted, None)[0, :34].tolist() == list(range(4, 38))


@pytest.mark.parametrize(
    "number, change, words",
    [(0, {"phrases": [{"bbox": [0, 0, 1, 1]}]}, "'bbox'"), (1, {"image": None}, "row 1 of the batch")],
)
def test_wrong_rows(number, change, words):
    _, patches, inputs, rows = responses("llava")
    rows[number] |= change
    with pytest.raises(ValueError, match=words):
        response_batch(patches, inputs, rows)


def test_wrong_batches():
    model, patches, inputs, rows = responses("llava")
    batch = response_batch(patches, inputs, rows, "sequence")
    with pytest.raises(ValueError, match="pairs"):
        AttentionMargin().counts({key: value[:3] for key, value in batch.items()})
    method = EarlierAttention()
    method.prepare(model)
    with pytest.raises(ValueError, match="advantages"):
        read_losses(model, method, inputs, batch)
