# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of an answer of `grounded-attention serve` with where the model looked, compared to one without.

A LLaVA in small (Llama, 4 layers of width 512, 8 heads; vision tower and tokenizer of the model that comes with the
package) with random weights answers 100 tokens about an image of N tokens. OpenAI's client asks the same server in
turns with `grounding` true and false, which is plain `generate`. Times are CPU seconds of the process, in which
client and server run; memory is the peak above weights, each way in a new process.

examples:
  python -m benchmarks.serve
"""

import argparse
import base64
import io
import socket
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import uvicorn
from openai import OpenAI
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from benchmarks.measuring import Workload, benchmark_parser, compare, report, small_llama
from grounded_attention.commands.command_line import run
from grounded_attention.lens.server import build_app
from grounded_attention.utils.project import PACKAGE

SMALL = PACKAGE / "space" / "models" / "vlm" / "direct"
NAME = "small"
ANSWER = 100
TEXT = "what color is the little heart ?"


@cache
def start_server(tokens: int, quick: bool) -> str:
    """The address of a server of this process with a random model."""
    torch.manual_seed(0)
    processor = AutoProcessor.from_pretrained(SMALL)
    config: Any = AutoConfig.from_pretrained(SMALL)
    side = round(tokens**0.5) * processor.patch_size
    processor.image_processor.size = {"height": side, "width": side}
    config.name_or_path = ""  # its heads.json is of another model
    config.text_config = small_llama(quick)
    config.text_config.vocab_size = len(processor.tokenizer)
    model = AutoModelForImageTextToText.from_config(config)
    # Every answer has its length, and each token is a word.
    vocabulary = processor.tokenizer.get_vocab()
    model.generation_config.suppress_tokens = [token for word, token in vocabulary.items() if not word.isalpha()]
    place = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(build_app(model, processor, NAME), log_level="warning"))
    threading.Thread(target=server.run, args=([place],), daemon=True).start()
    return f"http://127.0.0.1:{place.getsockname()[1]}/v1"


class Chat(Workload):
    """A client; a step asks with or without grounding."""

    def __init__(self, way: str, tokens: int, options: argparse.Namespace):
        self.grounding = way == "grounding"
        self.client = OpenAI(base_url=start_server(tokens, options.quick), api_key="none")
        picture = io.BytesIO()
        Image.linear_gradient("L").convert("RGB").save(picture, "PNG")
        url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
        image = {"type": "image_url", "image_url": {"url": url}}
        self.messages: Any = [{"role": "user", "content": [image, {"type": "text", "text": TEXT}]}]

    def warm_up(self) -> None:
        self.client.models.list()

    def step(self) -> Any:
        answer = self.client.chat.completions.create(
            model=NAME,
            messages=self.messages,
            max_tokens=ANSWER,
            temperature=0,
            extra_body={"grounding": self.grounding},
        )
        return answer.choices[0].message


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(benchmark_parser("serve", __doc__, rounds=5), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    sizes = (64,) if options.quick else (576, 2304)
    pairs = (("grounding", "plain"),)
    ratios = {f"{size} image tokens": compare(Chat, ("plain", "grounding"), pairs, size, options) for size in sizes}
    return report(ratios, options.json, "time, grounding / plain <= 1.3")


if __name__ == "__main__":
    sys.exit(main())
