# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in a training loop of your own, in any Trainer of transformers, and what it reports."""

import logging
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback

from grounded_attention.heads.attention_grounding import AttentionGrounding, summarise
from grounded_attention.modeling.task_losses import Counts
from grounded_attention.processing.patch_grounding import GROUNDING_KEYS
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.attention_function import SupervisedAttention
from grounded_attention.supervision.method import TARGETS
from grounded_attention.supervision.supervise import find_language_model
from grounded_attention.utils.named_types import Batch, Columns, Fields

from .checkpoint import SavedWeights
from .grounding_collator import COUNTS, ROW_KEYS, GroundingCollator

logger = logging.getLogger(__name__)

# Entries of a batch that are not inputs of the model.
OWN_KEYS = (*GROUNDING_KEYS, TARGETS, COUNTS, ROW_KEYS)
# Options of TRL's SFTConfig -> the values with which a GroundingCollator does what TRL says.
KEPT_OPTIONS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("packing", "eval_packing", "padding_free", "shuffle_dataset", "pad_token"), (None, False)),
    **{"completion_only_loss": (None, True), "pad_to_multiple_of": (None, "auto")},
    **{"dataset_text_field": ("text",), "truncation_mode": ("keep_start",)},
}


def grounding_loss(method: SupervisionMethod, outputs: Any, batch: Batch, counts: Columns | None = None) -> Tensor:
    """Computes the attention loss of a batch, to add to the loss of the task.

    Args:
        method (`SupervisionMethod`): the supervision method; `method.prepare(model)` was called once.
        outputs (`ModelOutput`): outputs of the model, run with `**method.forward_kwargs(batch)`.
        batch (`Mapping[str, Any]`): a batch of [`PatchGroundingProcessor`] or [`GroundingCollator`].
        counts (`Mapping[str, Any]`, *optional*): component -> the sum of `method.counts` over all micro-batches and
            processes of the step. The losses of its batches then add up to that of one large batch. By default the
            counts of this batch.

    Returns:
        `Tensor`: () with a graph; 0 if nothing is grounded.
    """
    if counts is None:
        counts = method.counts(batch)
    losses = method.losses(outputs, batch)
    return sum((_mean(total, counts[name]) for name, (total, _) in losses.items()), start=torch.zeros(()))


def _mean(total: Tensor, count: Any) -> Tensor:
    return total / torch.as_tensor(count).to(total).clamp(min=1)


