# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers chats about images over HTTP as OpenAI's API does, and says for each word of an answer where it looked.

OpenAI's clients work unchanged: base URL http://HOST:PORT/v1, model MODEL as it is written here. Beside `content` a
message has `grounding`: words with box, point and share of the attention, and the heads. A request with
"grounding": false has none. Pictures are data: URLs; others are fetched from hosts of --allow-host alone. Unknown
fields of a request are refused by name. One answer is made at a time; the others wait. SIGTERM or Ctrl-C lets those
who wait have their answers, a second one ends at once. It needs `pip install "grounded-attention[serve]"`.

examples:
  grounded-attention serve --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16

  # for other machines, with a key
  GROUNDED_ATTENTION_API_KEY=... grounded-attention serve --model runs/my_vlm --host 0.0.0.0 --port 8080
"""

import os
import socket
from dataclasses import replace
from typing import Annotated

from grounded_attention.lens.chat_requests import ServerSettings

from .command_line import Program, Result, explain_error, whole
from .models import ModelOptions, read_heads

KEY = "GROUNDED_ATTENTION_API_KEY"


def serve(
    *,
    model: str,
    loading: ModelOptions,
    heads: str = "auto",
    host: str = "127.0.0.1",
    port: Annotated[int, whole(0, 65535)] = 8000,
    settings: ServerSettings,
) -> Result:
    """Serves a model until the process is told to end.

    Args:
        model (NAME_OR_DIR): a vision-language model with its processor
        heads (WHICH): auto, all, a layer, 14-3,20-0 or heads.json
        host (ADDRESS): 0.0.0.0 lets other machines in
        port (N): 0 takes a free one
    """
    import uvicorn

    from grounded_attention.lens.server import build_app

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()  # before minutes of loading
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error.strerror}") from error
    settings = replace(settings, api_key=settings.api_key or os.environ.get(KEY))
    loaded, processor = loading.load(model)
    app = build_app(loaded, processor, model, heads=read_heads(heads), settings=settings)
    uvicorn.run(app, host=host, port=port, server_header=False)
    return None, ""


main = Program("serve", serve, explain_error, json=False)
