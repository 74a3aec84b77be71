# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes that teach vision-language models: random weights, a checkpoint, an adapter; and what is refused."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoConfig

from grounded_attention.commands.point import main as point_main
from grounded_attention.dataset_scripts.scenes.screen_files import write_screens
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.training.experiments.vision_language import make_vlm, make_vlm_processor
from grounded_attention.training.publish.hub import model_files
from grounded_attention.training.recipes.recipe import Model, load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_scenes import run_train
from tests.helpers.tiny_vlm_recipes import vlm_recipe
from tests.helpers.two_processes import launch
from tests.training.runs import (
    assert_ran,
    assert_same_weights,
    assert_words,
    changed_names,
    first_losses,
    kill,
    read_json,
    results,
    saved_weights,
    train_in,
)

LOAD_ADAPTER = """
import sys
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor
base, adapter = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), adapter)
same = AutoModelForImageTextToText.from_pretrained(adapter)  # transformers finds the base model itself
ids = torch.tensor([[7, 8, 9]])
assert torch.allclose(model(input_ids=ids).logits, same(input_ids=ids).logits)
assert not torch.allclose(model(input_ids=ids).logits, model.get_base_model().forward(input_ids=ids + 1).logits)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, scenes):
    """The folder of a run of two methods from a configuration."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = vlm_recipe(scenes, folder / "run", methods=["none", "direct"], options={"generate": 3})
    train_in(folder, recipe)
    return folder / "run"


def from_checkpoint(scenes, trained, output, **model):
    """A recipe that goes on from the model of `trained`, with supervision."""
    recipe = vlm_recipe(scenes, output, methods=["direct"])
    recipe["model"] = {"source": str(trained / "none"), **model}
    recipe["training"] |= {"learning_rate": 0.01, "seed": 3}
    return recipe


