# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Controls of attention supervision: which regions they give, what that depends on, and what it does not."""

from operator import eq

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from grounded_attention.supervision.controls import LABELS, control_labels
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_vgp import tiny_processor, tiny_rows, tiny_table

CONTROLS = [labels for labels in LABELS if labels != "gold"]
REGIONS = 12


def make_batch(examples=6, phrases=4, seed=0):
    """Ragged regions behind a whole image; gold sets of 0 to 3 regions, the same for phrases of one entity."""
    rng = np.random.default_rng(seed)
    candidates = torch.zeros(examples, REGIONS, dtype=torch.bool)
    gold = torch.zeros(examples, phrases, REGIONS, dtype=torch.bool)
    entities = [["7", "8", "7", "9"] for _ in range(examples)]
    for example in range(examples):
        count = int(rng.integers(4, REGIONS))
        candidates[example, 1 : 1 + count] = True
        sets = {entity: 1 + rng.permutation(count)[:size] for entity, size in zip("789", (3, 1, 0), strict=True)}
        for phrase, entity in enumerate(entities[example]):
            gold[example, phrase, sets[entity]] = True
    batch = {"phrase_regions": gold, "region_candidate_mask": candidates}
    return batch, [f"image{i}" for i in range(examples)], entities


def donor_targets(image):
    return [np.array([0, 10]), np.array([2])]


@pytest.mark.parametrize("labels", CONTROLS)
def test_targets_are_existing_regions_of_grounded_phrases(labels):
    batch, images, entities = make_batch()
    found = control_labels(labels, batch, images, entities, donor_targets=donor_targets)
    gold = batch["phrase_regions"]
    candidates = batch["region_candidate_mask"]
    assert found.dtype == torch.bool
    assert found.shape == gold.shape
    assert not (found & ~candidates[:, None]).any()
    assert not found[:, :, 0].any()
    assert torch.equal(found.any(-1), gold.any(-1))


def test_gold_is_handed_on():
    batch, images, entities = make_batch()
    assert control_labels("gold", batch, images, entities) is batch["phrase_regions"]


@pytest.mark.parametrize("labels", ["random", "random_each_epoch"])
def test_random_is_never_gold_and_as_many(labels):
    batch, images, entities = make_batch(examples=60)
    found = control_labels(labels, batch, images, entities)
    gold = batch["phrase_regions"]
    assert not (found & gold).any()
    others = (batch["region_candidate_mask"][:, None] & ~gold).sum(-1)
    assert torch.equal(found.sum(-1), torch.minimum(gold.sum(-1), others * gold.any(-1)))
    assert torch.equal(found[:, 0], found[:, 2])  # one entity
    assert not torch.equal(found[:, 0], found[:, 1])


def test_random_is_uniform_over_the_other_regions():
    gold = torch.zeros(1, 1, 6, dtype=torch.bool)
    gold[0, 0, 2] = True
    batch = {"phrase_regions": gold, "region_candidate_mask": torch.tensor([[False, True, True, True, True, True]])}
    counts = sum(control_labels("random", batch, [f"i{i}"], [["1"]])[0, 0].int() for i in range(2000))
    assert counts[[0, 2]].eq(0).all()
    assert (counts[[1, 3, 4, 5]] - 500).abs().max() < 100  # five standard deviations


def test_an_image_whose_every_region_is_gold_gives_none():
    every = torch.ones(1, 1, 3, dtype=torch.bool)
    batch = {"phrase_regions": every, "region_candidate_mask": every[0]}
    for labels in ("random", "irrelevant"):
        assert not control_labels(labels, batch, ["a"], [["1"]]).any()


def test_irrelevant_is_the_complement():
    batch, images, entities = make_batch()
    found = control_labels("irrelevant", batch, images, entities)
    gold = batch["phrase_regions"]
    grounded = gold.any(-1, keepdim=True)
    candidates = batch["region_candidate_mask"][:, None]
    assert torch.equal(found | gold, grounded & candidates)
    assert not (found & gold).any()


def test_what_a_draw_depends_on():
    batch, images, entities = make_batch(examples=30)
    draw = lambda labels, **changed: control_labels(  # noqa: E731
        labels,
        batch,
        changed.pop("images", images),
        changed.pop("entities", entities),
        donor_targets=donor_targets,
        **changed,
    )
    same = draw("random")
    assert torch.equal(draw("random", epoch=5), same)
    assert not torch.equal(draw("random", seed=1), same)
    assert not torch.equal(draw("random", images=[f"other{i}" for i in range(30)]), same)
    assert not torch.equal(draw("random", entities=[["1", "2", "1", "3"]] * 30), same)
    each = draw("random_each_epoch", epoch=1)
    assert torch.equal(draw("random_each_epoch", epoch=1), each)
    assert not torch.equal(draw("random_each_epoch", epoch=2), each)
    assert torch.equal(draw("shuffled", epoch=3), draw("shuffled"))


