# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The one reader of messages, of conversations of any source and of the rows of a Trainer; it needs no extra."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grounded_attention.utils.named_types import Columns, Fields

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
    if not turns:
        raise RowError(f"bad {name}", found=turns, expected="a list of messages")
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
