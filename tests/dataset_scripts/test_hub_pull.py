# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Each head and family comes back from a repository over HTTP: without the project and with it, by revision, offline,
private; a failed pull leaves no file that seems complete."""

import ast
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers.hub_models import HUB_MODELS
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.warm_python import run_python, without_project

ROOT = Path(__file__).resolve().parents[2]
VGP = next(entry for entry in HUB_MODELS if entry.name == "VLBertForVGP")
KINDS = ("remote", "offline", "project")
# Offline one class of each family. The base model of a repository is pulled once a family, with the project from all.
FIRST = list({entry.base: entry for entry in reversed(HUB_MODELS)}.values())
PULLED = {"remote": HUB_MODELS, "offline": FIRST, "project": HUB_MODELS}

# Pulls what the lines of a JSON file name and writes each one's weights, so that the test may compare them.
PULL = """
import json, sys, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module
remote = sys.argv[2] == "remote"
if remote:
    sys.modules["grounded_attention"] = None  # its import fails
else:
    from grounded_attention import modeling, processing
trust = {"trust_remote_code": True} if remote else {}
for job in json.load(open(sys.argv[1])):
    name, given = job["repo"], {**trust, **({"revision": job["revision"]} if job.get("revision") else {})}
    config = AutoConfig.from_pretrained(name, **given)
    if job["base"]:
        base = AutoModel.from_pretrained(name, **given)
        assert type(base).__name__ == job["base"], type(base)
    if hasattr(transformers, job["auto"]):
        model = getattr(transformers, job["auto"]).from_pretrained(name, **given)
    else:
        cls = None if remote else getattr(modeling, job["auto"])
        cls = cls or get_class_from_dynamic_module(config.auto_map[job["auto"]], name, revision=given.get("revision"))
        model = cls.from_pretrained(name, revision=given.get("revision"))
    assert type(model).__name__ == job["class"], type(model)
    place = "transformers_modules." if remote else "grounded_attention.modeling."
    assert type(model).__module__.startswith(place), type(model)
    if job["processor"] is not None:
        auto = AutoImageProcessor if job["processor"].endswith("ImageProcessor") else AutoProcessor
        processor = auto.from_pretrained(name, **given)
        assert type(processor).__name__ == job["processor"], type(processor)
    save_file({k: v.clone() for k, v in model.state_dict().items()}, job["output"])
"""


# Requests with another token, and their errors.
REFUSED = """
for token in (False, "hf_another", "hf_wrong"):
    try:
        AutoModel.from_pretrained("org/secret", trust_remote_code=True, token=token, cache_dir=f"cache {token}")
    except OSError as error:
        print(json.dumps([str(token), " ".join(str(error).split())]))
"""


def run(script, hub, home, folder, arguments, *, project=False, offline=False):
    """Runs a script in a new process, away from the project or with it; returns the finished process."""
    environment = hub.environment(home)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT)] if project else without_project())
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    return run_python(script, arguments, env=environment, cwd=folder)


def job(entry, **changed):
    """A line of the pulling script: everything of a repository, the weights to `<class name>.safetensors`."""
    processor = entry.processor and type(entry.processor()).__name__
    about = {"repo": f"org/{entry.name}", "base": entry.base, "auto": entry.auto, "class": entry.name}
    return {**about, "processor": processor, "output": f"{entry.name}.safetensors", **changed}


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A Hub with every class in a repository, pushed by `push_to_hub` in another process; and its directory."""
    folder = tmp_path_factory.mktemp("pushed")
    with LoopbackHub(folder / "hub") as hub:
        script = "from pathlib import Path; from tests.helpers.hub_models import push_all; push_all(Path('.'), 'org')"
        done = run(script, hub, folder / "home", folder, [], project=True)
        assert done.returncode == 0, done.stderr
        versions = [c["id"] for c in hub.commits("org/VLBertForVGP") if "processor_config.json" in c["files"]]
        hub.state.set_ref("models", "org/VLBertForVGP", "tags/v1", versions[1])
        hub.state.set_ref("models", "org/VLBertForVGP", "heads/side", versions[1])
        hub.state.add_user("hf_another", "another")
        yield hub, folder


