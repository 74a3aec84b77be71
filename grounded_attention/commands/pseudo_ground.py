# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the noun phrases of captions, grounds them with any model, and stores boxes with scores: pseudo-labels.

The grounder is a zero-shot detector of transformers (Grounding DINO, MM Grounding DINO, OWL-ViT, OWLv2), Florence-2, a
checkpoint of this project (self-training: the regions to which a phrase attends), or "scenes": annotated boxes with a
known share of wrong ones. A recipe reads the folder as data.pseudo_labels. docs/pseudo_labels.md describes the format,
and what each option settles of the paper (Chou et al., section III-B).

Options of the builder are written as key=value. Run the same command again to continue after an interruption; the
number of processes may change, and the files are the same. A folder accepts only the same captions, phrases, grounder
and options. The command prints statistics and draws contact_sheet.html in the folder.

examples:
  # captions of Flickr30K Entities, phrases and threshold chosen
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/flickr30k \\
      --images data/flickr30k/flickr30k-images --grounder IDEA-Research/grounding-dino-tiny \\
      --phrases spacy --threshold 0.25 --output data/flickr30k/pseudo_labels

  # rows as people have them; a recipe with the same data.source reads the folder as data.pseudo_labels
  grounded-attention data pseudo-ground --data captions.jsonl --grounder IDEA-Research/grounding-dino-tiny \\
      --output data/pseudo_labels

  # Conceptual Captions in two processes; which share do the regions match?
  torchrun --nproc_per_node 2 -m grounded_attention data pseudo-ground --captions conceptual_captions \\
      --data-dir data/conceptual_captions --images data/conceptual_captions/images.txt --split train \\
      --grounder google/owlv2-base-patch16-ensemble --regions data/conceptual_captions/regions \\
      --on-error skip --output data/conceptual_captions/pseudo_labels

  # self-training: our own model on a region table
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --grounder runs/scenes_vgp/direct --regions data/scenes/regions \\
      --phrases given --output data/scenes/self_labels

  # label noise: one phrase of five has the box of another object
  grounded-attention data pseudo-ground --captions flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --grounder scenes --wrong 0.2 --phrases given \\
      --boxes-per-phrase 9 --output data/scenes/wrong_20
"""

from pathlib import Path
from typing import Annotated

from grounded_attention.labelling import BOXES_PER_PHRASE, NMS, SOURCES, THRESHOLD

from .command_line import Positive, Program, Result, Share
from .options import Captions, Grounding
from .rows_options import RowSource


def pseudo_ground(
    options: list[str] = [],  # noqa: B006
    *,
    words: Captions,
    grounding: Grounding,
    output: Path,
    phrases: Annotated[str, SOURCES] = "textblob",
    boxes_per_phrase: Positive = BOXES_PER_PHRASE,
    threshold: Share = THRESHOLD,
    nms: Share = NMS,
    on_error: Annotated[str, ("refuse", "skip")] = "refuse",
) -> Result | None:
    """Labels captions.

    Args:
        options (key=value): options of the builder; a wrong key names those that it has
        output (DIR): folder of the pseudo-labels
        phrases: noun phrases of TextBlob (as in the paper) or spaCy, content words, or the annotated phrases
        boxes_per_phrase (N): most boxes of a phrase, best first
        threshold (SCORE): lowest score of a box; 0: every phrase gets a box, as in the paper
        nms (IOU): overlap above which the box with the lower score is dropped
        on_error: what to do at an image or caption that cannot be used
    """
    if words.data is not None:
        other = words.captions or words.data_dir or next(iter(options), None)
        if other:
            raise ValueError(f"{other}: captions are the texts of --data; remove it")
    else:
        RowSource(columns=words.columns, boxes=words.boxes).refuse_without_data()
        if None in (words.captions, words.data_dir, words.images):
            raise ValueError("give --captions, --data-dir and --images, or --data")
    from .pseudo_ground_work import work

    return work(words, options, grounding, output, phrases, (boxes_per_phrase, threshold, nms), on_error)


main = Program("data pseudo-ground", pseudo_ground, resumable="run the same command again to continue")
