# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prompts of vision-language models: a text or a conversation in the chat template, and where its texts stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..utils.named_types import Columns, Fields

# A character for private use, which no template and no text should contain.
MARK = "\ue0ff"


@dataclass(frozen=True)
class PromptText:
    """A text that a user wrote, in a prompt."""

    text: str
    first: int  # The first character that is in the prompt; templates remove blanks at both ends
    start: int  # The position of this character in the prompt
    end: int  # The position in the prompt after the last character
    answer: bool = False  # Whether it is a text of the assistant


@dataclass(frozen=True)
class Prompt:
    """A prompt before the processor inserts image tokens."""

    text: str  # The prompt; one token stands for an image
    parts: list[PromptText]  # The texts in it, in order, or in the sequence of a decoder
    given: str | None = None  # What a processor that makes the prompt itself is given
    decoder: str | None = None  # The sequence of a decoder that answers apart


def is_conversation(value: Any) -> bool:
    """Returns whether a value is a list of messages (`bool`)."""
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def make_conversation(text: str, answer: str | None, kinds: Sequence[str]) -> list[Fields]:
    """Makes the conversation of one example: the user gives images (or videos) and a text, the assistant answers."""
    content = [*({"type": kind} for kind in kinds), {"type": "text", "text": text}]
    if answer is None:
        answers = []
    else:
        answers = [{"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    return [{"role": "user", "content": content}, *answers]


def plain_prompt(text: str, tokens: Sequence[str]) -> Prompt:
    """Makes a prompt without a template: images first, unless the text says by their tokens where they stand."""
    before = ""
    if not any(token in text for token in tokens):
        before = "".join(tokens)
    return Prompt(before + text, [PromptText(text, 0, len(before), len(before + text))])


def read_exchange(text: Any, answer: str | None, name: str) -> list[str]:
    """The words of the user and an answer, of a conversation or two texts, for a model without turns."""
    if not is_conversation(text):
        return [text] if answer is None else [text, answer]
    texts: list[str] = []
    for message in text:
        _mark_message(message, texts)
    roles = [message.get("role") for message in text]
    if answer is not None or len(texts) != len(roles) or roles not in (["user"], ["user", "assistant"]):
        raise ValueError(f"{name}: this model has no turns; give one text of the user, and at most one answer.")
    return texts


def render_prompt(processor: Any, conversation: Sequence[Columns], name: str) -> Prompt:
    """Renders a conversation with the chat template of the processor, and finds its texts in the result."""
    texts: list[str] = []
    marked_conversation: list[Fields] = []
    answers: list[bool] = []
    for message in conversation:
        marked_conversation.append(_mark_message(message, texts))
        answers.extend([message.get("role") == "assistant"] * (len(texts) - len(answers)))
    if any(MARK in text for text in texts):
        raise ValueError(f"{name}: a text contains the character {MARK!r}; remove it.")
    owner = processor if getattr(processor, "chat_template", None) else processor.tokenizer
    generate = conversation[-1].get("role") != "assistant"
    try:
        plain = owner.apply_chat_template(
            [dict(message) for message in conversation], tokenize=False, add_generation_prompt=generate
        )
        marked = owner.apply_chat_template(marked_conversation, tokenize=False, add_generation_prompt=generate)
    except Exception as error:  # Jinja and the expressions of a template raise any type
        raise ValueError(
            f"{name}: the chat template of {type(processor).__name__} fails ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); the file is damaged or expects other messages; copy it again."
        ) from error
    pieces = marked.split(MARK)
    if "".join(pieces) != plain or pieces[1::2] != [text.strip() for text in texts]:
        raise ValueError(
            f"{name}: the chat template of {type(processor).__name__} changes or leaves out a text, so that phrases "
            "cannot be found in it; give the prompt as one text with image tokens."
        )
    parts = []
    end = 0
    for text, before, core, answer in zip(texts, pieces[::2], pieces[1::2], answers, strict=False):
        start = end + len(before)
        end = start + len(core)
        parts.append(PromptText(text, text.find(core), start, end, answer))
    return Prompt(plain, parts)


def end_answer(prompt: Prompt, tokenizer: Any, name: str) -> Prompt:
    """Makes sure that a special token ends the last answer, so that a model can learn where to stop."""
    if not prompt.parts or not prompt.parts[-1].answer:
        raise ValueError(
            f"{name}: labels need an answer to learn; give text_pair, or a conversation that ends with the assistant, "
            "and a chat template."
        )
    after = (prompt.decoder or prompt.text)[prompt.parts[-1].end :]
    if tokenizer.eos_token is None or any(token in after for token in tokenizer.all_special_tokens):
        return prompt
    if prompt.decoder is not None:
        return replace(prompt, decoder=prompt.decoder + tokenizer.eos_token)
    return replace(prompt, text=prompt.text + tokenizer.eos_token)


def _mark_message(message: Columns, texts: list[str]) -> Fields:
    """Copies a message with a mark at both ends of each text, and appends its texts to `texts`."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _mark_text(content, texts)}
    parts = []
    for part in content or ():
        parts.append({**part, "text": _mark_text(part["text"], texts)} if part.get("type") == "text" else part)
    return {**message, "content": parts}


def _mark_text(text: str, texts: list[str]) -> str:
    texts.append(text)
    core = text.strip()  # templates remove blanks at the ends, so the marks stand inside of them
    start = text.find(core)
    return f"{text[:start]}{MARK}{core}{MARK}{text[start + len(core) :]}"
