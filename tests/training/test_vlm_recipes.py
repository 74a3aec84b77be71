# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes that teach vision-language models: random weights, a checkpoint, an adapter; and what is refused."""

import json
import re
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig

from grounded_attention.commands.point import main as point_main
from grounded_attention.dataset_scripts.scenes.screen_files import write_screens
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.training.experiments.vision_language import make_vlm, make_vlm_processor
from grounded_attention.training.publish.hub import model_files
from grounded_attention.training.recipes.recipe import Model, load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_scenes import refusal, run_train
from tests.helpers.tiny_vlm_recipes import llava_config, vlm_recipe
from tests.helpers.two_processes import launch

LOAD_ADAPTER = """
from pathlib import Path
import sys
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor
base, adapter, snippet = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), adapter)
same = AutoModelForImageTextToText.from_pretrained(adapter)  # transformers finds the base model itself
ids = torch.tensor([[7, 8, 9]])
assert torch.allclose(model(input_ids=ids).logits, same(input_ids=ids).logits)
assert not torch.allclose(model(input_ids=ids).logits, model.get_base_model().forward(input_ids=ids + 1).logits)
exec(Path(snippet).read_text())
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, scenes):
    """The folder of a run of two methods from a configuration."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = vlm_recipe(scenes, folder / "run", methods=["none", "direct"], options={"generate": 3})
    with pytest.MonkeyPatch.context() as patch:
        assert run_train(patch, folder, recipe) == 0
    return folder / "run"


def from_checkpoint(scenes, trained, output, **model):
    """A recipe that goes on from the model of `trained`, with supervision."""
    recipe = vlm_recipe(scenes, output, methods=["direct"])
    recipe["model"] = {"source": str(trained / "none"), **model}
    recipe["training"] |= {"learning_rate": 0.01, "save_strategy": "steps", "save_steps": 1, "seed": 3}
    return recipe


def lora(scenes, trained, output):
    return from_checkpoint(scenes, trained, output, adapter={"lora": {"r": 2, "lora_dropout": 0.1}})


def weights(folder):
    return load_file(next(folder.glob("*.safetensors")))


def test_a_model_from_a_configuration(trained, scenes):
    history = json.loads((trained / "direct" / "history.json").read_text())
    assert {"loss_language", "loss_text_to_region"} <= set(history[0])
    assert "loss_region_to_text" not in history[0]  # in a causal model a constant
    assert history[0]["loss"] == pytest.approx(
        history[0]["loss_language"] + history[0]["loss_text_to_region"], rel=1e-5
    )
    config = AutoConfig.from_pretrained(trained / "direct")
    tokenizer = json.loads((trained / "direct" / "tokenizer.json").read_text())["model"]["vocab"]
    assert config.text_config.vocab_size == len(tokenizer)
    assert config.image_token_id == tokenizer["<image>"]
    assert config.text_config.eos_token_id == tokenizer["</s>"]
    results = json.loads((trained / "results.json").read_text())
    assert "before" not in results  # random weights
    figures = results["methods"]["direct"]["figures"]["test"]
    assert figures["text_to_region_tokens"] > 20
    assert len(figures["text_to_region_by_head"]) == 2
    assert figures["answer_perplexity"] > 1
    assert figures["generated_count"] == 8
    assert "| direct |" in (trained / "table.md").read_text()


def test_region_words_and_a_vision_encoder_of_stages(scenes, tmp_path, monkeypatch):
    """The loss has its own column, with and without supervision; that of the language is the same in micro-batches."""
    stages = {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "hidden_size": 16}
    stages |= {"patch_sizes": [3, 3], "strides": [2, 2], "sr_ratios": [2, 1], "num_attention_heads": [1, 2]}
    stages |= {"mlp_ratios": [2, 2], "reshape_last_stage": False, "model_type": "segformer"}
    stages |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"), 0.0)
    words = []
    language = []
    for batch, accumulation in ((4, 1), (2, 2)):
        recipe = vlm_recipe(
            scenes, tmp_path / f"run_{batch}", methods=["none", "direct"], options={"region_words": 0.5}
        )
        full = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
        recipe["model"]["config"] |= {"vision_config": stages, **full}
        recipe["training"] |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        recipe["training"] |= {"gradient_checkpointing": accumulation == 2}
        assert run_train(monkeypatch, tmp_path, recipe) == 0
        for method in recipe["methods"]:
            (first, *_) = json.loads((tmp_path / f"run_{batch}" / method / "history.json").read_text())
            attention = first["loss_text_to_region"] if method == "direct" else 0.0
            expected = first["loss_language"] + 0.5 * first["loss_region_words"] + attention
            assert first["loss"] == pytest.approx(expected, rel=1e-5)
            words.append(first["loss_region_words"])
            language.append(first["loss_language"])
    assert words[0] == pytest.approx(words[1], rel=1e-5)
    assert min(words) > 1
    assert language == pytest.approx([language[0]] * 4, rel=1e-5)
    config = AutoConfig.from_pretrained(tmp_path / "run_4" / "direct").vision_config
    assert config.model_type == "segformer"
    assert config.hidden_size == 16


