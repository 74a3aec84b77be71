# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A text that is longer than the model reads is cut, counted and named; it ends no training and no measurement."""

import logging
from dataclasses import replace

import pytest

from grounded_attention.heads.measure import audit
from grounded_attention.training.experiments.models import fit_tokenizer
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert
from tests.helpers.tiny_trainer import make_trainer


def long_row(row, index):
    """The first caption of row 3 has 900 words and a phrase at its end."""
    if index != 3:
        return row
    text = row["captions"][0] + " a c" * 450
    phrase = {**row["phrases"][0], "start": len(text) - 3, "end": len(text), "text": "a c"}
    return {**row, "captions": [text, row["captions"][1]], "phrases": [phrase, *row["phrases"]], "phrase_pairs": []}


def trainer_of(folder, **arguments):
    trainer = make_trainer(folder, arguments_class=GroundingTrainingArguments, num_train_epochs=1, **arguments)
    trainer.train_dataset = trainer.train_dataset.map(long_row, with_indices=True)
    fit_tokenizer(trainer.model, trainer.data_collator.processor)
    return trainer


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_cuts_and_names_the_row(tmp_path, caplog, workers):
    trainer = trainer_of(tmp_path, dataloader_num_workers=workers)
    with caplog.at_level(logging.WARNING):
        trainer.train()
        trainer.measure(trainer.train_dataset)
    warnings = [record.getMessage() for record in caplog.records if "1 texts are too long" in record.getMessage()]
    assert len(warnings) == 2  # of the training, and of the measurement
    assert all(trainer.train_dataset[3]["example_id"] in line and "'a c'" in line for line in warnings)


def test_a_long_text_is_refused_on_request(tmp_path):
    trainer = trainer_of(tmp_path, refuse_long_texts=True)
    with pytest.raises(ValueError, match=f"refuse_long_texts: .*{trainer.train_dataset[3]['example_id']}"):
        trainer.train()


def test_heads_are_measured_with_a_long_caption(caplog):
    regions = make_regions()
    model = vl_bert()
    first, *others = make_examples(regions)
    long = replace(first, caption=first.caption + " a c" * 900)
    with caplog.at_level(logging.WARNING):
        table = audit(model, processor_of(model), [long, *others], regions, progress=False)
    plain = audit(model, processor_of(model), [first, *others], regions, progress=False)
    assert table.about["phrases"]["judged"] == plain.about["phrases"]["judged"]
    assert [first.image_id in record.getMessage() for record in caplog.records if "too long" in record.getMessage()]
