# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The shapes of rows that are known: one line a shape. They are tried in this order on the columns of a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import captions, conversations, detection, probes, questions, referring
from .columns import Columns, Context
from .raw import BOX_NAMES, RowError, Rows

NO_OBJECTS = "no objects"
OF_A_TOOL = "annotations of a tool"


@dataclass(frozen=True)
class Shape:
    """A shape of rows."""

    name: str  # Its name in reports
    sets: str  # Public data that have it
    matches: Callable[[Columns], bool]  # Whether a row has it
    read: Callable[[Columns, Context], Rows]  # Makes rows of a record, which is given with a [`Context`]


SHAPES: Sequence[Shape] = (
    Shape("own phrases", "rows of this package", captions.has_phrases, captions.read_phrases),
    Shape("entities", "Flickr30K Entities", captions.has_entities, captions.read_entities),
    Shape("GRIT", "zzliang/GRIT", captions.has_chunks, captions.read_chunks),
    Shape("grounding", "ODVG", captions.has_grounding, captions.read_grounding),
    Shape("foils", "VALSE, SugarCrepe", probes.has_foil, probes.read_foil),
    Shape("options", "What'sUp", probes.has_options, probes.read_options),
    Shape("two pairs", "facebook/winoground", probes.has_two_pairs, probes.read_two_pairs),
    Shape("statement", "cambridgeltl/vsr_random", probes.has_statement, probes.read_statement),
    Shape("yes or no", "POPE, AMBER", probes.has_verdict, probes.read_verdict),
    Shape("samples", "moondream/refcoco-m", referring.has_samples, referring.read_things),
    Shape("conversation", "LLaVA, Qwen, ms-swift, LLaMA-Factory, GUI-Actor, UGround",
          conversations.matches, conversations.read),
    Shape(NO_OBJECTS, "pictures of the background", detection.has_no_objects, detection.read_no_objects),
    Shape(OF_A_TOOL, "LabelMe, CreateML", detection.is_of_tool, detection.read),
    Shape("elements", "OS-Atlas, Visual Genome regions", referring.has_elements, referring.read_things),
    Shape("detection", "COCO, cppe-5, YOLO, Pascal VOC, Label Studio", detection.matches, detection.read),
    Shape("points", "allenai/pixmo-points", questions.has_points, questions.read_points),
    Shape("question", "Visual-CoT, TreeBench, V*", questions.matches, questions.read),
    Shape("referring expression", "lmms-lab/RefCOCO, jxu124/refcoco, Ref-L4, ScreenSpot, OSWorld-G",
          referring.matches, referring.read),
    Shape("text", "captions without boxes", referring.has_text_or_question, conversations.read_text),
)  # fmt: skip


def find_shape(record: Columns) -> Shape:
    """The shape of a record; a `RowError` if it is none of the known ones."""
    for shape in SHAPES:
        if shape.matches(record):
            return shape
    raise RowError(
        "rows of an unknown shape",
        found=", ".join(map(str, record)),
        expected=f"a picture, a text (text, caption, answer, ...) and boxes ({', '.join(BOX_NAMES[:4])}, ...)",
        hint="name them: columns={'image': ..., 'text': ..., 'boxes': ...}",
    )
