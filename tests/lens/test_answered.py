# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers that somebody else generated are read in batches: equal to single looks and to eager maps."""

import json
import os
import signal
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.testing import assert_allclose

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.lens.answered import look_many
from grounded_attention.lens.answers import GivenAnswer, read_answers
from grounded_attention.lens.look import look
from grounded_attention.lens.sequences import add_answer, read_prompt
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_models import make_model, make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, make_processor, meant
from tests.helpers.two_processes import launch
from tests.lens.answered_rows import ANSWERS, HEADS, ROWS, many_rows, write_table

LLAVA = make_pair("llava")


def look_alone(model, processor, row, answer, **options):
    return look(model, processor, row["image"], row["text"], answer=answer, **options)


def assert_equal(many, alone):
    assert many.words == alone.words
    assert (many.texts, many.heads, many.boxes) == (alone.texts, alone.heads, alone.boxes)
    assert_allclose(many.attention, alone.attention, atol=2e-6)
    assert_allclose(many.share, alone.share, atol=2e-6)
    assert_allclose(many.token_boxes, alone.token_boxes)
    assert (many.token_images == alone.token_images).all()


# Every type is read in batches in `test_look_batches.py`.
@pytest.mark.parametrize("family", [*meant(), *ANSWERERS])
def test_batches_equal_single_looks(family):
    pair = make_pair(family)
    many = look_many(*pair, ROWS, ANSWERS, heads="all", batch_size=3)
    for row, answer, lens in zip(ROWS, ANSWERS, many, strict=True):
        assert_equal(lens, look_alone(*pair, row, answer, heads="all"))


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "paligemma", "gemma3"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_equal_eager_maps(family, side):
    processor = make_processor(family)
    processor.tokenizer.padding_side = side
    model = make_model(family, processor.tokenizer)
    lenses = list(look_many(model, processor, ROWS, ANSWERS, heads=HEADS, batch_size=5))
    patches = PatchGroundingProcessor(processor, family)
    find_language_model(model).set_attn_implementation("eager")
    for row, answer, lens in zip(ROWS, ANSWERS, lenses, strict=True):
        prompt = read_prompt(patches, row["text"], [row["text"]], [row["image"]])
        ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
        whole = add_answer(model, processor.tokenizer, prompt, ids)
        with torch.no_grad():
            maps = model(**whole.inputs, output_attentions=True).attentions
        columns = prompt.batch["region_positions"][0]
        assert whole.words == lens.words
        for place, (layer, head) in enumerate(HEADS):
            seen = [maps[layer][0, head][[*word.rows]][:, columns].mean(0).numpy() for word in whole.words]
            assert_allclose(lens.attention[place], np.stack(seen), atol=2e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": "auto", "form": "plain"},
        {"form": "sinks"},
        {"rows": "before", "heads": HEADS},
        {"form": "contribution"},
        {"form": "contribution", "rows": "own", "heads": HEADS},
        {"form": "tam"},
    ],
)
def test_options_are_those_of_a_single_look(options):
    of_many = {"token_rows" if name == "rows" else name: value for name, value in options.items()}
    many = look_many(*LLAVA, ROWS, ANSWERS, **of_many, batch_size=2)
    for row, answer, lens in zip(ROWS, ANSWERS, many, strict=True):
        assert_equal(lens, look_alone(*LLAVA, row, answer, **options))


def test_turns_marks_and_several_pictures():
    """The last turn of the assistant is the answer; `<image>` and parts are places of pictures."""
    pair = make_pair("qwen2_5_vl")
    first, second = ROWS[0]["image"], ROWS[1]["image"]
    parts = [{"type": "image"}, {"type": "text", "text": "what ?"}, {"type": "image"}]
    said = {"role": "assistant", "content": "a small cat"}
    rows = [
        {"images": [first, second], "messages": [{"role": "user", "content": parts}, said]},
        {"image": first, "messages": [{"role": "user", "content": "<image>\nwhat ?"}, said]},
        {"image": first, "prompt": "what ?", "completion": "a dog"},
    ]
    lenses = list(look_many(*pair, rows, heads=HEADS))
    of_parts = [{"role": "user", "content": parts}]
    assert_equal(lenses[0], look(*pair, [first, second], messages=of_parts, answer="a small cat", heads=HEADS))
    assert_equal(lenses[1], look(*pair, first, "what ?", answer="a small cat", heads=HEADS))
    assert_equal(lenses[2], look(*pair, first, "what ?", answer="a dog", heads=HEADS))


def test_tokens_are_the_servers_and_another_text_is_said(caplog):
    tokenizer = LLAVA[1].tokenizer
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("two red", "a dog")]
    answers = [GivenAnswer("two", tuple(ids[0])), GivenAnswer(None, tuple(ids[1])), "a cat"]
    lenses = list(look_many(*LLAVA, ROWS[:3], answers, heads=HEADS))
    assert [lens.answer for lens in lenses] == ["two red", "a dog", "a cat"]
    [record] = caplog.records
    assert "1 of 3" in record.getMessage()
    assert "row 0" in record.getMessage()


