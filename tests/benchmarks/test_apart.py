# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import os

import pytest

from benchmarks.apart import run_apart


def test_each_call_has_a_process_of_its_own():
    assert len({os.getpid(), run_apart(os.getpid), run_apart(os.getpid)}) == 3


def test_arguments_arrive_and_errors_come_back():
    assert run_apart(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        run_apart(divmod, 7, 0)
