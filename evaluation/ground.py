# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shows where a model looks in an image when it reads a caption.

Prints each phrase with its most-attended region: the box in pixels, the detector's label, and the share of the
phrase's attention over all detected regions that it takes. With --output it draws the picture too. By default this is
the mean over the heads of the upper half of the layers; --layer and --head, counted from 0, choose.

Regions come from a detector and a feature model, from known boxes and a feature model, or from a region table. A
model that reads pixels needs no feature model. Phrases are those of --phrases, else noun phrases where spaCy and
en_core_web_sm are installed, else each content word.

examples:
  python -m evaluation.ground dog.jpg "a dog chases a red ball" --model runs/scenes_vgp/direct \\
      --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50 --output dog.png

  # an image whose regions are in a table, under the name of its file
  python -m evaluation.ground data/scenes/flickr30k-images/10004.jpg "the red ball" --model runs/scenes_vgp/direct \\
      --regions data/scenes/regions --phrases "the red ball" --json
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoConfig
from transformers.utils import logging

from dataset_scripts.region_boxes import read_boxes
from dataset_scripts.region_table import RegionTable
from modeling import VLBertModel
from modeling.region_feature_models import load_region_features
from processing import VLBertProcessor
from processing.feature_pixels import load_feature_processor
from processing.open_images import open_image
from processing.region_detection import BoxSource, GivenBoxes, first_line, load_detector
from processing.region_extraction import DetectedRegions, RegionExtractor

from .attention_pictures import attention_figure
from .caption_phrases import Phrase, find_phrases
from .grounded_captions import choose_layers, ground_phrases, table, to_pictures

MODEL_TYPE = "vl_bert"


def load_model(path: str) -> tuple[Any, Any]:
    """A model of this project, without its task's head, and its processor.

    Raises:
        ValueError: there is no model, it is of another family, or its processor is missing.
    """
    try:
        found = AutoConfig.from_pretrained(path).model_type
        if found != MODEL_TYPE:
            raise ValueError(f"a model of type {found}, expected {MODEL_TYPE}")
        model = VLBertModel.from_pretrained(path, config=AutoConfig.from_pretrained(path)).eval()
        return model, VLBertProcessor.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {path}: {first_line(error)}") from error


def find_regions(options: argparse.Namespace, image: Image.Image, config: Any) -> DetectedRegions:
    """The regions of the image, from a region table or by detection.

    Raises:
        ValueError: options that do not fit each other or the model, a detector, feature model or file that cannot be
            used, or features of another width than the model reads.
    """
    image_id, reads_pixels = Path(options.image).stem, getattr(config, "vision_config", None) is not None
    if options.regions is not None:
        if reads_pixels:  # its own features, of the table's boxes
            return replace(_from_table(options.regions, image_id), features=None)
        _check_width(RegionTable.open(options.regions).feature_size, config, options.regions)
        return _from_table(options.regions, image_id)
    if reads_pixels == (options.features is not None):
        raise ValueError(
            "the model reads pixels: leave --features out" if reads_pixels else "--features: the model needs features"
        )
    features = feature_processor = None
    if options.features is not None:
        feature_processor = load_feature_processor(options.features)
        features = _load_features(options.features)
        _check_width(features.config.feature_size, config, options.features)
    extractor = RegionExtractor(
        _box_source(options), features, feature_processor, features_name=options.features or ""
    )
    return extractor.extract([image], [image_id])[0]


def _load_features(name: str) -> Any:
    try:
        return load_region_features(name)
    except OSError as error:
        raise ValueError(f"--features {name}: {first_line(error)}") from error


def _check_width(found: int, config: Any, name: str) -> None:
    if found != config.region_feature_size:
        raise ValueError(
            f"{name}: features of {found} values, but the model was trained on {config.region_feature_size}; use the "
            "feature model that its training used"
        )


def _box_source(options: argparse.Namespace) -> BoxSource:
    if options.boxes is not None:
        return GivenBoxes(read_boxes(options.boxes), options.boxes)
    return load_detector(options.detector, options.queries)


