# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A model whose configuration has `return_dict: false` is trained and measured as any other."""

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.analysis.relevancy import ReadOut, region_maps
from grounded_attention.heads.reading import get_observer
from grounded_attention.modeling import VisualGroundingPipeline
from grounded_attention.supervision import supervise
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.phrase_attention import phrase_attention
from tests.helpers.tiny_pipeline import example
from tests.helpers.tiny_trainer import logged, make_method, make_trainer
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table
from tests.training.preserve_steps import preserving_trainer, save_start


def batch_of(rows=3):
    table = tiny_table(4)
    collator = Collator(TASKS["vgp"], tiny_processor(), table, method=make_method("direct"))
    return dict(collator(list(tiny_rows(table))[:rows]))


def given(batch):
    return {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}


def attended(model):
    batch = batch_of()
    phrases = {name: batch[name] for name in ("phrase_mask", "region_candidate_mask")}
    return {"attention": phrase_attention(model.eval(), given(batch) | phrases, layer=1)}


def observed(model):
    batch = batch_of()
    target = make_method("direct").targets(batch)["text_to_region"]
    found = get_observer(model.eval()).observe(given(batch), {"text_to_region": (target.rows, target.columns)})
    return {"text_to_region": found["text_to_region"][0]}


def identified(outputs, inputs):
    scores = outputs.identification_logits
    return ReadOut(scores.max(-1).values.sum(), torch.zeros(len(scores), dtype=torch.int64))


def relevancy(model):
    return region_maps(model.eval(), given(batch_of()), identified)


def pipeline(model):
    found = VisualGroundingPipeline(model=model.eval(), processor=tiny_processor(), device="cpu")(example())
    return {one["text"]: torch.tensor(one["score"]) for one in found}


def losses(trainer):
    return [entry["loss"] for entry in logged(trainer)]


@pytest.mark.parametrize("measure", [attended, observed, relevancy, pipeline])
def test_a_measure_is_the_same(measure):
    named, tuples = (measure(tiny_model(return_dict=wanted)) for wanted in (True, False))
    assert named.keys() == tuples.keys()
    for name, value in named.items():
        assert_close(tuples[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["indirect", "semi_direct"])
def test_a_training_is_the_same(tmp_path, method):
    found = []
    for return_dict in (True, False):
        model = tiny_model(return_dict=return_dict, **make_method(method).model_config)
        trainer = make_trainer(tmp_path / str(return_dict), method, model, max_steps=2)
        trainer.train()
        assert trainer.model.config.return_dict is return_dict
        with supervise(model):
            found.append((losses(trainer), trainer.measure(trainer.eval_dataset)))
    assert found[0] == found[1]


def test_a_training_that_preserves_its_start_is_the_same(tmp_path):
    save_start(tmp_path)
    found = []
    for wanted in (True, False):
        trainer = preserving_trainer(tmp_path / str(wanted), tmp_path, max_steps=2)
        for model in (trainer.model, trainer.preservation.start):
            model.config.return_dict = wanted
        trainer.train()
        found.append(losses(trainer))
    assert found[0] == found[1]
