# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by all commands: help from the docstring of the module, errors in one line, exit status 0 or 2.

The docstring of a command states what it does and ends with a part `examples:`. Its last line makes a [`Program`] of
its function. Only commands import this module.
"""

import argparse
import contextlib
import dataclasses
import errno
import inspect
import logging
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from grounded_attention.utils.bounded_files import MAX_COUNT, MAX_PROCESSES, MAX_SEED
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import causes, first_sentences, printable, shorten_values, visible
from grounded_attention.utils.processes import leave_group
from grounded_attention.utils.project import PACKAGE, explain_missing_extra, refuse_missing, refuse_run


def whole(lowest: int, highest: int) -> Callable[[str], int]:
    """A function that reads a whole number in a range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # also for more than 4300 digits
            value = lowest - 1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"expected a whole number from {lowest} to {highest}, found {text!r:.60}")
        return value

    return read


def share(text: str) -> float:
    """Reads a number from 0 to 1, for example an overlap."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also for NaN
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r:.60}")
    return value


positive = whole(1, MAX_COUNT)
not_negative = whole(0, MAX_COUNT)
seed_number = whole(0, MAX_SEED)
processes = whole(1, MAX_PROCESSES)

Positive = Annotated[int, positive]
Count = Annotated[int, not_negative]
Seed = Annotated[int, seed_number]
Processes = Annotated[int, processes]
Share = Annotated[float, share]
Result = tuple[Any, str]  # what `--json` prints, and what is printed otherwise


_DESCRIBED = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {5,}.*)*)", re.MULTILINE)


SEVERAL: dict[Any, Fields] = {list: {"action": "append"}, tuple: {"action": "extend", "nargs": "+"}}


class Parameter(NamedTuple):
    """A parameter of a command, or a field of one."""

    name: str
    hint: Any
    default: Any
    is_option: bool
    metavar: str | None
    help: str


def parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    """The parameters of a function, and the fields of those that are dataclasses."""
    hints = get_type_hints(function, include_extras=True)
    _, _, text = (inspect.getdoc(function) or "").partition("Args:\n")
    described = {name: (metavar or None, " ".join(help.split())) for name, metavar, help in _DESCRIBED.findall(text)}
    for name, each in inspect.signature(function).parameters.items():
        is_option = each.kind is each.KEYWORD_ONLY or dataclasses.is_dataclass(function)
        if dataclasses.is_dataclass(hints[name]):
            for field in parameters(hints[name]):
                metavar, help = described.get(field.name, (field.metavar, field.help))
                yield field._replace(metavar=metavar, help=help)
        else:
            yield Parameter(name, hints[name], each.default, is_option, *described[name])


def add_arguments(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Adds the parameters of a function to a parser. What is not given is left to the function's own default."""
    for each in parameters(function):
        settings = _settings(each.hint)
        text = each.help.replace("%", "%%")
        if each.default not in (inspect.Parameter.empty, None, False, ()):
            text += f" (default: {each.default})"
        settings |= {"help": text, "default": argparse.SUPPRESS}
        required = each.default is inspect.Parameter.empty
        if settings.get("action") != "store_true":
            settings["metavar"] = each.metavar or (None if "choices" in settings else each.name.upper())
        if each.is_option:
            parser.add_argument(f"--{each.name.replace('_', '-')}", required=required, **settings)
        elif settings.pop("action", None) is None:
            parser.add_argument(each.name, nargs=None if required else "?", **settings)
        else:
            parser.add_argument(each.name, nargs="+" if required else "*", **settings)


def _settings(hint: Any) -> Fields:
    """How argparse reads a value of a type."""
    if hint is bool:
        return {"action": "store_true"}
    settings: Fields = {}
    rule = None
    while inside := get_args(hint):
        if get_origin(hint) in SEVERAL:
            settings = dict(SEVERAL[get_origin(hint)])
        if get_origin(hint) is Annotated:
            rule = inside[1]
        hint = inside[0]
    if rule is None or callable(rule):
        return settings | {"type": rule or hint}
    return settings | {"choices": list(rule), "type": hint}


