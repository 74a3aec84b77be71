# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny vision-language models, processors that can be loaded from a folder, and recipes that train them on scenes."""

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.helpers.tiny_scenes import tiny_recipe
from tests.helpers.tiny_vlm_processors import CHAT_TEMPLATE

SPECIAL = ["[PAD]", "[UNK]", "<s>", "</s>", "<image>"]
WORDS = ["user", "assistant", "Describe", "the", "image", "Where", "is", "What", "at", "[", "]", ",", ":", "?", "."]
PIXELS = 24
PATCH = 4
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def llava_processor(vocabulary):
    """A LLaVA processor: one token for each word of a `vocab.txt`, and for each digit."""
    words = [*SPECIAL, *WORDS, *map(str, range(10)), "\n", *vocabulary.read_text().splitlines()]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\W\d_]+|\d|\n|[^\w\s]"), "removed", invert=True)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>"}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **names, extra_special_tokens={"image_token": "<image>"}
    )
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"height": PIXELS, "width": PIXELS}, do_center_crop=False),
        made,
        patch_size=PATCH,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE.replace("IMAGE", "<image>"),
    )


def llava_config():
    """The configuration of a tiny LLaVA, as in a recipe."""
    vision = {"model_type": "clip_vision_model", **SIZES, "image_size": PIXELS, "patch_size": PATCH}
    return {
        "model_type": "llava",
        "text_config": {"model_type": "llama", **SIZES, "num_key_value_heads": 1},
        "vision_config": {**vision, "projection_dim": 16},
    }


def save_llava(vocabulary, folder):
    """Saves a tiny LLaVA with random weights and its processor."""
    processor = llava_processor(vocabulary)
    config = llava_config()
    config["text_config"]["vocab_size"] = len(processor.tokenizer)
    image = processor.tokenizer.image_token_id
    made = AutoConfig.for_model(**config, image_token_id=image)
    AutoModelForImageTextToText.from_config(made).save_pretrained(folder)
    processor.save_pretrained(folder)


def vlm_recipe(scenes, output, **sections):
    """A recipe that trains a tiny LLaVA with random weights on captions of scenes; `sections` replace its keys."""
    folder = output.parent / "processor"
    llava_processor(scenes / "vocab.txt").save_pretrained(folder)
    recipe = tiny_recipe(scenes, output, task="grounded_generation")
    data = {"data_dir": str(scenes), "images": str(scenes / "flickr30k-images")}
    recipe["data"] = {**recipe["data"], **data, "regions": None}
    recipe["model"] = {"family": "vlm", "config": llava_config(), "tokenizer": str(folder)}
    return {**recipe, **sections}
