# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A LoRA of each family: what it trains, saves and resumes, how it loads, and what is refused."""

import json
import shutil

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from torch.testing import assert_close

from grounded_attention.commands.evaluate import main as evaluate
from grounded_attention.families import FAMILIES
from grounded_attention.training.experiments.models import make_model, make_processor
from grounded_attention.training.loop.side_by_side import say_once
from grounded_attention.training.publish.hub import model_files
from grounded_attention.training.recipes.adapters import base_of, load_base_model, load_merged
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_scenes import tiny_recipe
from tests.training.runs import assert_ran, assert_same_weights, assert_words, first_losses, kill, results

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 128}
FAMILY_SIZES = """
vl_bert: {num_hidden_layers: 2, region_classes: 64}
visualbert: {num_hidden_layers: 2}
vilbert: {num_hidden_layers: 2, v_num_hidden_layers: 1, v_hidden_size: 16, v_intermediate_size: 16,
          v_num_attention_heads: 2, bi_hidden_size: 16, bi_num_attention_heads: 2,
          t_biattention_id: [1], v_biattention_id: [0]}
lxmert: {l_layers: 1, r_layers: 1, x_layers: 1}
"""


def save_start(family, scenes, folder):
    """Saves a model of pre-training with random weights, and its processor."""
    model = Model(family=family, tokenizer=str(scenes / "vocab.txt"))
    processor = make_processor(model)
    sizes = {**SIZES, **yaml.safe_load(FAMILY_SIZES)[family]}
    model.config = {**sizes, "region_feature_size": processor.model_feature_size}
    torch.manual_seed(0)
    make_model("pretraining", model, processor).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def lora_recipe(scenes, start, output):
    recipe = tiny_recipe(scenes, output)
    recipe["model"] = {"source": str(start), "adapter": {"lora": {"r": 2, "lora_dropout": 0.1}}}
    recipe["training"] |= {"learning_rate": 0.01, "save_strategy": "steps", "save_steps": 1}
    return recipe


def weights(folder):
    return load_file(folder / "adapter_model.safetensors")


def make_inputs(model):
    """One caption with two regions."""
    size = model.config.region_feature_size
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.tensor([[5, 6, 7]]),
        "region_features": torch.rand(1, 2, size, generator=generator),
        "region_boxes": torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.2, 0.2, 1.0, 1.0]]]),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_trains_and_loads(family, scenes, tmp_path, capsys, run_recipe):
    start = save_start(family, scenes, tmp_path / "start")
    say_once.cache_clear()
    run_recipe(lora_recipe(scenes, start, tmp_path / "run"))
    folder = tmp_path / "run/direct"
    assert capsys.readouterr().out.count("  LoRA: ") == 1
    saved = weights(folder)
    assert_words(" ".join(saved), ".vgp_head. ... .identification_head.")
    layers = [name for name in saved if "lora" in name]
    assert layers
    assert all(".encoder." in name for name in layers)
    assert any(saved[name].any() for name in layers if "query" in name and "lora_B" in name)
    assert "loss_text_to_region" in first_losses(folder)
    assert "PeftModel.from_pretrained(model, name, revision=revision)" in (folder / "README.md").read_text()

    # PEFT, transformers and the package load the same model.
    model_class = FAMILIES[family].heads["vgp"]
    config = model_class.config_class.from_pretrained(folder)
    base = model_class.from_pretrained(start, config=config)
    by_peft = PeftModel.from_pretrained(base, folder).eval()
    by_transformers = model_class.from_pretrained(start, config=config).eval()
    by_transformers.load_adapter(folder)
    merged = load_merged(str(folder)).eval()
    inputs = make_inputs(merged)
    with torch.no_grad():
        expected = by_peft(**inputs).identification_logits
        for model in (by_transformers, merged):
            assert_close(model(**inputs).identification_logits, expected, atol=1e-5, rtol=1e-5)
        states = merged.base_model(**inputs).text_hidden_state
        assert_close(load_base_model(str(folder)).eval()(**inputs).text_hidden_state, states)


def test_a_lora_resumes_bit_by_bit_and_is_scored_alike(scenes, tmp_path, capsys, run_recipe):
    start = save_start("vl_bert", scenes, tmp_path / "start")
    recipe = lora_recipe(scenes, start, tmp_path / "run")
    run_recipe(recipe)
    whole = tmp_path / "run/direct"
    pushed = model_files(whole / "checkpoint-3")  # what a save during training pushes
    assert {"adapter_config.json", "adapter_model.safetensors", "config.json", "processor_config.json"} <= set(pushed)

    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "run", stopped, ignore=shutil.ignore_patterns("checkpoint-3", "results.json"))
    kill(stopped / "direct")
    run_recipe(recipe, "resume=true", f"output_dir={stopped}")
    assert_same_weights(weights(stopped / "direct"), weights(whole))

    options = f"--task vgp --data-dir {scenes} --regions {scenes}/regions --split test --limit 8 --json"
    assert evaluate([str(whole), *options.split(), "--output", str(tmp_path / "scored")]) == 0
    figures = results(tmp_path / "run")["methods"]["direct"]["figures"]["test"]
    assert json.dumps(figures["identification_accuracy"]) in (tmp_path / "scored/metrics.json").read_text()

    snippet = (whole / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    done = run_elsewhere(snippet, tmp_path, with_project=True)
    assert_ran(done)


@pytest.mark.parametrize(
    "override, message",
    [
        ("model.adapter.lora.target_modules=[qkv]", "model.adapter.lora: ... target modules"),
        ("model.freeze=[encoder]", "model.freeze is only for vision-language models"),
        ("model.source=null", "model.adapter changes the weights of a checkpoint: give model.source"),
    ],
)
def test_what_is_refused(override, message, scenes, tmp_path, refused):
    start = save_start("vl_bert", scenes, tmp_path / "start")
    assert_words(refused(lora_recipe(scenes, start, tmp_path / "run"), override), message)


@pytest.mark.parametrize("content", ["[1]", "3", "{}", '{"base_model_name_or_path": 3}'])
def test_an_adapter_that_names_no_model(tmp_path, content):
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"adapter_config\.json: base_model_name_or_path is .* expected the name"):
        base_of(str(tmp_path))
