# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how often each attention head of a model attends most to the right region.

For each phrase of a data set and each head, the audit checks whether the region with the most attention is a gold
region. The command writes to the folder --output: the counts (audit.json, which `AuditResult.load` reads), audit.md,
tables and figures. docs/audit.md explains the numbers.

The model is a model of this project, or transformers' VisualBERT or LXMERT with a tokenizer. The best heads are chosen
on one split (--choose-on) and reported on another (--split); "--choose-on same_split" chooses as the paper does.
--against audits a second model and reports which heads changed from that model to --model. To use several processes:
torchrun --nproc_per_node N -m grounded_attention.commands.audit.

examples:
  grounded-attention audit --model runs/scenes_vgp/direct --data flickr30k_entities --data-dir data/scenes \\
      --split test

  # before and after fine-tuning, with the dependency relations of parsed captions
  grounded-attention audit --model runs/scenes_vgp/direct --against runs/scenes_vgp/none --data flickr30k_entities \\
      --data-dir data/scenes --split test --relations data/scenes/parses

  # a checkpoint on the Hub, as in the paper
  grounded-attention audit --model uclanlp/visualbert-nlvr2-coco-pre --tokenizer bert-base-uncased \\
      --data flickr30k_entities --data-dir data/flickr30k --regions data/flickr30k/regions --choose-on same_split
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from grounded_attention.analysis.audit.card import find_card, put_in_card
from grounded_attention.analysis.audit.changes import HOLM, Changes, compare
from grounded_attention.analysis.audit.choice import SAME_SPLIT
from grounded_attention.analysis.audit.counts import RELATIONS
from grounded_attention.analysis.audit.examples import AuditExample, entity_examples
from grounded_attention.analysis.audit.items import DEFAULT_WORD, IOU_THRESHOLD, WORDS
from grounded_attention.analysis.audit.result import AuditResult
from grounded_attention.analysis.audit.run import audit
from grounded_attention.analysis.audit.statistics import CORRECTIONS
from grounded_attention.analysis.dependencies import relation_examples
from grounded_attention.analysis.dependency_parses import Parse, read_conllu, spacy_parses
from grounded_attention.analysis.example_attention import capture_examples
from grounded_attention.analysis.observers import get_observer, reads_pixels
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.families import FAMILIES
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete
from grounded_attention.training.loop.data import check_regions
from grounded_attention.training.recipes.number_checks import check_sizes
from grounded_attention.utils.finite_weights import check_finite
from grounded_attention.utils.whole_files import write_text

from .command_line import make_parser, run
from .image_options import folder_pictures
from .user_errors import explain_error

SPACY = "spacy"
VALIDATION, TEST = "validation", "test"
REGIONS = "regions"  # default folder of the region table inside --data-dir
# Config field of transformers' models that gives the width of a region feature.
FEATURE_SIZE = {"visual_bert": "visual_embedding_dim", "lxmert": "visual_feat_dim"}
SPATIAL = 6  # x1, y1, x2, y2, width, height: the last values of VisualBERT's Flickr30K features


@dataclass
class Loaded:
    """A model without its task head, and the processor that makes its inputs."""

    name: str
    model: Any
    processor: Any


# Input


def load(path: str, tokenizer: str | None, regions: RegionTable) -> Loaded:
    """
    Loads a checkpoint of this project, or of transformers' VisualBERT or LXMERT.

    Args:
        path (`str`): a checkpoint folder or a name on the Hub.
        tokenizer (`str | None`): folder or Hub name of a tokenizer, for a checkpoint of transformers without one.
        regions (`RegionTable`): the region features that the model will read.

    Returns:
        `Loaded`: the model in evaluation mode on this process's device, and its processor.

    Raises:
        ValueError: if the checkpoint does not exist, is incomplete, belongs to another family, or reads region
            features of another width than `regions`.
    """
    if Path(path, MANIFEST).is_file() and not is_complete(path):
        raise ValueError(
            f"--model {path}: the checkpoint is incomplete or was changed after saving; copy it or train it again"
        )
    try:
        config = AutoConfig.from_pretrained(path)
        check_sizes(config.to_dict(), "config.json: ")
        if config.model_type not in (*FAMILIES, *FEATURE_SIZE):
            known = ", ".join([*FAMILIES, *FEATURE_SIZE])
            raise ValueError(
                f"model type {config.model_type} is not supported, expected one of {known}; to audit another model on "
                "transformers' attention interface, see the Python example in docs/audit.md"
            )
        processor = _processor(path, config, tokenizer, regions)
        loaded, found = AutoModel.from_pretrained(path, config=config, output_loading_info=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"--model {path}: {str(error).strip().splitlines()[0]}") from error
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(
            f"--model {path}: {len(missing)} weights are missing, such as {missing[0]}; copy or train it again"
        )
    check_finite(loaded, f"--model {path}")
    return Loaded(_short(path), loaded.eval().to(PartialState().device), processor)


