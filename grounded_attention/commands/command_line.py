# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What all commands share: help from the module's docstring, errors in one line, exit status 0 or 2.

A command's docstring says what it does and ends in a part `examples:`. Its `main` is one line:

    def main(arguments: Sequence[str] | None = None) -> int:
        return run(build_parser(), _work, arguments)

where `_work(options)` does the work and returns what is printed. Only commands import this module.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

INTERRUPTED = 130  # as a shell reports an interrupted program


def make_parser(name: str, docstring: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a docstring.

    Args:
        name (`str`): how the command is called, for example "grounded-attention ground".
        docstring (`str | None`): the introduction, then a line `examples:` and the examples.

    Raises:
        ValueError: the docstring has no examples.
    """
    introduction, found, examples = (docstring or "").partition("examples:\n")
    if not found or not examples.strip():
        raise ValueError(f"the docstring of {name} has no part `examples:`")
    return argparse.ArgumentParser(
        prog=name,
        description=introduction,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def one_line(error: BaseException) -> str:
    """The message of an error in one line; of a file that cannot be used, its name and the reason."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # a KeyError shows quotes
    return " ".join(str(text).split()) or type(error).__name__


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], str | None],
    arguments: Sequence[str] | None = None,
    *,
    explain: Callable[[BaseException], str | None] = one_line,
    intermixed: bool = False,
    resumable: str = "",
) -> int:
    """Reads the arguments and does the work.

    Args:
        parser (`argparse.ArgumentParser`): the command's.
        work (`Callable[[argparse.Namespace], str | None]`): takes the options; returns the text to print, or None
            where there is none.
        arguments (`Sequence[str]`, *optional*): those of the process when not given.
        explain (`Callable[[BaseException], str | None]`, *optional*, defaults to `one_line`): makes one line of a
            ValueError or OSError, or None of one that is no user's to mend, which is then raised.
        intermixed (`bool`, *optional*, defaults to `False`): whether options may stand between the positional
            arguments.
        resumable (`str`, *optional*, defaults to `""`): what to tell who interrupts the command.

    Returns:
        `int`: The exit status: 0; 2 after a mistake of the user, told in one line on standard error, by one process of
        however many met it; 130 when interrupted.
    """
    options = parser.parse_intermixed_args(arguments) if intermixed else parser.parse_args(arguments)
    try:
        text = work(options)
    except KeyboardInterrupt:
        _tell("; ".join(filter(None, ("interrupted", resumable))))
        return INTERRUPTED
    except (ValueError, OSError) as error:
        line = explain(error)
        if line is None:
            raise
        _tell(line)
        return 2
    finally:
        _leave_group()
    if text is not None:
        print(text)
    return 0


def _leave_group() -> None:
    """Leaves the other processes of a launch, where the command has met them: one that ends without it may abort."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _tell(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"error: {line}", file=sys.stderr)
