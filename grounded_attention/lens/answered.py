# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`look_many`: where a model looks for the words of many prompts, and of answers that somebody else generated."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeVar

from transformers.utils import logging

from grounded_attention.dataset_scripts.rows.chats import MESSAGES, PLACE, place_images, row_conversation, row_images
from grounded_attention.dataset_scripts.rows.raw import first_of
from grounded_attention.processing.image_layouts import layout_text
from grounded_attention.processing.image_tokens import image_layouts
from grounded_attention.processing.videos import Video
from grounded_attention.supervision.supervise import returns_maps, unwrap_model
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.open_images import picture_size
from grounded_attention.utils.plain_text import check_one_of

from .answers import IDS, GivenAnswer, row_answer
from .batches import READ_ALONE, ExampleRows, pad_sequences, read_batch
from .exchanges import (
    ALONE,
    Exchange,
    GivenHeads,
    answer_tokens,
    choose_shown,
    layers_of,
    make_exchange,
    make_lens,
    read_forms,
    read_rows_option,
    ready,
)
from .prompts import prompt_texts, read_chat
from .sequences import add_answer, generate_tokens, pad_token, read_prompts
from .word_maps import Lens

logger = logging.get_logger(__name__)

BATCH = 8
WINDOW = 16  # batches, of whose rows those of like length are read together
LETTERS = 4  # of a token, about
BATCHED = ("plain", "sinks")  # forms of which several rows are read in one pass
MANY_FORMS = (*BATCHED, *ALONE)
Kept = TypeVar("Kept")


def look_many(
    model: Any,
    processor: Any,
    rows: Iterable[Row],
    answers: Iterable[GivenAnswer | str | None] | None = None,
    *,
    heads: GivenHeads = "auto",
    form: str | Sequence[str] = "plain",
    token_rows: str | None = None,
    batch_size: int = BATCH,
) -> Iterator[Lens]:
    """Shows where a vision-language model looks for every word of many prompts and their given answers.

    Nothing is generated: prompt and answer are read in one pass, rows of like length in one batch. Numbers are those
    of [`look`] with `answer`, up to rounding (1e-6 in float32), whatever the batches are.

    Args:
        model (`PreTrainedModel`): a vision-language model, with or without a PEFT adapter; it is set to evaluation
            mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        rows (iterable of rows): rows with pictures (`image` or `images`), and `messages`, or `prompt` and
            `completion`, or the words of the user as `text`, such as those of [`grounded_rows`].
        answers (iterable of [`GivenAnswer`] or `str`, *optional*): the answer of each row; by default, and for `None`,
            the last turn of the assistant in its messages. Of messages that end with the assistant, what is before
            this turn is the prompt.
        heads (*optional*, defaults to `"auto"`): as for [`look`]; without `heads.json` they are chosen for each row.
        form (`str` or list of `str`, *optional*, defaults to `"plain"`): as for [`look`], without `"relative"` and
            `"rollout"`. Contributions and `"tam"` are read row by row.
        token_rows (`str`, *optional*): `"own"` or `"before"`, `rows` of [`look`].
        batch_size (`int`, *optional*, defaults to 8): how many rows are read in one pass.

    Returns:
        `Iterator[Lens]`: a look for each row, in their order; at most 16 batches of them are in memory.

    Raises:
        ValueError: if an option is not valid; when iterated, if a row has no picture, no words or no answer, its
            answer has a token that the model does not know, or its attention is NaN or infinite; the message names
            the row.
    """
    looks = ManyLooks(model, processor, heads, form, token_rows, batch_size)
    return _say_others(looks.look(_ask(rows, answers), lambda looked: looked))


class Asked(NamedTuple):
    """The prompt of a row, a text or a conversation, with its pictures and its answer; number and id are the row's."""

    number: int
    id: str | None
    chat: Any
    images: list[Any]
    answer: GivenAnswer
    kind: str = "row"

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.kind} {self.number}"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors name what is at fault."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


class Looked(NamedTuple):
    """The look of a row; `is_other`: the answer that was given is not the text of its tokens."""

    asked: Asked
    lens: Lens

    @property
    def is_other(self) -> bool:
        return self.asked.answer.text not in (None, self.lens.answer)


def _ask(rows: Iterable[Row], answers: Iterable[GivenAnswer | str | None] | None) -> Iterator[Asked]:
    pairs = zip(rows, repeat(None) if answers is None else answers, strict=answers is not None)
    for number, (row, answer) in enumerate(pairs):
        yield ask_row(row, answer, number)


