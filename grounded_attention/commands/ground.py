# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shows where a model looks in an image when it reads a caption.

Prints the most-attended region of each phrase: its box in pixels, the detector's label, and its share of the phrase's
attention on all detected regions. With --output it also draws the picture. By default the attention is the mean over
the heads of the upper half of the layers; --layer and --head (counted from 0) select one layer or head, --heads those
of a heads.json. In Python, use pipeline("visual-grounding").

Regions come from a detector and a feature model, from known boxes and a feature model, or from a region table. A model
that reads pixels needs no feature model. The detector and the feature model "scenes" are for pictures of coloured
shapes and a model that was trained on drawn scenes. The command warns, also in the picture, if the features differ
from those of training, or if a word was not in the training data. Phrases are those of --phrases; without them, noun
phrases if spaCy and en_core_web_sm are installed; otherwise each content word.

A vision-language model (LLaVA, Qwen2.5-VL, SmolVLM, Gemma 3 ...) needs no regions: the attention of a few heads gives
the box of the caption, or of each of --phrases. `grounded-attention heads` finds these heads.

examples:
  # a picture of coloured shapes, after make train
  grounded-attention ground shapes.png "a red ball left of a blue cube" --model runs/scenes_vgp/direct \\
      --detector scenes --features scenes --output attention.png

  # a photograph, for a model trained on features of this network
  grounded-attention ground dog.jpg "a dog chases a red ball" --model runs/own/direct \\
      --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50 --output attention.png

  # an image whose regions are in a table; its id is the file name without suffix
  grounded-attention ground data/scenes/flickr30k-images/10004.jpg "the red ball" --model runs/scenes_vgp/direct \\
      --regions data/scenes/regions --phrases "the red ball" --json

  # rows of a data set, with the overlap of what is found and their boxes
  grounded-attention ground --data lmms-lab/RefCOCO --split val --max-rows 8 --model runs/my_vlm --output rows.png

  # a vision-language model with heads.json beside it
  grounded-attention ground dog.jpg "the red ball" --model runs/my_vlm --output ball.png
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounded_attention.utils.extras import require

from .command_line import make_main, make_parser
from .image_options import add_region_options
from .number_options import not_negative
from .rows_options import add_source_options, refuse_row_options, rows_from
from .vlm_options import add_vlm_options, read_heads, reads_image_tokens

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from grounded_attention.heads.heads_file import ChosenHeads
    from grounded_attention.pages.attention_pictures import WordAttention


