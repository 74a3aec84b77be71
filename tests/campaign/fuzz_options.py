# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Wrong values for every option and argument of every command."""

import argparse
import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from grounded_attention.commands.main import command_parser, module_name

from .inputs import use_cache

# In the working directory there are a pipe, a folder, a text file and a link to itself. Devices of the machine are no
# values: a command that may write to one would replace it.
VALUES = {
    "empty": "", "space": " ", "word": "x", "minus": "-1", "zero": "0", "fraction": "1.5", "huge": "9" * 30,
    "digits": "9" * 5000, "nan": "nan", "infinite": "inf", "exponent": "1e999", "wide digit": "\uff11",
    "control": "a\u202e\x1b[31m\nb", "surrogate": "\udcff", "long": "x" * 3000, "up": "..",
    "assignment": "a=[", "bracket": "{", "pipe": "a_pipe", "folder": "a_folder", "file": "a_file",
    "loop": "a_loop", "below a file": "a_file/x", "repository": "org/name/",
}  # fmt: skip
VALUES = {name.replace(" ", "_"): value for name, value in VALUES.items()}
DATA = "--data-dir {base}/scenes"
TABLE = "--regions {base}/scenes/regions"
PHOTO = "{base}/photo.jpg"
# A usual call of each command, as short as it gets. Those that need a vision-language model or a finished run end at
# the first file that is not there, after all options are checked.
USUAL = {
    "heads": f"--model {{base}}/model --data flickr30k_entities {DATA} --split test --limit 2 --output out",
    "convert": "vl_bert --checkpoint {base}/original.pth --output out",
    "data build": f"vgp {DATA} --output out negatives=random",
    "data pseudo-ground": f"--captions flickr30k_entities {DATA} --images {{base}}/scenes/flickr30k-images "
    "--grounder scenes --phrases given --limit 2 --output out",
    "data show": "rows.jsonl --rows 2",
    "data scenes": "--output out --images 5 --seed 0",
    "data screens": "--output out --images 5 --seed 0",
    "doctor": "",
    "evaluate": f"{{base}}/model --task vgp {DATA} {TABLE} --limit 2 --output out",
    "ground": f"{PHOTO} caption --model {{base}}/model --detector scenes --features scenes",
    "point": f"{PHOTO} text --model {{base}}/absent",
    "data push": "{base}/absent.jsonl org/name --permission mine",
    "look": f"{PHOTO} question --model {{base}}/absent --output lens.html",
    "push": "{base}/model org/name",
    "regions extract": "--images {base}/pictures --output out --detector scenes --features scenes",
    "regions import": "{base}/obj36.tsv --format lxmert_tsv --feature-size 8 --output out",
    "space push": "org/name --model {base}/model",
    "space run": "--model {base}/absent",
    "train": "scenes_vgp data.data_dir={base}/scenes data.scenes=null output_dir=run training.max_steps=1 plan=true",
}


@cache
def _parser(name: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = command_parser(name)
    return parser


def _module(name: str) -> Any:
    return importlib.import_module(module_name(name))


def places(name: str) -> list[str]:
    """The options that take a value, and the numbers of the arguments without a name."""
    options = [action.option_strings[-1] for action in _parser(name)._actions if _takes_value(action)]
    words = USUAL[name].split()
    first = next((number for number, word in enumerate(words) if word.startswith("--")), len(words))
    return [*options, *map(str, range(first))]


def _takes_value(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.nargs != 0


def work(name: str, base: Path, place: str, value: str) -> int:
    """Runs the usual call of a command with one value replaced, or with a further option."""
    use_cache(base)
    _prepare()
    words = [word.replace("{base}", str(base)) for word in USUAL[name].split()]
    text = VALUES[value]
    if place.isdigit():
        words[int(place)] = text
    else:
        if place in words:
            at = words.index(place)
            del words[at : at + 2]
        words.append(f"{place}={text}")
    status: int = _module(name).main(words)
    return status


def _prepare() -> None:
    os.mkfifo("a_pipe")
    Path("a_folder").mkdir()
    Path("a_file").write_text("text\n")
    os.symlink("a_loop", "a_loop")
