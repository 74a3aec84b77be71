# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The size of a project is counted file by file; links, which would count a folder twice, are left out."""

import json

from benchmarks.project_size import main

CODE = "def used():\n    raise ValueError('no')\n\n\ndef often():\n    return used()\n\n\nprint(often(), often())\n"


def test_a_small_project_is_counted(tmp_path, capsys):
    folder = tmp_path / "pkg" / "full"
    folder.mkdir(parents=True)
    for number in range(16):
        (folder / f"file_{number}.py").write_text("\n" * number)
    (tmp_path / "pkg" / "code.py").write_text(CODE)
    (tmp_path / "pkg" / "link").symlink_to(folder)
    assert main(["--root", str(tmp_path), "--package", "pkg", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert counted["files of the package"] == 17
    assert counted["lines of the package"] == sum(range(16)) + 9
    assert counted["folders with more than 15 files"] == "1 of 2"
    assert counted["raise statements"] == 1
    assert counted["functions whose name is read once"] == "50%"
    assert main(["--root", str(tmp_path), "--package", "absent"]) == 2
