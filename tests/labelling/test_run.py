# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Labelling of captions: rows, kills, processes, refusals."""

import hashlib
import json
import multiprocessing
import os
import signal
import time

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.labelling import run
from grounded_attention.labelling.grounder import Candidates, Selection
from grounded_attention.labelling.labels import SCHEMA, PseudoLabels, count_labels
from grounded_attention.labelling.phrases import GivenPhrases
from grounded_attention.labelling.run import caption_rows
from tests.helpers.stub_grounder import (
    SIZE,
    Grounder,
    box_of,
    contents,
    label,
    manifest,
    many_texts,
    rows_of,
    save_images,
)
from tests.helpers.two_processes import launch


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


def write_input(tmp_path, texts):
    """Captions, and the folder of their images."""
    rows = rows_of(texts)
    return rows, save_images(tmp_path / "images", rows)


@pytest.fixture
def captions(tmp_path):
    """Twelve captions and their images; the labels of them are in `whole`."""
    rows, images = write_input(tmp_path, many_texts(12))
    label(rows, images, tmp_path / "whole")
    return rows, images


@pytest.fixture
def labels(tmp_path, output):
    """Labels of two captions; gives the captions and their images."""
    rows, images = write_input(tmp_path, ["a dog", "a cat"])
    label(rows, images, output)
    return rows, images


def assert_whole(output):
    assert contents(output) == contents(output.with_name("whole"))


def test_rows_and_statistics_by_hand(tmp_path, output):
    texts = ["A dog, a ball", "", "nowhere a Dog dog", "the tree"]
    label(*write_input(tmp_path, texts), output)
    table = PseudoLabels(output).rows
    assert table["caption_id"][:] == ["c0", "c1", "c2", "c3"]
    assert table["text"][:] == texts
    assert table["phrases"][1] == []
    assert table[2]["image_id"] == "i1"
    scores = [0] * 10
    words = []
    for row in table:
        assert (row["width"], row["height"]) == SIZE
        for phrase in row["phrases"]:
            word = phrase["text"]
            words.append(word)
            assert row["text"][phrase["start"] : phrase["end"]] == word
            if word == "nowhere":
                assert phrase["boxes"] == phrase["scores"] == []
                continue
            box, score = box_of(word)
            assert phrase["boxes"] == [pytest.approx(np.array(box) / (SIZE * 2))]
            assert phrase["scores"] == [pytest.approx(score)]
            scores[int(score * 10)] += 1
    assert words == ["dog", "ball", "nowhere", "Dog", "dog", "tree"]
    found = count_labels(table)
    counts = {"captions": 4, "captions_skipped": 0, "phrases": 6, "phrases_with_box": 5}
    assert found == {**counts, "boxes": 5, "phrases_per_caption": {"0": 1, "1": 1, "2": 1, "3": 1}, "scores": scores}


def test_finished_labels_are_unchanged_and_another_grounder_is_refused(labels, output):
    before = contents(output)

    class Never(Grounder):
        def ground(self, examples):
            raise AssertionError("nothing is to be done")

    assert label(*labels, output, Never()).info == manifest(output)
    with pytest.raises(DataError, match=r"finished pseudo-labels of another source.*grounder\.name \('stub', now 'b"):
        label(*labels, output, Grounder(name="b"))
    with pytest.raises(DataError, match=r"selection\.threshold \(0\.0, now 0\.5\); choose another folder"):
        label(*labels, output, selection=Selection(threshold=0.5))
    assert contents(output) == before


def kill_after(rows, images, output, parts):
    """Labels in a process that is killed when `parts` parts exist."""
    grounder = Grounder(slow=0.02)
    child = multiprocessing.get_context("fork").Process(target=label, args=(rows, images, output, grounder))
    child.start()
    while len(list(output.glob("parts/*.parquet"))) < parts and child.is_alive():
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_killed_and_resumed_labels_have_the_same_bytes(tmp_path, output):
    rows, images = write_input(tmp_path, many_texts(43))
    label(rows, images, tmp_path / "whole")
    for parts in (1, 3, 6):
        kill_after(rows, images, output, parts)
        assert not (output / "pseudo_labels.json").exists()
    label(rows, images, output)
    assert_whole(output)


@pytest.mark.parametrize("stop", ["delete_folder", "sha256"])  # after the manifest, after a shard
def test_a_kill_while_parts_are_joined(captions, output, monkeypatch, stop):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run, stop, stopped)
        label(*captions, output)
    label(*captions, output)
    assert_whole(output)


def cut_rows(path):
    pq.write_table(pq.read_table(path).slice(0, 1), path)


