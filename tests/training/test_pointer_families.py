# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A recipe teaches four families to point; each adapter is pushed to a Hub over HTTP, and peft alone loads it."""

import json
from pathlib import Path

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ["qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision"]
STEPS = """
import json, sys
from pathlib import Path
import torch, yaml
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoTokenizer
import train
from grounded_attention.training.experiments import vision_language
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor
from tests.helpers.tiny_vlm_recipes import vlm_recipe
scenes, folder, families = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
found = {}
for family in families:
    # Without torchvision, processors with a part for videos are not loaded from a folder.
    vision_language.load_processor = lambda name: make_processor(family, byte_pairs=True)
    base = folder / family / "base"
    make_model(family, make_processor(family, byte_pairs=True).tokenizer).save_pretrained(base)
    recipe = vlm_recipe(scenes, folder / family / "run", methods=["pointer"], options={"expressions": "point"})
    recipe["data"] |= {"builder": "refcoco", "options": {"config_name": "refcoco+"}}
    recipe["data"]["limit"] = {"validation": 2, "test": 2}
    recipe["model"] = {"source": str(base), "tokens": ["<point>"], "adapter": {"lora": {"r": 2}}}
    recipe["training"] |= {"max_steps": 3, "learning_rate": 0.05, "push_to_hub": True, "hub_model_id": f"org/{family}"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    sys.argv = ["train.py", str(folder / "recipe.yaml")]
    assert train.main() == 0
    history = json.loads((folder / family / "run" / "pointer" / "history.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(f"org/{family}")
    anchor = tokenizer.convert_tokens_to_ids("<point>")
    model = AutoModelForImageTextToText.from_pretrained(base)
    before = model.get_input_embeddings().weight.detach().clone()
    if len(before) < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    ids = torch.tensor([[5, 6, anchor]])
    plain = model(input_ids=ids).logits
    adapted = PeftModel.from_pretrained(model, f"org/{family}")
    logits = adapted(input_ids=ids).logits
    start, told = before[:anchor].mean(0), tokenizer.init_kwargs["pointer"]["name"]
    rows = adapted.get_base_model().get_input_embeddings()(torch.arange(anchor + 1))
    found[family] = {
        "loss": history[0]["loss_text_to_region"], "anchor": anchor, "finite": bool(logits.isfinite().all()),
        "moved": float((logits - plain).abs().max()), "row": float((rows[anchor] - start).abs().max()),
        "others": float((rows[:anchor] - before[:anchor]).abs().max()), "told": told,
    }
print(json.dumps(found))
"""


def test_four_families_point_and_peft_alone_loads_them(tmp_path):
    scenes = tiny_scenes(tmp_path / "scenes")
    with LoopbackHub(tmp_path / "state") as hub:
        paths = {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        environment = {**hub.environment(tmp_path / "home"), **paths}
        done = run_python(STEPS, [scenes, tmp_path, *FAMILIES], env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        for family in FAMILIES:
            assert "adapter_model.safetensors" in hub.commits(f"org/{family}")[0]["files"]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {*found} == {*FAMILIES}
    for each in found.values():
        assert each["loss"] > 0 and each["finite"] and each["told"] == "pointer"
        assert each["moved"] > 1e-4 and each["row"] > 1e-3 and each["others"] == 0
