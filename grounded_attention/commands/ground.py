# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shows where a model looks in an image when it reads a caption.

Prints the most-attended region of each phrase: its box in pixels, the detector's label, and its share of the phrase's
attention on all detected regions. With --output it also draws the picture. By default the attention is the mean over
the heads of the upper half of the layers; --heads selects a layer, heads, or those of a heads.json. In Python, use
pipeline("visual-grounding"). --output attention.html is a page with all heads to click through; attention.npz has
their attention for other tools. With L layers, H heads, W words and R regions its arrays are:

  attention  float32 (L, H, W, R)  share of the attention of each word that goes to each region, in [0, 1]
  back       float32 (L, H, R, W)  share of the attention of each region that goes to each word, in [0, 1]
  boxes      float32 (R, 4)        x1 y1 x2 y2 divided by width and height
  words, labels, layers            texts: the words, the detector's labels of the regions, the names of the layers

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

  # every head, on a page to click through
  grounded-attention ground data/scenes/flickr30k-images/10004.jpg "the red ball" --model runs/scenes_vgp/direct \\
      --regions data/scenes/regions --output explorer.html

  # a vision-language model with heads.json beside it
  grounded-attention ground dog.jpg "the red ball" --model runs/my_vlm --output ball.png
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.project import require

from .command_line import Program, Result
from .models import ModelOptions, read_heads

if TYPE_CHECKING:
    from PIL import Image

    from grounded_attention.heads.heads_file import ChosenHeads
    from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
    from grounded_attention.pages.attention_pictures import WordAttention
    from grounded_attention.processing.region_extraction import DetectedRegions

ALL_HEADS = (".html", ".npz")  # names of files with the attention of every head


@dataclass(frozen=True)
class RegionOptions:
    """Where regions and their features come from.

    Args:
        detector (NAME_OR_PATH): detector of transformers, or "scenes"
        boxes (FILE): JSON file: image file name without suffix -> boxes x1 y1 x2 y2 in pixels
        regions (DIR): folder of a region table that contains the image
        features (NAME_OR_PATH): region-feature network, vision backbone, or "scenes"
        queries (TEXT): what a zero-shot detector looks for
    """

    detector: str | None = None
    boxes: str | None = None
    regions: str | None = None
    features: str | None = None
    queries: tuple[str, ...] | None = None


def ground(
    image: str,
    caption: str,
    *,
    model: str,
    finding: RegionOptions,
    loading: ModelOptions,
    heads: str | None = None,
    phrases: list[str] | None = None,
    output: str | None = None,
) -> Result:
    """Grounds the phrases of a caption.

    Args:
        image: file of the image
        caption: text that the model reads
        model (DIR): checkpoint with its processor, or a name on the Hub
        heads (HEADS): a layer, 14-3,20-0, or heads.json (default for a vision-language model: that beside it)
        phrases (TEXT,TEXT): phrases of the caption, separated by commas; for those with commas, --phrases for each,
            or inner quotes
        output (FILE): draw the picture into this .png, .pdf or .svg; or every head into .html or .npz
    """
    whole = output is not None and Path(output).suffix in ALL_HEADS
    if output is not None and not whole:
        require("matplotlib")  # or the model would work for nothing
    asked = Asked(open_input(image, caption, output), Path(image).stem, caption, split_phrases(phrases), output)
    from transformers.utils import logging

    from grounded_attention.training.experiments.pretrained import reads_image_tokens

    logging.disable_progress_bar()
    tokens = reads_image_tokens(model)
    check_options(model, finding, loading, tokens, whole)
    chosen = None if heads is None else read_heads(heads)
    if tokens:
        grounding, heading, about, remarks = ground_in_tokens(model, loading, chosen, asked)
    else:
        grounding, heading, about, remarks = ground_in_regions(model, loading, finding, chosen, asked)
    for remark in remarks:
        print(f"warning: {remark}", file=sys.stderr)
    result = {"caption": caption, **about, "warnings": remarks, "grounding": grounding}
    return result, f"{heading}\n{table(grounding)}"


@dataclass
class Asked:
    """What is grounded, and where it is drawn."""

    image: Image.Image
    image_id: str
    caption: str
    phrases: list[str] | None
    output: str | None


# What is printed: the best region of each phrase, a line about the attention, the same for `--json`, and remarks.
Grounded = tuple[list[Fields], str, Fields, list[str]]