@pytest.mark.parametrize(
    "damage, problem",
    [
        (cut_rows, "the part is cut: found 1, expected 5 rows"),
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "the part is damaged"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"dog", b"d\xffg")), "the part is damaged"),
        (lambda path: path.write_bytes(b""), "the part is damaged: found .*expected a Parquet file"),
    ],
    ids=["rows", "half", "byte", "empty"],
)
def test_a_damaged_part_is_named_and_made_again(captions, output, damage, problem):
    rows, images = captions
    with pytest.raises(DataError, match="this caption is broken"):  # in the last of three parts
        label(rows_of([*many_texts(11), "broken"]), images, output)
    with pytest.raises(DataError, match="unfinished pseudo-labels of another source"):
        label(rows, images, output, Grounder(name="b"))
    with pytest.raises(DataError, match="unfinished pseudo-labels; run the same command again"):
        PseudoLabels(output)
    part = output / "parts" / "0000000.parquet"
    damage(part)
    with pytest.raises(DataError, match=rf"0000000\.parquet: {problem}.*; remove this file, then run the same"):
        label(rows, images, output)
    part.unlink()
    label(rows, images, output)
    assert_whole(output)


SCRIPT = """
import sys
from pathlib import Path
import datasets, torch
datasets.disable_progress_bars()
from tests.helpers.stub_grounder import Grounder, label, many_texts, rows_of
images, output, count, slow = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
label(rows_of(many_texts(count)), images, output, Grounder(slow=slow))
torch.distributed.destroy_process_group()
"""


def test_two_processes_write_the_same_bytes_as_one_also_after_a_kill(tmp_path, output):
    rows, images = write_input(tmp_path, many_texts(43))
    label(rows, images, tmp_path / "whole")
    launched = launch(SCRIPT, images, output, 43, 0.2)
    deadline = time.monotonic() + 200
    while len(list(output.glob("parts/*.parquet"))) < 3:
        for process in launched:
            assert process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for process in launched:
        process.kill()
        process.communicate()
    assert not (output / "pseudo_labels.json").exists()
    for process in launch(SCRIPT, images, output, 43, 0):
        error = process.communicate(timeout=200)[1]
        assert process.returncode == 0, error[-3000:]
    assert_whole(output)


# Bad input


SHARD = {"file": "pseudo_labels.parquet", "bytes": 4, "sha256": "0"}


@pytest.mark.parametrize(
    "change",
    [
        {"shards": None},
        {"shards": []},
        {"shards": {}},
        {"shards": ["a"]},
        {"shards": [{**SHARD, "file": 5}]},
        {"shards": [{**SHARD, "sha256": None}]},
        {"shards": [SHARD, SHARD]},
        {"provenance": None},
        {"provenance": []},
    ],
)
def test_a_damaged_manifest_is_an_error(labels, output, change):
    (output / "pseudo_labels.json").write_text(json.dumps({**manifest(output), **change}))
    problem = r"pseudo_labels\.json: the manifest is damaged.*; copy the folder again"
    with pytest.raises(DataError, match=problem):
        PseudoLabels(output)
    with pytest.raises(DataError, match=problem):
        label(*labels, output)


