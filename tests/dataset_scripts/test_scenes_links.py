# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scenes are never drawn through a symbolic link."""

import pytest

from grounded_attention.dataset_scripts.scenes.records import write_once


def test_a_link_in_the_folder_of_scenes_is_refused(tmp_path):
    root = tmp_path / "scenes"
    precious = tmp_path / "precious"
    write_once(root, {"seed": 1}, False, dict)
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    (root / "vqa").symlink_to(precious)
    with pytest.raises(ValueError, match=f"{root / 'vqa'}: a symbolic link to {precious}"):
        write_once(root, {"seed": 2}, True, dict)
    assert (precious / "thesis.tex").read_text() == "years of work"
