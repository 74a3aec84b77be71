# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Python snippets of README.md and docs/ run as they stand; links between the pages lead somewhere."""

import contextlib
import io
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from transformers import BertConfig, BertForPreTraining

from grounded_attention.commands.main import main
from grounded_attention.utils.open_images import open_image
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vlm_files import save_qwen
from tests.helpers.tiny_vlm_recipes import save_llava
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
WITH_HUB = "<!-- run with: loopback hub -->"
PUBLISHED = ("ORG/scenes-vgp-direct", "ORG/vlbert-vgp")  # the repositories of the pages
OFFLINE = "offline"
ON_HUB = "on the loopback Hub"
QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
# The processor of Qwen2.5-VL without its part for videos, which needs torchvision.
WITHOUT_VIDEOS = """
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
Qwen2_5_VLProcessor.get_attributes = classmethod(lambda cls: ["image_processor", "tokenizer"])
"""


def snippets(page):
    """(name, code, where it is to run or None) of each Python block."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
        line = text.count("\n", 0, block.start()) + 1
        if NOT_RUN.fullmatch(before):
            where = None
        else:
            where = ON_HUB if before == WITH_HUB else OFFLINE
        found.append((f"{page.name}:{line}", block[1], where))
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets(page)]


def test_there_are_snippets_to_run():
    assert {where for _, _, where in SNIPPETS} >= {OFFLINE, ON_HUB}


def test_a_mark_needs_its_reason(tmp_path):
    page = tmp_path / "page.md"
    marks = ["<!-- not run: slow -->", "<!-- not run: -->\n", WITH_HUB]
    page.write_text("".join(f"{mark}\n```python\n{code}\n```\n" for mark, code in zip(marks, "abc", strict=True)))
    assert [(code, where) for _, code, where in snippets(page)] == [("a\n", None), ("b\n", OFFLINE), ("c\n", ON_HUB)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What `make train` leaves behind, small: scenes in data/scenes, a model of two steps in runs/scenes_vgp/direct.

    And tiny models under the names of BERT and Qwen2.5-VL, which stand for those on the Hub.
    """
    folder = tmp_path_factory.mktemp("made")
    scenes = tiny_scenes(folder / "data" / "scenes")
    recipe = tiny_recipe(scenes, folder / "runs" / "scenes_vgp")
    recipe["training"]["max_steps"] = 2
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.redirect_stdout(printed):
        assert run_train(monkeypatch, folder, recipe, "--json") == 0
    (folder / "printed.json").write_text(printed.getvalue())
    bert = folder / "google-bert" / "bert-base-uncased"
    config = BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=9)
    BertForPreTraining(config).save_pretrained(bert)
    save_qwen(folder / QWEN)
    save_llava(scenes / "vocab.txt", folder / "runs" / "vlm_scenes" / "direct")
    # The tutorials have a run and scenes of their own.
    (folder / "runs" / "mine").symlink_to("scenes_vgp")
    (folder / "data" / "scenes_200").symlink_to("scenes")
    (folder / "grounded_attention").symlink_to(ROOT / "grounded_attention")
    return folder


def test_training_prints_its_results_as_json_alone(made):
    printed = json.loads((made / "printed.json").read_text())
    assert printed == json.loads((made / "runs" / "scenes_vgp" / "results.json").read_text())
    assert list(printed["methods"]) == ["direct"]


def test_the_first_hour_asks_for_phrases_of_the_picture(made):
    """Every phrase that the snippet prints a region for is named in the caption that it prints."""
    code = next(code for name, code, _ in SNIPPETS if name.startswith("first_hour.md"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = run_python(code, cwd=made, env=environment)
    caption, *lines = done.stdout.splitlines()
    sentences = made / "data" / "scenes" / "flickr30k_entities" / "Sentences"
    said = " ".join(path.read_text() for path in sentences.iterdir())
    plain = re.sub(r"\[/EN#\d+(?:/\w+)+ ([^]]*)\]", r"\1", said)
    assert caption in plain.splitlines() or caption in plain
    assert lines, done.stderr[-2000:]
    for line in lines:
        found = re.fullmatch(r"(.+): \d+% on what the detector calls (\w+ \w+)", line)
        assert found
        assert found[1] in caption


UPLOAD = """
import sys
from huggingface_hub import HfApi
HfApi().create_repo(sys.argv[1])
HfApi().upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[2])
"""


def on_hub(hub, home, repository, folder):
    """Puts a checkpoint into a repository of somebody else's."""
    hub.state.add_user("hf_owner", repository.partition("/")[0])
    environment = hub.environment(home, "hf_owner")
    done = run_python(UPLOAD, [repository, str(folder)], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


# Each with names and a folder of its own; one process for those of a page saves its imports.
RUN = """
import json, os, sys
for name, code, folder in json.load(open(sys.argv[1])):
    os.chdir(folder)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""
TOGETHER = sorted({(name.partition(":")[0], where) for name, _, where in SNIPPETS if where})


@pytest.mark.parametrize("page, where", TOGETHER)
def test_snippets(tmp_path, request, page, where):
    todo = [(name, code) for name, code, each in SNIPPETS if name.partition(":")[0] == page and each == where]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if where == ON_HUB:
        hub = request.getfixturevalue("loopback_hub")
        environment = hub.environment(tmp_path / "home")
        for name in PUBLISHED:
            if any(name in code for _, code in todo):
                trained = request.getfixturevalue("made") / "runs" / "scenes_vgp" / "direct"
                on_hub(hub, tmp_path / "owner", name, trained)
    environment |= {"PYTHONPATH": str(ROOT), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    listed = []
    for name, code in todo:
        folder = tmp_path / name
        folder.mkdir()
        for part in ("data", "runs", "google-bert", "Qwen", "grounded_attention"):  # in the reader's folder
            if f'"{part}/' in code:
                (folder / part).symlink_to(request.getfixturevalue("made") / part)
        if '"photo.jpg"' in code:
            (folder / "photo.jpg").symlink_to(ROOT / "grounded_attention" / "space" / "scenes" / "12335.jpg")
        listed.append((name, WITHOUT_VIDEOS + code if QWEN in code else code, str(folder)))
    (tmp_path / "snippets.json").write_text(json.dumps(listed))
    done = run_python(RUN, [tmp_path / "snippets.json"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code, where in SNIPPETS if where is None])
def test_what_is_not_run_is_python(code):
    compile(code, "snippet", "exec")


def test_the_small_model_of_the_first_page_answers_as_the_page_says(tmp_path, monkeypatch, capsys):
    """The command with the model and the scene of the package, with no network."""
    readme = PAGES[0].read_text(encoding="utf-8")
    [command] = re.findall(r"^```bash\n(grounded-attention look grounded_attention/.*?)^```$", readme, re.S | re.M)
    (tmp_path / "grounded_attention").symlink_to(ROOT / "grounded_attention")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command.replace("\\\n", ""))[1:]) == 0
    answer = re.search(r"^It answers `(\w+)`", readme, re.MULTILINE)[1]
    assert capsys.readouterr().out.splitlines()[0] == answer
    assert open_image(tmp_path / "little_heart.png").size > (480, 200)


def test_the_loops_of_ones_own_are_short():
    """A plain loop for each kind of model, a Trainer, TRL, rewards: each is complete in under 30 lines."""
    loops = [code for name, code, _ in SNIPPETS if name.startswith("own_loop.md")]
    assert len(loops) == 5
    assert all(len(code.splitlines()) < 30 for code in loops)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
