# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""OpenAI's chat completions over HTTP, with where the model looked beside each answer.

It is an application of its own: `build_server` of `transformers serve` changes its parameters between the versions
that this package supports, and its routes load any model and fetch any address that a request names.
"""

import asyncio
import hmac
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import BoundedSemaphore
from typing import Any

import anyio
from anyio import from_thread
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from transformers.utils import logging

from grounded_attention.utils.named_types import Fields

from .chat_answers import Answer, ChatModel
from .chat_requests import ChatRequest, RequestError, ServerSettings, read_messages, read_request
from .exchanges import GivenHeads

logger = logging.get_logger(__name__)

BODY_SECONDS = 60  # in which a request must have arrived
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
REFUSED = (ValueError, RecursionError, ClientDisconnect)
FIELD = re.compile(r"(?:unknown key ')?([a-z_]+)[\w.]*[:']")  # at the start of a message


def build_app(
    model: Any, processor: Any, name: str, *, heads: GivenHeads = "auto", settings: ServerSettings | None = None
) -> FastAPI:
    """Makes a web application that answers as OpenAI's, at `/v1/chat/completions`, `/v1/models` and `/health`.

    The model answers one request after another. A message has, beside `content`, `grounding`: `words` of the answer
    (`text`; `start` and `end`, characters of `content`; `image`, from 0; `box`, x1, y1, x2, y2 in [0, 1]; `share` of
    the attention that goes to this image; `point`, x and y in [0, 1]), `heads`, (layer, head) pairs from 0, and
    `heads_from`. A stream has it in its last part, and a request with `"grounding": false` not at all.

    Args:
        model (`PreTrainedModel`): as for [`look`]; it is set to evaluation mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor, with a chat template.
        name (`str`): the name of the model in requests.
        heads (*optional*, defaults to `"auto"`): whose attention is shown, as for [`look`].
        settings (`ServerSettings`, *optional*): limits, API key, and hosts from which pictures are fetched.

    Returns:
        `FastAPI`: for a server of one process.

    Raises:
        ValueError: if model and processor do not fit, or a head does not exist.
    """
    settings = settings or ServerSettings()
    chat = ChatModel(model, processor, heads, settings.max_tokens)
    places = BoundedSemaphore(settings.queue)
    model_thread = anyio.CapacityLimiter(1)
    created = int(time.time())
    app = FastAPI(openapi_url=None, exception_handlers=dict.fromkeys(REFUSED, refuse))

    async def authorise(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if settings.api_key is not None and not hmac.compare_digest(given, f"Bearer {settings.api_key}".encode()):
            raise RequestError("the API key is missing or wrong", 401, "invalid_api_key")

    @app.get("/health")
    async def health() -> Fields:
        return {"status": "ok"}

    @app.get("/v1/models", dependencies=[Depends(authorise)])
    async def models() -> Fields:
        one = {"id": name, "object": "model", "created": created, "owned_by": "grounded-attention"}
        return {"object": "list", "data": [one]}

    @app.post("/v1/chat/completions", dependencies=[Depends(authorise)])
    async def complete(request: Request) -> Response:
        if not places.acquire(blocking=False):
            raise RequestError(f"{settings.queue} requests run or wait already; try again later", 429)
        try:
            asked = await run_sync(read_request, await _read_body(request, settings.max_bytes))
            if asked.model != name:
                raise RequestError(f"model: {asked.model!r:.200}, expected {name!r}", 404, "model_not_found")
            messages = await run_sync(read_messages, asked, settings)
        except BaseException:
            places.release()
            raise
        return _ChatResponse(
            asked, lambda tell: run_sync(chat.answer, asked, messages, tell, limiter=model_thread), places
        )

    return app


async def refuse(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that is refused, in OpenAI's form."""
    status = getattr(error, "status", 400)
    named = FIELD.match(str(error))
    about: Fields = {"message": str(error), "type": KINDS.get(status, "invalid_request_error")}
    about |= {"param": named and named[1], "code": getattr(error, "code", None)}
    return JSONResponse({"error": about}, status, HEADERS.get(status))


async def _read_body(request: Request, most: int) -> bytes:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("application/json"):  # pages of strangers may send others without being asked
        raise RequestError(f"content-type: {kind!r:.80}, expected application/json", 415)
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise RequestError(f"the request has more than {most} bytes", 413)
    except TimeoutError:
        raise RequestError(f"the request has not arrived in {BODY_SECONDS} seconds", 408) from None
    return bytes(body)


class _ChatResponse(Response):
    """Lets the model answer, and ends it when the client goes; it has a place of `places`."""

    def __init__(self, request: ChatRequest, answer: Callable[..., Awaitable[Answer]], places: BoundedSemaphore):
        super().__init__()
        self.request = request
        self.answer = answer
        self.places = places
        self.events: asyncio.Queue[str | Answer | Exception] = asyncio.Queue()
        self.about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def leave() -> None:
                    await receive()  # after the body there is one more message: that the client has gone
                    group.cancel_scope.cancel()

                group.start_soon(leave)
                group.start_soon(self._work)
                response = await self._respond(await self.events.get())
                await response(scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            self.places.release()

    async def _work(self) -> None:
        event: Answer | Exception
        try:
            event = await self.answer(self._tell)
        except RequestError as error:
            event = error
        except Exception:
            logger.exception("the model failed")
            event = RequestError("the model failed; the log of the server says why", 500)
        self.events.put_nowait(event)

    def _tell(self, text: str) -> None:
        """Called in the thread of the model, which ends here if the client has gone."""
        from_thread.check_cancelled()
        if self.request.stream:
            from_thread.run_sync(self.events.put_nowait, text)

    async def _respond(self, event: str | Answer | Exception) -> Response:
        if isinstance(event, Exception):
            return await refuse(Request({"type": "http"}), event)
        if isinstance(event, str):
            return StreamingResponse(self._lines(), media_type="text/event-stream")
        message = {"role": "assistant", "content": event.text, **event.places}
        content = self._content("chat.completion", message=message, finish_reason=event.finish_reason)
        return JSONResponse(content | {"usage": event.usage})

    def _content(self, kind: str, **choice: Any) -> Fields:
        return {"object": kind, **self.about, "choices": [{"index": 0, "logprobs": None, **choice}]}

    def _line(self, delta: Fields, reason: str | None = None) -> str:
        content = self._content("chat.completion.chunk", delta=delta, finish_reason=reason)
        return f"data: {json.dumps(content)}\n\n"

    async def _lines(self) -> AsyncIterator[str]:
        yield self._line({"role": "assistant", "content": ""})
        event = await self.events.get()
        while isinstance(event, str):
            if event:
                yield self._line({"content": event})
            event = await self.events.get()
        if isinstance(event, Exception):
            refused = await self._respond(event)
            yield f"data: {bytes(refused.body).decode()}\n\n"
            return
        yield self._line(event.places, event.finish_reason)
        yield "data: [DONE]\n\n"
