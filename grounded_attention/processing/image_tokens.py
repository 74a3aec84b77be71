# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Image tokens of vision-language models: their positions in the sequence, and the part of the image that each shows.

Shapes: B batch, N image tokens of an example, n image tokens of one picture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .image_layouts import (
    ImageLayout,
    ImageSettings,
    layout_gemma3,
    layout_idefics3,
    layout_internvl,
    layout_llava,
    layout_llava_next,
    layout_llava_onevision,
    layout_paligemma,
    layout_qwen_vl,
)
from .number_arrays import to_array


@dataclass(frozen=True)
class ImageTokens:
    """The image tokens of one example, in the order of the sequence.

    Args:
        positions (`np.ndarray`): (N,) int64, positions in the sequence.
        boxes (`np.ndarray`): (N, 4) float32, the part of the original image that each token shows, as x1, y1, x2, y2
            divided by width and height. NaN for tokens without a place: newlines, class tokens, padding.
        has_box (`np.ndarray`): (N,) bool, False where the box is NaN.
        images (`np.ndarray`): (N,) int64, the image of each token, counted within the example.
        views (`np.ndarray`): (N,) int64, the picture of the image that the token belongs to (a tile, a crop, the
            whole image), in the order of the sequence, counted within the image.
    """

    positions: np.ndarray
    boxes: np.ndarray
    has_box: np.ndarray
    images: np.ndarray
    views: np.ndarray


# Functions with names, since processors that hold a family are sent to other processes.


def _image_token(processor: Any) -> str:
    return processor.image_token


def _tokenizer_image_token(processor: Any) -> str:
    return processor.tokenizer.image_token


def _boi_token(processor: Any) -> str:
    return processor.tokenizer.boi_token


def _bos_token(processor: Any) -> str:
    return processor.tokenizer.bos_token


def _nothing(processor: Any) -> str:
    return ""


@dataclass(frozen=True)
class ImageTokenFamily:
    """How a family of models lays out its image tokens.

    Args:
        processor (`str`): Name of the class of the processor in transformers.
        layout (`Callable`): Makes the layout of one image from its [`ImageSettings`].
        settings (`dict`, *optional*): Settings of the image processor that the processor replaces by default.
        image_token (`Callable`, *optional*): Returns the token that stands for a patch, from the processor.
        placeholder (`Callable`, *optional*): Returns the token of a whole image in a prompt, from the processor.
        after_images (`Callable`, *optional*): Returns what the processor inserts after the last image of a prompt.
        prompt_end (`str`, *optional*, defaults to `""`): What the processor adds to the end of a prompt.
        adds_special_tokens (`bool`, *optional*, defaults to `True`): Whether the tokenizer adds its special tokens.
        around (`tuple[str, str]`, *optional*): Names of the processor's tokens that it puts before and after an image.
        arguments (`dict`, *optional*): What the processor needs beside texts and images.
        boxes (`str`, *optional*, defaults to `"thousandths"`): The scale of boxes in texts: "thousandths", "pixels" of
            the resized image, "shares" or "tokens".
    """

    processor: str
    layout: Callable[[ImageSettings], ImageLayout]
    settings: Mapping[str, Any] = field(default_factory=dict)
    image_token: Callable[[Any], str] = _image_token
    placeholder: Callable[[Any], str] = _image_token
    after_images: Callable[[Any], str] = _nothing
    prompt_end: str = ""
    adds_special_tokens: bool = True
    around: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    boxes: str = "thousandths"


_PAN_AND_SCAN = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}