@pytest.fixture(scope="module")
def pulled(pushed, tmp_path_factory):
    """The folder of the weights of three pulls (without the project, offline after it, with the project), and the
    output of the first pull."""
    hub, _ = pushed
    folder = tmp_path_factory.mktemp("pulled")
    messages = ""
    for kind in KINDS:
        (folder / kind).mkdir()
        bases = PULLED[kind] if kind == "project" else FIRST
        jobs = [job(entry, base=entry.base if entry in bases else None) for entry in PULLED[kind]]
        old = next(c["id"] for c in hub.commits("org/VLBertForVGP", "v1"))
        for place, revision in {"v1": "v1", "side": "side", "commit": old}.items():
            jobs.append(job(VGP, revision=revision, output=f"{place}.safetensors"))
        (folder / kind / "jobs.json").write_text(json.dumps(jobs))
        script = PULL + REFUSED if kind == "remote" else PULL
        argument = "project" if kind == "project" else "remote"
        done = run(
            script,
            hub,
            folder / "home",
            folder / kind,
            ["jobs.json", argument],
            project=kind == "project",
            offline=kind == "offline",
        )
        assert done.returncode == 0, f"{kind}: {done.stderr}"
        messages += done.stdout
    return folder, messages


def assert_equal_weights(one, two):
    mine = load_file(one)
    theirs = load_file(two)
    assert mine.keys() <= theirs.keys()  # a tied weight is stored once
    for name, value in mine.items():
        assert value.equal(theirs[name]), name


@pytest.mark.parametrize("kind, name", [(kind, entry.name) for kind in KINDS for entry in PULLED[kind]])
def test_every_class_comes_back(pushed, pulled, kind, name):
    stored = pushed[1] / ("newer" if name == VGP.name else name) / "model.safetensors"
    assert_equal_weights(stored, pulled[0] / kind / f"{name}.safetensors")


@pytest.mark.parametrize("name", [entry.name for entry in HUB_MODELS])
def test_a_repository_has_the_code_that_it_names(pushed, name):
    hub, _ = pushed
    files = hub.files(f"org/{name}")
    config = json.loads(hub.read(f"org/{name}", "config.json"))
    named = [place.split(".") for place in config["auto_map"].values()]
    assert name in [class_name for _, class_name in named]
    trees = {}
    left = {module for module, _ in named}
    while left:
        module = left.pop()
        assert f"{module}.py" in files
        trees[module] = ast.parse(hub.read(f"org/{name}", f"{module}.py"))
        for node in ast.walk(trees[module]):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module not in trees:
                left.add(node.module)
    for module, class_name in named:
        assert class_name in [node.name for node in trees[module].body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("revision", ["v1", "side", "commit"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_revision_is_pulled_as_it_was(pushed, pulled, kind, revision):
    assert_equal_weights(pushed[1] / VGP.name / "model.safetensors", pulled[0] / kind / f"{revision}.safetensors")


def test_a_private_repository_needs_its_owners_token(pulled):
    messages = dict(json.loads(line) for line in pulled[1].splitlines())
    assert set(messages) == {"False", "hf_another", "hf_wrong"}
    for message in messages.values():
        assert "org/secret" in message


# Pulls models, each with a fault and then again: a disk that is full past so many bytes (a limit on sizes is one),
# a connection that ends in the middle of the file, a server that fails. The code is there before the weights.
FAULTS = """
import json, resource, signal, sys
from safetensors.torch import save_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for fault, name in json.loads(sys.argv[1]).items():
    cls = get_class_from_dynamic_module("modeling_vl_bert.VLBertModel", name)
    if fault == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        cls.from_pretrained(name)
    except OSError as error:
        messages = []
        while error is not None:
            messages.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        print(json.dumps([fault, messages]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    save_file({k: v.clone() for k, v in cls.from_pretrained(name).state_dict().items()}, fault + ".safetensors")
"""
PLACES = {fault: f"org/copy-{number}" for number, fault in enumerate(["full disk", "lost connection", "server error"])}


def test_a_failed_pull_leaves_no_half_file(pushed, tmp_path):
    hub, folder = pushed
    stored = folder / "VLBertModel" / "model.safetensors"
    assert stored.stat().st_size > 25_000
    for name in PLACES.values():
        hub.copy("org/VLBertModel", name)
    hub.inject("cut", f"GET /{PLACES['lost connection']}/resolve/.*/model.safetensors", after=25_000)
    hub.inject("status", f"GET /{PLACES['server error']}/resolve/.*/model.safetensors", status=500)
    done = run(FAULTS, hub, tmp_path / "home", tmp_path, [json.dumps(PLACES)])
    assert done.returncode == 0, done.stderr
    messages = dict(json.loads(line) for line in done.stdout.splitlines())
    assert messages.keys() == PLACES.keys()
    for fault, cause in (("full disk", "File too large"), ("lost connection", "reset"), ("server error", "500")):
        assert any(cause in line for line in messages[fault]), messages[fault]
        assert PLACES[fault] in messages[fault][0] or cause in messages[fault][0]
    assert hub.pending_faults() == 0
    for fault in PLACES:
        assert_equal_weights(stored, tmp_path / f"{fault}.safetensors")
