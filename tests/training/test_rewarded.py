# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in TRL's GRPO and DPO: TRL's own steps, and a term that moves the attention."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from torch.testing import assert_close
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from grounded_attention.supervision import get_method
from grounded_attention.supervision.distillation import AttentionDistillation
from grounded_attention.supervision.earlier import EarlierAttention
from grounded_attention.supervision.margin import AttentionMargin
from grounded_attention.training.loop.rewarded import AttentionTeacher, GroundedDPOTrainer, GroundedGRPOTrainer
from tests.helpers.tiny_trainer import weights
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor
from tests.training.runs import changed_names

FIXED = {
    "max_steps": 2,
    "learning_rate": 0.01,
    "per_device_train_batch_size": 4,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "remove_unused_columns": False,
    "gradient_checkpointing": False,
    "seed": 3,
}
OWN = {"grpo": {"num_generations": 4, "max_completion_length": 5}, "dpo": {"max_length": None}}
CONFIGS = {"grpo": GRPOConfig, "dpo": DPOConfig}
TRAINERS = {"grpo": GRPOTrainer, "dpo": DPOTrainer}
GROUNDED = {"grpo": GroundedGRPOTrainer, "dpo": GroundedDPOTrainer}
TRAINER = ("attention_weight", "reward_above", "teacher", "peft_config")
PROMPT = [{"role": "user", "content": "what is this ?"}]
CHOSEN = [{"role": "assistant", "content": "a small cat ."}]
REJECTED = [{"role": "assistant", "content": "two red balls near a dog"}]
TERMS = {
    "ease": ("grpo", lambda: get_method("kl_attention", rows="words", target="mixture", spread=0.25, background=0.1)),
    "ral": ("grpo", EarlierAttention),
    "ral image": ("grpo", lambda: EarlierAttention(columns="image")),
    "dpo direct": ("dpo", lambda: get_method("direct")),
    "margin": ("dpo", AttentionMargin),
    "grpo distillation": ("grpo", lambda: AttentionDistillation([(0, 0), (1, 1)])),
    "distillation": ("dpo", lambda: AttentionDistillation([(0, 0), (1, 1)])),
}


def rows():
    generator = np.random.default_rng(0)
    made = []
    for number in range(4):
        pixels = generator.integers(0, 255, (40, 30 + 9 * number, 3), dtype=np.uint8)
        phrase = {"text": "cat", "boxes": [[0.1 * number, 0.1, 0.6, 0.7]]}
        texts = {"prompt": PROMPT, "chosen": CHOSEN, "rejected": REJECTED}
        made.append({"images": [Image.fromarray(pixels)], "phrases": [phrase], **texts})
    return Dataset.from_list(made)


def reward(completion_ids, **_):
    return [float(sum(ids) % 3) / 2 for ids in completion_ids]


def make_trainer(kind, folder, method=None, family="llava", data=None, rewards=reward, **given):
    """A Trainer of TRL's, or with a method its supervised one; each begins with the same random numbers."""
    torch.manual_seed(0)
    processor = make_processor(family)
    model = make_model(family, processor.tokenizer)
    model.save_pretrained(folder / "start")
    model.name_or_path = model.config._name_or_path = str(folder / "start")  # DPO loads its reference
    options = {key: given.pop(key) for key in TRAINER if key in given}
    trainer = TRAINERS[kind]
    if method is not None:
        trainer = GROUNDED[kind]
        options["method"] = method
    data = data or rows()
    if kind == "grpo":
        data = data.remove_columns(["chosen", "rejected"])
        options["reward_funcs"] = [rewards]
    config = CONFIGS[kind](str(folder), **{**FIXED, **OWN[kind], **given})
    return trainer(model, args=config, train_dataset=data, processing_class=processor, **options)


def make_teacher():
    processor = make_processor("qwen2_5_vl")
    method = AttentionDistillation([(0, 3), (1, 0)])
    return AttentionTeacher(make_model("qwen2_5_vl", processor.tokenizer), processor, method)


def logs(trainer, *names):
    return [[entry[name] for name in names] for entry in trainer.state.log_history if "loss" in entry]


def options_of(term):
    options = {"teacher": make_teacher()} if "distillation" in term else {}
    if "ral" in term:
        options |= {"num_iterations": 2, "max_steps": 4}
    return options


def trained(trainer):
    """Its losses, the passes of the model, and its weights."""
    passes = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(1))
    trainer.train()
    return logs(trainer, "loss", "grad_norm"), len(passes), trainer.model.state_dict()


