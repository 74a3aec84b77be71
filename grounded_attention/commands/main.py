# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention COMMAND ...`: finds the module of the command, imports only it, and passes the arguments on."""

import atexit
import difflib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from grounded_attention import __version__
from grounded_attention.utils.project import explain_missing_extra

from .command_line import INTERRUPTED, is_unread

PROGRAM = "grounded-attention"
USER_ERROR = 2
SECONDS_BETWEEN_BARS = "10"  # in a pipe or a log file


HELP = """\
usage: grounded-attention COMMAND [ARGS]...

  Vision-and-language Transformers whose attention is supervised with visual grounding.

Options:
  --version  Show the version and exit.
  --help     Show this message and exit.

Main commands:
  train               Train and measure the models of a recipe.
  evaluate            Score a checkpoint and write a page with its failures.
  look                Ask about an image; show where the model looked for every word.
  serve               Answer chats about images over HTTP, as OpenAI's, with where the model looked.
  point               Point at what a text asks for in an image; measure it on rows.
  heads               Measure where every head looks; find the heads that ground.
  ground              Show where a model looks in your image for your caption.
  convert             Convert an original checkpoint into a Hub directory.
  push                Push a model, a region table or pseudo-labels to the Hub.

Data:
  data build          Build a data set from its official files; push it.
  data show           Show any data with boxes on one page: Hub, JSONL, COCO, YOLO ...
  data push           Push any data with boxes to the Hub, pictures, texts and phrases.
  data scenes         Draw scenes: images, captions and regions for tests.
  data screens        Draw screens with instructions, for models that point.
  data pseudo-ground  Ground the noun phrases of captions with any model.
  regions import      Convert legacy feature files into a region table.
  regions extract     Detect regions in images and compute their features.

Space:
  space run           Open the page on which you click a word and see where it looks.
  space push          Push this page to the Hub as a Space.

Help:
  doctor              Report versions, threads, GPU, Hub access and disk of this machine.

examples:
  grounded-attention train scenes_vgp
  grounded-attention heads --run runs/scenes_vgp
  grounded-attention regions extract --help"""
# Name of a command -> its line in the help.
COMMANDS = dict(re.findall(r"^  ([a-z-]+(?: [a-z-]+)?) {2,}(.+)$", HELP.partition("Main commands:")[2], re.MULTILINE))
GROUPS = {name.partition(" ")[0] for name in COMMANDS if " " in name}
# Files that are not called as their command, with the words the other way round.
FILES = {
    "data pseudo-ground": "pseudo_ground",
    "data push": "push_rows",
    "data scenes": "draw_scenes",
    "data screens": "draw_screens",
}


def help_text(group: str = "") -> str:
    """The help of the program, or of a group such as `data`."""
    if not group:
        return HELP
    lines = [f"usage: {PROGRAM} {group} COMMAND [ARGS]...", ""]
    return "\n".join([*lines, *(line for line in HELP.splitlines() if line.startswith(f"  {group} "))])


def module_name(name: str) -> str:
    """The module of a command, which has its `main`."""
    return f"{__package__}." + (FILES.get(name) or "_".join(reversed(name.split())).replace("-", "_"))


def find_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Finds the command in the arguments."""
    count = 2 if arguments[0] in GROUPS else 1
    written = " ".join(arguments[:count])
    rest = list(arguments[count:])
    if written in COMMANDS:
        return written, rest
    named = [part for part in written.replace("-", " ").split() if part in COMMANDS]  # such as push of `regions push`
    close = named or difflib.get_close_matches(written, [*COMMANDS, *GROUPS], n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"see {PROGRAM} --help"
    raise ValueError(f"there is no command '{written}'; {hint}")


def command_parser(name: str) -> Any:
    """The parser of a command."""
    return import_module(module_name(name)).main.parser()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; what happens while its modules are imported is one line too."""
    interrupted: list[int] = []
    if arguments is None:
        sys.unraisablehook = _interrupt
        # The first that is registered is called last: Python would end by the signal, and not with this status.
        atexit.register(lambda: os._exit(INTERRUPTED) if interrupted else None)
    if sys.stdout is None:  # closed by the shell
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    try:
        status = _run(arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        if not is_unread():
            raise
        status = 0
    except OSError as error:
        if error.filename or error.errno is None:  # of a file, or of a library that cannot be loaded
            raise
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        status = USER_ERROR
    except ImportError as error:
        missing = explain_missing_extra(error)
        if missing is None:
            raise
        print(f"error: {missing}", file=sys.stderr)
        status = USER_ERROR
    finally:
        is_unread()
    if status == INTERRUPTED:
        interrupted.append(status)
    return status


def _interrupt(unraisable: Any) -> None:
    """Python drops an interrupt in a callback, such as those of imports: the program ends all the same."""
    if unraisable.exc_type is KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(unraisable)


def calm_bars() -> None:
    """Keeps the bars of tqdm, of any library, from filling a pipe or a log file; before it is imported."""
    if not sys.stderr.isatty():
        for name in ("DELAY", "MININTERVAL", "MAXINTERVAL"):
            os.environ.setdefault(f"TQDM_{name}", SECONDS_BETWEEN_BARS)


def _run(arguments: Sequence[str] | None) -> int:
    if sys.getfilesystemencoding() == "ascii":  # C locale with PYTHONUTF8=0, where many names cannot be opened
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if (sys.stdout.encoding or "utf-8").lower() != "utf-8":  # it may lack characters that are printed
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    calm_bars()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(help_text())
        if words:
            return 0
        return USER_ERROR
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    if words[0] in GROUPS and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(help_text(words[0]))
        if len(words) > 1:
            return 0
        return USER_ERROR
    try:
        name, rest = find_command(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    status: int = import_module(module_name(name)).main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