def _processor(path: str, config: Any, tokenizer: str | None, regions: RegionTable) -> Any:
    """The checkpoint's processor; for transformers' models a processor with the same input layout as theirs."""
    found = regions.feature_size
    if config.model_type in FAMILIES:
        processor = FAMILIES[config.model_type].processor_class.from_pretrained(path)
        wanted = processor.region_feature_size
        if found != wanted and getattr(config, "vision_config", None) is None:
            raise ValueError(f"the model reads {wanted} values per region, but --regions {regions.path} has {found}")
        return processor
    wanted = getattr(config, FEATURE_SIZE[config.model_type])
    spatial = config.model_type == "visual_bert" and wanted == found + SPATIAL
    if found != wanted and not spatial:
        raise ValueError(f"the model reads {wanted} values per region, but --regions {regions.path} has {found}")
    words = _tokenizer(tokenizer or path, config.vocab_size, "" if tokenizer else "; give one with --tokenizer")
    return VisualBERTProcessor(words, region_feature_size=found, spatial_features=spatial)


def _tokenizer(path: str, vocabulary: int, hint: str) -> Any:
    try:
        words = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer in {path}{hint}") from error
    # Without tokenizer files, transformers returns a tokenizer that has only special tokens.
    if len(words) <= len(words.all_special_tokens):
        raise ValueError(f"no tokenizer in {path}{hint}")
    if len(words) > vocabulary:
        raise ValueError(
            f"the tokenizer {path} has {len(words)} tokens, but the vocabulary of the model has {vocabulary}"
        )
    return words


def _short(path: str) -> str:
    """The last two parts of a path or name."""
    return "/".join(Path(path).parts[-2:])


def load_rows(options: argparse.Namespace, splits: Sequence[str], regions: RegionTable) -> dict[str, Any]:
    """
    Loads the rows of each split and checks that every image has regions.

    Args:
        options (`argparse.Namespace`): options of the command.
        splits (`Sequence[str]`): splits to load.
        regions (`RegionTable`): the region table.

    Returns:
        `dict[str, Any]`: split -> rows.

    Raises:
        ValueError: if the builder or a split is unknown. Errors of the builder and of the table are passed on.
    """
    if options.data not in BUILDERS:
        raise ValueError(f"--data {options.data}: unknown data set, expected one of {', '.join(BUILDERS)}")
    with PartialState().main_process_first():
        builder_class = BUILDERS[options.data]
        for_audit = getattr(builder_class, "AUDIT_OPTIONS", {})
        builder = builder_class(data_dir=options.data_dir, splits=list(splits), **for_audit)
        try:
            builder.download_and_prepare()
        except (OSError, ValueError) as error:
            if options.chosen_by_default and f"'{options.choose_on}'" in str(error):
                hint = f"by default heads are chosen on this split; give another one with --choose-on, or {SAME_SPLIT}"
                raise ValueError(f"{error}; {hint}") from error
            raise
    rows = dict(builder.as_dataset())
    for name, found in rows.items():
        rows[name] = found if options.limit is None else found.select(range(min(options.limit, len(found))))
    check_regions(list(rows.values()), regions)
    return rows


def parses_of(options: argparse.Namespace, rows: Any) -> list[Parse]:
    """Reads the parses of --relations, or makes them with spaCy."""
    if options.relations == SPACY:
        return spacy_parses(example.caption for example in entity_examples(rows))
    return read_conllu(options.relations)


