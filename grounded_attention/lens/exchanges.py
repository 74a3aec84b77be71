# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A question with its answer, and the maps of its words in the forms and by the heads that a user names.

Shape letters: K heads, W words, R image tokens, Y and X rows and columns of a grid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.utils import logging

from grounded_attention.heads.heads_file import ChosenHeads, find_file, has_adapter
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.processing.chat_prompts import make_conversation
from grounded_attention.processing.grounded_batch import word_inputs
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.videos import Video
from grounded_attention.supervision.supervise import (
    check_model,
    find_calls,
    head_layers,
    reads_image_apart,
    unwrap_model,
)
from grounded_attention.utils.named_types import Batch
from grounded_attention.utils.plain_text import check_one_of

from . import FORMS, ROWS
from .answers import GivenAnswer
from .batches import ExampleRows, read_batch
from .contributions import PathReader, word_contributions, word_weights
from .forms import FLOOR, find_sinks, localization_heads, relative, rollout_rows, without_sinks
from .prompts import Pictures
from .sequences import RowReader, Sequenced, read_means, read_prompt, words_before
from .tam import word_activations
from .two_hop import split_answer
from .word_maps import Lens

logger = logging.get_logger(__name__)

# The neutral prompt of "MLLMs Know Where to Look", whose attention on the image means nothing.
NEUTRAL = "Write a general description of the image."
# Heads that are chosen without labels, and the first layers that are left out where there are more than twice as many.
MOST_HEADS = 3
FIRST_LAYERS = 2
# Forms that are no attention.
TAM = ("tam",)
PATHS = (("contribution",), ("two-hop",))
ALONE = ("contribution", "tam", "two-hop")
ROLLOUT_BYTES = 2**31  # of the maps of all layers

Heads = Sequence[tuple[int, int]]
GivenHeads = str | int | Path | ChosenHeads | Heads


def ready(model: Any, processor: Any) -> tuple[Any, PatchGroundingProcessor]:
    """The model in evaluation mode, and the processor that finds its image tokens."""
    check_model(model, processor)
    if not isinstance(processor, PatchGroundingProcessor):
        processor = PatchGroundingProcessor(processor, unwrap_model(model).config.model_type)
    processor.check_model(unwrap_model(model).config)
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ValueError("the adapter adds virtual tokens to the prompt, whose attention is not read; LoRA adds none")
    return getattr(model, "thinker", model).eval(), processor


def read_forms(form: str | Sequence[str]) -> tuple[str, ...]:
    """The forms that a user names, in the order in which they are applied."""
    if isinstance(form, str):
        named = [name.strip() for name in form.split(",")]
    else:
        named = list(form)
    for name in named or [""]:
        check_one_of(name, FORMS, "form ")
    if "rollout" in named and "relative" in named:
        raise ValueError("form: rollout goes through all heads, relative compares chosen ones; take one of them")
    for name in named:
        if name in ALONE and len(named) > 1:
            raise ValueError(f"form: {name} is no attention, which other forms change; give it alone")
    return tuple(name for name in FORMS if name in named)


def read_rows_option(rows: str | None, forms: tuple[str, ...]) -> str:
    """Whose rows are read: what the user says, or else the default of the forms."""
    if rows is None:
        rows = "before" if forms in PATHS else "own"
    check_one_of(rows, ROWS, "rows ")
    if forms == TAM and rows == "before":
        raise ValueError("form tam reads each token where its formula says; leave out rows")
    return rows


def choose_shown(model: Any, heads: GivenHeads, forms: tuple[str, ...]) -> ChosenHeads:
    """The heads whose maps are shown: those that a user names, or of some forms none or all."""
    if "rollout" in forms:
        return ChosenHeads((), source="attention rollout over all layers")
    if forms == TAM:
        return ChosenHeads((), source="no heads: logits of the image tokens")
    if forms in PATHS and heads == "auto":
        return ChosenHeads((), source="contributions of all heads")
    return choose_heads(model, heads)


def answer_tokens(patches: PatchGroundingProcessor, answer: GivenAnswer | str) -> Sequence[int]:
    """The tokens of an answer; a ValueError if it is no text, or one of its texts is an image, or ends texts."""
    given = answer if isinstance(answer, GivenAnswer) else GivenAnswer(answer)
    if given.tokens is not None:
        return given.tokens
    if not isinstance(given.text, str):
        raise ValueError(f"answer: expected a text, found {type(given.text).__name__}; lists are for many questions")
    patches.check_text(given.text, "answer")
    return patches.tokenizer(patches.answer_prefix + given.text, add_special_tokens=False)["input_ids"]


@dataclass(frozen=True, eq=False)
class Exchange:
    """What was asked and answered: pictures, the prompt, the prompt with its answer, boxes that the answer says."""

    pictures: Pictures
    prompt: Sequenced
    whole: Sequenced
    said: tuple[tuple[float, ...], ...]

    @property
    def rows(self) -> list[int]:
        """The rows of all words."""
        return sorted({row for word in self.whole.words for row in word.rows})


