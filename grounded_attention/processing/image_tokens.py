# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Image tokens of vision-language models: their positions in the sequence, and the part of the image that each shows.

Shapes: B batch, N image tokens of an example, n image tokens of one picture.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import transformers
from packaging import version

from . import grid_layouts as grids
from . import tile_layouts as tiles
from .image_layouts import ImageLayout, ImageSettings, VideoSettings, layout_text, picture_boxes
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


@dataclass(frozen=True)
class Token:
    """A token of a processor: its attribute of this name, or of its tokenizer; other words are the token itself.

    `tokenizer.name` is that of the tokenizer.
    """

    name: str

    def __call__(self, processor: Any) -> str:
        name = self.name.removeprefix("tokenizer.")
        token = getattr(getattr(processor, "tokenizer", None), name, name)
        return token if name != self.name else getattr(processor, name, token)


@dataclass(frozen=True)
class AnswerDecoder:
    """The decoder of a family that answers apart from its prompt, whose words it reads with the image.

    Args:
        start (`Callable`): Returns the token that starts its sequence, from the processor.
        prefix (`Callable`, *optional*): Returns the token that every answer begins with.
        prompt (`Callable`, *optional*): Makes the prompt of processor and text, for a processor that adds the image;
            without it the prompt is the text.
    """

    start: Callable[[Any], str]
    prefix: Callable[[Any], str] = Token("")
    prompt: Callable[[Any, str], str] | None = None


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
        prompt_end (`Callable`, *optional*): Returns what the processor adds to the end of a prompt.
        starts_prompt (`bool`, *optional*, defaults to `False`): Whether the processor starts a prompt with the first
            special token of its tokenizer.
        starts_text (`bool`, *optional*, defaults to `False`): Whether it puts this token, if a prompt has none, behind
            the images at its start.
        adds_special_tokens (`bool`, *optional*, defaults to `True`): Whether the tokenizer adds its special tokens.
        around (`tuple[str, str]`, *optional*): Names of the processor's tokens that it puts before and after an image.
        arguments (`dict`, *optional*): What the processor needs beside texts and images.
        nested (`bool`, *optional*, defaults to `True`): Whether it takes a list of images for each text, or one list.
        keys (`str`, *optional*, defaults to `"sequence"`): Where words read the image: in the sequence, or in the
            `"images"` of an example alone, by cross-attention to its vision tower.
        decoder ([`AnswerDecoder`], *optional*): Of an encoder with a decoder.
        boxes (`str`, *optional*, defaults to `"plain"`): How it writes boxes, one of [`BOX_DIALECTS`].
        frames (`Callable`, *optional*): Makes the layouts of a video, one for each step, from its [`VideoSettings`];
            `None` for a family whose videos are not read.
        frame_token (`Callable`, *optional*): Returns the token that stands for a patch of a frame.
        frames_and_images (`bool`, *optional*, defaults to `True`): Whether the model reads both in one batch.
    """

    processor: str
    layout: Callable[[ImageSettings], ImageLayout]
    settings: Mapping[str, Any] = field(default_factory=dict)
    image_token: Callable[[Any], str] = Token("image_token")
    placeholder: Callable[[Any], str] = Token("image_token")
    after_images: Callable[[Any], str] = Token("")
    prompt_end: Callable[[Any], str] = Token("")
    starts_prompt: bool = False
    starts_text: bool = False
    adds_special_tokens: bool = True
    around: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = True
    keys: str = "sequence"
    decoder: AnswerDecoder | None = None
    boxes: str = "plain"
    frames: Callable[[VideoSettings], list[ImageLayout]] | None = None
    frame_token: Callable[[Any], str] = Token("video_token")
    frames_and_images: bool = True

    def arrange(self, images: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """Returns the images of each text as the processor takes them."""
        if self.nested:
            return images
        return [image for pictures in images for image in pictures]

    def text_of(self, layout: ImageLayout, token: str) -> str:
        """The text that stands for an image in the sequence; `token` stands for each image token there."""
        if self.keys == "images":
            return token
        return layout_text(layout, token)

    def place(self, positions: np.ndarray, layouts: Sequence[ImageLayout], name: str) -> ImageTokens:
        """The image tokens of an example where words read them; `positions` (N,) int64 are those of its sequence."""
        if self.keys == "images":
            if len(positions) != len(layouts):
                raise ValueError(f"{name}: {len(positions)} image tokens in the sequence of {len(layouts)} images.")
            positions = np.arange(sum(map(len, (box for each in layouts for box in picture_boxes(each)))))
        return place_image_tokens(positions, layouts, name)


_PAN_AND_SCAN = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}

_TILES = {"crop_to_patches": True}
_START_END_IMAGE = ("start_image_token", "end_image_token")
_IMAGE_START_END = ("image_start_token", "image_end_token")
_BOI_EOI = ("boi_token", "eoi_token")
# Tokens of frames are those of images, which these models do not tell apart.
_AS_IMAGES: dict[str, Any] = {"frame_token": Token("image_token"), "frames_and_images": False}
_GLM_FRAMES: dict[str, Any] = {"frames": grids.glm4v_frames, **_AS_IMAGES}


def _chart_tokens(processor: Any) -> str:
    """The tokens of an image of PP-Chart2Table, all of which stand in its prompts."""
    return "<imgpad>" * (processor.image_processor.size["height"] // 64) ** 2


def _ended_image(processor: Any) -> str:
    """An image in a prompt of HunYuan-VL."""
    return processor.image_start_token + processor.image_token + processor.image_end_token


def _florence_prompt(processor: Any, text: str) -> str:
    """The prompt that Florence-2 makes of a text, in which words stand for tasks."""
    [words] = processor._construct_prompts([text])
    tokenizer = processor.tokenizer
    return tokenizer.image_token + tokenizer.bos_token + words + tokenizer.eos_token


IMAGE_TOKEN_FAMILIES: dict[str, ImageTokenFamily] = {
    **dict.fromkeys(("llava", "vipllava"), ImageTokenFamily("LlavaProcessor", grids.llava, boxes="llava")),
    "llava_next": ImageTokenFamily("LlavaNextProcessor", tiles.llava_next, boxes="llava"),
    "llava_next_video": ImageTokenFamily(
        "LlavaNextVideoProcessor", tiles.llava_next, boxes="llava", frames=grids.llava_frames
    ),
    "granite4_vision": ImageTokenFamily("Granite4VisionProcessor", tiles.llava_next),
    "video_llava": ImageTokenFamily(
        "VideoLlavaProcessor", grids.llava, boxes="llava", frames=grids.video_llava_frames
    ),
    "llava_onevision": ImageTokenFamily(
        "LlavaOnevisionProcessor", tiles.llava_onevision, boxes="llava", frames=grids.llava_onevision_frames
    ),
    "qwen2_vl": ImageTokenFamily("Qwen2VLProcessor", grids.qwen_vl, boxes="qwen2_vl", frames=grids.qwen_frames),
    "qwen2_5_vl": ImageTokenFamily("Qwen2_5_VLProcessor", grids.qwen_vl, boxes="qwen2_5_vl", frames=grids.qwen_frames),
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "cosmos3_omni", "qwen4_exp"),
        ImageTokenFamily("Qwen3VLProcessor", grids.qwen_vl, boxes="qwen3_vl", frames=grids.qwen3_frames),
    ),
    "qwen2_5_omni_thinker": ImageTokenFamily(
        "Qwen2_5OmniProcessor", grids.qwen_vl, boxes="qwen2_5_vl", frames=grids.qwen_frames
    ),
    "qwen3_omni_moe_thinker": ImageTokenFamily(
        "Qwen3OmniMoeProcessor", grids.qwen_vl, boxes="qwen3_vl", frames=grids.qwen_frames
    ),
    **dict.fromkeys(
        ("glm4v", "glm4v_moe"), ImageTokenFamily("Glm4vProcessor", grids.qwen_vl, boxes="glm4v", **_GLM_FRAMES)
    ),
    "glm46v": ImageTokenFamily("Glm46VProcessor", grids.qwen_vl, boxes="glm4v", **_GLM_FRAMES),
    **dict.fromkeys(("glm_ocr", "glmga"), ImageTokenFamily("Glm46VProcessor", grids.qwen_vl, **_GLM_FRAMES)),
    "exaone4_5": ImageTokenFamily("Exaone4_5_Processor", grids.qwen_vl, frames=grids.qwen_frames),
    "paddleocr_vl": ImageTokenFamily("PaddleOCRVLProcessor", grids.qwen_vl, boxes="paddleocr_vl"),
    "ernie4_5_vl_moe": ImageTokenFamily("Ernie4_5_VLMoeProcessor", grids.qwen_vl, boxes="ernie"),
    "video_llama_3": ImageTokenFamily("VideoLlama3Processor", grids.qwen_vl, frames=grids.video_llama_3_frames),
    "cosmos3_edge": ImageTokenFamily(
        "Cosmos3EdgeProcessor", grids.qwen_vl, arguments={"return_mm_token_type_ids": True}, frames=grids.qwen3_frames
    ),
    "glm5_next": ImageTokenFamily("Glm5NextProcessor", grids.glm5_next, boxes="glm4v"),
    "cohere_compass": ImageTokenFamily("CohereCompassProcessor", grids.qwen_vl),
    "hyperclovax_vision_v2": ImageTokenFamily("HyperCLOVAXVisionV2Processor", grids.qwen_vl, frames=grids.qwen_frames),
    "dots3_note": ImageTokenFamily("Dots3NoteProcessor", grids.qwen_vl),
    "lfm3_vl": ImageTokenFamily("Lfm3VlProcessor", grids.qwen_vl, boxes="lfm2_vl"),
    "minimax_m3_vl": ImageTokenFamily(
        "MiniMaxM3VLProcessor", grids.qwen_vl, around=("VISION_START_TOKEN", "VISION_END_TOKEN")
    ),
    "muse_glimmer": ImageTokenFamily("MuseGlimmerProcessor", grids.qwen_vl, around=_IMAGE_START_END),
    "muse_spark": ImageTokenFamily("MuseSparkProcessor", grids.qwen_vl, around=_IMAGE_START_END),
    "minicpmv4_6": ImageTokenFamily(
        "MiniCPMV4_6Processor", tiles.minicpmv, boxes="minicpm", frames=tiles.minicpmv_frames
    ),
    "minicpmv4_7": ImageTokenFamily(
        "MiniCPMV4_7Processor", tiles.minicpmv, boxes="minicpm", frames=tiles.minicpmv_frames
    ),
    "minicpm_ocr": ImageTokenFamily(
        "MiniCPMOcrProcessor", tiles.minicpmv, boxes="minicpm", frames=tiles.minicpmv_frames
    ),
    "idefics3": ImageTokenFamily("Idefics3Processor", tiles.idefics3),
    "smolvlm": ImageTokenFamily("SmolVLMProcessor", tiles.idefics3, frames=tiles.smolvlm_frames, **_AS_IMAGES),
    "granite_docling": ImageTokenFamily("GraniteDoclingProcessor", tiles.granite_docling, boxes="granite_docling"),
    "paligemma": ImageTokenFamily(
        "PaliGemmaProcessor",
        grids.square,
        after_images=Token("bos_token"),
        prompt_end=Token("\n"),
        adds_special_tokens=False,
        boxes="paligemma",
    ),
    "gemma3": ImageTokenFamily(
        "Gemma3Processor",
        tiles.gemma3,
        settings=_PAN_AND_SCAN,
        image_token=Token("tokenizer.image_token"),
        placeholder=Token("boi_token"),
    ),
    "gemma3n": ImageTokenFamily("Gemma3nProcessor", tiles.gemma3),
    "got_ocr2": ImageTokenFamily(
        "GotOcr2Processor",
        tiles.internvl,
        settings={"crop_to_patches": False, "min_patches": 1, "max_patches": 12},
        nested=False,
    ),
    "chameleon": ImageTokenFamily(
        "ChameleonProcessor", grids.square, around=_IMAGE_START_END, prompt_end=Token("tokenizer.sep_token")
    ),
    "emu3": ImageTokenFamily("Emu3Processor", grids.emu3, starts_prompt=True),
    "apertus1p5": ImageTokenFamily("Apertus1p5Processor", grids.apertus),
    "unlimited_ocr": ImageTokenFamily("UnlimitedOcrProcessor", tiles.unlimited_ocr),
    "pp_chart2table": ImageTokenFamily(
        "PPChart2TableProcessor",
        grids.pp_chart2table,
        image_token=Token("<imgpad>"),
        placeholder=_chart_tokens,
    ),
    "deepseek_vl_hybrid": ImageTokenFamily("DeepseekVLHybridProcessor", grids.deepseek_vl),
    "fast_vlm": ImageTokenFamily("LlavaProcessor", grids.llava),
    "perception_lm": ImageTokenFamily("PerceptionLMProcessor", tiles.perception_lm),
    "internvl": ImageTokenFamily(
        "InternVLProcessor",
        tiles.internvl,
        settings=_TILES,
        around=_START_END_IMAGE,
        boxes="internvl",
        frames=grids.internvl_frames,
        frame_token=Token("image_token"),
    ),
    "qianfan_ocr": ImageTokenFamily(
        "QianfanOCRProcessor", tiles.internvl, placeholder=Token("image_placeholder_token"), around=_START_END_IMAGE
    ),
    "aya_vision": ImageTokenFamily(
        "AyaVisionProcessor",
        tiles.aya_vision,
        settings=_TILES,
        image_token=Token("img_patch_token"),
        around=("start_of_img_token", "end_of_img_token"),
    ),
    "cohere2_vision": ImageTokenFamily("Cohere2VisionProcessor", tiles.cohere2_vision, around=_BOI_EOI),
    "ovis2": ImageTokenFamily("Ovis2Processor", tiles.ovis2, image_token=Token("<IMG_ATOM>")),
    **dict.fromkeys(("mistral3", "mistral_large4"), ImageTokenFamily("PixtralProcessor", grids.pixtral)),
    "lighton_ocr": ImageTokenFamily("LightOnOcrProcessor", grids.pixtral),
    "gemma4": ImageTokenFamily(
        "Gemma4Processor", grids.gemma4, around=_BOI_EOI, boxes="gemma4", frames=grids.gemma4_frames
    ),
    "gemma4_unified": ImageTokenFamily(
        "Gemma4UnifiedProcessor", grids.gemma4, around=_BOI_EOI, boxes="gemma4", frames=grids.gemma4_frames
    ),
    "deepseek_vl": ImageTokenFamily("DeepseekVLProcessor", grids.deepseek_vl),
    "janus": ImageTokenFamily("JanusProcessor", grids.deepseek_vl, around=_IMAGE_START_END),
    "llama4": ImageTokenFamily("Llama4Processor", tiles.llama4, image_token=Token("img_patch_token")),
    "lfm2_vl": ImageTokenFamily("Lfm2VlProcessor", tiles.lfm2_vl, boxes="lfm2_vl"),
    "kimi_k25": ImageTokenFamily("Kimi_K25Processor", grids.kimi_k25),
    "molmo2": ImageTokenFamily(
        "Molmo2Processor", tiles.molmo2, image_token=Token("<im_patch>"), starts_prompt=True, boxes="molmo2"
    ),
    "nemotron_h_omni": ImageTokenFamily(
        "NemotronH_Omni_Reasoning_V3Processor", grids.nemotron_h_omni, around=_IMAGE_START_END
    ),
    "step3p7": ImageTokenFamily("Step3p7Processor", tiles.step3p7),
    "inkling2": ImageTokenFamily("Inkling2Processor", grids.inkling),
    "inkling_mm_model": ImageTokenFamily("InklingProcessor", grids.inkling),
    "hunyuan_vl": ImageTokenFamily(
        "HunYuanVLProcessor",
        grids.hunyuan_vl,
        placeholder=_ended_image,
        around=_IMAGE_START_END,
        adds_special_tokens=False,
    ),
    "hy_v4_vl": ImageTokenFamily("HYV4VLProcessor", grids.hunyuan_vl),
    "florence2": ImageTokenFamily(
        "Florence2Processor",
        grids.florence2,
        adds_special_tokens=False,
        nested=False,
        boxes="florence2",
        decoder=AnswerDecoder(Token("tokenizer.eos_token"), Token("tokenizer.bos_token"), _florence_prompt),
    ),
    "mllama": ImageTokenFamily("MllamaProcessor", tiles.mllama, starts_text=True, keys="images"),
}


IMAGE_TOKEN_FAMILIES["t5gemma2"] = replace(
    IMAGE_TOKEN_FAMILIES["gemma3"], decoder=AnswerDecoder(Token("tokenizer.bos_token"))
)

# Types that are refused, by the reason.
_REASONS = {
    "its image tokens are learned queries, each of which reads the whole image and has no place in it": (
        "aria", "blip-2", "idefics2", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5", "deepseek_ocr2",
    ),
    "its words read the image by cross-attention that is not on the attention interface of transformers": ("blip",),
    "its words read the image by cross-attention, and which part of it each key shows is not known here": (
        "idefics", "pix2struct", "pp_formulanet", "udop", "vision-encoder-decoder",
    ),
    "its processor puts image tokens into the prompt by itself": ("fuyu", "git"),
    "it does not answer about images with text, word by word": ("diffusion_gemma", "pi0", "shieldgemma2"),
    "it reads no images in transformers": ("evolla", "mistral4"),
    "transformers 5.24 cannot return its attention once it has read an image: its tower's states are recorded twice": (
        "phi4_multimodal",
    ),
    "it runs some of its layers several times in one pass, so that a layer and a head have several maps": (
        "inkling2_loop",
    ),
}  # fmt: skip
REFUSED_FAMILIES: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}


# Models whose regions a detector finds, of this project and of transformers.
READ_REGIONS = ("vl_bert", "visualbert", "vilbert", "grounded_lxmert", "lxmert", "visual_bert")


# What the layouts are written for; an older transformers lacks types, or lays out images of some in another way.
NEWEST_TRANSFORMERS = "5.24.0"


def get_image_token_family(processor: Any, model_type: str | None = None) -> ImageTokenFamily:
    """Finds how a model lays out its image tokens; a ValueError says why a type is refused."""
    every = "docs/api/tables/vlm_families.md has all"
    if model_type is not None:
        thinker = f"{model_type}_thinker"  # of a model that also speaks
        if thinker in IMAGE_TOKEN_FAMILIES:
            model_type = thinker
        if model_type in READ_REGIONS:
            use = "use `grounded-attention ground`, or heads with --regions"
            raise ValueError(f"model type {model_type}: it reads regions of a detector, no image tokens; {use}.")
        if model_type in REFUSED_FAMILIES:
            raise ValueError(
                f"model type {model_type}: {REFUSED_FAMILIES[model_type]}; take a model whose image is "
                f"tokens of its sequence: {every}."
            )
        if model_type not in IMAGE_TOKEN_FAMILIES:
            near = difflib.get_close_matches(model_type, IMAGE_TOKEN_FAMILIES, 3, 0.8)
            closest = f"closest known types: {', '.join(near)}; " if near else "image_tokens= finds them in Python; "
            raise ValueError(f"model type {model_type}: its image tokens are not known; {closest}{every}.")
        return IMAGE_TOKEN_FAMILIES[model_type]
    names = {cls.__name__ for cls in type(processor).__mro__}
    for family in IMAGE_TOKEN_FAMILIES.values():
        if family.processor in names:
            return family
    raise ValueError(
        f"{type(processor).__name__}: the image tokens of this processor are not known. Give model_type if the model "
        f"lays out its image tokens as a known type; {every}."
    )


def image_layouts(
    family: ImageTokenFamily, processor: Any, sizes: Sequence[Any], image_settings: Mapping[str, Any]
) -> list[ImageLayout]:
    """Makes the layouts of the images of one example."""
    settings = {**family.settings, **image_settings}
    layouts = []
    for image, size in enumerate(sizes):
        array = to_array(size, f"image {image}: size")
        if array.shape != (2,) or (array < 1).any():
            raise ValueError(f"image {image}: size {size!r}, expected (width, height) in pixels.")
        width, height = (int(edge) for edge in array)
        try:
            layout = family.layout(ImageSettings(processor, settings, width, height, len(sizes) == 1, image))
            start, end = [getattr(processor, name) for name in family.around] or ["", ""]
        except (AttributeError, KeyError, TypeError) as error:
            name = type(processor).__name__
            installed = transformers.__version__
            wrong = f"{name} does not lay out images as {family.processor} does ({error}); give another model type."
            same = family.processor in {cls.__name__ for cls in type(processor).__mro__}
            if same and version.parse(installed) < version.parse(NEWEST_TRANSFORMERS):
                wrong = (
                    f"{name} of transformers {installed} does not lay out images as that of {NEWEST_TRANSFORMERS} "
                    f'({error}). Run: pip install -U "transformers>={NEWEST_TRANSFORMERS}"'
                )
            raise ValueError(wrong) from error
        layouts.append([start, *layout, end])
    return layouts


def place_image_tokens(positions: np.ndarray, layouts: Sequence[ImageLayout], name: str) -> ImageTokens:
    """Gives the image tokens of an example, at positions (N,) int64, their boxes, by the layouts of its images."""
    parts: list[np.ndarray] = [np.zeros((0, 4))]
    places = []
    for image, layout in enumerate(layouts):
        for view, part in enumerate(picture_boxes(layout)):
            places.append((image, view, len(part)))
            parts.append(part)
    images, views, counts = np.array(places, dtype=np.int64).reshape(-1, 3).T
    if counts.sum() != len(positions):
        raise ValueError(
            f"{name}: {len(positions)} image tokens in the sequence, but its images make {counts.sum()}; give the "
            "sizes (width, height) of the images, and the settings of the image processor that were used. A response "
            "that was sampled must hold no image token: generate with bad_words_ids."
        )
    boxes = np.concatenate(parts)
    has_box = ~np.isnan(boxes[:, 0])
    return ImageTokens(positions, boxes.astype(np.float32), has_box, images.repeat(counts), views.repeat(counts))


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
    places = []
    for example, (row, sizes) in enumerate(zip(ids, image_sizes, strict=True)):
        layouts = image_layouts(family, processor, sizes, image_settings or {})
        places.append(family.place(np.flatnonzero(row == token_id), layouts, f"Example {example}"))
    return places
