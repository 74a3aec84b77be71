# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The one reader of messages, and the conversation of a row with the places of its images; it needs no extra.

Conversations of any source, the rows of a Trainer, and what reads answers use it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.named_types import Columns, Fields, Row

from .raw import RowError, first_of, items, plain, structured

ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "model": "assistant",
    "bot": "assistant", "system": "system", "developer": "developer", "tool": "tool",
}  # fmt: skip
ROLE_KEYS = ("from", "role")
CONTENT_KEYS = ("value", "content", "text")
_TEXTS = ("text", "input_text", "output_text")
_PICTURES = ("image", "image_url", "input_image")
_PICTURE_KEYS = ("image", "image_url", "url", "path", "base64")
_PART_KEYS = {"type", "text", "index", "detail", *_PICTURE_KEYS}
_PATH = re.compile(r"<img>([^<>\n]+)</img>")  # Qwen-VL's pictures
_LIST = re.compile(r"\s*\[\s*\{")


def read_messages(turns: Any, name: str) -> tuple[list[Fields], list[Any], list[Any]]:
    """Messages with `role` and `content`; the pictures inside of them; the boxes beside each text (GUI-Actor)."""
    turns = items(plain(turns), name)
    refuse_if(not turns, f"bad {name}", RowError, found=turns, expected="a list of messages")
    messages = []
    pictures = []
    beside = []
    for number, each in enumerate(turns):
        where = f"{name}, message {number}"
        role = each.get(first_of(each, ROLE_KEYS) or "")
        content = each.get(first_of(each, CONTENT_KEYS) or "")
        role = str(role).strip("<|>: ").lower()  # DeepSeek writes <|User|>
        if role not in ROLES:
            raise RowError(f"{where}: an unknown role", found=role or each, expected=", ".join(ROLES))
        if content is None and each.get("tool_calls"):
            content = []
        if isinstance(content, str) and (parts := _list_in(content)) and all(map(_is_part, parts)):
            content = parts
        if isinstance(content, list):
            content, inside = _parts(content, where)
            pictures += inside
        elif isinstance(content, str):
            pictures += _PATH.findall(content)
            content = _PATH.sub("<image>", content)
        else:
            raise RowError(f"{where}: bad content", found=content, expected="a text, or a list of parts")
        messages.append({"role": ROLES[role], "content": content})
        beside += [_beside(each)] * len(message_texts(messages[-1:]))
    return messages, pictures, beside


def messages_in(value: Any) -> list[Any] | None:
    """The messages that a prompt or an answer is, as a list or in a text; None for any other text or list."""
    if isinstance(value, str):
        value = _list_in(value)
    if not isinstance(value, list):
        return None
    if all(isinstance(each, Mapping) and first_of(each, ROLE_KEYS) for each in value):
        return value
    return None


def _list_in(text: str) -> list[Any] | None:
    """The objects of a list that a text is in JSON or Python; None for any other text."""
    if not _LIST.match(text):
        return None
    try:
        value = structured(text, "text")
    except RowError:  # an answer may begin in the same way
        return None
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return value
    return None


def _is_part(value: Columns) -> bool:
    """Whether an object is a part of a message, and not of an answer that is written in JSON."""
    return value.get("type") in (*_TEXTS, *_PICTURES) and value.keys() <= _PART_KEYS


def _beside(message: Columns) -> Any:
    """The box of a message of GUI-Actor, or the two points of a drag."""
    drag = [message[key] for key in ("from_coord", "to_coord") if message.get(key) is not None]
    if message.get("bbox_gt") is not None:
        return message["bbox_gt"]
    return drag or None


def _parts(content: Sequence[Any], where: str) -> tuple[list[Fields], list[Any]]:
    """The parts of a message in the form of chat templates, and the pictures that are inside of them."""
    parts = []
    pictures = []
    for part in content:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if isinstance(part, Mapping):
            about = {key: value for key, value in part.items() if value is not None}
        else:
            about = {}
        if isinstance(about.get("text"), str) and about.get("type", "text") in _TEXTS:
            parts.append({"type": "text", "text": about["text"]})
        elif about.get("type") in _PICTURES or "image" in about:
            picture = about.get(first_of(about, _PICTURE_KEYS) or "")
            if isinstance(picture, Mapping) and "url" in picture:
                picture = picture.get("url")
            pictures += [] if picture is None else [picture]
            parts.append({"type": "image"})
        else:
            raise RowError(f"{where}: an unknown part", found=part, expected="type text or image")
    return parts, pictures


def text_places(messages: Sequence[Any]) -> list[tuple[Any, str]]:
    """Where the texts of messages are, in order: a message or one of its parts, and the key there."""
    places: list[tuple[Any, str]] = []
    for message in messages:
        if isinstance(message["content"], str):
            places.append((message, "content"))
        else:
            places += [(part, "text") for part in message["content"] if "text" in part]
    return places


def message_texts(messages: Sequence[Columns]) -> list[str]:
    """The texts of messages, in order; a message of parts may have several."""
    return [holder[key] for holder, key in text_places(messages)]


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