class AttentionReports:
    """Asks the layers of a model for attention, and keeps their reports, also where a Trainer drops what it does not
    know: arguments of the forward pass, or `attentions` of the outputs."""

    def __init__(self, model: nn.Module):
        self._found: list[SupervisedAttention] | None = None
        self._request: Fields = {}
        language_model = find_language_model(model)
        language_model.register_forward_pre_hook(self._ask, with_kwargs=True)
        for module in language_model.modules():
            if hasattr(module, "layer_idx"):
                module.register_forward_hook(self._collect)

    def _ask(self, module: nn.Module, args: Any, kwargs: Fields) -> tuple[Any, Fields]:
        return args, {**kwargs, **self._request}

    def _collect(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._found is not None and isinstance(output, tuple):
            self._found.extend(each for each in output if isinstance(each, SupervisedAttention))

    def start(self, request: Columns) -> None:
        """Asks and collects from now on. Gradient checkpointing runs layers again later, when nothing is collected.

        Args:
            request (`Mapping[str, Any]`): `forward_kwargs` of a method or a metric.
        """
        self._found = []
        self._request = {name: value for name, value in request.items() if name != "output_attentions"}

    def stop(self) -> tuple[SupervisedAttention, ...]:
        """Stops, and returns the reports in the order of the layers."""
        reports, self._found = tuple(self._found or ()), None
        self._request = {}
        return reports


def check_kept_columns(arguments: Any) -> None:
    """Checks that batches get the columns of the rows that only this package reads."""
    if arguments.remove_unused_columns:
        raise ValueError("the Trainer drops the column phrases: give remove_unused_columns=False to its arguments")


class GroundingTrainerMixin(SavedWeights):
    """Adds attention supervision to a Trainer: `class MyTrainer(GroundingTrainerMixin, SFTTrainer): ...`.

    The loss of the Trainer stays as it is; the attention loss is added to it. It is divided by the number of grounded
    rows of all micro-batches and processes of the step, so accumulation gives the loss of one large batch. It is
    logged as `loss_<direction>`. In an evaluation each batch is divided by its own number, so `eval_loss` is a mean of
    batches, as in transformers.

    Args:
        *args: arguments of the Trainer.
        method (`SupervisionMethod`): the supervision method, see [`get_method`].
        attention_weight (`float`, *optional*, defaults to `1.0`): weight of the attention loss.
        **kwargs: arguments of the Trainer: `data_collator` is a [`GroundingCollator`], and `args` have
            `remove_unused_columns=False`.

    Options of an `SFTConfig` that do not reach the collator are refused; `max_length` cuts the ends of sequences.

    Raises:
        ValueError: if there is no collator, the Trainer would drop the columns of phrases, an option has no effect,
            or the model cannot be supervised.
    """

    # Whether the Trainer drops the `attentions` of the outputs, so that hooks read the reports.
    hides_attentions = True
    # Whether the user gives the collator; a Trainer of somebody else makes its own.
    needs_collator = True
    _told_lost = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        before = cls.__mro__[: cls.__mro__.index(GroundingTrainerMixin)]
        trainers = []
        for each in before:
            if hasattr(each, "train") and not issubclass(each, GroundingTrainerMixin):
                trainers.append(each)
        if trainers:
            name = trainers[0].__name__
            raise ValueError(f"give the mixin first: class {cls.__name__}(GroundingTrainerMixin, {name})")

    def __init__(self, *args: Any, method: SupervisionMethod, attention_weight: float = 1.0, **kwargs: Any):
        if self.needs_collator and kwargs.get("data_collator") is None and len(args) < 3:
            raise ValueError("the batches have no phrases: give data_collator=GroundingCollator(processor)")
        config: Any = getattr(kwargs.get("args", args[1] if len(args) > 1 else None), "accelerator_config", None)
        if getattr(config, "dispatch_batches", False) is None:
            config.dispatch_batches = False  # the default for streams sends parts of batches, which have lists too
        super().__init__(*args, **kwargs)
        use_one_gpu(self)
        trainer: Any = self
        check_kept_columns(trainer.args)
        self._check_options(trainer)
        method.prepare(trainer.model)
        self.method = method
        self.attention_weight = attention_weight
        self._reports = AttentionReports(trainer.model) if self.hides_attentions else None
        self._step_counts: Counts | None = None
        self._logged: dict[str, Tensor] = {}
        self._logged_since = 0

    @staticmethod
    def _check_options(trainer: Any) -> None:
        """Gives the collator `max_length`, and refuses options that do not reach it."""
        for name, kept in KEPT_OPTIONS.items():
            chosen = getattr(trainer.args, name, kept[0])
            if chosen not in kept:
                raise ValueError(
                    f"{name}={chosen!r} has no effect on the batches of a GroundingCollator, whose labels are those "
                    f"of the assistant's texts: give {' or '.join(f'{name}={value!r}' for value in kept)}"
                )
        collator = trainer.data_collator
        length = getattr(trainer.args, "max_length", None)
        default = getattr(type(trainer.args), "__dataclass_fields__", {}).get("max_length")
        is_default = default is not None and length == default.default
        changed = [name for name in ("chat_template_path", "eos_token") if getattr(trainer.args, name, None)]
        if isinstance(collator, GroundingCollator):
            collator.max_length = length
            collator.keeps_images = is_default
            if changed and trainer.processing_class is not collator.processor.processor:
                raise ValueError(f"{changed[0]}: give GroundingCollator the processor that is processing_class")
        elif changed or (length is not None and not is_default):
            name = changed[0] if changed else f"max_length={length}"
            raise ValueError(f"{name} does not reach {type(collator).__name__}: give the GroundingCollator itself")

    # Counts

    def counts(self, batch: Batch) -> Columns:
        """Loss component -> number of terms in its sum; of the collator, if it has counted."""
        if COUNTS in batch:
            return batch[COUNTS]
        return self.method.counts(batch)

    def count_step(self, batches: Sequence[Batch], device: torch.device) -> Counts:
        """Component -> its count over the micro-batches of all processes, () float64."""
        counts = [self.counts(batch) for batch in batches]
        if not counts or not counts[0]:
            return {}
        sums = []
        for name in counts[0]:
            sums.append(sum(count[name] for count in counts))
        totals = torch.stack([torch.as_tensor(total, dtype=torch.float64, device=device) for total in sums])
        totals = self.accelerator.reduce(totals, reduction="sum")  # type: ignore[attr-defined]
        return dict(zip(counts[0], totals.unbind(), strict=True))

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        """Also counts the terms of the step."""
        self._step_counts = self.count_step(batch_samples, device)
        return super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]

    # Losses

    def components(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, float]]:
        """Name -> (sum, weight) of every loss component of the batch that is divided by its count."""
        losses = self.method.losses(outputs, batch)
        return {name: (total, self.attention_weight) for name, (total, _) in losses.items()}

    def add_up(self, parts: Mapping[str, tuple[Tensor, float]], counts: Columns, training: bool) -> Any:
        """The weighted sum of the components, each divided by its count; in training they are logged."""
        means = {name: _mean(total, counts[name]) for name, (total, _) in parts.items()}
        if training:
            self.remember({name: value.detach() for name, value in means.items()})
        return sum(weight * means[name] for name, (_, weight) in parts.items())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of the Trainer, and the attention loss."""
        own = {name: value for name, value in inputs.items() if name in OWN_KEYS}
        model_inputs = {name: value for name, value in inputs.items() if name not in OWN_KEYS}
        if "phrase_mask" not in own:
            raise ValueError("the batch has no phrases: give data_collator=GroundingCollator(processor)")
        batch = {**own, "attention_mask": model_inputs["attention_mask"]}
        collected: Any = self._reports
        collected.start(self.method.forward_kwargs(batch))
        try:
            computed = super().compute_loss(  # type: ignore[misc]
                model, model_inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        finally:
            reports = collected.stop()
        loss, outputs = computed if return_outputs else (computed, None)
        training = self.model.training  # type: ignore[attr-defined]
        counts = self._step_counts if training and self._step_counts else self.counts(batch)
        parts = self.components(SimpleNamespace(attentions=reports, loss=loss), batch)
        added = self.add_up(parts, counts, training)
        loss = loss + (added * self._scale(num_items_in_batch) if training else added)
        if return_outputs:
            return (loss, outputs)
        return loss

    def _scale(self, num_items_in_batch: Any) -> int:
        """What undoes the Trainer's division by processes, and by the accumulated batches unless it counts items."""
        trainer: Any = self
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            divided = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = divided or trainer.compute_loss_func is not None
        return trainer.accelerator.num_processes * (1 if scaled else trainer.current_gradient_accumulation_steps)

    # Logs

    def remember(self, means: Mapping[str, Tensor]) -> None:
        """Adds the loss components of a micro-batch to those of the next log."""
        if not self._logged:
            self._logged_since = self.state.global_step  # type: ignore[attr-defined]
        for name, value in means.items():
            self._logged[name] = self._logged[name] + value if name in self._logged else value

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds `loss_<component>`, the mean over the steps since the last log."""
        trainer: Any = self
        if "loss" in logs and self._logged:
            totals = trainer.accelerator.reduce(torch.stack(list(self._logged.values())), reduction="sum")
            values = (totals / max(1, trainer.state.global_step - self._logged_since)).tolist()
            logs = {**logs, **{f"loss_{name}": value for name, value in zip(self._logged, values, strict=True)}}
            self._logged = {}
            self._tell_lost(logs)
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _tell_lost(self, logs: Mapping[str, float]) -> None:
        """Says once that training has diverged; the Trainer itself leaves a NaN out of the loss that it logs."""
        trainer: Any = self
        lost = []
        for name in logs:
            if name.startswith(("loss", "grad_norm")) and not math.isfinite(logs[name]):
                lost.append(name)
        if lost and not self._told_lost:
            self._told_lost = True
            logger.warning(
                f"method {self.method.name}: {lost[-1]} is {logs[lost[-1]]} by step {trainer.state.global_step}, and "
                "the weights may be lost: stop, lower the learning rate, and go on from an earlier checkpoint"
            )


def use_one_gpu(trainer: Any) -> None:
    """Lets a Trainer use one of several GPUs, and tells how all are used.

    For one process and several GPUs the Trainer takes `torch.nn.DataParallel`, which multiplies the batch by the
    number of GPUs, and cannot gather the attention that a supervised model reports.
    """
    count = trainer.args.n_gpu
    if count > 1:
        trainer.args._n_gpu = 1
        trainer._train_batch_size = trainer.args.train_batch_size
        logger.warning(
            f"one process trains on one of the {count} GPUs; to use all, start one process for each: "
            f"accelerate launch --multi_gpu --num_processes {count} train.py RECIPE"
        )


# Entries of batches that trainers of others take out before a forward pass, and labels, which it does not need.
NOT_READ = {*OWN_KEYS, "labels", "loss_scale", "text_position_ids", "channel", "compute_loss_func"}


class HeadReport(TrainerCallback):
    """Prints at each evaluation how often the best head looks at the right place, with the number of words and chance.

    The metrics of the evaluation get `eval_best_head`, `eval_best_head_chance` (in [0, 1]) and `eval_head_words`. The
    head is the best one on the same rows. Batches must have grounding: those of a [`GroundingCollator`].

    Example:
        >>> from grounded_attention import HeadReport  # trainer = MyTrainer(..., callbacks=[HeadReport()])
    """

    def __init__(self) -> None:
        self._reports: AttentionReports | None = None

    @torch.no_grad()
    def on_evaluate(
        self, args: Any, state: Any, control: Any, model: Any = None, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Measures all heads on the rows of the evaluation."""
        if self._reports is None:
            self._reports = AttentionReports(model)
        metric = AttentionGrounding(rollout=False)
        was_training = model.training
        model.eval()
        for batch in eval_dataloader:
            if "phrase_mask" not in batch:  # of an evaluation that generates answers
                continue
            batch = {**batch, **metric.prepare_batch(batch)}
            self._reports.start(metric.forward_kwargs(batch))
            try:
                model(**{name: value for name, value in batch.items() if name not in NOT_READ})
            finally:
                reports = self._reports.stop()
            metric.update(SimpleNamespace(attentions=reports), batch)
        model.train(was_training)
        merged = merged_state(metric)
        words = 0
        if merged:
            numbers = metric.compute(merged)
            words = numbers["text_to_region_tokens"]
        if not words:
            if state.is_world_process_zero:
                print("heads: no word of the evaluation's rows is grounded, so none is reported")
            return
        best = summarise(numbers, numbers)
        layer, head = best["head"]
        named = {"best_head": best["best_head"], "best_head_chance": best["chance"], "head_words": words}
        kwargs.get("metrics", {}).update({f"eval_{name}": value for name, value in named.items()})
        if state.is_world_process_zero:
            share = f"{best['best_head']:.1%} of {words} words"
            print(
                f"step {state.global_step}: best head right for {share} ({layer}-{head}; chance {best['chance']:.1%})"
            )


def merged_state(metric: Any) -> Fields:
    """The state of a metric, summed over processes; a process without examples adds nothing."""
    merged: Fields = {}
    for state in gather_object([{k: v.cpu() if isinstance(v, Tensor) else v for k, v in metric.state().items()}]):
        for key, value in state.items():
            merged[key] = merged[key] + value if key in merged else value
    return merged
