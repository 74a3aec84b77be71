# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands that push a table to a data set repository: options, and the check of the repository."""

import argparse
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.push_commit import Repository


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