def test_semi_direct_trains_a_model_of_a_recipe(trained, scenes, tmp_path, monkeypatch):
    """Its loss is that of the rollout, which `tests/supervision/test_vlm_families.py` computes by hand."""
    recipe = from_checkpoint(scenes, trained, tmp_path / "run")
    recipe |= {"methods": ["semi_direct"]}
    recipe["training"] |= {"save_strategy": "no"}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    history = json.loads((tmp_path / "run" / "semi_direct" / "history.json").read_text())
    assert history[0]["loss"] == pytest.approx(
        history[0]["loss_language"] + history[0]["loss_text_to_region"], rel=1e-5
    )
    assert "`semi_direct` supervision" in (tmp_path / "run" / "semi_direct" / "README.md").read_text()


def test_an_adapter_trains_resumes_and_loads_elsewhere(trained, scenes, tmp_path, monkeypatch):
    recipe = lora(scenes, trained, tmp_path / "run")
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    whole = tmp_path / "run" / "direct"
    adapter = weights(whole)
    assert adapter
    assert all("language_model.layers" in name for name in adapter)
    assert any(name.endswith("lora_B.weight") and value.any() for name, value in adapter.items())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    start = json.loads((trained / "results.json").read_text())["methods"]["none"]["figures"]
    for split, figures in results["before"].items():  # the adapter changes nothing before training
        assert figures["answer_loss"] == pytest.approx(start[split]["answer_loss"], rel=1e-6)
        assert figures["text_to_region_by_head"] == start[split]["text_to_region_by_head"]

    pushed = model_files(whole / "checkpoint-3")  # what a save during training pushes
    assert {"adapter_config.json", "adapter_model.safetensors", "processor_config.json"} <= set(pushed)

    # A run that ended after its second step goes on, bit by bit.
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "run", stopped, ignore=shutil.ignore_patterns("checkpoint-3", "results.json"))
    for path in stopped.glob("direct/*"):
        if path.is_file():
            path.unlink()
    recipe["output_dir"] = str(stopped)
    assert run_train(monkeypatch, tmp_path, recipe, "resume=true") == 0
    again = weights(stopped / "direct")
    assert again.keys() == adapter.keys()
    assert all(torch.equal(again[name], adapter[name]) for name in adapter)

    card = (whole / "README.md").read_text()
    assert "before training" in card
    assert "PeftModel.from_pretrained(base, name, revision=revision)" in card
    snippet = tmp_path / "snippet.py"
    snippet.write_text(card.partition("```python\n")[2].partition("```")[0])
    done = run_elsewhere(LOAD_ADAPTER, tmp_path, str(trained / "none"), str(whole), str(snippet))
    assert done.returncode == 0, done.stderr[-3000:]


def test_checkpointing_and_accumulation_change_nothing(trained, scenes, tmp_path, monkeypatch):
    changes = {
        "plain": [],
        "checkpointing": ["training.gradient_checkpointing=true"],
        "accumulation": ["training.per_device_train_batch_size=1", "training.gradient_accumulation_steps=4"],
    }
    found = {}
    for name, overrides in changes.items():
        recipe = from_checkpoint(scenes, trained, tmp_path / name, freeze=["vision"])
        recipe["training"] |= {"save_strategy": "no", "optim": "sgd"}
        assert run_train(monkeypatch, tmp_path, recipe, *overrides) == 0
        found[name] = weights(tmp_path / name / "direct")
    start = weights(trained / "none")
    changed = {name for name in start if not torch.equal(start[name], found["plain"][name])}
    assert changed
    assert not any("vision_tower" in name for name in changed)
    assert any("multi_modal_projector" in name for name in changed)
    for name in ("checkpointing", "accumulation"):
        for key, value in found["plain"].items():
            torch.testing.assert_close(found[name][key], value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("case", ["a window that ends before the image", "a direction"])
def test_attention_that_sees_nothing_ends_the_training(case, scenes, tmp_path, monkeypatch, capsys):
    directions = ["text_to_region"] if case.startswith("a window") else ["region_to_text"]
    recipe = vlm_recipe(scenes, tmp_path / "run", supervision={"options": {"direct": {"directions": directions}}})
    if case.startswith("a window"):
        window = {**llava_config()["text_config"], "model_type": "mistral", "sliding_window": 2}
        recipe["model"]["config"]["text_config"] = window
    assert run_train(monkeypatch, tmp_path, recipe, "training.max_steps=20") == 2
    assert f"{directions[0]}: no supervised layer lets these rows see the regions" in capsys.readouterr().err


RUN = """
import sys
import datasets
import train
recipe, datasets.config.HF_DATASETS_CACHE = sys.argv[1:3]
sys.argv = ["train.py", recipe, *sys.argv[3:]]
sys.exit(train.main())
"""


def test_two_processes_train_as_one(trained, scenes, tmp_path, monkeypatch):
    recipe = from_checkpoint(scenes, trained, tmp_path / "one")
    recipe["training"] |= {"save_strategy": "no", "optim": "sgd", "max_steps": 2}
    recipe["training"] |= {"gradient_checkpointing": True}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    half = ["training.per_device_train_batch_size=2", f"output_dir={tmp_path / 'two'}"]
    processes = launch(RUN, tmp_path / "recipe.yaml", tmp_path / "cache", *half)
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    one, two = (weights(tmp_path / name / "direct") for name in ("one", "two"))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-6, rtol=1e-4)
    measured = [json.loads((tmp_path / name / "results.json").read_text())["methods"] for name in ("one", "two")]
    first, second = (each["direct"]["figures"]["test"] for each in measured)
    assert second["answer_perplexity"] == pytest.approx(first["answer_perplexity"], rel=1e-4)
    assert second["answer_tokens"] == first["answer_tokens"]


