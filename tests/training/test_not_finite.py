# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NaN and infinity: training stops before the step, or leaves out exactly that step."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grounded_attention.modeling.finite_numbers import NotFiniteError
from grounded_attention.training.experiments.output import identity
from grounded_attention.training.loop.checkpoint import is_complete
from grounded_attention.training.loop.finite_steps import MAX_NAMED, named, skipped_steps, spread_nan
from grounded_attention.training.loop.grounding_collator import COUNTS, ROW_KEYS
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin
from grounded_attention.training.recipes.recipe import Recipe
from tests.helpers.tiny_trainer import logged, make_trainer, weights
from tests.training.not_finite import ROW, spoil_gradient, spoil_loss

NAN = float("nan")
INF = float("inf")


def trainer_of(folder, skip=False, **arguments):
    fixed = {"per_device_train_batch_size": 4, "max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-3}
    return make_trainer(
        folder, arguments_class=GroundingTrainingArguments, skip_nonfinite_batches=skip, **{**fixed, **arguments}
    )


def batches_of(trainer):
    """The batches of the first epoch, in order."""
    trainer.data_collator.set_epoch(0)
    return [trainer._prepare_inputs(batch) for batch in trainer.get_train_dataloader()]


def step_of_row(folder, together=1):
    """The step in whose batch the row is; another Trainer draws the same order."""
    batches = batches_of(trainer_of(folder))
    number = next(n for n, batch in enumerate(batches) if ROW in batch[ROW_KEYS])
    return number // together + 1, batches[number][ROW_KEYS]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda trainer: spoil_loss(trainer, add=NAN), "loss_identification is nan"),
        (lambda trainer: spoil_loss(trainer, add=INF), "loss_identification is inf"),  # its gradients are finite
        (lambda trainer: spoil_loss(trainer, times=INF, add=0.0), "loss_identification is inf"),
        (lambda trainer: spoil_gradient(trainer, INF), "a gradient is not finite (norm inf), though the loss is"),
        (lambda trainer: spoil_gradient(trainer, NAN), "a gradient is not finite (norm nan), though the loss is"),
    ],
)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_training_stops_before_the_step(tmp_path, spoil, reason, clip):
    step, keys = step_of_row(tmp_path)
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=1, max_grad_norm=clip)
    spoil(trainer)
    with pytest.raises(NotFiniteError) as error:
        trainer.train()
    assert step > 1
    assert f"step {step}: {reason};" in str(error.value)
    assert ", ".join(map(repr, keys)) in str(error.value)
    kept = tmp_path / f"checkpoint-{step - 1}"
    assert f"the last complete checkpoint is {kept}" in str(error.value)
    assert is_complete(kept)
    assert trainer.state.global_step == step - 1
    assert all(torch.isfinite(weight).all() for weight in weights(trainer.model).values())


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("spoil", [spoil_loss, lambda trainer: spoil_gradient(trainer, INF)])
def test_a_skipped_step_is_as_if_it_was_not_there(tmp_path, capsys, spoil, together):
    """Second formulation: a loop over the same batches that passes over those of the step."""
    given = {"skip": True, "gradient_accumulation_steps": together, "max_steps": 4 // together, "logging_steps": 4}
    trainer = trainer_of(tmp_path, **given)
    spoil(trainer)
    trainer.train()
    expected, losses = train_by_hand(trainer_of(tmp_path), together)
    for name, weight in weights(trainer.model).items():
        assert torch.allclose(weight, expected[name], atol=1e-7, rtol=0), name
    step, keys = step_of_row(tmp_path, together)
    skipped = [entry for entry in trainer.state.log_history if "skipped_rows" in entry]
    assert [entry["step"] for entry in skipped] == [step]
    assert set(keys) <= set(skipped[0]["skipped_rows"])
    assert skipped_steps(trainer.state.log_history) == 1
    assert f"warning: step {step} is left out: " in capsys.readouterr().err
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(sum(losses) * together / 4, abs=1e-6)


def test_the_logged_means_are_those_of_the_other_steps(tmp_path):
    trainer = trainer_of(tmp_path, skip=True, logging_steps=4)
    spoil_loss(trainer)
    trainer.train()
    _, losses = train_by_hand(trainer_of(tmp_path), 1)
    (entry,) = logged(trainer)
    assert len(losses) == 3
    assert entry["loss"] == pytest.approx(sum(losses) / 3, abs=1e-6)
    parts = [value for name, value in entry.items() if name.startswith("loss_")]
    assert sum(parts) == pytest.approx(entry["loss"], abs=1e-6)


def train_by_hand(trainer, together):
    """The weights and losses of AdamW over the batches of an epoch, without the steps that contain the row."""
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3, weight_decay=0.0)
    batches = batches_of(trainer)
    losses = []
    for group in (batches[i : i + together] for i in range(0, 4, together)):
        if any(ROW in batch[ROW_KEYS] for batch in group):
            continue
        counts = {name: torch.tensor(sum(float(b[COUNTS][name]) for b in group)) for name in group[0][COUNTS]}
        trainer.model.train()
        total = sum(trainer.compute_loss(trainer.model, batch, num_items_in_batch=counts) for batch in group)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return weights(trainer.model), losses


