# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Asks every attention head of a model how often it looks at the right region.

For each phrase of a data set and each head: is the region that the head attends to most a gold one? The folder
--output gets the counts (audit.json, which `AuditResult.load` reads), audit.md, tables and figures; what the numbers
mean: docs/audit.md.

Models of this project, and transformers' VisualBERT and LXMERT with their tokenizer. The best heads are chosen on one
split (--choose-on) and reported on another (--split); "--choose-on same_split" is the paper's way. --against audits a
second model and says which heads changed from it to --model. In several processes: torchrun --nproc_per_node N -m
grounded_attention.commands.audit.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from grounded_attention.analysis.audit.card import find_card, put_in_card
from grounded_attention.analysis.audit.changes import HOLM, Changes, compare
from grounded_attention.analysis.audit.choice import SAME_SPLIT
from grounded_attention.analysis.audit.examples import AuditExample, entity_examples
from grounded_attention.analysis.audit.items import DEFAULT_WORD, IOU_THRESHOLD, WORDS
from grounded_attention.analysis.audit.result import RELATIONS, AuditResult
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
from grounded_attention.processing.open_images import open_image
from grounded_attention.reports.attention_explorer import explorer_page
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete
from grounded_attention.training.loop.data import check_regions
from grounded_attention.utils.whole_files import write_text

from .command_line import make_parser, run
from .user_errors import explain

SPACY = "spacy"
VALIDATION, TEST = "validation", "test"
REGIONS = "regions"  # where a data set's region table is, unless --regions names another
# What a builder needs not do for an audit: captions of other images are never asked about.
QUIET = {"vgp": {"negatives": "random", "negatives_per_image": 0}}
# The width of a region's feature in the configurations of transformers' models.
FEATURE_SIZE = {"visual_bert": "visual_embedding_dim", "lxmert": "visual_feat_dim"}
SPATIAL = 6  # x1, y1, x2, y2, width, height, which VisualBERT's features of Flickr30K end in


@dataclass
class Loaded:
    """A model without its task's head, and what makes its inputs."""

    name: str
    model: Any
    processor: Any


# What is read


