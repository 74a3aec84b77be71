# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One bound for what the files of strangers may cost, whatever library reads them: that of the system."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

MEMORY, SECONDS = 2**30, 10.0  # above what the process has, and of computing
PER_BYTE, PER_SECOND = 8, 4 * 2**20  # more memory and time for the bytes of a file
STEP = 0.05  # seconds of computing between two looks at the clock and the memory
_LOCK = threading.Lock()
_GRANTED: dict[int, int] = {}  # the memory of each thread that is inside of a bound
_BEFORE: list[tuple[int, int]] = []  # the limits before the first of them
_ALLOWED: list[int] = []  # the memory of the process, if it is known
_WATCHED: dict[int, tuple[float, int]] = {}  # the end of the time of each thread that gets no signals, and its clock
_WATCHER: list[threading.Thread] = []  # at most one


class FileError(ValueError):
    """A file cannot be read; the message names it, the place and the problem."""


class _TooLong(BaseException):
    """The time is over; no reader catches it."""


class _TooLarge(BaseException):
    """The memory is used up, but for what is needed to end: without any, Python may try again for ever."""


@contextmanager
def bounded(source: object, size: int = 0, memory: int = 0) -> Iterator[None]:
    """Reads something of `size` bytes; what needs far more memory or time than that is worth is a `FileError`. So many
    bytes of `memory` are granted besides.

    Memory is bounded on Linux, for all threads that read together; time for each, between two instructions of Python.
    Inside of another bound, that one holds, with this `memory` added.
    """
    thread = threading.get_ident()
    try:
        with ExitStack() as restored:
            if thread not in _GRANTED:
                with _LOCK:
                    _GRANTED[thread] = MEMORY + PER_BYTE * size + memory
                    _limit_memory(sum(_GRANTED.values()))
                restored.callback(_leave, thread)
                _limit_time(SECONDS + size / PER_SECOND, restored)
            elif memory and _ALLOWED:
                with _LOCK:
                    _GRANTED[thread] += memory
                    _limit_memory(memory, _ALLOWED[0])
            yield
    except (MemoryError, RecursionError, _TooLong, _TooLarge) as error:
        kinds = {RecursionError: "is nested too deeply", _TooLong: "takes too long"}
        problem = kinds.get(type(error), "needs too much memory")
        raise FileError(f"{source}: it {problem} to read: it is damaged, or made to stop its readers") from None


def _leave(thread: int) -> None:
    with _LOCK:
        del _GRANTED[thread]
        if not _GRANTED and _BEFORE:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, _BEFORE.pop())


def _used() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(more: int, above: int = 0) -> None:
    """Allows so many bytes above what the process has, within what it was allowed before the first bound."""
    try:
        import resource

        _ALLOWED[:] = [(above or _used()) + more]
    except (ImportError, OSError):  # no Linux
        return
    if not _BEFORE:
        _BEFORE.append(resource.getrlimit(resource.RLIMIT_DATA))
    reserve = max(MEMORY, more) // 16  # what is needed to end, see `_TooLarge`
    limits = [each for each in (_ALLOWED[0] + reserve, *_BEFORE[0]) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), _BEFORE[0][1]))


def _limit_time(seconds: float, restored: ExitStack) -> None:
    """Bounds the computing of this thread, in the system too, and looks at the memory."""
    end = time.thread_time() + seconds
    if threading.current_thread() is not threading.main_thread():
        return _watch(end, restored)

    def stop(_: int, frame: FrameType | None) -> None:
        problem = _find_excess(end - time.thread_time())  # the timer counts all threads
        if problem and _is_reading(frame):
            raise problem
        signal.setitimer(signal.ITIMER_PROF, STEP)

    if hasattr(signal, "SIGPROF"):
        restored.callback(signal.signal, signal.SIGPROF, signal.signal(signal.SIGPROF, stop))
        restored.callback(signal.setitimer, signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_PROF, STEP)


def _find_excess(left: float) -> type[BaseException] | None:
    if left <= 0:
        return _TooLong
    return _TooLarge if _ALLOWED and _used() > _ALLOWED[0] else None


def _is_reading(frame: FrameType | None) -> bool:
    """Whether a thread is at work inside of a bound: at its two ends nobody would catch an exception."""
    return frame is not None and frame.f_code.co_filename not in (__file__, contextmanager.__code__.co_filename)


def _watch(end: float, restored: ExitStack) -> None:
    """Bounds a thread that gets no signals: another one looks at all of these."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return
    thread = threading.get_ident()

    def leave() -> None:
        with _LOCK:
            _WATCHED.pop(thread, None)
        for _ in range(2):  # what was raised arrives here at the latest; to take it back would slow down all threads
            pass

    restored.callback(leave)
    with _LOCK:
        _WATCHED[thread] = end, time.pthread_getcpuclockid(thread)
        if not _WATCHER:
            _WATCHER.append(threading.Thread(target=_watch_all, daemon=True))
            _WATCHER[0].start()


def _watch_all() -> None:
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    while True:
        time.sleep(STEP)
        with _LOCK:
            if not _WATCHED:
                _WATCHER.clear()
                return
            for thread, (end, clock) in list(_WATCHED.items()):
                problem = _find_excess(end - time.clock_gettime(clock))
                if problem and _is_reading(sys._current_frames().get(thread)):
                    del _WATCHED[thread]
                    raise_in(ctypes.c_ulong(thread), ctypes.py_object(problem))


def _forget_threads() -> None:
    """In a child, which has none of them."""
    _WATCHED.clear()
    _WATCHER.clear()
    _LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget_threads)


def try_apart(source: object, work: Callable[[], object]) -> None:
    """Does a piece of work of a moment in a child first (Linux): a library that is not written in Python ends its
    process where it finds no memory, and does not stop in time. What `work` raises does not matter.
    """
    if sys.platform != "linux":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child does not touch what other threads have locked
        try:
            child = os.fork()
        except OSError:  # no memory for a copy of a large process, or no process more is allowed
            return
    if child == 0:
        _work_bounded(work)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended not in (0, -signal.SIGALRM):
        raise FileError(f"{source}: a short text takes too much memory or time: it is damaged, or hostile")


def _work_bounded(work: Callable[[], object]) -> NoReturn:
    """The child of `try_apart`: its exit status is 0, 1 after a bound, or it ends by a signal."""
    status = 1
    try:
        import resource

        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # of waiting, for a lock that was held
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS / 4) + 1,) * 2)  # the parent does it twice
        _limit_memory(MEMORY)
        work()
        status = 0
    except MemoryError:
        pass
    except Exception:
        status = 0
    finally:
        os._exit(status)
