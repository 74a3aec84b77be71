# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.

import pytest
from transformers import BertTokenizerFast

from grounded_attention.dataset_scripts.builders.text_corpus import TextCorpus, count_words, join_lines
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.helpers.built import built

TEXT = "One sentence .\nA second , longer one .\n\n \nAnother document begins here .\r\nIt ends ."


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def build(data_dir, tmp_path, **options):
    return built(TextCorpus, data_dir, tmp_path / "cache", **options)


def rows_of(builder):
    return [(row["text_id"], row["text"]) for row in builder.as_dataset("train")]


def test_one_row_for_each_line_of_all_files(tmp_path):
    builder = build(write(tmp_path / "data", b_txt="x\n", a_txt=TEXT, c_doc="no"), tmp_path)
    assert rows_of(builder) == [
        ("a.txt:1", "One sentence ."),
        ("a.txt:2", "A second , longer one ."),
        ("a.txt:5", "Another document begins here ."),
        ("a.txt:6", "It ends ."),
        ("b.txt:1", "x"),
    ]
    counts = {"files": 2, "lines": 5, "blank_lines": 2, "rows": 5}
    assert counts.items() <= builder.report["train"].items()


def test_lines_are_joined_within_a_document(tmp_path):
    data = write(tmp_path / "data", a_txt=TEXT + "\nAnd one .", b_txt="more")
    assert rows_of(build(data, tmp_path, join_until=8)) == [
        ("a.txt:1", "One sentence . A second , longer one ."),
        ("a.txt:5", "Another document begins here . It ends ."),
        ("a.txt:7", "And one ."),
        ("b.txt:1", "more"),
    ]


@pytest.mark.parametrize("until", [1, 5, 64])
def test_joined_rows_hold_each_line_once_and_are_long_unless_the_document_ends(until):
    lengths = [3, 8, 1, 0, 0, 9, 70, 2, 2, 2, 0, 5, 64, 63, 1, 1, 0]
    lines = [(number, f"w{number} " * length) for number, length in enumerate(lengths, 1)]
    joined = []
    for first, text in join_lines(lines, until):
        words = text.split()
        numbers = list(dict.fromkeys(int(word[1:]) for word in words))
        last = numbers[-1]
        assert numbers == list(range(first, last + 1))
        document_ends = lengths[last] == 0  # the line behind the last one is blank
        assert document_ends or len(words) >= until
        assert len(words) - words.count(f"w{last}") < until or len(numbers) == 1
        joined += words
    assert joined == " ".join(text for _, text in lines).split()


@pytest.mark.parametrize(
    "text", ["Don't stop , it 's $3.50 !", "caf\u00e9 \u4e2d\u56fd x_y", "", "a\u00a0b\tc \u200d"]
)
def test_words_are_those_of_berts_tokenizer(tmp_path, text):
    words = "[UNK] [PAD] [CLS] [SEP] [MASK]".split()
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    # Every word is unknown and becomes one [UNK].
    assert count_words(text) == len(tokenizer.tokenize(text))


def test_files_by_name_and_bad_files(tmp_path):
    named = write(tmp_path / "named", wiki_doc="w", bc1g_doc="b", x_txt="x")
    assert [row[0] for row in rows_of(build(named / "*.doc", tmp_path))] == ["bc1g.doc:1", "wiki.doc:1"]
    assert rows_of(build(named / "x.txt", tmp_path)) == [("x.txt:1", "x")]
    data = write(tmp_path / "data", a_txt="fine\n")
    (data / "b.txt").write_bytes(b"good\n\nbad \xff\n")
    with pytest.raises(DataError, match=r"b\.txt, line 3: not valid UTF-8: found b'\\xff'"):
        build(data, tmp_path)
    with pytest.raises(MissingFileError, match="nowhere: no text files"):
        build(tmp_path / "nowhere", tmp_path)
    with pytest.raises(DataError, match=r"no text in the files"):
        build(write(tmp_path / "empty", a_txt="\n \n"), tmp_path)


@pytest.mark.parametrize("join_until", [-1, True])
def test_wrong_lengths_are_refused(tmp_path, join_until):
    data = write(tmp_path / "data", a_txt="x")
    with pytest.raises(DataError, match="bad option join_until"):
        build(data, tmp_path, join_until=join_until)
