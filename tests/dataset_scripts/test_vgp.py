# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from itertools import combinations

import pytest

from grounded_attention.dataset_scripts.builders.flickr30k_entities import parse_sentence
from grounded_attention.dataset_scripts.builders.local_builder import BuildReport
from grounded_attention.dataset_scripts.builders.vgp import VGP
from grounded_attention.dataset_scripts.builders.vgp_pairs import (
    KINDS,
    PairRow,
    clean_pairs,
    draw_negatives,
    join_pairs,
    read_pairs,
    seeded,
)
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.dataset_scripts.entities_files import CAPTIONS, write_entities, write_typology, write_vgp
from tests.helpers.built import built
from tests.helpers.project_files import ROOT

TYPOLOGY = KINDS["typology"]
BINARY = KINDS["binary"]
ALTERNATION, FORWARD, REVERSE, EQUIVALENCE, INDEPENDENCE = range(5)


def build(tmp_path, *, config="typology", negatives="random", cache="cache", **options):
    data = str(tmp_path / "data")
    return built(VGP, data, tmp_path / cache, config_name=config, negatives=negatives, **options)


def captions_of(lines):
    captions = []
    for line in lines:
        text, phrases = parse_sentence(line)
        captions.append({"text": text, "phrases": phrases})
    return captions


def join(lines, *rows, kind=TYPOLOGY):
    """The joined pairs as texts: the captions, then each phrase with its chain around the label; and the counts."""
    report = BuildReport()
    numbered = [PairRow(line, "1", *row) for line, row in enumerate(rows, 2)]
    found = []
    for (i, j), pairs in join_pairs(numbered, captions_of(lines), kind, report).items():
        found += [f"{i}-{j}: {a.text}#{a.entity} {kind.labels[label]} {b.text}#{b.entity}" for a, b, label in pairs]
    return found, report


@pytest.mark.parametrize(
    "label, swapped",
    [
        (ALTERNATION, "alternation"),
        (FORWARD, "reverse_entailment"),
        (REVERSE, "forward_entailment"),
        (EQUIVALENCE, "equivalence"),
        (INDEPENDENCE, "independence"),
    ],
)
def test_labels_swap_with_the_phrases(label, swapped):
    lines = ("[/EN#1/people A man] runs", "[/EN#1/people A person] runs")
    found, _ = join(lines, ("A man", "A person", label))
    assert found == [f"0-1: A man#1 {TYPOLOGY.labels[label]} A person#1"]
    found, _ = join(lines, ("A person", "A man", label))
    assert found == [f"0-1: A man#1 {swapped} A person#1"]


def test_a_row_joins_every_pair_of_captions_that_has_both_phrases():
    lines = (
        "[/EN#1/people A man] and [/EN#2/people a boy]",
        "[/EN#1/people A person]",
        "[/EN#1/people A man]",
        "[/EN#1/people a man]",
    )
    found, report = join(lines, ("A man", "A person", FORWARD))
    # Case as it is: "a man" is another phrase.
    assert found == ["0-1: A man#1 forward_entailment A person#1", "1-2: A person#1 reverse_entailment A man#1"]
    assert report.counts["rows_joined"] == 1
    assert report.counts["phrase_pairs"] == 2


def test_the_shared_chain_decides_between_mentions():
    lines = ("[/EN#1/people a man] beside [/EN#2/people a man]", "[/EN#2/people the guy] and [/EN#3/people the guy]")
    row = PairRow(2, "1", "a man", "the guy", EQUIVALENCE)
    pairs = join_pairs([row], captions_of(lines), TYPOLOGY, BuildReport())
    [(first, second, label)] = pairs[0, 1]
    assert (first.start, first.end, first.entity) == (13, 18, "2")
    assert (second.start, second.entity) == (0, "2")
    assert label == EQUIVALENCE


