# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The bars of a training, tqdm's: one with the name of each run and its losses, and none if nobody wants them."""

import pytest

from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_has_a_bar_with_its_losses_and_disable_tqdm_takes_it_away(tmp_path, capsys, quiet, run_recipe):
    recipe = tiny_recipe(tiny_scenes(tmp_path / "scenes"), tmp_path / "run", methods=["none"])
    recipe["training"] |= {"disable_tqdm": quiet, "max_steps": 2}
    run_recipe(recipe)
    printed = capsys.readouterr()
    bars = [bar for bar in printed.err.split("\r") if "it/s" in bar or "s/it" in bar]
    assert "it/s" not in printed.out
    if quiet:
        assert bars == []
    else:
        last = [bar for bar in bars if bar.startswith("none: 100%")][-1]
        assert "2/2" in last
        assert "vgp=" in last
        assert any(bar.startswith("none: evaluate test") for bar in printed.err.split("\r"))
