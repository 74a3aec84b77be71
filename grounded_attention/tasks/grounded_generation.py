# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounded generation: a vision-language model learns captions, referring expressions, answers or conversations.

The language model learns the tokens of the answer alone. Supervision methods read the phrases of the texts, whose
regions are the image tokens that their boxes cover.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from transformers.utils import logging

from grounded_attention.metrics.item_scores import ItemScores, Scored, StreamingMetric
from grounded_attention.metrics.object_hallucination import ObjectHallucination
from grounded_attention.modeling.task_losses import cross_entropy_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import MEANT, Box
from grounded_attention.processing.box_dialects import BOX_DIALECTS, BoxDialect
from grounded_attention.processing.chat_prompts import make_conversation
from grounded_attention.processing.phrase import known_values
from grounded_attention.supervision.alignment import gather_rows
from grounded_attention.tasks import caption_rows
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row
from grounded_attention.utils.schema import Index, Section, Weight, check_names

from .generated_answers import (
    EXPRESSION,
    QUESTION,
    generate_answers,
    prompt_inputs,
    score_generated,
)
from .judges import JudgeContext, Rows
from .referring_expressions import meant_box
from .task import Examples, LossComponent, Metric, Task, identify, row_key

BEFORE_ANSWER = "phrase_before_answer"  # (B, P) bool: phrases that ask at the token before an answer


def whole_answers(phrases: Sequence[Columns], texts: Sequence[str]) -> dict[int, int]:
    """Phrase number -> turn, of the phrases of a conversation that are a whole answer with boxes."""
    whole = {}
    for number, each in enumerate(phrases):
        if each["sentence"] % 2 and each.get("boxes"):
            text = texts[each["sentence"]]
            around = text[: each["start"]] + text[each["end"] :]
            if not around.strip():
                whole[number] = each["sentence"] // 2
    return whole


def ask_before_answers(batch: Batch, asked: Sequence[Mapping[int, int]]) -> dict[str, Tensor]:
    """Moves the phrases that are whole answers, `asked` of each example, to the token before their answer.

    Returns `text_positions` with the columns of these tokens, `phrase_mask` to match, and [`BEFORE_ANSWER`].
    """
    positions = batch["text_positions"]
    mask = batch["phrase_mask"].clone()
    labels = batch["labels"]
    most = max(map(len, asked), default=0)
    columns = most + (positions.shape[1] + most == labels.shape[1])  # T must not be N
    places = positions.new_full((len(positions), columns), -1)
    mask = torch.cat([mask, mask.new_zeros(*mask.shape[:2], columns)], -1)
    before = mask.new_zeros(mask.shape[:2])
    for example, of_example in enumerate(asked):
        learned = labels[example] >= 0
        first = (learned & ~learned.roll(1)).nonzero().flatten()  # no sequence begins with an answer
        for column, (phrase, turn) in enumerate(of_example.items()):
            places[example, column] = first[turn] - 1
            mask[example, phrase] = False
            mask[example, phrase, positions.shape[1] + column] = True
            before[example, phrase] = True
    return {"text_positions": torch.cat([positions, places], 1), "phrase_mask": mask, BEFORE_ANSWER: before}


SCALE = 20.0  # of cosines, before the softmax


def count_region_words(batch: Batch) -> Tensor:
    """The number of words, () int64, of the phrases that have an image token."""
    return (batch["phrase_mask"] & _grounded(batch)[..., None]).sum()


