# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How hard drawn scenes are: classes, chance, ambiguity, false captions, linear readability of features."""

from collections import Counter, defaultdict

import numpy as np

from grounded_attention.dataset_scripts.builders.vgp_pairs import nearest_negatives
from grounded_attention.dataset_scripts.scenes import shapes
from grounded_attention.dataset_scripts.scenes.captions import caption_holds, needs_context
from grounded_attention.dataset_scripts.scenes.world import COLOURS, SHAPES
from grounded_attention.dataset_scripts.scenes.writers import phrase_pairs
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou


def shares_of_pairs(records):
    """Shares of the five classes of phrase pairs."""
    counts = Counter(row[5] for record in records for row in phrase_pairs(record))
    return [count / counts.total() for count in counts.values()]


def share_that_needs_its_sentence(records):
    """How often a phrase that means objects is ambiguous alone."""
    ambiguous = [needs_context(record.scene, phrase) for record in records for phrase in _grounded(record)]
    return np.mean(ambiguous)


def share_of_chains_in_several_captions(records):
    captions_of = defaultdict(set)
    for record in records:
        chains = record.chains()
        for index, caption in enumerate(record.related_captions):
            for mention in caption.mentions:
                if mention.entity:
                    captions_of[record.image_id, chains[mention.entity]].add(index)
    return np.mean([len(captions) > 1 for captions in captions_of.values()])


def chance_of_a_grounded_phrase(records, table):
    """How often a random region is right (intersection over union of at least 0.5)."""
    chances = []
    for record in records:
        right = _overlaps(record, table) >= IOU_THRESHOLD
        for phrase in _grounded(record):
            chances.append(right[:, sorted(phrase.members)].any(axis=1).mean())
    return np.mean(chances)


def share_of_false_captions(records, table, splits):
    """How often a caption is false for the nearest image of its split."""
    by_id = {record.image_id: record for record in records}
    false = []
    for numbers in splits.values():
        ids = [records[number].image_id for number in numbers]
        for image_id, nearest in nearest_negatives(ids, table).items():
            for caption in by_id[nearest].related_captions:
                false.append(not caption_holds(by_id[image_id].scene, caption))
    return np.mean(false)


def linear_accuracies(records, table):
    """Of colour and of shape, by least squares on regions that show an object; any name that fits is right."""
    features = []
    looks = []
    for record in records:
        overlap = _overlaps(record, table)
        for region in np.flatnonzero(overlap.max(axis=1) >= IOU_THRESHOLD):
            item = record.scene.objects[overlap[region].argmax()]
            features.append([*table[record.image_id].features[region], 1])
            looks.append([name in (*item.colours, *item.shapes) for name in (*COLOURS, *SHAPES)])
    features = np.array(features, np.float32)
    looks = np.array(looks, np.float32)
    cut = len(features) * 4 // 5  # a fifth is held out
    weights, *_ = np.linalg.lstsq(features[:cut], looks[:cut], rcond=None)
    accuracies = []
    for columns in (slice(len(COLOURS)), slice(len(COLOURS), None)):
        best = (features[cut:] @ weights[:, columns]).argmax(axis=1)
        accuracies.append(looks[cut:, columns][np.arange(len(best)), best].mean())
    return accuracies


def _overlaps(record, table):
    """Intersection over union of regions and objects: (regions, objects)."""
    regions = table[record.image_id]
    size = np.array([regions.width, regions.height] * 2, dtype=np.float32)
    return box_iou(regions.boxes * size, np.array([shapes.box(item) for item in record.scene.objects]))


def _grounded(record):
    """The phrases of the related captions that mean objects."""
    return [phrase for caption in record.related_captions for phrase in caption.mentions if phrase.members]
