# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The counts of an audit, and the heads and layers that are reported from them."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from grounded_attention.heads.choice import (
    SAME_SPLIT,
    BestHead,
    BestLayer,
    Choice,
    choose,
    report_heads,
    report_layers,
)
from grounded_attention.heads.head_counts import HeadCounts
from grounded_attention.heads.statistics import DRAWS, LEVEL
from grounded_attention.supervision import DIRECTIONS

RELATIONS = "relations"


@dataclass(frozen=True, eq=False)
class AuditCounts:
    """The counts of an audit.

    Args:
        layers (`tuple[str, ...]`): names of the L layers.
        heads (`int`): H, the number of heads per layer.
        entities (`dict[str, dict[str, HeadCounts]]`): direction -> group -> counts; the groups are "all" and the
            phrase types.
        relations (`dict[str, HeadCounts]`, *optional*): dependency relation -> counts from words to regions.
        about (`dict[str, Any]`, *optional*): settings and facts: model, data, split, word, iou_threshold or
            coverage_threshold, baseline, numbers of judged, boxless and cut phrases.
        chosen (`Choice`, *optional*): heads and layers to report; None chooses the best of this result, as the paper
            does.
    """

    layers: tuple[str, ...]
    heads: int
    entities: dict[str, dict[str, HeadCounts]]
    relations: dict[str, HeadCounts] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    chosen: Choice | None = None

    @property
    def counted(self) -> dict[str, dict[str, HeadCounts]]:
        """All counts: the directions, and the relations if there are any."""
        return {**self.entities, **({RELATIONS: self.relations} if self.relations else {})}

    def choose_on(self, other: "AuditCounts | str") -> Self:
        """A copy that reports the heads and layers that are best on another split.

        Args:
            other (`AuditCounts | str`): the audit of the split to choose on, or "same_split" to choose on this one, as
                the paper does.

        Raises:
            ValueError: if the other audit has other layers or heads, or the name is not "same_split".
        """
        if isinstance(other, str):
            if other != SAME_SPLIT:
                raise ValueError(f"choose_on({other!r}): expected the audit of another split, or {SAME_SPLIT!r}")
            return replace(self, chosen=choose(self.counted, SAME_SPLIT))
        if (other.layers, other.heads) != (self.layers, self.heads):
            raise ValueError(
                f"the audit to choose on has {len(other.layers)} layers of {other.heads} heads, but the reported one "
                f"has {len(self.layers)} of {self.heads}: give audits of the same model"
            )
        return replace(self, chosen=choose(other.counted, str(other.about.get("split", "another split"))))

    @property
    def region(self) -> str:
        """What a region is: "region", or "image token" for a vision-language model."""
        return "image token" if "coverage_threshold" in self.about else "region"

    def rule(self, kind: str) -> str:
        """What the baseline rule always answers, in one of the kinds of `counted`."""
        return "first word" if kind == DIRECTIONS[1] else str(self.about.get("baseline", "most confident region"))

    @property
    def choice(self) -> Choice:
        """The heads and layers to report."""
        return self.chosen or choose(self.counted, SAME_SPLIT)

    def best_heads(self, level: float = LEVEL, draws: int = DRAWS) -> list[BestHead]:
        """The chosen head of each group, with its accuracy and interval in this result."""
        return report_heads(self.counted, self.choice, level, draws)

    def best_layers(self, level: float = LEVEL, draws: int = DRAWS) -> list[BestLayer]:
        """The chosen layer of each group, with the mean accuracy of its heads in this result."""
        return report_layers(self.counted, self.choice, level, draws)

    def name(self, layer: int, head: int) -> str:
        """The name of a head as in the paper, layer-head, both counted from 0 (or the name of the layer)."""
        return f"{self.layers[layer]}-{head}"