def make_exchange(
    patches: PatchGroundingProcessor, pictures: Pictures, prompt: Sequenced, whole: Sequenced, which: str
) -> Exchange:
    """The exchange of a prompt, and of it with its answer, whose words have their own rows or those before them."""
    tokens = whole.inputs[word_inputs(whole.inputs)[0]][0, prompt.prompt_length :]
    said = said_boxes(patches, pictures[0], tokens.tolist())
    if which == "before":
        return Exchange(pictures, words_before(prompt), words_before(whole), said)
    return Exchange(pictures, prompt, whole, said)


def make_lens(
    model: Any,
    patches: PatchGroundingProcessor,
    exchange: Exchange,
    chosen: ChosenHeads,
    forms: tuple[str, ...],
    which: str,
    read: RowReader | ExampleRows | None = None,
    against: Mapping[str, str] | None = None,
) -> Lens:
    """The maps of the words; `read` has rows that were read before, others take a further pass."""
    prompt = exchange.prompt
    whole = exchange.whole
    columns = prompt.batch["region_positions"][0]
    token_images = prompt.token_images
    images, names = _shown(patches, exchange.pictures)
    rows = exchange.rows
    if not rows:
        raise ValueError("neither prompt nor answer has a word")
    signed = None
    every: Tensor | float = 1.0  # of a word, what its shares are parts of
    if forms == TAM:
        attention = word_activations(model, whole)[None]
        every = attention[0].sum(-1).clamp(min=FLOOR)
    elif forms in PATHS:
        known = read if isinstance(read, PathReader) else None
        said = whole
        through: list[int] = []
        if "two-hop" in forms:
            said, through = split_answer(patches.tokenizer, whole)
        shift = int(which == "before")
        added = word_contributions(model, patches, said, shift, chosen.heads, against, known, through)
        signed = added[:, columns].numpy()
        every = added.clamp(min=0).sum(-1).clamp(min=FLOOR)
        attention = added[:, columns].clamp(min=0)[None]
    elif "rollout" in forms:
        length = whole.inputs["input_ids"].shape[1]
        if reads_image_apart(model):
            raise ValueError("form rollout goes from words to words, but this model reads the image apart; take plain")
        size = 4 * length**2 * len(find_calls(model))
        if size > ROLLOUT_BYTES:
            raise ValueError(
                f"form rollout needs the maps of all layers, {size / 2**30:.1f} GiB for {length} tokens; take plain "
                "or relative, or a smaller image"
            )
        means = read_means(model, whole.inputs)
        rollout = rollout_rows(means, torch.tensor(rows, device=means[0].device))[:, columns].cpu()
        attention = word_weights(whole.words, rows) @ rollout[None]
    else:
        chosen, attention = read_heads(model, chosen, prompt, whole.inputs, rows, read)
        attention = word_weights(whole.words, rows) @ attention
    shown = [token_images == image for image in range(len(images))]
    if "sinks" in forms:
        sinks = torch.zeros_like(token_images, dtype=torch.bool)
        mean = attention.mean(0)
        for tokens in shown:
            sinks[tokens] = find_sinks(mean[:, tokens])
        attention = without_sinks(attention, sinks[None])
    share = torch.stack([(attention * tokens).sum(-1).mean(0) / every for tokens in shown], -1)
    if "relative" in forms:
        attention = relative(attention, neutral_rows(model, patches, exchange.pictures, chosen.heads)[:, None])
    return Lens(
        answer=whole.texts[-1],
        words=whole.words,
        texts=whole.texts,
        images=images,
        heads=chosen.heads,
        heads_from=chosen.source,
        form=forms,
        attention=attention.numpy().astype(np.float32),
        share=share.numpy().astype(np.float32),
        token_boxes=prompt.batch["region_boxes"][0].numpy(),
        token_images=token_images.numpy(),
        boxes=exchange.said,
        box_rule=chosen.box_rule,
        names=names,
        rows=which,
        contributions=signed,
    )


def _shown(patches: PatchGroundingProcessor, pictures: Pictures) -> tuple[tuple[Image.Image, ...], tuple[str, ...]]:
    """The images of the result, of frames that are read together the first, and their names."""
    images: list[Image.Image] = []
    names: list[str] = []
    for picture in pictures:
        if not isinstance(picture, Video):
            images.append(picture)
            names.append(f"image {len(images)}")
            continue
        for frames, time in patches.frame_steps(picture):
            images.append(picture.frames[frames[0]])
            if len(frames) > 1:
                numbers = f"s {frames[0] + 1}–{frames[-1] + 1}"
            else:
                numbers = f" {frames[0] + 1}"
            names.append(f"frame{numbers}, {time:.1f} s")
    return tuple(images), tuple(names)