@pytest.mark.parametrize("labels", CONTROLS)
def test_the_rest_of_the_batch_does_not_matter(labels):
    batch, images, entities = make_batch()
    whole = control_labels(labels, batch, images, entities, epoch=2, donor_targets=donor_targets)
    for i in (0, 3):
        alone = {name: tensor[i : i + 1] for name, tensor in batch.items()}
        one = slice(i, i + 1)
        found = control_labels(labels, alone, images[one], entities[one], epoch=2, donor_targets=donor_targets)
        assert torch.equal(found, whole[one])
    wider = {name: torch.nn.functional.pad(tensor, (0, 5)) for name, tensor in batch.items()}
    padded = control_labels(labels, wider, images, entities, epoch=2, donor_targets=donor_targets)
    assert torch.equal(padded[..., :REGIONS], whole)
    assert not padded[..., REGIONS:].any()


@pytest.mark.parametrize("entity", [None, "", "0", "missing"])
def test_phrases_without_entity_go_by_their_gold_regions(entity):
    batch, images, _ = make_batch()
    entities = [[] if entity == "missing" else [entity] * 4 for _ in images]
    found = control_labels("random", batch, images, entities)
    assert torch.equal(found[:, 0], found[:, 2])
    assert not torch.equal(found[:, 0], found[:, 1])


def test_shuffled_takes_a_target_of_the_donor_within_the_image():
    batch, images, entities = make_batch()
    found = control_labels("shuffled", batch, images, entities, donor_targets=donor_targets)
    for example, count in enumerate(batch["region_candidate_mask"].sum(-1).tolist()):
        possible = [{1, 1 + min(10, count - 1)}, {3}]
        for phrase in (0, 1):
            assert set(found[example, phrase].nonzero()[:, 0].tolist()) in possible


@pytest.mark.parametrize(
    ("labels", "words"), [("rnadom", "did you mean 'labels=random'"), ("shuffled", "give donor_targets")]
)
def test_bad_labels_are_refused(labels, words):
    with pytest.raises(ValueError, match=words):
        control_labels(labels, *make_batch())


# In batches


TABLE = tiny_table(12)
ROWS = tiny_rows(TABLE)


def make_collator(labels, split=ROWS, seed=3):
    return Collator(TASKS["vgp"], tiny_processor(), TABLE, seed, split=split, labels=labels)


def targets(labels, batch_size=4, workers=0, epoch=0):
    """Of every grounded phrase of every row: (row, phrase) -> regions."""
    collator = make_collator(labels)
    collator.set_epoch(epoch)
    loader = DataLoader(list(ROWS), batch_size, collate_fn=collator, num_workers=workers)
    found = {}
    row = 0
    for batch in loader:
        for regions in batch["phrase_regions"]:
            found |= {(row, p): tuple(r.nonzero()[:, 0].tolist()) for p, r in enumerate(regions) if r.any()}
            row += 1
    return found


@pytest.mark.parametrize("labels", CONTROLS)
def test_batches_and_workers_change_nothing(labels):
    expected = targets(labels, batch_size=5, epoch=1)
    assert expected
    assert targets(labels, batch_size=24, epoch=1) == expected
    assert expected != targets("gold")
    assert targets(labels, batch_size=3, workers=2, epoch=1) == expected


def test_only_redrawn_labels_follow_the_epoch():
    for labels in CONTROLS:
        assert (targets(labels, epoch=0) == targets(labels, epoch=1)) == (labels != "random_each_epoch")


@pytest.mark.parametrize("labels", CONTROLS)
def test_what_is_measured_is_gold(labels):
    rows = list(ROWS)
    measured = make_collator(labels).evaluating(ROWS)(rows)
    trained = make_collator(labels)(rows)
    gold = make_collator("gold")(rows)
    assert torch.equal(measured["phrase_regions"], gold["phrase_regions"])
    assert not torch.equal(trained["phrase_regions"], gold["phrase_regions"])
    for name, value in gold.items():
        same = torch.equal if isinstance(value, torch.Tensor) else eq
        assert name == "phrase_regions" or same(trained[name], value), name


def test_shuffled_borrows_from_one_other_image():
    collator = make_collator("shuffled")
    gold = targets("gold")
    by_image = {}
    for (row, _), regions in gold.items():
        by_image.setdefault(ROWS[row]["image_id"], set()).add(tuple(region - 1 for region in regions))
    for image in TABLE:
        donated = {tuple(regions.tolist()) for regions in collator._donor_targets(image)}
        assert donated
        assert any(donated <= known for other, known in by_image.items() if other != image)


def test_shuffled_needs_several_images():
    alone = ROWS.filter(lambda row: row["image_id"] == "0" and any(p["boxes"] for p in row["phrases"]))
    with pytest.raises(ValueError, match="shuffled needs rows of several images"):
        make_collator("shuffled", split=alone)(list(alone))
