# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A VisualBERT directory carries its code: it loads in a fresh process where the project is not importable."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoModelForVisualQuestionAnswering

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import (
    VisualBERTConfig,
    VisualBERTForPreTraining,
    VisualBERTModel,
    VisualGroundingPipeline,
)
from tests.helpers.hub_models import SIZES
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_processor
from tests.helpers.tiny_visualbert import ANSWERS, make_grounding, make_inputs, make_model

CODE = {"configuration_visualbert.py", "modeling_visualbert.py", "pipeline_visual_grounding.py"}
HEADS = FAMILIES["visualbert"].heads
# Where the code of a class is found in a saved directory; the others go by their own names.
AUTO_CLASSES = {
    "multiple_choice": "AutoModelForMultipleChoice",
    "pretraining": "AutoModelForPreTraining",
    "vqa": "AutoModelForVisualQuestionAnswering",
}

LOAD = """
import sys, torch
from transformers import AutoConfig, AutoModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
folder = sys.argv[1]
try:
    import grounded_attention
except ImportError:
    pass
else:
    raise SystemExit("the project is importable")
found = {}
for head, (name, inputs, base_inputs) in torch.load(f"{folder}/inputs.pt", weights_only=True).items():
    directory = f"{folder}/{head}"
    config = AutoConfig.from_pretrained(directory, trust_remote_code=True)
    base = AutoModel.from_pretrained(directory, trust_remote_code=True).eval()
    assert type(base).__name__ == "VisualBERTModel", type(base)
    model = get_class_from_dynamic_module(config.auto_map[name], directory).from_pretrained(directory).eval()
    found[head] = [model(**inputs)[0], base(**base_inputs).last_hidden_state]
    model.save_pretrained(f"{folder}/again_{head}")
torch.save(found, f"{folder}/outputs.pt")
"""


def make_head_inputs(head):
    inputs = make_inputs()
    if head == "phrase_grounding":
        inputs["phrase_mask"] = make_grounding()[0]
    if head == "multiple_choice":
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            inputs[name] = torch.stack([inputs[name], inputs[name].flip(0)], dim=1)
    return inputs


def test_every_head_loads_in_a_fresh_process_and_saves_again(tmp_path):
    models, given = {}, {}
    for head, cls in HEADS.items():
        models[head] = make_model(cls)
        models[head].save_pretrained(tmp_path / head)
        given[head] = (AUTO_CLASSES.get(head, cls.__name__), make_head_inputs(head), make_inputs())
    torch.save(given, tmp_path / "inputs.pt")
    done = run_elsewhere(LOAD, tmp_path, str(tmp_path))
    assert done.returncode == 0, done.stderr
    for head, (first, states) in torch.load(tmp_path / "outputs.pt", weights_only=True).items():
        with torch.no_grad():
            torch.testing.assert_close(first, models[head](**given[head][1])[0])
            torch.testing.assert_close(states, models[head].visual_bert(**given[head][2]).last_hidden_state)
        for directory in (head, f"again_{head}"):
            assert {path.name for path in (tmp_path / directory).glob("*.py")} == CODE
            auto_map = json.loads((tmp_path / directory / "config.json").read_text())["auto_map"]
            assert auto_map["AutoModel"] == "modeling_visualbert.VisualBERTModel"
            assert auto_map["VisualBERTForVGP"] == "modeling_visualbert.VisualBERTForVGP"


GROUND = """
import json, sys
from transformers import pipeline
known = json.loads(sys.argv[2])
pipe = pipeline("visual-grounding", model=sys.argv[1], device="cpu", trust_remote_code=True)
assert "modeling" not in sys.modules
print(json.dumps(pipe(known)))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pipeline_runs_from_the_saved_files(tmp_path, family):
    torch.manual_seed(0)
    sizes = {**SIZES, "region_feature_size": FEATURE_SIZE}
    model = FAMILIES[family].heads["vgp"](FAMILIES[family].config_class(**sizes)).eval()
    processor = FAMILIES[family].processor_class(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    features = torch.rand(3, FEATURE_SIZE).tolist()
    boxes = [[0, 0, 40, 30], [20, 15, 80, 60], [40, 0, 80, 30]]
    known = {"caption": "a b c", "phrases": ["b"], "boxes": boxes, "features": features, "image_size": [80, 60]}
    done = run_elsewhere(GROUND, tmp_path, str(tmp_path / "model"), json.dumps(known))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = VisualGroundingPipeline(model, processor=processor, device="cpu")(known)
    assert [one["region"] for one in found] == [one["region"] for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)


def test_registered_classes_load_without_remote_code(tmp_path):
    make_model(VisualBERTForPreTraining).save_pretrained(tmp_path / "pretraining")
    assert type(AutoConfig.from_pretrained(tmp_path / "pretraining")) is VisualBERTConfig
    assert type(AutoModel.from_pretrained(tmp_path / "pretraining")) is VisualBERTModel
    assert type(AutoModelForPreTraining.from_pretrained(tmp_path / "pretraining")) is VisualBERTForPreTraining
    make_model(HEADS["vqa"], answers=ANSWERS).save_pretrained(tmp_path / "vqa")
    loaded = AutoModelForVisualQuestionAnswering.from_pretrained(tmp_path / "vqa")
    assert type(loaded) is HEADS["vqa"] and loaded.config.answers == ANSWERS


@pytest.mark.parametrize("head", HEADS)
def test_weights_survive_saving_also_on_a_device_map(tmp_path, head):
    model = make_model(HEADS[head])
    model.save_pretrained(tmp_path)
    loaded, info = HEADS[head].from_pretrained(tmp_path, device_map={"": "cpu"}, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for (name, mine), theirs in zip(loaded.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


def test_vocabulary_can_grow():
    model = make_model(VisualBERTForPreTraining)
    model.resize_token_embeddings(50)
    assert model.cls.predictions.decoder.weight is model.get_input_embeddings().weight
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias
    assert model(input_ids=torch.tensor([[49, 1]])).mlm_logits.shape == (1, 2, 50)
