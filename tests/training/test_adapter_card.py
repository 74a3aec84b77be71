# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An adapter of a loop of one's own has a card that says what it is; a card that somebody wrote stays."""

import ast
import re

import pytest
import yaml
from peft import LoraConfig, get_peft_model
from torch.testing import assert_close

from grounded_attention.commands.push import best_of_run
from grounded_attention.heads.card import HEADS
from grounded_attention.modeling import VLBertForVGP
from grounded_attention.training.publish.adapter_card import EMPTY, complete_adapter_card
from grounded_attention.training.recipes.adapters import load_merged
from grounded_attention.utils.whole_files import write_json
from tests.helpers.tiny_vgp import tiny_model, tiny_processor
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor

LORA = {"r": 2, "target_modules": r".*language_model.*\.(q_proj|k_proj)"}


@pytest.fixture
def adapter(tmp_path):
    model = make_model("llava", make_processor("llava").tokenizer)
    model.config._name_or_path = model.name_or_path = "org/base"
    get_peft_model(model, LoraConfig(**LORA)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def read(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_pefts_empty_card_is_replaced_and_another_one_stays(adapter):
    assert EMPTY in (adapter / "README.md").read_text()
    assert complete_adapter_card(adapter)
    head, body = read(adapter)
    assert head["base_model"] == "org/base"
    assert "More Information Needed" not in body
    (code,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    ast.parse(code)
    assert "PeftModel.from_pretrained(base, name, revision=revision)" in code
    assert HEADS.is_in(adapter)  # `heads --card` puts before and after there
    assert not complete_adapter_card(adapter), "this is no empty card"


def test_the_card_of_a_region_adapter_makes_its_class_again(tmp_path):
    tiny_model().save_pretrained(tmp_path / "base")
    tiny_processor().save_pretrained(tmp_path / "base")
    model = VLBertForVGP.from_pretrained(tmp_path / "base")
    lora = LoraConfig(r=2, target_modules=r".*encoder.*query", init_lora_weights=False)
    adapted = get_peft_model(model, lora).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    assert complete_adapter_card(tmp_path / "adapter")
    head, body = read(tmp_path / "adapter")
    assert "pipeline_tag" not in head
    assert "image token" not in body
    (code,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    done = {}
    exec(code, done)
    layer = done["model"].base_model.encoder.layer[0].attention.self.query
    own = model.base_model.encoder.layer[0].attention.self.query
    assert_close(layer.weight, own.base_layer.weight + own.get_delta_weight("default"))
    assert type(load_merged(str(tmp_path / "adapter"))) is VLBertForVGP


def test_a_folder_without_an_adapter_gets_no_card(tmp_path):
    assert not complete_adapter_card(tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_of_a_run_the_best_method_is_pushed(tmp_path):
    methods = {"none": {"vgp_accuracy": 0.5}, "direct": {"vgp_accuracy": 0.75}, "indirect": {"vgp_accuracy": 0.6}}
    write_json(tmp_path / "results.json", {"methods": methods})
    assert best_of_run(tmp_path) == tmp_path / "direct"
    write_json(tmp_path / "results.json", {"vgp_accuracy": 0.5})  # the file of one method
    assert best_of_run(tmp_path) == tmp_path
