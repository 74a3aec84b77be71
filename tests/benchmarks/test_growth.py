# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every step runs on a few scenes, and the exponent is that of the times."""

import pytest
from PIL import Image

from benchmarks import growth as benchmark


def test_every_step_is_measured():
    found = benchmark.measure(20)
    assert list(found) == ["scenes", "rows", "import", "audit"] and all(taken > 0 for taken in found.values())


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_times(power):
    sizes = [100, 300, 1000]
    assert benchmark.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_the_figure_is_drawn(tmp_path):
    seconds = {name: [1.0, 2.0 + number, 4.0] for number, name in enumerate(benchmark.STEPS)}
    benchmark.growth_figure(seconds, [25, 50, 100], tmp_path / "growth.png")
    assert Image.open(tmp_path / "growth.png").size[0] > 400


def test_one_size_has_no_exponent(capsys):
    assert benchmark.main(["--sizes", "100", "100"]) == 2
    assert "two or more different sizes" in capsys.readouterr().err
