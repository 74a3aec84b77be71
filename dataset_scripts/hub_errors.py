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

from .errors import DataError

# The HTTP library's own error, for dropped connections; which library that is changed between releases of the Hub's.
_TRANSPORT_ERROR: type[BaseException] = next(
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


def _explained(error: Exception, hint: str | None) -> tuple[str | None, str | None]:
    """The problem in words and what to do about it; (None, None) for what is no error of the Hub."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set", "unset it; reading works offline once it was read online"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision", "name a branch, a tag or a commit of the repository"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or the token may not see it", f"check the name; {_LOG_IN}"
    if isinstance(error, LocalTokenNotFoundError) or status == 401:
        return "the Hub does not know the token, or there is none", _LOG_IN
    if isinstance(error, LocalEntryNotFoundError):
        return "the Hub was not reached and the file is not in the cache", hint or "try again when it is reached"
    if isinstance(error, EntryNotFoundError):
        return f"a file is missing there: {_first_line(error)}", None
    if status == 403:
        return "the token may not write there", _LOG_IN
    if status in (409, 412):
        return "the repository changed meanwhile", "nothing was written; run the same command again"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the disk: {_first_line(error)}", "free space, or set HF_HOME to another disk"
    if isinstance(error, _TRANSPORT_ERROR | ConnectionError | TimeoutError):
        return _first_line(error), hint
    # Uploads raise plain errors, caused by one of those above.
    cause = error.__cause__ or error.__context__
    return _explained(cause, hint) if isinstance(cause, Exception) else (None, None)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
