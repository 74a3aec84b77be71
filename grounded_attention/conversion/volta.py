# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the converters of VOLTA's checkpoints share; VOLTA is a public code with controlled versions of five models.

All of its models have one encoder of numbered sub-layers; the JSON configuration of a checkpoint says what each one
does. The map of keys follows from it, so a converter belongs to one configuration.

An attention sub-layer attends in up to four directions (`tt`, `tv`, `vt`, `vv`: queries and keys, t text, v regions).
A feed-forward sub-layer belongs to text, regions or both. A stream without a part in a sub-layer is unchanged by it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch

from grounded_attention.utils.named_types import Columns

from .fields import CheckpointError, ConfigFields, OverrideError
from .file import VOLTA
from .keys import Conversion, Keys, Pairs, Rename, Weights, plain_key, rename_prefix
from .original_family import CONSTANTS, UNKNOWN, OriginalFamily

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


ENCODER = "bert.encoder.layer."
# Modules of a self-attention and of a feed-forward sub-layer -> those of a layer here, which has BERT's names.
SELF_ATTENTION = {
    **{f"attention_self.{{}}{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
    **{f"attention_output.{{}}{part}": f"attention.output.{part}" for part in ("dense", "LayerNorm")},
}
FEED_FORWARD = {
    "intermediate.{}dense": "intermediate.dense",
    "output.{}dense": "output.dense",
    "output.{}LayerNorm": "output.LayerNorm",
}


class VoltaFamily(OriginalFamily):
    """What the converters of VOLTA's models share; before the family's own converter among the base classes."""

    title = VOLTA
    expected = "a checkpoint of VOLTA"
    heads = {}
    ignored = {
        r"^clfs_dict\.": "head of a task of VOLTA, of another form than here; its encoder is converted",
        **CONSTANTS,
    }
    family: ClassVar[str]
    fusion_methods: ClassVar[tuple[str, ...]] = ("mul", "sum", "text")

    def __init__(self, config: VoltaConfig):
        self.config = config
        if config["fusion_method"] not in self.fusion_methods:
            raise OverrideError(
                f"fusion_method is {config['fusion_method']!r}, expected {' or '.join(self.fusion_methods)}."
            )
        self.steps = {stream: config.units(stream, self.family, *self.list_layers()) for stream in STREAMS}
        self.pairs = dict(self.map_layers())

    @abstractmethod
    def list_layers(self) -> Layers:
        """The kinds of the steps of each layer that the family has."""

    @abstractmethod
    def map_layers(self) -> Pairs:
        """Pairs for the modules of the sub-layers, and those that depend on the configuration."""

    @abstractmethod
    def give_fields(self) -> Columns:
        """Our configuration fields that the file of --config gives."""

    def make_rename(self, class_name: str, keys: Keys) -> Rename:
        return partial(rename_prefix, (*self.pairs.items(), *self.trunk))

    def explain(self, key: str, class_name: str) -> str | None:
        """Also the reason for the second names of shared weights."""
        if self._first_name(key) is not None:
            return "second name of a tensor that text and regions share"
        return super().explain(key, class_name)

    def _first_name(self, key: str) -> str | None:
        """The other name of a tensor that both streams share, for its name with `v_`; `None` for other keys."""
        first = key.replace(".v_", ".", 1)
        number = key.removeprefix(ENCODER).partition(".")[0]
        is_shared = number.isdigit() and int(number) in self.config.lists["shared_sublayers"]
        is_second = key.startswith(ENCODER) and first != key and rename_prefix(self.pairs.items(), key) is None
        if is_shared and is_second and rename_prefix(self.pairs.items(), first) is not None:
            return first
        return None

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Also checks unknown keys, and both names of shared tensors."""
        unknown = [
            key
            for key, reason in conversion.left_out.items()
            if reason == UNKNOWN and plain_key(key).startswith(("bert.", "cls."))
        ]
        if unknown:
            raise CheckpointError(
                f"the file has {unknown[0]}, which --config does not have ({len(unknown)} such keys in all; its "
                f"sub-layers are 0 to {self.config.count - 1}); give the configuration of this checkpoint."
            )
        for key, value in weights.items():
            first = self._first_name(key)
            if first is not None and first in weights and not torch.equal(weights[first], value):
                raise CheckpointError(
                    f"{conversion.keys[key]} differs from {conversion.keys[first]}; expected equal tensors, because "
                    "--config says that text and regions share them."
                )
        super().finish(conversion, weights)

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """The fields of the configuration, checked against the tensors; `overrides` are those of --config."""
        return super().read_fields(conversion, {**self.give_fields(), **self.config.others})

    def map_layer(self, steps: Sequence[Step], side: str, ours: str) -> Pairs:
        """Pairs for self-attention and feed-forward; `side` is "" for text and "v_" for regions."""
        for step, parts in zip(steps, (SELF_ATTENTION, FEED_FORWARD), strict=True):
            yield from self.map_parts(step, side, parts, ours)

    def map_parts(self, step: Step, side: str, parts: Mapping[str, str], ours: str = "") -> Pairs:
        """Pairs for a sub-layer: `parts` are modules of it, with a place for `side`, and ours. Checks its sizes."""
        if step.kind != "cross":  # ViLBERT's co-attention has sizes of its own
            ends = step.kind.endswith("feed-forward")
            for name in ("intermediate_size",) if ends else ("hidden_size", "num_attention_heads"):
                for prefix in ("", "v_") if step.kind.startswith("shared") else (side,):
                    self.config.check_size(step.number, prefix + name)
        for module, our_module in parts.items():
            yield f"{ENCODER}{step.number}.{module.format(side)}.", f"{ours}{our_module}."

    def check_equal_streams(self) -> None:
        """Checks that both streams have the same sizes."""
        names = "hidden_size num_attention_heads intermediate_size hidden_dropout_prob attention_probs_dropout_prob"
        for name in names.split():
            if self.config[name] != self.config[f"v_{name}"]:
                raise OverrideError(
                    f"v_{name} is {self.config[f'v_{name}']} and {name} is {self.config[name]}, expected equal sizes: "
                    f"{self.family} has one for both streams."
                )

    def text_fields(self) -> Columns:
        """The fields of all families."""
        names = "hidden_size num_attention_heads intermediate_size hidden_act hidden_dropout_prob pooler_size "
        names += "attention_probs_dropout_prob fusion_method"
        return {name: self.config[name] for name in names.split()}
