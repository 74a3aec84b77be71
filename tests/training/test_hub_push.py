# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`train.py` pushes to a Hub over HTTP: each commit loads by itself, and no fault leaves a broken repository."""

import json

import pytest
import yaml

from grounded_attention.training.loop.checkpoint import is_complete
from tests.helpers.loopback_hub import TOKEN, LoopbackHub
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.warm_python import run_python
from tests.training.runs import assert_ran, assert_words, read_json

SAVING = ["training.save_strategy=steps", "training.save_steps=1", "training.hub_always_push=true"]
MODEL = {"model.safetensors", "config.json", "modeling_vl_bert.py", "configuration_vl_bert.py"}
PROCESSOR = {"processor_config.json", "processing_vl_bert.py", "tokenizer.json"}
WORKING = {"optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"}


class Trained:
    """What the steps did: `done[name]` has the exit code and the output of each, `directory(name)` its files."""

    def __init__(self, folder, hub):
        self.folder = folder
        self.hub = hub
        self.steps = []
        self.done = {}

    def step(self, name, *arguments, **options):
        """One run of the recipe into the folder `name` and the repository `org/<name>`; a later argument wins."""
        given = ["training.push_to_hub=true", f"training.hub_model_id=org/{name}"]
        arguments = [str(self.folder / "recipe.yaml"), f"output_dir={self.folder / 'runs' / name}", *given, *arguments]
        self.steps.append({"name": name, "arguments": arguments, "state": str(self.hub.state.folder), **options})

    def start(self):
        (self.folder / "steps.json").write_text(json.dumps(self.steps))
        paths = {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(self.folder / "cache")}
        environment = {**self.hub.environment(self.folder / "home"), **paths}
        script = "from tests.training.train_on_hub import main; main()"
        done = run_python(script, [self.folder / "steps.json"], cwd=ROOT, env=environment, timeout=400)
        assert_ran(done)
        for step, line in zip(self.steps, done.stdout.splitlines(), strict=True):
            self.done.setdefault(step["name"], []).append(json.loads(line))

    def finished(self, name):
        """The last run of a name, which ended well."""
        last = self.done[name][-1]
        assert last["code"] == 0, last["err"]
        return last

    def weights(self, name, method="direct"):
        return (self.directory(name, method) / "model.safetensors").read_bytes()

    def pushed_weights(self, name, revision="main"):
        return self.hub.read(f"org/{name}", "model.safetensors", revision)

    def commits(self, name):
        """The newest first, without the Hub's own one."""
        return self.hub.commits(f"org/{name}")[:-1]

    def directory(self, name, method="direct"):
        return self.folder / "runs" / name / method

    def titles(self, name):
        """Of the commits, oldest first."""
        return [commit["title"] for commit in reversed(self.commits(name))]


START = """start={training: {
  max_steps: 1, per_device_train_batch_size: 4, use_cpu: true, save_strategy: 'no',
  push_to_hub: true, hub_model_id: org/begun}}"""
