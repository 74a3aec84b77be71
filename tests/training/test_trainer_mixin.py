# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in other Trainers: one step equals a step by hand, however the rows are accumulated."""

import re

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from grounded_attention.processing.grounded_batch import DroppedPhrase
from grounded_attention.supervision import get_method
from grounded_attention.supervision import method as method_file
from grounded_attention.tasks.grounded_generation import region_word_loss
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin, HeadReport, grounding_loss
from tests.helpers.tiny_trainer import weights
from tests.helpers.tiny_vlm_examples import make_rows
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import ANSWERERS, make_processor, wrap
from tests.training.runs import changed_names

RATE = 0.1
WEIGHT = 0.5


BASES = {"transformers": (Trainer, TrainingArguments), "trl": (SFTTrainer, SFTConfig)}
ARGUMENTS = {
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "optim": "sgd",
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "remove_unused_columns": False,
    "seed": 3,
    "bf16": False,
}


def make_trainer(name, directory, method=None, rows=None, collator=None, peft_config=None, **given):
    base, arguments = BASES[name]
    kind = type("Supervised", (GroundingTrainerMixin, base), {})
    processor = make_processor("llava")
    method = method or get_method("direct")
    extra = {"processing_class": processor, "peft_config": peft_config} if name == "trl" else {}
    return kind(
        make_model("llava", processor.tokenizer),
        arguments(str(directory), **{**ARGUMENTS, **given}),
        train_dataset=Dataset.from_list(rows or make_rows()),
        data_collator=collator or GroundingCollator(processor, method),
        method=method,
        attention_weight=WEIGHT,
        **extra,
    )


def forward(model, method, batch):
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    return model(**inputs, **method.forward_kwargs(batch))


def prepared(method):
    processor = make_processor("llava")
    model = make_model("llava", processor.tokenizer).train()
    method.prepare(model)
    return model, GroundingCollator(processor)


def step_by_hand():
    """The weights after one step of gradient descent on all rows, and the attention loss."""
    method = get_method("direct")
    model, collate = prepared(method)
    batch = collate(make_rows())
    outputs = forward(model, method, batch)
    labels = batch["labels"][:, 1:]
    shares = outputs.logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    language = -(shares * (labels >= 0)).sum() / (labels >= 0).sum()
    attention = grounding_loss(method, outputs, batch)
    (language + WEIGHT * attention).backward()
    stepped = {}
    for name, weight in model.named_parameters():
        gradient = 0.0 if weight.grad is None else weight.grad
        stepped[name] = weight.detach() - RATE * gradient
    return stepped, attention.item()


def assert_stepped(trainer, expected):
    for key, weight in trainer.model.named_parameters():
        assert_close(weight.detach(), expected[key], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("name", ["transformers", "trl"])
def test_a_step_is_that_by_hand(tmp_path, name, batches):
    """The rows of a step are one batch, or several with unlike numbers of tokens and of phrases."""
    expected, attention = step_by_hand()
    sizes = {"per_device_train_batch_size": 4 // batches, "gradient_accumulation_steps": batches}
    trainer = make_trainer(name, tmp_path, **sizes)
    trainer.train()
    assert trainer.state.log_history[0]["loss_text_to_region"] == pytest.approx(attention, rel=1e-4)
    assert_stepped(trainer, expected)


@pytest.mark.parametrize("name", ["transformers", "trl"])
def test_checkpointing_changes_nothing_and_evaluation_works(tmp_path, name):
    expected, _ = step_by_hand()
    trainer = make_trainer(name, tmp_path, gradient_checkpointing=True)
    trainer.train()
    assert_stepped(trainer, expected)
    assert trainer.evaluate(trainer.train_dataset)["eval_loss"] > 0


def test_an_adapter_of_trl_is_supervised(tmp_path):
    config = LoraConfig(r=2, target_modules=r".*language_model.*\.(q_proj|k_proj)", init_lora_weights=False)
    trainer = make_trainer("trl", tmp_path, peft_config=config)
    before = weights(trainer.model)
    trainer.train()
    changed = changed_names(weights(trainer.model), before)
    assert changed
    assert all("lora_" in name for name in changed)


def test_re_entrant_checkpointing_is_refused(tmp_path):
    checkpointing = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    trainer = make_trainer("transformers", tmp_path, **checkpointing)
    with pytest.raises(ValueError, match="re-entrant"):
        trainer.train()


def test_a_direction_that_sees_nothing_is_refused(tmp_path):
    method = get_method("direct", directions=["region_to_text"])
    trainer = make_trainer("transformers", tmp_path, method, per_device_train_batch_size=1, max_steps=20)
    with pytest.raises(ValueError, match="region_to_text: no supervised layer lets these rows see"):
        trainer.train()


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="remove_unused_columns=False"):
        make_trainer("transformers", tmp_path, remove_unused_columns=True)
    trainer = make_trainer("transformers", tmp_path)
    with pytest.raises(ValueError, match=r"no phrases: give data_collator=GroundingCollator"):
        trainer.compute_loss(trainer.model, {"input_ids": torch.zeros(1, 1, dtype=torch.long)})
    kind = type("Supervised", (GroundingTrainerMixin, Trainer), {})
    with pytest.raises(ValueError, match="data_collator=GroundingCollator"):
        kind(torch.nn.Linear(1, 1), TrainingArguments(str(tmp_path), use_cpu=True), method=get_method("direct"))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"phrases": [{"text": "a horse", "boxes": []}]}, "row 0 of the batch, phrase 0: the phrase 'a horse' is"),
        ({"phrases": [{"text": "is", "boxes": []}], "completion": "is"}, "2 times in the texts: give sentence"),
        ({"completion": None}, "row 0 of the batch has the columns .*; expected messages, or prompt and completion"),
        ({"video": ["clip.mp4"]}, "row 0 of the batch has a video"),
        ({"prompt": None, "messages": [{"role": "assistant", "content": "a dog"}]}, "row 0 of the batch has images"),
    ],
)
def test_wrong_rows(change, message):
    with pytest.raises(ValueError, match=message):
        GroundingCollator(make_processor("llava"))([{**make_rows()[0], **change}])


