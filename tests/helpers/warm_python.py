# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs scripts in processes of their own, as `python -c` does, without importing large libraries each time.

A waiting process has imported the libraries. Each script runs in a fork of it, with its own environment, folder,
output and exit status. The project is never imported in advance: a script imports it as in a new process. Libraries
that read Hugging Face's variables at import are imported in advance only for scripts with the tests' variables, by a
second waiting process, which is a script of the first.
"""

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

# Their import does not depend on the environment of a script.
LIBRARIES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "PIL.Image",
    "matplotlib.backends.backend_agg",
    "requests",
    "yaml",
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "safetensors.torch",
)
# They read HF_... at import.
HUGGING_FACE = (
    "datasets",
    "accelerate",
    "evaluate",
    "transformers",
    "transformers.trainer",
    "transformers.models.auto",
    "transformers.models.bert.modeling_bert",
    "transformers.pipelines",
)
ROOT = Path(__file__).resolve().parents[2]
PREFIXES = ("HF_", "HUGGING", "TRANSFORMERS_")
# The other variables that a library reads at import must be those of the tests.
FIXED = ("OMP_", "MKL_", "KMP_", "TORCH", "LD_", "MPL", "PYTHONHASHSEED")

# Reads one request a line, from a pipe that it opens when it has imported the libraries. A fork waits for the script,
# which runs in a fork of that one: it leaves the loop, and its process ends as Python ends it.
SERVER = """
import gc, importlib, json, os, signal, sys, types
requests, *libraries = sys.argv[1:]
for name in libraries:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # an optional library
gc.collect()
gc.freeze()  # a fork does not copy what its garbage collector would otherwise look at
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
requests = open(requests)
while True:
    line = requests.readline()
    if not line:
        os._exit(0)
    request = json.loads(line)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    script = os.fork()
    if script == 0:
        break
    with open(request["status"], "w", buffering=1) as status:
        print(script, file=status)
        print(os.waitstatus_to_exitcode(os.waitpid(script, 0)[1]), file=status)
    os._exit(0)
os.chdir(request["cwd"])
for descriptor, name, flags in (
    (0, os.devnull, os.O_RDONLY), (1, request["stdout"], os.O_WRONLY), (2, request["stderr"], os.O_WRONLY)
):
    opened = os.open(name, flags)
    os.dup2(opened, descriptor)
    os.close(opened)
os.environ.clear()
os.environ.update(request["environment"])
paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
sys.path[:] = ["", *paths, *request["sys_path"]]
sys.argv[:] = ["-c", *request["arguments"]]
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__builtins__ = __builtins__
exec(compile(request["code"], "<string>", "exec"), main.__dict__)
"""


def _chosen(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def without_project() -> list[str]:
    """The folders of PYTHONPATH except the project; one may have another version of transformers that is tested."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and Path(path).resolve() != ROOT]


class _Server(NamedTuple):
    """A waiting process: the pipe of its requests, at whose end it ends, and the folders of installed packages."""

    requests: TextIO
    sys_path: list[str]


@cache
def _first_server() -> _Server:
    """A waiting process that has imported `LIBRARIES`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without_project())}
    command = [sys.executable, "-c", "import sys; print(*sys.path[1:], sep=chr(10))"]
    installed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/")
    pipe = _make_pipe()
    process = subprocess.Popen([sys.executable, "-c", SERVER, pipe, *LIBRARIES], env=environment, cwd="/")
    server = _Server(_open_pipe(pipe, process), installed.stdout.splitlines())
    atexit.register(process.wait)
    atexit.register(server.requests.close)  # the last one first
    return server


@cache
def _second_server(_variables: frozenset) -> _Server:
    """A waiting process that has also imported `HUGGING_FACE`, with the variables of the tests."""
    first, pipe = _first_server(), _make_pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without_project())}
    process = WarmProcess(SERVER, [pipe, *HUGGING_FACE], cwd=Path("/"), env=environment, server=first)
    server = _Server(_open_pipe(pipe, process), first.sys_path)
    atexit.register(process.poll, None)
    atexit.register(server.requests.close)
    return server


def _make_pipe() -> str:
    folder = tempfile.mkdtemp(prefix="warm_python_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.mkfifo(pipe := os.path.join(folder, "requests"))
    return pipe


def _open_pipe(path: str, reader: "subprocess.Popen | WarmProcess") -> TextIO:
    """Opens a pipe for writing as soon as a process has opened it for reading."""
    while reader.poll() is None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
        else:
            os.set_blocking(descriptor, True)
            return open(descriptor, "w", buffering=1)
    raise RuntimeError(f"the waiting process ended with status {reader.poll()}")


class WarmProcess:
    """A running `python -c code arguments`, with the methods of `subprocess.Popen` that the tests use.

    `terminal` is the name of a terminal that gets the output and the errors.
    """

    def __init__(
        self,
        code: str,
        arguments: Sequence[object] = (),
        *,
        cwd: Path,
        env: Mapping[str, str],
        terminal: str | None = None,
        server: _Server | None = None,
    ):
        if _chosen(env, FIXED) != _chosen(os.environ, FIXED):
            raise ValueError(f"variables of {', '.join(FIXED)} must be those of the tests; use subprocess")
        variables = _chosen(env, PREFIXES)
        if server is None:
            usual = variables == _chosen(os.environ, PREFIXES)
            server = _second_server(frozenset(variables.items())) if usual else _first_server()
        self._kept = tempfile.TemporaryDirectory()  # removed with this object
        self._folder = Path(self._kept.name)
        for name in ("stdout", "stderr"):
            (self._folder / name).touch()
        os.mkfifo(self._folder / "status")
        files = {name: str(self._folder / name) for name in ("stdout", "stderr", "status")}
        if terminal is not None:
            files |= {"stdout": terminal, "stderr": terminal}
        request = {"code": code, "arguments": list(map(str, arguments)), "cwd": str(cwd), "environment": dict(env)}
        server.requests.write(json.dumps({**request, **files, "sys_path": server.sys_path}) + "\n")
        self._status = open(self._folder / "status")
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def poll(self, timeout: float | None = 0) -> int | None:
        """The exit status, or `None` if the process still runs after `timeout` seconds."""
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def kill(self) -> None:
        """Kills the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns what the process wrote to its output and its errors."""
        if self.poll(timeout) is None:
            self.kill()
            raise TimeoutError(f"no end within {timeout} seconds; errors: {self._read('stderr')[-2000:]}")
        return self._read("stdout"), self._read("stderr")

    def _read(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8")


def run_python(
    code: str, arguments: Sequence[object] = (), *, cwd: Path, env: Mapping[str, str], timeout: int = 300
) -> subprocess.CompletedProcess:
    """Runs `python -c code arguments` in a folder and an environment; returns what `subprocess.run` returns."""
    process = WarmProcess(code, arguments, cwd=cwd, env=env)
    stdout, stderr = process.communicate(timeout)
    return subprocess.CompletedProcess(["python", "-c", code], process.returncode or 0, stdout, stderr)
