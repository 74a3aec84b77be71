# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Vision-language models of transformers, whose regions are image tokens; they have no classes in this project."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grounded_attention.utils.named_types import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel


# What an image processor may make of a picture; those of transformers stay below a tenth of it by default.
LONGEST_SIDE = 2**15
MOST_PIXELS = 2**28
# Packages that processors of these models need, in the extra `vlm`; some only for videos, but they load all parts.
PROCESSOR_PACKAGES = ("torchvision", "num2words")


def load_processor(name: Any, **settings: Any) -> Any:
    """Loads the processor of a model; a ValueError says what to install if it needs a package that is not there."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(name, **settings)
    except (ImportError, ValueError) as error:
        named = [each for each in PROCESSOR_PACKAGES if each in str(error).lower()]
        missing = [each for each in named if importlib.util.find_spec(each) is None]
        if not missing:
            raise
        needs = f"its processor needs {' and '.join(missing)}, not installed here"
        raise ValueError(f'{needs}: pip install "grounded-attention[vlm]"') from error
    if getattr(processor, "image_processor", None) is None:  # transformers gives a tokenizer where it finds no more
        raise ValueError("it has no processor for images and text; save the model's own processor beside it")
    _check_sizes(processor.image_processor)
    return processor


def _check_sizes(image_processor: Any) -> None:
    """Raises a ValueError for settings that make pictures of more than any model reads."""
    for name in ("size", "crop_size"):
        sizes = getattr(image_processor, name, None) or {}
        for side in ("height", "width", "shortest_edge", "longest_edge"):
            number = sizes.get(side) or 0
            # Some processors have a number of pixels as the edges.
            largest = MOST_PIXELS if side.endswith("edge") else LONGEST_SIDE
            if number > largest:
                raise ValueError(f"its image processor has {name}.{side} {number}, expected at most {largest}")


def add_token_rows(model: Any, tokenizer: Any) -> None:
    """Gives a model a row for each token of a tokenizer that has more: added tokens, such as an anchor."""
    if model.get_input_embeddings().weight.shape[0] < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)


def load_pointer_head(model: Any, unexpected: "Iterable[str]", name: str, revision: str | None = None) -> None:
    """Gives a model the head of the method `actor`, if its checkpoint has one (`unexpected` keys of its loading)."""
    from safetensors import safe_open
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

    from grounded_attention.supervision.actor import HEAD, load_head
    from grounded_attention.utils.bounded_files import read_json

    keys = [key for key in unexpected if key.startswith(f"{HEAD}.")]
    if not keys:
        return
    place: Fields = {"revision": revision or "main"}
    index = cached_file(name, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **place)
    if index is None:
        files = dict.fromkeys(keys, SAFE_WEIGHTS_NAME)
    else:
        files = read_json(index)["weight_map"]
    weights = {}
    for key in keys:
        with safe_open(cached_file(name, files[key], **place), "pt") as file:
            weights[key] = file.get_tensor(key)
    load_head(model, weights)


@dataclass(frozen=True)
class VisionLanguageFamily:
    """All models whose image tokens are known, see `processing/image_tokens.py`. A recipe names them together."""

    name: str = "vlm"
    title: str = "vision-language model"
    head: str = "generation"

    @property
    def reads(self) -> tuple[str, ...]:
        """The model types."""
        from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES

        return tuple(IMAGE_TOKEN_FAMILIES)

    def config_class(self, model_type: str) -> Any:
        """The configuration class of a model type."""
        from transformers import CONFIG_MAPPING

        return CONFIG_MAPPING[model_type]

    def model_class(self, model_type: str) -> "type[PreTrainedModel]":
        """The class of a model type that generates text from images and text."""
        from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

        model_class: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[self.config_class(model_type)]
        if isinstance(model_class, tuple):
            return model_class[0]
        return model_class


VLM = VisionLanguageFamily()
