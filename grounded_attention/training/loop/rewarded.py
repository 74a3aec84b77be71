# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in TRL's GRPOTrainer and DPOTrainer: rows of responses, read in the pass of log-probabilities.

No second forward pass and no attention map: the model is asked for the rows in the pass that TRL makes. An inference
engine such as vLLM writes the rollouts where TRL uses one; attention is read in the model that is trained alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import DPOTrainer, GRPOTrainer

from grounded_attention.dataset_scripts.rows.chats import row_images
from grounded_attention.modeling.task_losses import Counts
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.distillation import TEACHER, AttentionDistillation
from grounded_attention.supervision.earlier import EARLIER, EarlierAttention
from grounded_attention.supervision.margin import AttentionMargin
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row

from .grounding_collator import GroundingCollator
from .responses import response_batch
from .trainer_mixin import AttentionReports, GroundingTrainerMixin, check_kept_columns, grounding_loss, use_one_gpu

NOTHING = (
    "no response of a row with boxes is supervised; check that `phrases` have boxes that image tokens show, and that "
    "rewards pass reward_above"
)
# entries of a batch: its rows, and their rewards
ROWS = "attention_rows"
REWARDS = "attention_rewards"


@dataclass(frozen=True)
class AttentionTeacher:
    """A model whose attention is handed to a smaller one.

    Args:
        model (`PreTrainedModel`): the model; it is only read.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        method (`AttentionDistillation`): its heads, as many as those of the student.
    """

    model: Any
    processor: Any
    method: AttentionDistillation

    @torch.no_grad()
    def __call__(self, rows: Sequence[Row], answers: Sequence[str], student: Columns) -> Tensor:
        """Where this model looks, when it reads these answers to the rows' prompts, over a student's image tokens."""
        chats = []
        for row, answer in zip(rows, answers, strict=True):
            chats.append({"images": row_images(row), "prompt": row["prompt"], "completion": answer})
        collate = GroundingCollator(self.processor)
        batch = {key: _moved(value, self.model.device) for key, value in collate.collate(chats).items()}
        read = response_batch(collate.processor, batch, rows, "image", most=None)
        inputs = {key: value for key, value in collate.processor.model_inputs(batch).items() if key != "labels"}
        outputs = self.model(**inputs, **self.method.forward_kwargs(read))
        on_device = {key: _moved(value, self.model.device) for key, value in student.items()}
        return self.method.hand_over(outputs, read, on_device).to(student["phrase_regions"].device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return value


class ResponseTerm(GroundingTrainerMixin):
    """Adds the attention loss of a batch's responses to a trainer of TRL; see the classes below."""

    def __init__(
        self,
        *args: Any,
        method: SupervisionMethod,
        attention_weight: float = 1.0,
        most_rows: int | None = 64,
        reward_above: float | None = None,
        teacher: AttentionTeacher | None = None,
        **kwargs: Any,
    ):
        super(GroundingTrainerMixin, self).__init__(*args, **kwargs)
        use_one_gpu(self)
        trainer: Any = self
        self.method = method
        self.attention_weight = attention_weight
        self.most_rows = most_rows
        self.reward_above = reward_above
        self.teacher = teacher
        self.columns: Any = getattr(method, "response_columns", "boxes")
        self.patches: Any = None
        if self.columns != "sequence":
            self.patches = PatchGroundingProcessor(trainer.processing_class)
        check_kept_columns(trainer.args)
        self._check_columns(getattr(trainer.train_dataset, "column_names", None))
        if (teacher is not None) != isinstance(method, AttentionDistillation):
            raise ValueError(f"teacher={teacher!r:.40} with method={method.name!r}: AttentionDistillation needs one")
        if teacher is not None:
            heads = [len(each.get_config_dict()["heads"]) for each in (teacher.method, method)]
            if heads[0] != heads[1]:
                raise ValueError(f"the teacher has {heads[0]} heads, the student {heads[1]}: give both as many")
            teacher.method.prepare(teacher.model.eval())
        if self.columns == "boxes":
            method.empty = NOTHING
        method.prepare(trainer.model)
        self._reports = AttentionReports(trainer.model)
        self._step_counts = None
        self._logged = {}
        self._logged_since = 0

    def _check_columns(self, names: Sequence[str] | None) -> None:
        if self.columns == "boxes" and names is not None and "phrases" not in names:
            raise ValueError(
                f"the rows have the columns {', '.join(names)}, but no phrases with boxes, which {self.method.name!r} "
                "supervises: add the column phrases"
            )

    def count_step(self, batches: Sequence[Any], device: torch.device) -> Counts:
        """Nothing: as TRL's own, the loss is a mean over the micro-batch."""
        return {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss of TRL, and in training the attention loss."""
        trainer: Any = self
        inputs = dict(inputs)
        rows = inputs.pop(ROWS)
        own = {key: inputs.pop(key, None) for key in (REWARDS, EARLIER)}
        passes: list[tuple[Fields, Any]] = []
        training = trainer.model.training and torch.is_grad_enabled()

        def make(model_inputs: Batch) -> Fields:
            rewards = own[REWARDS]
            if rewards is None or self.reward_above is None:
                keep = None
            else:
                keep = rewards > self.reward_above
            batch = self._batch(model_inputs, rows, keep)
            if "advantages" in inputs:
                batch["advantages"] = inputs["advantages"]
            if own[EARLIER] is not None:
                size = (batch["text_positions"].shape[1], batch["region_positions"].shape[1])
                batch[EARLIER] = _padded(own[EARLIER], size).to(model_inputs["labels"].device)
            return batch

        with self._reading(make, lambda *each: passes.append(each), grad=True) if training else nullcontext():
            computed = super(GroundingTrainerMixin, self).compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        if not training:
            return computed
        loss, outputs = computed if return_outputs else (computed, None)
        if len(passes) != 1:
            raise ValueError(f"TRL made {len(passes)} passes with labels, expected 1: give trl 1.15 or newer")
        batch, reports = passes[0]
        if self.teacher is not None:
            labels = batch.pop("labels")
            answers = [trainer.processing_class.tokenizer.decode(each[each >= 0], True) for each in labels]
            batch[TEACHER] = self.teacher(rows, answers, batch)
        added = grounding_loss(self.method, SimpleNamespace(attentions=reports, loss=loss), batch)
        added = added / trainer.current_gradient_accumulation_steps
        self.remember({self.method.name: added.detach() / trainer.accelerator.num_processes})
        scale = self._scale(num_items_in_batch) / trainer.accelerator.num_processes
        loss = loss + self.attention_weight * scale * added
        if return_outputs:
            return (loss, outputs)
        return loss

    def _batch(self, model_inputs: Batch, rows: Sequence[Any], keep: Tensor | None = None) -> Fields:
        batch = response_batch(self.patches, model_inputs, rows, self.columns, self.most_rows, keep)
        batch |= self.method.prepare_batch(batch)
        if self.teacher is None:
            return batch
        return {**batch, "labels": model_inputs["labels"]}

    @contextmanager
    def _reading(
        self, make: Callable[[Columns], Fields | None], use: Callable[..., Any], grad: bool
    ) -> Iterator[None]:
        """Asks for rows in each pass of the model that makes log-probabilities, with or without gradients."""
        trainer: Any = self
        asked: list[Fields] = []

        def ask(module: Any, args: Any, kwargs: Fields) -> Any:
            if kwargs.get("labels") is None or torch.is_grad_enabled() != grad:
                return None
            batch = make(kwargs)
            if batch is None:
                return None
            asked.append(batch)
            self._reports.start(self.method.forward_kwargs(batch))  # type: ignore[union-attr]
            return None

        def take(module: Any, args: Any, output: Any) -> None:
            if asked:
                use(asked.pop(), self._reports.stop())  # type: ignore[union-attr]

        handles = [trainer.model.register_forward_pre_hook(ask, with_kwargs=True)]
        handles.append(trainer.model.register_forward_hook(take))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._reports.stop()  # type: ignore[union-attr]


def _padded(parts: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """Stacks (L, q, k) of responses to (B, L, Q, K)."""
    padded = parts[0].new_zeros(len(parts), len(parts[0]), *size)
    for whole, part in zip(padded, parts, strict=True):
        rows, columns = (min(pair) for pair in zip(part.shape[1:], size, strict=True))
        whole[:, :rows, :columns] = part[:, :rows, :columns]
    return padded


class GroundedGRPOTrainer(ResponseTerm, GRPOTrainer):
    """TRL's GRPOTrainer with an attention loss on the tokens of the rollouts.

    The loss of TRL stays as it is; the attention loss of each micro-batch is its mean over supervised rows, and is
    added times `attention_weight`. It is logged as `loss_` and the name of the method.

    Args:
        *args: arguments of `GRPOTrainer`.
        method (`SupervisionMethod`): a method that supervises attention with the boxes of rows' `phrases`, such as
            `get_method("kl_attention", rows="words", target="mixture", spread=0.25, background=0.1)` (EASE),
            [`EarlierAttention`] (RAL), or [`AttentionDistillation`].
        attention_weight (`float`, *optional*, defaults to `1.0`): weight of the attention loss.
        most_rows (`int`, *optional*, defaults to 64): see [`response_batch`].
        reward_above (`float`, *optional*): only rollouts with a larger weighted reward are supervised; all by default.
        teacher ([`AttentionTeacher`], *optional*): the larger model of [`AttentionDistillation`].
        **kwargs: arguments of `GRPOTrainer`; `args` have `remove_unused_columns=False`.

    Raises:
        ValueError: if rows have no phrases, the method has no effect, or the model cannot be supervised.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if isinstance(self.method, AttentionMargin):
            raise ValueError("AttentionMargin compares pairs of responses: use GroundedDPOTrainer")
        config: Any = self.args
        each = config.steps_per_generation * self.num_iterations
        if isinstance(self.method, EarlierAttention) and config.gradient_accumulation_steps % each == 0:
            raise ValueError(
                "each rollout is used in one step, so its earlier attention is the present one, and their divergence "
                "0: give num_iterations=2, or a larger steps_per_generation"
            )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        return rewards

    def _generate_and_score_completions(self, inputs: list[Fields]) -> Fields:
        rows = [dict(row) for row in inputs]
        place = 0
        earlier = list[Tensor]()
        model: Any = self.model

        def make(model_inputs: Batch) -> Fields | None:
            nonlocal place
            chunk = rows[place : place + len(model_inputs["labels"])]
            place += len(model_inputs["labels"])
            # those after all rows are of a reference
            if chunk:
                return self._batch(model_inputs, chunk)
            return None

        def keep(batch: Fields, reports: Any) -> None:
            outputs = SimpleNamespace(attentions=reports)
            earlier.extend(self.method.read(outputs, batch).unbind())  # type: ignore[attr-defined]

        reads = isinstance(self.method, EarlierAttention) and model.training
        with self._reading(make, keep, grad=False) if reads else nullcontext():
            output = super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(rows)
        output |= {ROWS: rows, REWARDS: self._rewards[first : first + len(rows)]}
        if reads:
            return {**output, EARLIER: earlier}
        return output


class GroundedDPOTrainer(ResponseTerm, DPOTrainer):
    """TRL's DPOTrainer with an attention loss on the tokens of chosen and rejected responses.

    Args:
        *args: arguments of `DPOTrainer`.
        method (`SupervisionMethod`): [`AttentionMargin`], [`AttentionDistillation`], or a method that supervises
            attention with the boxes of rows' `phrases`, which teaches the chosen responses alone.
        attention_weight, most_rows, teacher: see [`GroundedGRPOTrainer`].
        **kwargs: arguments of `DPOTrainer`; `args` have `remove_unused_columns=False`.

    Raises:
        ValueError: if rows have no phrases or images, the method has no effect, or the model cannot be supervised.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if isinstance(self.method, EarlierAttention) or self.reward_above is not None:
            raise ValueError("pairs have no rewards and advantages: use GroundedGRPOTrainer")
        collate = self.data_collator

        def with_rows(rows: list[Fields]) -> Fields:
            kept = [dict(row) for row in rows]  # TRL changes the rows
            return {**collate(rows), ROWS: [*kept, *kept]}

        self.data_collator = with_rows

    def _batch(self, model_inputs: Batch, rows: Sequence[Any], keep: Tensor | None = None) -> Fields:
        chosen = torch.arange(len(rows)) < len(rows) // 2
        pairs = isinstance(self.method, AttentionMargin | AttentionDistillation)
        return super()._batch(model_inputs, rows, None if pairs else chosen)