@pytest.mark.parametrize(
    "lines, outcome",
    {
        ("[/EN#1/people a man]", "[/EN#2/people a guy]"): "rows_with_disagreeing_chains",
        ("[/EN#0/notvisual a man]", "[/EN#0/notvisual a guy]"): "rows_with_disagreeing_chains",
        ("[/EN#1/people a man] [/EN#1/people a guy]", "x"): "rows_in_one_caption_only",
        ("[/EN#1/people a man]", "[/EN#1/people a guyish]"): "rows_with_phrase_not_in_captions",
        ("[/EN#1/people a man]", "[/EN#1/people A guy]"): "rows_with_phrase_not_in_captions",
    }.items(),
)
def test_rows_that_cannot_be_joined_are_reported(lines, outcome):
    found, report = join(lines, ("a man", "a guy", EQUIVALENCE))
    assert found == []
    assert report.counts[outcome] == 1
    assert report.counts["rows_joined"] == 0
    [example] = report.examples[outcome]
    assert "image 1" in example
    assert "'a guy'" in example


def test_untagged_phrases_are_found_on_word_boundaries():
    lines = (
        "[/EN#1/people scene people] by the shop",
        "[/EN#1/people two people] peopled",
        "[/EN#2/people no people]",
    )
    found, report = join(lines, ("scene people", "people", FORWARD))
    # "people" is tagged nowhere: it is the word inside the tag of chain 1, not a part of a word, nor chain 2's.
    assert found == ["0-1: scene people#1 forward_entailment people#1"]
    assert report.counts["phrases_found_as_untagged_text"] == 1
    found, _ = join(("[/EN#1/people a man] walks", "some fellow walks"), ("a man", "some fellow", EQUIVALENCE))
    assert found == ["0-1: a man#1 equivalence some fellow#"]


def test_pairs_inside_other_pairs_are_removed():
    lines = ("[/EN#1/people the street of a town]", "[/EN#1/people a town street]")
    rows = [("the street", "street", ALTERNATION), ("the street of a town", "a town street", EQUIVALENCE)]
    found, report = join(lines, *rows)
    assert found == ["0-1: the street of a town#1 equivalence a town street#1"]
    assert report.counts["pairs_inside_other_pairs"] == 1


def test_one_side_inside_another_pair_is_not_enough():
    lines = ("[/EN#1/people the street of a town]", "[/EN#1/people a road] [/EN#1/people the street]")
    found, report = join(lines, ("the street of a town", "a road", 0), ("street of a town", "the street", 0))
    assert len(found) == 2
    assert report.counts["pairs_inside_other_pairs"] == 0


def test_binary_pairs():
    lines = ("[/EN#1/people a man] with [/EN#2/other a dog]", "[/EN#1/people the guy]")
    found, _ = join(lines, ("a man", "the guy", 1), ("a dog", "the guy", 0), kind=BINARY)
    assert found == ["0-1: a man#1 paraphrase the guy#1", "0-1: a dog#2 not_paraphrase the guy#1"]
    _, report = join(lines, ("the guy", "a man", 0), kind=BINARY)
    assert report.counts["rows_with_disagreeing_chains"] == 1


def test_cleaning_drops_leaks_conflicts_and_repetitions():
    fields = [
        ("1", "a", "b", FORWARD),
        ("1", "b", "a", REVERSE),  # the same, read the other way round
        ("1", "c", "d", FORWARD),
        ("1", "d", "c", FORWARD),  # contradicts line 4
        ("9", "a", "b", FORWARD),  # an image of the test split
        ("77", "a", "b", FORWARD),
        ("2", "a", "b", INDEPENDENCE),
    ]
    rows = [PairRow(line, *row) for line, row in enumerate(fields, 2)]
    report = BuildReport()
    kept = clean_pairs(rows, TYPOLOGY, {"1", "2"}, {"9"}, report)
    assert kept == {"1": [rows[0]], "2": [rows[6]]}
    assert report.counts == {
        "rows": 7,
        "rows_repeated": 1,
        "rows_with_conflicting_labels": 2,
        "rows_leaking_from_another_split": 1,
        "rows_of_unknown_images": 1,
    }
    assert "line 6" in report.examples["rows_leaking_from_another_split"][0]
    conflict = report.examples["rows_with_conflicting_labels"][0]
    assert "line 4" in conflict
    assert "line 5" in conflict


