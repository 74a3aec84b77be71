# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A recipe pushes an adapter to a Hub over HTTP: what each commit has, its card, and how it loads from there."""

import json

import pytest
import yaml

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import save_llava, vlm_recipe
from tests.helpers.warm_python import run_python
from tests.training.runs import assert_ran, assert_words

HEADS = """
{"format": 2, "layers": ["0", "1"], "heads": 2, "centre_size": [0.5, 0.5],
 "about": {"data": "scenes, split test", "options": {"rank": "pointing"}, "word": "mean", "instruction": null},
 "chosen": [{"layer": 1, "head": 0, "pointing": 0.25}]}
"""
TRAIN = """
import json, sys
from huggingface_hub import HfApi
from transformers import pipeline
import train
from grounded_attention import VisualGroundingPipeline
from grounded_attention.commands import push
recipe, base, image = sys.argv[1:]
HfApi().create_repo("org/base")
HfApi().upload_folder(repo_id="org/base", folder_path=base)
sys.argv = ["train.py", recipe]
assert train.main() == 0
try:
    pipeline("visual-grounding", model="org/adapter")
except ValueError as error:
    found = {"error": str(error)}
for name, heads in (("org/adapter", [(1, 0)]), ("org/base", None)):
    found[name] = pipeline("visual-grounding", model=name, heads=heads)(image, "a red ball")[0]["score"]
found["named"] = pipeline("visual-grounding", model="org/adapter", heads="org/base")(image, "a red ball")[0]["score"]
assert push.main([sys.argv[1].replace("recipe.yaml", "run/direct"), "org/copy"]) == 0
print(json.dumps(found))
"""
TRAINING = """
{max_steps: 2, save_strategy: steps, save_steps: 1, learning_rate: 0.1,
 push_to_hub: true, hub_model_id: org/adapter, hub_always_push: true}
"""
LOAD = """
import sys
from pathlib import Path
sys.modules["grounded_attention"] = None  # the project is not needed
exec(Path(sys.argv[1]).read_text())
from transformers import AutoModelForImageTextToText
plain = AutoModelForImageTextToText.from_pretrained("org/base")
same = AutoModelForImageTextToText.from_pretrained("org/adapter")
logits = model(**inputs).logits
assert torch.allclose(logits, same(**inputs).logits, atol=1e-5)
assert not torch.allclose(logits, plain(**inputs).logits, atol=1e-5)
"""


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """The Hub after a run that trains a LoRA of a model on this Hub, and what the process said."""
    folder = tmp_path_factory.mktemp("hub")
    scenes = tiny_scenes(folder / "scenes")
    save_llava(scenes / "vocab.txt", folder / "base")
    (folder / "base/heads.json").write_text(HEADS)
    recipe = vlm_recipe(scenes, folder / "run")
    recipe["model"] = {"source": "org/base", "adapter": {"lora": {"r": 2}}}
    recipe["training"] |= yaml.safe_load(TRAINING)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    image = next((scenes / "flickr30k-images").iterdir())
    with LoopbackHub(folder / "state") as hub:
        paths = {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(folder / "cache")}
        environment = {**hub.environment(folder / "home"), **paths}
        done = run_python(TRAIN, [folder / "recipe.yaml", folder / "base", image], env=environment, cwd=folder)
        assert_ran(done)
        yield hub, environment, folder, json.loads(done.stdout.splitlines()[-1])


def test_each_commit_has_the_adapter_alone(pushed):
    hub, _, folder, _ = pushed
    titles = ["End of training", "Training in progress, step 2", "Training in progress, step 1"]
    commits = hub.commits("org/adapter")[:-1]
    assert [commit["title"] for commit in commits] == titles
    for commit in commits:
        names = set(commit["files"])
        assert {"adapter_config.json", "adapter_model.safetensors", "processor_config.json", "README.md"} <= names
        assert not names & {"config.json", "model.safetensors", "training_args.bin", "optimizer.pt"}
    local = (folder / "run/direct/adapter_model.safetensors").read_bytes()
    assert hub.read("org/adapter", "adapter_model.safetensors") == local
    assert hub.read("org/copy", "adapter_model.safetensors") == local  # by `grounded-attention push`


def test_the_card_shows_heads_before_and_after(pushed):
    hub = pushed[0]
    card = hub.read("org/adapter", "README.md").decode()
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "org/base"
    assert_words(card, 'name, revision = "org/adapter", "main" ... | before training | test  ... split test: L1 H0.')
    figure = card.rpartition("](")[2].partition(")")[0]
    assert hub.read("org/adapter", figure).startswith(b"\x89PNG")
    assert card.count(f"]({figure})") == 1


def test_it_loads_where_the_project_is_not(pushed, tmp_path):
    hub, environment, _, _ = pushed
    snippet = tmp_path / "snippet.py"
    snippet.write_text(hub.read("org/adapter", "README.md").decode().partition("```python\n")[2].partition("```")[0])
    environment = {**environment, "HF_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONPATH")
    done = run_python(LOAD, [snippet], env=environment, cwd=tmp_path)
    assert_ran(done)


def test_the_pipeline_grounds_with_the_adapter(pushed):
    found = pushed[3]
    assert found["org/adapter"] == found["named"] != found["org/base"]
    assert "org/base has an adapter here" in found["error"]
    assert "\n" not in found["error"]
