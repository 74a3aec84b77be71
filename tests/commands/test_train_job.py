# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention train --job` against a stand-in of the Hub's jobs: what is checked, stated and sent."""

import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from importlib import metadata
from importlib.metadata import version
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from huggingface_hub import constants

from grounded_attention import __version__
from grounded_attention.commands import train
from grounded_attention.commands.train_job import parse_time
from grounded_attention.training.recipes.recipe import load_recipe, read_recipe
from grounded_attention.training.remote import hub_jobs, remote_run
from grounded_attention.training.remote.job_files import job_recipe, package_wheel, requirements
from grounded_attention.utils.project import RECIPES
from tests.helpers.loopback_hub import TOKEN
from tests.helpers.loopback_jobs import plan_jobs
from tests.helpers.tiny_scenes import tiny_recipe

PUSHED = {"push_to_hub": True, "hub_model_id": "org/model"}
FILES = "tester/grounded-attention-jobs"


@pytest.fixture(scope="module")
def wheel():
    """The package as a wheel, packed once."""
    return package_wheel()


@pytest.fixture
def hub(loopback_hub, tmp_path, monkeypatch, wheel):
    """The loopback Hub as the Hub of this process, and an empty folder to work in."""
    monkeypatch.setattr(constants, "ENDPOINT", loopback_hub.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_jobs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(remote_run, "package_wheel", lambda: wheel)
    monkeypatch.setattr(huggingface_hub.hf_api.time, "sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)
    return loopback_hub


@pytest.fixture
def recipe(tmp_path):
    """A recipe on drawn scenes that pushes its model."""
    content = tiny_recipe(Path("drawn"), Path("run"))
    content["data"]["scenes"] = {"images": 24, "seed": 1}
    content["training"] |= PUSHED
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def sent(hub):
    """The jobs that were started, and whether anything was written to the Hub."""
    return hub.jobs(), (hub.state.folder / "repos").exists() and list((hub.state.folder / "repos").rglob("repo.json"))


def test_a_job_is_stated_started_and_followed(hub, recipe, capsys):
    plan_jobs(hub.state, ["method: direct", "step 3"], running=2)
    words = ["--job", "cpu-upgrade", "--timeout", "2h", "--yes", "training.max_steps=7"]
    assert train.main([recipe, *words]) == 0
    out, err = capsys.readouterr()
    assert out == "method: direct\nstep 3\n"
    assert "mine-" in err and "on cpu-upgrade (CPU Upgrade), paid by tester" in err
    # 0.0005 USD a minute are 0.03 USD an hour, and twice that in two.
    assert "0.03 USD an hour; with all of the time limit 0.06 USD, which is the highest cost" in err
    assert "models:     org/model" in err and "scenes, drawn there" in err
    assert f"started: job job0\n  {hub.endpoint}/jobs/tester/job0" in err and "finished; pull" in err
    (job,) = hub.jobs()
    spec = job["spec"]
    assert (spec["flavor"], spec["timeoutSeconds"], spec["secrets"]) == ("cpu-upgrade", 7200, {"HF_TOKEN": TOKEN})
    assert TOKEN not in json.dumps({**spec, "secrets": None}) and TOKEN not in out + err
    commit, *_ = hub.commits(FILES, kind="datasets")
    assert commit["id"] in spec["command"][2] and hub.state.repo("datasets", FILES)["private"]
    uploaded = yaml.safe_load(hub.read(FILES, "recipe.yaml", kind="datasets"))
    assert uploaded["training"]["max_steps"] == 7 and uploaded["training"]["hub_model_id"] == "org/model"


def test_the_job_runs_this_package_with_the_recipe(hub, recipe, tmp_path, capsys):
    """Its command, run as the Hub would, with stand-ins for uv that install only the wheel."""
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes", "--detach", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["stage"] == "STARTED" and described["models"] == ["org/model"]
    assert described["highest_cost_usd"] == pytest.approx(0.03)
    spec = hub.jobs()[0]["spec"]
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uvx").write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -c "{HF}" "$@"\n')
    (tools / "uv").write_text(f"#!{sys.executable}\n{UV}")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    there = tmp_path / "there"
    there.mkdir()
    environment = {**hub.environment(tmp_path / "home"), **spec["environment"], **spec["secrets"]}
    environment |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(spec["command"], cwd=there, env=environment, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr  # that of the program
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert seen["version"] == __version__ and Path(seen["file"]).is_relative_to(there)
    assert seen["words"] == ["train", "job/recipe.yaml"] and seen["hub_model_id"] == "org/model"
    assert f"transformers=={version('transformers')}" in seen["with"]
    assert hub.read(FILES, f"{described['run'].partition(FILES + '/')[2]}/table.md", kind="datasets") == b"a table"
    assert not [name for name in hub.files(FILES, kind="datasets") if name.endswith("safetensors")]


HF = "import sys; from huggingface_hub.cli.hf import main; sys.argv[0] = 'hf'; sys.exit(main())"
# Installs the wheel, and in place of a training says what the program would read, and leaves what a run leaves.
UV = """
import json, os, subprocess, sys
words = sys.argv[1:]
assert words[:2] == ["run", "--no-project"], words
given = [words[n + 1] for n, word in enumerate(words) if word == "--with"]
wheel = next(each for each in given if each.endswith(".whl"))
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", "installed", wheel]
subprocess.run(pip, check=True)
program = words[2 + 2 * len(given):]
os.makedirs("run/direct")
for name in ("run/table.md", "run/direct/model.safetensors"):
    open(name, "w").write("a table")
LOOK = '''
import json, os, sys, grounded_attention
from grounded_attention.training.recipes.recipe import load_recipe, read_recipe
recipe = load_recipe(sys.argv[2])
seen = {"version": grounded_attention.__version__, "file": grounded_attention.__file__, "words": sys.argv[1:]}
print(json.dumps({**seen, "with": json.loads(os.environ["GIVEN"]), "hub_model_id": recipe.training["hub_model_id"]}))
sys.exit(3)
'''
assert open("installed/bin/grounded-attention").read() and program[0] == "grounded-attention"
os.environ |= {"PYTHONPATH": os.path.abspath("installed"), "GIVEN": json.dumps(given)}
os.execv(sys.executable, [sys.executable, "-c", LOOK, *program[1:]])
"""


ALONE = [path for path in sorted(RECIPES.glob("*/*.yaml")) if "study" not in read_recipe(path)]


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_the_recipe_of_a_job_is_the_recipe(path, tmp_path):
    overrides = ["training.learning_rate=1e-5", "training.save_strategy=no", "training.hub_token=secret"]
    wanted = load_recipe(path, overrides)
    written = tmp_path / "recipe.yaml"
    written.write_bytes(job_recipe(path, overrides))
    found = load_recipe(written)
    assert wanted.training.pop("hub_token") == "secret"
    assert found == wanted and b"secret" not in written.read_bytes()


def test_the_wheel_holds_the_package_and_is_the_same_each_time(wheel):
    name, content = wheel
    assert name == f"grounded_attention-{__version__}-py3-none-any.whl" and package_wheel() == (name, content)
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        names = set(packed.namelist())
        record = packed.read(f"grounded_attention-{__version__}.dist-info/RECORD").decode().splitlines()
        metadata = packed.read(f"grounded_attention-{__version__}.dist-info/METADATA").decode()
    assert {line.split(",")[0] for line in record} == names
    assert {
        "grounded_attention/modeling/modeling_vl_bert.py",
        "grounded_attention/recipes/scenes/scenes_vgp.yaml",
    } <= names
    assert not [each for each in names if "__pycache__" in each]
    assert "Requires-Dist: torch>=2.6\n" in metadata and "extra ==" not in metadata


def test_versions_of_this_machine_are_required_where_they_are_releases(monkeypatch):
    found = requirements(["trackio", "peft"])
    assert f"torch=={version('torch').partition('+')[0]}" in found and f"peft=={version('peft')}" in found
    monkeypatch.setattr(metadata, "version", lambda name: "5.24.0.dev0" if name == "transformers" else "1.0+cpu")
    found = requirements(["peft"])
    assert "torch==1.0" in found and not [each for each in found if each.startswith("transformers")]


# What is refused before anything is written or paid


def refused(hub, capsys, *words):
    before = len(hub.jobs())
    assert train.main([*words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(hub.jobs()) == before and TOKEN not in err
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in err, err
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    "words, message",
    [
        (["training.push_to_hub=false"], "add training.push_to_hub=true"),
        (["training.hub_model_id=null"], "add training.hub_model_id=ORG/NAME"),
        (["data.scenes=null"], "data.data_dir drawn is of this machine, and a job cannot read it: push the rows"),
        (["data.regions=tables/mine"], "data.regions tables/mine is of this machine"),
        (["data.images=/photos"], "images are never on the Hub"),
        (["model.source=mine.yaml"], "model.source mine.yaml is of this machine"),
        (["methods=[driect]"], "did you mean 'direct'?"),
        (["training.max_steps=-1"], "training.max_steps must be above 0"),
        (["--timeout", "2"], "--timeout 2: expected a number with s, m, h or d"),
        (["--secret", "NO_SUCH_VARIABLE"], "your environment has no such variable"),
    ],
)
def test_a_recipe_that_cannot_run_there_is_refused(hub, recipe, capsys, words, message):
    assert message in refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes", *words)
    assert not sent(hub)[1]


def test_machines_that_do_not_fit_are_refused(hub, recipe, capsys):
    said = refused(hub, capsys, recipe, "--job", "t4-smal", "--yes")
    assert "did you mean t4-small? expected one of cpu-upgrade, t4-small, l4x4" in said
    said = refused(hub, capsys, recipe, "--job", "t4-small", "--yes")
    assert "training.use_cpu is true, but t4-small has a GPU" in said
    said = refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes", "training.use_cpu=false")
    assert "cpu-upgrade has no GPU" in said
    words = ["training.use_cpu=false", "workers=2", "methods=[none,direct]"]
    assert "give workers=1" in refused(hub, capsys, recipe, "--job", "l4x4", "--yes", *words)
    assert not sent(hub)[1]


def test_several_gpus_have_a_process_each_and_further_secrets_stay_secret(hub, recipe, capsys, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "other-key")
    words = ["--yes", "--detach", "--timeout", "100m", "--secret", "OTHER_KEY", "training.use_cpu=false"]
    assert train.main([recipe, "--job", "l4x4", *words]) == 0
    said = capsys.readouterr().err
    # 3.8 USD for 100 minutes are 6.333 USD, rounded up.
    assert "3.80 USD an hour; with all of the time limit 6.34 USD" in said and "100 min, then" in said
    spec = hub.jobs()[0]["spec"]
    assert spec["secrets"] == {"HF_TOKEN": TOKEN, "OTHER_KEY": "other-key"}
    assert "other-key" not in said + json.dumps({**spec, "secrets": None})
    script = spec["command"][2]
    assert "--nproc_per_node 4 -m grounded_attention train job/recipe.yaml" in script


def test_an_unknown_price_is_said(hub, recipe, capsys):
    assert train.main([recipe, "--job", "quantum-small", "--yes", "--detach"]) == 0
    assert "price unknown: the Hub did not say it" in capsys.readouterr().err
    hub.inject("status", "GET /api/jobs/hardware", status=500, times=20)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes", "--detach", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "price unknown" in err and json.loads(out)["usd_per_hour"] is None


def test_nothing_starts_without_a_yes(hub, recipe, capsys, monkeypatch):
    assert "give --yes" in refused(hub, capsys, recipe, "--job", "cpu-upgrade")
    for answer, status in (("\n", 1), ("no\n", 1), ("Y\n", 0)):
        terminal = io.StringIO(answer)
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, "stdin", terminal)
        assert train.main([recipe, "--job", "cpu-upgrade", "--detach"]) == status
        assert ("not started" in capsys.readouterr().err) == bool(status) and bool(hub.jobs()) != bool(status)
    assert len(hub.jobs()) == 1


@pytest.mark.parametrize(
    "status, message",
    [(402, "the account cannot pay for it"), (404, "the Hub has no such job"), (503, "status 503")],
)
def test_the_hub_refuses_the_job(hub, recipe, capsys, status, message):
    hub.inject("status", "POST /api/jobs/", status=status, times=9)
    said = refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes")
    assert message in said and "the start of a job on cpu-upgrade failed" in said and "hf jobs ps" not in said


def test_a_start_without_an_answer_may_have_started(hub, recipe, capsys):
    hub.inject("cut", "POST /api/jobs/", after=3)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 2
    assert "`hf jobs ps` shows whether it started nevertheless" in capsys.readouterr().err and len(hub.jobs()) == 1


def test_tokens_and_clients_that_do_not_do(hub, recipe, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the token was rejected" in refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "other" in refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes", "--namespace", "other")
    monkeypatch.delattr(huggingface_hub.HfApi, "list_jobs_hardware")
    assert "needs huggingface-hub 1.4 or newer" in refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes")


def test_options_of_a_job_need_one(hub, recipe, capsys, monkeypatch):
    assert "--timeout is about a job: give --job FLAVOUR too" in refused(hub, capsys, recipe, "--timeout", "1h")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "would start several jobs" in refused(hub, capsys, recipe, "--job", "cpu-upgrade")
    monkeypatch.delenv("WORLD_SIZE")
    assert "is a study" in refused(hub, capsys, "table1_quick", "--job", "cpu-upgrade", "--yes")
    assert [parse_time(text) for text in ("90m", "1.5h", "60s", "2d")] == [5400, 5400, 60, 172800]


# After the start


def test_a_job_that_fails_is_status_1(hub, recipe, capsys):
    plan_jobs(hub.state, ["Traceback"], stage="ERROR", message="Job failed with exit code: 2", running=1)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out == "Traceback\n"
    assert "error: the job job0 ended as ERROR (Job failed with exit code: 2); its logs: `hf jobs logs" in err
    plan_jobs(hub.state, [], stage="CANCELED")
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 1
    assert "ended as CANCELED; its logs" in capsys.readouterr().err


def test_logs_that_break_off_are_no_end(hub, recipe, capsys):
    lines = [f"line {number}" for number in range(20)]
    plan_jobs(hub.state, lines, running=30)
    hub.inject("cut", "GET /api/jobs/tester/job0/logs", after=400)  # once: the client reads on
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == lines and "broke off" not in err
    plan_jobs(hub.state, lines, running=30)
    hub.inject("status", "GET /api/jobs/tester/job1/logs", status=500, times=99)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.count("the logs broke off (the Hub returned status 500") == 1
    assert "its end is waited for" in err and "finished; pull the models" in err


def test_a_hub_that_stops_to_answer_leaves_the_job(hub, recipe, capsys):
    plan_jobs(hub.state, [], running=30)
    hub.inject("status", "GET /api/jobs/tester/job0", status=500, times=99)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 1
    said = capsys.readouterr().err
    assert "the job goes on" in said and "`hf jobs cancel tester/job0` stops it" in said


def test_an_interruption_leaves_the_job_and_says_how_to_stop_it(hub, recipe, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub.HfApi, "fetch_job_logs", interrupted)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes"]) == 130
    said = capsys.readouterr().err
    assert "error: interrupted; the job goes on: `hf jobs logs --follow tester/job0` follows it" in said
    assert "`hf jobs cancel tester/job0` stops it" in said and len(hub.jobs()) == 1


def test_data_on_the_hub_must_be_there(hub, recipe, capsys):
    words = ["data.data_dir=hub://org/rows", "data.regions=hub://org/table", "data.scenes=null"]
    words += ["model.tokenizer=org/tokenizer"]
    hub.state.create("models", "org/tokenizer", False)
    said = refused(hub, capsys, recipe, "--job", "cpu-upgrade", "--yes", *words)
    assert "org/rows" in said and "no such repository" in said
    for name in ("org/rows", "org/table"):
        hub.state.create("datasets", name, True)
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes", "--detach", *words]) == 0
    assert "data:       org/rows, org/table\n" in capsys.readouterr().err


def test_names_with_spaces_are_quoted(hub, recipe):
    assert train.main([recipe, "--job", "cpu-upgrade", "--yes", "--detach", "output_dir=my runs/$(date)"]) == 0
    script = hub.jobs()[0]["spec"]["command"][2]
    upload = shlex.split(script.splitlines()[-2])
    assert "my runs/$(date)" in upload