def test_reading_the_binary_file(tmp_path):
    path = tmp_path / "phrase_pair_remove_trivial_match_val.csv"
    path.write_text(
        ",image,phrase1,phrase2,original_phrase1,original_phrase2,ytrue\n"
        '0,36979,blue+hat,white+men,"a blue , hard hat",white men,False\n'
        "1,36979.jpg,men,guys,men,guys,True\n"
    )
    assert read_pairs(path, BINARY) == [
        PairRow(2, "36979", "a blue , hard hat", "white men", 0),
        PairRow(3, "36979", "men", "guys", 1),
    ]


@pytest.mark.parametrize(
    "last_line, problem",
    {
        "1,a,b,A,B,Entailment2": "wrong length",
        "1,a,b,A,B,Entailment2,2,3": "wrong length",
        "1,a,b,A,B,Entail,7": "impossible type_label",
        '1,a,b,A,"B and': "truncated",
    }.items(),
)
def test_truncated_and_damaged_pair_files(tmp_path, last_line, problem):
    path = write_typology(tmp_path / "train_data.csv", [("1", "A", "C", 0)])
    path.write_text(path.read_text() + last_line)
    with pytest.raises(DataError, match=problem) as caught:
        read_pairs(path, TYPOLOGY)
    assert str(path) in str(caught.value)
    assert problem == "truncated" or "line 3" in str(caught.value)


def test_pair_file_without_its_columns(tmp_path):
    path = tmp_path / "train_data.csv"
    for text in ("image,phrase1\n1,a\n", ""):
        path.write_text(text)
        with pytest.raises(DataError, match=r"columns are missing.*type_label"):
            read_pairs(path, TYPOLOGY)


def test_rows(tmp_path):
    write_vgp(tmp_path / "data", [("1", "A man", "An old man", REVERSE), ("1", "his pets", "two dogs", REVERSE)])
    data = build(tmp_path).as_dataset("train")
    rows = list(data)
    assert data.features["identification_label"].names == ["both", "first", "second"]
    assert data.features["phrase_pairs"].feature["label"].names == list(TYPOLOGY.labels)
    of_first = [row for row in rows if row["image_id"] == "1"]
    both = [row for row in of_first if row["identification_label"] == 0]
    pairs = [[first, second] for first, second in combinations(["1#0", "1#1", "1#2", "1#3", "1#4"], 2)]
    assert [row["caption_ids"] for row in both] == pairs
    assert len(of_first) == 20
    assert len(rows) == 60
    assert len({row["example_id"] for row in rows}) == 60
    for row in rows:
        for phrase in row["phrases"]:
            text = row["captions"][phrase["sentence"]]
            assert text[phrase["start"] : phrase["end"]] == phrase["text"]

    row = both[0]
    assert row["captions"][0].startswith("A man in a red coat")
    assert row["captions"][1].startswith("An old man")
    assert [phrase["sentence"] for phrase in row["phrases"]] == [0, 0, 0, 1, 1, 1]
    man, pets = row["phrase_pairs"]
    assert man["label"] == REVERSE
    assert row["phrases"][man["phrase1"]]["text"] == "A man"
    assert row["phrases"][man["phrase2"]]["text"] == "An old man"
    # "his pets" is in the second caption, so the reverse entailment of the file is a forward one here.
    assert pets["label"] == FORWARD
    assert row["phrases"][pets["phrase2"]]["text"] == "his pets"
    dogs = row["phrases"][pets["phrase1"]]
    assert dogs["text"] == "two dogs"
    assert dogs["boxes"] == [[0, 0, 0.5, 0.5]]
    assert dogs["entity"] == "13"


