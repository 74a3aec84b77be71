# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small sources in the forms in which people have grounding data are read as they are meant."""

import pytest

from grounded_attention import grounded_rows
from tests.dataset_scripts.expected_rows import compare, open_expected
from tests.helpers.project_files import ROOT

PLACES = [place for top in ROOT.parents if (place := top / "shared" / "rows").is_dir()][:1]
FOLDERS = sorted(path for place in PLACES for path in place.iterdir() if path.is_dir())


@pytest.mark.skipif(not FOLDERS, reason="the folder ../shared/rows is not there")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shared_source(folder, tmp_path):
    source, expected = open_expected(folder, tmp_path)
    for call in expected["calls"]:
        if call["gives"] == "ask":
            with pytest.raises(ValueError) as error:
                list(grounded_rows(source, **call["arguments"]))
            for name in ("boxes", *call["names"]):
                assert name in str(error.value)
            continue
        rows = grounded_rows(source, **call["arguments"])
        compare(rows, expected)
        assert list(map(len, rows)) == list(map(len, rows)), "the second pass differs"
        if expected["convention"] in ("xywh pixels", "xyxy pixels"):
            assert expected["convention"] in str(rows.report)
        for name in expected["missing"]:
            assert name in " ".join(rows.report.missing)