def open_input(path: str, caption: str, output: str | None) -> Image.Image:
    """Opens the image and checks the caption."""
    from grounded_attention.utils.open_images import open_image
    from grounded_attention.utils.plain_text import has_surrogates, printable
    from grounded_attention.utils.safe_paths import refuse_same_files

    refuse_same_files({"IMAGE": path, "--output": output})
    image = open_image(path)
    if not caption.strip():
        raise ValueError("the caption is empty: give the text for the model in quotation marks")
    if has_surrogates(caption):
        shown = printable(ascii(caption), 120)
        raise ValueError(
            f"the caption is not UTF-8: found {shown} (its bytes are written as \\udc..), give it as UTF-8"
        )
    return image


def ground_in_regions(model: str, loading: ModelOptions, finding: RegionOptions, heads: Any, asked: Asked) -> Grounded:
    """The regions of a detector that a model of this project looks at."""
    from transformers.utils import logging

    from grounded_attention.modeling import pipeline_visual_grounding
    from grounded_attention.modeling.grounding_items import find_phrases
    from grounded_attention.training.experiments.pretrained import find_device, load_pipeline

    phrases, way = find_phrases(asked.caption, asked.phrases)
    known = read_regions(finding, asked.image_id)
    parts = {name: getattr(finding, name) for name in ("detector", "features", "queries") if not finding.regions}
    pipe = load_pipeline(model, device=find_device(loading.device), **parts)
    pipeline_visual_grounding.logger.setLevel(logging.ERROR)  # this command prints the remarks itself
    settings, where, about = choose_attention(pipe, heads)
    spans = [(phrase.start, phrase.end) for phrase in phrases]
    ranked = pipe(asked.image, asked.caption, phrases=spans, top_k=None, **known, **settings)
    count = len(ranked) // len(phrases)
    if asked.output is not None:
        draw(pipe, asked, [ranked[start : start + count] for start in range(0, len(ranked), count)], known)
    about = {"phrases": way, **about, "regions": count}
    return ranked[::count], f"{count} regions; phrases: {way}; {where}", about, list(pipe.remarks)


def choose_attention(pipe: VisualGroundingPipeline, heads: Any) -> tuple[Fields, str, Fields]:
    """The arguments of the pipeline for layers or heads, a line about them, and the same for JSON."""
    from grounded_attention.heads.heads_file import ChosenHeads
    from grounded_attention.modeling.pipeline_visual_grounding import choose_layers

    if heads is None or isinstance(heads, int):
        layers = choose_layers(pipe.model.config.grounding_calls, heads, None)
        if len(layers) == 1:
            where = f"layer {layers[0]}"
        else:
            where = f"mean over layers {layers[0]} to {layers[-1]}"
        return {"layer": heads}, f"{where}, mean over heads", {"layers": layers, "head": None}
    chosen = ChosenHeads.named(heads)
    chosen.check(pipe.model)
    return {"heads": chosen.heads, "words": chosen.settings.words}, *name_chosen(chosen)


def draw(pipe: VisualGroundingPipeline, asked: Asked, ranked: Sequence[Sequence[Columns]], known: Fields) -> None:
    """Writes the picture of the phrases, or the attention of every head."""
    from grounded_attention.heads.example_attention import capture_image
    from grounded_attention.pages.explorer import explorer_page
    from grounded_attention.utils.whole_files import write_text

    path = Path(str(asked.output))
    if path.suffix not in ALL_HEADS:
        from grounded_attention.pages.attention_pictures import attention_figure

        pictures = [to_picture(part, asked.image) for part in ranked]
        attention_figure(asked.image, asked.caption, pictures, path, notes=pipe.remarks)
        return
    example = capture_image(pipe, asked.image, asked.caption, asked.image_id, **known)
    if path.suffix == ".npz":
        example.save_arrays(path)
    else:
        write_text(path, explorer_page({Path(pipe.model.name_or_path).name: [example]}))


def read_regions(finding: RegionOptions, image_id: str) -> Fields:
    """Reads the known regions of an image: a record of a table, or boxes of a file; empty with a detector."""
    from grounded_attention.dataset_scripts.regions.boxes import read_boxes

    if finding.regions is not None:
        return {"regions": _from_table(finding.regions, image_id)}
    if finding.boxes is None:
        return {}
    records = read_boxes(finding.boxes)
    if image_id not in records:
        raise ValueError(f"{finding.boxes}: no boxes for image {image_id!r}")
    return {key: value for key, value in records[image_id].items() if key in ("boxes", "scores", "labels")}