END = "End of training"
PROGRESS = ["Training in progress, step 1", "Training in progress, step 2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every kind of push and of failure, in one process; no test changes anything."""
    folder = tmp_path_factory.mktemp("hub")
    recipe = tiny_recipe(tiny_scenes(folder / "scenes"), folder / "unused")
    recipe["training"]["max_steps"] = 2
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with LoopbackHub(folder / "state") as hub:
        runs = Trained(folder, hub)
        for strategy in ("end", "every_save", "checkpoint", "all_checkpoints"):
            runs.step(strategy, *SAVING, f"training.hub_strategy={strategy}")
        runs.step("several", "methods=[none,semi_direct]", "text_only_baseline=true", START)
        runs.step("unsaid", "training.hub_model_id=null", "training.save_strategy=no")
        runs.step("hidden", "training.hub_private_repo=true", f"training.hub_token={TOKEN}")
        runs.step("branch", "training.hub_revision=tries/first")
        _add_faults(runs)
        _add_continued(runs)
        runs.start()
        yield runs


# Name -> the fault of its run.
FAULTS = """
dropped: {kind: drop, match: POST /api/models/org/dropped/commit/, after: 300}
uploaded: {kind: drop, match: PUT /lfs/, after: 1000}
flaky: {kind: status, match: POST /api/models/org/flaky/commit/, times: 2}
failed: {kind: status, match: POST /api/models/org/failed/commit/, times: 3}
revoked: {kind: status, match: POST /api/models/org/revoked/commit/, status: 401}
"""


def _add_faults(runs):
    for name, fault in yaml.safe_load(FAULTS).items():
        saving = SAVING if name == "dropped" else []
        runs.step(name, *saving, faults=[fault])
    runs.step("failed", "resume=true")  # all three attempts at the end failed; the same command pushes
    runs.step("revoked", "training.push_to_hub=false", "resume=true")
    runs.step("wrong", "training.hub_token=hf_wrong")
    runs.step("nobody", environment={"HF_TOKEN": ""})
    runs.step("foreign", "training.hub_model_id=others/model")
    runs.hub.state.create("models", "org/public", private=False)
    runs.step("public", "training.hub_private_repo=true")
    runs.step("misnamed", "training.hub_model_id=org/a/b")
    runs.step("unknown", "training.hub_strategy=sometimes")


def _add_continued(runs):
    """A run that was killed after its first step, and is pushed from then on; one that goes on on another machine."""
    killed = runs.directory("killed")
    runs.step("killed", *SAVING, "training.push_to_hub=false")
    left = ("results.json", "checkpoint_manifest.json", "model.safetensors", "checkpoint-2")
    runs.step("killed", *SAVING, "resume=true", remove=[f"{killed}/{name}" for name in left])
    fetched = {"repo": "org/checkpoint", "title": PROGRESS[0], "to": str(runs.directory("moved") / "checkpoint-1")}
    runs.step("moved", *SAVING, "resume=true", fetch=fetched)
    runs.step("again", *SAVING, "training.hub_model_id=org/hidden")  # which holds a finished model
    # No learning rate: what is pushed is what was pulled.
    runs.step("pulled", "model={source: org/end}", "training.learning_rate=0.0")


COMMITS = {
    "end": [END],
    "every_save": [*PROGRESS, END],
    "checkpoint": [*PROGRESS, END],
    "all_checkpoints": [*PROGRESS, END],
    "uploaded": [END],  # what may pass is tried again
    "flaky": [END],
    "killed": [PROGRESS[1], END],  # a run that is continued is pushed on
}


@pytest.mark.parametrize("name", COMMITS)
def test_pushes_of_saves_and_of_the_finished_model(trained, name):
    assert f"/org/{name}/commit/" in trained.finished(name)["out"]
    assert trained.titles(name) == COMMITS[name]
    assert trained.pushed_weights(name) == trained.weights(name)


def test_each_commit_holds_model_processor_and_code_and_no_pickled_arguments(trained):
    for name in ("end", "every_save", "checkpoint", "all_checkpoints", "dropped", "failed", "flaky"):
        for commit in trained.commits(name):
            assert set(commit["files"]) >= MODEL | PROCESSOR, commit["title"]
            at_root = {path for path in commit["files"] if "/" not in path}
            assert not at_root & {"training_args.bin", "checkpoint_manifest.json", *WORKING}
            assert not any("training_args" in path or path.startswith(".push") for path in commit["files"])


LOAD = """
import json, sys
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from huggingface_hub import hf_hub_download
for name, revision in json.loads(sys.argv[1]):
    given = {"trust_remote_code": True, "revision": revision}
    assert type(AutoProcessor.from_pretrained(name, **given)).__name__ == "VLBertProcessor"
    assert type(AutoModel.from_pretrained(name, **given)).__name__ == "VLBertModel"
    entry = AutoConfig.from_pretrained(name, **given).auto_map["VLBertForVGP"]
    model = get_class_from_dynamic_module(entry, name, revision=revision).from_pretrained(name, revision=revision)
    stored = load_file(hf_hub_download(name, "model.safetensors", revision=revision))
    assert all(model.state_dict()[key].equal(value) for key, value in stored.items())
"""


def test_each_commit_loads_where_the_project_is_not(trained, tmp_path):
    places = []
    for name in ("checkpoint", "dropped"):
        places += [(f"org/{name}", commit["id"]) for commit in trained.commits(name)]
    environment = trained.hub.environment(tmp_path / "home")
    environment.pop("PYTHONPATH", None)
    done = run_python(LOAD, [json.dumps(places)], env=environment, cwd=tmp_path)
    assert_ran(done)


def test_whole_checkpoints_are_pushed_with_their_strategies(trained, tmp_path):
    for commit, step in zip(trained.commits("checkpoint"), (2, 2, 1), strict=True):
        assert {path.partition("/")[0] for path in commit["files"] if "/" in path} == {"last-checkpoint"}
        folder = trained.hub.checkout("org/checkpoint", tmp_path / commit["id"], commit["id"]) / "last-checkpoint"
        assert is_complete(folder)
        assert read_json(folder / "trainer_state.json")["global_step"] == step
    files = trained.hub.files("org/all_checkpoints")
    assert {path.partition("/")[0] for path in files if "/" in path} == {"checkpoint-1", "checkpoint-2"}
    for name in ("end", "every_save"):
        assert not any("/" in path for path in trained.hub.files(f"org/{name}"))


def test_a_commit_during_training_is_marked_and_has_no_older_results(trained):
    trained.finished("again")
    results = {"results.json", "history.json", "head_grounding.png"}
    assert trained.titles("hidden") == [END, *PROGRESS, END]
    for commit in trained.commits("hidden"):
        card = trained.hub.read("org/hidden", "README.md", commit["id"]).decode()
        is_finished = commit["title"] == END
        assert ("Training in progress" in card) != is_finished
        assert ("model-index" in card) == is_finished
        assert results & commit["files"].keys() == (results if is_finished else set())


def test_a_card_loads_from_where_it_was_pushed_to(trained):
    # One was trained without a push, one by another command than the one that pushed it, and one is the start.
    for name in ("org/end", "org/killed", "org/failed", "org/begun"):
        assert f'name, revision = "{name}", "main"' in trained.hub.read(name, "README.md").decode()
    card = trained.hub.read("org/branch", "README.md", "tries/first").decode()
    assert 'name, revision = "org/branch", "tries/first"' in card
    assert "minutes for the steps after 1" in trained.hub.read("org/killed", "README.md").decode()


def test_several_methods_go_to_repositories_of_their_own(trained):
    trained.finished("several")
    for repo, method in (("several-none", "none"), ("several-semi-direct", "semi_direct"), ("begun", "start")):
        assert trained.pushed_weights(repo) == trained.weights("several", method)
    kept = {path.name for path in (trained.hub.state.folder / "repos/models").iterdir()}
    assert not any("text" in name or name == "org%2Fseveral" for name in kept)


def test_without_a_name_the_output_directory_gives_it(trained):
    trained.finished("unsaid")
    assert "model.safetensors" in trained.hub.files("tester/unsaid")


def test_private_repositories_and_branches(trained):
    trained.finished("hidden")
    assert trained.hub.state.repo("models", "org/hidden")["private"]
    assert not trained.hub.state.repo("models", "org/end")["private"]
    trained.finished("branch")
    assert trained.hub.files("org/branch") == [".gitattributes"]
    assert trained.pushed_weights("branch", "tries/first") == trained.weights("branch")


def test_the_token_is_written_nowhere(trained):
    for folder in (trained.folder / "runs", trained.hub.state.folder / "blobs", trained.hub.state.folder / "lfs"):
        for path in folder.rglob("*"):
            assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path
    assert TOKEN not in json.dumps(trained.done)


def test_a_connection_lost_in_the_middle_is_a_warning_and_the_next_save_pushes(trained):
    run = trained.finished("dropped")
    assert trained.titles("dropped") == [PROGRESS[1], END]
    (warning,) = [line for line in run["err"].splitlines() if line.startswith("warning: ")]
    assert "step 1 was not pushed to org/dropped" in warning
    assert trained.pushed_weights("dropped") == trained.weights("dropped")


def test_a_failed_final_push_is_an_error_and_the_same_command_pushes(trained):
    first, _ = trained.done["failed"]
    assert first["code"] == 2
    assert_words(first["err"].splitlines()[-1], "error: ... org/failed ... 500 ... resume=true")
    assert "finished before" in trained.finished("failed")["out"]
    assert trained.titles("failed") == [END]
    assert trained.pushed_weights("failed") == trained.weights("failed")


def test_a_rejected_token_is_not_tried_again(trained):
    first, _ = trained.done["revoked"]
    assert first["code"] == 2
    assert "401" in first["err"].splitlines()[-1]
    assert "again in" not in first["err"]
    assert trained.titles("revoked") == []
    trained.finished("revoked")
    assert is_complete(trained.directory("revoked"))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("wrong", "Invalid user token"),
        ("nobody", "Token is required"),
        ("foreign", "403 Forbidden"),
        ("public", "org/public is public"),
        ("misnamed", "training.hub_model_id 'org/a/b'"),
        ("unknown", "training.hub_strategy="),
    ],
)
def test_what_cannot_be_pushed_is_known_before_training(trained, name, expected):
    (run,) = trained.done[name]
    assert run["code"] == 2
    assert run["err"].startswith("error: ") and run["err"].count("\n") == 1, run["err"]
    assert expected in run["err"]
    assert not (trained.folder / "runs" / name).exists()


def test_a_pushed_checkpoint_is_continued_elsewhere(trained):
    trained.finished("moved")
    assert trained.titles("moved") == [PROGRESS[1], END]
    assert trained.weights("moved") == trained.weights("checkpoint")


def test_a_recipe_starts_from_a_repository(trained):
    trained.finished("pulled")
    assert trained.pushed_weights("pulled") == trained.pushed_weights("end")