def load(path: str, tokenizer: str | None, regions: RegionTable) -> Loaded:
    """A checkpoint of this project, or of transformers' VisualBERT or LXMERT.

    Raises:
        ValueError: there is none, it is incomplete, of another family, or reads features of another width.
    """
    if Path(path, MANIFEST).is_file() and not is_complete(path):
        raise ValueError(f"--model {path}: the checkpoint is incomplete or was changed: copy or train it again")
    try:
        config = AutoConfig.from_pretrained(path)
        if config.model_type not in (*FAMILIES, *FEATURE_SIZE):
            known = ", ".join([*FAMILIES, *FEATURE_SIZE])
            raise ValueError(
                f"a model of type {config.model_type}, expected {known}; other models on transformers' attention "
                "interface are audited in Python, see docs/audit.md"
            )
        processor = _processor(path, config, tokenizer, regions)
        loaded, found = AutoModel.from_pretrained(path, config=config, output_loading_info=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {path}: {str(error).strip().splitlines()[0]}") from error
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(f"--model {path}: weights are missing, such as {missing[0]}: copy or train it again")
    return Loaded(_short(path), loaded.eval().to(PartialState().device), processor)


def _processor(path: str, config: Any, tokenizer: str | None, regions: RegionTable) -> Any:
    """The checkpoint's processor, or the one that lays out texts and regions as transformers' two models read them."""
    found = regions.feature_size
    if config.model_type in FAMILIES:
        processor = FAMILIES[config.model_type].processor_class.from_pretrained(path)
        wanted = processor.region_feature_size
        if found != wanted and getattr(config, "vision_config", None) is None:
            raise ValueError(f"reads region features of {wanted} values, but --regions {regions.path} holds {found}")
        return processor
    wanted = getattr(config, FEATURE_SIZE[config.model_type])
    spatial = config.model_type == "visual_bert" and wanted == found + SPATIAL
    if found != wanted and not spatial:
        raise ValueError(f"reads region features of {wanted} values, but --regions {regions.path} holds {found}")
    words = _tokenizer(tokenizer or path, config.vocab_size, "" if tokenizer else "; name one with --tokenizer")
    return VisualBERTProcessor(words, region_feature_size=found, spatial_features=spatial)


def _tokenizer(path: str, vocabulary: int, hint: str) -> Any:
    try:
        words = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer in {path}{hint}") from error
    # Where there are no files of a tokenizer, transformers makes one that knows special tokens alone.
    if len(words) <= len(words.all_special_tokens):
        raise ValueError(f"no tokenizer in {path}{hint}")
    if len(words) > vocabulary:
        raise ValueError(f"the tokenizer {path} has {len(words)} tokens, but the model knows {vocabulary}")
    return words


def _short(path: str) -> str:
    """The last two parts of a path or name."""
    return "/".join(Path(path).parts[-2:])


def load_rows(asked: argparse.Namespace, splits: Sequence[str], regions: RegionTable) -> dict[str, Any]:
    """Split -> rows of the builder, whose images all have regions.

    Raises:
        ValueError: an unknown builder or split. The builder's and the table's own errors otherwise.
    """
    if asked.data not in BUILDERS:
        raise ValueError(f"--data {asked.data}: unknown; known: {', '.join(BUILDERS)}")
    with PartialState().main_process_first():
        builder = BUILDERS[asked.data](data_dir=asked.data_dir, splits=list(splits), **QUIET.get(asked.data, {}))
        try:
            builder.download_and_prepare()
        except (OSError, ValueError) as error:
            if asked.chosen_by_default and f"'{asked.choose_on}'" in str(error):
                hint = f"heads are chosen on it unless --choose-on names another split or {SAME_SPLIT}"
                raise ValueError(f"{error}; {hint}") from error
            raise
    rows = dict(builder.as_dataset())
    for name, found in rows.items():
        rows[name] = found if asked.limit is None else found.select(range(min(asked.limit, len(found))))
    check_regions(list(rows.values()), regions)
    return rows


def parses_of(asked: argparse.Namespace, rows: Any) -> list[Parse]:
    """The parses that --relations names, or makes."""
    if asked.relations == SPACY:
        return spacy_parses(example.caption for example in entity_examples(rows))
    return read_conllu(asked.relations)


def picture_opener(asked: argparse.Namespace) -> Callable[[str], Any]:
    """Image id -> picture, from --images."""

    def open_picture(image_id: str) -> Any:
        paths = [Path(asked.images, f"{image_id}{suffix}") for suffix in (".jpg", ".png")]
        return open_image(next((path for path in paths if path.is_file()), paths[0]))

    return open_picture


def check_asked(asked: argparse.Namespace) -> None:
    """Refuses what cannot be audited as asked, before anything is loaded, and settles what was left open.

    Raises:
        ValueError: names the argument.
    """
    for name in ("limit", "batch_size", "explore"):
        value = getattr(asked, name)
        if value is not None and value < (name != "explore"):
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected {int(name != 'explore')} or more")
    if asked.card is not None:
        find_card(asked.card)
    if asked.images is not None and not Path(asked.images).is_dir():
        raise ValueError(f"--images {asked.images}: no such folder")
    if asked.explore and asked.images is None:
        raise ValueError(f"--explore {asked.explore} shows images: name their folder with --images")
    asked.chosen_by_default = asked.choose_on is None
    if asked.chosen_by_default:
        asked.choose_on = VALIDATION if asked.split != VALIDATION else TEST
    if asked.choose_on == asked.split:
        raise ValueError(
            f"--choose-on {asked.choose_on} is the split that is reported; to choose heads on it say --choose-on "
            f"{SAME_SPLIT}"
        )


# What is done


def measure(loaded: Loaded, split: str, rows: Any, regions: Any, asked: argparse.Namespace) -> AuditResult:
    """The audit of a model on a split."""
    pixels = reads_pixels(loaded.model)
    if pixels and asked.images is None:
        raise ValueError(f"--model {loaded.name}: the model reads pixels; name the folder of the images with --images")
    relations = relation_examples(entity_examples(rows), parses_of(asked, rows)) if asked.relations else []
    return audit(
        loaded.model,
        loaded.processor,
        entity_examples(rows),
        regions,
        relations=relations,
        word=asked.word,
        batch_size=asked.batch_size,
        iou_threshold=asked.iou,
        merged_box=asked.merged_box,
        images=picture_opener(asked) if pixels else None,
        about={"model": loaded.name, "data": asked.data, "split": split, "regions": str(regions.path)},
    )


def first_of_images(examples: Iterable[AuditExample], count: int) -> list[AuditExample]:
    """The first caption with phrases of each of the first images."""
    found: dict[str, AuditExample] = {}
    for example in examples:
        if len(found) == count:
            break
        if example.phrases:
            found.setdefault(example.image_id, example)
    return list(found.values())


def explore(models: Sequence[Loaded], rows: Any, regions: Any, asked: argparse.Namespace) -> str:
    """The page on which a reader looks at the attention of all heads in a few captions."""
    examples = first_of_images(entity_examples(rows), asked.explore)
    shown = {
        loaded.name: capture_examples(
            get_observer(loaded.model), loaded.processor, examples, regions, picture_opener(asked), regions.class_names
        )
        for loaded in models
    }
    return explorer_page(shown)


def write(result: AuditResult, changes: Changes | None, page: str | None, asked: argparse.Namespace) -> Path:
    """Writes the folder --output; returns it."""
    folder = Path(asked.output or Path("runs", "audit", f"{_short(asked.model).replace('/', '_')}_{asked.split}"))
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


def work(asked: argparse.Namespace) -> str | None:
    """Does what the command is asked and returns what it prints; None in all processes but one.

    Raises:
        ValueError: any mistake of the user, in one sentence.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    asked.split, asked.choose_on = _split(asked.split), _split(asked.choose_on)
    check_asked(asked)
    state = PartialState(cpu=asked.cpu or not torch.cuda.is_available())
    regions = RegionTable.open(asked.regions or Path(asked.data_dir, REGIONS))
    models = [load(path, asked.tokenizer, regions) for path in filter(None, (asked.model, asked.against))]
    splits = [asked.split, *([asked.choose_on] if asked.choose_on != SAME_SPLIT else [])]
    rows = load_rows(asked, splits, regions)
    results = [measure(loaded, asked.split, rows[asked.split], regions, asked) for loaded in models]
    for split in splits[1:]:
        results[0] = results[0].choose_on(measure(models[0], split, rows[split], regions, asked))
    changes = None
    if asked.against is not None:
        names = (models[1].name, models[0].name)
        changes = compare(results[1], results[0], names, asked.correction)
    if not state.is_main_process:
        return None
    page = explore(models, rows[asked.split], regions, asked) if asked.explore else None
    folder = write(results[0], changes, page, asked)
    if asked.card is not None:
        put_in_card(results[0], asked.card)
    return _json(results[0], changes) if asked.json else _said(results[0], changes, folder)


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


def _said(result: AuditResult, changes: Changes | None, folder: Path) -> str:
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
    """The command; returns its exit status: 0, or 2 after an error in one line on standard error."""
    return run(build_parser(), work, arguments, explain=explain)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention audit", __doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR_OR_ID", help="checkpoint to audit, or a name on the Hub")
    add("--against", metavar="DIR_OR_ID", help="audit this model too, as the one before")
    add("--tokenizer", metavar="DIR_OR_ID", help="for a checkpoint of transformers that comes without one")
    add("--data", required=True, metavar="NAME", help="builder with captions and phrases: flickr30k_entities, vgp")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", metavar="TABLE", help=f"region table (default: {REGIONS} in --data-dir)")
    add("--images", metavar="DIR", help="images, for a model that reads pixels and for --explore")
    add("--split", default=VALIDATION, metavar="NAME", help=f"split to report (default: {VALIDATION})")
    add(
        "--choose-on",
        metavar="SPLIT",
        help=f"split to choose heads on, or {SAME_SPLIT} (default: {VALIDATION}, or {TEST} where that is reported)",
    )
    add("--word", default=DEFAULT_WORD, choices=list(WORDS), help=f"sub-word asked (default: {DEFAULT_WORD})")
    add("--iou", type=float, default=IOU_THRESHOLD, metavar="X", help="overlap with a gold box that is right (0.5)")
    add("--merged-box", action="store_true", help="one box around all gold boxes of a phrase instead of any")
    add(
        "--relations",
        metavar="spacy|FILE",
        help="audit dependency relations: parse by spaCy, or CoNLL-U file or folder",
    )
    add("--correction", default=HOLM, choices=list(CORRECTIONS), help="for the number of heads (default: holm)")
    add("--explore", type=int, default=0, metavar="N", help="write explorer.html with so many images")
    add("--card", metavar="DIR_OR_README", help="put the section into this model card, in the place of an earlier one")
    add("--limit", type=int, metavar="N", help="the first N rows of each split")
    add("--batch-size", type=int, default=32, metavar="N", help="captions at a time (default: 32)")
    add("--output", metavar="DIR", help="folder of what is written (default: below runs/audit)")
    add("--cpu", action="store_true", help="leave a GPU unused")
    add("--json", action="store_true", help="print the best heads as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
