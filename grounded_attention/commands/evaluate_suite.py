# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The suites of `grounded-attention evaluate`: one table with intervals, `suite_NAME.json` and `.eval_results`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
from transformers.utils import logging

from grounded_attention.dataset_scripts.builders.rows import find_files
from grounded_attention.dataset_scripts.rows.opening import hub_name
from grounded_attention.heads.card import CardSection
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.metrics.significance import Estimate, Estimates
from grounded_attention.training.experiments.scoring import read_config
from grounded_attention.training.experiments.suites import Settings, open_probes, run_suite
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.plain_text import markdown_table, markdown_text
from grounded_attention.utils.whole_files import write_text

from .command_line import Result, refuse_given
from .options import Evaluation
from .rows_options import read_columns

HEADER = ("probe", "measure", "value", "95 % interval over images", "items")
PARTS = ("value", "low", "high", "count")
# at the end of a measure's name; groups of a probe follow a comma
BEFORE = " (before)"
CHANGE = " (change)"
PROBES = CardSection(
    "probes",
    "<!-- probes: grounded-attention evaluate --suite ... --card puts its section here -->",
    "<!-- end of the probes -->",
)
# Probe -> measure -> `PARTS`, as in the file of a suite.
Numbers = Mapping[str, Mapping[str, Columns]]


def work(checkpoint: str | None, options: Evaluation) -> Result:
    """Runs a suite and returns its table."""
    if checkpoint is None or not options.probe:
        raise ValueError("give CHECKPOINT and --probe SOURCE")
    unread = ("task", "predictions", "set", "data_dir", "data", "faithful")
    refuse_given(options, unread, "has no effect with --suite: remove it")
    card = None if options.card is None else PROBES.find(options.card)
    logging.set_verbosity_error()
    for model in filter(None, (checkpoint, options.before)):
        read_config(model)  # a mistake in a name costs no work
    sources = [*dict.fromkeys(options.probe)]
    split = options.split[0] if options.split else None
    reading = {"columns": read_columns(options.columns), "boxes": options.boxes}
    opened = {}
    for source in sources:
        opened[source] = list(open_probes(str(options.suite), source, options.match, options.images, split, **reading))
    probes = [probe for each in opened.values() for probe in each]
    if len({probe.name for probe in probes}) < len(probes):  # files of one name
        probes = [
            replace(probe, name=f"{source}{probe.name[len(each[0].name) :]}")
            for source, each in opened.items()
            for probe in each
        ]
    settings = Settings(
        checkpoint, str(options.suite), options.regions, options.batch_size, options.limit, options.seed,
        match=options.match, text_only=options.text_only,
    )  # fmt: skip
    if options.before:
        earlier = dict(run_suite(replace(settings, checkpoint=options.before), probes))
    else:
        earlier = {}
    estimates = dict(run_suite(settings, probes))
    if earlier:
        estimates = {probe: _compare(numbers, earlier[probe]) for probe, numbers in estimates.items()}
    folder = Path(options.output or Path("runs", "evaluation", f"suites_{Path(checkpoint).name}"))
    numbers = {}
    for probe, measured in estimates.items():
        numbers[probe] = {name: {part: getattr(each, part) for part in PARTS} for name, each in measured.items()}
    write(numbers, settings, sources, folder, options.before)
    if card is not None:
        PROBES.put(section(folder, checkpoint), card)
    return numbers, f"{table(numbers)}\nwritten: {folder}/suite_{options.suite}.json"


def _compare(after: Mapping[str, Estimate], before: Mapping[str, Estimate]) -> Estimates:
    figures = dict(after)
    for name in (name for name in after if name in before):
        figures |= {f"{name}{BEFORE}": before[name], f"{name}{CHANGE}": after[name].change(before[name])}
    return figures


def _measures(numbers: Columns) -> list[str]:
    return [name for name in numbers if not name.endswith((BEFORE, CHANGE))]


def _interval(figure: Columns, form: str = ".1%") -> str:
    return interval_text((figure["low"], figure["high"]), form)


def table(suite: Numbers, shown: Callable[[str], str] = str) -> str:
    """The numbers, a line each, beside those of before; `shown` writes names of files and groups."""
    compared = any(len(_measures(numbers)) < len(numbers) for numbers in suite.values())
    lines = []
    for probe, numbers in suite.items():
        for name in _measures(numbers):
            each = numbers[name]
            before = numbers.get(f"{name}{BEFORE}")
            change = numbers.get(f"{name}{CHANGE}")
            line = [shown(probe), shown(name.replace("_", " ")), f"{each['value']:.1%}", _interval(each)]
            line.append(str(each["count"]))
            if before is not None and change is not None:
                line += [f"{before['value']:.1%}", f"{change['value']:+.1%} ({_interval(change, '+.1%')})"]
            elif compared:
                line += ["", ""]
            lines.append(line)
    return markdown_table((*HEADER, "before", "change") if compared else HEADER, lines, 2, aligned=True)


def section(folder: Path, checkpoint: str) -> str:
    """The section of a card: the tables of all suites in a folder, but those of another model of the same name."""
    parts = ["## Probes", "Intervals are 95 %, from a bootstrap over images."]
    for path in sorted(folder.glob("suite_*.json")):
        result = read_json(path)
        if os.path.realpath(result["checkpoint"]) != os.path.realpath(checkpoint):
            print(f"{path}: left out of the card, since its numbers are of {result['checkpoint']}", file=sys.stderr)
            continue
        parts += [f"### {result['suite'].capitalize()}", table(result["figures"], markdown_text)]
        if result.get("before") is not None:
            parts.append(f"*before* is {markdown_text(str(result['before']))}.")
    if "### Evidence" in parts:
        parts.append(
            "*Evidence score*: whether answers depend on the evidence in the picture where attention is on it; 0 for "
            "a model that guesses, or reads the question alone."
        )
    return "\n\n".join(parts) + "\n"


def write(suite: Numbers, settings: Settings, sources: Sequence[str], folder: Path, before: str | None = None) -> None:
    """Writes the numbers; those of probes on the Hub also as the Hub reads them."""
    about = {**asdict(settings), "before": before, "probes": list(sources), "figures": suite}
    write_text(folder / f"suite_{settings.suite}.json", to_json(about, indent=2) + "\n")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    entries = []
    for probe in suite:
        if probe not in sources or find_files(probe):
            continue
        data_set, _, revision = hub_name(probe)
        for name in _measures(suite[probe]):
            each = suite[probe][name]
            entries.append(
                EvalResultEntry(
                    dataset_id=data_set,
                    task_id="_".join((settings.suite, *name.replace(",", "").split())),
                    value=round(each["value"], 4),
                    dataset_revision=revision,
                    date=date,
                    notes=f"95 % interval over images: {_interval(each)}; {each['count']} items",
                )
            )
    if entries:
        text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
        write_text(folder / ".eval_results" / f"{settings.suite}.yaml", text)
