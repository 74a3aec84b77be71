# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds regions in images, computes their features, and writes them into a region table.

Boxes come from any object detector or zero-shot detector of transformers, from a file, or from the annotations of a
data set: all objects of RefCOCO (ground-truth track), a detector's boxes such as those that MAttNet published
(--detections, detected track), or the objects of VCR in their order. Features come from
VL-BERT's region-feature network or any vision backbone of transformers. Without a detector at hand, "grid" takes the
cells of a fixed grid. For pictures of coloured shapes on a plain
ground, "scenes" is the detector and the feature model of the drawn scenes. Overlapping boxes are suppressed. Boxes
with a score of at least --threshold are kept, at least --min-regions and at most --max-regions of them. An image
without any box gets one region, the whole image, with score 0. Pictures are turned upright by their EXIF rotation.

Run the same command again to continue after an interruption; the number of processes may change. An unfinished table
accepts only the same detector, feature model, options and images.

examples:
  # a folder of images
  grounded-attention regions extract --images photos --output data/regions \\
      --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50

  # with text queries, in several processes, without damaged images
  accelerate launch --num_processes 2 -m grounded_attention regions extract \\
      --images photos.txt --output data/regions \\
      --detector IDEA-Research/grounding-dino-tiny --queries "a dog" "a ball" --features fast_rcnn --on-error skip

  # pictures of coloured shapes, without any download
  grounded-attention regions extract --images shapes --output data/regions --detector scenes --features scenes

  # the pictures of rows as people have them; data.source with data.regions=data/regions reads both
  grounded-attention regions extract --data my_rows.jsonl --output data/regions --detector PekingU/rtdetr_r50vd \\
      --features microsoft/resnet-50

  # with known boxes
  grounded-attention regions extract --images photos --output data/regions --boxes boxes.jsonl \\
      --features fast_rcnn

  # the candidates of RefCOCO's expressions: annotated objects, and a detector's boxes; then the objects of VCR
  grounded-attention regions extract --boxes refcoco+ --data-dir data --images data/train2014 \\
      --features fast_rcnn --output data/regions_gt
  grounded-attention regions extract --boxes refcoco+ --data-dir data --images data/train2014 \\
      --detections detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json \\
      --features fast_rcnn --output data/regions_detected
  grounded-attention regions extract --boxes vcr --data-dir data/vcr --features fast_rcnn --output data/vcr/regions

  # on two processes without a GPU (accelerate launch would start one)
  torchrun --nproc_per_node 2 -m grounded_attention regions extract \\
      --device cpu --images photos --output data/regions \\
      --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from grounded_attention.commands.command_line import Count, Positive, Share
from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.utils.named_types import Fields

from .command_line import Program, Result, refuse_given
from .models import Dtype
from .rows_options import RowSource, refuse_row_options, rows_builder

if TYPE_CHECKING:
    import torch

    from grounded_attention.dataset_scripts.builders.candidate_boxes import Candidates
    from grounded_attention.processing.region_detection import BoxSource
    from grounded_attention.processing.region_extraction import RegionExtractor


NAMED = 10
NMS = 0.7  # overlap above which the box with the lower score is removed
DATA_SETS = ("refcoco", "refcoco+", "refcocog", "vcr")
IMAGE_IDS = dict.fromkeys(DATA_SETS, ("number", "file_stem")) | {"vcr": ("file_stem", "img_id", "number")}


@dataclass(frozen=True)
class Extraction:
    """What is extracted.

    Args:
        output (DIR): folder of the region table
        features (NAME_OR_PATH): region-feature network, vision backbone, or "scenes"
        images (DIR_OR_LIST): folder of images, or a list file: a path, or id TAB path, per line
        detector (NAME_OR_PATH): detector of transformers, "grid", "scenes", or with --data "rows": the boxes of the
            rows
        boxes (FILE): JSON or JSON lines: image id and boxes x1 y1 x2 y2 in pixels; or refcoco, refcoco+, refcocog,
            vcr; with --data how boxes are written, such as "xywh pixels"
        data (SOURCE): rows as for `data show`: their pictures
        split (NAME): split of --data (default: all)
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        data_dir (DIR): folder of the data set that --boxes names
        detections (FILE): a detector's boxes for RefCOCO (default: annotated objects)
        image_id_format: ids of images (RefCOCO: number; VCR: file_stem)
        queries (TEXT): what a zero-shot detector looks for
        min_regions (N): fewest regions per image
        max_regions (N): most regions per image
        threshold (SCORE): regions with at least this score are kept
        device (NAME): cpu, cuda, cuda:1 ...; default: one GPU per process if there is one
        batch_size (N): images of one size computed at once
        dtype: floating type of the models
        on_error: what to do at a damaged image
    """

    output: str
    features: str
    images: str | None = None
    detector: str | None = None
    boxes: str | None = None
    data: str | None = None
    split: str | None = None
    columns: tuple[str, ...] | None = None
    data_dir: Path | None = None
    detections: Path | None = None
    image_id_format: Annotated[str | None, ("file_stem", "img_id", "number")] = None
    queries: tuple[str, ...] | None = None
    min_regions: Count = 10
    max_regions: Positive = 100
    threshold: Share = 0.2
    device: str | None = None
    batch_size: Positive = 8
    dtype: Dtype = "float32"
    on_error: Annotated[str, ("refuse", "skip")] = "refuse"