@pytest.mark.parametrize("model_type", ANSWERERS)
def test_what_has_two_sequences_is_not_cut_or_read_as_one(model_type):
    processor = make_processor(model_type)
    collate = GroundingCollator(wrap(processor, model_type))
    batch = collate(make_rows())
    with pytest.raises(ValueError, match="which this model has not"):
        region_word_loss(None, batch)
    collate.max_length = batch["decoder_input_ids"].shape[1] - 1
    with pytest.raises(ValueError, match=f"max_length={collate.max_length}"):
        collate(make_rows())


def test_a_largest_length_cuts_the_ends_of_sequences():
    """The tokens, labels and phrases of a cut batch are those before the cut, without the last ones."""
    collate = GroundingCollator(make_processor("llava"))
    whole = collate(make_rows())
    length = whole["input_ids"].shape[1] - 4  # the second row loses "red balls" and its end
    collate.max_length = length
    collate.processor.tokenizer.padding_side = "left"
    batch = collate(make_rows())
    assert collate.processor.tokenizer.padding_side == "left"
    assert length != batch["text_positions"].shape[1]
    for name in ("input_ids", "labels", "attention_mask", "region_positions"):
        assert torch.equal(batch[name], whole[name][:, :length]), name
    for places, old in zip(batch["text_positions"].tolist(), whole["text_positions"].tolist(), strict=True):
        kept = [place for place in old if 0 <= place < length]
        assert [place for place in places if place >= 0] == kept
    assert batch["dropped_phrases"] == [[], [DroppedPhrase(1, "red", "truncated")], [], []]
    assert not batch["phrase_mask"][1, 1].any()
    assert not batch["phrase_regions"][1, 1].any()
    assert torch.equal(batch["phrase_mask"][0].sum(1), whole["phrase_mask"][0].sum(1))
    collate.max_length = 10
    with pytest.raises(ValueError, match=r"row 0 of the batch has .* max_length=10"):
        collate(make_rows())
    collate.keeps_images = True
    assert torch.equal(collate(make_rows())["input_ids"], whole["input_ids"])


@pytest.mark.parametrize(
    "option, value",
    [
        ("completion_only_loss", False),
        ("pad_to_multiple_of", 8),
        ("shuffle_dataset", True),
        ("packing", True),
        ("dataset_text_field", "words"),
        ("padding_free", True),
        ("eval_packing", True),
        ("truncation_mode", "keep_end"),
    ],
)
def test_options_of_trl_that_do_not_reach_the_collator_are_refused(tmp_path, option, value):
    with pytest.raises(ValueError, match=option.replace("padding_free", "[Pp]adding.free")):
        make_trainer("trl", tmp_path, **{option: value})