def check_options(options: argparse.Namespace) -> None:
    """
    Checks the options before anything is loaded, and fills in the default of --choose-on.

    Raises:
        ValueError: for an argument out of range; the message names it.
    """
    for name in ("limit", "batch_size", "explore"):
        value = getattr(options, name)
        if value is not None and value < (name != "explore"):
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected {int(name != 'explore')} or more")
    if options.card is not None:
        find_card(options.card)
    if options.images is not None and not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    if options.explore and options.images is None:
        raise ValueError(f"--explore {options.explore} shows images; give their folder with --images")
    options.chosen_by_default = options.choose_on is None
    if options.chosen_by_default:
        options.choose_on = VALIDATION if options.split != VALIDATION else TEST
    if options.choose_on == options.split:
        raise ValueError(
            f"--choose-on {options.choose_on} is also the reported split; to choose heads on the reported split, give "
            f"--choose-on {SAME_SPLIT}"
        )


# Measurement


def measure(loaded: Loaded, split: str, rows: Any, regions: Any, options: argparse.Namespace) -> AuditResult:
    """Audits a model on a split."""
    pixels = reads_pixels(loaded.model)
    if pixels and options.images is None:
        raise ValueError(f"--model {loaded.name}: the model reads pixels; give the folder of the images with --images")
    relations = relation_examples(entity_examples(rows), parses_of(options, rows)) if options.relations else []
    return audit(
        loaded.model,
        loaded.processor,
        entity_examples(rows),
        regions,
        relations=relations,
        word=options.word,
        batch_size=options.batch_size,
        iou_threshold=options.iou,
        merged_box=options.merged_box,
        images=folder_pictures(options.images) if pixels else None,
        about={"model": loaded.name, "data": options.data, "split": split, "regions": str(regions.path)},
    )


def first_of_images(examples: Iterable[AuditExample], count: int) -> list[AuditExample]:
    """The first caption that has phrases, for each of the first `count` images."""
    found: dict[str, AuditExample] = {}
    for example in examples:
        if len(found) == count:
            break
        if example.phrases:
            found.setdefault(example.image_id, example)
    return list(found.values())


def explore(models: Sequence[Loaded], rows: Any, regions: Any, options: argparse.Namespace) -> str:
    """The HTML page that shows the attention of all heads in a few captions."""
    examples = first_of_images(entity_examples(rows), options.explore)
    shown = {
        loaded.name: capture_examples(
            get_observer(loaded.model),
            loaded.processor,
            examples,
            regions,
            folder_pictures(options.images),
            regions.class_names,
        )
        for loaded in models
    }
    return explorer_page(shown)


def write(result: AuditResult, changes: Changes | None, page: str | None, options: argparse.Namespace) -> Path:
    """Writes all files to the folder --output and returns the folder."""
    folder = Path(
        options.output or Path("runs", "audit", f"{_short(options.model).replace('/', '_')}_{options.split}")
    )
    result.save(folder)
    write_text(folder / "heads.csv", result.to_pandas().to_csv(index=False))
    text = result.to_card_section()
    if changes is not None:
        changes.before.save(folder / "against")
        write_text(folder / "changes.json", json.dumps(changes.to_dict(), indent=1) + "\n")
        text += "\n" + changes.to_markdown()
        changes.plot(folder)
    write_text(folder / "audit.md", text)
    result.plot(folder)
    if page is not None:
        write_text(folder / "explorer.html", page)
    return folder