def ground(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    from transformers.utils import logging

    if options.output is not None:
        require("matplotlib")  # or the model would work for nothing

    logging.disable_progress_bar()
    inputs = read_inputs(options)
    tokens = reads_image_tokens(options)
    check_options(options, tokens)
    results, texts = [], []
    groundings = (ground_in_tokens if tokens else ground_in_regions)(options, inputs)
    for source, grounded in zip(inputs, groundings, strict=True):
        for remark in grounded.remarks:
            print(f"warning: {remark}", file=sys.stderr)
        compare(grounded.grounding, source)
        about = {"caption": source.caption, **grounded.about, "warnings": grounded.remarks}
        results.append({**about, "grounding": grounded.grounding})
        named = f"{source.name}: {source.caption}\n" if source.name else ""
        texts.append(f"{named}{grounded.heading}\n{table(grounded.grounding)}")
    if options.json:
        return json.dumps(results if len(results) > 1 else results[0])
    return "\n\n".join(texts)


@dataclass
class Input:
    """An image and its caption; of a row also its name, its phrases and their gold boxes in [0, 1]."""

    image: Image.Image
    image_id: str
    caption: str
    phrases: Sequence[Any] | None
    output: str | None
    name: str = ""
    gold: Mapping[tuple[int, int], Any] = field(default_factory=dict)  # by start and end

    def gold_of(self, phrase: Mapping[str, Any]) -> np.ndarray:
        """The gold boxes of a phrase, (n, 4) in [0, 1]; none if the row has none."""
        import numpy as np

        return np.asarray(self.gold.get((phrase["start"], phrase["end"]), ()), dtype=float).reshape(-1, 4)


def read_inputs(options: argparse.Namespace) -> list[Input]:
    """The image and caption of the command line, or those of rows."""
    from grounded_attention.processing.phrase import row_texts

    from .image_options import open_input

    phrases = split_phrases(options.phrases)
    if options.data is None:
        refuse_row_options(options, "split", "images", "columns", "max_rows", "row")
        if options.caption is None:
            raise ValueError("give an image and a caption, or --data")
        return [Input(open_input(options), Path(options.image).stem, options.caption, phrases, options.output)]
    if options.image is not None:
        raise ValueError(f"{options.image}: image and caption are those of --data; remove it")
    inputs: list[Input] = []
    rows, options.boxes = rows_from(options), None  # how rows write boxes; it names no regions
    for number, row in enumerate(rows, options.row):
        # The text and the picture of the first phrase with boxes.
        first = next((phrase for phrase in row["phrases"] if phrase["boxes"]), {"sentence": 0, "image": 0})
        told = [each for each in row["phrases"] if all(each[key] == first[key] for key in ("sentence", "image"))]
        spans = {(each["start"], each["end"]): each["boxes"] for each in told}
        image = (row.get("images") or [row["image"]])[first["image"]]
        path = None if options.output is None else Path(options.output)
        if path is not None and inputs:
            path = path.with_stem(f"{path.stem}_{number}")
        asked: Any = phrases or list(spans) or None
        caption = row_texts(row)[first["sentence"]]
        inputs.append(
            Input(image, row["image_id"], caption, asked, None if path is None else str(path), f"row {number}", spans)
        )
    return inputs


def compare(grounding: Sequence[dict[str, Any]], source: Input) -> None:
    """Adds the overlap with the gold boxes of a row to what was found."""
    from grounded_attention.utils.boxes import box_iou

    for one in grounding:
        if len(boxes := source.gold_of(one)):
            pixels = boxes * (source.image.size * 2)
            one["iou"] = round(float(box_iou([[*one["box"].values()]], pixels).max()), 3)


@dataclass
class Grounded:
    """What is printed: the best region of each phrase, a line about the attention, and the same for `--json`."""

    grounding: list[dict[str, Any]]
    heading: str
    about: dict[str, Any]
    remarks: list[str]


def ground_in_regions(options: argparse.Namespace, inputs: Sequence[Input]) -> Iterator[Grounded]:
    """The regions of a detector that a model of this project looks at."""
    from accelerate import PartialState
    from transformers.utils import logging

    from grounded_attention.heads.heads_file import ChosenHeads
    from grounded_attention.modeling import pipeline_visual_grounding
    from grounded_attention.modeling.caption_phrases import find_phrases
    from grounded_attention.modeling.pipeline_visual_grounding import choose_layers

    from .device_options import find_device
    from .image_options import load_pipeline, read_regions

    named = [find_phrases(source.caption, source.phrases) for source in inputs]
    regions = [read_regions(options, source.image_id) for source in inputs]
    pipe = load_pipeline(options, find_device(options.device, PartialState()))
    pipeline_visual_grounding.logger.setLevel(logging.ERROR)  # this command prints the remarks itself
    settings: dict[str, Any] = {"top_k": None}
    if options.heads is None:
        layers = choose_layers(pipe.model.config.grounding_calls, options.layer, options.head)
        settings |= {"layer": options.layer, "head": options.head}
        heads = "mean over heads" if options.head is None else f"head {options.head}"
        where = f"layer {layers[0]}" if len(layers) == 1 else f"mean over layers {layers[0]} to {layers[-1]}"
        where, about = f"{where}, {heads}", {"layers": layers, "head": options.head}
    else:
        pairs = options.heads if isinstance(options.heads, list) else None
        chosen = ChosenHeads.from_file(options.heads) if pairs is None else ChosenHeads(tuple(pairs), source="--heads")
        chosen.check(pipe.model)
        settings |= {"heads": chosen.heads, "words": chosen.settings.words}
        where, about = name_chosen(chosen)
    for source, (phrases, way), known in zip(inputs, named, regions, strict=True):
        spans = [(phrase.start, phrase.end) for phrase in phrases]
        ranked = pipe(source.image, source.caption, phrases=spans, **known, **settings)
        count = len(ranked) // len(phrases)
        if source.output is not None:
            from grounded_attention.pages.attention_pictures import attention_figure

            parts = [ranked[start : start + count] for start in range(0, len(ranked), count)]
            pictures = [to_picture(part, source) for part in parts]
            attention_figure(source.image, source.caption, pictures, source.output, notes=pipe.remarks)
        told = {"phrases": way, **about, "regions": count}
        yield Grounded(ranked[::count], f"{count} regions; phrases: {way}; {where}", told, list(pipe.remarks))


def ground_in_tokens(options: argparse.Namespace, inputs: Sequence[Input]) -> Iterator[Grounded]:
    """The boxes that a few heads of a vision-language model give."""
    from transformers.utils import logging

    from grounded_attention.heads.pipeline import PatchGroundingPipeline

    from .vlm_options import heads_beside, load_vlm

    logging.set_verbosity_error()
    model, processor = load_vlm(options, with_language_head=False)
    heads = options.heads or heads_beside(options)
    pipe: Any = PatchGroundingPipeline(
        model, processor=processor.processor, heads=heads, device=model.device, task="visual-grounding"
    )
    pipe.patches = processor
    for source in inputs:
        asked = {"image": source.image, "caption": source.caption, "phrases": source.phrases}
        outputs = pipe.forward(pipe.preprocess(asked))
        grounding = pipe.postprocess(outputs)
        if source.output is not None:
            from grounded_attention.pages.patch_pictures import PatchAttention, patch_figure

            maps = [
                PatchAttention(one["text"], place.map, place.frame, place.box, place.share)
                for one, place in zip(grounding, outputs["items"][0]["boxes"], strict=True)
            ]
            patch_figure(source.image, maps, source.output, gold=[source.gold_of(one) for one in grounding])
        yield Grounded(grounding, *name_chosen(pipe.chosen), [])


def name_chosen(chosen: ChosenHeads) -> tuple[str, dict[str, Any]]:
    """A line about the heads and where they were named, and the heads for JSON."""
    from grounded_attention.heads.heads_file import name_heads

    pairs = [list(pair) for pair in chosen.heads]
    return f"attention of {name_heads(chosen.heads)}, of {chosen.source}", {"heads": pairs, "heads_of": chosen.source}


def _pairs_or_file(text: str) -> list[tuple[int, int]] | str:
    pairs = read_heads(text)
    return pairs if isinstance(pairs, list) else text


def split_phrases(texts: list[str] | None) -> list[str] | None:
    """The phrases of --phrases: of a single one the parts between commas outside quotes, of several each as it is."""
    if texts is None or len(texts) > 1:
        return texts
    try:
        return next(csv.reader(texts, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"--phrases: {error}") from error


# Options for one kind of model, with their defaults.
OF_REGIONS = dict.fromkeys(("detector", "boxes", "regions", "features", "queries", "layer", "head"))
OF_TOKENS = {"revision": None, "dtype": "float32"}


def check_options(options: argparse.Namespace, tokens: bool) -> None:
    """Checks the options for a kind of model: one that reads regions, or a vision-language model."""
    other = OF_REGIONS if tokens else OF_TOKENS
    unwanted = ", ".join(f"--{name}" for name, default in other.items() if getattr(options, name) != default)
    if unwanted and tokens:
        raise ValueError(
            f"{unwanted}: --model {options.model} finds boxes from its image tokens; remove these options, and choose "
            "heads with --heads"
        )
    if not tokens and options.detector is None and options.boxes is None and options.regions is None:
        raise ValueError(f"--model {options.model} reads regions: give --detector, --boxes or --regions")
    if options.boxes is not None and (options.detector is not None or options.regions is not None):
        raise ValueError("--boxes, --detector, --regions: give one source of regions")
    if unwanted:
        raise ValueError(f"{unwanted}: only for vision-language models such as LLaVA; remove these options")
    if options.heads is not None and (options.layer is not None or options.head is not None):
        raise ValueError("--heads names the heads; remove --layer and --head")


def to_picture(regions: Sequence[Mapping[str, Any]], source: Input) -> WordAttention:
    """Makes the input of `attention_figure`: all regions of one phrase, best first."""
    import numpy as np

    from grounded_attention.pages.attention_pictures import WordAttention
    from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

    boxes = np.array([list(region["box"].values()) for region in regions]) / np.tile(source.image.size, 2)
    weights = np.array([region["score"] for region in regions])
    span = (regions[0]["start"], regions[0]["end"])
    gold = box_iou(boxes, source.gold_of(regions[0])).max(axis=1, initial=0) >= IOU_THRESHOLD
    return WordAttention(regions[0]["text"], span, boxes, weights, gold)


def table(grounding: Sequence[Mapping[str, Any]]) -> str:
    """One line per phrase: box in pixels, detector's label, share of the attention."""
    width = max(len(one["text"]) for one in grounding)
    return "\n".join(
        f"{one['text']:{width}}  box {', '.join(f'{value:g}' for value in one['box'].values())}"
        f"{'  ' + one['label'] if one['label'] else ''}  {one['score']:.0%}"
        f"{f'  IoU {iou:.2f} with the box of the row' if (iou := one.get('iou')) is not None else ''}"
        for one in grounding
    )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention ground", __doc__)
    add = parser.add_argument
    add("image", nargs="?", metavar="IMAGE", help="file of the image")
    add("caption", nargs="?", metavar="CAPTION", help="text that the model reads")
    add("--model", required=True, metavar="DIR", help="checkpoint with its processor, or a name on the Hub")
    add_region_options(parser, with_rows=True)
    add_source_options(parser, "pictures, texts, and phrases with boxes to compare with", some=True)
    add_vlm_options(parser)
    add(
        "--heads",
        metavar="HEADS",
        type=_pairs_or_file,
        help="14-3,20-0, or heads.json (default for a vision-language model: that of its adapter or its own)",
    )
    add(
        "--phrases",
        action="append",
        metavar="TEXT,TEXT",
        help="phrases of the caption, separated by commas; for those with commas, --phrases for each, or inner quotes",
    )
    add("--layer", type=not_negative, metavar="N", help="use this layer, counted from 0")
    add("--head", type=not_negative, metavar="N", help="use this head, counted from 0")
    add("--output", metavar="PNG", help="draw the picture into this file: .png, .pdf or .svg")
    add("--json", action="store_true", help="print JSON")
    return parser


main = make_main(build_parser, ground)
