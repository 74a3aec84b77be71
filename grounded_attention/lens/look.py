# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`look`: asks a model, and reads where it looks for every word of the prompt and its answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast, overload

from PIL import Image
from transformers.utils import logging

from grounded_attention.heads.direct_path import NotFollowed
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.videos import FPS, Video
from grounded_attention.supervision.supervise import head_layers, unwrap_model
from grounded_attention.utils.named_types import Columns

from .answered import BATCH, BATCHED, Asked, ManyLooks
from .answers import GivenAnswer
from .batches import READ_ALONE, answer_batch
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
from .forms import SIDE, crop_box, relative
from .prompts import Pictures, prompt_texts, read_chat
from .sequences import RowReader, Sequenced, add_answer, generate_and_read, read_prompt, words_before
from .word_maps import Lens

logger = logging.get_logger(__name__)


@overload
def look(
    model: Any,
    processor: Any,
    images: Any = None,
    text: str | None = None,
    *,
    messages: Sequence[Columns] | None = None,
    **options: Any,
) -> Lens: ...


@overload
def look(
    model: Any, processor: Any, images: Sequence[Any], text: list[str] | tuple[str, ...], **options: Any
) -> list[Lens]: ...


@overload
def look(
    model: Any, processor: Any, images: Any = None, *, messages: Sequence[Sequence[Columns]], **options: Any
) -> list[Lens]: ...


def look(
    model: Any,
    processor: Any,
    images: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    video: Any = None,
    fps: float = FPS,
    messages: Sequence[Any] | None = None,
    answer: str | Sequence[str | None] | None = None,
    heads: GivenHeads = "auto",
    form: str | Sequence[str] | None = None,
    rows: str | None = None,
    against: Mapping[str, str] | None = None,
    again: bool = False,
    max_new_tokens: int = 64,
    **generation: Any,
) -> Lens | list[Lens]:
    """Shows where a vision-language model looks: for every word of a prompt and of its answer, a map of the image.

    What each image token adds to a word, or the attention of the word, is read beside the output while the model
    answers, without attention maps; a given answer, or one that was searched with beams, is read in a further pass.
    Attention is that of `generate(output_attentions=True)`.

    Many questions are answered in batches of 8: `text` is a list of them and `images` one of as many entries, each an
    image, a list of images or `None`; or `messages` is a list of conversations. `answer` may be a list too. The looks
    are those of single calls; sampled answers are other draws. Attention as it is (`"plain"`, `"sinks"`) is then read
    in batches too, all else one by one, each in a further pass over prompt and answer. `again` goes one by one.

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
        answer (`str`, *optional*): an answer that is read as if the model had given it; nothing is generated.
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
            looks, relative to a neutral prompt, and ask once more with image and crop (ViCrop, arXiv 2502.17422).
        max_new_tokens (`int`, *optional*, defaults to 64): the most tokens of the answer.
        generation: further arguments of `model.generate`.

    Returns:
        [`Lens`]: the answer and the maps; of many questions a list of them.

    Raises:
        ValueError: if there is no image or no text, the model's image tokens or attention are not known, a head does
            not exist, or an option is not valid; or the attention is NaN or infinite.
    """
    if form is None:
        form = "contribution" if heads == "auto" else "plain"
        is_asked = bool(against)
    else:
        is_asked = True
    forms = read_forms(form)
    read_rows_option(rows, forms)
    if against and "contribution" not in forms:
        raise ValueError("against compares contributions to two words: give form='contribution'")
    model, patches = ready(model, processor)
    options = {"max_new_tokens": max_new_tokens, **generation}
    way = _Way(heads, forms, rows, against, again, options, is_asked)
    if isinstance(text, list | tuple):
        asked: Sequence[Any] = text
    elif messages and isinstance(messages[0], list | tuple):
        asked = messages
    else:
        chat, pictures = read_chat(images, cast(Any, text), messages, video, fps)
        ids = None if answer is None else answer_tokens(patches, answer)
        return _look(model, patches, way, chat, pictures, ids)
    if video is not None:
        raise ValueError("video is that of one question; of many, give videos as parts of messages")
    of_each = _entries("images", images, asked)
    said = _entries("answer", answer, asked)
    chats = []
    answers = []
    for number, question in enumerate(asked):
        words, turns = (question, messages) if asked is text else (text, question)
        with _naming(number):
            chats.append(read_chat(of_each[number], cast(Any, words), turns, None, fps))
            answers.append(None if said[number] is None else answer_tokens(patches, said[number]))
    return _look_at_each(model, patches, way, chats, answers)


@dataclass(frozen=True)
class _Way:
    """How it is looked: what a user says, or its defaults; `is_asked`: the forms are the user's."""

    heads: GivenHeads
    forms: tuple[str, ...]
    rows: str | None
    against: Mapping[str, str] | None
    again: bool
    options: Columns
    is_asked: bool


def _entries(name: str, given: Any, asked: Sequence[Any]) -> Sequence[Any]:
    """What is given for each of many questions; `None` of all, if it is left out."""
    if given is None:
        return [None] * len(asked)
    if not isinstance(given, list | tuple) or len(given) != len(asked):
        found = f"{len(given)} entries" if isinstance(given, list | tuple) else type(given).__name__
        raise ValueError(
            f"{name}: expected a list with an entry for each of {len(asked)} questions, found {found}; one question "
            "about several images is a text, not a list"
        )
    return given


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Errors name the question."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"question {number}: {error}") from error


