# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes the legacy files of region features in the format of each original tool.

Several of these tools write pickles (`allow_pickle=True`): readers must not run code in these files.
"""

import json
import pickle
import zipfile
from functools import partial

import h5py
import lmdb
import numpy as np

from tests.helpers.region_samples import SIZE, butd_fields, floats, lxmert_fields, pixels, write_tsv

OPTIONAL = ("classes", "scores", "attributes", "attribute_scores")


def probabilities(regions, columns=1601):
    """Returns (n, columns): the class of a region has the highest probability, except that background (column 0) has a
    higher one in the first row.
    """
    with_background = columns == 1601
    result = np.full((len(regions), columns), 1e-4, dtype=np.float32)
    result[np.arange(len(regions)), regions.classes + with_background] = 0.3
    if with_background:
        result[0, 0] = 0.6
    return result


def vl_bert_json(regions):
    attributes = np.full((len(regions), 401), 1e-4, dtype=np.float32)
    attributes[np.arange(len(regions)), regions.attributes + 1] = 0.2
    return {
        "image_id": 1,
        "image_h": regions.height,
        "image_w": regions.width,
        "num_boxes": len(regions),
        "boxes": floats(pixels(regions)),
        "features": floats(regions.features),
        "classes": floats(probabilities(regions)),
        "attrs": floats(attributes),
        "image_box_feature": floats(regions.features[0]),
    }


def write_zip(folder, rows):
    with zipfile.ZipFile(folder / "frcnn.zip", "w") as archive:
        for regions in rows:
            archive.writestr(f"train/{regions.image_id}.json", json.dumps(vl_bert_json(regions)))
    return folder / "frcnn.zip"


def write_json_folder(folder, rows):
    for regions in rows:
        (folder / f"{regions.image_id}.json").write_text(json.dumps(vl_bert_json(regions)))
    return folder


def write_hengyuan(folder, rows, adaptive=False):
    boxes = [pixels(regions).astype(np.float32) for regions in rows]
    spatial = []
    for regions, box in zip(rows, boxes, strict=True):
        corners = box / np.float64([regions.width, regions.height] * 2)
        sides = (box[:, 2:] - box[:, :2]) / np.float64([regions.width, regions.height])
        spatial.append(np.concatenate([corners[:, :2], corners[:, :2] + sides, sides], axis=1))
    join = np.concatenate if adaptive else np.stack
    with h5py.File(folder / "train36.hdf5", "w") as file:
        file["image_features"] = join([regions.features for regions in rows]).astype("f")
        file["image_bb"] = join(boxes)
        file["spatial_features"] = join(spatial).astype("f")
        if adaptive:
            counts = [len(regions) for regions in rows]
            ends = np.cumsum(counts)
            file["pos_boxes"] = np.stack([ends - counts, ends], axis=1)
    index = {int(regions.image_id): row for row, regions in enumerate(rows)}
    (folder / "train36_imgid2idx.pkl").write_bytes(pickle.dumps(index, 0))
    return folder / "train36.hdf5"


def write_adaptive(folder, rows):
    return write_hengyuan(folder, rows, adaptive=True)


def write_gqa(folder, rows):
    """Writes rows of five boxes, the last of which are padding; the order differs from that of the info file."""
    features = np.zeros((len(rows), 5, SIZE), np.float32)
    boxes = np.zeros((len(rows), 5, 4), np.float32)
    info = {"n1": {"width": 1, "height": 1, "objectsNum": 1, "idx": 0, "file": 4}}
    for row, regions in reversed(list(enumerate(rows))):
        features[row, : len(regions)] = regions.features
        boxes[row, : len(regions)] = pixels(regions)
        size = {"width": regions.width, "height": regions.height, "objectsNum": len(regions)}
        info[regions.image_id] = {**size, "idx": row, "file": 3}
    with h5py.File(folder / "gqa_objects_3.h5", "w") as file:
        file["features"] = features
        file["bboxes"] = boxes
    (folder / "gqa_objects_info.json").write_text(json.dumps(info))
    return folder / "gqa_objects_3.h5"


def volta_item(regions):
    """The datasets of a group; the LMDB stores [()] of each."""
    return {
        "boxes": pixels(regions).astype(np.float32),
        "features": regions.features,
        "img_h": regions.height,
        "img_w": regions.width,
        "obj_id": regions.classes,
        "obj_conf": regions.scores,
        "attr_id": regions.attributes,
        "attr_conf": regions.attribute_scores,
        "num_objects": len(regions),
    }


def write_volta_h5(folder, rows):
    with h5py.File(folder / "features.h5", "w") as file:
        for regions in rows:
            group = file.create_group(regions.image_id)
            for name, value in volta_item(regions).items():
                group.create_dataset(name, data=value)
    return folder / "features.h5"


def write_lmdb(folder, items, keys=None, protocol=4):
    path = folder / "features.lmdb"
    with lmdb.open(str(path), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for image_id, item in items.items():
            value = item if isinstance(item, bytes) else pickle.dumps(item, protocol)
            transaction.put(image_id.encode(), value)
        listed = [image_id.encode() for image_id in items] if keys is None else keys
        transaction.put(b"keys", pickle.dumps(listed))
    return path


def write_items(folder, rows, item, protocol=4):
    """Writes what `item` makes of each row."""
    items = {regions.image_id: item(regions) for regions in rows}
    return write_lmdb(folder, items, protocol=protocol)


def vilbert_beta_item(regions):
    names = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
    item = dict(zip(names, butd_fields(regions), strict=True))
    return {**item, "cls_prob": floats(probabilities(regions)).encode()}


def vilbert_item(regions):
    return {
        "image_id": regions.image_id,
        "image_h": np.int64(regions.height),
        "image_w": np.int64(regions.width),
        "num_boxes": len(regions),
        "boxes": pixels(regions).astype(np.float32),
        "features": regions.features,
        "cls_prob": probabilities(regions),
    }


def volta_base64_item(regions):
    names = "img_id img_h img_w objects_id objects_conf attrs_id attrs_conf num_boxes boxes features"
    return dict(zip(names.split(), lxmert_fields(regions), strict=True))


def write_volta_arrays(folder, rows):
    def arrays(regions):
        item = {name: np.asarray(value)[()] for name, value in volta_item(regions).items()}
        return {**item, "img_id": regions.image_id}

    return write_items(folder, rows, arrays)


def mmf_item(regions):
    """The format of extract_features_vmb; the box after the `num_boxes` valid boxes was suppressed."""
    classes = probabilities(regions, 1600)
    return {
        "feature_path": regions.image_id,
        "features": np.concatenate([regions.features, regions.features[:1]]),
        "bbox": np.concatenate([pixels(regions), [[0, 0, 1, 1]]]).astype(np.float32),
        "num_boxes": len(regions),
        "objects": np.append(regions.classes, 0),
        "cls_prob": np.concatenate([classes, classes[:1]]),
        "image_width": regions.width,
        "image_height": regions.height,
    }


def write_lxmert(folder, rows):
    return write_tsv(folder / "obj36.tsv", list(map(lxmert_fields, rows)))


def write_bottom_up(folder, rows):
    return write_tsv(folder / "trainval.tsv", list(map(butd_fields, rows)))


# Format, its writer, and the optional arrays that it contains.
CASES = {
    "VL-BERT zip": ("vl_bert_zip", write_zip, ("classes", "attributes")),
    "VL-BERT folder": ("vl_bert_zip", write_json_folder, ("classes", "attributes")),
    "hengyuan fixed": ("h5", write_hengyuan, ()),
    "hengyuan adaptive": ("h5", write_adaptive, ()),
    "GQA": ("h5", write_gqa, ()),
    "VOLTA h5": ("h5", write_volta_h5, OPTIONAL),
    "ViLBERT beta": ("lmdb", partial(write_items, item=vilbert_beta_item, protocol=2), ("classes",)),
    "ViLBERT multi-task": ("lmdb", partial(write_items, item=vilbert_item), ("classes",)),
    "VOLTA base64": ("lmdb", partial(write_items, item=volta_base64_item), OPTIONAL),
    "VOLTA arrays": ("lmdb", write_volta_arrays, OPTIONAL),
    "MMF lmdb": ("lmdb", partial(write_items, item=mmf_item), ("classes",)),
    "LXMERT tsv": ("lxmert_tsv", write_lxmert, OPTIONAL),
    "bottom-up tsv": ("butd_tsv", write_bottom_up, ()),
}
