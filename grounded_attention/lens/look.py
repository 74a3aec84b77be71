# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`look`: asks a model, and reads where it looks for every word of the prompt and its answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from transformers.utils import logging

from grounded_attention.heads.direct_path import NotFollowed
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.processing.chat_prompts import is_conversation
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.videos import FPS, Video
from grounded_attention.supervision.supervise import head_layers
from grounded_attention.utils.named_types import Columns

from .answered import BATCH, BATCHED, ManyLooks, ask_each, naming
from .answers import GivenAnswer
from .contributions import PathReader
from .doubt import find_doubts
from .exchanges import (
    PATHS,
    TAM,
    GivenHeads,
    answer_tokens,
    choose_heads,
    choose_shown,
    layers_of,
    make_exchange,
    make_lens,
    neutral_rows,
    read_forms,
    read_heads,
    read_rows_option,
    ready,
)
from .forms import crop_box, relative
from .prompts import Pictures, prompt_texts, read_chat
from .sequences import RowReader, Sequenced, add_answer, generate_and_read, read_prompt, words_before
from .word_maps import Lens

logger = logging.get_logger(__name__)


def look(
    model: Any,
    processor: Any,
    images: Any = None,
    text: Any = None,
    *,
    video: Any = None,
    fps: float = FPS,
    messages: Any = None,
    answer: Any = None,
    heads: GivenHeads = "auto",
    form: str | Sequence[str] | None = None,
    rows: str | None = None,
    against: Mapping[str, str] | None = None,
    again: bool = False,
    max_new_tokens: int = 64,
    **generation: Any,
) -> Any:
    """Shows where a vision-language model looks: for every word of a prompt and of its answer, a map of the image.

    What each image token adds to a word, or the attention of the word, is read beside the output while the model
    answers, without attention maps; a given answer, or one that was searched with beams, is read in a further pass.
    Attention is that of `generate(output_attentions=True)`.

    Many questions are answered in batches of 8: `text` is a list of them, or `messages` one of conversations, and
    `images`, `video` and `answer`, where they are given, are lists with an entry for each question (of images an
    image, a list of images or `None`). The looks are those of single calls; sampled answers are other draws. Each
    prompt is read once more with its answer, `"plain"` and `"sinks"` in batches too, all else one by one.

    Args:
        model (`PreTrainedModel`): a vision-language model, with or without a PEFT adapter; it is set to evaluation
            mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        images (image or list of images, *optional*): as for [`open_image`]; those that the messages do not hold.
        text (`str`, *optional*): words of the user about the images.
        video (video, *optional*): a list of frames, a folder of them or a file, as for [`open_video`]; after the
            images. Its frames are images of the result: those that the model reads together (two of Qwen) are one.
        fps (`float`, *optional*, defaults to 2.0): frames of a video in a second.
        messages (list of messages, *optional*): a conversation instead of `text`; it ends with the user. Images may be
            parts of it: `{"type": "image", "image": picture}` (or `url`, `path`), or `{"type": "video", ...}`.
        answer (`str` or [`GivenAnswer`], *optional*): an answer that is read as if the model had given it; nothing is
            generated.
        heads (*optional*, defaults to `"auto"`): whose attention is shown, as a mean: `"auto"` are those of a
            `heads.json` beside the model, or else heads that are chosen for this prompt without labels
            ([`localization_heads`]); a list of (layer, head); a layer; `"all"`; a file or folder with heads.json.
        form (`str` or list of `str`, *optional*): what the maps are. `"contribution"`, the default, alone: what image
            tokens add to the logit of the word, through all heads or those that are given, see [`contributions`]; the
            most faithful form on scenes. `"plain"`: attention, the default where heads are given, and for models
            along which contributions cannot be followed. Attention can be changed, in this order: `"sinks"` removes
            image tokens that nearly all words attend to, `"relative"` divides by what a neutral prompt gives,
            `"rollout"` follows all layers and needs their maps. `"two-hop"`, alone: what image tokens add through the
            reasoning of the answer, between <think> and </think>, to the words after it (Saliency-R1). `"tam"`,
            alone: token activation maps, the logits of the image tokens for the word ([`token_maps`], arXiv
            2506.23270).
        rows (`str`, *optional*): whose attention a word's map is: `"own"` that of its own tokens,
            which read what was said, or `"before"` that of the position before each of its tokens, which produced it
            (of the first token of the answer the last position of the prompt). Of several tokens it is the mean. By
            default `"before"` of contribution and two-hop, else `"own"`.
        against (`Mapping[str, str]`, *optional*): of contributions, word -> another word, such as `{"red": "blue"}`:
            what speaks for the word rather than the other, the difference of their logits.
        again (`bool`, *optional*, defaults to `False`): whether to crop the first image where the end of the prompt
            looks, relative to a neutral prompt, and ask once more with image and crop (ViCrop, arXiv 2502.17422). If
            a video is first, its frame with the largest sum of this attention is cropped, and stands as an image
            after the whole video.
        max_new_tokens (`int`, *optional*, defaults to 64): the most tokens of the answer.
        generation: further arguments of `model.generate`.

    Returns:
        [`Lens`]: the answer and the maps; of many questions a list of them.

    Raises:
        ValueError: if there is no image or no text, the model's image tokens or attention are not known, a head does
            not exist, or an option is not valid; or the attention is NaN or infinite. Of many questions the message
            names the one at fault.
    """
    if form is None:
        form = "contribution" if heads == "auto" else "plain"
        is_asked = bool(against)
    else:
        is_asked = True
    forms = read_forms(form)
    which = read_rows_option(rows, forms)
    if against and "contribution" not in forms:
        raise ValueError("against compares contributions to two words: give form='contribution'")
    if (text is None) == (messages is None):
        raise ValueError("give either text or messages")
    model, patches = ready(model, processor)
    options = {"max_new_tokens": max_new_tokens, **generation}
    ask: Any = partial(look, model, patches, heads=heads, rows=rows, against=against, **options)
    questions = text if messages is None else messages
    if isinstance(questions, list) and not is_conversation(questions):
        asked = ask_each(questions, images, video, fps, answer)
        has_video = any(isinstance(picture, Video) for each in asked for picture in each.images)
        size = 1 if has_video else BATCH  # some models read only videos of as many frames together
        if answer is None:
            asked = ManyLooks(model, patches, "all", batch_size=size).answer(asked, options)
        if {*forms} <= {*BATCHED} and not again and choose_heads(model, heads).doubt is None:
            looks = ManyLooks(model, patches, heads, forms, rows, size)
            return list(looks.look(asked, lambda looked: looked.lens))
        lenses = []
        for each in asked:
            with naming(each.name):
                given = form if is_asked else None
                lenses.append(ask(each.images, each.chat, answer=each.answer, form=given, again=again))
        return lenses
    chat, pictures = read_chat(images, questions, video, fps)
    if again and isinstance(pictures[0], Video) and not patches.family.frames_and_images:
        raise ValueError("again asks with a crop beside the video, but this type of model does not read both")
    try:
        lens, prompt = _look(model, patches, chat, pictures, answer, heads, forms, options, which, against)
    except NotFollowed as error:
        if is_asked:
            raise
        logger.warning(f"attention is shown, with form='plain': {error}")
        return ask(pictures, chat, answer=answer, form="plain", again=again)
    if not again:
        return lens
    place, crop = _where_to_crop(model, patches, prompt, pictures, lens, heads)
    cropped = [pictures[0], lens.images[place].crop(crop), *pictures[1:]]
    return replace(lens, second=ask(cropped, _with_crop(chat), form=form), crop=crop, crop_image=place)