SHIPPED = {
    "vlm_referring": {"data_dir": "refcoco+", "options": {"config_name": "refcoco+"}},
    "pointer_qwen": {},
    "pointer_actor": {},
    "vlm_caption": {},
    "vlm_vqa": {"options": {"splits": ["train", "validation"]}},
}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_trains(name, trained, scenes, tmp_path, monkeypatch):
    """Everything of the recipe except places, sizes and the machine."""
    shipped = load_recipe(find_recipe(name))
    keys = ("data_dir", "images", "options")
    places = {"data_dir": str(scenes), "images": str(scenes / "flickr30k-images"), "options": {}, **SHIPPED[name]}
    if not places["data_dir"].startswith("/"):
        places["data_dir"] = str(scenes)
    limits = [f"data.limit.{split}=4" for split in ("train", "validation", "test", "testA", "testB")]
    overrides = [f"data.{key}={json.dumps(places[key])}" for key in keys] + limits
    if name.startswith("pointer"):  # clicks on drawn screens
        write_screens(tmp_path / "screens", 8, 0)
        overrides = [f"data.source={tmp_path}/screens/train.json", "data.images=null", "model.processor={}", *limits]
        overrides.append("options.region_words=1.0")  # whose loss reads hidden states too
    overrides += [f"model.source={trained / 'none'}", f"output_dir={tmp_path / 'run'}", "training.max_steps=2"]
    overrides += ["training.use_cpu=true", "training.dataloader_num_workers=0", "training.disable_tqdm=true"]
    if shipped.options.get("generate"):
        overrides.append("options.generate=2")
    (tmp_path / "extends.yaml").write_text(yaml.safe_dump({"extends": str(find_recipe(name).resolve())}))
    recipe = yaml.safe_load((tmp_path / "extends.yaml").read_text())
    assert run_train(monkeypatch, tmp_path, recipe, *overrides) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["methods"]) == set(shipped.methods)
    assert "before" in results
    measured = next(iter(results["methods"].values()))["figures"]["validation"]
    assert {"vlm_referring": "box_accuracy", "vlm_vqa": "vqa_accuracy"}.get(name, "answer_loss") in measured


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"images": None}}, "data.images is null"),
        ({"model": {"config": {"model_type": "llama"}}}, "model.config.model_type is 'llama', expected one of llava"),
        ({"model": {"config": {"model_type": "llava", "layers": 1}}}, "unknown key 'model.config.layers'"),
        (
            {"model": {"config": {"model_type": "llava", "text_config": {"model_type": "llama", "hidden": 8}}}},
            "unknown key 'model.config.text_config.hidden'; ",
        ),
        ({"model": {"tokenizer": None}}, "model.tokenizer is empty: give the directory or Hub id of the model's"),
        ({"model": {"adapter": {"lora": {}}}}, "model.adapter changes the weights of a checkpoint: give model.source"),
        ({"model": {"freeze": ["visionn"]}}, "model.freeze: 'visionn' matches no weight of LlavaForConditional"),
        ({"model": {"freeze": ["("]}}, r"model.freeze: '\(' is not a regular expression"),
        ({"model": {"processor": {"coverage": 1}}}, "unknown key 'model.processor.coverage'"),
        ({"model": {"bert": "bert"}}, "model.bert"),
        ({"model": {"family": "vl_bert", "config": {}}}, "the family 'vl_bert' has no head 'generation'.*vlm"),
        ({"task": "vqa"}, "the family 'vlm' has no head 'vqa'; use a family that has it: model.family=vl_bert"),
        ({"preserve": {"distillation": 1.0}}, "preserve is not for vision-language models"),
        ({"options": {"expression": "locate"}}, "unknown key 'options.expression"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(change, message, scenes, tmp_path, monkeypatch, capsys):
    recipe = vlm_recipe(scenes, tmp_path / "run")
    recipe["data"]["regions"] = None
    for key, value in change.items():
        recipe[key] = {**recipe.get(key, {}), **value} if isinstance(value, dict) else value
    assert re.search(message, line := refusal(capsys, monkeypatch, tmp_path, recipe)), line


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"config": {"image_token_id": 3}}, "model.config.image_token_id: a checkpoint keeps its configuration"),
        ({"adapter": {"prefix": {}}}, "unknown key 'model.adapter.prefix'; .*lora"),
        ({"adapter": {"lora": {"rank": 2}}}, "model.adapter.lora: .*'rank'"),
        ({"adapter": {"lora": {}}, "freeze": ["vision"]}, "model.freeze has no effect with model.adapter"),
        ({"adapter": {"lora": {"target_modules": "none"}}}, "model.adapter.lora: .*none.* not found"),
    ],
)
def test_a_wrong_model_section_beside_a_checkpoint(model, message, trained, scenes, tmp_path, monkeypatch, capsys):
    recipe = from_checkpoint(scenes, trained, tmp_path / "run", **model)
    if message.endswith("start"):
        recipe["start"] = {"task": "grounded_generation", "training": recipe["training"]}
    assert re.search(message, line := refusal(capsys, monkeypatch, tmp_path, recipe)), line


