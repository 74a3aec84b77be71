# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads `heads.json`: the heads of a model that ground phrases, how phrases ask them, and the model of doubt in it.

The model of doubt is the probability that a noun of an answer names nothing in the image: a logistic model of four
numbers. Shape letters: W words, E numbers of a word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers.utils import cached_file

from grounded_attention.heads import FILE
from grounded_attention.modeling.attention_calls import layer_names
from grounded_attention.supervision.supervise import call_layers, find_calls, unwrap_model
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns, Head
from grounded_attention.utils.schema import Section, validate

from .examples import PromptSettings
from .maps import BOX_RULE, check_rule


@dataclass(frozen=True)
class DoubtModel(Section):
    """A logistic model of the numbers of a word: the entry `doubt` of `heads.json`.

    Args:
        bias (`float`): its constant.
        share, contribution, log_probability (`float`): weights of the numbers of `word_evidence`, without scaling.
        nouns (`list[str]`): the words that it was fitted on, in lower case; of others it says nothing.
    """

    bias: float
    share: float
    contribution: float
    log_probability: float
    nouns: list[str]

    def probabilities(self, evidence: npt.ArrayLike) -> np.ndarray:
        """(W,) float64: that words (W, E) name nothing in the image."""
        weights = [self.share, self.contribution, self.log_probability]
        return 1 / (1 + np.exp(-(np.asarray(evidence) @ weights + self.bias)))


def check_kinds(absent: Sequence[bool]) -> None:
    """A ValueError unless some nouns name nothing, and others something."""
    if len({*absent}) < 2:
        raise ValueError(
            f"answers have {len(absent)} nouns of --data, and not both nouns that name something in their image and "
            "nouns that name nothing there: give more rows"
        )