def region_word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropies of the words of each phrase, given the image tokens that its boxes cover.

    The mean of these image tokens is compared with each different word of the phrases of the batch: cosine of the two
    inputs of the language model, times 20, and the softmax over the words. Each word of the phrase is a target. The
    other words are those of the same batch of one process, so with accumulation or more processes the loss is another.
    """
    if {"cross_attention_mask", "decoder_input_ids"} & batch.keys():
        raise ValueError("the loss of region words reads image tokens of the sequence, which this model has not")
    states = outputs.hidden_states[0].float()
    if states.shape[:2] != batch["input_ids"].shape:  # Gemma 3n: streams made from the first one
        states = states[0]
    elif states.dim() == 4:  # hyper-connections: equal copies in several streams
        states = states.mean(2)
    used = _grounded(batch)
    gold = _gold(batch).to(states)
    region_states = gather_rows(states, batch["region_positions"])
    regions = (gold @ region_states)[used] / gold.sum(-1, keepdim=True)[used]
    phrase, token = batch["phrase_mask"][used].nonzero(as_tuple=True)  # of each word of all phrases
    example = used.nonzero()[phrase, 0]
    place = batch["text_positions"][example, token]
    ids, word = batch["input_ids"][example, place].unique(return_inverse=True)
    counts = word.new_zeros(len(ids)).index_add(0, word, torch.ones_like(word))
    words = states.new_zeros(len(ids), states.shape[-1]).index_add(0, word, states[example, place]) / counts[:, None]
    cosines = normalize(regions, dim=-1) @ normalize(words, dim=-1).T  # (K, V)
    return -log_softmax(SCALE * cosines, dim=-1)[phrase, word].sum()


def _grounded(batch: Batch) -> Tensor:
    """Whether each phrase has a word and an image token, (B, P) bool; the token before an answer is no word."""
    used = batch["phrase_mask"].any(-1) & _gold(batch).any(-1)
    if BEFORE_ANSWER in batch:
        return used & ~batch[BEFORE_ANSWER]
    return used


def _gold(batch: Batch) -> Tensor:
    """(B, P, R): the image tokens of each phrase, also where attention learns those of a control."""
    return batch.get("gold_regions", batch["phrase_regions"])


def answer_tokens(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the scores and the labels of the tokens to learn."""
    labels = batch["labels"]
    example, token = (labels[:, 1:] >= 0).nonzero(as_tuple=True)
    # Read in one step: the gradient of a slice would be a second tensor as large as all scores.
    return outputs.logits[example, token], labels[example, token + 1]


def one_example(outputs: Any, batch: Batch, number: int) -> tuple[Any, dict[str, Tensor]]:
    """Returns outputs and batch of one example of a batch, for [`answer_tokens`]."""
    place = slice(number, number + 1)
    return SimpleNamespace(logits=outputs.logits[place]), {"labels": batch["labels"][place]}