IMAGE_TOKEN_FAMILIES: dict[str, ImageTokenFamily] = {
    "llava": ImageTokenFamily("LlavaProcessor", layout_llava, boxes="shares"),
    "llava_next": ImageTokenFamily("LlavaNextProcessor", layout_llava_next, boxes="shares"),
    "llava_onevision": ImageTokenFamily("LlavaOnevisionProcessor", layout_llava_onevision, boxes="shares"),
    "qwen2_vl": ImageTokenFamily("Qwen2VLProcessor", layout_qwen_vl),
    "qwen2_5_vl": ImageTokenFamily("Qwen2_5_VLProcessor", layout_qwen_vl, boxes="pixels"),
    "qwen3_vl": ImageTokenFamily("Qwen3VLProcessor", layout_qwen_vl),
    "qwen3_vl_moe": ImageTokenFamily("Qwen3VLProcessor", layout_qwen_vl),
    "qwen3_5": ImageTokenFamily("Qwen3VLProcessor", layout_qwen_vl),
    "qwen3_5_moe": ImageTokenFamily("Qwen3VLProcessor", layout_qwen_vl),
    "qwen2_5_omni_thinker": ImageTokenFamily("Qwen2_5OmniProcessor", layout_qwen_vl, boxes="pixels"),
    "qwen3_omni_moe_thinker": ImageTokenFamily("Qwen3OmniMoeProcessor", layout_qwen_vl),
    "glm4v": ImageTokenFamily("Glm4vProcessor", layout_qwen_vl),
    "glm4v_moe": ImageTokenFamily("Glm4vProcessor", layout_qwen_vl),
    "glm46v": ImageTokenFamily("Glm46VProcessor", layout_qwen_vl),
    "glm_ocr": ImageTokenFamily("Glm46VProcessor", layout_qwen_vl),
    "glmga": ImageTokenFamily("Glm46VProcessor", layout_qwen_vl),
    "exaone4_5": ImageTokenFamily("Exaone4_5_Processor", layout_qwen_vl),
    "paddleocr_vl": ImageTokenFamily("PaddleOCRVLProcessor", layout_qwen_vl),
    "ernie4_5_vl_moe": ImageTokenFamily("Ernie4_5_VLMoeProcessor", layout_qwen_vl),
    "video_llama_3": ImageTokenFamily("VideoLlama3Processor", layout_qwen_vl),
    "cosmos3_edge": ImageTokenFamily(
        "Cosmos3EdgeProcessor", layout_qwen_vl, arguments={"return_mm_token_type_ids": True}
    ),
    "cohere_compass": ImageTokenFamily("CohereCompassProcessor", layout_qwen_vl),
    "hyperclovax_vision_v2": ImageTokenFamily("HyperCLOVAXVisionV2Processor", layout_qwen_vl),
    "lfm3_vl": ImageTokenFamily("Lfm3VlProcessor", layout_qwen_vl),
    "minimax_m3_vl": ImageTokenFamily(
        "MiniMaxM3VLProcessor", layout_qwen_vl, around=("VISION_START_TOKEN", "VISION_END_TOKEN")
    ),
    "muse_glimmer": ImageTokenFamily(
        "MuseGlimmerProcessor", layout_qwen_vl, around=("image_start_token", "image_end_token")
    ),
    "idefics3": ImageTokenFamily("Idefics3Processor", layout_idefics3),
    "smolvlm": ImageTokenFamily("SmolVLMProcessor", layout_idefics3),
    "paligemma": ImageTokenFamily(
        "PaliGemmaProcessor",
        layout_paligemma,
        after_images=_bos_token,
        prompt_end="\n",
        adds_special_tokens=False,
        boxes="tokens",
    ),
    "gemma3": ImageTokenFamily(
        "Gemma3Processor",
        layout_gemma3,
        settings=_PAN_AND_SCAN,
        image_token=_tokenizer_image_token,
        placeholder=_boi_token,
    ),
    "internvl": ImageTokenFamily("InternVLProcessor", layout_internvl, settings={"crop_to_patches": True}),
}


def get_image_token_family(processor: Any, model_type: str | None = None) -> ImageTokenFamily:
    """Finds how a model lays out its image tokens."""
    known = ", ".join(IMAGE_TOKEN_FAMILIES)
    if model_type is not None:
        if model_type not in IMAGE_TOKEN_FAMILIES:
            raise ValueError(f"model_type {model_type!r}: its image tokens are not known; known: {known}.")
        return IMAGE_TOKEN_FAMILIES[model_type]
    names = {cls.__name__ for cls in type(processor).__mro__}
    for family in IMAGE_TOKEN_FAMILIES.values():
        if family.processor in names:
            return family
    raise ValueError(
        f"{type(processor).__name__}: the image tokens of this processor are not known; known model types: {known}. "
        "Give model_type if the model lays out its image tokens as one of them."
    )


def image_layouts(
    family: ImageTokenFamily, processor: Any, sizes: Sequence[Any], image_settings: Mapping[str, Any]
) -> list[ImageLayout]:
    """Makes the layouts of the images of one example."""
    given = {**family.settings, **image_settings}
    layouts = []
    for image, size in enumerate(sizes):
        array = to_array(size, f"image {image}: size")
        if array.shape != (2,) or (array < 1).any():
            raise ValueError(f"image {image}: size {size!r}, expected (width, height) in pixels.")
        width, height = (int(edge) for edge in array)
        layout = family.layout(ImageSettings(processor, given, width, height, len(sizes) == 1))
        start, end = (getattr(processor, name) for name in family.around) if family.around else ("", "")
        layouts.append([start, *layout, end])
    return layouts


