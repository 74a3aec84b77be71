# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import itertools

import pytest

from grounded_attention.utils.plain_text import short_names


@pytest.mark.parametrize(
    "paths, parts, names",
    [
        (["runs/a/direct"], 1, ["direct"]),
        (["runs/a/direct"], 2, ["a/direct"]),
        (["direct"], 2, ["direct"]),
        (["runs/a/direct", "runs/b/direct", "runs/b/none"], 1, ["a/direct", "b/direct", "b/none"]),
        (["a/x/direct", "b/x/direct"], 2, ["a/x/direct", "b/x/direct"]),
        (["direct", "runs/direct"], 1, ["direct", "runs/direct"]),
        (["/direct", "direct"], 1, ["/direct", "direct"]),
        (["runs/direct", "runs/direct/"], 1, ["direct", "direct"]),
    ],
)
def test_names_are_the_shortest_that_differ(paths, parts, names):
    assert short_names(paths, parts) == names


def test_no_two_names_are_equal_and_each_is_the_end_of_its_path():
    paths = ["/".join(each) for length in (1, 2, 3) for each in itertools.product("ab", repeat=length)]
    for parts in (1, 2, 3):
        names = short_names(paths, parts)
        assert len(set(names)) == len(paths)
        assert all(path == name or path.endswith(f"/{name}") for path, name in zip(paths, names, strict=True))