def call(function: Callable[..., Any], given: Fields) -> Any:
    """Calls a function with what a parser has read."""
    hints = get_type_hints(function)
    arguments = {}
    for name in inspect.signature(function).parameters:
        if dataclasses.is_dataclass(hints[name]):
            arguments[name] = call(hints[name], given)
        elif name in given:
            arguments[name] = given[name]
    return function(**arguments)


def refuse_given(options: Any, names: Sequence[str], why: str) -> None:
    """Refuses the first of these options that is given."""
    for name in names:
        if getattr(options, name):
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def help_of(function: Callable[..., Any]) -> str:
    """The help of a command: the docstring of its module."""
    return sys.modules[function.__module__].__doc__ or ""


NO_BARS = "TQDM_DISABLE"  # not from utils.progress, which imports tqdm before `calm_bars`

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
CACHE_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
# What libraries that are not written in Python say; the last two are PyTorch's when it cannot write an archive.
DISK_TEXTS = (
    "No space left on device",
    "Input/output error",
    "Disk quota exceeded",
    "inline_container.cc",
    "basic_ios::clear: iostream error",
)
FILES = ("data", "data_dir", "images")  # arguments that are files to read
MODELS = ("model", "checkpoint", "directory", "vlm", "grounder", "against", "beside")  # arguments that are models
# What the processes of a launch say when one of them has ended.
PEER_TEXTS = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError", "Broken pipe")
PANIC = "PanicException"  # of a library written in Rust; it is no Exception
OF_WORKER = (
    "a process of this command was ended from outside ({}), perhaps because the memory was full: give fewer workers, "
    "or end other programs, then run the same command again"
)
MEMORY = "the memory is full ({}); give smaller sizes, or end other programs"
# Part of the type or the text of an error of a library -> what a user is told, with the text.
KNOWN = {
    "Cannot find data file": "{}",  # of `datasets`, around an error of a builder
    "Symlink loop from": "{}: a link that leads to itself; give a file or folder",
    "UnpicklingError": "a file of saved state is damaged, or would run code and is refused ({})",
    "SafetensorError": "a .safetensors file is damaged or cannot be written ({}); copy or make it again",
    PANIC: "a text cannot be read ({}): the tokenizer is damaged or hostile",
    "MemoryError": MEMORY,
    "can't allocate memory": MEMORY,
    "out of memory": MEMORY,
    "DataLoader worker (pid": OF_WORKER,
    "process in the process pool was terminated abruptly": OF_WORKER,
}
# In a clone some folders are links; a traceback may contain either path.
PLACES = {PACKAGE, *(path.resolve() for path in PACKAGE.iterdir() if path.is_dir())}
# PyTorch passes on an error of a DataLoader worker with the whole traceback as the message.
FROM_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")
# exit status of an interrupted program in a shell, and of one that nobody reads
INTERRUPTED = 130
UNREAD = 141


