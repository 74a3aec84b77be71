# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Processors of vision-language models with tiny pictures, made from transformers' classes without downloads.

The image processors are those on PIL, or on a stand-in for torchvision where a family has no other. The processors
have no part for videos, which needs torchvision.
"""

import inspect
import os
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import transformers
from packaging import version
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES, get_image_token_family
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.fake_torchvision import import_with_torchvision
from tests.helpers.tiny_vlm_relatives import (
    CLASS_TOKEN,
    CROP,
    GRID,
    PATCH,
    PINPOINTS,
    RELATIVES,
    SQUARE,
    TILE,
    Relative,
)

MANY_PINPOINTS = [[height * TILE, width * TILE] for height in range(1, 5) for width in range(1, 5)]
WORDS = ("a dog runs after the small cat near two red balls user assistant what is this here original image and are "
         "some crops to help you see better . , : ? \n").split(" ")  # fmt: skip
ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
SPECIAL = {
    "image_token": "<image>",
    "video_token": "<video>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
    "image_start_token": "<|image_start|>",
    "image_end_token": "<|image_end|>",
    "video_start_token": "<|video_start|>",
    "video_end_token": "<|video_end|>",
    "audio_token": "<audio>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "boa_token": "<boa>",
    "eoa_token": "<eoa>",
    "image_break_token": "<break>",
    "img_line_break_token": "<line>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_wrapper_token": "<img>",
    "eof_token": "</img>",
    "eol_token": "<line>",
    "image_boundary_token": "<fake_token_around_image>",
}
# Tokens that processors know by their text alone; the later ones come after the words, whose ids stay.
LATER = ["<|imgpad|>", "<imgpad>", "<im_patch>", "<|video_pad|>", "<|audio_comp_pad|>", "<patch_start>", "<patch_end>",
         "<patch_newline>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>", "<|begin_of_video|>",
         "<|end_of_video|>", "<|begin_of_image|>", "<|end_of_image|>"]  # fmt: skip
KNOWN = [
    *dict.fromkeys(each.image_token for each in RELATIVES.values() if each.image_token not in ("<image>", *LATER)),
    *("]<]start of image[>[", "]<]end of image[>[", "]<]video[>[", "<|video|>", "<|image|>"),
    *("<|tile_x_separator|>", "<|tile_y_separator|>"),
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] | trim + ' ' }}{% endif %}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

# Model type (of LLaVA a second one, which pads images to squares) -> folder and class of the image processor, its
# settings, and what the processor itself is given.
PROCESSORS = {
    "llava": ("clip.CLIP", CROP, CLASS_TOKEN),
    "llava_padded": ("llava.Llava", {"do_pad": True, **CROP}, CLASS_TOKEN),
    "llava_next": (
        "llava_next.LlavaNext",
        {"size": {"shortest_edge": TILE}, "crop_size": SQUARE, "image_grid_pinpoints": PINPOINTS},
        CLASS_TOKEN,
    ),
    "llava_onevision": (
        "llava_onevision.LlavaOnevision",
        {"size": SQUARE, "image_grid_pinpoints": MANY_PINPOINTS},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_4"},
    ),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), ("qwen2_vl.Qwen2VL", GRID, {})),
    "idefics3": (
        "idefics3.Idefics3",
        {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": TILE}},
        {"image_seq_len": 4},
    ),
    "smolvlm": (
        "smolvlm.SmolVLM",
        {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": TILE}},
        {"image_seq_len": 4},
    ),
    "paligemma": ("siglip.Siglip", {"size": SQUARE, "image_seq_length": 16}, {}),
    "gemma3": ("gemma3.Gemma3", {"size": SQUARE}, {"image_seq_length": 4}),
    "internvl": ("got_ocr2.GotOcr2", {"size": SQUARE, "max_patches": 6}, {"image_seq_length": 4}),
    **{name: (each.image, each.settings, each.own) for name, each in RELATIVES.items()},
}


QWEN = ("qwen2_vl.Qwen2VL", {**GRID, "size": {"shortest_edge": 4 * 64, "longest_edge": 20 * 64}})
# It counts the pixels of all frames
NEWER_QWEN = ("qwen3_vl.Qwen3VL", {**GRID, "size": {"shortest_edge": 4 * 64, "longest_edge": 120 * 64}})
MINICPM = {"patch_size": PATCH, "scale_resolution": 32, "max_slice_nums": 6}
# Model type -> folder and class of the processor of videos, and its settings; of others it is that of Qwen.
VIDEO_PROCESSORS = {
    "cosmos3_edge": ("cosmos3_edge.Cosmos3Edge", NEWER_QWEN[1]),
    "llava_next_video": ("llava_next_video.LlavaNextVideo", {"size": {"shortest_edge": TILE}, "crop_size": SQUARE}),
    "llava_onevision": ("llava_onevision.LlavaOnevision", {"size": SQUARE}),
    "internvl": ("internvl.InternVL", {"size": SQUARE}),
    "smolvlm": ("smolvlm.SmolVLM", {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": TILE}}),
    "video_llava": ("video_llava.VideoLlava", CROP),
    "video_llama_3": ("video_llama_3.VideoLlama3", QWEN[1]),
    **dict.fromkeys(("glm4v", "glm4v_moe"), ("glm4v.Glm4v", NEWER_QWEN[1])),
    **dict.fromkeys(("glm46v", "glm_ocr"), ("glm46v.Glm46V", NEWER_QWEN[1])),
    "glmga": ("glmga.Glmga", NEWER_QWEN[1]),
    "gemma4": ("gemma4.Gemma4", {"patch_size": PATCH, "pooling_kernel_size": 2}),
    "gemma4_unified": ("gemma4_unified.Gemma4Unified", {"patch_size": PATCH, "pooling_kernel_size": 2}),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), ("minicpmv4_6.MiniCPMV4_6", MINICPM)),
    "minicpm_ocr": ("minicpm_ocr.MiniCPMOcr", MINICPM),
}


def type_of(key):
    """The model type of a key of `PROCESSORS`; LLaVA has three."""
    if key in ("llava_padded", "llava_pixtral"):
        return "llava"
    return key


# Plain, tiled, windowed, bidirectional, hybrid, cross layers; test_vlm_families.py compares the rows of every family.
KINDS = ("llava", "llava_next", "qwen2_5_vl", "smolvlm", "gemma3", "paligemma", "lfm2_vl", "qwen3_5", "hunyuan_vl",
         "llava_padded", "llama4", "mllama")  # fmt: skip


def meant():
    """The keys of `PROCESSORS` that stand for all; all of them for `make families-vlm`."""
    return [name for name in PROCESSORS if name in KINDS or "EVERY_TYPE" in os.environ]


# Not in an older transformers, or there with other processors or with configurations that refuse their own defaults.
_NEWER = {"aya_vision", "chameleon", "cohere2_vision", "emu3", "ernie4_5_vl_moe", "fast_vlm", "gemma3n", "got_ocr2",
          "janus", "llama4", "ovis2", "paddleocr_vl", "perception_lm", "video_llava"}  # fmt: skip
_KNOWN_TYPES = {*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES} - (
    _NEWER if version.parse(transformers.__version__) < version.parse("5.23") else set()
)
for _name in [name for name in PROCESSORS if type_of(name) not in _KNOWN_TYPES]:
    del PROCESSORS[_name]
# Those whose words are answers of a decoder.
ANSWERERS = {}
for _name in [name for name in PROCESSORS if IMAGE_TOKEN_FAMILIES[type_of(name)].decoder is not None]:
    ANSWERERS[_name] = PROCESSORS.pop(_name)


_NONE = Relative("", {}, {})


def image_backends(model_type):
    """What the image processor of a key of `PROCESSORS` runs on."""
    folder = (PROCESSORS | ANSWERERS)[model_type][0].split(".")[0]
    if folder == "emu3":  # its only one has the name of those on torchvision
        return ["pil"]
    found = find_spec(f"transformers.models.{folder}.image_processing_pil_{folder}")
    if found is None:
        return ["torchvision"]
    return ["pil", "torchvision"]


def _import(name):
    """A file of transformers; some need torchvision although they do not use it here."""
    try:
        return import_module(name)
    except ImportError:
        return import_with_torchvision(name)


def _image_processor_class(image_class, backend):
    folder, prefix = image_class.split(".")
    if backend == "pil" and folder != "emu3":
        images = _import(f"transformers.models.{folder}.image_processing_pil_{folder}")
        return getattr(images, f"{prefix}ImageProcessorPil")
    images = import_with_torchvision(f"transformers.models.{folder}.image_processing_{folder}")
    return getattr(images, f"{prefix}ImageProcessor")


def make_tokenizer(padding_side="right", byte_pairs=False, image_token="<image>"):
    """Makes a tokenizer: one token for each word and newline, or pairs of bytes with few merges."""
    special = ["[PAD]", "[UNK]", "<s>", "</s>", *dict.fromkeys([*SPECIAL.values(), *ROWS, *KNOWN])]
    if byte_pairs:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=alphabet)
        tokenizer.train_from_iterator([" ".join(WORDS)] * 2, trainer)
    else:
        words = [*special, *WORDS]
        tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\n|[^\w\s]"), "removed", invert=True)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        padding_side=padding_side,
        extra_special_tokens={**SPECIAL, "image_token": image_token},
    )
    made.add_tokens([*ROWS, *KNOWN, *LATER], special_tokens=True)
    return made


def make_processor(model_type, padding_side="right", byte_pairs=False, backend="", **image_settings):
    """Makes the processor of a key of `PROCESSORS`; `image_settings` replace those of its image processor."""
    image_class, settings, own = (PROCESSORS | ANSWERERS)[model_type]
    backend = backend or image_backends(model_type)[0]
    relative = RELATIVES.get(model_type)
    model_type = type_of(model_type)
    image_processor = _image_processor_class(image_class, backend)(**{**settings, **image_settings})
    if model_type == "llama4":  # it makes bfloat16, for models in bfloat16
        scale = image_processor.rescale_and_normalize
        image_processor.rescale_and_normalize = lambda *given: scale(*given).float()
    if model_type == "mllama":  # that of released ones is not said
        image_processor.patch_size = PATCH
    if "image_seq_length" in settings:
        image_processor.image_seq_length = settings["image_seq_length"]
    folder = (relative and relative.folder) or model_type
    module = _import(f"transformers.models.{folder}.processing_{folder}")
    if model_type == "smolvlm" and module.num2words is None:
        module.num2words = str  # a package that only videos need
    base = getattr(module, (relative and relative.processor) or IMAGE_TOKEN_FAMILIES[model_type].processor)
    # As of a processor without the parts for videos and sound, which may be missing where they are checked.
    unchecked = {"check_argument_for_proper_class": lambda *arguments: None}
    processor_class = type(f"{base.__name__}OfImages", (base,), unchecked)
    names = inspect.signature(base.__init__).parameters
    videos = SimpleNamespace(num_frames=1, fps=1, slice_mode=False, downsample_mode="16x")
    missing = {"video_processor": videos, "feature_extractor": None}
    parts = {name: part for name, part in missing.items() if name in names}
    tokenizer = make_tokenizer(
        padding_side, byte_pairs, (relative or _NONE).placeholder or (relative or _NONE).image_token
    )
    processor = processor_class(image_processor=image_processor, tokenizer=tokenizer, **parts, **own)
    if model_type == "got_ocr2":
        processor.num_image_tokens = own["num_image_tokens"]
    vars(processor).pop("video_processor", None)  # on the class, which is not saved
    processor_class.video_processor = videos
    processor_class.get_attributes = classmethod(lambda cls: ["image_processor", "tokenizer"])
    image = placeholder(processor)
    if "qwen" in model_type or "spatial_merge_size" in (relative or _NONE).config.get("vision_config", {}):
        if not image.startswith("<|image_start|>"):
            image = f"<|vision_start|>{image}<|vision_end|>"
    processor.chat_template = None if model_type == "paligemma" else CHAT_TEMPLATE.replace("IMAGE", image)
    return processor


def placeholder(processor):
    """The token that stands for an image in a prompt."""
    return get_image_token_family(processor).placeholder(processor)


def wrap(processor, model_type):
    """The processor for places of patches; types with a decoder are not found by the class of their processor."""
    return PatchGroundingProcessor(processor, model_type if model_type in ANSWERERS else None)


def add_videos(processor, model_type):
    """Gives a processor a part for videos, on torchvision or its stand-in, and their places in its chat template."""
    newer = model_type.startswith(("qwen3_vl", "qwen3_5", "qwen4", "cosmos3"))
    name, settings = VIDEO_PROCESSORS.get(model_type, NEWER_QWEN if newer else QWEN)
    folder, prefix = name.split(".")
    file = import_with_torchvision(f"transformers.models.{folder}.video_processing_{folder}")
    video_processor = getattr(file, f"{prefix}VideoProcessor")(**settings, resample=0)
    type(processor).video_processor = video_processor
    if "omni" in model_type:  # its processor has another size by default
        type(processor).videos_kwargs = {"size": settings["size"]}
    if "minicpm" in model_type:
        processor.video_slice_mode = video_processor.slice_mode
    if processor.chat_template is not None:
        video = processor.video_token
        if folder == "qwen2_vl":
            video = f"<|vision_start|>{video}<|vision_end|>"
        if folder.startswith("glm"):
            video = f"<|begin_of_video|>{video}<|end_of_video|>"
        place = f"{{% elif part['type'] == 'video' %}}{{{{ '{video}' }}}}{{% else %}}"
        processor.chat_template = processor.chat_template.replace("{% else %}", place)
    return processor
