# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs scripts in processes of their own, as `python -c` does, without importing large libraries each time.

A waiting process has imported the libraries. Each script runs in a fork of it, with its own environment, folder,
output and exit status. The project is never imported in advance: a script imports it as in a new process. Libraries
that read Hugging Face's variables at import are imported in advance only for scripts with the tests' variables.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

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

# Reads one request a line. A fork waits for the script, which runs in a fork of that one: it leaves the loop, and its
# process ends as Python ends it.
SERVER = """
import gc, importlib, json, os, signal, sys, types
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # an optional library
gc.collect()
gc.freeze()  # a fork does not copy what its garbage collector would otherwise look at
print("ready", flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    request = json.loads(line)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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


def _end(server: subprocess.Popen) -> None:
    """Ends a waiting process: it ends when its input does."""
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


@cache
def _server(libraries: tuple[str, ...], _variables: frozenset) -> tuple[subprocess.Popen, list[str]]:
    """A waiting process, which ends with this one, and the folders of installed packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without_project())}
    command = [sys.executable, "-c", "import sys; print(*sys.path[1:], sep=chr(10))"]
    installed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/")
    command = [sys.executable, "-c", SERVER, *libraries]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, cwd="/", **pipes)
    atexit.register(_end, process)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process, installed.stdout.splitlines()


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
    ):
        if _chosen(env, FIXED) != _chosen(os.environ, FIXED):
            raise ValueError(f"variables of {', '.join(FIXED)} must be those of the tests; use subprocess")
        variables = _chosen(env, PREFIXES)
        if variables == _chosen(os.environ, PREFIXES):
            server, sys_path = _server((*LIBRARIES, *HUGGING_FACE), frozenset(variables.items()))
        else:
            server, sys_path = _server(LIBRARIES, frozenset())
        self._kept = tempfile.TemporaryDirectory()  # removed with this object
        self._folder = Path(self._kept.name)
        for name in ("stdout", "stderr"):
            (self._folder / name).touch()
        os.mkfifo(self._folder / "status")
        files = {name: str(self._folder / name) for name in ("stdout", "stderr", "status")}
        if terminal is not None:
            files |= {"stdout": terminal, "stderr": terminal}
        request = {"code": code, "arguments": list(map(str, arguments)), "cwd": str(cwd), "environment": dict(env)}
        assert server.stdin is not None
        server.stdin.write(json.dumps({**request, **files, "sys_path": sys_path}) + "\n")
        server.stdin.flush()
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
