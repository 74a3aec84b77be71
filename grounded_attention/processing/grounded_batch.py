# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of a processor: model inputs, and a report of labelled phrases that were changed or dropped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import BatchFeature

from ..utils.named_types import Fields


@dataclass(frozen=True, order=True)
class DroppedPhrase:
    """A labelled phrase that is not in the batch as it was given.

    `reason` is `"truncated"` (at least one of its tokens was cut) or `"no token"` (its span covers no token): the
    phrase is dropped, its rows of `phrase_mask` and `phrase_regions` are all False, its pairs are -1. Or it is
    `"regions cut"`: all of its regions are beyond `max_regions`, or in parts of the image that a vision-language model
    does not see; the phrase keeps its tokens and pairs and counts as ungrounded.
    """

    phrase: int
    words: str
    reason: str


def word_inputs(inputs: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the tokens and of the mask (B, N) of the sequence in which words are: of a model whose decoder
    answers apart from its prompt, those of the decoder.
    """
    if "decoder_input_ids" in inputs:
        return "decoder_input_ids", "decoder_attention_mask"
    return "input_ids", "attention_mask"


class GroundedBatch(BatchFeature):
    """Model inputs, a mapping of tensors, with a report of cut phrases.

    Args:
        data (`dict`, *optional*): The inputs.
        tensor_type (*optional*): `"pt"`, `"np"` or `None`, as for `BatchFeature`.
        dropped_phrases (`list[list[DroppedPhrase]]`, *optional*): The report for each example. It is an attribute and
            not a key of the mapping, so `model(**batch)` does not receive it. It survives `.to(device)`, copying, and
            pickling between processes.
        cut_tokens (`list[int]`, *optional*): How many tokens each text lost at its end; an attribute too.
    """

    def __init__(
        self,
        data: Fields | None = None,
        tensor_type: Any = None,
        dropped_phrases: list[list[DroppedPhrase]] | None = None,
        cut_tokens: list[int] | None = None,
    ) -> None:
        super().__init__(data, tensor_type=tensor_type)
        # A Trainer makes the batch anew from its entries.
        self.dropped_phrases = dropped_phrases or (data or {}).get("dropped_phrases") or []
        self.cut_tokens = cut_tokens or []

    def reported(self) -> Fields:
        """Returns the inputs, `dropped_phrases` with phrases, and `cut_tokens` if a text was cut, for collators."""
        dropped = {"dropped_phrases": self.dropped_phrases} if "phrase_mask" in self else {}
        return {**self, **dropped, **({"cut_tokens": self.cut_tokens} if any(self.cut_tokens) else {})}

    def __getstate__(self) -> Fields:
        return dict(self.__dict__)

    def __setstate__(self, state: Fields) -> None:
        self.__dict__.update(state)


def fit_text_length(processor: Any, config: Any) -> None:
    """Lets the processor of a region model cut texts where a model of this configuration ends, if it would not."""
    longest = getattr(config, "max_text_length", None) or config.max_position_embeddings
    processor.tokenizer.model_max_length = min(processor.tokenizer.model_max_length, longest)


def describe_cut(rows: Mapping[str, tuple[int, Sequence[str]]], shown: int = 3) -> str:
    """Counts and names rows -> the tokens and the phrases that their texts lost."""
    named = []
    for row, (count, phrases) in list(rows.items())[:shown]:
        named.append(f"{row} {count} tokens" + f" and the phrases {', '.join(map(repr, phrases))}" * bool(phrases))
    if len(rows) > shown:
        more = [f"and {len(rows) - shown} more"]
    else:
        more = []
    return f"{len(rows)} texts are too long and were cut at their end: {'; '.join([*named, *more])}"


def as_batch(
    text: str | Sequence[str], text_pair: str | Sequence[str | None] | None, inputs: Fields
) -> tuple[list[list[str]], list[int], Fields]:
    """Converts arguments to those of a batch of B examples."""
    if isinstance(text, str):
        images = inputs["images"]
        text, text_pair = [text], None if text_pair is None else [text_pair]  # type: ignore[list-item]
        inputs = {name: None if value is None else [value] for name, value in inputs.items()}
        # Other processors accept a list of one image as well as the image.
        inputs["images"] = list(images) if isinstance(images, (list, tuple)) else inputs["images"]
    _check_texts("text", text, (str,))
    _check_texts("text_pair", [] if text_pair is None else text_pair, (str, type(None)))
    if not len(text):
        raise ValueError("The batch is empty: `text` has no entry.")
    for name, value in {"text_pair": text_pair, **inputs}.items():
        if value is None:
            continue
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            raise ValueError(f"{name}: {value!r:.60}, expected a list with an entry for each of {len(text)} texts.")
        if len(value) != len(text):
            raise ValueError(
                f"{name} has {len(value)} entries, but `text` has {len(text)}; expected one for each example."
            )
    if text_pair is None:
        return [list(text)], [1] * len(text), inputs
    return [list(text), [pair or "" for pair in text_pair]], [1 + (pair is not None) for pair in text_pair], inputs


def _check_texts(name: str, texts: Any, types: tuple[type, ...]) -> None:
    wrong = isinstance(texts, str) or not hasattr(texts, "__len__")
    if wrong or not all(isinstance(item, types) for item in texts):
        raise ValueError(f"{name} must be a str, or a list of str as `text` is; found {texts!r:.80}.")
