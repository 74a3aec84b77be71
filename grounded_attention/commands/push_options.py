# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands that push a table to a data set repository: their options, and the push itself."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.push_commit import CARD, Repository, commit_files, fetch_repository
from grounded_attention.dataset_scripts.licences import Licence, apply_user_licence, check_redistribution

from .command_line import run


class PushChoices(TypedDict, total=False):
    """How a table is pushed.

    Args:
        revision (`str`, *optional*): A branch of the repository, `main` by default.
        private (`bool`, *optional*, defaults to `False`): Make a new repository private; one that is public already is
            refused.
        permission (`str`, *optional*): The reason why the table may be pushed, if its images or texts are of others.
        licence (`str`, *optional*): Licence of the table, as the Hub names it, if its images or texts are the user's
            own.
    """

    revision: str | None
    private: bool
    permission: str | None
    licence: str | None


def add_push_options(parser: argparse.ArgumentParser, table: str, own: str, others: str) -> None:
    """Adds the arguments of a push.

    Args:
        parser (`argparse.ArgumentParser`): the parser.
        table (`str`): help of the argument `table`.
        own (`str`): what a user may choose a licence for.
        others (`str`): what needs a permission.
    """
    add = parser.add_argument
    add("table", type=Path, help=table)
    add("repository", metavar="ORG/NAME", help="data set repository; created if missing")
    add("--private", action="store_true", help="make a new repository private")
    add("--revision", metavar="BRANCH", help="branch to push to; created if missing; default: main")
    add("--permission", metavar="TEXT", help=f"for {others}: the reason why you may push; the card shows it")
    add("--licence", metavar="ID", help=f"for {own}: the licence as a Hub identifier")
    add("--json", action="store_true", help="print what was pushed as JSON")


def push_choices(options: argparse.Namespace) -> PushChoices:
    """The choices of a command line."""
    return {
        "revision": options.revision,
        "private": options.private,
        "permission": options.permission,
        "licence": options.licence,
    }


def run_push(
    parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], str], arguments: Sequence[str] | None
) -> int:
    """Runs a command that pushes; see `run` of `command_line.py`."""
    return run(parser, work, arguments, resumable="run the same command again to continue; nothing is published yet")


def push_table(
    table: Any,
    to: str,
    choices: PushChoices,
    *,
    name: str,
    terms: Licence,
    files: Sequence[str],
    write_card: Callable[[Licence, Sequence[str]], str],
    message: str,
) -> str:
    """Pushes the shards of a table and its other files, unchanged, with a card.

    Args:
        table (`Any`): the table: `path`, `info["shards"]` and `verify()`.
        to (`str`): the repository, `ORG/NAME`.
        choices (`PushChoices`): how it is pushed.
        name (`str`): the table in messages.
        terms (`Licence`): the licence of the data that it is made from.
        files (`Sequence[str]`): its files beside the shards; the last is the manifest.
        write_card (`Callable[[Licence, Sequence[str]], str]`): makes the card from the terms and the files.
        message (`str`): message of the commit.

    Returns:
        `str`: the address of the commit.

    Raises:
        HubError: if the push fails; the repository is not changed.
        DataError: if the table is damaged, the push is not permitted, or the repository contains other files.
    """
    terms = apply_user_licence(terms, choices.get("licence"))
    check_redistribution(terms, name, choices.get("permission"))
    private = choices.get("private", False)
    repository = fetch_repository(to, choices.get("revision"), private)
    check_free(repository, files[-1])
    table.verify()
    names = [*(shard["file"] for shard in table.info["shards"]), *files]
    added: dict[str, Path | bytes] = {each: table.path / each for each in names}
    added[CARD] = write_card(terms, names).encode()
    old = [each for each in repository.user_files() if each not in added]
    return commit_files(repository, added, old, message=message, private=private)


def check_free(repository: Repository, manifest: str) -> None:
    """Refuses a repository with other files than a table of this kind.

    Args:
        repository (`Repository`): the repository.
        manifest (`str`): the file that every table of this kind has.

    Raises:
        DataError: if it contains other files.
    """
    if repository.user_files() and manifest not in repository.files:
        found, hint = repository.user_files()[0], "push to another repository"
        raise DataError("the repository contains other files", where=repository.name, found=found, hint=hint)