def _from_table(path: str, image_id: str) -> DetectedRegions:
    regions = RegionTable.open(path)
    row = regions[image_id]
    detector = regions.provenance.get("detector")
    names: list[str] = (detector.get("label_names") or []) if isinstance(detector, Mapping) else []
    count = len(row)
    classes = np.zeros(count, np.int32) if row.classes is None else row.classes
    scores = np.ones(count, np.float32) if row.scores is None else row.scores
    features = row.features.astype(np.float32)
    return DetectedRegions(image_id, row.width, row.height, row.boxes, scores, classes, features, None, names)


def prepare_inputs(
    processor: Any, caption: str, phrases: Sequence[Phrase], image: Image.Image, regions: DetectedRegions
) -> Any:
    """What the processor makes of the caption, its phrases and the regions: features, or pixels where it has none."""
    spans = [{"text": 0, "start": phrase.start, "end": phrase.end} for phrase in phrases]
    visual = {"images": image} if regions.features is None else {"region_features": regions.features}
    return processor(caption, region_boxes=regions.boxes, region_scores=regions.scores, phrases=spans, **visual)


def ground(options: argparse.Namespace) -> str:
    """Does what the command is asked and returns what it prints.

    Raises:
        ValueError: any mistake of the user, in one sentence.
    """
    image = open_image(options.image, upright=options.regions is None and options.boxes is None)
    phrases, way = find_phrases(options.caption, None if options.phrases is None else options.phrases.split(","))
    model, processor = load_model(options.model)
    config = model.config
    layers = choose_layers(config.num_hidden_layers, config.num_attention_heads, options.layer, options.head)
    regions = find_regions(options, image, config)
    processor.max_regions = max(processor.max_regions, len(regions))  # each region keeps its place, and its label
    inputs = prepare_inputs(processor, options.caption, phrases, image, regions)
    labels = [regions.label(index) for index in range(len(regions))]
    grounded = ground_phrases(model, inputs, phrases, image.size, labels, layers, options.head)
    if options.output is not None:
        attention_figure(image, options.caption, to_pictures(grounded, regions.boxes), options.output)
    about = {"phrases": way, "layers": layers, "head": options.head, "regions": len(regions)}
    if options.json:
        return json.dumps({"caption": options.caption, **about, "grounding": [one.to_dict() for one in grounded]})
    heads = "mean over heads" if options.head is None else f"head {options.head}"
    where = f"layer {layers[0]}" if len(layers) == 1 else f"mean over layers {layers[0]} to {layers[-1]}"
    return f"{len(regions)} regions; phrases: {way}; {where}, {heads}\n{table(grounded)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 2 after an error in one line on standard error."""
    options = _parser().parse_args(arguments)
    logging.set_verbosity_error()  # a base model leaves the task's head, which it says at length
    logging.disable_progress_bar()
    try:
        print(ground(options))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    introduction, examples = str(__doc__).split("examples:\n")
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.ground",
        description=introduction,
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("image", metavar="IMAGE", help="file of the image")
    add("caption", metavar="CAPTION", help="what the model reads")
    add("--model", required=True, metavar="DIR", help="checkpoint with its processor, or a name on the Hub")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--detector", metavar="NAME_OR_PATH", help="detector of transformers")
    source.add_argument(
        "--boxes", metavar="FILE", help="JSON: file name without suffix -> boxes x1 y1 x2 y2 in pixels"
    )
    source.add_argument("--regions", metavar="DIR", help="region table that holds the image")
    add("--features", metavar="NAME_OR_PATH", help="region-feature network or vision backbone")
    add("--queries", nargs="+", metavar="TEXT", help="what a zero-shot detector looks for")
    add("--phrases", metavar="TEXT,TEXT", help="phrases of the caption, separated by commas")
    add("--layer", type=int, metavar="N", help="one layer, from 0")
    add("--head", type=int, metavar="N", help="one head, from 0")
    add("--output", metavar="PNG", help="draw the picture: .png, .pdf or .svg")
    add("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