def make_parser(name: str, docstring: str | None) -> argparse.ArgumentParser:
    """Makes a parser that prints a docstring as its help."""
    introduction, mark, examples = (docstring or "").partition("examples:\n")
    if not mark or not examples.strip():
        raise ValueError(f"the docstring of {name} has no part `examples:`")
    parser = _Parser(
        prog=name,
        description=introduction,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser


class _Parser(argparse.ArgumentParser):
    """Errors are one line, as in `run`; they repeat what was typed, without control characters and without end."""

    def error(self, message: str) -> NoReturn:
        # Of options between arguments, argparse says that also the arguments that may be left out are required.
        message = message.removesuffix(", key=value")
        options = {}  # also by the names of their values
        for each in self._actions:
            for name in (each.dest, *each.option_strings) if each.option_strings else ():
                options[name.lstrip("-").replace("_", "-")] = each.option_strings[-1]
        typed = re.match(r"unrecognized arguments: --([\w-]+)", message)
        close = get_close_matches(typed[1], options, 1) if typed else []
        if close:
            message += f" (did you mean {options[close[0]]}?)"
        _print_error(f"{message}; see {self.prog} --help")
        self.exit(2)


def one_line(error: BaseException) -> str:
    """The message of an error in one line; for a file that cannot be used, its name and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text: Any = error
    if isinstance(error, KeyError) and error.args:  # which shows quotes
        text = error.args[0]
    return " ".join(str(text).split()) or type(error).__name__


def explain_name(error: BaseException) -> str | None:
    """Formats an error about a file name or an argument that is not UTF-8 as one line; `None` for another error."""
    if not isinstance(error, UnicodeEncodeError) or error.reason != "surrogates not allowed":
        return None
    name = printable(ascii(error.object.partition("\0")[0]), 300)
    return f"the name {name} is not UTF-8 (its bytes are written as \\udc..): rename the file or folder"


def explain_cache(error: BaseException) -> str | None:
    """Formats the error about a cache of Hugging Face that cannot be written as one line; `None` for another error."""
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in CACHE_ERRORS and cause.filename:
            place = str(cause.filename)
            if place.startswith(home) or home.startswith(place):
                return f"{place}: {cause.strerror}; set the environment variable HF_HOME to a folder for caches"
    return None


def explain_disk(error: BaseException) -> str | None:
    """Formats an error of the disk as one line, however a library has wrapped it."""
    for cause in causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        text = " ".join(str(cause).split())
        if number in DISK_ERRORS or any(mark in text for mark in DISK_TEXTS):
            name = getattr(cause, "filename", None)
            place = f"{name}: " if name else ""
            what = first_sentences(text) if number is None else os.strerror(number)
            return f"{place}the disk cannot be written or read ({what}); free space or check it, then run again"
    return None


def explain_library(error: BaseException) -> str | None:
    """Formats an error of a library that has one of the `KNOWN` reasons, or of a package that is not installed."""
    for cause in causes(error):
        message = f"{type(cause).__name__} {cause}"
        text = next((line for mark, line in KNOWN.items() if mark in message), None)
        if text:
            return text.format(first_sentences(cause))
    if (
        "WORLD_SIZE" in os.environ
        and isinstance(error, RuntimeError)
        and any(mark in str(error) for mark in PEER_TEXTS)
    ):
        return "another process of this training has ended: its own message says why; then run the same command again"
    missing = explain_missing_extra(error.__cause__ or error)
    if missing:
        return missing
    if isinstance(error, ImportError) and error.name is None:
        return one_line(error)
    return None


def explain_error(error: BaseException) -> str | None:
    """Formats a user error as one line: an error of the file system, or a ValueError raised in this package."""
    if isinstance(error, OSError) and (error.errno is not None or isinstance(error, FileNotFoundError)):
        return one_line(error)
    if not isinstance(error, ValueError) or not _is_ours(error):
        return None
    text = str(error)
    if FROM_WORKER.match(text):
        text = re.split(r"^(?:\w+\.)*\w+: ", text, flags=re.MULTILINE)[-1]
    return " ".join(text.split())


def _is_ours(error: BaseException) -> bool:
    """Whether a line of this package raised the error."""
    if FROM_WORKER.match(str(error)):
        texts = [str(error)]
    else:
        texts = []
    if type(error.__cause__).__name__.endswith("RemoteTraceback"):  # of a pool of processes
        texts.append(str(error.__cause__))
    files = re.findall(r'^ *File "([^"]+)", line', "".join(texts), flags=re.MULTILINE)
    if not files:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(files) and any(Path(files[-1]).is_relative_to(place) for place in PLACES)


def explain_loading(error: BaseException) -> str | None:
    """Formats an error inside `from_pretrained`, or of settings that transformers reads later, as one line: libraries
    raise any type when a file has wrong values.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1]
    names = ["from_pretrained"]
    for part, name in {"generation": "generate", "image_": "preprocess"}.items():
        if os.path.join("transformers", part) in last.f_code.co_filename:
            names.append(name)
    loading = next((frame for frame in frames if frame.f_code.co_name in names), None)
    if loading is None:
        return None
    given = ("pretrained_model_name_or_path", "source", "name", "model")
    model = next((loading.f_locals[name] for name in given if loading.f_locals.get(name) is not None), "a checkpoint")
    place = f"{type(error).__name__} in {os.path.basename(last.f_code.co_filename)}, line {last.f_lineno}"
    source = getattr(model, "name_or_path", model)
    return (
        f"{source}: the checkpoint cannot be loaded ({place}: {first_sentences(error)}); one of its files is damaged, "
        "has a wrong value, or does not fit the installed versions: compare it with a sound one"
    )