def _look_at_each(
    model: Any,
    patches: PatchGroundingProcessor,
    way: _Way,
    chats: Sequence[tuple[Any, Pictures]],
    answers: list[list[int] | None],
) -> list[Lens]:
    """The looks of many questions, which are answered together."""
    waiting = [number for number, ids in enumerate(answers) if ids is None and not way.again]
    size = 1 if unwrap_model(model).config.model_type in READ_ALONE else BATCH
    for start in range(0, len(waiting), size):
        numbers = waiting[start : start + size]
        texts = [chats[number][0] for number in numbers]
        pictures = [chats[number][1] for number in numbers]
        for number, ids in zip(numbers, answer_batch(model, patches, texts, pictures, **way.options), strict=True):
            answers[number] = ids
    has_video = any(isinstance(picture, Video) for _, own in chats for picture in own)
    is_alone = way.again or has_video or not {*way.forms} <= {*BATCHED}
    if is_alone or choose_heads(model, way.heads).doubt is not None:
        lenses = []
        for number, (chat, own) in enumerate(chats):
            with _naming(number):
                lenses.append(_look(model, patches, way, chat, own, answers[number]))
        return lenses
    asked = []
    for number, (chat, own) in enumerate(chats):
        given = GivenAnswer(None, tuple(answers[number] or ()))
        asked.append(Asked(number, None, chat, own, given, "question"))
    looks = ManyLooks(model, patches, way.heads, way.forms, way.rows)
    return list(looks.look(asked, lambda looked: looked.lens))


def _look(
    model: Any,
    patches: PatchGroundingProcessor,
    way: _Way,
    chat: Any,
    pictures: Pictures,
    answer: Sequence[int] | None,
) -> Lens:
    """The look of a prompt with its answer, or the one that is generated, and its second look."""
    if way.again and isinstance(pictures[0], Video):
        raise ValueError("again crops an image, but the first one is a video; give its frame as an image")
    try:
        lens, prompt = _look_once(model, patches, way, chat, pictures, answer)
    except NotFollowed as error:
        if way.is_asked:
            raise
        logger.warning(f"attention is shown, with form='plain': {error}")
        way = replace(way, forms=("plain",))
        lens, prompt = _look_once(model, patches, way, chat, pictures, answer)
    if not way.again:
        return lens
    crop = _where_to_crop(model, patches, prompt, pictures, lens.heads or way.heads)
    cropped = [pictures[0], cast(Image.Image, pictures[0]).crop(crop), *pictures[1:]]
    second, _ = _look_once(model, patches, way, _with_crop(chat), cropped, None)
    return replace(lens, second=second, crop=crop)


def _look_once(
    model: Any,
    patches: PatchGroundingProcessor,
    way: _Way,
    chat: Any,
    pictures: Pictures,
    ids: Sequence[int] | None,
) -> tuple[Lens, Sequenced]:
    prompt = read_prompt(patches, chat, prompt_texts(chat), pictures)
    which = read_rows_option(way.rows, way.forms)
    read: RowReader | None = None
    make_reader: type[RowReader] = RowReader
    chosen = choose_shown(model, way.heads, way.forms)
    layers: Iterable[int] = []
    if way.forms in PATHS:
        layers = head_layers(model)
        make_reader = PathReader
    elif way.forms != TAM and "rollout" not in way.forms:
        layers = layers_of(model, chosen)
    if ids is None:
        asking = words_before(prompt) if which == "before" else prompt
        ids, read = generate_and_read(model, patches, asking, layers, make_reader, **way.options)
    whole = add_answer(model, patches.tokenizer, prompt, ids)
    exchange = make_exchange(patches, pictures, prompt, whole, which)
    lens = make_lens(model, patches, exchange, chosen, way.forms, which, read, way.against)
    doubts = find_doubts(model, patches, whole, choose_heads(model, way.heads))
    lens = replace(lens, doubts={len(lens.words) + place: doubt for place, doubt in doubts.items()})
    return lens, prompt


def _where_to_crop(
    model: Any, patches: PatchGroundingProcessor, prompt: Sequenced, pictures: Pictures, heads: GivenHeads
) -> tuple[int, int, int, int]:
    """Where the end of a prompt looks in its first image, relative to a neutral prompt, in pixels."""
    chosen, asked = read_heads(model, choose_heads(model, heads), prompt, prompt.inputs, [prompt.prompt_length - 1])
    ratio = relative(asked[:, 0].mean(0), neutral_rows(model, patches, pictures, chosen.heads).mean(0))
    shown = prompt.token_images == 0
    grid = TokenGrid.of_tokens(prompt.batch["region_boxes"][0], shown)
    settings = getattr(patches.processor.image_processor, "crop_size", None) or {}
    settings = settings or getattr(patches.processor.image_processor, "size", None) or {}
    side = settings.get("height") or SIDE
    # The grid covers a part of the image where the model sees a part.
    width, height = cast(Image.Image, pictures[0]).size
    x1, y1, x2, y2 = (edge * scale for edge, scale in zip(grid.frame, (width, height) * 2, strict=True))
    box = crop_box(grid.maps(ratio * shown).numpy(), (round(x2 - x1), round(y2 - y1)), side)
    left, top, right, bottom = (int(edge + low) for edge, low in zip(box, (x1, y1) * 2, strict=True))
    return max(left, 0), max(top, 0), min(right, width), min(bottom, height)


def _with_crop(chat: Any) -> Any:
    """The prompt with a second image after its first."""
    if isinstance(chat, str):
        return chat
    copied = [{**message, "content": list(message["content"])} for message in chat]
    content = next(each["content"] for each in copied if any(part.get("type") == "image" for part in each["content"]))
    first = next(place for place, part in enumerate(content) if part.get("type") == "image")
    content.insert(first, {"type": "image"})
    return copied
