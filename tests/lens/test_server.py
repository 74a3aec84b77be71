# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The server answers OpenAI's client with the text of `generate` and the boxes of `look`, and survives its clients."""

import json
import re
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import numpy as np
import openai
import pytest
from openai import OpenAI
from PIL import Image

from grounded_attention.lens.chat_answers import settled
from grounded_attention.lens.chat_requests import ServerSettings
from grounded_attention.lens.look import look
from grounded_attention.lens.server import build_app
from grounded_attention.training.experiments.pretrained import load_vlm
from tests.helpers.live_server import chat_about, connect, data_url, file_of, get, post_chat, serving
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import WORDS

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
FILE = file_of(PICTURE)
URL = data_url(FILE)
TEXT = "what is the small cat near two red balls ?"
SAID = [word for word in WORDS if word.isalpha()]
NAME = "org/tiny"
LENGTH = 8
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": LENGTH}


def make_words(family="llava"):
    """A model whose answers are words of its tokenizer."""
    model, processor = make_pair(family)
    words = {*processor.tokenizer.convert_tokens_to_ids(SAID)}
    size = model.config.get_text_config().vocab_size
    model.generation_config.suppress_tokens = [token for token in range(size) if token not in words]
    return model, processor


PAIR = make_words()


@pytest.fixture(scope="module")
def address():
    with serving(build_app(*PAIR, NAME)) as running:
        yield running


@pytest.fixture(scope="module")
def client(address):
    return OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def ask(client, text=TEXT, url=URL, **options):
    return client.chat.completions.create(messages=chat_about(url, text), **{**GREEDY, **options})


def plain_answer(model, processor, text=TEXT):
    """What `generate` of transformers says, without this package."""
    content = [{"type": "image"}, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, images=[PICTURE], return_tensors="pt")
    tokens = model.generate(**inputs, do_sample=False, max_new_tokens=LENGTH)[0, inputs["input_ids"].shape[1] :]
    return processor.tokenizer.decode(tokens, skip_special_tokens=True), inputs["input_ids"].shape[1]


def check_grounding(grounding, lens):
    """Against the maps of `look`."""
    expected = [(word, place) for word, place in zip(lens.words, lens, strict=True) if word.answer]
    assert len(grounding["words"]) == len(expected) > 2
    for found, (word, place) in zip(grounding["words"], expected, strict=True):
        assert (found["text"], found["start"], found["end"]) == (word.text, word.start, word.end)
        assert found["image"] == place.image
        for name in ("box", "share", "point"):
            assert found[name] == pytest.approx(getattr(place, name), abs=1e-6)
    assert [*map(tuple, grounding["heads"])] == [*lens.heads]
    assert grounding["heads_from"] == lens.heads_from


@pytest.mark.parametrize("heads", ["auto", [(1, 2), (0, 0)]])
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_the_official_client_gets_what_generate_and_look_say(family, heads):
    pair = make_words(family)
    expected, length = plain_answer(*pair)
    lens = look(*pair, PICTURE, TEXT, heads=heads, form="plain", max_new_tokens=LENGTH)
    with serving(build_app(*pair, NAME, heads=heads)) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        whole = ask(client)
        parts = list(ask(client, stream=True))
        plain = ask(client, extra_body={"grounding": False})
        assert [model.id for model in client.models.list()] == [NAME]
    message = whole.choices[0].message
    assert message.content == plain.choices[0].message.content == lens.answer == expected
    assert not hasattr(plain.choices[0].message, "grounding")
    usage = whole.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (length, LENGTH, length + LENGTH)
    choices = [part.choices[0] for part in parts]
    assert "".join(choice.delta.content or "" for choice in choices) == expected
    assert len([choice for choice in choices if choice.delta.content]) == LENGTH, "one part for each word"
    assert choices[-1].finish_reason == whole.choices[0].finish_reason == "length"
    check_grounding(message.grounding, lens)
    check_grounding(choices[-1].delta.grounding, lens)


