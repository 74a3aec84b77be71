# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a user asks: a text or a conversation, with its pictures in their order."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from grounded_attention.processing.chat_prompts import is_conversation
from grounded_attention.processing.videos import FPS, Video, open_video
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.open_images import open_image

Pictures = list[Image.Image | Video]


def read_chat(images: Any, asked: Any, video: Any = None, fps: float = FPS) -> tuple[Any, Pictures]:
    """The prompt for the processor, a text or a conversation, and its images and videos in their order."""
    if images is None:
        given_images = []
    elif isinstance(images, list | tuple):
        given_images = list(images)
    else:
        given_images = [images]
    given_images += [] if video is None else [open_video(video, fps)]
    if isinstance(asked, str):
        if not given_images:
            raise ValueError("look needs an image")
        _check_words(asked)
        return asked, _open(given_images)
    if not is_conversation(asked) or asked[-1].get("role") == "assistant":
        raise ValueError(
            "expected a text, or messages of a conversation that ends with the user; give its answer as `answer`"
        )
    chat: list[Fields] = []
    pictures: list[Any] = []
    waiting = list(given_images)
    for message in asked:
        content = message.get("content")
        if isinstance(content, str):
            parts = [{"type": "text", "text": content}]
        else:
            parts = list(content or ())
        read: list[Fields] = []
        for part in parts:
            kind = part.get("type")
            if kind not in ("image", "video"):
                read.append(dict(part))
                continue
            picture = next((part[key] for key in (kind, "path", "url") if part.get(key) is not None), None)
            if picture is None:
                of_kind = [n for n, each in enumerate(waiting) if isinstance(each, Video) == (kind == "video")]
                if not of_kind:
                    raise ValueError(f"messages have more places for {kind}s than there are; give one for each")
                picture = waiting.pop(of_kind[0])
            pictures.append(open_video(picture, fps) if kind == "video" else picture)
            read.append({"type": kind})
        chat.append({**message, "content": read})
    if waiting:
        user = next((message for message in chat if message["role"] == "user"), None)
        if pictures or user is None:
            raise ValueError(f"messages have places for {len(pictures)} images, but there are {len(waiting)} more")
        kinds = ("video" if isinstance(each, Video) else "image" for each in waiting)
        user["content"] = [*({"type": kind} for kind in kinds), *user["content"]]
        pictures = waiting
    if not pictures:
        raise ValueError("look needs an image")
    _check_words(chat)
    return chat, _open(pictures)


def _check_words(chat: Any) -> None:
    if not any(text.strip() for text in prompt_texts(chat)):
        raise ValueError("the question is empty: give words of the user about the images")


def _open(pictures: Sequence[Any]) -> Pictures:
    return [each if isinstance(each, Video) else open_image(each, f"image {n}") for n, each in enumerate(pictures)]


def prompt_texts(chat: Any) -> list[str]:
    """The texts of a prompt, which is a text or a conversation whose messages have lists of parts."""
    if isinstance(chat, str):
        return [chat]
    return [part["text"] for message in chat for part in message["content"] if part.get("type") == "text"]