def work(options: argparse.Namespace) -> str | None:
    """Runs the command; returns the text to print, or `None` in every process but the main one.

    Raises:
        ValueError: for a user error; the message is one sentence.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options.split, options.choose_on = _split(options.split), _split(options.choose_on)
    check_options(options)
    state = PartialState(cpu=options.cpu or not torch.cuda.is_available())
    regions = RegionTable.open(options.regions or Path(options.data_dir, REGIONS))
    models = [load(path, options.tokenizer, regions) for path in filter(None, (options.model, options.against))]
    splits = [options.split, *([options.choose_on] if options.choose_on != SAME_SPLIT else [])]
    rows = load_rows(options, splits, regions)
    results = [measure(loaded, options.split, rows[options.split], regions, options) for loaded in models]
    for split in splits[1:]:
        results[0] = results[0].choose_on(measure(models[0], split, rows[split], regions, options))
    changes = None
    if options.against is not None:
        names = (models[1].name, models[0].name)
        changes = compare(results[1], results[0], names, options.correction)
    if not state.is_main_process:
        return None
    page = explore(models, rows[options.split], regions, options) if options.explore else None
    folder = write(results[0], changes, page, options)
    if options.card is not None:
        put_in_card(results[0], options.card)
    return _json(results[0], changes) if options.json else _summary(results[0], changes, folder)


def _split(name: str | None) -> str | None:
    return VALIDATION if name == "val" else name


def _json(result: AuditResult, changes: Changes | None) -> str:
    heads = [
        {**asdict(best), "layer": result.layers[best.layer], "heads_chosen_on": result.choice.split}
        for best in result.best_heads()
    ]
    found: dict[str, Any] = {
        "about": result.about,
        "layers": list(result.layers),
        "heads": result.heads,
        "best": heads,
    }
    return to_json(found | ({} if changes is None else {"changes": changes.to_dict()}))


def _summary(result: AuditResult, changes: Changes | None, folder: Path) -> str:
    lines = [f"heads chosen on {result.choice.split.replace('_', ' ')}, reported on {result.about['split']}:"]
    for best in result.best_heads():
        kind = "relation" if best.kind == RELATIONS else best.kind.replace("_", " ")
        lines.append(
            f"{kind}, {best.group}: head {result.name(best.layer, best.head)} {best.accuracy:.1%} "
            f"({interval_text(best.interval)}), {'active' if best.active else 'not active'}; "
            f"rule {best.baseline:.1%}, chance {best.chance:.1%}; {best.items} items in {best.images} images"
        )
    for direction in {} if changes is None else changes.comparisons:
        changed = changes.significant(direction)  # type: ignore[union-attr]
        lines.append(f"{direction.replace('_', ' ')}: {changed.sum()} of {changed.size} heads changed")
    return "\n".join([*lines, f"written: {folder}/audit.md"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), work, arguments, explain_error=explain_error)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention audit", __doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR_OR_ID", help="checkpoint to audit, or a name on the Hub")
    add("--against", metavar="DIR_OR_ID", help="also audit this model and report the changes from it to --model")
    add("--tokenizer", metavar="DIR_OR_ID", help="tokenizer, for a checkpoint of transformers without one")
    add("--data", required=True, metavar="NAME", help="data set with captions and phrases: flickr30k_entities or vgp")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", metavar="TABLE", help=f"folder of the region table (default: {REGIONS} in --data-dir)")
    add("--images", metavar="DIR", help="folder of the images, for a model that reads pixels and for --explore")
    add("--split", default=VALIDATION, metavar="NAME", help=f"split to report (default: {VALIDATION})")
    add(
        "--choose-on",
        metavar="SPLIT",
        help=f"split to choose heads on, or {SAME_SPLIT} (default: {VALIDATION}; {TEST} if {VALIDATION} is reported)",
    )
    add(
        "--word",
        default=DEFAULT_WORD,
        choices=list(WORDS),
        help=f"sub-word that gives the attention (default: {DEFAULT_WORD})",
    )
    add(
        "--iou",
        type=float,
        default=IOU_THRESHOLD,
        metavar="X",
        help="smallest overlap of a right region with a gold box (default: 0.5)",
    )
    add("--merged-box", action="store_true", help="merge the gold boxes of a phrase into one box")
    add(
        "--relations",
        metavar="spacy|FILE",
        help="audit dependency relations; parse with spaCy, or read a CoNLL-U file or folder",
    )
    add("--correction", default=HOLM, choices=list(CORRECTIONS), help="multiple-test correction (default: holm)")
    add("--explore", type=int, default=0, metavar="N", help="write explorer.html with N images")
    add(
        "--card", metavar="DIR_OR_README", help="write the audit section into this model card; replaces an earlier one"
    )
    add("--limit", type=int, metavar="N", help="use the first N rows of each split")
    add("--batch-size", type=int, default=32, metavar="N", help="captions per batch (default: 32)")
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/audit)")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the best heads as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