def read_candidates(options: Extraction) -> Candidates | None:
    """The boxes of a data set that `--boxes` names, and the pictures that have boxes."""
    if (options.detector is None) == (options.boxes is None):
        raise ValueError("give either --detector or --boxes")
    refuse_row_options(options, "split", "columns")
    vcr = options.boxes == "vcr"
    chosen = options.image_id_format
    if options.boxes not in DATA_SETS:
        of_data = ("data_dir", "detections", "image_id_format")
        refuse_given(options, of_data, f"belongs to --boxes {' or '.join(DATA_SETS)}")
        if options.images is None:
            raise ValueError("--images is missing: give a folder of images, or a list file")
        return None
    from grounded_attention.dataset_scripts.builders import candidate_boxes

    known = IMAGE_IDS[options.boxes]
    if chosen is not None and chosen not in known:
        raise ValueError(f"--image-id-format {chosen}: {options.boxes} has {', '.join(known)}")
    if options.data_dir is None or (options.images is None) != vcr or (vcr and options.detections is not None):
        needs = "--data-dir alone" if vcr else "--data-dir, and --images with the folder of its images"
        raise ValueError(f"--boxes {options.boxes} needs {needs}")
    if vcr:
        return candidate_boxes.vcr_objects(options.data_dir, chosen or known[0])
    by_stem = chosen == "file_stem"
    return candidate_boxes.refcoco_candidates(
        options.boxes, options.data_dir, Path(str(options.images)), options.detections, by_stem
    )


def read_rows(options: Extraction) -> Candidates:
    """The pictures of `--data`, with the boxes of the rows if these are the regions."""
    from grounded_attention.dataset_scripts.builders.candidate_boxes import Candidates
    from grounded_attention.dataset_scripts.builders.row_forms import PICTURES
    from grounded_attention.dataset_scripts.files.image_files import ImageFile
    from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
    from grounded_attention.training.experiments.made_regions import ROWS, boxes_of_rows, picture_files

    if options.detector is None:
        raise ValueError(f"--data has pictures: give --detector, a name or {ROWS} (the boxes of the rows)")
    source = RowSource(options.data, options.split, options.images, options.columns, options.boxes)
    splits = rows_builder(source, PICTURES, join_processes(cpu=options.device == "cpu")).as_dataset()
    files = picture_files(splits, os.sep)
    images = [ImageFile(image_id, path) for image_id, path in files.items()]
    records = boxes_of_rows(splits, files) if options.detector == ROWS else {}
    return Candidates(Path(str(options.data)).name, records, images)


def load_extractor(options: Extraction, device: torch.device, candidates: Candidates | None = None) -> RegionExtractor:
    """Loads the models of the options and makes the extractor."""
    import torch

    from grounded_attention.processing.region_detection import GivenBoxes
    from grounded_attention.training.experiments import made_regions

    source = f"--detector {options.detector}" if options.detector else "--boxes"
    if options.queries and options.detector in (None, made_regions.ROWS, *made_regions.OWN):
        raise ValueError(f"--queries needs a zero-shot --detector and cannot be combined with {source}")
    detector: str | BoxSource = str(options.detector)
    if candidates is not None and candidates.records:
        detector = GivenBoxes(candidates.records, candidates.source)
    elif options.detector is None:
        from grounded_attention.dataset_scripts.regions.boxes import read_boxes

        file = Path(str(options.boxes))
        detector = GivenBoxes(read_boxes(file), file.name)
    return made_regions.load_extractor(
        detector,
        options.features,
        queries=options.queries,
        device=device,
        dtype=getattr(torch, options.dtype),
        min_regions=options.min_regions,
        max_regions=options.max_regions,
        score_threshold=options.threshold,
        nms_threshold=NMS,
        batch_size=options.batch_size,
    )


def extract(*, options: Extraction) -> Result | None:
    """Fills the table."""
    candidates = read_candidates(options) if options.data is None else read_rows(options)
    info = _extract(options, candidates)
    if info is None:  # the main process has it
        return None
    counts = candidates.counts() if candidates is not None and candidates.records else {}
    lines = [f"  {count:,} {words}" for words, count in counts.items() if isinstance(count, int) and count]
    for words, ids in counts.items():
        if isinstance(ids, list):
            if len(ids) > NAMED:
                more = f" and {len(ids) - NAMED:,} more (all with --json)"
            else:
                more = ""
            lines.append(f"  {len(ids):,} {words}: {', '.join(ids[:NAMED])}{more}")
    text = "\n".join([_report(info, options.output), *lines])
    return {**info, "boxes": counts} if counts else info, text


def _extract(options: Extraction, candidates: Candidates | None) -> Fields | None:
    from grounded_attention.dataset_scripts.regions.extraction_run import extract_table, join_processes
    from grounded_attention.training.experiments.pretrained import find_device
    from grounded_attention.utils.open_images import open_image

    if candidates is None:
        images = list_images(str(options.images))
    else:
        images = candidates.images
    device = find_device(options.device, join_processes(cpu=options.device == "cpu"))
    return extract_table(
        images,
        load_extractor(options, device, candidates),
        options.output,
        open_image,
        source=str(options.boxes)
        if candidates is not None and not options.data
        else Path(options.data or str(options.images)).name,
        on_error=options.on_error,
        progress=True,
    )


def _report(info: Fields, output: str) -> str:
    summary = info["summary"]
    lines = [
        f"{info['images']:,} images with {info['regions']:,} regions of {info['feature_size']:,} feature values, "
        f"{summary['skipped']:,} images left out: {output}",
        *(f"  left out: {problem}" for problem in summary["problems"]),
    ]
    return "\n".join(lines)


main = Program("regions extract", extract, resumable="run the same command again to continue")
