# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Many visitors at once: each gets the answer about its own picture, uploads are deleted, nothing leaves a folder."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gradio as gr
import httpx
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from grounded_attention.lens.page import LONGEST
from grounded_attention.space import page as page_module
from grounded_attention.space.settings import SMALL_VLM, SpaceSettings
from tests.space.space_pages import serve

VISITORS = 20
NAME = next(iter(SMALL_VLM))


@pytest.fixture(scope="module")
def address():
    with serve(SpaceSettings()) as address:
        yield address


def painted(folder, number):
    """A picture of one visitor; its size names it."""
    path = folder / f"{number}.png"
    Image.new("RGB", (160 + number, 120), (number * 12, 90, 200)).save(path)
    return path


def ask(address, picture):
    """Uploads a picture and asks about it: the page of the answer, and the error line."""
    client = Client(address, verbose=False, httpx_kwargs={"timeout": 120})
    uploaded = client.predict(handle_file(str(picture)), api_name="/open_file")
    if uploaded[-1]:
        return "", uploaded[-1]
    return client.predict("Describe the image.", NAME, "heads that ground", api_name="/ask")


def test_twenty_visitors_at_once_get_their_own_answers(address, tmp_path):
    pictures = [painted(tmp_path, number) for number in range(VISITORS)]
    with ThreadPoolExecutor(VISITORS) as pool:
        answers = list(pool.map(lambda picture: ask(address, picture), pictures))
    for number, (view, error) in enumerate(answers):
        assert not error
        heights = set(re.findall(r"&quot;height&quot;: ?(\d+)", str(view)))
        assert heights == {str(round(120 * LONGEST / (160 + number)))}, view[:300]


@pytest.mark.parametrize("content", [b"", b"no picture", b"%!PS-Adobe", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_wrong_upload_is_one_line(address, tmp_path, content):
    wrong = tmp_path / "holiday.png"
    wrong.write_bytes(content)
    view, error = ask(address, wrong)
    assert not view
    assert 'role="alert"' in error
    assert "\n" not in error
    assert str(tmp_path) not in error


def test_no_file_outside_can_be_fetched(address, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for path in (secret, Path(gr.__file__), Path("/etc/hostname")):
        for form in (f"{address}/gradio_api/file={path}", f"{address}/gradio_api/file=../../../../../../{path}"):
            assert httpx.get(form).status_code in (403, 404)
    call = f"{address}/gradio_api/call/open_file"
    named = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}  # not uploaded: a file of the server
    event = httpx.post(call, json={"data": [named]}).json()["event_id"]
    assert httpx.get(f"{call}/{event}", timeout=30).text.startswith("event: error")


def test_uploads_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(page_module, "KEPT_SECONDS", 1)
    picture = painted(tmp_path, 1)
    with serve(SpaceSettings()) as address:
        assert ask(address, picture)[1] == ""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(path.is_file() for path in (tmp_path / "kept").rglob("1.png")):
            time.sleep(0.5)
        assert not [path for path in (tmp_path / "kept").rglob("1.png") if path.is_file()]
