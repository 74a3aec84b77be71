# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NaN and infinity: training stops before the step."""

from types import SimpleNamespace

import pytest
import torch

from grounded_attention.modeling.finite_numbers import NotFiniteError
from grounded_attention.training.loop.checkpoint import is_complete
from grounded_attention.training.loop.finite_steps import MAX_NAMED, named, spread_nan
from grounded_attention.training.loop.grounding_collator import ROW_KEYS
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin
from tests.helpers.tiny_trainer import make_trainer, weights
from tests.training.not_finite import ROW, spoil_gradient, spoil_loss
from tests.training.runs import assert_words

NAN = float("nan")
INF = float("inf")


def trainer_of(folder, **arguments):
    fixed = {"per_device_train_batch_size": 4, "max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-3}
    return make_trainer(folder, arguments_class=GroundingTrainingArguments, **{**fixed, **arguments})


def step_of_row(folder):
    """The step in whose batch the row is, and the rows of the batch; another Trainer draws the same order."""
    trainer = trainer_of(folder)
    trainer.data_collator.set_epoch(0)
    for number, batch in enumerate(trainer.get_train_dataloader(), 1):
        keys = trainer._prepare_inputs(batch)[ROW_KEYS]
        if ROW in keys:
            return number, keys


@pytest.mark.parametrize(
    "spoil, options, reason",
    [
        (spoil_loss, {"add": NAN}, "loss_identification is nan"),
        (spoil_loss, {"add": INF}, "loss_identification is inf"),  # its gradients are finite
        (spoil_loss, {"times": INF, "add": 0.0}, "loss_identification is inf"),
        (spoil_gradient, {"value": INF}, "a gradient is not finite (norm inf), though the loss is"),
        (spoil_gradient, {"value": NAN}, "a gradient is not finite (norm nan), though the loss is"),
    ],
)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_training_stops_before_the_step(tmp_path, spoil, options, reason, clip):
    step, keys = step_of_row(tmp_path)
    assert step > 1
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_grad_norm=clip)
    spoil(trainer, **options)
    with pytest.raises(NotFiniteError) as error:
        trainer.train()
    kept = tmp_path / f"checkpoint-{step - 1}"
    rows = ", ".join(map(repr, keys))
    assert_words(str(error.value), f"step {step}: {reason}; ... {rows} ... the last complete checkpoint is {kept}")
    assert is_complete(kept)
    assert trainer.state.global_step == step - 1
    assert all(torch.isfinite(weight).all() for weight in weights(trainer.model).values())


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_steps=3, save_total_limit=1)
    plain = trainer.save_model

    def save(*arguments, **options):
        if trainer.state.global_step == 2:
            next(trainer.model.parameters()).data.view(-1)[0] = INF
        plain(*arguments, **options)

    trainer.save_model = save
    with pytest.raises(NotFiniteError, match=r"step 2: the weight \S+ contains NaN or infinity, so the model is not"):
        trainer.train()
    assert is_complete(tmp_path / "checkpoint-1")
    assert not (tmp_path / "checkpoint-2").exists()


def test_the_scaler_of_float16_may_look_for_its_scale(tmp_path):
    """A gradient that is too large for float16 is no reason to stop; a loss that is not finite is one."""
    trainer = with_scaler(tmp_path)
    spoil_gradient(trainer, INF)
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.accelerator.scaler.get_scale() == 8.0  # halved once
    trainer = with_scaler(tmp_path)
    spoil_loss(trainer)
    with pytest.raises(NotFiniteError, match="loss_identification is nan"):
        trainer.train()


def test_a_scaler_that_finds_no_scale_stops(tmp_path):
    trainer = with_scaler(tmp_path, max_steps=10)
    spoil_gradient(trainer, INF, rows={row["example_id"] for row in trainer.train_dataset})
    with pytest.raises(NotFiniteError, match="step 6: a gradient is not finite"):
        trainer.train()  # 16, 8, 4, 2, 1, and then 0.5


def with_scaler(folder, **arguments):
    """A Trainer with the scaler of float16, which accelerate gives to a GPU only."""
    trainer = trainer_of(folder, **arguments)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    return trainer


def test_a_finite_loss_is_the_same_number_with_the_same_gradient():
    loss = torch.tensor(0.1 + 0.2, requires_grad=True)
    spread = spread_nan(loss)
    spread.backward()
    assert torch.equal(spread, loss)
    assert loss.grad == 1
    loss = torch.tensor(1.0, requires_grad=True)
    spread_nan(loss + INF).backward()
    assert loss.grad.isnan()


def test_many_rows_are_cut():
    assert named(["a", "b"]) == "'a', 'b'"
    assert named(["x"] * (MAX_NAMED + 3)).endswith("'x' and 3 more")


@pytest.mark.parametrize(
    "logs, warnings", [({"loss": 0.5, "grad_norm": 1.0}, 0), ({"loss": 0.5, "grad_norm": NAN}, 1)]
)
def test_a_trainer_of_ones_own_warns_once_that_training_is_lost(caplog, logs, warnings):
    """transformers leaves a NaN out of the loss that it logs, and trains on."""

    class Logs:
        def log(self, logs):
            self.kept = logs

    class Mixed(GroundingTrainerMixin, Logs):
        pass

    trainer = Mixed.__new__(Mixed)
    trainer.method = SimpleNamespace(name="direct")
    trainer.state = SimpleNamespace(global_step=7)
    trainer.accelerator = SimpleNamespace(reduce=lambda values, reduction: values)
    for _ in range(3):
        trainer._logged = {"text_to_region": torch.tensor(logs["grad_norm"])}
        trainer._logged_since = 6
        trainer.log(logs)
    lines = [record.getMessage() for record in caplog.records if "step 7" in record.getMessage()]
    assert len(lines) == warnings
    assert all("method direct" in line and "nan" in line for line in lines)