def test_the_manual_shows_what_its_lines_print(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    manual = (ROOT / "docs/hub.md").read_text().partition("## Serve")[2]
    model = re.search(r"serve --model (\S+)", manual)[1]
    code = re.search(r"```python\n(.*?)```", manual, re.DOTALL)[1]
    with serving(build_app(*load_vlm(model), model)) as address:
        exec(code.replace("http://127.0.0.1:8000", address), {})
    assert capsys.readouterr().out == re.search(r"```text\n(.*?)```", manual, re.DOTALL)[1]


def test_an_answer_ends_before_a_stop_text(client):
    whole = ask(client).choices[0].message
    words = whole.grounding["words"]
    middle = words[len(words) // 2]
    stop = whole.content[middle["start"] + 1 : middle["end"]]  # a part of a word
    end = whole.content.index(stop)
    for given in (stop, ["never said", stop]):
        cut = ask(client, stop=given).choices[0]
        assert (cut.message.content, cut.finish_reason) == (whole.content[:end], "stop")
        found = cut.message.grounding["words"]
        assert [word["end"] for word in found] == [min(word["end"], end) for word in words if word["start"] < end]
        for word, same in zip(found, words, strict=False):
            assert word["text"] == whole.content[word["start"] : word["end"]]
            assert word["share"] == pytest.approx(same["share"], abs=1e-6)
        streamed = [part.choices[0].delta.content or "" for part in ask(client, stop=given, stream=True)]
        assert "".join(streamed) == whole.content[:end]


def test_only_what_no_later_token_changes_is_streamed():
    assert settled("a red ba", ["ball"]) == len("a red ")
    assert settled("a red ball", ["balloon", "red"]) == len("a red ")
    assert settled("a red ball", ["blue"]) == len("a red ball")
    assert settled("a ��", []) == len("a ")


def test_the_end_token_is_a_reason_to_stop(client, monkeypatch):
    model, processor = PAIR
    last = processor.tokenizer.convert_tokens_to_ids(ask(client).choices[0].message.content.split()[0])
    monkeypatch.setattr(model.generation_config, "eos_token_id", last)
    choice = ask(client).choices[0]
    assert (choice.finish_reason, len(choice.message.grounding["words"])) == ("stop", 1)


def test_a_seed_draws_the_same_and_without_picture_no_word_has_a_place(client):
    chat = {"messages": [{"role": "system", "content": "what ?"}, {"role": "user", "content": TEXT}]}
    asked = {**chat, "model": NAME, "max_completion_tokens": 20, "top_p": 0.9}
    drawn = [client.chat.completions.create(**asked, seed=seed).choices[0].message for seed in (1, 1, 2)]
    first, same, other = [message.content for message in drawn]
    assert first == same != other
    assert drawn[0].grounding["words"] == drawn[0].grounding["heads"] == []
    unseeded = {client.chat.completions.create(**asked).choices[0].message.content for _ in range(3)}
    assert len(unseeded) > 1


def test_two_dozen_at_once_all_get_their_own_answer(client):
    questions = [f"{SAID[number % 16]} {SAID[number // 16]} cat ?" for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        given = list(pool.map(lambda text: ask(client, text, max_tokens=3).choices[0].message, questions))
    alone = [look(*PAIR, PICTURE, text, form="plain", max_new_tokens=3) for text in questions]
    assert [message.content for message in given] == [lens.answer for lens in alone]
    assert len({message.content for message in given}) > 1
    for message, lens in zip(given, alone, strict=True):
        check_grounding(message.grounding, lens)


# Limits


@contextmanager
def slow_model(gate=None, seconds=0.0):
    """Counts the steps of the model, and lets each wait."""
    steps = []

    def wait(*_):
        steps.append(time.monotonic())
        if gate is not None:
            gate.wait(30)
        time.sleep(seconds)

    hook = PAIR[0].register_forward_pre_hook(wait)
    try:
        yield steps
    finally:
        hook.remove()


def test_who_finds_the_queue_full_is_told_when_to_come_again(client):
    expected = ask(client).choices[0].message.content
    gate = Event()
    with serving(build_app(*PAIR, NAME, settings=ServerSettings(queue=2))) as address, ThreadPoolExecutor(2) as pool:
        impatient = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        with slow_model(gate) as steps:
            first = pool.submit(ask, impatient)
            while not steps:
                time.sleep(0.01)
            waiting = connect(address, "POST", "/v1/chat/completions", json.dumps(body()).encode())
            time.sleep(0.2)
            with pytest.raises(openai.RateLimitError) as refused:
                ask(impatient)
            assert refused.value.response.headers["retry-after"] == "1"
            assert get(address, "/health").json() == {"status": "ok"}
            waiting.close()
            time.sleep(0.2)
            second = pool.submit(ask, impatient)  # has the place of who has left
            time.sleep(0.2)
            assert not second.done()
            gate.set()
        assert {one.result().choices[0].message.content for one in (first, second)} == {expected}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_waits_for_ends(client, address, stream):
    expected = ask(client).choices[0].message.content
    with slow_model(seconds=0.01) as steps:
        content = json.dumps(body(max_tokens=1000, stream=stream)).encode()
        connection = connect(address, "POST", "/v1/chat/completions", content)
        while len(steps) < 5:
            time.sleep(0.01)
        connection.close()
        assert ask(client).choices[0].message.content == expected
    assert len(steps) < 100


def test_a_key_is_asked_for():
    with serving(build_app(*PAIR, NAME, settings=ServerSettings(api_key="secret"))) as address:
        with pytest.raises(openai.AuthenticationError):
            ask(OpenAI(base_url=f"{address}/v1", api_key="wrong"))
        for key in ("secret2", "", "\xe9"):
            refused = post_chat(address, body(), authorization=f"Bearer {key}")
            assert (refused.status, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert get(address, "/v1/models").status == 401
        assert get(address, "/health").status == 200
        assert ask(OpenAI(base_url=f"{address}/v1", api_key="secret")).choices[0].message.content


# Strangers


def bomb():
    """A PNG file of a few bytes that claims 60,000 x 60,000 pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + b"\0" * 30


def body(**fields):
    return {**GREEDY, "messages": chat_about(URL, TEXT), **fields}


def about(url, text=TEXT):
    return body(messages=chat_about(url, text))


def said(*roles):
    return body(messages=[{"role": role, "content": TEXT} for role in roles])


# Name -> (body, status, OpenAI's param).
HOSTILE = {
    "no JSON": (b"{", 400, None),
    "not UTF-8": (b'{"model": "\xff"}', 400, None),
    "deep": (b'{"messages": ' + b"[" * 10**5, 400, None),
    "deep, but not too deep to parse": (b'{"x": ' + b"[" * 900 + b"]" * 900 + b"}", 400, "model"),
    "many digits": (b'{"seed": 1' + b"0" * 10**5 + b"}", 400, None),
    "twice": (b'{"model": "a", "model": "b"}', 400, None),
    "a list": ([], 400, None),
    "large": (b" " * 1_500_000, 413, None),
    "no number": (json.dumps(body(temperature=float("nan"))).encode(), 400, "temperature"),
    "unknown field": (body(logprobs=True), 400, "logprobs"),
    "several answers": (body(n=2), 400, "n"),
    "many stops": (body(stop=["a"] * 5), 400, "stop"),
    "no messages": (body(messages=[]), 400, "messages"),
    "a path for a message": (body(messages="../../etc/passwd"), 400, "messages"),
    "a part with another's field": (body(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "messages"),
    "a role of ours": (said("tool", "user"), 400, "messages"),
    "the assistant last": (said("user", "assistant"), 400, "messages"),
    "another model": (body(model="../../etc"), 404, "model"),
    "more than the model reads": (about(URL, "cat " * 3000), 400, "max_tokens"),
    "longer than allowed": (body(max_tokens=10**6), 400, "max_tokens"),
    "a token of a picture": (about(URL, "a <image> cat"), 400, "messages"),
    "a file": (about("file:///etc/passwd"), 400, "messages"),
    "a path": (about("../../../../etc/passwd"), 400, "messages"),
    "a foreign host": (about("http://127.0.0.1:1/a.png"), 400, "messages"),
    "no address": (about("http://[::1"), 400, "messages"),
    "other data": (about("data:text/html;base64,QQ=="), 400, "messages"),
    "not base64": (about("data:image/png;base64,@@@@"), 400, "messages"),
    "no picture": (about(data_url(b"<svg onload=alert(1)>")), 400, "messages"),
    "a damaged picture": (about(data_url(FILE[:-40])), 400, "messages"),
    "a bomb": (about(data_url(bomb())), 400, "messages"),
    "many pictures": (body(messages=chat_about(URL, TEXT) * 4), 400, "messages"),
}


@pytest.fixture(scope="module")
def small():
    """A server with narrow limits."""
    settings = ServerSettings(max_bytes=1_000_000, max_images=3, max_tokens=50, max_pixels=10**6)
    with serving(build_app(*PAIR, NAME, settings=settings)) as running:
        yield running


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_and_the_next_is_answered(name, small, client):
    content, status, param = HOSTILE[name]
    refused = post_chat(small, content)
    assert refused.status == status, refused.text
    error = refused.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert len(error["message"]) < 1000
    answered = post_chat(small, body(max_tokens=2))
    assert answered.status == 200, answered.text


def test_a_page_of_a_stranger_cannot_ask(small):
    """A browser sends a form or plain text to another site without asking it first."""
    assert post_chat(small, body(), **{"content-type": "text/plain"}).status == 415


def test_a_model_that_fails_is_not_the_clients_mistake(small, monkeypatch):
    def fail(*_):
        raise ValueError("a secret of the server")

    hook = PAIR[0].register_forward_pre_hook(fail)
    try:
        refused = post_chat(small, body())
        streamed = post_chat(small, body(stream=True))
    finally:
        hook.remove()
    assert refused.status == 500
    assert refused.json()["error"]["type"] == "server_error"
    assert "secret" not in refused.text + streamed.text
    assert json.loads(streamed.text.split("data: ")[-1])["error"]["type"] == "server_error"
    assert post_chat(small, body()).status == 200


class Pictures(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = {"/a.png": FILE, "/large": b"\x89PNG" * 10**6}.get(self.path)
        self.send_response(302 if content is None else 200)
        self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/a.png")
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_):
        pass


def test_pictures_are_fetched_from_allowed_hosts_alone(client):
    with ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as host:
        host.asked = []
        Thread(target=host.serve_forever, args=(0.05,), daemon=True).start()
        port = host.server_address[1]
        settings = ServerSettings(allow_host=[f"127.0.0.1:{port}"], max_bytes=10**6)
        with serving(build_app(*PAIR, NAME, settings=settings)) as address:
            allowed = f"http://127.0.0.1:{port}"
            fetched = post_chat(address, about(f"{allowed}/a.png")).json()["choices"][0]["message"]
            assert host.asked == ["/a.png"]
            for wrong in ("/large", "/elsewhere"):
                assert post_chat(address, about(allowed + wrong)).status == 400
            assert host.asked == ["/a.png", "/large", "/elsewhere"], "a redirect is not followed"
            for wrong in (f"http://localhost:{port}/", f"http://127.0.0.1:{port}@localhost:{port}/", f"{allowed}.x/"):
                assert post_chat(address, about(wrong + "a.png")).status == 400
            assert len(host.asked) == 3
        host.shutdown()
    expected = ask(client).choices[0].message
    assert fetched["content"] == expected.content
    assert fetched["grounding"] == expected.grounding
