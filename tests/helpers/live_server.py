# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A web application on a free port of this machine, in a thread; pictures and chats as OpenAI's clients send them."""

import base64
import io
import json
import socket
import threading
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlsplit

import uvicorn


@contextmanager
def serving(app):
    """The address of an application while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    text: str

    def json(self):
        return json.loads(self.text)


def connect(address, method, path, content=b"", timeout=60, **headers):
    """The connection to an address, after its request was sent."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=timeout)
    connection.request(method, path, content, {"content-type": "application/json"} | headers)
    return connection


def get(address, path):
    """What a server says at a path."""
    with closing(connect(address, "GET", path)) as connection:
        reply = connection.getresponse()
        return Reply(reply.status, reply.read().decode())


def post_chat(address, content, **headers):
    """What a server says to a body, JSON by default."""
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    with closing(connect(address, "POST", "/v1/chat/completions", content, **headers)) as connection:
        reply = connection.getresponse()
        return Reply(reply.status, reply.read().decode())


def file_of(picture, kind="PNG"):
    """The bytes of a picture's file."""
    content = io.BytesIO()
    picture.save(content, kind)
    return content.getvalue()


def data_url(content):
    """The data: URL of a file."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def chat_about(url, text):
    """The messages of a question about a picture."""
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]
