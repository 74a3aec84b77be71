# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in TRL's GRPO and DPO: TRL's own steps, and a term that moves the attention."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from grounded_attention.supervision import get_method
from grounded_attention.supervision.distillation import AttentionDistillation
from grounded_attention.supervision.earlier import EarlierAttention
from grounded_attention.supervision.margin import AttentionMargin
from grounded_attention.training.loop.rewarded import AttentionTeacher, GroundedDPOTrainer, GroundedGRPOTrainer
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor

FIXED = {
    "max_steps": 2,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
}
FIXED |= {"disable_tqdm": True, "save_strategy": "no", "remove_unused_columns": False, "gradient_checkpointing": False}
FIXED |= {"bf16": False, "per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "seed": 3}
OWN = {"grpo": {"num_generations": 4, "max_completion_length": 5}, "dpo": {"max_length": None}}
ROLES = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
TRAINER = ("attention_weight", "reward_above", "teacher", "peft_config")
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
    said = {"prompt": "what is this ?", "chosen": "a small cat .", "rejected": "two red balls near a dog"}
    return Dataset.from_list(
        [
            {
                "images": [Image.fromarray(generator.integers(0, 255, (40, 30 + 9 * i, 3), dtype=np.uint8))],
                **{key: [{"role": ROLES[key], "content": text}] for key, text in said.items()},
                "phrases": [{"text": "cat", "boxes": [[0.1 * i, 0.1, 0.6, 0.7]]}],
            }
            for i in range(4)
        ]
    )


def reward(completion_ids, **_):
    return [float(sum(ids) % 3) / 2 for ids in completion_ids]


def make_trainer(kind, folder, method=None, family="llava", data=None, rewards=reward, **given):
    processor = make_processor(family)
    model = make_model(family, processor.tokenizer)
    model.save_pretrained(folder / "start")
    model.name_or_path = model.config._name_or_path = str(folder / "start")  # DPO loads its reference
    options = {key: given.pop(key) for key in TRAINER if key in given}
    if method is not None:
        options["method"] = method
    config = {"grpo": GRPOConfig, "dpo": DPOConfig}[kind](str(folder), **{**FIXED, **OWN[kind], **given})
    data = data or rows()
    shared = {"args": config, "train_dataset": data, "processing_class": processor, **options}
    if kind == "grpo":
        shared["train_dataset"] = data.remove_columns(["chosen", "rejected"])
        return (GRPOTrainer if method is None else GroundedGRPOTrainer)(model, [rewards], **shared)
    return (DPOTrainer if method is None else GroundedDPOTrainer)(model, **shared)


def make_teacher():
    processor = make_processor("qwen2_5_vl")
    method = AttentionDistillation([(0, 3), (1, 0)])
    return AttentionTeacher(make_model("qwen2_5_vl", processor.tokenizer), processor, method)


def logs(trainer, *names):
    return [[each[name] for name in names] for each in trainer.state.log_history if "loss" in each]


def options_of(term):
    extra = {"teacher": make_teacher()} if "distillation" in term else {}
    return extra | ({"num_iterations": 2, "max_steps": 4} if "ral" in term else {})


@pytest.mark.parametrize("term", TERMS)
def test_a_trainer_without_weight_is_that_of_trl(tmp_path, term):
    """The same losses and weights, with as many passes of the model; the term is logged all the same."""
    kind, method = TERMS[term]
    found = []
    for own in (None, method()):
        extra = options_of(term)
        if own is None:
            extra.pop("teacher", None)
        torch.manual_seed(0)
        trainer = make_trainer(kind, tmp_path, own, **extra, **({} if own is None else {"attention_weight": 0.0}))
        passes = []
        trainer.model.register_forward_pre_hook(lambda *_, to=passes: to.append(1))
        trainer.train()
        found.append((logs(trainer, "loss", "grad_norm"), len(passes), trainer.model.state_dict()))
    (theirs, count, weights), (ours, number, own_weights) = found
    assert number == count > 0
    assert ours == [pytest.approx(each, rel=1e-4, abs=1e-6) for each in theirs]
    for key, each in weights.items():
        torch.testing.assert_close(own_weights[key], each, atol=1e-5, rtol=1e-4)
    assert len(logs(trainer, f"loss_{own.name}")) == len(theirs)


@pytest.mark.parametrize("kind", ["grpo", "dpo"])
def test_the_term_is_added_once_however_the_step_is_accumulated(tmp_path, kind):
    method = TERMS["ease" if kind == "grpo" else "margin"][1]
    found = {}
    for weight in (0.0, 3.0):
        for batches in (1, 2):
            torch.manual_seed(0)
            sizes = {"per_device_train_batch_size": 4 // batches, "gradient_accumulation_steps": batches}
            trainer = make_trainer(kind, tmp_path, method(), attention_weight=weight, max_steps=1, **sizes)
            trainer.train()
            [found[weight, batches]] = logs(trainer, "loss", f"loss_{method().name}")
            assert found[weight, batches][1] > 0
    for batches in (1, 2):
        (bare, term), (loss, same) = found[0.0, batches], found[3.0, batches]
        assert same == pytest.approx(term, rel=1e-4)
        assert loss - bare == pytest.approx(3.0 * term, rel=1e-3)
    assert found[3.0, 1] == pytest.approx(found[3.0, 2], rel=1e-2 if kind == "grpo" else 1e-4)


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
    found = {}
    for sign, weight in ((1, 0.0), (1, 300.0), (-1, 300.0)):
        torch.manual_seed(0)
        method = EarlierAttention(columns="image", sign=sign)
        more = {"num_iterations": 4, "max_steps": 4, "attention_weight": weight, "optim": "sgd", "learning_rate": 0.3}
        trainer = make_trainer("grpo", tmp_path, method, **more)
        trainer.train()
        found[sign, weight] = [sign * value for [value] in logs(trainer, "loss_earlier")]
    assert all(abs(each[0]) < 1e-7 and abs(each[-1]) > 1e-9 for each in found.values())
    assert found[1, 300.0][-1] < found[1, 0.0][-1] < found[-1, 300.0][-1]


def test_rollouts_below_the_gate_are_not_supervised(tmp_path):
    def half(completion_ids, **_):
        return [float(number % 2) for number in range(len(completion_ids))]

    found = []
    for gate in (None, 0.5, 2.0):
        torch.manual_seed(0)
        method = TERMS["ease"][1]()
        trainer = make_trainer("grpo", tmp_path, method, rewards=half, max_steps=1, reward_above=gate)
        trainer.train()
        found.append(logs(trainer, "loss_kl_attention")[0][0])
    assert found[2] == 0.0 < found[1] != found[0]


def test_an_adapter_and_an_evaluation(tmp_path):
    from peft import LoraConfig

    config = LoraConfig(r=2, target_modules=r".*language_model.*\.(q_proj|k_proj)")
    for kind, term in (("grpo", "ease"), ("dpo", "margin")):
        trainer = make_trainer(kind, tmp_path, TERMS[term][1](), peft_config=config)
        before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
        trainer.train()
        changed = {name for name, each in trainer.model.named_parameters() if not torch.equal(each, before[name])}
        assert changed
        assert all("lora_" in name for name in changed)
        assert "eval_loss" in trainer.evaluate(trainer.train_dataset)


def test_what_would_do_nothing_is_refused(tmp_path):
    bare = rows().remove_columns("phrases")
    for kind, method in (("grpo", get_method("direct")), ("dpo", AttentionMargin())):
        with pytest.raises(ValueError, match="phrases"):
            make_trainer(kind, tmp_path, method, data=bare)
        with pytest.raises(ValueError, match="remove_unused_columns"):
            make_trainer(kind, tmp_path, method, remove_unused_columns=True)
    with pytest.raises(ValueError, match="num_iterations"):
        make_trainer("grpo", tmp_path, EarlierAttention())
    with pytest.raises(ValueError, match="GroundedDPOTrainer"):
        make_trainer("grpo", tmp_path, AttentionMargin())
    with pytest.raises(ValueError, match="GroundedGRPOTrainer"):
        make_trainer("dpo", tmp_path, EarlierAttention())
    for method, teacher in ((AttentionDistillation([(0, 0)]), None), (AttentionMargin(), make_teacher())):
        with pytest.raises(ValueError, match="teacher"):
            make_trainer("dpo", tmp_path, method, teacher=teacher)
    with pytest.raises(ValueError, match="2 heads, the student 1"):
        make_trainer("dpo", tmp_path, AttentionDistillation([(0, 0)]), teacher=make_teacher())