def test_wrong_captions_carry_no_phrases_and_come_from_one_other_image(tmp_path):
    write_vgp(tmp_path / "data", [("1", "A man", "An old man", REVERSE)])
    data = build(tmp_path).as_dataset("train")
    rows = [row for row in data if row["identification_label"] and row["image_id"] == "1"]
    assert len(rows) == 10
    assert {row["identification_label"] for row in rows} == {1, 2}
    wrong = set()
    for row in rows:
        place = row["identification_label"] - 1
        right = row["caption_ids"][place]
        other = row["caption_ids"][1 - place]
        assert right.startswith("1#")
        assert not other.startswith("1#")
        assert row["related"] == [caption == right for caption in row["caption_ids"]]
        assert row["phrase_pairs"] == []
        assert {phrase["sentence"] for phrase in row["phrases"]} == {place}
        wrong.add(other)
    assert len(wrong) == 2
    assert len({caption_id.split("#")[0] for caption_id in wrong}) == 1


def test_wrong_captions_with_the_text_of_a_right_one_are_skipped():
    own = [{"text": "A dog ."}, {"text": "A cat ."}]
    others = [{"text": "a dog ."}, {"text": "A cow ."}]
    drawn = draw_negatives(own, others, 10, random.Random(0))
    assert len(drawn) == 2
    for first, second, label in drawn:
        captions = [first, second]
        right = captions.pop(0 if label == "first" else 1)
        assert right in own
        assert captions == [others[1]]
    assert draw_negatives(own, own, 10, random.Random(0)) == []
    assert len(draw_negatives(own, others, 1, random.Random(0))) == 1


def test_unrelated_captions_are_never_used(tmp_path):
    write_vgp(tmp_path / "data", [("1", "A man", "An old man", REVERSE)], unrelated="# header\n1 2\n2 5")
    builder = build(tmp_path)
    rows = list(builder.as_dataset("train"))
    used = {caption for row in rows for caption in row["caption_ids"]}
    assert "1#1" not in used
    assert "2#4" not in used
    assert "1#0" in used
    assert sum(row["image_id"] == "1" and row["identification_label"] == 0 for row in rows) == 6
    assert builder.report["train"]["rows_with_phrase_not_in_captions"] == 1


def test_report_is_kept_with_the_data(tmp_path):
    pairs = [
        ("1", "A man", "An old man", REVERSE),
        ("1", "A man", "a giraffe", REVERSE),
        ("5", "A man", "An old man", REVERSE),
        ("2", "A woman", "She", FORWARD),
        ("2", "She", "A woman", FORWARD),
    ]
    write_vgp(tmp_path / "data", pairs)
    builder = build(tmp_path)
    report = builder.report["train"]
    assert report["rows"] == 5
    assert report["rows_joined"] == 1
    assert report["images_with_phrase_pairs"] == 1
    assert report["rows_leaking_from_another_split"] == 1
    assert report["rows_with_conflicting_labels"] == 2
    assert "'a giraffe'" in report["examples"]["rows_with_phrase_not_in_captions"][0]
    assert build(tmp_path).report == builder.report
    assert json.loads(json.dumps(report)) == report


def digest(rows):
    return hashlib.sha256(json.dumps(list(rows), sort_keys=True).encode()).hexdigest()


