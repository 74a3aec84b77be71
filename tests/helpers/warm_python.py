# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs scripts in processes of their own, as `python -c` does, without importing large libraries each time.

A waiting process has imported the libraries (`warm_server.py`). Each script runs in a fork of it, with its own
environment, folder, output and exit status; libraries that read Hugging Face's variables at import read those of the
script again. The project is imported in advance only where a script's first path is this clone.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

LIBRARIES = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "PIL.Image",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "requests",
    "yaml",
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "safetensors.torch",
    "datasets",
    "accelerate",
    "evaluate",
    "peft",
    "transformers",
    "transformers.trainer",
    "transformers.models.auto",
    "transformers.models.bert.modeling_bert",
    "transformers.pipelines",
)
ROOT = Path(__file__).resolve().parents[2]
# Variables that libraries read at import: those that they read again in a fork, and those that must be the tests'.
AGAIN = ("HF_", "HUGGING", "TRANSFORMERS_")
FIXED = ("OMP_", "MKL_", "KMP_", "TORCH", "LD_", "MPL", "PYTHONHASHSEED")


def _chosen(environment, prefixes):
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def without_project():
    """The folders of PYTHONPATH except the project; one may have another version of transformers that is tested."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and Path(path).resolve() != ROOT]


class _Server(NamedTuple):
    """A waiting process: where its requests go, the variables of its imports, the folders of installed packages."""

    requests: TextIO
    variables: dict[str, str]
    sys_path: list[str]


@cache
def _server():
    """The waiting process; it ends when its requests end, at the end of this one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without_project())}
    command = [sys.executable, "-c", "import sys; print(*sys.path[1:], sep=chr(10))"]
    installed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/")
    command = [sys.executable, str(Path(__file__).with_name("warm_server.py")), *LIBRARIES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, cwd="/", text=True, bufsize=1, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    atexit.register(process.wait)
    atexit.register(process.stdin.close)  # the last one first
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"the waiting process ended with status {process.wait()}")
    return _Server(process.stdin, _chosen(environment, AGAIN), installed.stdout.splitlines())


class WarmProcess:
    """A running `python -c code arguments`, with the methods of `subprocess.Popen` that the tests use.

    `terminal` is the name of a terminal that gets the output and the errors.
    """

    def __init__(
        self,
        code,
        arguments=(),
        *,
        cwd,
        env,
        terminal=None,
    ):
        if _chosen(env, FIXED) != _chosen(os.environ, FIXED):
            raise ValueError(f"variables of {', '.join(FIXED)} must be those of the tests; use subprocess")
        server = _server()
        self._kept = tempfile.TemporaryDirectory()  # removed with this object
        self._folder = Path(self._kept.name)
        for name in ("stdout", "stderr"):
            (self._folder / name).touch()
        os.mkfifo(self._folder / "status")
        files = {name: str(self._folder / name) for name in ("stdout", "stderr", "status")}
        if terminal is not None:
            files |= {"stdout": terminal, "stderr": terminal}
        request = {"code": code, "arguments": list(map(str, arguments)), "cwd": str(cwd), "environment": dict(env)}
        request["clone"] = str(ROOT) if env.get("PYTHONPATH", "").split(os.pathsep)[0] == str(ROOT) else None
        request |= {"variables_differ": _chosen(env, AGAIN) != server.variables, "sys_path": server.sys_path}
        server.requests.write(json.dumps({**request, **files}) + "\n")
        self._status = open(self._folder / "status")
        self.pid = int(self._status.readline())
        self.returncode = None

    def poll(self, timeout=0):
        """The exit status, or `None` if the process still runs after `timeout` seconds."""
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def kill(self):
        """Kills the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout=None):
        """Waits for the end; returns what the process wrote to its output and its errors."""
        if self.poll(timeout) is None:
            self.kill()
            raise TimeoutError(f"no end within {timeout} seconds; errors: {self._read('stderr')[-2000:]}")
        return self._read("stdout"), self._read("stderr")

    def _read(self, name):
        return (self._folder / name).read_text(encoding="utf-8")


def run_python(code, arguments=(), *, cwd, env, timeout=300):
    """Runs `python -c code arguments` in a folder and an environment; returns what `subprocess.run` returns."""
    process = WarmProcess(code, arguments, cwd=cwd, env=env)
    stdout, stderr = process.communicate(timeout)
    return subprocess.CompletedProcess(["python", "-c", code], process.returncode or 0, stdout, stderr)
