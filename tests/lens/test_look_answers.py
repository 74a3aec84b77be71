# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `look --answers`: a table, and what it refuses."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose

from grounded_attention.commands.look import main
from tests.helpers.commands import read_error, read_result
from tests.helpers.own_rows import write_rows
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.two_processes import run_two

WORDS = ["a small cat", "a dog", "two red balls near a cat", "the dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, rows, and answers of all but one of them."""
    folder = tmp_path_factory.mktemp("answers")
    save_llava(folder / "model")
    rows = [json.loads(line) for line in write_rows(folder / "own", 6).read_text().splitlines()]
    lines = []
    for number, row in enumerate(rows):
        row |= {"question_id": number, "prediction": WORDS[number % 4]}
        if number != 2:
            choice = {"message": {"role": "assistant", "content": WORDS[number % 4]}}
            response = {"status_code": 200, "body": {"choices": [choice]}}
            lines.append({"custom_id": str(number), "response": response, "error": None})
    (folder / "own" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    return folder


def arguments(folder, output, *more, answers="answers.jsonl"):
    given = answers if answers == "prediction" else folder / answers
    data = ["--data", folder / "own" / "rows.jsonl", "--boxes", "xyxy pixels", "--answers", given]
    return [*map(str, [*data, "--model", folder / "model", "--heads", "1-2,0-0", "--output", output, *more])]


def test_the_table_has_the_numbers_of_single_looks(folder, tmp_path, capsys):
    output = tmp_path / "lens.parquet"
    assert main(arguments(folder, output, "--json")) == 0
    found = read_result(capsys)
    table = pq.read_table(output).to_pylist()
    assert found["rows"] == 5
    assert {each["row"] for each in table} == {0, 1, 3, 4, 5}
    assert all(each["id"] == str(each["row"]) for each in table)

    # The same row alone.
    single = ["--model", str(folder / "model"), "--heads", "1-2,0-0", "--answer", WORDS[3], "--json"]
    image = str(folder / "own" / "3.png")
    assert main([image, "a red ball and a blue cube", *single, "--output", str(tmp_path / "one.html")]) == 0
    words = read_result(capsys)["words"]
    of_row = [each for each in table if each["row"] == 3]
    assert [each["word"] for each in of_row] == [word["text"] for word in words]
    assert_allclose([each["share"] for each in of_row], [word["share"] for word in words], atol=1e-5)
    boxes = [[each[side] for side in ("x1", "y1", "x2", "y2")] for each in of_row]
    assert_allclose(boxes, np.array([word["box"] for word in words]), atol=1e-4)


def test_a_column_has_the_answers_and_words_are_a_question(folder, tmp_path, capsys):
    output = tmp_path / "lens.parquet"
    assert main(["what ?", *arguments(folder, output, answers="prediction")]) == 0
    assert "6 answers" in capsys.readouterr().out
    table = pq.read_table(output).to_pylist()
    prompts = {each["word"] for each in table if not each["answer"]}
    assert "what" in prompts
    assert "ball" not in prompts


def test_two_processes_write_one_table(folder, tmp_path, capsys):
    run_two("grounded_attention", "look", *arguments(folder, tmp_path / "two.parquet"))
    assert main(arguments(folder, tmp_path / "one.parquet")) == 0
    assert (tmp_path / "two.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@pytest.mark.parametrize(
    "more, named",
    [
        (["--answer-ids", "text"], "text"),
        (["--form", "relative"], "'relative'"),
        (["--answer", "a cat"], "--answer"),
        (["--again"], "--again"),
        (["--max-rows", "3"], "'5'"),
        (["a.png", "what ?"], "--data"),
        (["--output", "lens.html"], ".parquet"),
        (["--answers", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, capsys, more, named):
    output = tmp_path / "lens.parquet"
    assert main(arguments(folder, output, *more)) == 2
    assert named in read_error(capsys)
    assert not output.exists()


def test_options_of_answers_need_answers(folder, capsys):
    assert main(["a.png", "what ?", "--model", str(folder / "model"), "--batch-size", "2"]) == 2
    assert "--answers" in read_error(capsys)