POINTING = """
from pathlib import Path
import sys
import torch
from transformers import AutoModelForImageTextToText
base, snippet = sys.argv[1:]
before = AutoModelForImageTextToText.from_pretrained(base).get_input_embeddings().weight
exec(Path(snippet).read_text())
anchor = processor.tokenizer.convert_tokens_to_ids("<point>")
assert anchor == len(before)
row = model.get_input_embeddings()(torch.tensor([anchor]))[0]
assert (row - before.mean(0)).abs().max() > 1e-3  # trained
assert torch.equal(model.get_input_embeddings()(torch.arange(9)), before[:9])
"""


@pytest.mark.parametrize(
    ("method", "adapter"), [("pointer", {}), ("actor", {}), ("pointer", {"lora": {"r": 2}})], ids=str
)
def test_an_anchor_is_added_trained_and_saved(method, adapter, trained, scenes, tmp_path, monkeypatch, capsys):
    given = {"adapter": adapter} if adapter else {}
    recipe = from_checkpoint(scenes, trained, tmp_path / "run", tokens=["<point>"], **given)
    recipe |= {"methods": [method], "options": {"expressions": "point"}}
    recipe["data"] |= {"builder": "refcoco", "options": {"config_name": "refcoco+"}}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    folder = tmp_path / "run" / method
    history = json.loads((folder / "history.json").read_text())
    assert history[0]["loss_text_to_region"] > 0
    if adapter:
        snippet = tmp_path / "snippet.py"
        snippet.write_text((folder / "README.md").read_text().partition("```python\n")[2].partition("```")[0])
        done = run_elsewhere(POINTING, tmp_path, str(trained / "none"), str(snippet))
        assert done.returncode == 0, done.stderr
    picture = next((scenes / "flickr30k-images").glob("*.jpg"))
    capsys.readouterr()
    for text in ("the red ball", "the <point> ball"):
        assert point_main([str(picture), text, "--model", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["from"].startswith("the token <point>")
        assert 0 <= found["point"][0] <= 1
        assert ("head" in found["from"]) == (method == "actor")
    if method == "actor":
        model, _ = load_vlm(str(folder))
        saved = weights(folder)
        head = {f"pointer_head.{name}": value for name, value in model.pointer_head.state_dict().items()}
        assert len(head) == 14
        assert all(torch.equal(saved[name], value) for name, value in head.items())

    if method == "pointer" and not adapter:  # a model that has the token goes on with its row
        again = Model(family="vlm", source=str(folder), tokens=["<point>"])
        made = make_vlm(again, make_vlm_processor(again))
        name = next(key for key in weights(folder) if key.endswith("embed_tokens.weight"))
        assert torch.equal(made.get_input_embeddings().weight, weights(folder)[name])

    recipe["model"] |= {"tokens": []}
    recipe["output_dir"] = str(tmp_path / "without")
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "model.tokens" in capsys.readouterr().err
    recipe["model"] |= {"tokens": ["dog"]}
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "model.tokens" in capsys.readouterr().err
