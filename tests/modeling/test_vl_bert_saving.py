# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A checkpoint directory carries its code: it loads in a fresh process where the project is not importable."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from grounded_attention.modeling import (
    OLDEST_TRANSFORMERS,
    VLBertConfig,
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
)
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_vl_bert import make_inputs, make_model

CODE = {"configuration_vl_bert.py", "modeling_vl_bert.py", "pipeline_visual_grounding.py"}
CLASSES = [
    VLBertModel,
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
]
# Where the code of a class is found in a saved directory; the others go by their own names.
AUTO_CLASSES = {
    VLBertForMultipleChoice: "AutoModelForMultipleChoice",
    VLBertForPreTraining: "AutoModelForPreTraining",
    VLBertForVisualQuestionAnswering: "AutoModelForVisualQuestionAnswering",
}

LOAD = """
import sys, torch
from transformers import AutoConfig, AutoModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
folder = sys.argv[1]
assert "modeling" not in sys.modules
try:
    import grounded_attention
except ImportError:
    pass
else:
    raise SystemExit("the project is importable")
found = {}
for name, (auto, inputs, base_inputs) in torch.load(f"{folder}/inputs.pt", weights_only=True).items():
    directory = f"{folder}/{name}"
    config = AutoConfig.from_pretrained(directory, trust_remote_code=True)
    base = AutoModel.from_pretrained(directory, trust_remote_code=True).eval()
    assert type(base).__name__ == "VLBertModel", type(base)
    if name == "VLBertModel":
        model = base
    else:
        model = get_class_from_dynamic_module(config.auto_map[auto], directory).from_pretrained(directory).eval()
    assert type(model).__name__ == name, type(model)
    found[name] = [model(**inputs)[0], base(**base_inputs).last_hidden_state]
    model.save_pretrained(f"{folder}/again {name}")
torch.save(found, f"{folder}/outputs.pt")
"""


def make_class_inputs(cls) -> dict[str, torch.Tensor]:
    """Inputs of a class: those of the base model and what it needs beside them."""
    inputs = make_inputs()
    if cls is VLBertForVisualQuestionAnswering:
        inputs["answer_positions"] = torch.tensor([4, 2, 1])
    if cls is VLBertForMultipleChoice:
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            inputs[name] = torch.stack([inputs[name], inputs[name].flip(0)], dim=1)
    return inputs


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """The folder where one fresh process loaded every class from `<class>` and saved it to `again <class>`; by class
    the model and its two inputs, and what the process got out of them."""
    folder, made = tmp_path_factory.mktemp("reloaded"), {}
    for cls in CLASSES:
        made[cls.__name__] = make_model(cls), make_class_inputs(cls), make_inputs()
        made[cls.__name__][0].save_pretrained(folder / cls.__name__)
    names = {cls.__name__: AUTO_CLASSES.get(cls, cls.__name__) for cls in CLASSES}
    torch.save({name: (names[name], *inputs) for name, (_, *inputs) in made.items()}, folder / "inputs.pt")
    done = run_elsewhere(LOAD, folder, str(folder))
    assert done.returncode == 0, done.stderr
    return folder, made, torch.load(folder / "outputs.pt", weights_only=True)


@pytest.mark.parametrize("name", [cls.__name__ for cls in CLASSES])
def test_a_directory_loads_in_a_fresh_process_and_saves_again(reloaded, name):
    folder, made, found = reloaded
    model, inputs, base_inputs = made[name]
    outputs, states = found[name]
    with torch.no_grad():
        torch.testing.assert_close(outputs, model(**inputs)[0])
        base = getattr(model, "vl_bert", model)
        torch.testing.assert_close(states, base(**base_inputs).last_hidden_state)
    for directory in (folder / name, folder / f"again {name}"):
        assert {path.name for path in directory.glob("*.py")} == CODE
        auto_map = json.loads((directory / "config.json").read_text())["auto_map"]
        assert auto_map["AutoModel"] == "modeling_vl_bert.VLBertModel"
        assert auto_map["VLBertForVGP"] == "modeling_vl_bert.VLBertForVGP"