def ask_row(row: Row, answer: GivenAnswer | str | None, number: int, ids: Sequence[str] = IDS) -> Asked:
    """The prompt of a row and its answer, or else the last turn of its assistant; `ids` are columns of its id."""
    name = f"row {number}"
    chat: Any
    if first_of(row, MESSAGES) or None not in (row.get("prompt"), row.get("completion")):
        chat, images = row_conversation(row, name)
        chat, _ = place_images(chat, [], len(images))
        own = row_answer(chat)
        if own is not None:
            chat = chat[:-1]
    elif row.get("text") is not None:
        chat = row["text"].replace(PLACE, "").strip()
        images = row_images(row)
        own = None
    else:
        raise ValueError(f"{name} has the columns {', '.join(row)}; expected messages, or text")
    given = own if answer is None else answer
    if isinstance(given, str):
        given = GivenAnswer(given)
    if given is None or (given.text is None and given.tokens is None):
        raise ValueError(f"{name} has no answer: give one, or messages that end with the assistant")
    column = first_of(row, ids)
    return Asked(number, None if column is None else str(row[column]), chat, images, given)


def ask_each(questions: list[Any], images: Any, video: Any, fps: float, answer: Any) -> list[Asked]:
    """Texts or conversations with their images and answers; with an empty answer, if none are given."""
    asked: list[Asked] = []
    for name, given in (("images", images), ("video", video), ("answer", answer)):
        if given is not None and (not isinstance(given, list) or len(given) != len(questions)):
            found = len(given) if isinstance(given, list) else type(given).__name__
            raise ValueError(
                f"{name}: found {found}, expected a list with an entry for each of {len(questions)} questions; one "
                "question about several images is a text, not a list"
            )
    for number, question in enumerate(questions):
        own, frames, said = (given and given[number] for given in (images, video, answer))
        with naming(f"question {number}"):
            if answer is not None and not isinstance(said, str):
                found = type(said).__name__
                raise ValueError(f"answer: expected a text, found {found}; without answer= all are generated")
            chat, pictures = read_chat(own, question, frames, fps)
        asked.append(Asked(number, None, chat, pictures, GivenAnswer(said, None if answer else ()), "question"))
    return asked


def describe_others(count: int, others: Sequence[str]) -> str:
    """What is said of rows whose answers are not the text of their tokens."""
    which = "words and characters are those of the tokens"
    return f"{len(others)} of {count} answers are not the text of their tokens ({others[0]} is the first); {which}"


