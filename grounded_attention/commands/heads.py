# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the attention heads of a vision-language model that ground phrases: LLaVA, Qwen-VL, SmolVLM, Gemma 3 ...

Every head of every layer is scored on phrases with boxes: whether the image token with the most attention is on the
object, how much attention the object gets, how much the image gets, and spatial entropy. The best heads are chosen on
one split (--choose-on) and reported on another (--split), with the boxes they give without training, and with what the
model loses without them (--ablate). Attention is read on SDPA or FlashAttention; no maps are made.

The folder --output gets heads.json, heads.md and heads.png, and with --explore a page to click through. Put heads.json
beside the model, or give it to `grounded-attention ground --heads`, to ground phrases with these heads. docs/vlm.md
explains the numbers.

--evaluate measures heads that were chosen before, on any data, and writes boxes.json and boxes.md.

examples:
  grounded-attention heads --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16 --data refcoco --config refcoco \\
      --data-dir data/refer --images data/coco/train2014 image_id_format=file_stem

  # pictures of coloured shapes
  grounded-attention heads --model runs/my_vlm --data flickr30k_entities --data-dir data/scenes \\
      --images data/scenes/flickr30k-images --split test --top-k 5

  # the same heads on other data
  grounded-attention heads --model runs/my_vlm --evaluate runs/heads/my_vlm/heads.json --data refcoco \\
      --data-dir data/scenes --images data/scenes/flickr30k-images --split testA
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.analysis.audit.examples import AuditExample
from grounded_attention.analysis.heads.boxes import BoxScore
from grounded_attention.analysis.heads.chosen import FILE, ChosenHeads
from grounded_attention.analysis.heads.examples import WORDS, PromptSettings, grounded_examples
from grounded_attention.analysis.heads.explorer import capture_patches
from grounded_attention.analysis.heads.result import TABLE, HeadRanking, boxes_table, name_heads
from grounded_attention.analysis.heads.run import ABLATED, evaluate_heads, rank_heads
from grounded_attention.analysis.heads.scores import RANKS
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.metrics.intervals import to_json
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.utils.whole_files import write_text

from .builder_options import parse_options
from .command_line import make_parser, run
from .image_options import check_pictures, folder_pictures
from .user_errors import explain_error
from .vlm_options import add_vlm_options, load_vlm

# Localization Heads chooses on this many examples.
LIMIT = 1000
BESIDE_MODEL = ""
# Options without a meaning for heads that were chosen before.
OF_A_CHOICE = ("choose_on", "top_k", "rank", "words", "instruction", "ablate", "explore", "seed")


def load_examples(options: argparse.Namespace, splits: Sequence[str]) -> list[list[AuditExample]]:
    """
    Loads the texts and phrases of each split, and checks that their pictures exist.

    Raises:
        ValueError: if the builder or a split is unknown, its rows have no phrases with boxes, or a picture is missing.
    """
    builder_class = BUILDERS[options.data]
    given = {**getattr(builder_class, "AUDIT_OPTIONS", {}), **parse_options(builder_class, options.options)}
    if options.config is not None:
        if options.config not in builder_class.builder_configs:
            known = ", ".join(builder_class.builder_configs)
            raise DataError(f"{options.data} has no such --config", found=options.config, expected=known)
        given["config_name"] = options.config
    builder = builder_class(data_dir=options.data_dir, splits=list(dict.fromkeys(splits)), **given)
    builder.download_and_prepare()
    rows = builder.as_dataset()
    found = []
    for split in splits:
        name = str(builder.config.SPLIT_NAMES.get(split, split))
        part = rows[name]
        limited = part.select(range(min(options.limit or len(part), len(part))))
        found.append(list(grounded_examples(limited)))
        check_pictures(options.images, (example.image_id for example in found[-1]))
    return found


