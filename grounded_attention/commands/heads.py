# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures where every attention head of a model looks, finds the heads that ground phrases, and compares two models.

Every head is scored on phrases with boxes: whether the region with the most attention is on the object (pointing), how
much attention the object gets (lift), and how much all regions get (share). The best heads are chosen on one split
(--choose-on) and reported on another (--split), with the boxes that they give without training. No attention maps are
made. docs/heads.md and docs/vlm.md explain the numbers.

The model is a vision-language model (LLaVA, Qwen-VL, SmolVLM, Gemma 3 ...) or an adapter of one, whose regions are
image tokens; a model of this project; or transformers' VisualBERT or LXMERT with a tokenizer. Models that read regions
are also measured from regions to words, and --choose-on same_split chooses heads as the paper does. --ablate measures
what a vision-language model, or a pre-trained model of this project, loses without the chosen heads. --against
measures a second model and reports which heads changed from that model to --model. To use several processes: torchrun
--nproc_per_node N -m grounded_attention heads.

The folder --output gets heads.json with its counts (`HeadTable.load` reads them), heads.md, heads.csv, pictures, and
with --explore heads.html, a page to click through. heads.json beside a model, or `grounded-attention ground --heads`,
grounds phrases with these heads. --card puts what was measured
into the card of a model that train.py made.

--doubt fits, on sampled answers about images whose objects are all named, which nouns name nothing there; it is kept
in the heads.json that it names, and `look` shows it.

--check needs no data: it changes the pixels of one cell of drawn pictures after the other, and says whether the image
tokens of a vision-language model lie where they are taken to lie.

--evaluate measures heads that were chosen before, on any data, and writes boxes.json and boxes.md.

--run measures all models of a finished run of `train` (`make audit`, `make vlm`) and writes heads.html, one page of
them all, and for each method a folder with the files above. It trains nothing. Heads are chosen on the validation
split and reported on the test split; without a test split, chosen on train and reported on validation. What was
measured is also put into each model card.

--data takes rows as people have them (see `grounded-attention data show`). Without both splits, half of the images are
chosen on and the others reported.

examples:
  grounded-attention heads --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 --data lmms-lab/RefCOCO --split testA

  # official files
  grounded-attention heads --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 --data refcoco --config refcoco \\
      --data-dir data/refer --images data/coco/train2014 image_id_format=file_stem

  # before and after fine-tuning, with the dependency relations of parsed captions
  grounded-attention heads --model runs/scenes_vgp/direct --against runs/scenes_vgp/none --data flickr30k_entities \\
      --data-dir data/scenes --split test --relations data/scenes/parses

  # a checkpoint on the Hub, as in the paper
  grounded-attention heads --model uclanlp/visualbert-nlvr2-coco-pre --tokenizer bert-base-uncased \\
      --data flickr30k_entities --data-dir data/flickr30k --regions data/flickr30k/regions --choose-on same_split

  # what an adapter changed
  grounded-attention heads --model runs/my_lora/direct --against Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 \\
      --data flickr30k_entities --data-dir data/flickr30k --images data/flickr30k/flickr30k-images --split test

  # which nouns of answers to doubt
  grounded-attention heads --model runs/my_vlm --doubt runs/my_vlm/heads.json --data data/coco/instances_val2017.json \
      --images data/coco/val2017

  # do the image tokens of a model lie where we think?
  grounded-attention heads --model Qwen/Qwen2.5-VL-3B-Instruct --check

  # every model of a run, on one page
  grounded-attention heads --run runs/scenes_vgp

  # the same heads on other data
  grounded-attention heads --model runs/my_vlm --evaluate runs/heads/my_vlm/heads.json --data refcoco \\
      --data-dir data/scenes --images data/scenes/flickr30k-images --split testA
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads import SAME_SPLIT

from .command_line import Program, explain_error
from .heads_options import VALIDATION, Heads
from .models import ModelOptions

# The options of --run; the others are those of its recipe.
OF_A_RUN = ("run", "data_dir", "limit", "explore", "top_k", "words", "ablate", "device", "output")
# Options without a meaning for heads that were chosen before.
OF_A_CHOICE = (
    "against",
    "choose_on",
    "top_k",
    "rank",
    "words",
    "instruction",
    "relations",
    "ablate",
    "explore",
    "card",
)


def check_options(options: Heads, loading: ModelOptions, builder_options: list[str]) -> None:
    """Checks the options before anything is loaded."""
    if (options.run is None) == (options.model is None):
        raise ValueError("give either --model or --run")
    if options.run is not None:
        known = {**vars(options), **vars(loading)}
        _refuse(options, loading, {*known} - {*OF_A_RUN}, "not with --run, whose recipe says what its models read")
        return
    if options.check:
        _refuse(options, loading, {*vars(options)} - {"model", "check"}, "not with --check, which needs no data")
        return
    if options.data is None:
        raise ValueError("--data is missing: rows with boxes to measure --model on")
    if options.data in BUILDERS:
        if options.data_dir is None:
            raise ValueError(f"--data {options.data} needs --data-dir, a folder")
    elif builder_options:
        raise ValueError(f"{builder_options[0]}: only with a data set of `data build`, not with --data {options.data}")
    if options.images is not None and not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    if options.explore and options.images is None and options.data in BUILDERS:
        raise ValueError(f"--explore {options.explore} shows images; give their folder with --images")
    if options.doubt is not None:
        refused = {*OF_A_CHOICE, "evaluate", "tokenizer", "regions"} - {"instruction", "choose_on"}
        _refuse(options, loading, refused, "not with --doubt, whose file says how the heads were chosen")
    elif options.evaluate is not None:
        _refuse(options, loading, OF_A_CHOICE, "not with --evaluate, whose file says how the heads were chosen")
    elif options.choose_on == options.split:
        raise ValueError(
            f"--choose-on {options.choose_on} is also the reported split; to choose heads on the reported split, give "
            f"--choose-on {SAME_SPLIT}"
        )


def _refuse(options: Heads, loading: ModelOptions, names: Iterable[str], why: str) -> None:
    """Refuses options of these names that are not at their default."""
    given = {**vars(options), **vars(loading)}
    defaults = {**vars(Heads()), **vars(ModelOptions())}
    changed = sorted(name for name in names if (given[name] or None) != (defaults[name] or None))
    if changed:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ValueError(f"{named}: {why}")


def heads(
    options: list[str] = [],  # noqa: B006
    *,
    measured: Heads,
    loading: ModelOptions,
) -> tuple[Any, str] | None:
    """Measures heads.

    Args:
        options (key=value): options of the data builder, see docs/data.md
    """
    measured.split = {"val": VALIDATION}.get(measured.split, measured.split)
    measured.choose_on = VALIDATION if measured.choose_on == "val" else measured.choose_on
    check_options(measured, loading, options)
    if measured.run is not None:
        from . import heads_run

        return heads_run.work(measured, loading)
    if measured.check:
        from grounded_attention.heads.layout_check import MISPLACED, check_layout

        report = check_layout(*loading.load(str(measured.model)))
        if report.outcome == MISPLACED:
            raise ValueError(f"maps and boxes of this model would be wrong: {report}")
        return None, str(report)
    from .heads_work import fit_doubt_of, work

    if measured.doubt is not None:
        return fit_doubt_of(measured, loading, options)
    return work(measured, loading, options)


main = Program("heads", heads, explain_error)
