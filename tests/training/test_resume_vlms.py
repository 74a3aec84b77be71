# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A vision-language model that is trained whole continues bit for bit; keys that do not fit end it."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, Trainer, TrainingArguments

from grounded_attention.supervision import get_method
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin
from grounded_attention.training.recipes.recipe import RecipeError
from tests.helpers.tiny_vlm_examples import make_rows
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import CHAT_TEMPLATE, make_processor, meant
from tests.training.runs import assert_same_weights, assert_words

STEPS = 2
STOP = 1
ROWS = Dataset.from_list(make_rows())


class Supervised(GroundingTrainerMixin, Trainer):
    """The mixin in the Trainer of transformers."""


def make_trainer(family, folder, wrap=lambda model: model, **given):
    processor = make_processor(family)
    processor.chat_template = processor.chat_template or CHAT_TEMPLATE.replace("IMAGE", "<image>")  # PaliGemma
    method = get_method("direct")
    fixed = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": STOP, "logging_steps": 1, "use_cpu": True}
    fixed |= {"remove_unused_columns": False, "report_to": "none", "disable_tqdm": True, "learning_rate": 1e-2}
    return Supervised(
        wrap(make_model(family, processor.tokenizer)),
        TrainingArguments(str(folder), per_device_train_batch_size=2, **{**fixed, **given}),
        train_dataset=ROWS,
        eval_dataset=ROWS.select(range(2)),
        data_collator=GroundingCollator(processor, method),
        method=method,
    )


def assert_continued(resumed, straight):
    """With the same weights in every bit, and the same losses."""
    assert_same_weights(resumed.model.state_dict(), straight.model.state_dict())
    expected = [entry["loss"] for entry in straight.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in resumed.state.log_history if "loss" in entry] == expected


def lora(model):
    modules = r".*(language_model|text_model).*\.(q_proj|v_proj)"
    return get_peft_model(model, LoraConfig(r=2, target_modules=modules))


class Plain(torch.nn.Module):
    """A model that is not one of transformers."""

    def __init__(self, model):
        super().__init__()
        self.inner = model
        self.config = model.config

    def forward(self, **inputs):
        return self.inner(**inputs)


# Not Kimi K2.5: transformers converts its weights when it loads them, for a decoder that is none of the tiny ones.
@pytest.mark.parametrize("family", sorted({*meant()} - {"kimi_k25"}))
def test_a_whole_model_continues_bit_for_bit(family, tmp_path):
    straight = make_trainer(family, tmp_path)
    straight.train()
    resumed = make_trainer(family, tmp_path, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STOP}"))
    assert_continued(resumed, straight)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
def test_the_best_model_is_that_of_its_checkpoint(family, tmp_path):
    best = {"eval_strategy": "steps", "eval_steps": STOP, "load_best_model_at_end": True, "greater_is_better": True}
    trainer = make_trainer(family, tmp_path, metric_for_best_model="loss", **best)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith(f"-{STOP}")  # the loss falls, and the largest one is kept
    twin = make_trainer(family, tmp_path / "twin", max_steps=STOP, lr_scheduler_type="constant")
    twin._load_from_checkpoint(trainer.state.best_model_checkpoint)
    kept = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint).state_dict()
    assert_same_weights(trainer.model.state_dict(), kept)
    assert_same_weights(twin.model.state_dict(), kept)


def rename(saved):
    saved["stranger.weight"] = saved.pop(max(saved))


def drop(saved):
    del saved[max(saved)]


def cut(saved):
    saved[max(saved)] = saved[max(saved)][..., :-1].clone()


@pytest.mark.parametrize(
    "wrap, spoil",
    [
        (PreTrainedModel.train, rename),
        (PreTrainedModel.train, drop),
        (PreTrainedModel.train, cut),
        (lora, rename),
        (lora, drop),
        (lora, cut),
        (Plain, rename),
        (Plain, drop),
    ],
)
def test_a_key_that_does_not_fit_ends_the_resumption(wrap, spoil, tmp_path):
    make_trainer("llava", tmp_path, wrap=wrap, max_steps=STOP).train()
    folder = tmp_path / f"checkpoint-{STOP}"
    (file,) = folder.glob("*.safetensors")
    saved = load_file(file)
    key = max(saved)
    spoil(saved)
    save_file(saved, file, metadata={"format": "pt"})
    with pytest.raises(RecipeError) as error:
        make_trainer("llava", tmp_path, wrap=wrap).train(resume_from_checkpoint=str(folder))
    assert_words(str(error.value), f"{folder} ... {key.rpartition('.')[0]}")
