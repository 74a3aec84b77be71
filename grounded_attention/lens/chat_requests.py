# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What clients may ask `grounded-attention serve`: OpenAI's chat completions, their pictures, and limits; no torch."""

import base64
from dataclasses import dataclass
from http.client import HTTPException
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

from annotated_types import Interval, Len

from grounded_attention.utils.bounded_files import parse_json, unique_keys
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.open_images import picture_size
from grounded_attention.utils.plain_text import printable
from grounded_attention.utils.schema import Count, Section, Seed, validate

SECONDS = 20  # without a byte of a picture that is fetched
SHOWN = 80  # characters of an address in a message
STOP = Annotated[str, Len(1, 200)]


@dataclass(frozen=True)
class ServerSettings:
    """What a server allows.

    Args:
        api_key (KEY): what clients give as their key; better in the environment variable GROUNDED_ATTENTION_API_KEY,
            since other users see a command line (default: everybody may ask)
        allow_host (NAME): a host from which pictures are fetched, such as images.example.org or localhost:8080
            (default: none, pictures come inside of requests)
        queue (N): requests that run or wait; further ones are refused with status 429
        max_tokens (N): the longest answer, and that of requests that give no length
        max_bytes (N): the largest request, and the largest picture that is fetched
        max_pixels (N): pixels of all pictures of a request
        max_images (N): pictures of a request
    """

    api_key: str | None = None
    allow_host: list[str] | None = None
    queue: int = 64
    max_tokens: int = 1024
    max_bytes: int = 20_000_000
    max_pixels: int = 50_000_000
    max_images: int = 16


class RequestError(ValueError):
    """A request that is refused with an HTTP status, and OpenAI's code of the mistake if it has one."""

    def __init__(self, message: str, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class ImageAddress(Section):
    """Where a picture is; it is read whole, whatever its detail."""

    url: str
    detail: Literal["auto"] = "auto"


@dataclass(frozen=True)
class Part(Section):
    """Words, or a picture, of a message."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageAddress | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("text", "image_url") if getattr(self, name) is not None]
        if given != [self.type]:
            raise ValueError(f"type {self.type!r} with {given}, expected the field of its type alone")


@dataclass(frozen=True)
class Message(Section):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | list[Part]


@dataclass(frozen=True)
class ChatRequest(Section):
    """A request as OpenAI's clients send it, with its defaults; `grounding` is ours."""

    model: str
    messages: Annotated[list[Message], Len(1)]
    stream: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Interval(ge=0, le=2)] | None = None
    top_p: Annotated[float, Interval(gt=0, le=1)] | None = None
    seed: Seed | None = None
    stop: STOP | Annotated[list[STOP], Len(0, 4)] | None = None
    n: Literal[1] | None = None
    grounding: bool = True


def read_request(body: bytes) -> ChatRequest:
    """Reads the body of a request; a ValueError if it is no JSON, or a field is unknown or wrong."""
    content = parse_json(body, "the request", object_pairs_hook=unique_keys)
    if not isinstance(content, dict):
        raise ValueError(f"the request: expected a JSON object, found {type(content).__name__}")
    request: ChatRequest = validate(ChatRequest, content)
    return request


def read_messages(request: ChatRequest, settings: ServerSettings) -> list[Fields]:
    """The messages as `look` takes them, with the files of their pictures, of which the headers were read.

    Raises:
        ValueError: if there are too many pictures or pixels, or one may not be fetched or is no picture.
    """
    messages = []
    pictures = 0
    pixels = 0
    for number, message in enumerate(request.messages):
        parts: list[Fields] = []
        for part in [Part("text", message.content)] if isinstance(message.content, str) else message.content:
            if part.image_url is None:
                parts.append({"type": "text", "text": part.text})
                continue
            name = f"messages.{number}: picture {pictures}"
            content = read_picture(part.image_url.url, settings, name)
            width, height = picture_size(content, name)
            pictures += 1
            pixels += width * height
            if pictures > settings.max_images or pixels > settings.max_pixels:
                most = f"{settings.max_images} pictures and {settings.max_pixels} pixels in all"
                raise ValueError(f"{name}: {width} x {height} pixels; a request has at most {most}")
            parts.append({"type": "image", "image": content})
        messages.append({"role": message.role, "content": parts})
    return messages


class _NoRedirects(HTTPRedirectHandler):
    """Another address may be one of another host, or of a network that only the server sees."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def read_picture(address: str, settings: ServerSettings, name: str) -> bytes:
    """The file of a picture, from its data: URL or an allowed host; a ValueError for any other address."""
    head, _, text = address.partition(";base64,")
    try:
        if head.startswith("data:image/"):
            return base64.b64decode(text, validate=True)
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or parts.netloc.lower() not in (settings.allow_host or ()):
            raise ValueError("not fetched; send data:image/png;base64,... (--allow-host of the server names hosts)")
        # The address in the form that was checked.
        with build_opener(_NoRedirects).open(parts.geturl(), timeout=SECONDS) as answer:
            content: bytes = answer.read(settings.max_bytes + 1)
        if len(content) > settings.max_bytes:
            raise ValueError(f"more than {settings.max_bytes} bytes")
    except (ValueError, OSError, HTTPException) as error:
        raise ValueError(f"{name}, {printable(address, SHOWN)!r}: {error}") from error
    return content
