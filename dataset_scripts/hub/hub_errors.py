# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What can go wrong between this machine and the Hub, in one line that says what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from grounded_attention.dataset_scripts.files.errors import DataError

# The HTTP library's own error, for dropped connections; which library that is changed between releases of the Hub's.
LOST: type[Exception] = next(
    base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError" and issubclass(base, Exception)
)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may do this"


class HubError(DataError):
    """A repository that cannot be reached, read or written; the message says what to do."""


@contextmanager
def hub_errors(doing: str, repository: str, hint: str | None = None) -> Iterator[None]:
    """Turns errors of the Hub's client into one that names the repository.

    Args:
        doing: What was being done, for example `"the push"`.
        repository: Its id.
        hint: What to do when the connection failed on the way.

    Raises:
        HubError: instead of any error of the connection, the token, the repository or the disk.
    """
    try:
        yield
    except DataError:
        raise
    except HFValidationError as error:
        raise HubError("no repository id", found=repository, expected="ORG/NAME") from error
    except Exception as error:
        problem, advice = _explained(error, hint)
        if problem is None:
            raise
        raise HubError(f"{doing} failed: {problem}", where=repository, hint=advice) from error


def explain_failure(error: BaseException) -> str:
    """One line about a failure on the way to the Hub, with what to do where that is known."""
    problem, advice = _explained(error, None)
    if problem is None:
        deepest = list(_chain(error))[-1] if isinstance(error, RuntimeError) else error
        return f"{type(deepest).__name__}: {' '.join(str(deepest).split())}"
    return f"{problem}: {advice}" if advice else problem


def status_of(error: BaseException) -> int | None:
    """The status that the Hub answered with, below what its client makes of it; None where it did not answer."""
    answer = next((each for each in _chain(error) if isinstance(each, HfHubHTTPError)), None)
    return None if answer is None else answer.response.status_code


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explained(error: BaseException, hint: str | None) -> tuple[str | None, str | None]:
    """The problem in words and what to do about it; (None, None) for what is no error of the Hub."""
    # Uploads raise plain errors, caused by one of those known here.
    for each in _chain(error):
        problem, advice = _explained_alone(each, hint)
        if problem is not None:
            return problem, advice
    return None, None


def _explained_alone(error: BaseException, hint: str | None) -> tuple[str | None, str | None]:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on", "unset HF_HUB_OFFLINE; reading works offline once it was read online"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision", "name a branch, a tag or a commit of the repository"
    # The client takes any 401 for a repository that is not there; the Hub says which of the two it is.
    if isinstance(error, RepositoryNotFoundError) and (
        status != 401 or response is None or response.headers.get("X-Error-Code") == "RepoNotFound"
    ):
        return "there is no such repository, or the token may not see it", f"check the name; {_LOG_IN}"
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no Hugging Face token", _LOG_IN
    if status == 401:
        return "the token was rejected, or there is none", _LOG_IN
    if isinstance(error, LocalEntryNotFoundError):
        return "the Hub was not reached and the file is not in the cache", hint or "try again when it is reached"
    if isinstance(error, EntryNotFoundError):
        return f"a file is missing there: {_first_line(error)}", None
    if status == 403:
        return f"the token may not write there{_said(error)}", _LOG_IN
    if status in (409, 412):
        return "the repository changed meanwhile", "nothing was written; run the same command again"
    if status is not None:
        return f"the Hub answered {status}{_said(error)}", hint
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk: {_first_line(error)}", "free space, or set HF_HOME to another disk"
    if isinstance(error, LOST | ConnectionError | TimeoutError):
        return _first_line(error), hint
    return None, None


def _said(error: BaseException) -> str:
    """What the Hub adds to its status."""
    said = " ".join((getattr(error, "server_message", None) or "").split())
    return f" ({said})" if said else ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
