# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The decoders of `benchmarks.gpu`: a Qwen2.5-VL of the shape of the 3B model, with random bfloat16 weights.

Pairs of ways take turns: a LoRA step with and without direct supervision, a forward pass whose rows of all heads are
read (`heads`) and a plain one, an answer that is read (`look`) and a plain one; with SDPA, and with FlashAttention and
a kernel of the Hub where they are installed. `maps` is a forward pass with eager attention and all its maps, what
`heads` and `look` do without; 7,300 tokens have too many for a card.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from grounded_attention.heads.attention_readers import reading
from grounded_attention.heads.reading import get_observer
from grounded_attention.lens.exchanges import MOST_HEADS
from grounded_attention.lens.sequences import RowReader
from grounded_attention.supervision import get_method
from grounded_attention.supervision.supervise import find_language_model, supervise

GRIDS = {"cuda": ((30, 50), (73, 100)), "cpu": ((4, 6),)}  # rows and columns of image tokens: 1,500 and 7,300
MAPPED = 2000  # image tokens: for more, maps are not made
TEXT = 64
PHRASES = 8
ANSWER = 50
IMAGE = 5
PATCHES = 2
TEXT_CONFIG = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16}
TEXT_CONFIG |= {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 16384}
VISION_CONFIG = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}
TINY_TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY_VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
PAIRS = {"LoRA, direct": "LoRA", "heads": "forward", "look": "answer", "maps": "forward"}  # way -> the plain way
# What is added to the names of ways -> their back end.
BACK_ENDS = {"": "sdpa", ", FlashAttention": "flash_attention_2", ", Hub kernel": "kernels-community/flash-attn2"}


def plain_way(name: str) -> str | None:
    """The name of the plain way of the same back end; `None` for a plain way."""
    for ending in BACK_ENDS:
        way = name.removesuffix(ending)
        if way in PAIRS and name == way + ending:
            return PAIRS[way] + ending
    return None


def make_model(device: str) -> Any:
    """The model with adapters on the attention of its language model."""
    torch.manual_seed(0)
    tiny = device != "cuda"
    text = TEXT_CONFIG | (TINY_TEXT | {"vocab_size": 99} if tiny else {})
    width = text["hidden_size"] // text["num_attention_heads"] // 2
    rope = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "mrope_section": [width - 2 * (3 * width // 8), *2 * [3 * width // 8]],
    }
    config = Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config={**(TINY_VISION if tiny else VISION_CONFIG), "out_hidden_size": text["hidden_size"]},
        image_token_id=IMAGE,
        vision_start_token_id=3,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration._from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))


def make_batch(rows: int, columns: int, model: Any) -> dict[str, torch.Tensor]:
    """An image and a text of eight phrases, which refer to eight strips of the image."""
    tokens = rows * columns
    vision = model.config.vision_config
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    ids = torch.cat([torch.tensor([3]), torch.full((tokens,), IMAGE), torch.randint(10, 90, (TEXT,))])[None]
    places = torch.arange(tokens)
    words = torch.arange(TEXT)
    phrase = torch.arange(PHRASES)[:, None]
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE).long(),
        "pixel_values": torch.randn(tokens * PATCHES**2, width, dtype=torch.bfloat16),
        "image_grid_thw": torch.tensor([[1, rows * PATCHES, columns * PATCHES]]),
        "text_positions": (1 + tokens + words)[None],
        "region_positions": (1 + places)[None],
        "phrase_mask": (words * PHRASES // TEXT == phrase)[None],
        "phrase_regions": (places * PHRASES // tokens == phrase)[None],
    }
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


@contextmanager
def attending(model: Any, back_end: str) -> Iterator[None]:
    """The language model attends with this back end."""
    language = find_language_model(model)
    usual = language.config._attn_implementation
    language.set_attn_implementation(back_end)
    yield
    language.set_attn_implementation(usual)


def make_ways(model: Any, batch: dict[str, torch.Tensor], back_end: str = "") -> dict[str, Callable[[], Any]]:
    """The ways of `PAIRS` as functions without arguments, by name; a back end of `BACK_ENDS` is set and named."""
    of_model = ("input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw")
    inputs = {name: batch[name] for name in of_model}
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-5)
    method = get_method("direct", directions=["text_to_region"])
    observer = get_observer(model)
    targets = {**batch, **method.prepare_batch(batch)}
    places = batch["region_positions"][0]
    start = batch["input_ids"].shape[1]
    queries = {"text_to_region": tuple(torch.arange(n, device=places.device)[None] for n in (TEXT, len(places)))}
    layers = range(model.config.text_config.num_hidden_layers)
    rows = range(start - TEXT, start)
    settings = {"do_sample": False, "max_new_tokens": ANSWER, "min_new_tokens": ANSWER, "bad_words_ids": [[IMAGE]]}

    def step(**arguments: Any) -> None:
        outputs = model(**inputs, **arguments, logits_to_keep=TEXT, use_cache=False)
        loss = cross_entropy(outputs.logits[0, :-1].float(), inputs["input_ids"][0, 1 - TEXT :])
        for total, count in method.losses(outputs, targets).values() if arguments else ():
            loss = loss + total / count
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def supervised() -> None:
        with supervise(model):
            step(**method.forward_kwargs(targets))

    @torch.no_grad()
    def answer() -> Any:
        return model.generate(**inputs, **settings)

    def look() -> Any:
        reader = RowReader(start, rows, places, layers)
        with reading(model, reader):
            answer()
        # Where it chooses heads, and what it shows of them: here each head is in another layer.
        return reader.of([start - 1]), reader.of([*rows, *range(start, start + ANSWER - 1)], layers[-MOST_HEADS:])

    @torch.no_grad()
    def forward() -> Any:
        return observer.model(**inputs, use_cache=False)

    @torch.no_grad()
    def maps() -> None:
        with attending(model, "eager"):
            model(**inputs, use_cache=False, output_attentions=True)

    ways = {
        "LoRA": step,
        "LoRA, direct": supervised,
        "forward": forward,
        "heads": lambda: observer.observe(batch, queries),
        "answer": answer,
        "look": look,
    }
    if back_end == "" and len(places) <= MAPPED:
        ways["maps"] = maps
    return {name + back_end: way for name, way in ways.items()}