@pytest.mark.parametrize("term", TERMS)
def test_a_trainer_without_weight_is_that_of_trl(tmp_path, term):
    """The same losses and weights, with as many passes of the model; the term is logged all the same."""
    kind, method = TERMS[term]
    options = options_of(term)
    teacher = options.pop("teacher", None)
    losses, passes, weights = trained(make_trainer(kind, tmp_path, **options))
    own = make_trainer(kind, tmp_path, method(), attention_weight=0.0, teacher=teacher, **options)
    own_losses, own_passes, own_weights = trained(own)
    assert own_passes == passes > 0
    for found, expected in zip(own_losses, losses, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for key, weight in weights.items():
        assert_close(own_weights[key], weight, atol=1e-5, rtol=1e-4)
    assert len(logs(own, f"loss_{own.method.name}")) == len(losses)


@pytest.mark.parametrize("kind, term, tolerance", [("grpo", "ease", 1e-2), ("dpo", "margin", 1e-4)])
def test_the_term_is_added_once_however_the_step_is_accumulated(tmp_path, kind, term, tolerance):
    def first_step(weight, batches):
        sizes = {"per_device_train_batch_size": 4 // batches, "gradient_accumulation_steps": batches}
        trainer = make_trainer(kind, tmp_path, TERMS[term][1](), attention_weight=weight, max_steps=1, **sizes)
        trainer.train()
        (found,) = logs(trainer, "loss", f"loss_{trainer.method.name}")
        return found

    for batches in (1, 2):
        bare, attention = first_step(0.0, batches)
        loss, same = first_step(3.0, batches)
        assert attention > 0
        assert same == pytest.approx(attention, rel=1e-4)
        assert loss - bare == pytest.approx(3.0 * attention, rel=1e-3)
    assert [loss, same] == pytest.approx(first_step(3.0, 1), rel=tolerance)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("term", ["ease", "dpo direct", "margin", "distillation"])
def test_attention_moves_as_the_term_says(tmp_path, term, family):
    """Its loss falls, from the first step on."""
    kind, method = TERMS[term]
    extra = options_of(term) | ({"temperature": 0.1} if kind == "grpo" else {"beta": 0.0})
    trainer = make_trainer(kind, tmp_path, method(), family, **extra, attention_weight=5.0, max_steps=6)
    trainer.train()
    [first], *_, [last] = logs(trainer, f"loss_{trainer.method.name}")
    assert last < 0.95 * first


def test_attention_stays_near_the_earlier_one_of_good_rollouts(tmp_path):
    """After the first step of each rollout the divergence is not 0, and a weight with either sign changes it."""
    more = {"num_iterations": 4, "max_steps": 4, "optim": "sgd", "learning_rate": 0.3}

    def divergences(sign, weight):
        method = EarlierAttention(columns="image", sign=sign)
        trainer = make_trainer("grpo", tmp_path, method, attention_weight=weight, **more)
        trainer.train()
        found = [sign * value for [value] in logs(trainer, "loss_earlier")]
        assert abs(found[0]) < 1e-7
        assert abs(found[-1]) > 1e-9
        return found

    free = divergences(1, 0.0)
    assert divergences(1, 300.0)[-1] < free[-1]
    assert divergences(-1, 300.0)[-1] > free[-1]


def test_rollouts_below_the_gate_are_not_supervised(tmp_path):
    def half(completion_ids, **_):
        return [float(number % 2) for number in range(len(completion_ids))]

    found = []
    for gate in (None, 0.5, 2.0):
        method = TERMS["ease"][1]()
        trainer = make_trainer("grpo", tmp_path, method, rewards=half, max_steps=1, reward_above=gate)
        trainer.train()
        found.append(logs(trainer, "loss_kl_attention")[0][0])
    assert found[2] == 0.0 < found[1] != found[0]


def test_an_adapter_and_an_evaluation(tmp_path):
    config = LoraConfig(r=2, target_modules=r".*language_model.*\.(q_proj|k_proj)")
    for kind, term in (("grpo", "ease"), ("dpo", "margin")):
        trainer = make_trainer(kind, tmp_path, TERMS[term][1](), peft_config=config)
        before = weights(trainer.model)
        trainer.train()
        changed = changed_names(weights(trainer.model), before)
        assert changed
        assert all("lora_" in name for name in changed)
        assert "eval_loss" in trainer.evaluate(trainer.train_dataset)


@pytest.mark.parametrize("kind, method", [("grpo", get_method("direct")), ("dpo", AttentionMargin())])
def test_rows_without_phrases_or_columns_are_refused(tmp_path, kind, method):
    with pytest.raises(ValueError, match="phrases"):
        make_trainer(kind, tmp_path, method, data=rows().remove_columns("phrases"))
    with pytest.raises(ValueError, match="remove_unused_columns"):
        make_trainer(kind, tmp_path, method, remove_unused_columns=True)


@pytest.mark.parametrize(
    "kind, method, message",
    [
        ("grpo", EarlierAttention(), "num_iterations"),
        ("grpo", AttentionMargin(), "GroundedDPOTrainer"),
        ("dpo", EarlierAttention(), "GroundedGRPOTrainer"),
        ("dpo", AttentionDistillation([(0, 0)]), "teacher"),
    ],
)
def test_what_would_do_nothing_is_refused(tmp_path, kind, method, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(kind, tmp_path, method)


@pytest.mark.parametrize(
    "method, message",
    [(AttentionMargin(), "teacher"), (AttentionDistillation([(0, 0)]), "2 heads, the student 1")],
)
def test_a_teacher_that_does_not_fit_is_refused(tmp_path, method, message):
    with pytest.raises(ValueError, match=message):
        make_trainer("dpo", tmp_path, method, teacher=make_teacher())