def said_boxes(patches: PatchGroundingProcessor, image: Any, ids: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """The boxes of the first image that an answer says, x1, y1, x2, y2 in [0, 1]; none if they cannot be read."""
    if isinstance(image, Video):
        return ()
    answer = patches.tokenizer.decode(ids)  # with the special tokens of boxes
    try:
        return tuple(tuple(box) for box in patches.box_dialect(image).read_all(answer, own=True))
    except ValueError as error:
        logger.warning(f"the answer's boxes are not drawn: {error}")
        return ()


def read_heads(
    model: Any,
    chosen: ChosenHeads,
    prompt: Sequenced,
    inputs: Batch,
    rows: Sequence[int],
    known: RowReader | ExampleRows | None = None,
) -> tuple[ChosenHeads, Tensor]:
    """The heads to show, and their attention from rows, (K, Q, R); `known` was read while the model answered."""
    columns = prompt.batch["region_positions"][0]
    end = prompt.prompt_length - 1
    if not chosen.heads:
        every = known and known.of([end])
        if not every:
            [known] = read_batch(model, inputs, [[end, *rows]], [columns], head_layers(model))
            every = known.of([end])
        pairs = _without_labels({layer: each[:, 0] for layer, each in every.items()}, prompt)
        chosen = replace(chosen, heads=pairs)
    layers = {layer for layer, _ in chosen.heads}
    read = known and known.of(rows, layers)
    if not read:
        [known] = read_batch(model, inputs, [rows], [columns], layers)
        read = known.of(rows)
    return chosen, torch.stack([read[layer][head] for layer, head in chosen.heads])


def layers_of(model: Any, chosen: ChosenHeads) -> Iterable[int]:
    """The layers that are read: of chosen heads, or all if these are to be chosen for each prompt."""
    return {layer for layer, _ in chosen.heads} or head_layers(model)


def choose_heads(model: Any, heads: GivenHeads) -> ChosenHeads:
    """The heads to show, `source` says how they were chosen; none if they are to be chosen without labels."""
    calls = {int(call.name.removeprefix("layer ")): call.num_heads for call in find_calls(model)}
    every = tuple((layer, head) for layer, count in calls.items() for head in range(count))
    if isinstance(heads, str) and heads == "auto":
        inner = unwrap_model(model)
        revision = getattr(inner.config, "_commit_hash", None)
        if has_adapter(model) or not inner.name_or_path or not find_file(inner.name_or_path, revision):
            reason = "heads.json of `grounded-attention heads` names heads that were measured"
            return ChosenHeads((), source=f"chosen for this prompt without labels (Localization Heads); {reason}")
        heads = ChosenHeads.of_model(inner)
    if isinstance(heads, str) and heads == "all":
        return ChosenHeads(every, source="all heads")
    if isinstance(heads, int):
        chosen = tuple(pair for pair in every if pair[0] == heads)
        if not chosen:
            raise ValueError(f"heads: layer {heads} has no heads; layers with heads: {', '.join(map(str, calls))}")
        return ChosenHeads(chosen, source=f"all heads of layer {heads}")
    named = ChosenHeads.named(heads)
    named.check(model)
    return named


def _without_labels(read: Mapping[int, Tensor], prompt: Sequenced) -> tuple[tuple[int, int], ...]:
    """Chooses heads by the attention of the end of the prompt, layer -> (H, R)."""
    images = prompt.token_images
    width = max(each.shape[0] for each in read.values())
    attention = torch.zeros(len(read), width, len(images))
    for place, each in enumerate(read.values()):
        attention[place, : each.shape[0]] = each
    shares = [(attention * (images == image)).sum() for image in range(int(images.max()) + 1)]
    shown = images == int(torch.stack(shares).argmax())
    maps = TokenGrid.of_tokens(prompt.batch["region_boxes"][0], shown).maps(attention * shown)
    skip = FIRST_LAYERS if len(read) > 2 * FIRST_LAYERS else 0
    chosen = localization_heads(maps, skip, MOST_HEADS)
    chosen = chosen or [divmod(int(maps.sum((2, 3))[skip:].argmax()) + skip * width, width)]
    layers = list(read)
    return tuple((layers[place], head) for place, head in chosen)


def neutral_rows(model: Any, patches: PatchGroundingProcessor, pictures: Pictures, heads: Heads) -> Tensor:
    """(K, R): the attention of the last position of the neutral prompt about the same images."""
    has_template = getattr(patches.processor, "chat_template", None) or patches.tokenizer.chat_template
    kinds = ["video" if isinstance(each, Video) else "image" for each in pictures]
    chat: Any = make_conversation(NEUTRAL, None, kinds) if has_template else NEUTRAL
    prompt = read_prompt(patches, chat, (), pictures)
    return read_heads(model, choose_heads(model, heads), prompt, prompt.inputs, [prompt.prompt_length - 1])[1][:, 0]
