# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The schema of sections: the path of each wrong key, and the nearest name."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le

from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.utils.schema import Count, Of, Pair, Section, Share, section, validate


@dataclass
class Inner(Section):
    share: Share = 0.5


@dataclass
class Outer(Section):
    name: Annotated[str, Of(("first", "second"))] = "first"
    inner: Inner = field(default_factory=Inner)
    places: str | list[str] | None = None
    choice: Annotated[Any, Of(Literal["all"] | section({"best": Count}))] = "all"
    named: dict[str, Inner] = field(default_factory=dict)
    weight: Annotated[float, Ge(0), Le(2)] = 1.0
    factors: dict[Literal["first", "second"], float] = field(default_factory=dict)
    pairs: Sequence[Pair] | None = None

    def __post_init__(self):
        if self.places == "nowhere":
            raise ValueError("places is nowhere")


def test_a_section_is_made_with_its_defaults():
    made = validate(Outer, {"inner": {"share": 1}, "choice": {"best": 2}, "named": {"a": {}}})
    assert made == Outer(inner=Inner(1.0), choice={"best": 2}, named={"a": Inner()})
    assert type(made.inner.share) is float
    assert validate(Outer, {}) == Outer()


@pytest.mark.parametrize(
    "content, words",
    [
        (3, "the recipe: "),
        ({"nam": 1}, "'nam'; did you mean 'name'?"),
        ({"name": "frist"}, "name: "),
        ({"inner": 3}, "inner: "),
        ({"inner": {"shar": 1}}, "'inner.shar'; did you mean 'inner.share'?"),
        ({"inner": {"share": 2}}, "inner.share: "),
        ({"inner": {"share": math.nan}}, "inner.share: "),
        ({"inner": {"share": True}}, "inner.share: "),
        ({"places": 3}, "places: "),
        ({"places": ["a", 3]}, "places.1: "),
        ({"places": "nowhere"}, "places is nowhere"),
        ({"choice": {"bst": 1}}, "'choice.bst'; did you mean 'choice.best'?"),
        ({"choice": {"best": 0}}, "choice.best: "),
        ({"choice": 3}, "choice: "),
        ({"weight": -1}, "weight: "),
        ({"factors": {"secnd": 1}}, "factors.secnd: "),
        ({"pairs": [[1]]}, "pairs.0: "),
        ({3: 4}, "3: "),
        ({"named": {3: {}}}, "named.3: "),
        ({"named": {"a": {"x": 1}}}, "'named.a.x'; known keys: share"),
        ({"nam": 1, "weight": -1}, "weight: "),
    ],
)
def test_a_refusal_names_every_wrong_key(content, words):
    with pytest.raises(ValueError) as caught:
        validate(Outer, content)
    assert words in str(caught.value)


def test_the_place_of_a_section():
    with pytest.raises(LookupError, match=r"^file: start\.inner\.share: "):
        validate(Outer, {"inner": {"share": 2}}, "start.", "file", type("Refused", (ValueError, LookupError), {}))


@pytest.mark.parametrize(
    "task, options, key",
    [
        ("pretraining", {"co_masking": "all"}, "options.co_masking"),
        ("pretraining", {"region_targets": "both"}, "options.region_targets"),
        ("pretraining", {"texts_per_image": -1}, "options.texts_per_image"),
        ("pretraining", {"words": False, "regions": False, "relationship": False}, "options: nothing to predict"),
        ("pretraining", {"regions_kept": 0.6, "regions_exchanged": 0.6}, "options: regions_kept"),
        ("pretraining", {"answers": {"least": 1}}, "options.answers.least"),
        ("caption_match_pretraining", {"exchanged": 1.5}, "options.exchanged"),
        ("vqa", {"answers": {"fewest": 0}}, "options.answers.fewest"),
        ("vqa", {"answers": []}, "options.answers"),
        ("gqa", {"answers": ["a", 1]}, "options.answers.1"),
        ("gqa", {"answers": None}, "options.answers"),
        ("phrase_grounding", {"protocol": "pointing"}, "options.protocol"),
        ("referring_expressions", {"convention": "giou"}, "options.convention"),
        ("vcr", {"max_text_length": 1}, "options.max_text_length"),
        ("grounded_generation", {"region_words": math.inf}, "options.region_words"),
        ("grounded_generation", {"locate_prompt": "Where?"}, "options: locate_prompt"),
        ("vgp", {"max_steps": 3}, "'options.max_steps'"),
    ],
)
def test_wrong_options_of_a_task(task, options, key):
    with pytest.raises(ValueError) as caught:
        validate(TASKS[task].Options, options, "options")
    assert key in str(caught.value)


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("directly", {}, "'method=directly'; did you mean 'method=direct'?"),
        ("direct", {"layer": [1]}, "unknown key 'layer'; did you mean 'layers'?"),
        ("none", {"layers": [1]}, "unknown key 'layers'"),
        ("direct", {"directions": ["image_to_text"]}, "directions.0"),
        ("direct", {"directions": []}, "directions"),
        ("direct", {"layers": []}, "layers"),
        ("direct", {"heads": [-1]}, "heads.0"),
        ("semi_direct", {"box_weight": math.inf}, "box_weight: "),
        ("grounding_alignment", {"level": "word"}, "level: "),
        ("grounding_alignment", {"weight": -1}, "weight"),
        ("direct+grounding_alignment", {"grounding_alignment": {"size": 0}}, "grounding_alignment.size"),
    ],
)
def test_wrong_options_of_a_method(name, options, words):
    with pytest.raises(ValueError) as caught:
        get_method(name, **options)
    assert words in str(caught.value)
