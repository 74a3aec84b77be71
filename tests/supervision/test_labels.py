# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Controls of attention supervision: which regions they give, what that depends on, and what it does not."""

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


def make_batch(examples=6):
    """Ragged regions behind a whole image; gold sets of 0 to 3 regions, the same for phrases of one entity."""
    rng = np.random.default_rng(0)
    candidates = torch.zeros(examples, REGIONS, dtype=torch.bool)
    gold = torch.zeros(examples, 4, REGIONS, dtype=torch.bool)
    for example in range(examples):
        count = int(rng.integers(4, REGIONS))
        candidates[example, 1 : 1 + count] = True
        drawn = 1 + rng.permutation(count)[:4]
        gold[example, 0, drawn[:3]] = True
        gold[example, 1, drawn[3]] = True
        gold[example, 2] = gold[example, 0]
    batch = {"phrase_regions": gold, "region_candidate_mask": candidates}
    return batch, [f"image{i}" for i in range(examples)], [["7", "8", "7", "9"]] * examples


def donor_targets(image):
    return [np.array([0, 10]), np.array([2])]


@pytest.mark.parametrize("labels", CONTROLS)
def test_targets_are_existing_regions_of_grounded_phrases(labels):
    batch, images, entities = make_batch()
    found = control_labels(labels, batch, images, entities, donor_targets=donor_targets)
    assert found.dtype == torch.bool
    assert not (found & ~batch["region_candidate_mask"][:, None]).any()
    assert torch.equal(found.any(-1), batch["phrase_regions"].any(-1))


def test_gold_is_handed_on():
    batch, images, entities = make_batch()
    assert control_labels("gold", batch, images, entities) is batch["phrase_regions"]


@pytest.mark.parametrize("labels", ["random", "random_each_epoch"])
def test_random_is_never_gold_and_as_many(labels):
    batch, images, entities = make_batch(examples=60)
    found = control_labels(labels, batch, images, entities)
    gold = batch["phrase_regions"]
    others = batch["region_candidate_mask"][:, None] & ~gold
    assert not (found & ~others).any()
    count = gold.sum(-1)
    assert torch.equal(found.sum(-1), count.minimum(others.sum(-1)))
    first, second, third, _ = found.unbind(1)
    assert torch.equal(first, third)  # one entity
    assert not torch.equal(first, second)


def test_random_is_uniform_over_the_other_regions():
    gold = torch.tensor([[[False, False, True, False, False, False]]])
    batch = {"phrase_regions": gold, "region_candidate_mask": torch.arange(6)[None] > 0}
    counts = torch.zeros(6)
    for i in range(2000):
        counts += control_labels("random", batch, [f"i{i}"], [["1"]])[0, 0]
    assert counts[[0, 2]].tolist() == [0, 0]
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


@pytest.fixture
def draw():
    batch, images, entities = make_batch(examples=30)
    given = {"image_ids": images, "entities": entities, "donor_targets": donor_targets}
    return lambda labels, **changed: control_labels(labels, batch, **{**given, **changed})


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"image_ids": [f"other{i}" for i in range(30)]}, {"entities": [["1", "2", "1", "3"]] * 30}],
    ids=lambda changed: next(iter(changed)),
)
def test_another_seed_image_or_entity_draws_others(draw, changed):
    assert torch.equal(draw("random"), draw("random"))
    assert not torch.equal(draw("random", **changed), draw("random"))


def test_only_labels_that_say_so_are_drawn_each_epoch(draw):
    assert torch.equal(draw("random", epoch=5), draw("random"))
    assert torch.equal(draw("shuffled", epoch=3), draw("shuffled"))
    assert torch.equal(draw("random_each_epoch", epoch=1), draw("random_each_epoch", epoch=1))
    assert not torch.equal(draw("random_each_epoch", epoch=2), draw("random_each_epoch", epoch=1))


@pytest.mark.parametrize("labels", CONTROLS)
def test_the_rest_of_the_batch_does_not_matter(labels):
    batch, images, entities = make_batch()
    options = {"epoch": 2, "donor_targets": donor_targets}
    whole = control_labels(labels, batch, images, entities, **options)
    alone = {name: tensor[3:4] for name, tensor in batch.items()}
    found = control_labels(labels, alone, images[3:4], entities[3:4], **options)
    assert torch.equal(found, whole[3:4])
    wider = {name: torch.nn.functional.pad(tensor, (0, 5)) for name, tensor in batch.items()}
    padded = control_labels(labels, wider, images, entities, **options)
    assert torch.equal(padded, torch.nn.functional.pad(whole, (0, 5)))


@pytest.mark.parametrize("entities", [[None] * 4, [""] * 4, ["0"] * 4, []])
def test_phrases_without_entity_go_by_their_gold_regions(entities):
    batch, images, _ = make_batch()
    found = control_labels("random", batch, images, [entities] * len(images))
    assert torch.equal(found[:, 0], found[:, 2])
    assert not torch.equal(found[:, 0], found[:, 1])


def test_shuffled_takes_a_target_of_the_donor_within_the_image():
    batch, images, entities = make_batch()
    found = control_labels("shuffled", batch, images, entities, donor_targets=donor_targets)
    for example, count in enumerate(batch["region_candidate_mask"].sum(-1).tolist()):
        for phrase in found[example, :2]:
            assert phrase.nonzero()[:, 0].tolist() in ([1, 1 + min(10, count - 1)], [3])


@pytest.mark.parametrize(
    "labels, words", [("rnadom", "did you mean 'labels=random'"), ("shuffled", "give donor_targets")]
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
    found = {}
    row = 0
    for batch in DataLoader(list(ROWS), batch_size, collate_fn=collator, num_workers=workers):
        for phrases in batch["phrase_regions"]:
            for number, regions in enumerate(phrases):
                if regions.any():
                    found[row, number] = tuple(regions.nonzero()[:, 0].tolist())
            row += 1
    return found


@pytest.mark.parametrize("labels", CONTROLS)
def test_batches_and_workers_change_nothing(labels):
    expected = targets(labels, batch_size=5, epoch=1)
    assert expected
    assert expected != targets("gold")
    assert targets(labels, batch_size=3, workers=2, epoch=1) == expected
    assert (targets(labels) == expected) == (labels != "random_each_epoch")


@pytest.mark.parametrize("labels", CONTROLS)
def test_what_is_measured_is_gold(labels):
    rows = list(ROWS)
    measured = make_collator(labels).evaluating(ROWS)(rows)
    trained = make_collator(labels)(rows)
    gold = make_collator("gold")(rows)
    regions = gold.pop("phrase_regions")
    assert torch.equal(measured["phrase_regions"], regions)
    assert not torch.equal(trained["phrase_regions"], regions)
    for name, value in gold.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(trained[name], value), name
        else:
            assert trained[name] == value, name


def test_shuffled_borrows_from_one_other_image():
    collator = make_collator("shuffled")
    by_image = {image: set() for image in TABLE}
    for (row, _), regions in targets("gold").items():
        by_image[ROWS[row]["image_id"]].add(tuple(region - 1 for region in regions))
    for image in TABLE:
        borrowed = {tuple(regions.tolist()) for regions in collator._donor_targets(image)}
        assert borrowed
        assert any(borrowed <= known for other, known in by_image.items() if other != image)


def test_shuffled_needs_several_images():
    alone = ROWS.filter(lambda row: row["image_id"] == "0" and any(p["boxes"] for p in row["phrases"]))
    with pytest.raises(ValueError, match="shuffled needs rows of several images"):
        make_collator("shuffled", split=alone)(list(alone))
