# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of `heads`."""

from dataclasses import dataclass
from typing import Annotated

from grounded_attention.commands.command_line import Count, Positive
from grounded_attention.heads import RANKS, WORDS

VALIDATION = "validation"


@dataclass
class Heads:
    """What is measured.

    Args:
        model (NAME_OR_DIR): a model with its processor
        run (RUN): folder of a finished run of train, all models of which to measure
        against (NAME_OR_DIR): also measure this model and report the changes from it to --model
        tokenizer (NAME_OR_DIR): tokenizer, for a checkpoint of transformers without one
        data (SOURCE): rows with boxes: ORG/NAME on the Hub, a file or folder as for `data show`, or a data set of
            `data build`
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes are written, such as "xywh pixels", if the data do not tell
        config (NAME): configuration of the data set, for example refcoco+
        data_dir (DIR): folder of a data set of `data build`, see docs/data.md
        regions (TABLE): folder of the region table (default: regions in --data-dir)
        images (DIR): folder of the images, for a model that reads them and for --explore
        choose_on (SPLIT): split to choose heads on, or same_split (default: train for vision-language models, else
            validation, and test if validation is reported)
        split (SPLIT): split to report
        limit (N): first N rows of each split, 0 for all (default: 1000 for vision-language models, else all; of a run
            its first 200 images)
        top_k (K): number of heads to choose
        rank: how heads are ranked
        words: tokens that ask for a phrase (default: mean for vision-language models, else last)
        instruction (TEXT): words of the user; the texts of the data are then answers
        relations (spacy|FILE): also measure dependency relations; parse with spaCy, or read a CoNLL-U file or folder
        ablate (N): examples of the ablation, 0 for none (default: 64 for vision-language models, else 0)
        batch_size (N): texts in a batch (default: 4 for vision-language models, else 32)
        explore (N): show N images on heads.html (default: 0; of a run 4)
        check: change pixels, and look whether the image tokens of --model lie where their boxes say; measure nothing
        evaluate (FILE_OR_MODEL): measure the heads that this file, or heads.json of this model, names; choose none
        doubt (FILE): fit which nouns of answers about --data to doubt, and add it to this heads.json
        card (FILE_OR_DIR): put what was measured into this model card, or the card of this folder
        output (DIR): output folder (default: a folder in runs/heads, heads in RUN)
    """

    model: str | None = None
    run: str | None = None
    against: str | None = None
    tokenizer: str | None = None
    data: str | None = None
    columns: tuple[str, ...] | None = None
    boxes: str | None = None
    config: str | None = None
    data_dir: str | None = None
    regions: str | None = None
    images: str | None = None
    choose_on: str | None = None
    split: str = VALIDATION
    limit: Count | None = None
    top_k: Positive = 3
    rank: Annotated[str, RANKS] = RANKS[0]
    words: Annotated[str | None, WORDS] = None
    instruction: str | None = None
    relations: str | None = None
    ablate: Count | None = None
    batch_size: Positive | None = None
    explore: Count | None = None
    check: bool = False
    evaluate: str | None = None
    doubt: str | None = None
    card: str | None = None
    output: str | None = None