def check_options(options: argparse.Namespace) -> None:
    """
    Checks the options before anything is loaded.

    Raises:
        ValueError: for an option out of range; the message names it.
    """
    for name, least in (("top_k", 1), ("limit", 0), ("ablate", 0), ("explore", 0), ("batch_size", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected {least} or more")
    if not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    if options.evaluate is not None:
        parser = build_parser()
        given = [
            f"--{name.replace('_', '-')}" for name in OF_A_CHOICE if getattr(options, name) != parser.get_default(name)
        ]
        if given:
            raise ValueError(f"{', '.join(given)}: not with --evaluate, whose file says how the heads were chosen")
    elif options.choose_on == options.split:
        raise ValueError(f"--choose-on {options.choose_on} is also the reported split; give another one")
    PromptSettings(options.words, options.instruction)


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print.

    Raises:
        ValueError: for a user error; the message is one sentence.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    check_options(options)
    return rank(options) if options.evaluate is None else evaluate(options)


def rank(options: argparse.Namespace) -> str:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    chosen_on, reported_on = load_examples(options, [options.choose_on, options.split])
    model, processor = load_vlm(options)
    ranking = rank_heads(
        model,
        processor,
        chosen_on,
        folder_pictures(options.images),
        report=reported_on,
        count=options.top_k,
        rank=options.rank,
        words=options.words,
        instruction=options.instruction,
        ablate=options.ablate,
        batch_size=options.batch_size,
        seed=options.seed,
        progress=not options.quiet,
        about={**about(options, model), "choose_on": options.choose_on},
    )
    page = explore(model, processor, reported_on, options) if options.explore else None
    folder = ranking.save(output_folder(options))
    if page is not None:
        write_text(folder / "explorer.html", page)
    if options.json:
        return to_json({"folder": str(folder), **{key: ranking.to_dict()[key] for key in ("chosen", "boxes")}})
    return f"{summary(ranking)}\n\n{folder / TABLE} has the table; ground with {folder / FILE}"


def explore(model: Any, processor: Any, examples: Sequence[AuditExample], options: argparse.Namespace) -> str:
    """The HTML page with the attention of all heads, for the first text of the first images."""
    first: dict[str, AuditExample] = {}
    for example in examples:
        if len(first) < options.explore:
            first.setdefault(example.image_id, example)
    pictures = folder_pictures(options.images)
    shown = capture_patches(model, processor, list(first.values()), pictures, options.instruction)
    return explorer_page({options.model: shown})


def evaluate(options: argparse.Namespace) -> str:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    given = options.evaluate
    if given != BESIDE_MODEL:
        heads = ChosenHeads.from_file(given)
    else:
        heads = ChosenHeads.of_model(options.model, options.revision)
    (examples,) = load_examples(options, [options.split])
    model, processor = load_vlm(options)
    heads.check(model)
    scores = evaluate_heads(
        model,
        processor,
        examples,
        folder_pictures(options.images),
        heads.heads,
        centre_size=heads.centre_size,
        words=heads.settings.words,
        instruction=heads.settings.instruction,
        batch_size=options.batch_size,
        progress=not options.quiet,
    )
    folder = output_folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    found = {"about": {**about(options, model), "heads": heads.source}, "boxes": [asdict(score) for score in scores]}
    write_text(folder / "boxes.md", boxes_table(scores) + "\n")
    write_text(folder / "boxes.json", to_json(found, indent=1) + "\n")
    return to_json({"folder": str(folder), **found}) if options.json else text_table(scores)


def about(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """What the files say about model and data."""
    data = " ".join(filter(None, (options.data, options.config)))
    return {
        "model": options.model,
        "revision": getattr(model.config, "_commit_hash", None) or options.revision,
        "model_type": model.config.model_type,
        "data": f"{data}, split {options.split}",
        "limit": options.limit,
    }


def output_folder(options: argparse.Namespace) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(options.model).name))


def summary(ranking: HeadRanking) -> str:
    """The chosen heads and their boxes, for a terminal."""
    report = ranking.reported_on
    low, high = report.intervals("pointing")
    lines = [f"{'head':10} pointing (95 %)            lift   share  entropy"]
    for pair in ranking.heads:
        ends = f"({low[pair]:.1%} to {high[pair]:.1%})"
        lines.append(
            f"{name_heads([pair]):10} {report.mean('pointing')[pair]:6.1%} {ends:18} {report.mean('lift')[pair]:6.2f} "
            f"{report.mean('share')[pair]:6.1%} {report.mean('entropy')[pair]:8.2f}"
        )
    if report.blind_layers:
        lines.append(f"not ranked, since they see no image token: layers {', '.join(map(str, report.blind_layers))}")
    if ranking.ablation is not None:
        effect = ranking.ablation.together
        random = "" if effect.random is None else f"; without random heads of these layers {effect.random:+.3f}"
        lines.append(f"log-likelihood of grounded words without the chosen heads {effect.change:+.3f}{random}")
    return "\n".join(lines) + "\n\n" + text_table(ranking.boxes)


def text_table(scores: Sequence[BoxScore]) -> str:
    """Pointing game and box accuracy, for a terminal."""
    width = max(len(score.name) for score in scores)
    lines = [f"{'attention of':{width}}  pointing  box, IoU >= 0.5"]
    return "\n".join(
        [*lines, *(f"{score.name:{width}}  {score.pointing:8.1%}  {score.accuracy:15.1%}" for score in scores)]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), work, arguments, explain_error=explain_error, intermixed=True)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention heads", __doc__)
    add = parser.add_argument
    add("options", nargs="*", metavar="key=value", help="options of the data builder, see data build --help")
    add("--model", required=True, metavar="NAME_OR_DIR", help="a vision-language model with its processor")
    add_vlm_options(parser)
    add("--data", required=True, choices=list(BUILDERS), help="data set with phrases and boxes")
    add("--config", metavar="NAME", help="configuration of the data set, for example refcoco+")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--images", required=True, metavar="DIR", help="folder of the images")
    add("--choose-on", default="train", metavar="SPLIT", help="split to choose heads on (default: train)")
    add("--split", default="validation", metavar="SPLIT", help="split to report (default: validation)")
    add("--limit", type=int, default=LIMIT, metavar="N", help=f"first N rows of each split, 0 for all ({LIMIT})")
    add("--top-k", type=int, default=3, metavar="K", help="number of heads to choose (default: 3)")
    add("--rank", choices=RANKS, default=RANKS[0], help="how heads are ranked (default: %(default)s)")
    add("--words", choices=WORDS, default=WORDS[0], help="tokens that ask for a phrase (default: %(default)s)")
    add("--instruction", metavar="TEXT", help="words of the user; the texts of the data are then answers")
    add("--ablate", type=int, default=ABLATED, metavar="N", help=f"examples of the ablation, 0 for none ({ABLATED})")
    add(
        "--evaluate",
        nargs="?",
        const=BESIDE_MODEL,
        metavar="FILE",
        help=f"measure the heads of this file, or of {FILE} beside the model, instead of choosing",
    )
    add("--batch-size", type=int, default=4, metavar="N", help="texts in a batch (default: 4)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random heads of the ablation (default: 0)")
    add("--explore", type=int, default=0, metavar="N", help="write explorer.html, a page to click, with N images")
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/heads)")
    add("--quiet", action="store_true", help="no progress bars")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
