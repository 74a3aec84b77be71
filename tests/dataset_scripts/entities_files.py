# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes tiny data sets in the official layouts, for the tests of the builders."""

import csv

CAPTIONS = (
    "[/EN#11/people A man] in [/EN#12/clothing a red coat] feeds [/EN#13/animals two dogs] .",
    "[/EN#11/people An old man] and [/EN#13/animals his pets] in [/EN#14/scene the park] .",
    "[/EN#11/people Someone] with [/EN#13/animals/other two dogs] beside [/EN#0/notvisual each other]",
    "[/EN#11 A man] outdoors .",
    "[/EN#13/animals Dogs] eat near [/EN#14/scene the park] gate .",
)
SECOND = ("[/EN#21/people A woman] rides [/EN#22/vehicles a bike] .",) * 4 + ("[/EN#21/people She] is far away .",)
THIRD = tuple(f"[/EN#31/people A child] holds [/EN#3{n}/other toy {n}] ." for n in range(2, 7))
TYPOLOGY_HEADER = "image,phrase1,phrase2,original_phrase1,original_phrase2,original_label,type_label".split(",")
TYPOLOGY_NAMES = ("Alternation", "Entailment1", "Entailment2", "Equivalence", "Independence")


def box(x1, y1, x2, y2):
    """A `<bndbox>` with these texts."""
    sides = zip(("xmin", "ymin", "xmax", "ymax"), (x1, y1, x2, y2), strict=True)
    return "<bndbox>" + "".join(f"<{side}>{value}</{side}>" for side, value in sides) + "</bndbox>"


def write_annotation(path, objects, size=(100, 50)):
    """Writes an annotation file with the given XML objects."""
    body = "".join(f"\t<object>\n\t\t{item}\n\t</object>\n" for item in objects)
    width, height = size
    path.write_text(
        f"<annotation>\n\t<filename>{path.stem}.jpg</filename>\n\t<size><width>{width}</width><height>{height}</height>"
        f"<depth>3</depth></size>\n{body}</annotation>\n",
        encoding="utf-8",
    )
    return path


def write_entities(
    folder,
    images,
    splits,
    unrelated="# format: <imageID> <sentence number>",
):
    """Writes the official folder: sentences, one box (1, 1, 50, 25) for chain 13 of each image, and lists."""
    for name in ("Sentences", "Annotations"):
        (folder / name).mkdir(parents=True)
    for image_id, captions in images.items():
        # The last line has no line break, as in some official files.
        (folder / "Sentences" / f"{image_id}.txt").write_text("\n".join(captions), encoding="utf-8")
        objects = ["<name>13</name>" + box(1, 1, 51, 26), "<name>14</name><scene>1</scene><nobndbox>1</nobndbox>"]
        write_annotation(folder / "Annotations" / f"{image_id}.xml", objects)
    for split in ("train", "val", "test"):
        (folder / f"{split}.txt").write_text("".join(f"{i}\n" for i in splits.get(split, ())), encoding="utf-8")
    (folder / "UNRELATED_CAPTIONS").write_text(unrelated, encoding="utf-8")
    return folder


def write_typology(path, rows):
    """Writes a typology file of (image, phrase1, phrase2, label) rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TYPOLOGY_HEADER)
        for image_id, first, second, label in rows:
            writer.writerow([image_id, first.lower(), second.lower(), first, second, TYPOLOGY_NAMES[label], label])
    return path


def write_vgp(
    data_dir,
    train=(),
    unrelated="# format: <imageID> <sentence number>",
):
    """Writes a data folder: images 1, 2, 3 for training with these pairs, 4 for validation, and 5 for test."""
    images = {"1": CAPTIONS, "2": SECOND, "3": THIRD, "4": SECOND, "5": CAPTIONS}
    splits = {"train": ("1", "2", "3"), "val": ("4",), "test": ("5",)}
    write_entities(data_dir / "flickr30k_entities", images, splits, unrelated)
    write_typology(data_dir / "vgp" / "train_data.csv", train)
    write_typology(data_dir / "vgp" / "val_data.csv", ())
    write_typology(data_dir / "vgp" / "test_data.csv", [("5", "A man", "An old man", 2)])
    return data_dir
