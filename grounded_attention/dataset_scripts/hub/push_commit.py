# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Repositories on the Hub: their current state, the atomic commits by which everything is pushed, and errors."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import causes, first_sentences

# The HTTP library's error for dropped connections. Which library the Hub's client uses depends on its release.
CONNECTION_LOST: type[Exception] = next(
    base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError" and issubclass(base, Exception)
)
# What the Hub's client raises; uploads raise plain errors whose cause is one of its own.
HUB_FAILURES = (OSError, RuntimeError, ValueError, CONNECTION_LOST)


class HubError(DataError):
    """A repository cannot be reached, read or written; the message states what to do."""


@contextmanager
def hub_errors(doing: str, repository: str, hint: str | None = None) -> Iterator[None]:
    """Turns errors of the Hub's client into one error that names the repository."""
    try:
        yield
    except DataError:
        raise
    except HUB_FAILURES as error:
        raise HubError(f"{doing} failed: {explain_failure(error)}", where=repository, hint=hint) from error


def explain_failure(error: BaseException) -> str:
    """What the Hub or its client said, in one line."""
    return first_sentences(next((each for each in causes(error) if isinstance(each, CONNECTION_LOST)), error))


def may_pass(error: BaseException) -> bool:
    """Whether a second try may succeed: the server or the network failed, not the user."""
    lost = next((each for each in causes(error) if isinstance(each, CONNECTION_LOST | ConnectionError)), None)
    if isinstance(lost, HfHubHTTPError):
        status = lost.response.status_code
        return status in (408, 412, 429) or status >= 500
    return lost is not None


DATA = "dataset"
MODEL = "model"
SPACE = "space"
CARD = "README.md"
MAIN = "main"
Files = dict[str, Path | bytes]  # path in a repository -> a file here, or its content
# Files that the Hub adds to a new repository.
_HUB_FILES = {".gitattributes"}


@dataclass
class Repository:
    """The state of a repository when it was fetched."""

    name: str
    revision: str
    kind: str = DATA
    commit: str | None = None
    files: list[str] = field(default_factory=list)
    exists: bool = False

    def user_files(self) -> list[str]:
        """Returns the files that a user pushed."""
        return [name for name in self.files if name not in _HUB_FILES]

    def refuse_others(self, ours: str) -> None:
        """Raises a `HubError` for a Space with files beside a card, but not the one that makes it ours."""
        there = self.user_files()
        if ours not in there and set(there) - {CARD}:
            hint = "push to another Space"
            raise HubError("the Space contains other files", where=self.name, found=there[0], hint=hint)

    def read_json(self, path: str) -> Fields:
        """Downloads and parses a JSON object."""
        with hub_errors(f"reading {path}", self.name):
            local = HfApi().hf_hub_download(self.name, path, repo_type=self.kind, revision=self.commit)
        try:
            content = read_json(local)
        except ValueError as error:
            raise DataError("not JSON", file=f"{self.name}/{path}", found=str(error)) from error
        if not isinstance(content, dict):
            raise DataError("not an object", file=f"{self.name}/{path}", found=content)
        return content


def fetch_repository(name: str, revision: str | None = None, private: bool = False, kind: str = DATA) -> Repository:
    """Fetches the state of a repository; creates and changes nothing."""
    api = HfApi()
    if kind == SPACE and "/" not in name:  # in the user's own namespace
        with hub_errors("the push", name):
            name = f"{api.whoami()['name']}/{name}"
    refuse_if(name.count("/") != 1 or not all(name.split("/")), "not a repository id", found=name, expected="ORG/NAME")
    repository = Repository(name, revision or MAIN, kind)
    with hub_errors("reading the repository", name):
        try:
            info = api.repo_info(name, repo_type=kind)
        except RepositoryNotFoundError:
            api.whoami()  # a bad token fails now, not after the data are built
            return repository
        if private and not info.private:
            hint = "make it private in its settings first, or push to another repository"
            raise DataError("the repository is public", where=name, expected="a private one (--private)", hint=hint)
        repository.exists = True
        try:
            info = api.repo_info(name, revision=repository.revision, repo_type=kind)
        except RevisionNotFoundError:
            return repository
    repository.commit = info.sha
    repository.files = [file.rfilename for file in getattr(info, "siblings", None) or []]
    return repository


def commit_files(
    repository: Repository,
    additions: Mapping[str, Path | bytes],
    deletions: Iterable[str] = (),
    *,
    message: str,
    private: bool = False,
) -> str:
    """Uploads files and makes them visible in one commit; until then, readers see the previous commit."""
    api = HfApi()
    name = repository.name
    kind = repository.kind
    hint = "nothing is visible yet; run the same command again, finished uploads are not repeated"
    with hub_errors("the push", name, hint):
        if not repository.exists:
            sdk = "gradio" if kind == SPACE else None
            api.create_repo(name, repo_type=kind, private=private, exist_ok=True, space_sdk=sdk)
        parent = repository.commit
        if parent is None:
            if repository.revision != MAIN:
                api.create_branch(name, branch=repository.revision, repo_type=kind, exist_ok=True)
            parent = api.repo_info(name, revision=repository.revision, repo_type=kind).sha
        with _end_progress_line():
            place = {"repo_type": kind, "revision": repository.revision, "parent_commit": parent}
            return make_commit(api, name, additions, deletions, message, **place)


def make_commit(
    api: HfApi,
    name: str,
    additions: Mapping[str, Path | bytes],
    deletions: Iterable[str],
    message: str,
    **place: Any,
) -> str:
    """Adds and deletes files in one commit; returns its address."""
    operations: list[Any] = [CommitOperationDelete(path) for path in deletions]
    for path, content in sorted(additions.items()):
        operations.append(CommitOperationAdd(path, content if isinstance(content, bytes) else str(content)))
    return str(api.create_commit(name, operations, commit_message=message, **place).commit_url)


@contextmanager
def _end_progress_line() -> Iterator[None]:
    """Ends the line of a progress bar that an error interrupts, so that the error starts on a new line."""
    try:
        yield
    except BaseException:
        if not are_progress_bars_disabled():
            print(file=sys.stderr)
        raise
