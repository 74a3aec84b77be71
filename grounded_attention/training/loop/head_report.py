# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How often the best head looks at the right place, printed at each evaluation of any Trainer."""

from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from grounded_attention.heads.attention_grounding import AttentionGrounding, summarise
from grounded_attention.utils.named_types import Fields

from .trainer_mixin import OWN_KEYS, AttentionReports

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
