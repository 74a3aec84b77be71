# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Wrong values in every field of the JSON files of a checkpoint, which may come from a stranger.

Right is: one line that refuses the value, or a command that ends well. A traceback, a crash, a hang, or memory without
end is a failure. So is a field of another type that changes the result without a word.
"""

import json
import random
import shutil
import signal
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

from grounded_attention.commands import evaluate
from grounded_attention.families import FAMILIES

from .inputs import use_cache
from .lanes import Result, Unit
from .sandbox import Limits, run_apart

LIMITS = Limits(memory=3 << 30, file=1 << 28, cpu=60)
RIGHT = ("refused", "same", "taken")  # "same": as with the sound value
SECONDS = 300  # of a machine that does other work too; a process that computes is stopped by `LIMITS`
FILES = ("config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")
FEW = 40  # a section with more keys is a vocabulary: its first ones stand for all
VALUES = json.loads(r"""
{"null": null, "true": true, "zero": 0, "minus": -1, "large": 2147483648, "huge": 1000000000000000000000000000000,
 "fraction": 0.5, "nan": NaN, "infinite": Infinity, "word": "x", "empty": "", "digits": "3",
 "control": "a\u202e\u001b[31m\nb", "list": [], "nulls": [null, null], "section": {}, "sections": {"a": {"b": [1]}}}
""")
VALUES["long"] = "x" * 100_000


@dataclass(frozen=True)
class Case:
    """One wrong value in a file of a family's checkpoint. `text` names it, as in `make campaign CASE=...`."""

    family: str
    file: str
    place: str
    value: str

    @property
    def text(self):
        return f"fuzz/{self.family}/{self.file}/{self.place}/{self.value}"

    @classmethod
    def parse(cls, text):
        return cls(*text.split("/")[1:])


def leaves(content, prefix=""):
    """The places of all values and sections, as keys joined by dots; a dot in a key is written as `%2E`."""
    if isinstance(content, dict):
        pairs = [(str(key).replace(".", "%2E").replace("/", "%2F"), value) for key, value in content.items()]
        for key, value in pairs[: 3 if len(pairs) > FEW else FEW]:
            yield prefix + key
            yield from leaves(value, f"{prefix}{key}.")
    elif isinstance(content, list) and content:
        yield f"{prefix}0"
        yield from leaves(content[0], f"{prefix}0.")


def place_in(content, place):
    """The section or list that has a place, and its key there."""
    *parents, last = [part.replace("%2E", ".").replace("%2F", "/") for part in place.split(".")]
    for parent in parents:
        content = content[int(parent)] if isinstance(content, list) else content[parent]
    return content, int(last) if isinstance(content, list) else last


def cases(count, seed, base, only):
    """A seeded choice without repetition, the families in turn."""
    rng = random.Random(f"fuzz {seed}")
    orders = []
    for family in FAMILIES:
        if only not in family:
            continue
        every = []
        for file in FILES:
            path = base / "families" / family / file
            if path.exists():
                every += [Case(family, file, place, value) for place in leaves(_read(path)) for value in VALUES]
        orders.append(rng.sample(every, len(every)))
    return list(chain.from_iterable(zip(*orders, strict=False)))[:count]


def units(options, base):
    """The work of a campaign."""
    chosen = [Case.parse(options.case)] if options.case else cases(options.fuzz, options.seed, base, options.only)
    return [Unit([case.text], partial(check, base, case)) for case in chosen]


def check(base, case, folder):
    """Runs a case in a process of its own with limits on memory, files and time; `base` is that of `prepare`."""
    ended = _run(base, case.family, case, folder)
    outcome = _outcome(base, case, folder, ended)
    words = " | ".join([line for line in ended.err.splitlines() if line.strip()][-4:])[-700:]
    yield Result(case.text, f"fuzz {case.family}", outcome, outcome not in RIGHT, f"status {ended.status}: {words}")


def _outcome(base, case, folder, ended):
    if ended.status is None or ended.status == -signal.SIGXCPU:
        return "hang"
    if ended.status < 0:
        return "crash"
    if ended.status == 2 and "the memory is full" in ended.err:
        return "memory"
    if ended.status != 0:
        return "refused" if ended.refused() else "no line of ours"
    if "Traceback" in ended.err:
        return "traceback"
    if _metrics(folder) == _sound_metrics(base, case.family, folder):
        return "same"
    return "taken" if _has_type(base, case) else "silent"


@cache
def _sound_metrics(base, family, folder):
    ended = _run(base, family, None, folder)
    assert ended.status == 0, f"{family} fails without a wrong value:\n{ended.out}\n{ended.err}"
    return _metrics(folder)


def _run(base, family, case, folder):
    place = folder / "fuzz"
    shutil.rmtree(place, ignore_errors=True)
    return run_apart(partial(_evaluate, base, family, case), place, seconds=SECONDS, limits=LIMITS)


def _metrics(folder):
    return (folder / "fuzz" / "measured" / "metrics.json").read_text(encoding="utf-8")


def _has_type(base, case):
    """Whether the value has the type of the sound one, which may be nothing."""
    section, key = place_in(_read(base / "families" / case.family / case.file), case.place)
    types = {type(section[key]), type(VALUES[case.value])}
    return len(types) == 1 or type(None) in types or types == {int, float}


def _read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def _evaluate(base, family, case):
    """In a process of its own: evaluates the checkpoint of a family with a wrong value, or the sound one."""
    use_cache(base)
    shutil.copytree(base / "families" / family, "model")
    if case:
        path = Path("model", case.file)
        content = _read(path)
        section, key = place_in(content, case.place)
        section[key] = VALUES[case.value]
        path.write_text(json.dumps(content), encoding="utf-8")
    data = ["--task", "vgp", "--data-dir", str(base / "scenes"), "--regions", str(base / "scenes" / "regions")]
    return evaluate.main(["model", *data, "--limit", "2", "--output", "measured"])
