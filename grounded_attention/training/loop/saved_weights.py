# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Takes all weights of a checkpoint, or none: a key that does not fit is an error.

transformers saves many vision-language models under the names of older versions. Its Trainer reads such a checkpoint
by the names of today and leaves every weight as it is, with a warning.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from grounded_attention.training.recipes.recipe import RecipeError


class SavedWeights:
    """Makes a Trainer that resumes, or loads its best model at the end, take the weights that were saved.

    Raises:
        RecipeError: if the checkpoint lacks a weight, or has one of another name or shape; it names the first.
    """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self._take(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        if not self._take(Path(self.state.best_model_checkpoint)):  # type: ignore[attr-defined]
            super()._load_best_model()  # type: ignore[misc]

    def _take(self, checkpoint: Path) -> bool:
        """Takes the weights of a whole model. Those of adapters are compared; PEFT, FSDP or the Trainer takes them."""
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        self._checkpoint = checkpoint
        if trainer.is_fsdp_enabled:
            return False
        if hasattr(model, "active_adapters") and hasattr(model, "peft_config"):
            self._compare_adapter(model)
        if not isinstance(model, PreTrainedModel):
            return False
        types, loading = {weight.dtype for weight in model.parameters()}, cast(Any, type(model)).from_pretrained
        loaded, found = loading(
            checkpoint,
            config=model.config,
            dtype=torch.float64 if torch.float64 in types else torch.float32,  # holds the values of all types
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        self._refuse(found["missing_keys"], found["unexpected_keys"], {each[0] for each in found["mismatched_keys"]})
        model.load_state_dict(loaded.state_dict())
        return True

    def _compare_adapter(self, model: Any) -> None:
        from peft import get_peft_model_state_dict, load_peft_weights

        name = model.active_adapters[0]
        folder = self._checkpoint if name == "default" else self._checkpoint / name
        saved, own = load_peft_weights(str(folder), "cpu"), get_peft_model_state_dict(model, adapter_name=name)
        other = {key for key in own.keys() & saved.keys() if own[key].shape != saved[key].shape}
        self._refuse(own.keys() - saved.keys(), saved.keys() - own.keys(), other)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Called by the Trainer for models that are neither of transformers nor of PEFT."""
        self._refuse(load_result.missing_keys, load_result.unexpected_keys, ())

    def _refuse(self, missing: Collection[str], unknown: Collection[str], other: Collection[str]) -> None:
        kinds = {"lacks": missing, "has, but the model has not,": unknown, "has in another shape": other}
        lines = [f"{verb} {min(keys)} ({len(keys)} in all)" for verb, keys in kinds.items() if keys]
        if lines:
            raise RecipeError(
                f"{self._checkpoint}: the checkpoint {'; it '.join(lines)}: it is of another model than the one "
                "that is trained; continue with the model that was saved"
            )