def test_registered_classes_load_without_remote_code(tmp_path):
    model = make_model(VLBertForPreTraining)
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is VLBertConfig
    assert type(AutoModel.from_pretrained(tmp_path)) is VLBertModel
    assert type(AutoModelForPreTraining.from_pretrained(tmp_path)) is VLBertForPreTraining


@pytest.mark.parametrize("cls", CLASSES)
def test_weights_survive_saving_also_on_a_device_map(tmp_path, cls):
    model = make_model(cls)
    model.save_pretrained(tmp_path)
    loaded, info = cls.from_pretrained(tmp_path, device_map={"": "cpu"}, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for (name, mine), theirs in zip(loaded.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    changed = {"_name_or_path", "architectures", "dtype"}
    fields = [{k: v for k, v in m.config.to_dict().items() if k not in changed} for m in (loaded, model)]
    assert fields[0] == fields[1]


def test_the_tied_decoder_is_stored_once_and_tied_again(tmp_path):
    make_model(VLBertForPreTraining).save_pretrained(tmp_path)
    loaded = VLBertForPreTraining.from_pretrained(tmp_path)
    assert loaded.mlm_head.decoder.weight is loaded.get_input_embeddings().weight


def test_what_a_checkpoint_lacks_starts_as_configured(tmp_path):
    """A base model's checkpoint read by a task class: heads are new, everything else stays."""
    model = make_model(visual_scale_text_init=0.0, visual_scale_region_init=0.0)
    torch.nn.init.constant_(model.embeddings.text_visual.norm.weight, 0.7)
    model.save_pretrained(tmp_path)
    loaded = VLBertForPreTraining.from_pretrained(tmp_path)
    assert loaded.vl_bert.embeddings.text_visual.norm.weight.eq(0.7).all()
    assert loaded.region_mask_embedding.weight.eq(0.0).all()
    assert loaded.masked_region_embedding.weight.std() > 0.1


def test_vgp_of_a_pretraining_checkpoint_brings_its_own_pooler(tmp_path):
    make_model(VLBertForPreTraining, use_pooler=False).save_pretrained(tmp_path / "pretrained")
    model = VLBertForVGP.from_pretrained(tmp_path / "pretrained")
    model.save_pretrained(tmp_path / "tuned")
    base = AutoModel.from_pretrained(tmp_path / "tuned")
    torch.testing.assert_close(base.pooler.dense.weight, model.vl_bert.pooler.dense.weight)


def test_vocabulary_can_grow():
    model = make_model(VLBertForPreTraining)
    model.resize_token_embeddings(50)
    assert model.mlm_head.decoder.weight is model.get_input_embeddings().weight
    outputs = model(input_ids=torch.tensor([[49, 1]]))
    assert outputs.mlm_logits.shape == (1, 2, 50)


OLD = """
import importlib.metadata, sys, types
import transformers
transformers.__version__ = "4.57.0"
sys.path.insert(0, sys.argv[1])
try:
    import grounded_attention.modeling
except ImportError as error:
    print(error)
"""


def test_an_old_transformers_gets_one_clear_error(tmp_path):
    root = Path(__file__).resolve().parents[2]
    done = run_elsewhere(OLD, tmp_path, str(root), with_project=True)
    assert done.returncode == 0, done.stderr
    assert f"needs transformers >= {OLDEST_TRANSFORMERS}, but 4.57.0 is installed" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_saved_directory_has_the_same_error(tmp_path):
    make_model().save_pretrained(tmp_path / "model")
    script = """
import sys, transformers
from transformers import AutoConfig
transformers.__version__ = "4.57.0"
try:
    AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
except ImportError as error:
    print(error)
"""
    done = run_elsewhere(script, tmp_path, str(tmp_path / "model"))
    assert f"needs transformers >= {OLDEST_TRANSFORMERS}, but 4.57.0 is installed" in done.stdout, done.stderr
