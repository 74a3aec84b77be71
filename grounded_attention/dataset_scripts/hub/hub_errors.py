# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Errors between this machine and the Hub, explained in one line with a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

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
from grounded_attention.utils.plain_text import causes, first_sentences

# The HTTP library's error for dropped connections. Which library the Hub's client uses depends on its release.
CONNECTION_LOST: type[Exception] = next(
    base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError" and issubclass(base, Exception)
)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token with the necessary rights"


class HubError(DataError):
    """A repository cannot be reached, read or written; the message states what to do."""


@contextmanager
def hub_errors(doing: str, repository: str, hint: str | None = None) -> Iterator[None]:
    """Turns errors of the Hub's client into one error that names the repository."""
    try:
        yield
    except DataError:
        raise
    except HFValidationError as error:
        raise HubError("not a repository id", found=repository, expected="ORG/NAME") from error
    except Exception as error:
        problem, advice = _explain(error, hint)
        if problem is None:
            raise
        raise HubError(f"{doing} failed: {problem}", where=repository, hint=advice) from error


def explain_failure(error: BaseException) -> str:
    """Explains a failure between this machine and the Hub in one line, with a remedy where one is known."""
    problem, advice = _explain(error, None)
    if problem is None:
        deepest = list(causes(error))[-1] if isinstance(error, RuntimeError) else error
        return f"{type(deepest).__name__}: {' '.join(str(deepest).split())}"
    return f"{problem}: {advice}" if advice else problem


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that the Hub sent, or None if it sent none."""
    answer = next((each for each in causes(error) if isinstance(each, HfHubHTTPError)), None)
    return None if answer is None else answer.response.status_code


def wait_asked(error: BaseException) -> float | None:
    """The seconds that the Hub asks to wait (`Retry-After`), or None; a date is compared with its own clock."""
    answer = next((each for each in causes(error) if isinstance(each, HfHubHTTPError)), None)
    if answer is None:
        return None
    asked, now = (str(answer.response.headers.get(name, "")) for name in ("Retry-After", "Date"))
    if asked.isdecimal():
        return float(asked[:9])
    try:
        return max(0.0, (parsedate_to_datetime(asked) - parsedate_to_datetime(now)).total_seconds())
    except (TypeError, ValueError):
        return None


def _explain(error: BaseException, hint: str | None) -> tuple[str | None, str | None]:
    """Returns the problem and the remedy; (None, None) if the error does not come from the Hub."""
    # Uploads raise plain errors whose cause is one of the errors known here.
    for each in causes(error):
        problem, advice = _explain_one(each, hint)
        if problem is not None:
            return problem, advice
    return None, None


def _explain_one(error: BaseException, hint: str | None) -> tuple[str | None, str | None]:
    """Explains one error without its causes."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on", "unset HF_HUB_OFFLINE; what was once read online can be read offline"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision", "give a branch, a tag or a commit of the repository"
    # The client treats any 401 as a missing repository; a header of the Hub distinguishes the two.
    if isinstance(error, RepositoryNotFoundError) and (
        status != 401 or response is None or response.headers.get("X-Error-Code") == "RepoNotFound"
    ):
        return "there is no such repository, or the token has no access to it", f"check the name; {_LOG_IN}"
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no Hugging Face token", _LOG_IN
    if status == 401:
        return "the token was rejected, or there is none", _LOG_IN
    if isinstance(error, LocalEntryNotFoundError):
        return (
            "the Hub was not reached and the file is not in the cache",
            hint or "try again when the connection works",
        )
    if isinstance(error, EntryNotFoundError):
        return f"a file is missing there: {first_sentences(error)}", None
    if status == 403:
        return f"the token may not write there{_server_message(error)}", _LOG_IN
    if status == 429:
        return f"too many requests{_server_message(error)}", "wait some minutes, then run the same command again"
    if status in (409, 412):
        return "the repository changed in the meantime", "nothing was written; run the same command again"
    if status is not None:
        return f"the Hub returned status {status}{_server_message(error)}", hint
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk: {first_sentences(error)}", "free space, or set HF_HOME to another disk"
    if isinstance(error, CONNECTION_LOST | ConnectionError | TimeoutError):
        return first_sentences(error), hint
    return None, None


def _server_message(error: BaseException) -> str:
    """Returns the message that the Hub adds to its status."""
    message = " ".join((getattr(error, "server_message", None) or "").split())
    return f" ({message})" if message else ""
