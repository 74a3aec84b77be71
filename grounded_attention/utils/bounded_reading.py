# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One bound for what the files of strangers may cost, whatever library reads them: that of the system."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

MEMORY, SECONDS = 2**30, 10.0  # above what the process has, and of computing
PER_BYTE, PER_SECOND = 8, 4 * 2**20  # more memory and time for the bytes of a file
_LOCK, _INSIDE = threading.Lock(), [0]


class FileError(ValueError):
    """A file cannot be read; the message names it, the place and the problem."""


class _TooLong(BaseException):
    """The time is over; no reader catches it."""


@contextmanager
def bounded(source: object, size: int = 0, memory: int = 0) -> Iterator[None]:
    """Reads something of `size` bytes; what needs far more memory or time than that is worth is a `FileError`. So many
    bytes of `memory` are granted besides.

    Memory is bounded on Linux, for all threads; time in the main thread, between two instructions of Python. Inside of
    another bound, that one holds.
    """
    with _LOCK:
        _INSIDE[0] += 1
        first = _INSIDE[0] == 1
    try:
        with ExitStack() as restored:
            if first:
                _limit_memory(MEMORY + PER_BYTE * size + memory, restored)
                _limit_time(SECONDS + size / PER_SECOND, restored)
            yield
    except (MemoryError, RecursionError, _TooLong) as error:
        kinds = {RecursionError: "is nested too deeply", _TooLong: "takes too long"}
        problem = kinds.get(type(error), "needs too much memory")
        raise FileError(f"{source}: it {problem} to read: it is damaged, or made to stop its readers") from None
    finally:
        with _LOCK:
            _INSIDE[0] -= 1


def _limit_memory(more: int, restored: ExitStack) -> None:
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):  # no Linux
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [each for each in (used + more, soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    restored.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))


def _limit_time(seconds: float, restored: ExitStack) -> None:
    def stop(*_: object) -> NoReturn:
        raise _TooLong

    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGVTALRM"):
        restored.callback(signal.signal, signal.SIGVTALRM, signal.signal(signal.SIGVTALRM, stop))
        restored.callback(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
