# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `serve` as a process of its own, and how it ends."""

import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from grounded_attention.commands.serve import main
from grounded_attention.lens.look import look
from grounded_attention.training.experiments.pretrained import load_vlm
from tests.helpers.commands import ROOT, read_error
from tests.helpers.live_server import chat_about, data_url, file_of
from tests.helpers.tiny_vlm_files import save_llava

LENGTH = 300
KEY = "GROUNDED_ATTENTION_API_KEY"


def test_a_place_that_cannot_be_had_is_refused_before_the_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = [("--port", "70000"), ("--host", "nowhere.invalid"), ("--port", str(taken.getsockname()[1]))]
        for place in places:
            try:
                status = main(["--model", "absent", *place])
            except SystemExit as end:  # argparse
                status = end.code
            assert status == 2
            line = read_error(capsys)
            assert place[0] in line
            assert place[1] in line


def test_a_process_that_is_told_to_end_finishes_its_answer(tmp_path, monkeypatch):
    folder = str(save_llava(tmp_path / "llava"))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
    monkeypatch.setenv(KEY, "secret")
    command = [sys.executable, "-m", "grounded_attention", "serve", "--model", folder, "--port", "0", "--heads", "all"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            printed = ""
            while not (found := re.search(r"running on (http://\S+)", printed)):
                line = process.stderr.readline()
                assert line, printed
                printed += line
            client = OpenAI(base_url=f"{found[1]}/v1", api_key="secret", max_retries=0)
            messages = chat_about(data_url(file_of(picture)), "what is this ?")
            parts = client.chat.completions.create(
                model=folder, messages=messages, temperature=0, max_tokens=LENGTH, stream=True
            )
            choices = [next(parts).choices[0]]
            process.send_signal(signal.SIGTERM)
            choices += [part.choices[0] for part in parts]
            process.wait(timeout=30)
        finally:
            process.kill()
        rest = process.stderr.read()
    assert process.returncode in (0, -signal.SIGTERM), printed + rest
    assert "Traceback" not in printed + rest
    lens = look(*load_vlm(folder), picture, "what is this ?", heads="all", max_new_tokens=LENGTH)
    assert "".join(choice.delta.content or "" for choice in choices) == lens.answer
    words = choices[-1].delta.grounding["words"]
    places = [place for word, place in zip(lens.words, lens, strict=True) if word.answer]
    assert [word["share"] for word in words] == pytest.approx([place.share for place in places], abs=1e-6)