def assert_near(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert_close(found[key], value, atol=1e-6, rtol=1e-4)


def snippet_of(folder):
    """The first lines of Python of its card."""
    return (folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0]


def test_a_model_from_a_configuration(trained):
    first = first_losses(trained / "direct")
    assert "loss_region_to_text" not in first  # in a causal model a constant
    assert first["loss"] == pytest.approx(first["loss_language"] + first["loss_text_to_region"], rel=1e-5)
    config = AutoConfig.from_pretrained(trained / "direct")
    vocabulary = read_json(trained / "direct/tokenizer.json")["model"]["vocab"]
    assert config.text_config.vocab_size == len(vocabulary)
    assert config.image_token_id == vocabulary["<image>"]
    assert config.text_config.eos_token_id == vocabulary["</s>"]
    found = results(trained)
    assert "before" not in found  # random weights
    figures = found["methods"]["direct"]["figures"]["test"]
    assert figures["text_to_region_tokens"] > 20
    assert len(figures["text_to_region_by_head"]) == 2
    assert figures["answer_perplexity"] > 1
    assert figures["generated_count"] == 8
    assert "| direct |" in (trained / "table.md").read_text()


STAGES = """
model_type: segformer
num_encoder_blocks: 2
depths: [1, 1]
hidden_sizes: [8, 16]
hidden_size: 16
patch_sizes: [3, 3]
strides: [2, 2]
sr_ratios: [2, 1]
num_attention_heads: [1, 2]
mlp_ratios: [2, 2]
reshape_last_stage: false
hidden_dropout_prob: 0.0
attention_probs_dropout_prob: 0.0
drop_path_rate: 0.0
"""
MICRO_BATCHES = ["per_device_train_batch_size=2", "gradient_accumulation_steps=2", "gradient_checkpointing=true"]


def test_region_words_and_a_vision_encoder_of_stages(scenes, tmp_path, run_recipe):
    """The loss has its own column, with and without supervision; that of the language is the same in micro-batches."""
    recipe = vlm_recipe(scenes, tmp_path / "whole", methods=["none", "direct"], options={"region_words": 0.5})
    full = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    recipe["model"]["config"] |= {"vision_config": yaml.safe_load(STAGES), **full}
    run_recipe(recipe)
    run_recipe(recipe, f"output_dir={tmp_path}/parts", *(f"training.{change}" for change in MICRO_BATCHES))
    whole = first_losses(tmp_path / "whole/none")
    for folder in ("whole/none", "whole/direct", "parts/none", "parts/direct"):
        losses = first_losses(tmp_path / folder)
        attention = losses.get("loss_text_to_region", 0.0)
        expected = losses["loss_language"] + 0.5 * losses["loss_region_words"] + attention
        assert losses["loss"] == pytest.approx(expected, rel=1e-5)
        assert (attention > 0) == folder.endswith("direct")
        assert losses["loss_region_words"] > 1
        assert losses["loss_language"] == pytest.approx(whole["loss_language"], rel=1e-5)
    config = AutoConfig.from_pretrained(tmp_path / "whole/direct").vision_config
    assert config.model_type == "segformer"
    assert config.hidden_size == 16


def test_semi_direct_trains_a_model_of_a_recipe(trained, scenes, tmp_path, run_recipe):
    """Its loss is that of the rollout, which `tests/supervision/test_vlm_families.py` computes by hand."""
    run_recipe(from_checkpoint(scenes, trained, tmp_path / "run"), "methods=[semi_direct]")
    first = first_losses(tmp_path / "run/semi_direct")
    assert first["loss"] == pytest.approx(first["loss_language"] + first["loss_text_to_region"], rel=1e-5)
    assert "`semi_direct` supervision" in (tmp_path / "run/semi_direct/README.md").read_text()


def test_an_adapter_trains_resumes_and_loads_elsewhere(trained, scenes, tmp_path, run_recipe):
    adapter = {"lora": {"r": 2, "lora_dropout": 0.1}}
    recipe = from_checkpoint(scenes, trained, tmp_path / "run", adapter=adapter)
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 1}
    run_recipe(recipe)
    whole = tmp_path / "run/direct"
    saved = load_file(whole / "adapter_model.safetensors")
    assert saved
    assert all("language_model.layers" in name for name in saved)
    assert any(name.endswith("lora_B.weight") and value.any() for name, value in saved.items())
    start = results(trained)["methods"]["none"]["figures"]
    for split, figures in results(tmp_path / "run")["before"].items():  # the adapter changes nothing before training
        assert figures["answer_loss"] == pytest.approx(start[split]["answer_loss"], rel=1e-6)
        assert figures["text_to_region_by_head"] == start[split]["text_to_region_by_head"]

    pushed = model_files(whole / "checkpoint-3")  # what a save during training pushes
    assert {"adapter_config.json", "adapter_model.safetensors", "processor_config.json"} <= set(pushed)

    # A run that ended after its second step goes on, bit by bit.
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "run", stopped, ignore=shutil.ignore_patterns("checkpoint-3", "results.json"))
    kill(stopped / "direct")
    run_recipe(recipe, f"output_dir={stopped}", "resume=true")
    assert_same_weights(load_file(stopped / "direct/adapter_model.safetensors"), saved)

    assert "before training" in (whole / "README.md").read_text()
    snippet = snippet_of(whole)
    assert "PeftModel.from_pretrained(base, name, revision=revision)" in snippet
    done = run_elsewhere(LOAD_ADAPTER + snippet, tmp_path, str(trained / "none"), str(whole))
    assert_ran(done)


def test_checkpointing_and_accumulation_change_nothing(trained, scenes, tmp_path, run_recipe):
    recipe = from_checkpoint(scenes, trained, tmp_path / "plain", freeze=["vision"])
    recipe["training"]["optim"] = "sgd"
    run_recipe(recipe)
    plain = saved_weights(tmp_path / "plain/direct")
    changed = changed_names(plain, saved_weights(trained / "none"))
    assert changed
    assert not any("vision_tower" in name for name in changed)
    assert any("multi_modal_projector" in name for name in changed)

    run_recipe(recipe, f"output_dir={tmp_path}/checkpointing", "training.gradient_checkpointing=true")
    assert_near(saved_weights(tmp_path / "checkpointing/direct"), plain)
    accumulated = ["training.per_device_train_batch_size=1", "training.gradient_accumulation_steps=4"]
    run_recipe(recipe, f"output_dir={tmp_path}/accumulation", *accumulated)
    assert_near(saved_weights(tmp_path / "accumulation/direct"), plain)


