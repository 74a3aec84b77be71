# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention COMMAND ...`: finds the module of the command, imports only it, and passes the arguments on."""

import atexit
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from grounded_attention import __version__
from grounded_attention.utils.extras import explain_missing_extra
from grounded_attention.utils.quiet import calm_bars

from .command_line import INTERRUPTED, is_unread

PROGRAM = "grounded-attention"
USER_ERROR = 2


class Command(NamedTuple):
    """A module of this folder with `main(arguments) -> int` and `build_parser()`, and its line in the help."""

    module: str
    summary: str


# In the order of the help. The first word of a two-word name is the group.
SECTIONS: dict[str, dict[str, Command]] = {
    "Main commands": {
        "train": Command("train", "Train and measure the models of a recipe."),
        "evaluate": Command("evaluate", "Score a checkpoint and write a page with its failures."),
        "look": Command("look", "Ask about an image; show where the model looked for every word."),
        "point": Command("point", "Point at what a text asks for in an image; measure it on rows."),
        "heads": Command("heads", "Measure where every head looks; find the heads that ground."),
        "perturb": Command("perturb", "Measure how faithful relevancy maps are, by removing regions."),
        "ground": Command("ground", "Show where a model looks in your image for your caption."),
        "export": Command("export", "Write the attention of an image and caption for other tools."),
        "convert": Command("convert", "Convert an original checkpoint into a Hub directory."),
        "push": Command("push", "Push a model, a region table or pseudo-labels to the Hub."),
    },
    "Data": {
        "data build": Command("build_data", "Build a data set from its official files; push it."),
        "data show": Command("show_data", "Show any data with boxes on one page: Hub, JSONL, COCO, YOLO ..."),
        "data push": Command("push_rows", "Push any data with boxes to the Hub, pictures, texts and phrases."),
        "data scenes": Command("draw_scenes", "Draw scenes: images, captions and regions for tests."),
        "data screens": Command("draw_screens", "Draw screens with instructions, for models that point."),
        "data pseudo-ground": Command("pseudo_ground", "Ground the noun phrases of captions with any model."),
        "regions import": Command("import_regions", "Convert legacy feature files into a region table."),
        "regions extract": Command("extract_regions", "Detect regions in images and compute their features."),
    },
    "Space": {
        "space run": Command("run_space", "Open the page on which you click a word and see where it looks."),
        "space push": Command("push_space", "Push this page to the Hub as a Space."),
        "space build": Command("build_space", "Make the small checkpoints of the page from a finished run."),
    },
    "Help": {
        "doctor": Command("doctor", "Report versions, threads, GPU, Hub access and disk of this machine."),
        "completion": Command("completion", "Print a completion script for your shell."),
    },
}
COMMANDS: dict[str, Command] = {name: command for section in SECTIONS.values() for name, command in section.items()}
GROUPS = {name.partition(" ")[0] for name in COMMANDS if " " in name}


def help_text(group: str = "") -> str:
    """The help of the program, or of a group such as `data`."""
    shown = {
        title: {name: command for name, command in section.items() if name.startswith(f"{group} " if group else "")}
        for title, section in SECTIONS.items()
    }
    width = max(len(name) for section in shown.values() for name in section)
    lines = [f"usage: {PROGRAM} {group} COMMAND [ARGS]...".replace("  ", " ")]
    if not group:
        lines += ["", "  Vision-and-language Transformers whose attention is supervised with visual grounding."]
        lines += [
            "",
            "Options:",
            "  --version  Show the version and exit.",
            "  --help     Show this message and exit.",
        ]
    for title, section in shown.items():
        if section:
            lines += ["", f"{title}:", *(f"  {name:{width}}  {command.summary}" for name, command in section.items())]
    if not group:
        lines += ["", "examples:"]
        lines += [
            f"  {PROGRAM} train scenes_vgp",
            f"  {PROGRAM} heads --run runs/scenes_vgp",
            f"  {PROGRAM} regions extract --help",
        ]
    return "\n".join(lines)


def find_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Finds the command in the arguments."""
    first, *rest = arguments
    words = " ".join(arguments[:2])
    if first in GROUPS and words in COMMANDS:
        return words, rest[1:]
    if first in COMMANDS:
        return first, rest
    written = words if first in GROUPS else first
    named = [part for part in written.replace("-", " ").split() if part in COMMANDS]  # such as push of `regions push`
    close = named or difflib.get_close_matches(written, [*COMMANDS, *GROUPS], n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"see {PROGRAM} --help"
    raise ValueError(f"there is no command '{written}'; {hint}")


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
    except ImportError as error:
        if (missing := explain_missing_extra(error)) is None:
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


def _run(arguments: Sequence[str] | None) -> int:
    if sys.getfilesystemencoding() == "ascii":  # C locale with PYTHONUTF8=0, where many names cannot be opened
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if (sys.stdout.encoding or "utf-8").lower() != "utf-8":  # it may lack characters that are printed
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    calm_bars()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(help_text())
        return 0 if words else USER_ERROR
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    if words[0] in GROUPS and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(help_text(words[0]))
        return 0 if len(words) > 1 else USER_ERROR
    try:
        name, rest = find_command(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    status: int = import_module(f"{__package__}.{COMMANDS[name].module}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
