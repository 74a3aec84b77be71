# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One training three times: by a recipe, with the mixin on a plain Trainer, and in a plain loop."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

from grounded_attention.commands import train
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.training.loop.grounding_collator import COUNTS, GroundingCollator
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin, grounding_loss
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_vlm_examples import make_rows
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.two_processes import run_two
from tests.training.runs import read_json

RATE = 0.1
WEIGHT = 0.5
STEPS = 3
SPLITS = {"one batch": (4, 1), "accumulated": (1, 4)}


class Supervised(GroundingTrainerMixin, Trainer):
    """What users write."""


def conversations():
    """Four rows as people have them; each step reads all, so their order does not count."""
    rows = make_rows()
    for row in rows:
        question = {"role": "user", "content": row.pop("prompt")}
        row["messages"] = [question, {"role": "assistant", "content": row.pop("completion")}]
        row["phrases"] = [{"text": phrase["text"], "boxes": phrase["boxes"]} for phrase in row["phrases"]]
    return rows


def write(folder):
    """A tiny LLaVA, and the rows as files."""
    save_llava(folder / "model")
    (folder / "rows").mkdir()
    lines = []
    for number, row in enumerate(conversations()):
        row.pop("image").save(folder / "rows" / f"{number}.png")
        lines.append(json.dumps({"image": f"{number}.png", **row}) + "\n")
    (folder / "rows/train.jsonl").write_text("".join(lines))
    (folder / "rows/validation.jsonl").write_text(lines[0])


def parts(folder):
    method = get_method("direct")
    model = AutoModelForImageTextToText.from_pretrained(folder / "model").train()
    method.prepare(model)
    return model, PatchGroundingProcessor(AutoProcessor.from_pretrained(folder / "model")), method


RECIPE = """
task: grounded_generation
methods: [direct]
data: {source: FOLDER/rows, builder: llava_instruct, boxes: xyxy 0..1}
model: {family: vlm, source: FOLDER/model, tokenizer: FOLDER/model}
supervision: {weight: 0.5}
training: {max_steps: 3, optim: sgd, learning_rate: 0.1, lr_scheduler_type: constant, max_grad_norm: 0.0,
           logging_steps: 1, save_strategy: 'no', use_cpu: true}
"""


def by_recipe(folder, batch, accumulation):
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)))
    output = folder / f"run_{batch}_{accumulation}"
    sizes = [f"training.per_device_train_batch_size={batch}", f"training.gradient_accumulation_steps={accumulation}"]
    assert train.main([str(path), f"output_dir={output}", *sizes]) == 0
    return logged(read_json(output / "direct/history.json"))


def by_mixin(folder, batch, accumulation):
    model, processor, method = parts(folder)
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
    )
    trainer = Supervised(
        model,
        arguments,
        data_collator=GroundingCollator(processor, method),
        train_dataset=Dataset.from_list(conversations()),
        method=method,
        attention_weight=WEIGHT,
    )
    trainer.train()
    return logged(trainer.state.log_history)


def logged(history):
    found = []
    for entry in history:
        if "loss" in entry:
            found.append({name: entry[name] for name in ("loss", "loss_text_to_region")})
    return found


def by_hand(folder, batch, accumulation):
    model, processor, method = parts(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows = conversations()
    collate = GroundingCollator(processor, method)
    found = []
    for _ in range(STEPS):
        batches = [collate(rows[start : start + batch]) for start in range(0, len(rows), batch)]
        counts = sum((Counter(part[COUNTS]) for part in batches), Counter())
        answers = sum((part["labels"][:, 1:] >= 0).sum() for part in batches)
        total = 0.0
        attention = 0.0
        for part in batches:
            inputs = {name: part[name] for name in ("input_ids", "attention_mask", "pixel_values")}
            outputs = model(**inputs, **method.forward_kwargs(part))
            logits = outputs.logits[:, :-1].flatten(0, 1)
            labels = part["labels"][:, 1:].flatten()
            language = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / answers
            grounding = grounding_loss(method, outputs, part, counts)
            loss = language + WEIGHT * grounding
            loss.backward()
            total += loss.item()
            attention += grounding.item()
        optimizer.step()
        optimizer.zero_grad()
        found.append({"loss": total, "loss_text_to_region": attention})
    return found


WAYS = {"recipe": by_recipe, "mixin": by_mixin, "plain loop": by_hand}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("three_ways")
    write(made)
    return made


@pytest.fixture(scope="module")
def expected(folder):
    return by_hand(folder, 4, 1)


def assert_equal(found, expected):
    assert len(found) == STEPS
    for own, other in zip(found, expected, strict=True):
        assert own == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("way", WAYS)
def test_losses_are_equal(folder, expected, way, split):
    assert_equal(WAYS[way](folder, *SPLITS[split]), expected)


@pytest.mark.parametrize("way", ["recipe", "mixin"])
def test_losses_of_two_processes_are_equal(folder, expected, way):
    run_two("tests.training.test_three_ways", folder, way)
    assert_equal(read_json(folder / f"{way}.json"), expected)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    name = sys.argv[2]
    losses = WAYS[name](place, 1, 2)
    if os.environ["RANK"] == "0":
        (place / f"{name}.json").write_text(json.dumps(losses))
    leave_group()