@pytest.mark.parametrize("direction", ["text_to_region", "region_to_text"])
def test_attention_that_sees_nothing_ends_the_training(direction, scenes, tmp_path, monkeypatch, capsys):
    recipe = vlm_recipe(scenes, tmp_path / "run")
    if direction == "text_to_region":  # a window that ends before the image
        recipe["model"]["config"]["text_config"] |= {"model_type": "mistral", "sliding_window": 2}
    directions = f"supervision.options.direct.directions=[{direction}]"
    assert run_train(monkeypatch, tmp_path, recipe, directions, "training.max_steps=20") == 2
    assert f"{direction}: no supervised layer lets these rows see the regions" in capsys.readouterr().err


RUN = """
import sys
import datasets
import train
recipe, datasets.config.HF_DATASETS_CACHE = sys.argv[1:3]
sys.argv = ["train.py", recipe, *sys.argv[3:]]
sys.exit(train.main())
"""


def test_two_processes_train_as_one(trained, scenes, tmp_path, run_recipe):
    recipe = from_checkpoint(scenes, trained, tmp_path / "one")
    recipe["training"] |= {"optim": "sgd", "max_steps": 2, "gradient_checkpointing": True}
    run_recipe(recipe)
    half = ["training.per_device_train_batch_size=2", f"output_dir={tmp_path / 'two'}"]
    processes = launch(RUN, tmp_path / "recipe.yaml", tmp_path / "cache", *half)
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert_near(saved_weights(tmp_path / "two/direct"), saved_weights(tmp_path / "one/direct"))
    first = results(tmp_path / "one")["methods"]["direct"]["figures"]["test"]
    second = results(tmp_path / "two")["methods"]["direct"]["figures"]["test"]
    assert second["answer_perplexity"] == pytest.approx(first["answer_perplexity"], rel=1e-4)
    assert second["answer_tokens"] == first["answer_tokens"]


