# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The schedule of a VOLTA checkpoint: its JSON configuration numbers the sub-layers, and lists what each one does.

An attention sub-layer attends in up to four directions (`tt`, `tv`, `vt`, `vv`: queries and keys, t text, v regions).
A feed-forward sub-layer belongs to text, regions or both. A stream without a part in a sub-layer is unchanged by it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from grounded_attention.utils.named_types import Columns

from .fields import OverrideError

# The mark of such a configuration.
MARK = "tt_attn_sublayers"
STREAMS = {"t": "text", "v": "regions"}
# Configuration field -> the value of the public code for a missing field.
DEFAULTS: Columns = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "pooler_size": 768,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "num_locs": 5,
    "add_global_imgfeat": None,
    "image_embeddings": "vilbert",
    "v_hidden_size": 768,
    "v_num_attention_heads": 12,
    "v_intermediate_size": 3072,
    "v_hidden_act": "gelu",
    "v_hidden_dropout_prob": 0.1,
    "v_attention_probs_dropout_prob": 0.1,
    "fusion_method": "mul",
    "visual_target_weights": {"0": 1},
    "image_head_ln": True,
    "layer_norm_eps": 1e-12,
    "bert_model": "bert-base-uncased",
    "model": "bert",
}
_ATTENTION = tuple(f"{pair}_attn_sublayers" for pair in ("tt", "tv", "vt", "vv"))
_FEED_FORWARD = ("t_ff_sublayers", "v_ff_sublayers")
# `single_ln_sublayers` change no number: a LayerNorm treats every state alone.
_OTHER_LISTS = ("shared_sublayers", "single_ln_sublayers")
_SIZES = tuple(
    f"sublayer2{side}{size}"
    for side in ("", "v_")
    for size in ("attn_hidden_size", "num_attention_heads", "intermediate_size")
)
# Fields that are read from the tensors, or that only training reads.
_UNREAD = frozenset(
    "vocab_size max_position_embeddings type_vocab_size v_feature_size v_pooler_size initializer_range "
    "v_initializer_range do_lower_case v_coordinate_embeddings_dim qa_task_weight "
    "qa_num_answers fixed_layers fixed_t_layer fixed_v_layer objective clf_hidden_size visualization "
    "bert_layer2attn_sublayer bert_layer2ff_sublayer pad_token_id".split()
)


Layers = tuple[tuple[str, ...], ...]  # the kinds of the steps of each layer that a family has


class Step(NamedTuple):
    """What a sub-layer does to one stream."""

    number: int
    kind: str


