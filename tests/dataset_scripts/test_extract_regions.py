# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Extraction of regions into a table: lists of images, broken images, kills at any point, processes, refusals."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grounded_attention.commands.extract_regions import main
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.image_files import ImageFile, list_images
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.utils.boxes import box_iou
from tests.dataset_scripts.stub_extractor import Extractor, extract
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.two_processes import launch


@pytest.fixture
def photos(tmp_path):
    return save_photos(tmp_path / "photos", 12)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


def save_photos(folder, count):
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (6, 4), (number, 0, 0)).save(folder / f"{number:03d}.png")
    return folder


def assert_whole(output, count):
    """Every image once, each with its own content, and no draft left."""
    table = RegionTable.open(output)
    table.verify()
    assert sorted(table.ids) == [f"{number:03d}" for number in range(count)]
    for image_id in table:
        number = int(image_id)
        assert len(table[image_id]) == 1 + number % 3
        assert (table[image_id].features == number).all()
    assert not list(output.glob("*.partial*"))
    return table


def test_a_folder_becomes_a_table(photos, output):
    info = extract(photos, output)
    table = assert_whole(output, 12)
    assert info["summary"] == {"given": 12, "images": 12, "skipped": 0, "problems": []}
    assert table.provenance["detector"] == {"name": "stub"}
    assert table.provenance["images"]["count"] == 12
    assert (table["004"].width, table["004"].height) == (6, 4)


