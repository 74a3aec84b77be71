# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Errors between this machine and the Hub, in the words of huggingface_hub, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import HfHubHTTPError

from grounded_attention.dataset_scripts.files.errors import DataError
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