def fit_doubt(evidence: npt.ArrayLike, absent: Sequence[bool], nouns: Iterable[str]) -> DoubtModel:
    """Fits the model by L-BFGS, with a penalty of half the squared weights of the standardised numbers.

    Args:
        evidence (array): (W, E), finite.
        absent (`Sequence[bool]`): of each of the W words whether the word names nothing in the image.
        nouns (`Iterable[str]`): what the words can be.

    Raises:
        ValueError: if all words are of one kind, or a number is not finite.
    """
    check_kinds(absent)
    numbers = torch.from_numpy(np.array(evidence, dtype=np.float64))
    labels = torch.tensor(absent, dtype=torch.float64)
    if not numbers.isfinite().all():
        raise ValueError("a number of a noun is NaN or infinite; nothing can be fitted to it")
    scale, mean = torch.std_mean(numbers, 0, correction=0)
    scale = scale.clamp(min=1e-12)
    standard = (numbers - mean) / scale
    parameters = torch.zeros(numbers.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        logits = standard @ parameters[1:] + parameters[0]
        total = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        total = total + parameters[1:].square().sum() / 2
        total.backward()
        return total

    search.step(loss)
    fitted = parameters.detach()
    weights = fitted[1:] / scale
    bias = float(fitted[0] - weights @ mean)
    return DoubtModel(bias, *weights.tolist(), sorted(nouns))  # type: ignore[call-arg]


FORMAT = 2
MAKE = "make it with `grounded-attention heads`"


@dataclass(frozen=True)
class ChosenHeads:
    """Heads that ground, and how phrases ask them.

    Args:
        heads (`tuple[tuple[int, int], ...]`): (layer, head) pairs, counted from 0.
        settings (`PromptSettings`): how phrases became prompts when the heads were chosen.
        centre_size (`tuple[float, float]`): mean width and height of gold boxes, for the centre-box baseline.
        layers (`int`, *optional*): layers of the model that the heads belong to.
        heads_per_layer (`int`, *optional*): heads of each of its layers.
        source (`str`, *optional*, defaults to `"heads"`): the file, for errors.
        box_rule (`str`, *optional*, defaults to `"otsu"`): how their map becomes a box, see `attended_cells`.
        doubt (`DoubtModel`, *optional*): which nouns of an answer to doubt, if that was fitted for these heads.
    """

    heads: tuple[Head, ...]
    settings: PromptSettings = field(default_factory=PromptSettings)
    centre_size: tuple[float, float] = (0.5, 0.5)
    layers: int | None = None
    heads_per_layer: int | None = None
    source: str = "heads"
    box_rule: str = BOX_RULE
    doubt: DoubtModel | None = None

    @classmethod
    def from_dict(cls, content: Columns, source: str) -> "ChosenHeads":
        """Reads the content of `heads.json`.

        Raises:
            ValueError: if something is missing or has another form; the message has the source.
        """
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r}, expected {FORMAT}")
            pairs = tuple((_index(one["layer"]), _index(one["head"])) for one in content["chosen"])
            if not pairs or len(set(pairs)) < len(pairs):
                raise ValueError(f"{len(pairs)} chosen heads, {len(set(pairs))} of them different; expected each once")
            about = content["about"]
            settings = PromptSettings(about["word"], about.get("instruction"))
            width, height = map(float, content.get("centre_size", (0.5, 0.5)))
            rule = check_rule(content.get("box_rule", BOX_RULE))
            doubt = validate(DoubtModel, content["doubt"], "doubt.") if "doubt" in content else None
            return cls(pairs, settings, (width, height), len(content["layers"]), content["heads"], source, rule, doubt)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no entry {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{source}: not a ranking of heads ({reason}); {MAKE}") from error

    @classmethod
    def from_file(cls, path: str | Path) -> "ChosenHeads":
        """Reads `heads.json`, or the file of this name in a folder.

        Raises:
            ValueError: if the file does not exist or is no ranking of heads.
        """
        path = Path(path)
        if path.is_dir():
            path = path / FILE
        if not path.is_file():
            raise ValueError(f"{path}: no such file; {MAKE}")
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def of_model(cls, model: Any, revision: str | None = None) -> "ChosenHeads":
        """Reads `heads.json` in the folder or in the Hub repository of a model.

        Args:
            model (`PreTrainedModel` or `str`): the model, or its folder or name.
            revision (`str`, *optional*): revision of the repository; by default the one of the model's configuration.

        Raises:
            ValueError: if there is no such file, or it is no ranking of heads.
        """
        name = model if isinstance(model, str) else model.name_or_path
        if not isinstance(model, str):
            revision = revision or getattr(model.config, "_commit_hash", None)
        file = find_file(name, revision) if name else None
        if file is None:
            owner = name or "the model"
            raise ValueError(f"{owner} has no {FILE}, which names its heads that ground; {MAKE}, or give heads")
        return cls.from_dict(read_json(file), f"{name}/{FILE}")

    @classmethod
    def named(cls, heads: "ChosenHeads | str | Path | Iterable[tuple[int, int]]") -> "ChosenHeads":
        """Heads as a user gives them: pairs of layer and head, a file, a folder, or a model on the Hub that has one.

        Raises:
            ValueError: if there is no such file, or it is no ranking of heads, or the heads are no pairs.
        """
        if isinstance(heads, ChosenHeads):
            return heads
        if not isinstance(heads, str | Path):
            return cls(read_pairs(heads), source="given")
        if isinstance(heads, Path) or Path(heads).exists() or heads.endswith(".json"):
            return cls.from_file(heads)
        name, _, revision = heads.partition("@")
        return cls.of_model(name, revision or None)

    def check(self, model: Any) -> None:
        """Checks that a model, or the model of a configuration, has these layers and heads.

        Raises:
            ValueError: if the heads were chosen for a model of another size.
        """
        found_calls = find_calls(model)
        widths = dict(zip(layer_names(found_calls), call_layers(found_calls), strict=True))
        calls = {widths[call.name]: call.num_heads for call in found_calls}
        config = getattr(unwrap_model(model), "config", model)
        counted = len(calls)
        if not hasattr(config, "grounding_calls"):
            counted = getattr(config.get_text_config(), "num_hidden_layers", counted)
        size = (counted, max(calls.values()))
        layers = self.layers if self.layers is not None else size[0]
        width = self.heads_per_layer if self.heads_per_layer is not None else size[1]
        beyond = [pair for pair in self.heads if pair[1] >= calls.get(pair[0], 0)]
        if (layers, width) != size or beyond:
            if (layers, width) != size:
                wanted = f"{layers} layers of {width} heads"
            else:
                wanted = f"layer and head {beyond[0]}"
            if len(calls) == size[0]:
                only = ""
            else:
                only = f", only in the layers {', '.join(map(str, calls))}"
            raise ValueError(
                f"{self.source}: heads of a model with {wanted}, but {type(model).__name__} has {size[0]} layers of "
                f"{size[1]} heads{only}; {MAKE}"
            )


def find_file(model: str, revision: str | None = None) -> str | None:
    """Finds `heads.json` in the folder or in the Hub repository of a model; `None` if it has no such file."""
    return cached_file(
        model,
        FILE,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def has_adapter(model: Any) -> bool:
    """Whether there is an adapter of PEFT in the layers of a model, with or without the wrapper of PEFT."""
    return bool(getattr(unwrap_model(model), "peft_config", None))


def name_heads(heads: Sequence[Head]) -> str:
    """The name of heads in tables, for example `L14 H24 + L14 H13`; long lists are counted."""
    if len(heads) > 4:
        return f"{len(heads)} heads"
    return " + ".join(f"L{layer} H{head}" for layer, head in heads)


def read_pairs(heads: Iterable[Head]) -> tuple[Head, ...]:
    """Pairs of layer and head as a user gives them, each once."""
    try:
        pairs = tuple(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
    except (TypeError, ValueError):
        raise ValueError(f"heads={heads!r:.100}: expected pairs of layer and head, such as [(14, 3)]") from None
    if not pairs:
        raise ValueError("heads is empty; give pairs of layer and head")
    return pairs


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"index {value!r}, expected a whole number from 0")
    return value