def test_a_finished_table_is_unchanged(photos, output):
    info = extract(photos, output)
    before = (output / "regions.json").stat().st_mtime_ns
    nothing = Extractor()
    nothing.extract = None  # which nobody calls
    assert extract(photos, output, nothing) == info
    assert (output / "regions.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_detector_option_or_set_of_images_is_refused(photos, output, finished):
    if finished:
        extract(photos, output)
    else:
        Image.new("RGB", (6, 4), (255, 0, 0)).save(photos / "bright.png")
        with pytest.raises(DataError, match=r"bright\.png: this picture is too bright.*--on-error skip"):
            extract(photos, output)
    with pytest.raises(DataError, match=r"differ in detector\.name \('stub', now 'other'\)"):
        extract(photos, output, Extractor(detector={"name": "other"}))
    with pytest.raises(DataError, match=r"options\.max_regions \(9, now 5\)"):
        extract(photos, output, Extractor(options={"max_regions": 5}))
    (photos / "000.png").unlink()
    with pytest.raises(DataError, match=r"images\.count"):
        extract(photos, output)


def test_a_table_without_rows_can_restart_with_other_options(tmp_path, output):
    photos = save_photos(tmp_path / "photos", 0)
    (photos / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png"):
        extract(photos, output)
    with pytest.raises(DataError, match=r"no usable image; the first problem: .*a\.png"):
        extract(photos, output, on_error="skip")
    Image.new("RGB", (6, 4), (3, 0, 0)).save(photos / "a.png")
    extract(photos, output, Extractor(detector={"name": "other"}))
    assert RegionTable.open(output).ids == ["a"]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_broken_images_are_skipped_and_listed(photos, output, batch_size):
    (photos / "torn.png").write_bytes((photos / "001.png").read_bytes()[:40])
    Image.new("RGB", (6, 4), (255, 0, 0)).save(photos / "bright.png")
    extractor = Extractor()
    extractor.batch_size = batch_size
    info = extract(photos, output, extractor, on_error="skip")
    assert info["summary"]["skipped"] == 2
    assert info["summary"]["images"] == 12
    problems = " ".join(info["summary"]["problems"])
    assert "torn.png" in problems
    assert "bright.png" in problems
    assert_whole(output, 12)


def test_features_that_float16_cannot_hold_name_their_image(photos, output):
    class Huge(Extractor):
        def _regions(self, image):
            regions = super()._regions(image)
            regions.features[0, 0] = 1e6
            return regions

    with pytest.raises(DataError, match=r"000\.png.*features contain a value that float16 cannot represent"):
        extract(photos, output, Huge())


# Kills


def shards_of(output):
    return sorted(output.glob("regions-*.arrow"))


def fork(work, *arguments):
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    return child


def run_and_kill(photos, output, count):
    """Extracts in a separate process, which is killed when there are so many shards."""
    child = fork(extract, photos, output, Extractor(slow=0.02))
    while len(shards_of(output)) < count and child.is_alive():
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("file", ["regions.index.arrow", "regions.json"])
def test_a_kill_while_the_table_is_finished(photos, output, file):
    """Killed before the index and before the manifest, the table is whole after the next run."""

    def killed():
        real = os.replace

        def last(draft, path):
            if Path(path).name == file:
                os.kill(os.getpid(), signal.SIGKILL)
            real(draft, path)

        os.replace = last
        extract(photos, output)

    for _ in range(2):
        child = fork(killed)
        child.join()
        assert child.exitcode == -signal.SIGKILL
        assert shards_of(output)
        assert not (output / "regions.json").exists()
    extract(photos, output)
    assert len(RegionTable.open(output)) == 12


def test_another_number_of_processes_continues(tmp_path, output):
    """Shards of the third process of an earlier run are part of the table, and no image is done again."""
    photos = save_photos(tmp_path / "photos", 24)
    run_and_kill(photos, output, 2)
    for shard in shards_of(output):
        shard.rename(output / shard.name.replace(".arrow", "-00002.arrow"))
    run_and_kill(photos, output, 4)
    extract(photos, output)
    assert assert_whole(output, 24).path.joinpath("regions-00000-00002.arrow").is_file()


SCRIPT = """
import sys
import torch
from tests.dataset_scripts.stub_extractor import Extractor, extract
extract(sys.argv[1], sys.argv[2], Extractor(slow=float(sys.argv[3])))
torch.distributed.destroy_process_group()
"""


def test_two_processes_killed_and_finished_by_two(tmp_path, output):
    photos = save_photos(tmp_path / "photos", 40)
    launched = launch(SCRIPT, photos, output, 0.2)
    deadline = time.monotonic() + 400
    while len({path.name[13:] for path in shards_of(output)}) < 2:  # of both
        alive = all(process.poll() is None for process in launched)
        assert alive and time.monotonic() < deadline, [process.communicate()[1][-2000:] for process in launched]
        time.sleep(0.02)
    for process in launched:
        process.kill()
        process.communicate()
    assert not (output / "regions.json").exists()
    for process in launch(SCRIPT, photos, output, 0):
        error = process.communicate(timeout=400)[1]
        assert process.returncode == 0, error[-3000:]
    assert_whole(output, 40)


# Lists of images and boxes


def test_images_of_a_folder_and_of_a_list(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("2.PNG", "b/1.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    first = tmp_path / "b/1.jpg"
    second = tmp_path / "2.PNG"
    assert list_images(tmp_path) == [ImageFile("2", second), ImageFile("1", first)]
    listing = tmp_path / "list.txt"
    listing.write_text("b/1.jpg\n\nseven\t2.PNG\n/elsewhere/x.png\n")
    elsewhere = ImageFile("x", Path("/elsewhere/x.png"))
    assert list_images(listing) == [ImageFile("1", first), ImageFile("seven", second), elsewhere]


@pytest.mark.parametrize(
    "text, problem",
    {
        "a\tb\tc\n": "line 1",
        "\tx.png\n": "line 1",
        "\n": "no images",
        "x/1.png\ny/1.jpg\n": r"id 1: two images have the same id.*'x/1\.png and y/1\.jpg'",
    }.items(),
)
def test_lists_of_images_that_are_refused(tmp_path, text, problem):
    folder = tmp_path / ("long" * 40)  # which the paths of the message leave out
    folder.mkdir()
    (folder / "list").write_text(text)
    with pytest.raises(DataError, match=problem):
        list_images(folder / "list")


def test_places_without_images_are_refused(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        list_images(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no images"):
        list_images(tmp_path)


RECORD = '{"boxes": [[-1, 1, 2, 3], [4.5, 5, 6, 7]], "labels": ["cat", "dog"], "scores": [1, 0.5]}'


@pytest.mark.parametrize(
    "name, text",
    [
        ("boxes.json", f'{{"1": [], "2": {RECORD}}}'),
        ("boxes.jsonl", '{"image_id": 1, "boxes": []}\n' + RECORD.replace("{", '{"image_id": "2", ')),
    ],
)
def test_boxes_as_json_and_as_lines(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = read_boxes(tmp_path / name)
    assert list(found) == ["1", "2"]
    assert list(found["1"]) == ["boxes"]
    assert found["1"]["boxes"].shape == (0, 4)
    assert found["2"]["boxes"].tolist() == [[-1, 1, 2, 3], [4.5, 5, 6, 7]]
    assert found["2"]["labels"] == ["cat", "dog"]
    assert found["2"]["scores"].tolist() == [1, 0.5]


# The command


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_detector("yolos", folder / "yolos")
    save_detector("owlvit", folder / "owlvit")
    (folder / "backbone").mkdir()
    save_backbone(folder / "backbone")
    return folder


@pytest.fixture
def command(models, photos, tmp_path):
    """Runs the command with further options; they may name files of the folder of models and of `tmp_path`."""
    options = ["--images", str(photos), "--output", str(tmp_path / "out"), "--device", "cpu"]
    options += ["--features", str(models / "backbone")]

    def run(line):
        return main([*options, *line.format(models=models, tmp=tmp_path).split()])

    return run


def test_the_command_makes_a_table_once(command, output, capsys):
    detector = "--detector {models}/yolos --min-regions 2 --max-regions 5"
    assert command(detector) == 0
    assert "12 images with" in capsys.readouterr().out
    table = RegionTable.open(output)
    assert len(table) == 12
    assert table.feature_size == 12
    assert table["003"].class_probs.shape[1] == 4
    assert table.provenance["detector"]["label_names"] == ["cat", "dog", "ball"]
    assert table.provenance["features"]["feature_size"] == 12
    assert command(f"{detector} --json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 12
    assert command(f"{detector} --threshold 0.4") == 2
    assert "options.score_threshold (0.2, now 0.4)" in capsys.readouterr().err


def test_the_command_takes_queries(command, output):
    assert command("--detector {models}/owlvit --queries dog cat") == 0
    assert RegionTable.open(output).provenance["detector"]["label_names"] == ["dog", "cat"]


def test_the_command_takes_boxes(command, tmp_path, output):
    boxes = {f"{number:03d}": [[0, 0, 3, 4]] for number in range(12)}
    (tmp_path / "b.json").write_text(json.dumps(boxes))
    assert command("--boxes {tmp}/b.json") == 0
    assert RegionTable.open(output)["005"].boxes.tolist() == [[0, 0, 0.5, 1]]


@pytest.mark.parametrize(
    "line, problem",
    {
        "--detector {tmp}/nowhere": "nowhere",
        "--boxes {tmp}/b.json": "No boxes are given for image '001'",
        "--detector {models}/yolos --queries dog": "has fixed classes",
        "--boxes {tmp}/b.json --queries dog": "--queries needs a zero-shot",
        "--detector scenes --queries ball": "--queries needs a zero-shot --detector",
        "--detector {models}/yolos --min-regions 0": "expected 1 <= min_regions",
        "--detector {models}/yolos --device warp": "--device warp",
    }.items(),
)
def test_user_errors_are_one_line_and_status_2(command, tmp_path, capsys, line, problem):
    (tmp_path / "b.json").write_text('{"000": [[0, 0, 3, 4]]}')
    assert command(line) == 2
    lines = capsys.readouterr().err.splitlines()  # with progress bars before the error
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert problem in lines[-1]


def test_scenes_are_a_detector_and_a_feature_model(tmp_path, output, capsys):
    """Regions found in the pixels of a drawn picture have the features that the generator stores for such boxes."""
    write_scenes(tmp_path, images=5, seed=1)
    options = ["--images", str(tmp_path / "flickr30k-images"), "--output", str(output), "--json"]
    assert main([*options, "--detector", "scenes", "--features", "scenes"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 5
    drawn = RegionTable.open(tmp_path / "regions_gt")
    table = RegionTable.open(output)
    for image_id in table:
        found = table[image_id]
        overlap = box_iou(found.boxes, drawn[image_id].boxes)
        assert overlap.max(axis=0).mean() > 0.8
        for one, other in np.argwhere(overlap > 0.95):
            pair = found.features[one].astype(float), drawn[image_id].features[other].astype(float)
            assert np.corrcoef(*pair)[0, 1] > 0.95