def _given(options: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """What is given for arguments of these names, one by one."""
    for name in names:
        places = getattr(options, name, None) or ()
        yield from map(str, places if isinstance(places, list | tuple) else [places])


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], str | None],
    arguments: Sequence[str] | None = None,
    *,
    explain_error: Callable[[BaseException], str | None] = one_line,
    intermixed: bool = False,
    resumable: str | Callable[[argparse.Namespace], str] = "",
) -> int:
    """Parses the arguments and runs the command; `resumable` says how interrupted work is continued."""
    options = parser.parse_intermixed_args(arguments) if intermixed else parser.parse_args(arguments)
    quiet = getattr(options, "quiet", False)
    before = os.environ.get(NO_BARS)
    if quiet:
        os.environ[NO_BARS] = "1"
    try:
        for place in _given(options, MODELS):
            refuse_run(place)
        for place in _given(options, FILES):
            refuse_missing(place, "no such file or folder")
        # It asks for a package of 4-bit kernels whenever PEFT imports it.
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
        import numpy  # noqa: F401  # torch imports it too, but drops an interrupt then, and half of it stays

        text = work(options)
        if text is not None:
            with contextlib.suppress(BrokenPipeError):
                print(visible(text), flush=True)
            is_unread()
    except KeyboardInterrupt:
        again = resumable(options) if callable(resumable) else resumable
        _print_error("; ".join(filter(None, ("interrupted", again))))
        return INTERRUPTED
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        if isinstance(error, BrokenPipeError) and is_unread():
            return UNREAD
        line = explain_name(error) or explain_cache(error)
        line = line or (explain_error(error) if isinstance(error, ValueError | OSError) else None)
        line = line or explain_disk(error) or explain_library(error) or explain_loading(error)
        if line is None:
            raise
        line = re.sub(r"Repo id must .*", "no such file or folder, and not a name on the Hub (ORG/NAME)", line)
        _print_error(line, of_one=explain_disk(error) is not None)
        return 2
    finally:
        if quiet and before is None:
            del os.environ[NO_BARS]
        leave_group()
    return 0


@dataclass(frozen=True)
class Program:
    """A command: its name and its function, whose signature is the command line. It returns what `--json` prints and
    what is printed otherwise; `None` in a process that prints nothing.
    """

    name: str
    work: Callable[..., Result | None]
    explain_error: Callable[[BaseException], str | None] = one_line
    resumable: str | Callable[[argparse.Namespace], str] = ""
    json: bool = True

    def parser(self) -> argparse.ArgumentParser:
        """The parser of the command."""
        parser = make_parser(f"grounded-attention {self.name}", help_of(self.work))
        add_arguments(parser, self.work)
        if self.json:
            parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
        return parser

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        how: Any = {"explain_error": self.explain_error, "resumable": self.resumable}
        return run(self.parser(), self._run, arguments, intermixed=True, **how)

    def _run(self, options: argparse.Namespace) -> str | None:
        as_json = self.json and options.json
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            done = call(self.work, vars(options))
        if done is None:
            return None
        from grounded_attention.metrics.intervals import to_json

        result, text = done
        if as_json:
            return to_json(result)
        return text or None


def is_unread() -> bool:
    """Whether the reader of the output, such as `head`, has enough; what else is printed is then dropped."""
    try:
        sys.stdout.flush()
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        broken = bool(pipe.poll(0))
    except BrokenPipeError:
        broken = True
    except (OSError, ValueError, AttributeError):  # no file, or a system without `poll`
        return False
    if broken:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return broken


def _print_error(line: str, of_one: bool = False) -> None:
    """Prints an error, of several processes in the main one only; `of_one`: the others may not have it."""
    rank = os.environ.get("RANK", "0")
    line = printable(shorten_values(line))
    if rank == "0":
        coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        mark = "\033[31merror:\033[0m" if coloured else "error:"
        print(f"{mark} {line}", file=sys.stderr)
    elif of_one:
        print(f"process {printable(rank)}: {line}", file=sys.stderr)
