# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The result of a processor: model inputs, and a report of labelled phrases that were changed or dropped."""

from dataclasses import dataclass
from typing import Any

from transformers import BatchFeature


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


class GroundedBatch(BatchFeature):
    """Model inputs, a mapping of tensors, with a report of cut phrases.

    Args:
        data (`dict`, *optional*): The inputs.
        tensor_type (*optional*): `"pt"`, `"np"` or `None`, as for `BatchFeature`.
        dropped_phrases (`list[list[DroppedPhrase]]`, *optional*): The report for each example. It is an attribute and
            not a key of the mapping, so `model(**batch)` does not receive it. It survives `.to(device)`, copying, and
            pickling between processes.
    """

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        tensor_type: Any = None,
        dropped_phrases: list[list[DroppedPhrase]] | None = None,
    ) -> None:
        super().__init__(data, tensor_type=tensor_type)
        # A Trainer makes the batch anew from its entries.
        self.dropped_phrases = dropped_phrases or (data or {}).get("dropped_phrases") or []

    def reported(self) -> dict[str, Any]:
        """Returns the inputs and, with phrases, the key `dropped_phrases`: so batches of collators keep the report."""
        return {**self, **({"dropped_phrases": self.dropped_phrases} if "phrase_mask" in self else {})}

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
