# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Data set repositories on the Hub: what stands there, and one commit that changes it whole or not at all."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled

from grounded_attention.dataset_scripts.files.errors import DataError

from .hub_errors import hub_errors

KIND = "dataset"
CARD = "README.md"
MAIN = "main"
# What the Hub itself puts into a new repository.
_HUBS_OWN = {".gitattributes"}


@dataclass
class Repository:
    """A repository as it stood when it was looked at.

    Args:
        name: `ORG/NAME`.
        revision: The branch.
        commit: Its last commit; None where there is no repository or no such branch yet.
        files: The files of that commit.
        exists: Whether the repository is there, with or without the branch.
    """

    name: str
    revision: str
    commit: str | None = None
    files: list[str] = field(default_factory=list)
    exists: bool = False

    def own_files(self) -> list[str]:
        """The files that somebody put there."""
        return [name for name in self.files if name not in _HUBS_OWN]

    def read_json(self, path: str) -> dict[str, Any]:
        """A JSON object among the files.

        Raises:
            HubError: It cannot be downloaded.
            DataError: It is none.
        """
        with hub_errors(f"reading {path}", self.name):
            local = HfApi().hf_hub_download(self.name, path, repo_type=KIND, revision=self.commit)
        try:
            content = json.loads(Path(local).read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError("not JSON", file=f"{self.name}/{path}", found=str(error)) from error
        if not isinstance(content, dict):
            raise DataError("not an object", file=f"{self.name}/{path}", found=content)
        return content


def look_at(name: str, revision: str | None = None, private: bool = False) -> Repository:
    """The repository as it stands; nothing is made or changed.

    Args:
        name: `ORG/NAME`.
        revision: A branch, `main` by default.
        private: The user wants it private.

    Raises:
        HubError: The Hub cannot be reached, or does not know the token.
        DataError: `name` is no id, or the repository is public although it is to be private.
    """
    if name.count("/") != 1 or not all(name.split("/")):
        raise DataError("no repository id", found=name, expected="ORG/NAME")
    api, found = HfApi(), Repository(name, revision or MAIN)
    with hub_errors("looking at the repository", name):
        try:
            info = api.dataset_info(name)
        except RepositoryNotFoundError:
            api.whoami()  # a bad token is told now, not after the data are built
            return found
        if private and not info.private:
            hint = "make it private in its settings first, or push to another repository"
            raise DataError("the repository is public", where=name, expected="a private one (--private)", hint=hint)
        found.exists = True
        try:
            info = api.dataset_info(name, revision=found.revision)
        except RevisionNotFoundError:
            return found
    found.commit, found.files = info.sha, [file.rfilename for file in info.siblings or []]
    return found


def commit_files(
    repository: Repository,
    additions: Mapping[str, Path | bytes],
    deletions: Iterable[str] = (),
    *,
    message: str,
    private: bool = False,
) -> str:
    """Uploads files and makes them visible in one commit; before it, readers see what stood there.

    The repository and the branch are made if need be. What an interrupted push has uploaded already is known to the
    Hub by its checksum and not sent again.

    Args:
        repository: As [`look_at`] found it; the push is refused if it changed since.
        additions: Contents, or files on this disk, by path in the repository.
        deletions: Paths to remove.
        message: Title of the commit.
        private: Make a new repository private.

    Returns:
        The address of the commit.

    Raises:
        HubError: The push failed; nothing of it is visible.
    """
    api, name = HfApi(), repository.name
    operations: list[Any] = [CommitOperationDelete(path) for path in deletions]
    operations += [
        CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
        for path, content in additions.items()
    ]
    hint = "nothing is visible yet; run the same command again, and what was uploaded is not sent twice"
    with hub_errors("the push", name, hint):
        if not repository.exists:
            api.create_repo(name, repo_type=KIND, private=private, exist_ok=True)
        if repository.commit is None:
            if repository.revision != MAIN:
                api.create_branch(name, branch=repository.revision, repo_type=KIND, exist_ok=True)
            parent = api.dataset_info(name, revision=repository.revision).sha
        else:
            parent = repository.commit
        with _whole_bars():
            commit = api.create_commit(
                name,
                operations,
                commit_message=message,
                repo_type=KIND,
                revision=repository.revision,
                parent_commit=parent,
            )
    return commit.commit_url


@contextmanager
def _whole_bars() -> Iterator[None]:
    """Ends the line of a progress bar that an error cut short, so that the error has a line of its own."""
    try:
        yield
    except BaseException:
        if not are_progress_bars_disabled():
            print(file=sys.stderr)
        raise