def _say_others(looks: Iterator[Looked]) -> Iterator[Lens]:
    count = 0
    others = []
    for looked in looks:
        count += 1
        if looked.is_other:
            others.append(looked.asked.name)
        yield looked.lens
    if others:
        logger.warning(describe_others(count, others))


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows that are read in one pass: inputs of the model, and of each row its exchange and which rows are read."""

    asked: Sequence[Asked]
    inputs: Fields
    exchanges: list[Exchange]
    rows: list[list[int]]


class ManyLooks:
    """A model that looks at many rows; the arguments are those of [`look_many`]."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        heads: GivenHeads = "auto",
        form: str | Sequence[str] = "plain",
        token_rows: str | None = None,
        batch_size: int = BATCH,
    ):
        self.forms = read_forms(form)
        for name in self.forms:
            check_one_of(name, MANY_FORMS, "of many rows, form ")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more")
        self.token_rows = read_rows_option(token_rows, self.forms)
        self._is_alone = self.forms[0] in ALONE
        self.model, self.patches = ready(model, processor)
        is_read_alone = unwrap_model(self.model).config.model_type in READ_ALONE or returns_maps(model)
        self.batch_size = 1 if is_read_alone or self._is_alone else batch_size
        self.chosen = choose_shown(self.model, heads, self.forms)
        self._layers = layers_of(self.model, self.chosen)
        self._pad = pad_token(self.patches.tokenizer)

    def look(self, asked: Iterable[Asked], keep: Callable[[Looked], Kept]) -> Iterator[Kept]:
        """What `keep` makes of the look of each row, in their order."""
        remaining = iter(asked)
        while window := list(islice(remaining, WINDOW * self.batch_size)):
            order = sorted(range(len(window)), key=lambda number: self._length(window[number]))
            batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
            kept: dict[int, Kept] = {}
            with ThreadPoolExecutor(1) as pool:
                following = pool.submit(self._prepare, [window[number] for number in batches[0]])
                for batch, then in zip(batches, [*batches[1:], []], strict=True):
                    prepared = following.result()
                    if then:  # while the model reads this one; never while the caller works, whose tokenizer it is
                        following = pool.submit(self._prepare, [window[number] for number in then])
                    kept |= zip(batch, map(keep, self._read(prepared)), strict=True)
            for number in range(len(window)):
                yield kept.pop(number)

    def answer(self, asked: Sequence[Asked], options: Columns) -> list[Asked]:
        """The same with the tokens of the answers that the model generates, in batches."""
        answered = []
        for start in range(0, len(asked), self.batch_size):
            some = asked[start : start + self.batch_size]
            batch = self._prepare(some)
            prompts = [each.prompt for each in batch.exchanges]
            inputs = pad_sequences(batch.inputs, prompts, self._pad, "left")
            tokens = generate_tokens(self.model, self.patches, inputs, **options).tolist()
            for each, ids in zip(some, tokens, strict=True):
                answered.append(each._replace(answer=GivenAnswer(None, tuple(ids))))
        return answered

    def _length(self, asked: Asked) -> float:
        """About how many tokens a row has; of pictures the headers are read."""
        with naming(asked.name):
            sizes = [picture_size(image) for image in asked.images if not isinstance(image, Video)]
            layouts = []
            if self.patches.image_tokens is None:
                layouts = image_layouts(
                    self.patches.family, self.patches.processor, sizes, self.patches.image_settings
                )
        texts = [*prompt_texts(asked.chat), asked.answer.text or ""]
        letters = sum(map(len, texts))
        tokens = len(asked.answer.tokens or ()) + sum(layout_text(each, "\0").count("\0") for each in layouts)
        return tokens + letters / LETTERS

    def _prepare(self, asked: Sequence[Asked]) -> _Batch:
        """The batch of some rows; an error names the row at fault."""
        try:
            return self._sequences(asked)
        except ValueError as error:
            if len(asked) == 1:
                raise ValueError(f"{asked[0].name}: {error}") from error
            for one in asked:
                self._prepare([one])
            raise

    def _sequences(self, asked: Sequence[Asked]) -> _Batch:
        chats = []
        pictures = []
        for each in asked:
            chat, opened = read_chat(each.images, each.chat)
            chats.append(chat)
            pictures.append(opened)
        inputs, prompts = read_prompts(self.patches, chats, [prompt_texts(chat) for chat in chats], pictures)
        if self._is_alone:
            prompts = [replace(prompts[0], inputs=inputs)]
        exchanges = []
        for each, prompt, opened in zip(asked, prompts, pictures, strict=True):
            ids = self._tokens(each.answer)
            whole = add_answer(self.model, self.patches.tokenizer, prompt, ids)
            exchanges.append(make_exchange(self.patches, opened, prompt, whole, self.token_rows))
        rows = [sorted({*each.rows, each.prompt.prompt_length - 1}) for each in exchanges]
        padded = pad_sequences(inputs, [each.whole for each in exchanges], self._pad)
        return _Batch(asked, padded, exchanges, rows)

    def _tokens(self, answer: GivenAnswer) -> Sequence[int]:
        text_config = unwrap_model(self.model).config.get_text_config()
        known = getattr(text_config, "vocab_size", len(self.patches.tokenizer))
        for token in answer.tokens or ():
            if token in self.patches.picture_ids or not 0 <= token < known:
                raise ValueError(
                    f"token {token} of the answer is an image, or none of the {known} of the model: was it answered "
                    "by this model?"
                )
        return answer_tokens(self.patches, answer)

    def _read(self, batch: _Batch) -> Iterator[Looked]:
        """Runs the model over a batch."""
        columns = [each.prompt.batch["region_positions"][0] for each in batch.exchanges]
        examples: Sequence[ExampleRows | None] = [None]
        if not self._is_alone:
            examples = read_batch(self.model, batch.inputs, batch.rows, columns, self._layers)
        for asked, exchange, example in zip(batch.asked, batch.exchanges, examples, strict=True):
            with naming(asked.name):
                lens = make_lens(self.model, self.patches, exchange, self.chosen, self.forms, self.token_rows, example)
            yield Looked(asked, lens)
