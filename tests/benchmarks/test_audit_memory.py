# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import mmap
import re

from benchmarks import audit_memory


def test_allocated_memory_and_mapped_files_are_told_apart(tmp_path):
    (tmp_path / "file").write_bytes(bytes(32 << 20))
    before = audit_memory.resident()
    kept = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # new pages; a heap may have free ones
    kept.write(b"1" * len(kept))
    allocated = audit_memory.resident()
    with open(tmp_path / "file", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not any(mapped[:: mmap.PAGESIZE])
        read = audit_memory.resident()
    assert 30 < allocated[0] - before[0] < 36 and abs(allocated[1] - before[1]) < 4
    assert 30 < read[1] - allocated[1] < 36


def test_one_line_for_each_audit(capsys):
    assert audit_memory.main(["--images", "40", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [images for images, *_ in found] == [4, 8, 16, 32] and all(min(sizes) > 1 for sizes in found)
    assert audit_memory.main(["--images", "40"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and re.fullmatch(r"an image more: .* kB allocated, .* kB of files; its row .* \d+ kB", last)


def test_too_few_images_are_refused(capsys):
    assert audit_memory.main(["--images", "4"]) == 2
    assert "give at least 32" in capsys.readouterr().err