def _look(
    model: Any,
    patches: PatchGroundingProcessor,
    chat: Any,
    pictures: Pictures,
    answer: GivenAnswer | str | None,
    heads: GivenHeads,
    forms: tuple[str, ...],
    options: Columns,
    which: str,
    against: Mapping[str, str] | None,
) -> tuple[Lens, Sequenced]:
    prompt = read_prompt(patches, chat, prompt_texts(chat), pictures)
    read: RowReader | None = None
    make_reader: type[RowReader] = RowReader
    chosen = choose_shown(model, heads, forms)
    layers: Iterable[int] = []
    if forms in PATHS:
        layers = head_layers(model)
        make_reader = PathReader
    elif forms != TAM and "rollout" not in forms:
        layers = layers_of(model, chosen)
    if answer is None:
        asking = words_before(prompt) if which == "before" else prompt
        ids, read = generate_and_read(model, patches, asking, layers, make_reader, **options)
    else:
        ids = [*answer_tokens(patches, answer)]
    whole = add_answer(model, patches.tokenizer, prompt, ids)
    exchange = make_exchange(patches, pictures, prompt, whole, which)
    lens = make_lens(model, patches, exchange, chosen, forms, which, read, against)
    doubts = find_doubts(model, patches, whole, choose_heads(model, heads))
    lens = replace(lens, doubts={len(lens.words) + place: doubt for place, doubt in doubts.items()})
    return lens, prompt


def _where_to_crop(
    model: Any, patches: PatchGroundingProcessor, prompt: Sequenced, pictures: Pictures, lens: Lens, heads: GivenHeads
) -> tuple[int, tuple[int, int, int, int]]:
    """The first image, or its frame with most, and where the end of a prompt looks, relative to a neutral one."""
    named = choose_heads(model, lens.heads or heads)
    chosen, asked = read_heads(model, named, prompt, prompt.inputs, [prompt.prompt_length - 1])
    ratio = relative(asked[:, 0].mean(0), neutral_rows(model, patches, pictures, chosen.heads).mean(0))
    steps = patches.frame_steps(pictures[0]) if isinstance(pictures[0], Video) else [pictures[0]]
    place = max(range(len(steps)), key=lambda step: float(ratio[prompt.token_images == step].sum()))
    shown = prompt.token_images == place
    grid = TokenGrid.of_tokens(prompt.batch["region_boxes"][0], shown)
    # The grid covers a part of the image where the model sees a part.
    width, height = lens.images[place].size
    x1, y1, x2, y2 = (edge * scale for edge, scale in zip(grid.frame, (width, height) * 2, strict=True))
    box = crop_box(grid.maps(ratio * shown).numpy(), (round(x2 - x1), round(y2 - y1)))
    left, top, right, bottom = (int(edge + low) for edge, low in zip(box, (x1, y1) * 2, strict=True))
    return place, (max(left, 0), max(top, 0), min(right, width), min(bottom, height))


def _with_crop(chat: Any) -> Any:
    """The prompt with an image after its first image or video."""
    if isinstance(chat, str):
        return chat
    copied = [{**message, "content": list(message["content"])} for message in chat]
    for message in copied:
        for place, part in enumerate(message["content"]):
            if part.get("type") in ("image", "video"):
                message["content"].insert(place + 1, {"type": "image"})
                return copied
    raise AssertionError("read_chat gives every picture a place")