@pytest.mark.parametrize(
    "row, answer, message",
    [
        ({"text": "what ?"}, "a cat", "row 1: look needs an image"),
        ({"image": ROWS[0]["image"], "text": " "}, "a cat", "row 1: the question is empty"),
        ({"image": ROWS[0]["image"], "text": "what ?"}, None, "row 1 has no answer"),
        ({"image": ROWS[0]["image"], "label": "what ?"}, "a cat", "row 1 has the columns image, label"),
        ({"image": ROWS[0]["image"], "text": "what ?"}, GivenAnswer(None, (10**6,)), "row 1: token 1000000"),
        ({"image": "nowhere.png", "text": "what ?"}, "a cat", "row 1: .*nowhere.png"),
    ],
)
def test_the_row_at_fault_is_named(row, answer, message):
    with pytest.raises(ValueError, match=message):
        list(look_many(*LLAVA, [ROWS[0], row, ROWS[2]], ["a", answer, "a"], heads=HEADS))


def test_options_that_many_rows_do_not_have():
    for wrong in ({"form": "relative"}, {"form": "rollout"}, {"token_rows": "all"}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
            look_many(*LLAVA, ROWS, ANSWERS, **wrong)
    with pytest.raises(ValueError, match="shorter"):
        list(look_many(*LLAVA, ROWS, ANSWERS[:4], heads=HEADS))


# Forms of answers

FORMS = """
OpenAI batch:
  {"id": "b", "custom_id": "k%d", "response": {"status_code": 200, "request_id": "r", "body": {"id": "c", "choices": [{"message": {"role": "assistant", "content": "cat %d"}}]}}, "error": null}
vLLM run-batch with tokens:
  {"id": "vllm-1", "custom_id": "k%d", "response": {"status_code": 200, "body": {"prompt_token_ids": [1, 2], "choices": [{"message": {"content": "cat %d", "reasoning_content": null}, "logprobs": null, "token_ids": [4, 5]}]}}, "error": null}
tokens in logprobs:
  {"custom_id": "k%d", "response": {"status_code": 200, "body": {"choices": [{"message": {"content": "cat %d"}, "logprobs": {"content": [{"token": "token_id:4", "logprob": -0.1}, {"token": "token_id:5", "logprob": -0.1}]}}]}}, "error": null}
tokens as texts:
  {"custom_id": "k%d", "choices": [{"message": {"content": "cat %d"}, "logprobs": {"content": [{"token": "cat", "logprob": -0.1}]}}]}
completions:
  {"id": "cmpl-%d", "choices": [{"text": "cat %d", "logprobs": {"tokens": ["cat"]}}]}
"""  # noqa: E501
WITH_TOKENS = ("vLLM run-batch with tokens", "tokens in logprobs")


def forms(text):
    lines = [line for line in text.splitlines() if line]
    return {name.rstrip(":"): line.strip() for name, line in zip(lines[::2], lines[1::2], strict=True)}


@pytest.mark.parametrize("form", forms(FORMS))
def test_forms_of_answers(tmp_path, form):
    line = forms(FORMS)[form]
    path = tmp_path / "answers.jsonl"
    by_id = "custom_id" in line
    order = [2, 0, 3] if by_id else [0, 1, 2, 3, 4]
    path.write_text("".join(line % (number, number) + "\n" for number in order))
    found = read_answers(path, ROWS)
    tokens = (4, 5) if form in WITH_TOKENS else None
    for number, answer in enumerate(found):
        if number in order:
            assert answer == GivenAnswer(f"cat {number}", tokens)
        else:
            assert answer is None


def test_the_column_of_the_ids_is_found_or_named(tmp_path):
    path = tmp_path / "answers.jsonl"
    body = {"choices": [{"message": {"content": "a cat"}}]}
    path.write_text("".join(json.dumps({"custom_id": str(number), **body}) + "\n" for number in (1, 0)))
    rows = [{"question_id": 0, "image_id": "a"}, {"question_id": 1, "image_id": "a"}]
    assert None not in read_answers(path, rows)
    with pytest.raises(DataError, match="no row"):
        read_answers(path, rows, "image_id")
    swapped = [{**row, "id": 1 - row["question_id"]} for row in rows]
    with pytest.raises(DataError, match="--answer-ids"):
        read_answers(path, swapped)
    assert None not in read_answers(path, swapped, "id")


GOOD = '{"custom_id": "k0", "choices": [{"message": {"content": "a cat"}}]}'
WRONG = """
line 2: an error
  {"custom_id": "k1", "response": null, "error": {"message": "too long"}}
line 2: a status
  {"custom_id": "k1", "response": {"status_code": 429, "body": {"message": "slow down"}}, "error": null}
line 2: the same id
  {"custom_id": "k0", "choices": [{"message": {"content": "a cat"}}]}
line 2: an unknown id
  {"custom_id": "k77", "choices": [{"message": {"content": "a cat"}}]}
line 2: without an id
  {"choices": [{"message": {"content": "a cat"}}]}
line 2: several choices
  {"custom_id": "k1", "choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}
line 2: no content
  {"custom_id": "k1", "choices": [{"message": {"content": null, "tool_calls": []}}]}
line 2: thoughts apart
  {"custom_id": "k1", "choices": [{"message": {"content": "a", "reasoning_content": "hm"}}]}
line 2: tokens that are none
  {"custom_id": "k1", "choices": [{"message": {"content": "a"}, "token_ids": [1, -2]}]}
line 2: some tokens with ids
  {"custom_id": "k1", "choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "token_id:4"}, {"token": "a"}]}}]}
line 2: log-probabilities of another form
  {"custom_id": "k1", "choices": [{"message": {"content": "a"}, "logprobs": [1]}]}
line 2: a list
  [1]
line 2: another form
  {"custom_id": "k1", "answer": "a cat"}
"""  # noqa: E501


@pytest.mark.parametrize("name", forms(WRONG))
def test_other_lines_are_refused(tmp_path, name):
    path = tmp_path / "answers.jsonl"
    path.write_text(f"{GOOD}\n{forms(WRONG)[name]}\n")
    with pytest.raises(DataError, match=r"answers\.jsonl, line 2"):
        read_answers(path, ROWS)


def test_answers_without_ids_are_as_many_as_the_rows(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"choices": [{"message": {"content": "a cat"}}]}\n' * 4)
    with pytest.raises(DataError, match="found '4 answers', expected 5"):
        read_answers(path, ROWS)
    path.write_text("")
    with pytest.raises(DataError, match=r"answers\.jsonl"):
        read_answers(path, [])


# The table

ROW_COUNT = 16


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of one process, and its summary."""
    path = tmp_path_factory.mktemp("whole") / "lens.parquet"
    return path, write_table(path, ROW_COUNT)


def test_the_table_has_the_words_of_single_looks(whole):
    path, summary = whole
    table = pq.read_table(path).to_pylist()
    rows, answers = many_rows(ROW_COUNT)
    expected = []
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        if answer is None:
            continue
        lens = look_alone(*LLAVA, row, answer.text, heads=HEADS)
        for word, one in zip(lens.words, lens, strict=True):
            place = (number, row["id"], word.text, word.start, word.end, word.sentence, word.answer)
            expected.append((place, (one.share, *one.box, *one.point), lens.answer != answer.text))
    assert len(table) == len(expected) == summary["words"]
    names = ("row", "id", "word", "start", "end", "text", "answer")
    for found, (place, numbers, is_other) in zip(table, expected, strict=True):
        assert tuple(found[name] for name in names) == place
        assert_allclose([found[name] for name in ("share", "x1", "y1", "x2", "y2", "x", "y")], numbers, atol=1e-5)
        assert (found["heads"], found["image"], found["other_answer"]) == ("1-2,0-0", 0, is_other)
    assert summary["rows"] == sum(answer is not None for answer in answers)
    others = sorted({place[0] for place, _, is_other in expected if is_other})
    assert summary["other_answers"] == others != [], "the tokenizer knows few words"
    assert [*path.parent.iterdir()] == [path], "no parts stay"


WRITE = "import sys\nfrom tests.lens.answered_rows import write_table\nwrite_table(sys.argv[1], int(sys.argv[2]))\n"


def end(processes):
    for process in processes:
        errors = process.communicate(600)[1]
        assert process.returncode == 0, errors[-4000:]


def test_two_processes_write_the_same_bytes(whole, tmp_path):
    path = tmp_path / "lens.parquet"
    end(launch(WRITE, str(path), str(ROW_COUNT)))
    assert path.read_bytes() == whole[0].read_bytes()


def test_a_killed_run_leaves_no_table_and_is_begun_anew(tmp_path):
    path = tmp_path / "lens.parquet"
    count = 60
    processes = launch(WRITE, str(path), str(count))
    parts = tmp_path / ".lens.parquet.parts"
    while len(list(parts.glob("*.parquet"))) < 3 and processes[0].poll() is None:
        time.sleep(0.001)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.communicate(60)
    assert not path.exists()
    left = sorted(parts.glob("*.parquet"))
    assert len(left) >= 3
    left[0].write_bytes(b"of another run")
    write_table(path, count)
    other = tmp_path / "other.parquet"
    write_table(other, count)
    assert path.read_bytes() == other.read_bytes()
    assert {*tmp_path.iterdir()} == {path, other}


def test_a_table_that_is_there_is_not_replaced(tmp_path):
    foreign = tmp_path / "lens.parquet"
    foreign.write_bytes(b"no table")
    with pytest.raises(DataError, match=r"lens\.parquet"):
        write_table(foreign, ROW_COUNT)
    assert foreign.read_bytes() == b"no table"
    assert [*tmp_path.iterdir()] == [foreign]
    with pytest.raises(ValueError, match=r"\.parquet"):
        write_table(tmp_path / "lens.html", ROW_COUNT)
