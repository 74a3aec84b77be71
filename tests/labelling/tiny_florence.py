# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny random Florence-2 with its processor; what it writes can be fixed."""

import functools

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.florence2.configuration_florence2 import Florence2VisionConfig
from transformers.models.florence2.processing_florence2 import Florence2Processor

PLACES = [f"<loc_{place}>" for place in range(1000)]
WORDS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "<image>",
    *PLACES,
    *"a dog red ball Locate the phrases in caption :".split(),
]
VOCABULARY = {word: index for index, word in enumerate(WORDS)}
PARSERS = {
    "ocr": {"pattern": r"(.+?)<loc_(\d+)>", "area_threshold": 0.0},
    "phrase_grounding": {"banned_grounding_tokens": []},
    **{name: {} for name in ("pure_text", "description_with_bboxes", "polygons", "bboxes")},
    **{name: {} for name in ("description_with_polygons", "description_with_bboxes_or_polygons")},
}


def tiny_florence(seed=0):
    """The model and its processor."""
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=PLACES,
        extra_special_tokens={"image_token": "<image>"},
    )
    two = (2, 2, 2, 2)
    vision = Florence2VisionConfig(
        depths=(1, 1, 1, 1), embed_dim=(8, 8, 8, 8), num_heads=two, num_groups=two, window_size=4, projection_dim=16
    )
    text = BartConfig(
        vocab_size=len(WORDS),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=128,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    parts = {"text_config": text.to_dict(), "vision_config": vision.to_dict()}
    config = Florence2Config(**parts, image_token_id=VOCABULARY["<image>"], is_encoder_decoder=True)
    set_seed(seed)
    model = Florence2ForConditionalGeneration(config).eval()
    size = {"height": 64, "width": 64}
    images = CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False)
    images.image_seq_length = 5  # tokens of a picture of this size
    return model, Florence2Processor(images, tokenizer, post_processor_config=PARSERS)


class _Write(LogitsProcessor):
    """Lets a model write given tokens; the raw logits stay its own."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[input_ids.shape[1] - 1]] = 0
        return forced


def let_write(model, text):
    """Makes `model.generate` write this text, whose tokens are separated by spaces; returns the tokens."""
    tokens = [VOCABULARY[word] for word in text.split()]
    model.generate = functools.partial(model.generate, logits_processor=LogitsProcessorList([_Write(tokens)]))
    return tokens
