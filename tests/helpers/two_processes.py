# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts two processes of one run, as torchrun and accelerate do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def launch(script: str, *arguments: object) -> list[subprocess.Popen]:
    """Two processes that run a script with the variables that torchrun and accelerate give to theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