def _from_table(path: str, image_id: str) -> DetectedRegions:
    import numpy as np

    from grounded_attention.dataset_scripts.regions.table import RegionTable
    from grounded_attention.processing.region_extraction import DetectedRegions

    regions = RegionTable.open(path)
    row = regions[image_id]
    count = len(row)
    if row.classes is None:
        classes = np.zeros(count, np.int32)
    else:
        classes = row.classes
    if row.scores is None:
        scores = np.ones(count, np.float32)
    else:
        scores = row.scores
    features = row.features.astype(np.float32)
    return DetectedRegions(
        image_id,
        row.width,
        row.height,
        row.boxes,
        scores,
        classes,
        features,
        None,
        regions.class_names,
        regions.provenance,
    )


def ground_in_tokens(model: str, loading: ModelOptions, heads: Any, asked: Asked) -> Grounded:
    """The boxes that a few heads of a vision-language model give."""
    from transformers.utils import logging

    from grounded_attention.heads.heads_file import ChosenHeads
    from grounded_attention.heads.pipeline import PatchGroundingPipeline
    from grounded_attention.training.experiments.pretrained import split_revision

    logging.set_verbosity_error()
    loaded, processor = loading.load(model, with_language_head=False)
    pipe: Any = PatchGroundingPipeline(
        loaded,
        processor=processor.processor,
        heads=heads or ChosenHeads.of_model(*split_revision(model)),
        device=loaded.device,
        task="visual-grounding",
    )
    pipe.patches = processor
    outputs = pipe.forward(pipe.preprocess({"image": asked.image, "caption": asked.caption, "phrases": asked.phrases}))
    grounding = pipe.postprocess(outputs)
    if asked.output is not None:
        from grounded_attention.pages.attention_pictures import PatchAttention, patch_figure

        maps = []
        for one, place in zip(grounding, outputs["items"][0]["boxes"], strict=True):
            maps.append(PatchAttention(one["text"], place.map, place.frame, place.box, place.share))
        patch_figure(asked.image, maps, asked.output)
    return grounding, *name_chosen(pipe.chosen), []


def name_chosen(chosen: ChosenHeads) -> tuple[str, Fields]:
    """A line about the heads and where they were named, and the heads for JSON."""
    from grounded_attention.heads.heads_file import name_heads

    pairs = [list(pair) for pair in chosen.heads]
    return f"attention of {name_heads(chosen.heads)}, of {chosen.source}", {"heads": pairs, "heads_of": chosen.source}


def split_phrases(texts: list[str] | None) -> list[str] | None:
    """The phrases of --phrases: of a single one the parts between commas outside quotes, of several each as it is."""
    if texts is None or len(texts) > 1:
        return texts
    try:
        return next(csv.reader(texts, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"--phrases: {error}") from error


def check_options(model: str, finding: RegionOptions, loading: ModelOptions, tokens: bool, whole: bool) -> None:
    """Checks the options for a kind of model: one that reads regions, or a vision-language model."""
    given = [f"--{name}" for name, value in vars(finding).items() if value is not None]
    if tokens and given:
        raise ValueError(
            f"{', '.join(given)}: --model {model} finds boxes from its image tokens; remove these options, and choose "
            "heads with --heads"
        )
    if tokens:
        if whole:
            raise ValueError(f"--model {model}: `grounded-attention look` writes the page of a vision-language model")
        return
    if loading.dtype != "float32":
        raise ValueError("--dtype: only for vision-language models such as LLaVA; remove it")
    sources = [name for name in given if name in ("--boxes", "--detector", "--regions")]
    if not sources:
        raise ValueError(f"--model {model} reads regions: give --detector, --boxes or --regions")
    if len(sources) > 1:
        raise ValueError(f"{', '.join(sources)}: give one source of regions")


def to_picture(regions: Sequence[Columns], image: Image.Image) -> WordAttention:
    """Makes the input of `attention_figure`: all regions of one phrase, best first."""
    import numpy as np

    from grounded_attention.pages.attention_pictures import WordAttention

    boxes = np.array([list(region["box"].values()) for region in regions]) / np.tile(image.size, 2)
    weights = np.array([region["score"] for region in regions])
    return WordAttention(regions[0]["text"], boxes, weights, np.zeros(len(boxes), bool))


def table(grounding: Sequence[Columns]) -> str:
    """One line per phrase: box in pixels, detector's label, share of the attention."""
    width = max(len(one["text"]) for one in grounding)
    return "\n".join(
        f"{one['text']:{width}}  box {', '.join(f'{value:g}' for value in one['box'].values())}"
        f"{'  ' + one['label'] if one['label'] else ''}  {one['score']:.0%}"
        for one in grounding
    )


main = Program("ground", ground)
