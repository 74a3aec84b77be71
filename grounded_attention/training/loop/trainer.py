# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Trainer: task losses plus attention supervision with exact counts, and streaming evaluation."""

import difflib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import datasets
import huggingface_hub
import torch
import transformers
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler, Subset
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, TRAINING_ARGS_NAME, PrinterCallback
from transformers.trainer_callback import ProgressCallback

from grounded_attention.families import find_family
from grounded_attention.metrics.item_scores import interleave
from grounded_attention.modeling.finite_numbers import finite_outputs
from grounded_attention.pages.figures import HEADS
from grounded_attention.processing.grounded_batch import describe_cut
from grounded_attention.supervision.supervise import unwrap_model
from grounded_attention.tasks import Metric, Task
from grounded_attention.training.publish.hub import HubPush
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.progress import is_quiet, with_progress

from .checkpoint import load_unlogged, rotate, save_step, save_unlogged, seal
from .data import CUT_ROWS, LENGTH, Collator, LengthSampler, count_components
from .finite_steps import FiniteTrainer, spread_nan
from .grounding_collator import COUNTS
from .preserve import Preservation
from .trainer_mixin import GroundingTrainerMixin, logger, merged_state

MAPPING = "learning_rate_mapping"
# Parts that DataParallel, torch.compile, FSDP and activation checkpointing add to the names of weights.
WRAPPERS = re.compile(r"(?<![^.])(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def map_learning_rates(optimizer: Optimizer, model: nn.Module, mapping: Mapping[str, float]) -> None:
    """Moves the weights that a pattern matches to a new parameter group, which differs only in its learning rate."""
    named = [(WRAPPERS.sub("", name), weight) for name, weight in model.named_parameters()]
    patterns = {}
    for name, weight in named:
        patterns[id(weight)] = next((pattern for pattern in mapping if re.search(pattern, name)), None)
    taken = set()
    for group in list(optimizer.param_groups):
        for pattern, rate in mapping.items():
            own = [weight for weight in group["params"] if patterns.get(id(weight)) == pattern]
            if own:
                group["params"] = [weight for weight in group["params"] if patterns.get(id(weight)) != pattern]
                optimizer.add_param_group({**group, "params": own, "lr": rate})
                taken.add(pattern)
    for pattern in mapping:
        if pattern not in taken:
            _refuse(pattern, [name for name, weight in named if weight.requires_grad])


def _refuse(pattern: str, names: list[str]) -> None:
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
    raise RecipeError(
        f"training.{MAPPING}: {pattern!r} matches no trained weight, or an earlier pattern matches them all; the "
        f"nearest name is {close[0]!r}"
    )


class TrainingBar(ProgressCallback):
    """The bar of transformers, with the name of the run and its losses; of the logs it prints those of evaluations."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description(args.run_name)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if any(name.startswith("eval_") for name in logs):
            super().on_log(args, state, control, logs, **kwargs)
        elif self.training_bar is not None and "loss" in logs:  # the log at the end has times and no loss
            # The components are not weighted, so that methods can be compared; their sum with weights cannot.
            parts = {name[5:]: value for name, value in logs.items() if name.startswith("loss_")}
            self.training_bar.set_postfix(parts or {"loss": logs["loss"]}, refresh=False)


def plain_bars(quiet: bool) -> None:
    """Disables the progress bars of libraries if nothing shall show progress."""
    if quiet or is_quiet():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()


@dataclass
class GroundingTrainingArguments(TrainingArguments):
    """`TrainingArguments` and what this package adds to them."""

    learning_rate_mapping: dict[str, float] | None = None
    refuse_long_texts: bool = False


class GroundingTrainer(GroundingTrainerMixin, FiniteTrainer):
    """Trains the model of a task with a supervision method (equation 9) and logs every loss component.

    Each component is a sum and a count. The count covers all micro-batches of the step and all processes, so gradient
    accumulation and several processes give the loss and gradients of one large batch, also with ragged batches. With
    several processes each loss is multiplied by their number, because gradients are averaged over processes.

    Args:
        task (`Task`): the task.
        metrics (`Callable[[], list[Metric]]`): function that makes the streaming metrics of one evaluation.
        preservation (`Preservation`, *optional*): losses that keep the model close to its start model.
        hub (`HubPush`, *optional*): pushes saved checkpoints to the Hub; the Trainer's own push omits the code.
        **kwargs: `method`, `attention_weight` and arguments of the Trainer, see [`GroundingTrainerMixin`].
    """

    hides_attentions = False

    def __init__(
        self,
        *args,
        task: Task,
        metrics: Callable[[], list[Metric]],
        preservation: Preservation | None = None,
        hub: HubPush | None = None,
        **kwargs,
    ):
        kwargs.setdefault("callbacks", []).append(_Continuation(self, kwargs["data_collator"]))
        super().__init__(*args, **kwargs)
        for callback in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback):
            self.remove_callback(callback)
        if not self.args.disable_tqdm:
            self.add_callback(TrainingBar)
        self.task = task
        self.metrics = metrics
        self.preservation = preservation
        self.hub = hub
        # The loss is divided by the counts of the whole step. Older transformers read the second attribute.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = True
        self._resumed_from: str | None = None
        self._cut: Fields = {}  # rows whose text was cut, not named so far

    def train(self, *args, **kwargs):
        """Like `Trainer.train`.

        A training that is continued from a checkpoint ends with the same weights and logs as one without a stop, on a
        GPU with `full_determinism`.
        """
        self._resumed_from = args[0] if args else kwargs.get("resume_from_checkpoint")
        outcome = super().train(*args, **kwargs)
        self._name_cut_rows()
        return outcome

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.gradient_accumulation_steps = 1  # or it divides gradients too (transformers 5.4)
        if self.args.fsdp and self.accelerator.num_processes > 1:
            plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            prepare_sharding(self.accelerator, plugin, cast(torch.nn.Module, self.model))
            self.is_fsdp_enabled = True

    def _run_epoch(self, *args, **kwargs):
        """One epoch, unless the checkpoint was that of the last step; transformers would train one more step."""
        if self._resumed_from is None or self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)
        self._load_rng_state(self._resumed_from)
        self.control.should_training_stop = True

    # Data

    def _get_train_sampler(self, train_dataset=None) -> Sampler | None:
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(rows)
        together = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        if self.args.data_seed is None:
            seed = self.args.seed
        else:
            seed = self.args.data_seed
        return LengthSampler(rows.with_format("arrow")[LENGTH].to_numpy(), together, seed)

    def _prepare_inputs(self, inputs):
        """Takes the names of rows whose text was cut out of a batch."""
        cut = inputs.pop(CUT_ROWS, None)
        if cut:
            self._cut |= cut
            if getattr(self.args, "refuse_long_texts", False):
                raise ValueError(f"training.refuse_long_texts: {describe_cut(cut)}: shorten these texts")
        return super()._prepare_inputs(inputs)

    def _name_cut_rows(self) -> None:
        all_cut = {}
        for part in gather_object([self._cut]):
            for row, cut in part.items():
                all_cut[row] = cut
        if all_cut and self.is_world_process_zero():
            logger.warning(f"{describe_cut(all_cut)}; training.refuse_long_texts=true would stop there")
        self._cut = {}

    # Learning rates

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        known = self.optimizer is not None
        optimizer = super().create_optimizer(model)
        mapping = getattr(self.args, MAPPING, None)
        if mapping and not known:
            map_learning_rates(optimizer, cast(torch.nn.Module, self.model if model is None else model), mapping)
        return optimizer

    # Losses

    def counts(self, batch: Batch) -> Fields:
        """Loss component of the task, the method and the preservation -> number of terms in its sum."""
        if COUNTS in batch:
            counts = batch[COUNTS]
        else:
            counts = count_components(self.task, self.method, batch)
        if self.preservation is None:
            return counts
        return counts | self.preservation.counts(batch)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        """Component -> its count in the step; `compute_loss` gets it."""
        return self.count_step(batch_samples, device) or None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Total loss (equation 9): the sum of each component over this micro-batch, over its count in the step."""
        outputs = self.run_model(model, inputs)
        counts = num_items_in_batch or self.count_step([inputs], self.args.device)
        parts = self.components(outputs, inputs)
        loss = self.add_up(parts, counts, model.training) * self.accelerator.num_processes
        if model.training:
            loss = spread_nan(loss)
        if return_outputs:
            return (loss, outputs)
        return loss

    def run_model(self, model, inputs: Batch) -> Any:
        """One forward pass with the arguments of the task and of the supervision method."""
        names = (*self.task.model_inputs, *(self.task.targets if model.training else ()))
        model_inputs = {name: inputs[name] for name in names if name in inputs}
        kept = {} if self.preservation is None else self.preservation.forward_kwargs
        # A loss of the task may ask for hidden states too.
        return model(**{**model_inputs, **self.method.forward_kwargs(inputs), **kept}, return_dict=True)

    def components(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, float]]:
        """Name -> (sum, weight) of every loss component of the batch; a weight is 0 until the component begins."""
        counted = self.counts(batch)
        parts = {}
        for each in self.task.losses:
            if each.name in counted:
                begun = self.state.global_step >= each.begin * self.state.max_steps
                parts[each.name] = (each.total(outputs, batch), each.weight if begun else 0.0)
        parts |= super().components(outputs, batch)
        if self.preservation is None:
            return parts
        return parts | self.preservation.losses(outputs, batch)

    # Logs

    def remember(self, means: Mapping[str, Tensor]) -> None:
        self._means = dict(means)
        super().remember(means)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, in the end the mean loss over all steps, not only over those since a resume."""
        if "train_loss" in logs:
            logs = {**logs, "train_loss": self._total_loss_scalar / max(self.state.global_step, 1)}
        super().log(logs, start_time)

    def continue_from_checkpoint(self) -> None:
        """Takes unlogged losses from the checkpoint; deletes checkpoints that a kill left half-deleted."""
        if self._resumed_from is None:
            return
        if self.args.should_save:
            run_dir = Path(cast(str, self.args.output_dir))
            best = self.state.best_model_checkpoint
            rotate(run_dir, self.args.save_total_limit, self.state.global_step, best)
        load_unlogged(self, Path(self._resumed_from))

    # Evaluation

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Computes the metrics of the task on a split in a stream; logs and returns `<prefix>_<metric>`."""
        numbers = self.measure(eval_dataset if eval_dataset is not None else self.eval_dataset)
        scalars = {f"{metric_key_prefix}_{k}": v for k, v in numbers.items() if isinstance(v, int | float)}
        self.log(scalars)
        if HEADS in numbers and metric_key_prefix == "eval":  # no scalar; kept in the logs, for pictures
            self.state.log_history.append({"step": self.state.global_step, HEADS: numbers[HEADS]})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scalars)
        return scalars

    def measure(self, dataset: Any, description: str = "evaluate") -> Fields:
        """Computes all numbers of the metrics on a data set; each example counts once with any number of processes."""
        return self.measure_items(dataset, description)[0]

    @torch.no_grad()
    def measure_items(self, dataset: Any, description: str, regions: Any = None) -> tuple[Fields, dict[str, list]]:
        """Like `measure`; also the scores of single examples.

        Args:
            dataset (`Any`): the rows.
            description (`str`): name of the work in its bar.
            regions (`Any`, *optional*): a region table that replaces the one of training.

        Returns:
            `tuple[dict[str, Any], dict[str, list]]`: the numbers; one column for each score of examples, in the order
            of the data set (`grounded_attention.metrics.item_scores`), empty if no metric keeps them.
        """
        model = cast(torch.nn.Module, self.model)
        metrics = self.metrics()
        rank = self.accelerator.process_index
        world = self.accelerator.num_processes
        share = Subset(dataset, range(rank, len(dataset), world))
        collator = cast(Collator, self.data_collator).evaluating(dataset, regions, metrics)
        loader = DataLoader(
            share, self.args.eval_batch_size, collate_fn=collator, num_workers=self.args.dataloader_num_workers
        )
        model.eval()
        quiet = rank > 0 or bool(self.args.disable_tqdm)
        with without_autocast(model):
            for batch in with_progress(loader, f"{self.args.run_name}: {description}", quiet=quiet):
                batch = self._prepare_inputs(batch)
                model_inputs = {name: batch[name] for name in self.task.model_inputs if name in batch}
                extra = {key: value for metric in metrics for key, value in metric.forward_kwargs(batch).items()}
                outputs = finite_outputs(model(**model_inputs, **extra, return_dict=True))
                tokenizer = getattr(self.processing_class, "tokenizer", None)
                batch = {**batch, **self.task.generate(model, tokenizer, batch)}
                for metric in metrics:
                    metric.update(outputs, batch)
            self._keep_pace(model, loader, collator, dataset)
        self._name_cut_rows()
        numbers = {key: value for metric in metrics for key, value in metric.compute(merged_state(metric)).items()}
        items: dict[str, list] = {}
        for metric in metrics:
            items |= metric.items() if hasattr(metric, "items") else {}
        return numbers, interleave(gather_object([items]))

    def _keep_pace(self, model: torch.nn.Module, loader: DataLoader, collator: Collator, dataset: Any) -> None:
        """Runs the batches that the first process has more than this one: all processes gather sharded weights."""
        if self.is_fsdp_enabled:
            share = -(-len(dataset) // self.accelerator.num_processes)
            batch = self._prepare_inputs(collator([dataset[0]]))
            for _ in range(-(-share // self.args.eval_batch_size) - len(loader)):
                model(**{name: batch[name] for name in self.task.model_inputs if name in batch})

    # Checkpoints

    def _save(self, output_dir=None, state_dict=None):
        """
        Saves without `training_args.bin`, which is a pickle; `recipe.json` contains the same values. Beside an adapter
        of a family's model is the configuration of the model, because its heads are not those of the checkpoint.
        """
        name_plainly(self.accelerator.unwrap_model(self.model))
        super()._save(output_dir, state_dict)
        folder = Path(cast(str, output_dir or self.args.output_dir))
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        model = unwrap_model(self.model)
        if model is not self.model and find_family(model.config.model_type) is not None:
            model.config.save_pretrained(folder)

    def _save_checkpoint(self, model, trial):
        """Saves, seals and pushes, then deletes older checkpoints, so a complete checkpoint exists at all times."""
        run_dir = Path(self._get_output_dir(trial=trial))
        checkpoint = run_dir / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            shutil.rmtree(checkpoint, ignore_errors=True)  # of a killed run, perhaps with other files
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        save_unlogged(self, checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            save_step(self, checkpoint)
            seal(checkpoint)
            if self.hub is not None and self.is_world_process_zero():
                self.hub.save(checkpoint)
            rotate(run_dir, limit, self.state.global_step, self.state.best_model_checkpoint)


class _Continuation(TrainerCallback):
    """Sets the epoch of the collator, and continues the logs of a checkpoint."""

    def __init__(self, trainer: GroundingTrainer, collator: Collator):
        self.trainer = trainer
        self.collator = collator

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.continue_from_checkpoint()

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.collator.set_epoch(int(state.epoch or 0))


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """Removes the autocast that Accelerate puts around the `forward` of a model in training. So the numbers at the end
    of a training are those of its checkpoint, which is loaded without autocast. FlashAttention keeps it.
    """
    plain = model.__dict__.get("_original_forward")
    wrapped = model.__dict__.get("forward")
    if plain is None or wrapped is None or _needs_half(model):
        yield
        return
    model.forward = plain
    try:
        yield
    finally:
        model.forward = wrapped


def _needs_half(model: nn.Module) -> bool:
    parts = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    names = {str(config._attn_implementation).removeprefix("supervised_") for config in parts}
    return not names <= {"sdpa", "eager", "flex_attention", "None"}


def prepare_sharding(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin, model: nn.Module) -> None:
    """Makes accelerate shard the weights, before the model is prepared.

    accelerate shards over GPUs only and ignores the settings otherwise; sharding over CPU processes works too. It
    makes a unit of the word embeddings, so no other unit may contain them.
    """
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Every new `AcceleratorState` copies the type from `PartialState`.
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    if accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap is None:
        accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = unit_names(model)


def unit_names(model: nn.Module) -> list[str]:
    """The classes of the modules whose weights are gathered together: those in the model that must not be split,
    without the one that contains the word embeddings."""
    units = set(getattr(model, "_no_split_modules", None) or ()) & {type(each).__name__ for each in model.modules()}
    words = model.get_input_embeddings()  # type: ignore[operator]
    holders = set()
    for module in model.modules():
        if any(each is words for each in module.modules()):
            holders.add(type(module).__name__)
    return sorted(units - holders)


def name_plainly(model: nn.Module) -> None:
    """Gives the class of a sharded model the names of the class that it extends; any other model stays as it is.

    `save_pretrained` copies the file of the class and writes its name into the configuration.
    """
    sharded = type(model)
    if issubclass(sharded, FSDPModule):
        plain = next(each for each in sharded.__mro__ if not issubclass(each, FSDPModule))
        sharded.__module__ = plain.__module__
        sharded.__name__ = plain.__name__
