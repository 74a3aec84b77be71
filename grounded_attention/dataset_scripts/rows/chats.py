# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The conversation of a row with the places of its images, for training and for what reads answers; needs no extra."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.named_types import Fields, Row

from .messages import CONTENT_KEYS, ROLE_KEYS, messages_in, read_messages
from .raw import first_of, items, plain

# What a text has at the place of an image, with the white space behind it; and what a text alone answers.
PLACE = "<image>"
_PLACES = re.compile(r"<image>\s*")
DESCRIBE = "Describe the image."
MESSAGES = ("messages", "conversations", "conversation")  # columns of them, in the order in which they are looked for
Chat = list[Fields]


def row_images(row: Row) -> list[Any]:
    """The pictures of a row, of `images` or `image`."""
    return listed(row.get("images")) or listed(row.get("image"))


def listed(value: Any) -> list[Any]:
    """The entries of a column of a row: a list, a tuple or an array of objects, or one entry; none for None."""
    if isinstance(value, (list, tuple)) or getattr(getattr(value, "dtype", None), "hasobject", False):
        return list(value)
    if value is None:
        return []
    return [value]


def row_conversation(row: Row, name: str) -> tuple[Chat, list[Any]]:
    """The messages of a row, each with a list of parts, and with places for the images; the images."""
    turns = first_of(row, MESSAGES)
    if turns is not None:
        messages, inside = _read(row[turns], f"{name}, {turns}")
    elif row.get("prompt") is not None and row.get("completion") is not None:
        asked, inside = _messages(row["prompt"], "user", f"{name}, prompt")
        answered, further = _messages(row["completion"], "assistant", f"{name}, completion")
        messages = [*asked, *answered]
        inside = [*inside, *further]
    elif row.get("text") is not None:
        asked, _ = _messages(DESCRIBE, "user", name)
        messages, inside = _messages(row["text"], "assistant", f"{name}, text")
        messages = [*asked, *messages]
    else:
        raise ValueError(f"{name} has the columns {', '.join(row)}; expected messages, or prompt and completion")
    if row.get("video") is not None or row.get("videos") is not None:
        raise ValueError(f"{name} has a video, from which models do not learn here; give frames as `images`")
    images = row_images(row) or inside
    parts = [part for message in messages for part in message["content"]]
    written = sum(part["text"].count(PLACE) for part in parts if part["type"] == "text")
    if not any(part["type"] == "image" for part in parts) and not (written and written == len(images)):
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None and images:
            raise ValueError(f"{name} has images, but no message of the user")
        if first is not None:
            first["content"] = [*({"type": "image"} for _ in images), *first["content"]]
    return messages, images


def place_images(chat: Chat, phrases: list[Phrase], count: int) -> tuple[Chat, list[Phrase]]:
    """Puts the places of images for `<image>`, if the texts have one for each of them, and moves the phrases."""
    if not count or sum(text.count(PLACE) for text in chat_texts(chat)) != count:
        return chat, phrases
    pieces: list[tuple[int, int, int]] = []  # text, first and last character of what stays a text
    messages = []
    number = 0
    for message in chat:
        parts: list[Fields] = []
        for part in message["content"]:
            if part["type"] != "text":
                parts.append(part)
                continue
            end = 0
            for start, stop in [*(each.span() for each in _PLACES.finditer(part["text"])), (len(part["text"]), None)]:
                if part["text"][end:start].strip():
                    pieces.append((number, end, start))
                    parts.append({"type": "text", "text": part["text"][end:start]})
                if stop is not None:
                    parts.append({"type": "image"})
                    end = stop
            number += 1
        messages.append({**message, "content": parts})
    moved = []
    for phrase in phrases:
        for index, (text, start, end) in enumerate(pieces):
            if text == phrase.sentence and start <= phrase.start and phrase.end <= end:
                moved.append(replace(phrase, sentence=index, start=phrase.start - start, end=phrase.end - start))
    return messages, moved


def _messages(value: Any, role: str, name: str) -> tuple[Chat, list[Any]]:
    """Reads a prompt or an answer: messages, also in a text of JSON, or the content of one message."""
    value = plain(value)
    return _read(messages_in(value) or [{"role": role, "content": value}], name)


def _read(turns: Any, name: str) -> tuple[Chat, list[Any]]:
    """Messages with lists of parts, and what else a template may take of each; the pictures inside of them."""
    turns = items(plain(turns), name)
    messages, pictures, _ = read_messages(turns, name)
    for message, given in zip(messages, turns, strict=True):
        content = message["content"]
        message["content"] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        more = {key: value for key, value in given.items() if value is not None}
        message.update({key: more[key] for key in more.keys() - {*ROLE_KEYS, *CONTENT_KEYS}})
    return messages, pictures


def chat_texts(chat: Sequence[Row]) -> list[str]:
    """The texts of a conversation whose messages have lists of parts, in order."""
    return [part["text"] for message in chat for part in message["content"] if part["type"] == "text"]
