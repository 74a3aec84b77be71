# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One training three times: with the Trainer of recipes, with the mixin on a plain Trainer, and in a plain loop."""

import json
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import COUNTS, GroundingCollator
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin, grounding_loss
from grounded_attention.utils.process_group import leave_group
from tests.helpers.tiny_vlm_examples import make_rows
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor
from tests.helpers.two_processes import run_two

RATE, WEIGHT, STEPS = 0.1, 0.5, 3
SPLITS = {"one batch": (4, 1), "accumulated": (1, 4)}


class Supervised(GroundingTrainerMixin, Trainer):
    """What users write."""


class CountingCollator(GroundingCollator):
    """Counts the answers' tokens too, as the collator of a task does."""

    def counts(self, batch):
        return {each.name: each.count(batch) for each in TASKS["grounded_generation"].losses} | super().counts(batch)


def parts():
    processor, method = PatchGroundingProcessor(make_processor("llava")), get_method("direct")
    model = make_model("llava", processor.tokenizer).train()
    method.prepare(model)
    return model, processor, method


def by_trainer(way: str, folder: Path, batch: int, accumulation: int) -> list[dict[str, float]]:
    model, processor, method = parts()
    fixed = {"max_steps": STEPS, "optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant"}
    fixed |= {"max_grad_norm": 0.0, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True}
    fixed |= {"disable_tqdm": True, "remove_unused_columns": False, "label_names": []}
    sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    given = {"train_dataset": Dataset.from_list(make_rows()), "method": method, "attention_weight": WEIGHT}
    arguments, task = TrainingArguments(str(folder), **fixed, **sizes), TASKS["grounded_generation"]
    if way == "recipe":
        collate = CountingCollator(processor, method)
        trainer = GroundingTrainer(model, arguments, data_collator=collate, task=task, metrics=list, **given)
    else:
        trainer = Supervised(model, arguments, data_collator=GroundingCollator(processor, method), **given)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{name: entry[name] for name in ("loss", "loss_text_to_region")} for entry in logs]


def by_hand(batch: int, accumulation: int) -> list[dict[str, float]]:
    model, processor, method = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows, collate, found = make_rows(), GroundingCollator(processor, method), []
    for _ in range(STEPS):
        batches = [collate(rows[i * batch : (i + 1) * batch]) for i in range(accumulation)]
        counts = {name: sum(each[COUNTS][name] for each in batches) for name in batches[0][COUNTS]}
        answers, total, attention = sum((each["labels"][:, 1:] >= 0).sum() for each in batches), 0.0, 0.0
        for each in batches:
            inputs = {name: each[name] for name in ("input_ids", "attention_mask", "pixel_values")}
            outputs = model(**inputs, **method.forward_kwargs(each))
            words = outputs.logits[:, :-1].flatten(0, 1), each["labels"][:, 1:].flatten()
            own = grounding_loss(method, outputs, each, counts)
            loss = torch.nn.functional.cross_entropy(*words, reduction="sum") / answers + WEIGHT * own
            loss.backward()
            total, attention = total + loss.item(), attention + own.item()
        optimizer.step()
        optimizer.zero_grad()
        found.append({"loss": total, "loss_text_to_region": attention})
    return found


@pytest.fixture(scope="module")
def expected():
    return by_hand(4, 1)


def assert_equal(found, expected):
    assert len(found) == STEPS
    for own, other in zip(found, expected, strict=True):
        assert own == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("way", ["recipe", "mixin", "plain loop"])
def test_losses_are_equal(tmp_path, expected, way, split):
    batch, accumulation = SPLITS[split]
    found = by_hand(batch, accumulation) if way == "plain loop" else by_trainer(way, tmp_path, batch, accumulation)
    assert_equal(found, expected)


def test_losses_of_two_processes_are_equal(tmp_path, expected):
    run_two("tests.training.test_three_ways", tmp_path)
    for way in ("recipe", "mixin"):
        assert_equal(json.loads((tmp_path / f"{way}.json").read_text()), expected)


if __name__ == "__main__":
    for each in ("recipe", "mixin"):
        logged = by_trainer(each, Path(sys.argv[1]), 1, 2)
        if torch.distributed.get_rank() == 0:
            Path(sys.argv[1], f"{each}.json").write_text(json.dumps(logged))
    leave_group()