def test_a_training_that_only_skips_ends(tmp_path):
    trainer = trainer_of(tmp_path, skip=True, max_steps=20)
    spoil_loss(trainer, rows={row["example_id"] for row in trainer.train_dataset})
    with pytest.raises(NotFiniteError, match=r"step 11: .*10 steps before it were left out"):
        trainer.train()


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
    trainer = trainer_of(tmp_path, max_steps=4)
    use_scaler(trainer)
    spoil_gradient(trainer, INF)
    trainer.train()
    assert trainer.state.global_step == 4
    assert not skipped_steps(trainer.state.log_history)
    assert trainer.accelerator.scaler.get_scale() == 8.0  # halved once
    trainer = trainer_of(tmp_path, max_steps=4)
    use_scaler(trainer)
    spoil_loss(trainer)
    with pytest.raises(NotFiniteError, match="loss_identification is nan"):
        trainer.train()


def test_a_scaler_that_finds_no_scale_stops(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=10)
    use_scaler(trainer)
    spoil_gradient(trainer, INF, rows={row["example_id"] for row in trainer.train_dataset})
    with pytest.raises(NotFiniteError, match="step 6: a gradient is not finite"):
        trainer.train()  # 16, 8, 4, 2, 1, and then 0.5


def use_scaler(trainer):
    """The scaler of float16, which accelerate gives to a GPU only, for a training on the CPU."""
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)


def test_a_finite_loss_is_the_same_number_with_the_same_gradient():
    loss = torch.tensor(0.1 + 0.2, requires_grad=True)
    spread = spread_nan(loss)
    spread.backward()
    assert torch.equal(spread, loss)
    assert loss.grad == 1
    loss = torch.tensor(1.0, requires_grad=True)
    spread_nan(loss + INF).backward()
    assert loss.grad.isnan()


def test_a_stopped_run_continues_with_the_key():
    recipe = Recipe(training={"learning_rate": 0.1})
    other = replace(recipe, training={"learning_rate": 0.1, "skip_nonfinite_batches": True})
    assert json.dumps(identity(recipe)) == json.dumps(identity(other))


def test_many_rows_are_cut():
    assert named(["a", "b"]) == "'a', 'b'"
    assert named(["x"] * (MAX_NAMED + 3)).endswith("'x' and 3 more")


@pytest.mark.parametrize(
    ("logs", "told"), [({"loss": 0.5, "grad_norm": 1.0}, 0), ({"loss": 0.5, "grad_norm": NAN}, 1)]
)
def test_a_trainer_of_ones_own_is_told_once_that_training_is_lost(caplog, logs, told):
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
    lines = [each.getMessage() for each in caplog.records if "step 7" in each.getMessage()]
    assert len(lines) == told
    assert all("method direct" in line and "nan" in line for line in lines)
