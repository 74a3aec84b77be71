# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts two processes of one run, as torchrun and accelerate do."""

import os
import socket
from pathlib import Path

from tests.helpers.warm_python import WarmProcess

ROOT = Path(__file__).resolve().parents[2]


def launch(script, *arguments):
    """Two processes that run a script with the variables that torchrun and accelerate give to theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    return [WarmProcess(script, arguments, cwd=Path.cwd(), env={**os.environ, **shared, **rank}) for rank in ranks]


def run_two(module, *arguments, timeout=600):
    """Runs `python -m module arguments` in two processes until both have ended; returns what they wrote to stderr."""
    running = launch(f"import runpy; runpy.run_module({module!r}, run_name='__main__')", *arguments)
    errors = [process.communicate(timeout)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(text[-4000:] for text in errors)
    return "".join(errors)
