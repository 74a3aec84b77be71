# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The built wheel, installed and used where no file of the project is: train, audit, ground, push, load."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).resolve().parents[1]
LOAD = """
import json, sys
import grounded_attention
from grounded_attention import VLBertForVGP, audit, get_method, supervise
from transformers import AutoModel, AutoProcessor
name = "org/scenes-vgp-direct"
base, processor = AutoModel.from_pretrained(name), AutoProcessor.from_pretrained(name)
model = VLBertForVGP.from_pretrained(name)
modules = [type(base).__module__, type(processor).__module__]
print(json.dumps([grounded_attention.__file__, *modules, type(model).__name__]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what the wheel holds, and no other way to the project."""
    folder = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "project"
    # The build writes beside the sources; links stay links, as git keeps them.
    copy = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = [
        name for name in subprocess.run(copy, capture_output=True, check=True, text=True).stdout.split("\0") if name
    ]
    for name in names:
        if name.split("/")[0] in ("tests", "docs", "benchmarks") or not (ROOT / name).exists():
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to(os.readlink(ROOT / name))
        else:
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    pip += ["--no-build-isolation", "--target", str(folder), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return folder


def call(installed, environment, cwd, *arguments, code=None):
    """`grounded-attention ARGUMENTS`, or a script, with the installed package alone."""
    program = installed / "bin" / "grounded-attention"
    code = code or f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    environment = {**environment, "PYTHONPATH": str(installed), "HF_DATASETS_CACHE": str(cwd / "cache")}
    done = run_python(code, arguments, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_licence_is_shipped_with_the_package(installed):
    [licence] = installed.glob("grounded_attention-*.dist-info/licenses/LICENSE")
    assert licence.read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "Apache License" in licence.read_text()


# The pages that a newcomer follows, in this order.
FOLLOWED = ("README", "docs/first_hour", *(f"docs/tutorials/{name}" for name in (
    "train_on_scenes", "which_head_looks_where", "your_own_image", "push_and_pull", "your_own_data_set",
    "reproduce_a_table", "heads_of_a_vlm", "your_own_regions",
)))  # fmt: skip
DETECTED = "--detector scenes --features scenes"
# Part of a command that is not followed -> why.
LEFT_OUT = {
    "HuggingFaceTB/": "needs a network",
    "Qwen/": "needs a network; tests/test_tutorial_rows.py runs it with a tiny model",
    "PekingU/": "needs a network",
    "google-bert/": "needs a network",
    "train referring data.source": "its text encoder needs a network",
    "runs/own ": "its training needs a network",
    "space run": "serves until it is stopped; `make space` runs it",
}
# Start of a command -> what makes it small.
SMALL = {
    "train scenes_vgp": "training.max_steps=2 data.scenes.images=24 text_only_baseline=false start=null workers=1",
    "heads --run": "--limit 4 --explore 1",
    "heads": "--limit 4",
    "data scenes": "--images 24",
    "data screens": "--images 24",
}
FOLLOW = """
import shlex, sys
from grounded_attention.commands.main import main
for line in sys.argv[1:]:
    print("$", line, flush=True)
    try:
        code = main(shlex.split(line))
    except SystemExit as end:  # --help
        code = end.code
    if code:
        sys.exit(f"this command of the pages fails: {line}")
"""


def commands(page):
    """The commands of the shell blocks of a page, without those that are left out, small."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        given = re.sub(r"\s+#.*", "", line.strip()).replace("ORG/", "org/").replace(" me/", " org/")
        given = given.replace("make train", "grounded-attention train scenes_vgp")
        program, _, rest = given.partition(" ")
        if program != "grounded-attention" or any(part in f"{rest} " for part in LEFT_OUT):
            continue
        kind = next((start for start in SMALL if f"{rest} ".startswith(start) and "help" not in rest), "")
        yield f"{rest} {SMALL[kind]}" if kind else rest


def test_a_newcomer_follows_the_pages(installed, tmp_path):
    """Every command of the first pages, in order, from an empty folder, with the package from the wheel alone.

    Then `ground` writes a page, and what was pushed is loaded.
    """
    lines = list(dict.fromkeys(line for page in FOLLOWED for line in commands(page)))
    rows = re.search(r"```python\n(.*?)```", (ROOT / "docs/tutorials/your_own_data_set.md").read_text(), re.DOTALL)[1]
    (tmp_path / "grounded_attention" / "space").mkdir(parents=True)  # README is read in a clone
    for name in ("grounded_attention/space/scenes", "grounded_attention/space/models"):
        (tmp_path / name).symlink_to(installed / name)
    shutil.copyfile(installed / "grounded_attention/space/scenes/10074.jpg", tmp_path / "shapes.png")
    with LoopbackHub(tmp_path / "state") as hub:
        environment = hub.environment(tmp_path / "home")
        call(installed, environment, tmp_path, code=rows)
        lines.append(f"ground shapes.png 'a red ball' --model runs/mine/direct {DETECTED} --output page.html")
        printed = call(installed, environment, tmp_path, *lines, code=FOLLOW)
        file, base, processor, head = json.loads(call(installed, environment, tmp_path, code=LOAD))
    assert [line[2:] for line in printed.splitlines() if line.startswith("$ ")] == lines
    assert len(lines) > 12
    made = ("little_heart.png", "runs/mine/run.html", "runs/mine/heads/heads.html", "data_show.html", "page.html")
    assert [name for name in made if not (tmp_path / name).is_file()] == []
    assert Path(file).is_relative_to(installed)
    assert head == "VLBertForVGP"
    assert base == "grounded_attention.modeling.modeling_vl_bert"
    assert processor == "grounded_attention.processing.processing_vl_bert"


def test_shipped_recipes_are_found_by_name(installed, tmp_path):
    """A table of cells is printed for a recipe that is no file here; nothing is trained."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    printed = call(installed, environment, tmp_path, "train", "table1_scenes", "plan=true")
    assert "refcoco+" in printed
    assert not (tmp_path / "runs").exists()