class AnswerLikelihood(StreamingMetric):
    """Streaming metric of gold answers, each token counted once: `answer_loss` (mean negative log-likelihood),
    `answer_perplexity` (its exponential), `answer_token_accuracy` and `answer_tokens`."""

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch."""
        logits, labels = answer_tokens(outputs, batch)
        loss = cross_entropy_sum(logits, labels)[0]
        right = (logits.argmax(-1) == labels).sum()
        self._add(loss=loss.cpu(), right=right.cpu(), tokens=len(labels))

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """The metrics of a state; empty if no answer is known."""
        if not state or not state["tokens"]:
            return {}
        loss = state["loss"] / state["tokens"]
        return {
            "answer_loss": loss.item(),
            "answer_perplexity": loss.exp().item(),
            "answer_token_accuracy": (state["right"] / state["tokens"]).item(),
            "answer_tokens": int(state["tokens"]),
        }


logger = logging.get_logger(__name__)

STATES = "output_hidden_states"  # asked for by batches whose loss reads them
# What processors of transformers make for their models, and what models may report.
MODEL_INPUTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "moe_mm_token_type_ids",
    "pixel_values",
    "pixel_values_images",
    "pixel_values_local",
    "high_res_pixel_values",
    "num_local_patches",
    "pixel_attention_mask",
    "image_sizes",
    "image_grid_thw",
    "image_grid_hw",
    "image_grids",
    "image_token_pooling",
    "image_merge_sizes",
    "patches_grid",
    "image_position_ids",
    "spatial_shapes",
    "target_sizes",
    "batch_num_images",
    STATES,
)
TEXT = "{text}"
BOX = "{box}"
CAPTION = "caption"
CONVERSATION = "conversation"
# What the task reads of rows, where they have it.
COLUMNS = (
    *("example_id", "caption_id", "image_id", "file_name", "width", "height"),
    *("messages", "text", "phrases", "answer", "answers", "answer_type", "sampling"),
)


@dataclass(frozen=True)
class GroundedGenerationOptions(Section):
    """Options of the task."""

    caption_prompt: str = "Describe the image."
    expressions: Literal["locate", "describe", "point"] = "locate"
    anchor: str = "<point>"
    locate_prompt: str | None = None
    describe_prompt: str = "What is at {box}?"
    question_prompt: str = "{text}"
    generate: Index = 0
    box_dialect: str | None = None
    region_words: Weight = 0.0
    turns: Index = 0
    before_answers: bool = False

    def __post_init__(self) -> None:
        check_names([self.box_dialect] if self.box_dialect else [], BOX_DIALECTS, "box_dialect=")
        for name, part in (("locate_prompt", TEXT), ("describe_prompt", BOX), ("question_prompt", TEXT)):
            if getattr(self, name) is not None and getattr(self, name).count(part) != 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected a text with {part} once")


@dataclass(frozen=True)
class Chat:
    """The texts of one example."""

    messages: list[tuple[str, str]]
    phrases: list[Fields]

    @property
    def texts(self) -> list[str]:
        """All texts, in turns."""
        return [text for turn in self.messages for text in turn]

    @property
    def prompt(self) -> str:
        """All words of the user."""
        return "\n".join(prompt for prompt, _ in self.messages)

    @property
    def answer(self) -> str:
        """All words of the assistant."""
        return "\n".join(answer for _, answer in self.messages)

    def conversation(self, image_count: int) -> list[Fields]:
        """The chat in transformers' form."""
        messages = []
        for number, (prompt, answer) in enumerate(self.messages):
            messages += make_conversation(prompt, answer, [] if number else ["image"] * image_count)
        return messages

    def draw_turns(self, count: int, rng: np.random.Generator) -> "Chat":
        """Some of the turns, in their order, with the phrases of their texts."""
        if len(self.messages) <= count:
            return self
        kept = np.sort(rng.choice(len(self.messages), count, replace=False)).tolist()
        places = {turn: place for place, turn in enumerate(kept)}
        phrases = []
        for phrase in self.phrases:
            if phrase["sentence"] // 2 in places:
                phrases.append({**phrase, "sentence": 2 * places[phrase["sentence"] // 2] + phrase["sentence"] % 2})
        return Chat([self.messages[turn] for turn in kept], phrases)


def row_kind(row: Row) -> str:
    """What a row is, by its columns: a conversation, a caption, a question, or an expression; or what `kind` says."""
    if row.get("kind") in (CONVERSATION, CAPTION, QUESTION, EXPRESSION):
        return str(row["kind"])
    if "messages" in row:
        return CONVERSATION
    if "caption_id" in row:
        return CAPTION
    if row.keys() & {"answer", "answers"}:
        return QUESTION
    return EXPRESSION


def make_chat(row: Row, options: GroundedGenerationOptions, dialect: BoxDialect = BOX_DIALECTS["plain"]) -> Chat:
    """Makes the chat of a row, with the prompt and the boxes of a dialect; the answer is the most frequent one."""
    phrases = [each for each in row.get("phrases") or () if each["boxes"]]
    kind = row_kind(row)
    if kind == CONVERSATION:
        return _make_turns([each["content"] for each in row["messages"]], phrases, options, dialect)
    text = row["text"]
    if kind == CAPTION:
        return Chat([(options.caption_prompt, text)], _of_turn(phrases, 1))
    if kind == EXPRESSION:
        if options.expressions == "describe":
            box = dialect.write_box(meant_box(row))
            return Chat([(options.describe_prompt.replace(BOX, box), text)], _of_turn(phrases, 1))
        if options.expressions == "point":  # the anchor is a phrase of its own, with the box
            prompt = options.locate_prompt or TEXT
            anchor = options.anchor
            meant = {"text": anchor, "start": 0, "end": len(anchor), "boxes": [meant_box(row)], "sentence": 1}
            return Chat([(prompt.replace(TEXT, text), anchor)], [*_moved(phrases, prompt), meant])
        prompt = options.locate_prompt or dialect.prompt
        return Chat([(prompt.replace(TEXT, text), dialect.write([meant_box(row)], text))], _moved(phrases, prompt))
    prompt = options.question_prompt.replace(TEXT, text)
    answers = row.get("answers") or [row.get("answer") or ""]
    answer = Counter(answers).most_common(1)[0][0]
    moved = _moved(phrases, options.question_prompt)
    if options.before_answers and answer:  # boxes of a whole question are its evidence (Visual-CoT, TreeBench)
        whole = {"text": answer, "start": 0, "end": len(answer), "sentence": 1}
        moved += [{**each, **whole} for each in phrases if each["text"] == text.strip()]
    return Chat([(prompt, answer)], moved)


def _of_turn(phrases: Sequence[Columns], sentence: int) -> list[Fields]:
    return [{**known_values(each, "phrases"), "sentence": sentence} for each in phrases]


def _make_turns(
    texts: Sequence[str], phrases: Sequence[Columns], options: GroundedGenerationOptions, dialect: BoxDialect
) -> Chat:
    """The chat of a conversation. The answer to an instruction that has boxes as a whole, a click of GUI-Actor's data,
    is written as that to a referring expression is: the anchor, or boxes in the words of the family."""
    turns = list(zip(texts[::2], texts[1::2], strict=True))
    anchors = []
    for each in phrases:
        turn, answers = divmod(each["sentence"], 2)
        if (
            answers
            or options.expressions == "describe"
            or texts[2 * turn][each["start"] : each["end"]] != texts[2 * turn]
        ):
            continue
        written = dialect.write(each["boxes"], turns[turn][0])
        if options.expressions == "point":
            written = options.anchor
            place = {"start": 0, "end": len(written), "sentence": 2 * turn + 1}
            anchors.append({"text": written, "boxes": each["boxes"], **place})
        turns[turn] = (turns[turn][0], written)
    return Chat(turns, [*map(dict, phrases), *anchors])


def _check_anchors(chat: Chat, anchor: str, name: str) -> None:
    """Raises ValueError if an anchor of a text has no box: it would be learned and never taught to point."""
    texts = chat.texts
    spans = {(each["sentence"], each["start"]) for each in chat.phrases if each.get("boxes")}
    found = []
    for number, text in enumerate(texts):
        for match in re.finditer(re.escape(anchor), text):
            found.append((number, match.start()))
    bare = [place for place in found if place not in spans]
    if bare:
        raise ValueError(
            f"{name}: {anchor!r} is {len(found)} times in its texts, {len(bare)} without a box, as in "
            f"{texts[bare[0][0]]!r:.80}: leave it out of the texts of rows, or name another token by options.anchor"
        )


def _moved(phrases: Sequence[Columns], prompt: str) -> list[Fields]:
    """Phrases of a text that stands in a prompt."""
    before = prompt.index(TEXT)
    return [{**each, "start": each["start"] + before, "end": each["end"] + before} for each in phrases]


class GroundedGeneration(Task):
    """The tokens of an answer, of which the language model learns each from those before it."""

    name = "grounded_generation"
    title = "grounded generation"
    builder = "flickr30k_entities"
    columns = ("image_id",)
    head = "generation"
    model_inputs = MODEL_INPUTS
    Options = GroundedGenerationOptions
    image_tokens = True
    hub_task = "image-text-to-text"

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        language = LossComponent("language", language_loss, lambda batch: (batch["labels"][:, 1:] >= 0).sum())
        weight = self.options.region_words
        words = LossComponent("region_words", region_word_loss, count_region_words, weight)
        if weight:
            return (language, words)
        return (language,)

    def remarks(self, splits: Columns) -> list[str]:
        """`before_answers` over rows without evidence would teach nothing."""
        if not self.options.before_answers or "train" not in splits:
            return []
        chats = (make_chat(row, self.options) for row in splits["train"])
        if not any(whole_answers(chat.phrases, chat.texts) for chat in chats):
            raise ValueError(
                "options.before_answers: no answer of the training rows has boxes; expected phrases with boxes that "
                "are a whole answer or a whole question: give other rows, or set it to false"
            )
        return []

    def metrics(self) -> list[Metric]:
        generated = [ItemScores("generated", lambda outputs, batch: score_generated(batch)), ObjectHallucination()]
        return [AnswerLikelihood(), ItemScores("answers", score), *(generated if self.options.generate else ())]

    def generate(self, model: Any, tokenizer: Any, batch: Batch) -> Fields:
        length = self.options.generate
        if length:
            return generate_answers(model, tokenizer, batch, length)
        return {}

    def to_rows(self, split: Any, grounded: bool = False) -> Any:
        """One row a caption; referring expressions, questions and conversations stay as they are."""
        columns = {*split.column_names}
        if "messages" not in columns and not {"example_id", "text"} <= columns:
            split = caption_rows.to_rows(split, grounded=True)
        return split.select_columns([name for name in COLUMNS if name in split.column_names])

    def collate(self, examples: Examples, processor: Any) -> Fields:
        options = self.options
        rows = examples.rows
        kinds = [row_kind(row) for row in rows]
        if options.expressions == "point" and options.anchor not in processor.tokenizer.get_added_vocab():
            raise ValueError(
                f"options.anchor {options.anchor!r} is no added token: give model.tokens=[{options.anchor!r}]"
            )
        if options.expressions == "point" and (other := {*kinds} - {EXPRESSION, CONVERSATION}):
            raise ValueError(
                f"options.expressions=point: {', '.join(sorted(other))} rows have nothing to point at; "
                "expected referring expressions (data.builder=refcoco) or conversations with clicks (llava_instruct)"
            )
        images = examples.images or [None] * len(rows)
        dialects = [processor.box_dialect(image, options.box_dialect) for image in images]
        if not (options.box_dialect or dialects[0].documented) and EXPRESSION in kinds:
            logger.warning_once(
                f"{type(processor.processor).__name__}: no form of boxes is documented for this family: its answers "
                "are taught and read as [x1, y1, x2, y2] up to 1000; options.box_dialect names another form"
            )
        chats = [make_chat(row, options, dialect) for row, dialect in zip(rows, dialects, strict=True)]
        for row, chat in zip(rows, chats, strict=True):
            if examples.training and not all(answer.strip() for _, answer in chat.messages):
                raise ValueError(f"example {row_key(row)} has no answer to learn: leave rows without answers out")
            if options.expressions == "point":
                _check_anchors(chat, options.anchor, f"example {row_key(row)}")
        if options.turns and examples.training:
            drawn = [examples.generator(f"{row_key(row)} turns") for row in rows]
            chats = [chat.draw_turns(options.turns, rng) for chat, rng in zip(chats, drawn, strict=True)]
        phrases = [chat.phrases if examples.images is not None else [] for chat in chats]
        spoken = _texts(chats, int(examples.images is not None))
        inputs = processor(**spoken, images=examples.images, phrases=phrases, labels=True)
        if options.before_answers and "phrase_mask" in inputs:
            asked = [whole_answers(of_chat, chat.texts) for of_chat, chat in zip(phrases, chats, strict=True)]
            inputs.update(ask_before_answers(inputs, asked))
        if options.region_words and examples.training:
            inputs[STATES] = True
        texts: Fields = {"prompt": [chat.prompt for chat in chats], "answer": [chat.answer for chat in chats]}
        if options.generate and not examples.training:
            texts["prompt_inputs"] = prompt_inputs(processor, [chat.messages[0][0] for chat in chats], examples.images)
            texts |= {"kind": kinds, "box_dialect": dialects}
            texts |= {name: [row.get(name) for row in rows] for name in ("answers", "sampling")}
            texts["box"] = [None] * len(rows)
            if options.expressions == "locate":
                pairs = zip(rows, kinds, strict=True)
                texts["box"] = [meant_box(row) if kind == EXPRESSION else None for row, kind in pairs]
        return {**inputs.reported(), **identify(rows), **texts}

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """Judges the generated answer of each example, or the most likely token after each part of the gold one."""
        for number, row in enumerate(rows):
            logits, labels = answer_tokens(*one_example(outputs, batch, number))
            confidence, predicted = logits.float().softmax(-1).max(-1)
            words = context.tokenizer.decode(predicted, skip_special_tokens=True)
            if "generated" in batch:
                words = batch["generated"][number]
            phrases = row.get("phrases") or ()
            yield Judged(
                row_key(row),
                row["image_id"],
                "answers",
                None,
                confidence.mean().item() if len(labels) else 0.0,
                batch["answer"][number],
                words,
                texts=(("prompt", batch["prompt"][number]),),
                kinds={"kind": row_kind(row)},
                boxes=tuple(Box(MEANT, tuple(box), each["text"]) for each in phrases for box in each["boxes"]),
            )


def _texts(chats: Sequence[Chat], image_count: int) -> Fields:
    if all(len(chat.messages) == 1 for chat in chats):
        return {"text": [chat.prompt for chat in chats], "text_pair": [chat.answer for chat in chats]}
    return {"text": [chat.conversation(image_count) for chat in chats]}


def language_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the negative log-likelihood of the tokens of the answers."""
    return cross_entropy_sum(*answer_tokens(outputs, batch))[0]


def score(outputs: Any, batch: Batch) -> Scored:
    """Scores the answers of each example: the part of them whose every token is the most likely one after those before
    it (so greedy decoding gives this answer), and the mean negative log-likelihood of their tokens."""
    exact: list[float | None] = []
    losses: list[float | None] = []
    for number in range(len(batch["labels"])):
        logits, labels = answer_tokens(*one_example(outputs, batch, number))
        known = len(labels) > 0
        exact.append(_part_exact(logits.argmax(-1) == labels, batch["labels"][number]) if known else None)
        losses.append(cross_entropy_sum(logits, labels)[0].item() / len(labels) if known else None)
    return Scored({"answers_accuracy": exact, "answers_loss": losses})


def _part_exact(right: Tensor, labels: Tensor) -> float:
    """The part of the answers of an example, each a run of learned tokens, in which every token is right."""
    places = (labels[1:] >= 0).nonzero().flatten()
    answer = (places.diff(prepend=places[:1]) > 1).cumsum(0)
    wrong = answer[~right.to(answer.device)].unique()
    return 1.0 - len(wrong) / (int(answer[-1]) + 1)


TASK = GroundedGeneration()


def collate(examples: Examples, processor: Any, options: GroundedGenerationOptions) -> Fields:
    """The batch of rows for these options, see [`GroundedGeneration`]."""
    return TASK.configure(options).collate(examples, processor)
