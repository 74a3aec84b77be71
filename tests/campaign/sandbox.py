# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a piece of work in a forked process: with a time limit, its output caught, and a fault at one file operation.

Forking after the imports costs no second import of PyTorch. `faults.c` is in `LD_PRELOAD` of this process, see
`restart_with_faults`.
"""

import ctypes
import faulthandler
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

KINDS = {"before": 1, "half": 2, "after": 3, "full": 4, "broken": 5, "one": 6}
KILLS = ("before", "half", "after")
SOURCE = Path(__file__).with_name("faults.c")
LIBRARY = "FAULTS_LIBRARY"
_STATE = struct.Struct("4l")
_PARENT_DIES = 1  # PR_SET_PDEATHSIG: a campaign that is stopped leaves no process behind


@dataclass(frozen=True)
class Fault:
    """A fault at the `at`-th file operation: a kill before, half-way or after it, a full disk, or an I/O error."""

    kind: str
    at: int


@dataclass(frozen=True)
class Limits:
    """Limits of a process: memory beyond what it begins with, size of a file (bytes), and seconds of computing."""

    memory: int
    file: int
    cpu: int

    def set(self):
        """Sets the limits of this process."""
        pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack
        resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + self.memory,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file,) * 2)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + self.cpu
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status (negative: a signal; `None`: it hung), its output, and its file operations."""

    status: int | None
    out: str
    err: str
    operations: list[str]
    fired: bool

    @property
    def killed(self):
        return self.status == -signal.SIGKILL

    def refused(self):
        """Whether it ended with exactly one line of ours."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return self.status == 2 and len(errors) == 1 and len(errors[0]) < 5000 and "Traceback" not in self.err


def restart_with_faults(folder, module, arguments):
    """Compiles `faults.c` and starts this program again with it, unless that has happened."""
    if os.environ.get(LIBRARY):
        return
    library = folder / "faults.so"
    compiler = os.environ.get("CC", "cc")
    try:
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    except FileNotFoundError:
        raise SystemExit(f"the campaign needs a C compiler, found no {compiler}: install gcc, or set CC") from None
    environment = {**os.environ, "LD_PRELOAD": str(library), LIBRARY: str(library), "OMP_NUM_THREADS": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


def run_apart(
    work,
    folder,
    fault=None,
    seconds=180,
    limits=None,
):
    """
    Runs `work` in a forked process whose working directory is `folder`; without a fault, operations are only counted.

    Output and state of the fault are in `<folder>.log/`. A process that takes more seconds hangs.
    """
    notes = folder.with_name(folder.name + ".log")
    notes.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    kind, at = (KINDS[fault.kind], fault.at) if fault else (0, 0)
    (notes / "state").write_bytes(_STATE.pack(0, at, kind, 0))
    (notes / "operations").write_text("")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        _child(work, folder, notes, limits)
    status = _wait(process, seconds)
    _, _, _, fired = _STATE.unpack((notes / "state").read_bytes())
    out, err = ((notes / name).read_text(errors="replace") for name in ("out", "err"))
    return Ended(status, out, err, (notes / "operations").read_text(errors="replace").splitlines(), bool(fired))


def _child(work, folder, notes, limits):
    """The forked process; never returns."""
    status = 70
    try:
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL)
        os.setsid()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(notes / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        # not those of a test
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", closefd=False)
        faulthandler.enable(sys.stderr)  # a crash tells its place in `err`, not in the log of the tests
        os.chdir(folder)
        if limits is not None:
            limits.set()
        places = {"STATE": str(notes / "state"), "ROOT": str(folder), "LOG": str(notes / "operations")}
        os.environ.update({f"FAULTS_{name}": place for name, place in places.items()})  # for programs it starts
        if os.environ.get(LIBRARY):
            armed = ctypes.CDLL(os.environ[LIBRARY]).faults_arm(*(os.fsencode(place) for place in places.values()))
            assert armed == 0, "the faults cannot be armed"
        status = work() or 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(process, seconds):
    """The exit status, negative for a signal; `None` after the time limit, when its group is killed."""
    end = time.monotonic() + seconds
    pause = 0.002
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None
