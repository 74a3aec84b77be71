# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models, trainings, an audit and the pipeline on a GPU; without one, on a device that only pretends to be one. Run by
`make conformance`.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from transformers.testing_utils import torch_device

from tests.conformance.device_steps import cases

ROOT = Path(__file__).resolve().parents[2]


class DeviceTest(unittest.TestCase):
    """Another device computes what the CPU computes."""

    def test_all_cases(self):
        device = "pretend" if torch_device == "cpu" else torch_device
        # A process of its own: PyTorch does not forget a device.
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.conformance.device_steps", folder, device]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = done.stdout.splitlines()
        self.assertEqual([name for name, _ in cases() if name not in lines], [])
