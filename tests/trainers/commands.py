"""Starts a trainer's own command, and reads what it logged."""

import os
import re
import subprocess
import sys

LOGGED = re.compile(r"'loss_text_to_region': '?([\d.e+-]+)'?")


def run(command, folder, **variables):
    """What a command printed; an assertion error where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=environment, text=True, capture_output=True
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    return text


def logged(text):
    """The attention losses, in the order of the steps."""
    return [float(value) for value in LOGGED.findall(text)]