PROGRAM = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[1])
real = os.listdir
os.listdir = lambda path=".": real(path)[::-1]
from tests.dataset_scripts.test_vgp import build, digest
print(digest(build(pathlib.Path(sys.argv[2]), cache="four", splits="train").as_dataset("train")))
"""


def test_rows_depend_on_files_options_and_seed_alone(tmp_path):
    write_vgp(tmp_path / "data", [("1", "A man", "An old man", REVERSE), ("2", "A woman", "She", FORWARD)])
    one = digest(build(tmp_path, cache="one").as_dataset("train"))
    assert one == digest(build(tmp_path, cache="two").as_dataset("train"))
    assert one != digest(build(tmp_path, cache="three", seed=1).as_dataset("train"))
    environment = {**os.environ, "PYTHONHASHSEED": "12"}
    command = [sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == one
    assert [seeded(0, "captions", "1016887272").randrange(1000) for _ in range(2)] == [885] * 2
    assert seeded(0, "captions", "1").random() != seeded(0, "captions", "2").random()


def test_missing_pair_file(tmp_path):
    data = write_vgp(tmp_path / "data")
    (data / "vgp" / "val_data.csv").unlink()
    with pytest.raises(MissingFileError, match=r"vgp/val_data\.csv.*felixgiov/VGP-Typology"):
        build(tmp_path)
    build(tmp_path, splits="test")
    with pytest.raises(MissingFileError, match=r"phrase_pair_remove_trivial_match_train\.csv"):
        build(tmp_path, config="binary")


def test_pair_files_in_other_folders(tmp_path):
    write_vgp(tmp_path / "downloads")
    (tmp_path / "downloads" / "vgp").rename(tmp_path / "vgp")
    (tmp_path / "downloads" / "flickr30k_entities").rename(tmp_path / "data")
    assert build(tmp_path).report["test"]["rows_joined"] == 1


def test_layout_of_the_papers_code(tmp_path):
    folder = write_entities(tmp_path / "data", {"1": CAPTIONS}, {})
    (folder / "Sentences").rename(folder / "train_captions")
    rows = {"train": [("1", "A man", "An old man", FORWARD)], "val": [], "test": []}
    for split, pairs in rows.items():
        (folder / f"{split}_captions").mkdir(exist_ok=True)
        (folder / f"{split}.txt").unlink()
        write_typology(folder / f"full_data_type_phrase_pair_{split}.csv", pairs)
    builder = build(tmp_path)
    assert builder.report["train"]["rows_joined"] == 1
    assert builder.report["test"]["rows"] == 0
    assert builder.as_dataset("train").num_rows == 10


@pytest.mark.parametrize(
    "options, problem",
    {
        '{"negatives": "nearest"}': "pass regions=FOLDER",
        '{"negatives": "closest"}': "'nearest' or 'random'",
        '{"negatives_per_image": -1}': "negatives_per_image",
    }.items(),
)
def test_impossible_options(tmp_path, options, problem):
    write_vgp(tmp_path / "data")
    with pytest.raises(DataError, match=problem):
        build(tmp_path, **json.loads(options))


def test_real_rows_of_one_image(shared, tmp_path):
    real = shared / "real"
    folder = tmp_path / "data" / "flickr30k_entities"
    for name in ("Sentences/1016887272.txt", "Annotations/1016887272.xml", "UNRELATED_CAPTIONS"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real / "flickr30k_entities" / name, folder / name)
    (folder / "train.txt").touch()
    (folder / "val.txt").touch()
    (folder / "test.txt").write_text("1016887272\n")
    pairs = []
    for row in read_pairs(real / "vgp" / "test_data.csv", TYPOLOGY):
        if row.image_id == "1016887272":
            pairs.append((row.image_id, row.phrase1, row.phrase2, row.label))
    write_typology(tmp_path / "data" / "vgp" / "test_data.csv", pairs)
    builder = build(tmp_path, splits="test")
    report = builder.report["test"]
    assert report["rows"] == report["rows_joined"] == len(pairs) == 11
    rows = builder.as_dataset("test")
    assert len(rows) == 10
    expected = {}
    for _, first, second, label in pairs:
        expected[first, second] = label
        expected[second, first] = {FORWARD: REVERSE, REVERSE: FORWARD}.get(label, label)
    found = set()
    for row in rows:
        for pair in row["phrase_pairs"]:
            first = row["phrases"][pair["phrase1"]]
            second = row["phrases"][pair["phrase2"]]
            assert first["entity"] == second["entity"] in ("547", "548", "549", "551")
            assert expected[first["text"], second["text"]] == pair["label"]
            found.add(frozenset((first["text"], second["text"])))
    assert len(found) == 11
    climbers = [len(phrase["boxes"]) for phrase in rows[0]["phrases"] if phrase["entity"] == "547"]
    assert climbers == [7, 7]


def test_real_pair_files(shared):
    report = BuildReport()
    rows = read_pairs(shared / "real" / "vgp" / "test_data.csv", TYPOLOGY)
    clean_pairs(rows, TYPOLOGY, {row.image_id for row in rows}, set(), report)
    assert len(rows) == 6061
    assert report.counts["rows_repeated"] + report.counts["rows_with_conflicting_labels"] // 2 == 3
    assert len(read_pairs(shared / "real" / "vgp" / "val_data.csv", TYPOLOGY)) == 5734