def test_options_of_trl_that_do_are_taken(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(make_processor("llava").chat_template)
    taken = {"completion_only_loss": True, "max_length": 40, "eos_token": "</s>"}
    trainer = make_trainer("trl", tmp_path / "a", **taken)
    assert trainer.data_collator.max_length == 40
    assert not trainer.data_collator.keeps_images
    assert make_trainer("trl", tmp_path / "b").data_collator.keeps_images  # TRL's default refuses no images


def test_a_largest_length_does_not_get_lost_in_a_wrapped_collator(tmp_path):
    collator = GroundingCollator(make_processor("llava"))
    with pytest.raises(ValueError, match="max_length=10 does not reach function"):
        make_trainer("trl", tmp_path, collator=lambda rows: collator(rows), max_length=10)


@pytest.mark.parametrize("key", ["bbox", "bboxes", "box", "txt"])
def test_a_misspelt_key_of_a_phrase_names_the_nearest_one(key):
    row = make_rows()[0]
    nearest = {"txt": "text"}.get(key, "boxes")
    row["phrases"] = [{**row["phrases"][0], nearest: None, key: [[0.1, 0.1, 0.9, 0.9]]}]
    with pytest.raises(ValueError, match=f"row 0 of the batch, phrase 0: '{key}'.*'{nearest}'"):
        GroundingCollator(make_processor("llava"))([row])


UNSEEN = [
    {"role": "user", "content": [{"type": "text", "text": "a small cat"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
]


@pytest.mark.parametrize("way", ["trainer", "own loop"])
@pytest.mark.parametrize(
    "change, warning",
    [
        ({"prompt": None, "completion": None, "messages": UNSEEN}, "put images before the words"),
        ({"phrases": [{"text": "small cat", "boxes": []}]}, "phrases with boxes"),
        ({}, None),
    ],
    ids=["pictures after the words", "no boxes", "right rows"],
)
def test_supervision_of_nothing_speaks_up(tmp_path, monkeypatch, change, warning, way):
    row = {**make_rows()[0], **change}
    lines = []
    monkeypatch.setattr(method_file.logger, "warning", lines.append)
    if way == "trainer":
        make_trainer("transformers", tmp_path, rows=[row] * 4, max_steps=3).train()
    else:
        method = get_method("direct")
        model, collate = prepared(method)
        for _ in range(3):
            batch = collate([row])
            grounding_loss(method, forward(model, method, batch), batch)
    if warning is None:
        assert lines == []
    else:
        (line,) = lines
        assert warning in line


def test_a_report_of_heads_equals_the_audit_of_the_same_rows(tmp_path, capsys):
    """At each evaluation one line; its number is that of the best head by eager maps."""
    processor = make_processor("llava")
    model = make_model("llava", processor.tokenizer)
    collate = GroundingCollator(processor)
    kind = type("Taught", (GroundingTrainerMixin, Trainer), {})
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, remove_unused_columns=False, report_to="none", per_device_eval_batch_size=2
    )
    trainer = kind(
        model=model, args=arguments, data_collator=collate, eval_dataset=make_rows(), method=get_method("direct"),
        callbacks=[HeadReport()],
    )  # fmt: skip
    numbers = trainer.evaluate()
    printed = capsys.readouterr().out
    found = re.search(r"best head right for ([\d.]+)% of (\d+) words \((\d+)-(\d+); chance", printed)
    share, words, layer, head = (float(each) for each in found.groups())
    right = []
    batch = collate(make_rows())
    model.set_attn_implementation("eager")
    maps = model(**collate.processor.model_inputs(batch), output_attentions=True).attentions
    # (B, T, K): the image tokens of the phrases that a word is in
    gold = batch["phrase_mask"].float().transpose(1, 2) @ (batch["phrase_regions"] > 0).float()
    for row, place in gold.any(2).nonzero().tolist():
        position = batch["text_positions"][row, place]
        attention = maps[int(layer)][row, int(head), position, batch["region_positions"][row]]
        best = attention.masked_fill(~batch["region_candidate_mask"][row], -1.0).argmax()
        right.append(bool(gold[row, place, best]))
    assert words == len(right) == numbers["eval_head_words"]
    assert share == pytest.approx(100 * sum(right) / len(right), abs=0.06)
    assert numbers["eval_best_head"] == pytest.approx(sum(right) / len(right))