def place_image_tokens(positions: np.ndarray, layouts: Sequence[ImageLayout], name: str) -> ImageTokens:
    """Gives the image tokens of an example, at positions (N,) int64, their boxes, by the layouts of its images."""
    views = [[piece for piece in layout if not isinstance(piece, str)] for layout in layouts]
    places = [(image, view, len(boxes)) for image, each in enumerate(views) for view, boxes in enumerate(each)]
    images, numbers, counts = np.array(places, dtype=np.int64).reshape(-1, 3).T
    if counts.sum() != len(positions):
        raise ValueError(
            f"{name}: {len(positions)} image tokens in the sequence, but its images make {counts.sum()}; give the "
            "sizes (width, height) of the images, and the settings of the image processor that were used."
        )
    boxes = np.concatenate([np.zeros((0, 4)), *(boxes for each in views for boxes in each)])
    has_box = ~np.isnan(boxes[:, 0])
    return ImageTokens(positions, boxes.astype(np.float32), has_box, images.repeat(counts), numbers.repeat(counts))


def locate_image_tokens(
    processor: Any,
    input_ids: Any,
    image_sizes: Sequence[Sequence[Any]],
    model_type: str | None = None,
    image_settings: Mapping[str, Any] | None = None,
) -> list[ImageTokens]:
    """Finds the image tokens of a batch, and the box of each one in its original image.

    Boxes are exact under everything that the image processor and the model do: resizing, padding, centre crops, tiles,
    crops of long images, merged and shuffled patches, removed padding, newline tokens.

    Args:
        processor (`ProcessorMixin`): The processor that made the batch.
        input_ids (`torch.Tensor` or `np.ndarray`): (B, N) int64, the sequences of the model, padded on any side.
        image_sizes (sequence): B lists of pairs (width, height) in pixels, one for each image of the example, before
            the processor resized it.
        model_type (`str`, *optional*): `config.model_type` of the model; by default found by the processor's class.
        image_settings (`Mapping[str, Any]`, *optional*): Settings that were given to this call of the processor, for
            example `{"do_pan_and_scan": True}`.

    Returns:
        `list[ImageTokens]`: The image tokens of each example.

    Raises:
        ValueError: The model is not known, or the number of image tokens is not that of the images.

    Example:

    ```python
    >>> import numpy as np
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import LlavaProcessor, PreTrainedTokenizerFast
    >>> from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    >>> from grounded_attention.processing.image_tokens import locate_image_tokens

    >>> words = Tokenizer(models.WordLevel({"<unk>": 0, "<image>": 1, "a": 2, "dog": 3}, unk_token="<unk>"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> special = {"image_token": "<image>"}
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", extra_special_tokens=special)
    >>> images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    >>> processor = LlavaProcessor(images, tokenizer, patch_size=4, vision_feature_select_strategy="full")
    >>> picture = np.zeros((20, 40, 3), dtype=np.uint8)  # the model sees the square in its middle
    >>> inputs = processor(text=["a <image> dog"], images=[[picture]], return_tensors="pt")
    >>> (tokens,) = locate_image_tokens(processor, inputs["input_ids"], [[(40, 20)]])
    >>> tokens.positions.tolist()
    [1, 2, 3, 4]
    >>> tokens.boxes.tolist()
    [[0.25, 0.0, 0.5, 0.5], [0.5, 0.0, 0.75, 0.5], [0.25, 0.5, 0.5, 1.0], [0.5, 0.5, 0.75, 1.0]]

    ```
    """
    family = get_image_token_family(processor, model_type)
    ids = to_array(input_ids, "input_ids")
    if len(ids) != len(image_sizes):
        raise ValueError(f"image_sizes has {len(image_sizes)} entries, but input_ids has {len(ids)} rows.")
    token_id = processor.tokenizer.convert_tokens_to_ids(family.image_token(processor))
    found = []
    for example, (row, sizes) in enumerate(zip(ids, image_sizes, strict=True)):
        layouts = image_layouts(family, processor, sizes, image_settings or {})
        found.append(place_image_tokens(np.flatnonzero(row == token_id), layouts, f"Example {example}"))
    return found