class VoltaConfig:
    """A VOLTA configuration."""

    def __init__(self, fields: Columns):
        self.fields = {**DEFAULTS, **fields}
        self.lists = {
            name: _read_list(name, fields.get(name, ())) for name in (*_ATTENTION, *_FEED_FORWARD, *_OTHER_LISTS)
        }
        self.sizes = {name: dict(fields.get(name) or {}) for name in _SIZES}
        known = {*DEFAULTS, *self.lists, *self.sizes, *_UNREAD}
        self.others = {name: value for name, value in fields.items() if name not in known}
        attention = frozenset().union(*(self.lists[name] for name in _ATTENTION))
        others = frozenset().union(*(self.lists[name] for name in _FEED_FORWARD))
        self.count = max(attention | others, default=-1) + 1
        absent = sorted(set(range(max(self.count, 1))) - attention - others)
        if absent:
            raise OverrideError(f"no list of sub-layers has number {absent[0]}.")
        if attention & others:
            self.refuse(min(attention & others), "is in lists of attention and of feed-forward sub-layers")
        self._check_fields()

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def targets(self) -> list[str]:
        """What pre-training predicts of regions: numbers of the public code."""
        return [str(number) for number, weight in self["visual_target_weights"].items() if weight > 0]

    def _check_fields(self) -> None:
        """Raises an error for fields with which no family here would compute the same."""
        if "roberta" in str(self["bert_model"]) or self["model"] != "bert":
            raise OverrideError("bert_model or model is a RoBERTa, expected the words and positions of BERT.")
        for name, expected in (
            ("layer_norm_eps", 1e-12),
            ("image_head_ln", True),
            ("v_hidden_act", self["hidden_act"]),
        ):
            if self[name] != expected:
                raise OverrideError(
                    f"{name} is {self[name]!r}, expected {expected!r}; other values are not supported."
                )
        if self["fusion_method"] != "text" and self["add_global_imgfeat"] != "first":
            raise OverrideError(
                f"add_global_imgfeat is {self['add_global_imgfeat']!r}, expected 'first': with fusion_method "
                f"{self['fusion_method']!r} the first region is the whole image."
            )

    def size(self, name: str, number: int) -> Any:
        """The field `name` at a sub-layer."""
        part = "attn_hidden_size" if name.endswith("hidden_size") else name.removeprefix("v_")
        sizes = self.sizes[f"sublayer2{'v_' if name.startswith('v_') else ''}{part}"]
        return sizes.get(str(number), self[name])

    def steps(self, stream: str) -> Iterator[Step]:
        """What the sub-layers do to a stream, `"t"` or `"v"`, in order."""
        other = "v" if stream == "t" else "t"
        for number in range(self.count):
            own = number in self.lists[f"{stream}{stream}_attn_sublayers"]
            across = number in self.lists[f"{stream}{other}_attn_sublayers"]
            prefix = ""
            if number in self.lists["shared_sublayers"] and self._has_both(number):
                prefix = "shared "
            if across and number not in self.lists[f"{other}{stream}_attn_sublayers"]:
                self.refuse(number, f"lets {STREAMS[stream]} attend to {STREAMS[other]}, but not the reverse")
            if own and across:
                yield Step(number, f"{prefix}joint")
            elif own:
                yield Step(number, f"{prefix}self")
            elif across:
                yield Step(number, f"{prefix}cross")
            if number in self.lists[f"{stream}_ff_sublayers"]:
                yield Step(number, f"{prefix}feed-forward")

    def _has_both(self, number: int) -> bool:
        streams = {name[0] for name in (*_ATTENTION, *_FEED_FORWARD) if number in self.lists[name]}
        return len(streams) == 2

    def units(self, stream: str, title: str, *layers: tuple[str, ...]) -> list[list[Step]]:
        """The steps of a stream, grouped into layers."""
        steps = list(self.steps(stream))
        units = []
        while steps:
            kinds = tuple(step.kind for step in steps)
            layer = next((layer for layer in layers if kinds[: len(layer)] == layer), None)
            if layer is None:
                fit = max(_count_equal(kinds, layer) for layer in layers)
                expected = " or ".join(sorted({layer[fit] for layer in layers if layer[:fit] == kinds[:fit]}))
                position = "is the last one for"
                if fit < len(kinds):
                    position = f"is {kinds[fit]} of"
                self.refuse(steps[min(fit, len(kinds) - 1)].number, f"{position} {STREAMS[stream]}", expected, title)
            units.append(steps[: len(layer)])
            del steps[: len(layer)]
        return units

    def check_size(self, number: int, name: str) -> None:
        """Checks that a sub-layer has the size of the others."""
        if self.size(name, number) != self[name]:
            self.refuse(number, f"has {name} {self.size(name, number)}, not {self[name]} as the others")

    def refuse(self, number: int, problem: str, expected: str = "", title: str = "") -> NoReturn:
        """Raises the error for a sub-layer."""
        expected = f"; {title} has {expected} next" if expected else ""
        raise OverrideError(f"sub-layer {number} {problem}{expected}: this schedule cannot be converted.")


def _count_equal(kinds: Sequence[str], wanted: Sequence[str]) -> int:
    """The number of items, from the first, that are equal."""
    count = 0
    for kind, expected in zip(kinds, wanted, strict=False):
        if kind != expected:
            break
        count += 1
    return count


def _read_list(name: str, value: Any) -> frozenset[int]:
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(number, int) and number >= 0 for number in value):
        raise OverrideError(f"{name} is {value!r}, expected a list of numbers of sub-layers.")
    return frozenset(value)
