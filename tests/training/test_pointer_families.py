# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The recipes that teach to point, three steps each on two families, are pushed to a Hub and read from there:
the adapter of pointer_qwen.yaml by peft alone, the model of pointer_actor.yaml with its head."""

import json

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.project_files import ROOT
from tests.helpers.warm_python import run_python
from tests.training.runs import assert_ran

FAMILIES = ["qwen2_5_vl", "llava_onevision"]
STEPS = """
import json, sys
from pathlib import Path
import torch, yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoTokenizer
import train
from grounded_attention.dataset_scripts.scenes.screen_files import write_screens
from grounded_attention.families.vlm import load_pointer_head
from grounded_attention.training.experiments import vision_language
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor
folder, families = Path(sys.argv[1]), sys.argv[2:]
write_screens(folder / "screens", 8, 0)
found = {}

def run(name, family, **model):
    hub = f"org/{family}-{name}"
    training = {"max_steps": 3, "learning_rate": 0.05, "use_cpu": True, "bf16": False, "dataloader_num_workers": 0}
    training |= {"push_to_hub": True, "hub_model_id": hub, "logging_steps": 3, "disable_tqdm": True}
    recipe = {"extends": str(find_recipe(name)), "output_dir": str(folder / "runs" / hub), "training": training}
    recipe["data"] = {"source": f"{folder}/screens/train.json", "images": None, "limit": {"validation": 2}}
    recipe["model"] = {"source": str(base), **model}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    sys.argv = ["train.py", str(folder / "recipe.yaml"), "model.processor={}"]
    assert train.main() == 0
    [history] = (folder / "runs" / hub).glob("*/history.json")
    return hub, json.loads(history.read_text())[0]["loss_text_to_region"], history.parent

for family in families:
    # Without torchvision, processors with a part for videos are not loaded from a folder.
    vision_language.load_processor = lambda name: make_processor(family, byte_pairs=True)
    base = folder / family / "base"
    make_model(family, make_processor(family, byte_pairs=True).tokenizer).save_pretrained(base)
    hub, loss, _ = run("pointer_qwen", family, adapter={"lora": {"r": 2}})
    tokenizer = AutoTokenizer.from_pretrained(hub)
    anchor = tokenizer.convert_tokens_to_ids("<point>")
    model = AutoModelForImageTextToText.from_pretrained(base)
    before = model.get_input_embeddings().weight.detach().clone()
    if len(before) < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    ids = torch.tensor([[5, 6, anchor]])
    plain = model(input_ids=ids).logits
    adapted = PeftModel.from_pretrained(model, hub)
    logits = adapted(input_ids=ids).logits
    start = before[:anchor].mean(0)
    rows = adapted.get_base_model().get_input_embeddings()(torch.arange(anchor + 1))
    found[family] = {
        "loss": loss, "anchor": anchor, "finite": bool(logits.isfinite().all()),
        "moved": float((logits - plain).abs().max()), "row": float((rows[anchor] - start).abs().max()),
        "others": float((rows[:anchor] - before[:anchor]).abs().max()),
        "name": tokenizer.init_kwargs["pointer"]["name"],
    }
    hub, loss, trained = run("pointer_actor", family)
    model, info = AutoModelForImageTextToText.from_pretrained(hub, output_loading_info=True)
    load_pointer_head(model, info["unexpected_keys"], hub)
    head = {f"pointer_head.{name}": value for name, value in model.pointer_head.state_dict().items()}
    saved = load_file(trained / "model.safetensors")
    same = [torch.equal(saved[name], value) for name, value in head.items()]
    found[f"{family}, head"] = {"loss": loss, "same": same}
print(json.dumps(found))
"""


def test_recipes_that_point_train_two_families_and_are_read_from_the_hub(tmp_path):
    with LoopbackHub(tmp_path / "state") as hub:
        paths = {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        environment = {**hub.environment(tmp_path / "home"), **paths}
        done = run_python(STEPS, [tmp_path, *FAMILIES], env=environment, cwd=tmp_path)
        assert_ran(done)
        for family in FAMILIES:
            for name, file in (("pointer_qwen", "adapter_model.safetensors"), ("pointer_actor", "model.safetensors")):
                assert file in hub.commits(f"org/{family}-{name}")[0]["files"]
    found = json.loads(done.stdout.splitlines()[-1])
    for family in FAMILIES:
        adapter = found[family]
        assert adapter["loss"] > 0
        assert adapter["finite"]
        assert adapter["name"] == "pointer"
        assert adapter["moved"] > 1e-4
        assert adapter["row"] > 1e-3
        assert adapter["others"] == 0
        head = found[f"{family}, head"]
        assert head["loss"] > 0
        assert head["same"] == [True] * 14