# Name of a recipe -> a figure that it measures, and what it reads here.
SHIPPED = {
    "vlm_referring": ("box_accuracy", ["data.options={config_name: refcoco+}"]),
    "vlm_caption": ("answer_loss", ["options.generate=2"]),
    "vlm_vqa": ("vqa_accuracy", ["data.options={splits: [train, validation]}"]),
    "pointer_qwen": ("answer_loss", []),
    "pointer_actor": ("answer_loss", []),
}
SMALL = [f"data.limit.{split}=4" for split in ("train", "validation", "test", "testA", "testB")]
SMALL += ["training.max_steps=2", "training.use_cpu=true", "training.dataloader_num_workers=0"]
SMALL += ["training.disable_tqdm=true"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_trains(name, trained, scenes, tmp_path, run_recipe):
    """Everything of the recipe except places, sizes and the machine."""
    figure, overrides = SHIPPED[name]
    if name.startswith("pointer"):  # clicks on drawn screens
        write_screens(tmp_path / "screens", 8, 0)
        places = [f"data.source={tmp_path}/screens/train.json", "data.images=null", "model.processor={}"]
        places.append("options.region_words=1.0")  # whose loss reads hidden states too
    else:
        places = [f"data.data_dir={scenes}", f"data.images={scenes}/flickr30k-images", "data.options={}"]
    places += [f"model.source={trained}/none", f"output_dir={tmp_path}/run"]
    run_recipe({"extends": name}, *places, *SMALL, *overrides)
    found = results(tmp_path / "run")
    assert [*found["methods"]] == load_recipe(find_recipe(name)).methods
    assert "before" in found
    for result in found["methods"].values():
        assert figure in result["figures"]["validation"]


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.images=null", "data.images is null"),
        ("model.config={model_type: llama}", "model.config.model_type is 'llama', expected one of llava"),
        ("model.config={model_type: llava, layers: 1}", "unknown key 'model.config.layers'"),
        (
            "model.config={model_type: llava, text_config: {model_type: llama, hidden: 8}}",
            "unknown key 'model.config.text_config.hidden'; ",
        ),
        ("model.tokenizer=null", "model.tokenizer is empty: give the directory or Hub id of the model's"),
        ("model.adapter={lora: {}}", "model.adapter changes the weights of a checkpoint: give model.source"),
        ("model.freeze=[visionn]", "model.freeze: 'visionn' matches no weight of LlavaForConditional"),
        ("model.freeze=['(']", "model.freeze: '(' is not a regular expression"),
        ("model.processor={coverage: 1}", "unknown key 'model.processor.coverage'"),
        ("model.bert=bert", "model.bert"),
        ("model={family: vl_bert, config: {}}", "the family 'vl_bert' has no head 'generation' ... vlm"),
        ("task=vqa", "the family 'vlm' has no head 'vqa'; use a family that has it: model.family=vl_bert"),
        ("preserve={distillation: 1.0}", "preserve is not for vision-language models"),
        ("options={expression: locate}", "unknown key 'options.expression"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(override, message, scenes, tmp_path, refused):
    assert_words(refused(vlm_recipe(scenes, tmp_path / "run"), override), message)


@pytest.mark.parametrize(
    "model, message",
    [
        ("{config: {image_token_id: 3}}", "model.config.image_token_id: a checkpoint keeps its configuration"),
        ("{adapter: {prefix: {}}}", "unknown key 'model.adapter.prefix'; ... lora"),
        ("{adapter: {lora: {rank: 2}}}", "model.adapter.lora: ... 'rank'"),
        ("{adapter: {lora: {}}, freeze: [vision]}", "model.freeze has no effect with model.adapter"),
        ("{adapter: {lora: {target_modules: none}}}", "model.adapter.lora: ... none ... not found"),
    ],
)
def test_a_wrong_model_section_beside_a_checkpoint(model, message, trained, scenes, tmp_path, refused):
    recipe = from_checkpoint(scenes, trained, tmp_path / "run", **yaml.safe_load(model))
    assert_words(refused(recipe), message)


POINTING = """
import sys
import torch
from transformers import AutoModelForImageTextToText
before = AutoModelForImageTextToText.from_pretrained(sys.argv[1]).get_input_embeddings().weight
SNIPPET
anchor = processor.tokenizer.convert_tokens_to_ids("<point>")
assert anchor == len(before)
row = model.get_input_embeddings()(torch.tensor([anchor]))[0]
assert (row - before.mean(0)).abs().max() > 1e-3  # trained
assert torch.equal(model.get_input_embeddings()(torch.arange(9)), before[:9])
"""


def pointing(scenes, trained, output, method, **model):
    recipe = from_checkpoint(scenes, trained, output, **model)
    recipe |= {"methods": [method], "options": {"expressions": "point"}}
    recipe["data"] |= {"builder": "refcoco", "options": {"config_name": "refcoco+"}}
    return recipe


@pytest.mark.parametrize("method, adapter", [("pointer", {}), ("actor", {}), ("pointer", {"lora": {"r": 2}})], ids=str)
def test_an_anchor_is_added_trained_and_saved(method, adapter, trained, scenes, tmp_path, capsys, run_recipe):
    run_recipe(pointing(scenes, trained, tmp_path / "run", method, tokens=["<point>"], adapter=adapter))
    folder = tmp_path / "run" / method
    assert first_losses(folder)["loss_text_to_region"] > 0
    picture = next((scenes / "flickr30k-images").glob("*.jpg"))
    capsys.readouterr()
    for text in ("the red ball", "the <point> ball"):
        assert point_main([str(picture), text, "--model", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["from"].startswith("the token <point>")
        assert 0 <= found["point"][0] <= 1
        assert ("head" in found["from"]) == (method == "actor")
    if adapter:
        script = POINTING.replace("SNIPPET", snippet_of(folder))
        done = run_elsewhere(script, tmp_path, str(trained / "none"))
        assert_ran(done)
    elif method == "actor":
        model, _ = load_vlm(str(folder))
        saved = saved_weights(folder)
        head = model.pointer_head.state_dict(prefix="pointer_head.")
        assert len(head) == 14
        assert_same_weights({name: saved[name] for name in head}, head)
    else:  # a model that has the token goes on with its row
        again = Model(family="vlm", source=str(folder), tokens=["<point>"])
        rows = make_vlm(again, make_vlm_processor(again)).get_input_embeddings().weight
        assert any(torch.equal(rows, value) for name, value in saved_weights(folder).items() if "embed_tokens" in name)


@pytest.mark.parametrize("method", ["pointer", "actor"])
@pytest.mark.parametrize("tokens", [[], ["dog"]])
def test_pointing_without_a_token_of_its_own_ends(method, tokens, trained, scenes, tmp_path, monkeypatch, capsys):
    recipe = pointing(scenes, trained, tmp_path / "run", method, tokens=tokens)
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "model.tokens" in capsys.readouterr().err