def test_captions_that_cannot_be_used_are_skipped_and_counted(tmp_path, output):
    """Nothing is finished when the first run ends, so another grounder may begin."""
    rows, images = write_input(tmp_path, ["a dog", "broken tree", "a ball", "a car"])
    (images / "i1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"caption c1: this caption is broken; .*--on-error skip"):
        label(rows, images, output)
    label(rows, images, output, Grounder(name="b"), on_error="skip")
    assert manifest(output)["provenance"]["grounder"]["name"] == "b"
    table = PseudoLabels(output).rows
    assert count_labels(table)["captions_skipped"] == 3
    assert [len(phrases) for phrases in table["phrases"]] == [1, 0, 0, 0]
    assert table["width"][:] == [40, None, None, None]


class Fixed(Grounder):
    """The same candidates for every phrase."""

    def __init__(self, boxes, scores):
        super().__init__()
        self.found = Candidates(boxes, scores)

    def ground(self, examples):
        return [[self.found] * len(example.phrases) for example in examples]


@pytest.mark.parametrize(
    "boxes, scores, problem",
    [
        ([[50, 0, 60, 5]], [0.5], r"a box outside the image: found \[50.*pixels of an image of 40 x 20"),
        ([[0, 0, float("nan"), 5]], [0.5], "outside the image"),
        ([[0, 0, 5, 5]], [1.5], r"score outside \[0, 1\]"),
        ([[0, 0, 5, 5]], [], "1 boxes and 0 scores"),
    ],
)
def test_a_bad_box_or_score_is_refused(tmp_path, output, boxes, scores, problem):
    with pytest.raises(DataError, match=rf"caption c0, phrase 'dog'.*{problem}"):
        label(*write_input(tmp_path, ["a dog"]), output, Fixed(boxes, scores))


def test_boxes_are_clipped_sorted_suppressed_and_limited(tmp_path, output):
    boxes = [[-5, 0, 10, 10], [0, 0, 10, 10], [20, 0, 45, 20], [30, 5, 35, 10], [0, 0, 0.2, 5]]
    grounder = Fixed(boxes, [0.4, 0.3, 0.0, 1.0, 0.9])
    captions = write_input(tmp_path, ["a dog"])
    label(*captions, output, grounder, selection=Selection(boxes_per_phrase=9, threshold=0.1))
    [phrase] = PseudoLabels(output).rows[0]["phrases"]
    # By hand: the last box is thinner than a pixel, the second equals the clipped first, the third has a low score.
    assert phrase["boxes"] == [pytest.approx([0.75, 0.25, 0.875, 0.5]), pytest.approx([0, 0, 0.25, 0.5])]
    assert 0.999 < phrase["scores"][0] < 1
    assert phrase["scores"][1] == pytest.approx(0.4)
    label(*captions, tmp_path / "one", grounder)
    assert len(PseudoLabels(tmp_path / "one").rows[0]["phrases"][0]["boxes"]) == 1


def annotated(**changes):
    """One image with one annotated caption."""
    boxes = [[0.0, 0.0, 0.5, 0.5]]
    phrase = {"text": "a dog", "start": 0, "end": 5, "sentence": 0, "boxes": boxes, "types": ["animals"], **changes}
    captions = {"captions": ["a dog runs"], "caption_ids": ["c0"], "related": [True], "phrases": [phrase]}
    image = {"image_id": "i0", "width": 40, "height": 20, **captions, "objects": boxes}
    return caption_rows({"train": datasets.Dataset.from_list([image])})


def test_a_missing_image_is_named(tmp_path, output):
    rows, images = write_input(tmp_path, ["a dog", "a cat"])
    (images / "i0.png").unlink()
    with pytest.raises(DataError, match=r"caption c0: image .*i0\.png"):
        label(rows, images, output)


def test_given_phrases_are_labelled(tmp_path, output):
    images = save_images(tmp_path / "images", annotated())
    label(annotated(), images, output, phrases=GivenPhrases())
    assert PseudoLabels(output).rows[0]["phrases"][0]["text"] == "a dog"


@pytest.mark.parametrize(
    "rows, problem",
    [
        (annotated(text="a cat"), "text is 'a cat', but characters 0 to 5 are 'a dog'"),
        (annotated(end=50), "characters 0 to 50"),
        (rows_of(["a dog"]), "the caption has no annotated phrases.*flickr30k_entities"),
    ],
    ids=["another text", "a far end", "no phrases"],
)
def test_given_phrases_must_be_in_their_caption(tmp_path, output, rows, problem):
    images = save_images(tmp_path / "images", rows)
    with pytest.raises(ValueError, match=f"caption c0: .*{problem}"):
        label(rows, images, output, phrases=GivenPhrases())


def test_an_image_of_another_size_than_its_annotation_is_refused(tmp_path, output):
    images = save_images(tmp_path / "images", annotated())
    Image.new("RGB", (20, 10)).save(images / "i0.png")
    with pytest.raises(DataError, match=r"image i0: the image has another size: found '20 x 10', expected 40 x 20"):
        label(annotated(), images, output)


def test_captions_that_are_refused():
    twice = datasets.Dataset.from_dict({"caption_id": ["a", "a"], "image_id": ["i", "i"], "text": ["x", "y"]})
    with pytest.raises(DataError, match=r"two captions have the same id: found 'a'"):
        caption_rows({"train": twice})
    with pytest.raises(DataError, match="no captions"):
        caption_rows({"train": twice.select([])})
    with pytest.raises(MissingFileError, match=r"no pseudo-labels here.*data pseudo-ground"):
        PseudoLabels("nowhere")


@pytest.mark.parametrize("wrong", [{"phrases": None}, {"boxes": [[float("nan"), 0, 1, 1]]}, {"scores": None}])
def test_rows_of_a_stranger_are_checked(labels, output, wrong):
    shard = output / "pseudo_labels.parquet"
    first, second = pq.read_table(shard).to_pylist()
    place = first if "phrases" in wrong else first["phrases"][0]
    place.update(wrong)
    pq.write_table(pa.Table.from_pylist([first, second], SCHEMA), shard)
    content = manifest(output)
    digest = hashlib.sha256(shard.read_bytes()).hexdigest()
    content["shards"][0] |= {"bytes": shard.stat().st_size, "sha256": digest}
    (output / "pseudo_labels.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"pseudo_labels\.parquet, caption c0: "):
        PseudoLabels(output).verify()


def test_a_damaged_file_is_named(labels, output):
    table = PseudoLabels(output)
    table.verify()
    shard = output / "pseudo_labels.parquet"
    content = shard.read_bytes()
    shard.write_bytes(content.replace(b"dog", b"cow", 1))
    with pytest.raises(DataError, match=r"pseudo_labels\.parquet: the file is damaged: its checksum differs"):
        table.verify()
    shard.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"cut or replaced"):
        PseudoLabels(output)
    shard.unlink()
    with pytest.raises(MissingFileError, match=r"a file of the table is missing"):
        PseudoLabels(output)
