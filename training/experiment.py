# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a recipe: data, a shared start, every supervision method from it, and what they are worth."""

import inspect
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, set_seed

from attention_supervision import get_method, supervised_implementation
from evaluation.attention_grounding import AttentionGrounding, summarise
from tasks import TASKS, Task

from .checkpoint import is_complete, last_complete_checkpoint, seal
from .data import Collator
from .recipe import Model, Recipe, RecipeError, blame, check_names
from .setup import (
    Prepared,
    check_model,
    check_training,
    check_width,
    make_model,
    make_processor,
    prepare_data,
    training_arguments,
)
from .trainer import GroundingTrainer

TEXT_ONLY = "text_only"


@dataclass(frozen=True)
class Outcome:
    """A finished run: the content of `results.json` (`methods` by name, `baselines`, the recipe) and the data."""

    results: dict[str, Any]
    data: Prepared


def run(recipe: Recipe) -> Outcome:
    """Trains and evaluates what the recipe names; writes everything below `output_dir`.

    Raises:
        RecipeError: a recipe that can't run as written, an output directory of another recipe.
    """
    check(recipe)
    output = _open_output(recipe)
    task = TASKS[recipe.task]
    say(f"data: {recipe.data.data_dir}")
    data = prepare_data(task, recipe.data, recipe.seed)
    _check_grounding(recipe, data)
    processor = make_processor(recipe.model)
    source = _shared_start(recipe, output, processor)
    names = list(recipe.methods) + ([TEXT_ONLY] if recipe.text_only_baseline else [])
    results = {}
    for name in names:
        say(f"method: {name}")
        results[name] = _train_method(name, replace(recipe, model=source), task, data, processor, output / name)
    return Outcome(_gather(recipe, results, output), data)


def check(recipe: Recipe) -> None:
    """Refuses what would fail later: unknown names and options, a method that needs grounding without regions."""
    for kind, name, known in [
        ("task", recipe.task, TASKS),
        *(("start.task", s.task, TASKS) for s in [recipe.start] if s),
    ]:
        if name not in known:
            raise RecipeError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
    if recipe.start is not None:
        parameters = inspect.signature(TASKS[recipe.start.task].collate).parameters.values()
        check_names(recipe.start.options, [p.name for p in parameters if p.kind is p.KEYWORD_ONLY], "start.options.")
        check_training(recipe.start.training, "start.training.")
    check_model(recipe.model)
    check_training(recipe.training, "training.")
    if not recipe.output_dir:
        raise RecipeError("output_dir is empty: say where the run's files go")
    for name in recipe.methods:
        with blame(f"methods, supervision.options.{name}"):
            method = get_method(name, **recipe.supervision.options.get(name, {}))
        if method.needs_grounding and recipe.data.regions is None:
            raise RecipeError(
                f"method {name!r} supervises attention on regions, but data.regions is null: "
                "give a region table, or use method 'none'"
            )


def _check_grounding(recipe: Recipe, data: Prepared) -> None:
    """Refuses methods that need grounding where no training row has any."""
    needing = [name for name in recipe.methods if get_method(name).needs_grounding]
    rows = data.splits["train"]
    if needing and not any(phrase["boxes"] for phrases in rows["phrases"] for phrase in phrases):
        raise RecipeError(
            f"method {needing[0]!r} needs grounding, but no phrase of the {len(rows)} training rows in "
            f"{recipe.data.data_dir} has a box: give data with boxes, or use method 'none'"
        )


def say(message: str) -> None:
    """A line on the terminal, from the main process alone."""
    if PartialState().is_main_process:
        print(message, flush=True)


def _open_output(recipe: Recipe) -> Path:
    """The output directory, empty or holding an unfinished run of the same recipe."""
    output, state = Path(recipe.output_dir), PartialState()
    wanted = json.loads(json.dumps(_identity(recipe)))
    found = _read_json(output / "recipe.json")
    if found is not None and not recipe.overwrite:
        if found != wanted:
            keys = ", ".join(sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k)))
            raise RecipeError(
                f"{output} holds a run of another recipe (they differ in: {keys}): "
                "give another output_dir, or overwrite=true to delete it"
            )
        if not recipe.resume:
            raise RecipeError(
                f"{output} holds a run of this recipe: resume=true continues it, overwrite=true restarts"
            )
    state.wait_for_everyone()
    if state.is_main_process:
        if recipe.overwrite:
            shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "recipe.json", wanted)
    state.wait_for_everyone()
    return output


def _identity(recipe: Recipe) -> dict[str, Any]:
    return {k: v for k, v in asdict(recipe).items() if k not in ("resume", "overwrite", "output_dir", "pictures")}


def _shared_start(recipe: Recipe, output: Path, processor: Any) -> Model:
    """The model every method starts from: the recipe's own, trained further when it has a `start` section."""
    if recipe.start is None:
        return recipe.model
    directory = output / "start"
    if not is_complete(directory):
        say(f"start: {recipe.start.task}")
        task = TASKS[recipe.start.task]
        data = prepare_data(task, replace(recipe.data, **recipe.start.data), recipe.seed)
        set_seed(recipe.seed)
        model = make_model(task.model_class, recipe.model, processor)
        trainer = make_trainer(
            recipe, task, "none", model, processor, data, directory, recipe.start.training, **recipe.start.options
        )
        _fit(trainer, recipe, directory)
        if trainer.is_world_process_zero():
            seal(directory)
        trainer.accelerator.wait_for_everyone()
    return replace(recipe.model, source=str(directory), config={})


def make_trainer(
    recipe: Recipe,
    task: Task,
    method_name: str,
    model: PreTrainedModel,
    processor: Any,
    data: Prepared,
    directory: Path,
    training: Mapping[str, Any],
    **task_options: Any,
) -> GroundingTrainer:
    """The Trainer of one run; `method_name` with the recipe's options supervises the attention."""
    method = get_method(method_name, **recipe.supervision.options.get(method_name, {}))
    model.set_attn_implementation(supervised_implementation(model))
    with blame(f"supervision.options.{method_name}"):
        method.prepare(model)
    if data.regions is not None:
        check_width(model, processor, recipe.data.regions or "", data.regions.feature_size)
    grounded = data.regions is not None and "phrase_mask" in task.model_inputs
    return GroundingTrainer(
        model,
        training_arguments(recipe, directory, training),
        data_collator=Collator(task, processor, data.regions, recipe.seed, **task_options),
        train_dataset=data.splits["train"],
        eval_dataset=data.splits["validation"],
        processing_class=processor,
        task=task,
        method=method,
        metrics=lambda: task.metrics() + ([AttentionGrounding()] if grounded else []),
        attention_weight=recipe.supervision.weight,
    )


def _fit(trainer: GroundingTrainer, recipe: Recipe, directory: Path) -> float:
    """Trains (from the last complete checkpoint when resuming), saves the model, seals it; returns the seconds."""
    checkpoint = last_complete_checkpoint(directory) if recipe.resume else None
    outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(directory))
    if trainer.is_world_process_zero():
        write_json(directory / "history.json", trainer.state.log_history)
    trainer.accelerator.wait_for_everyone()
    return outcome.metrics["train_runtime"]


def _train_method(
    name: str, recipe: Recipe, task: Task, data: Prepared, processor: Any, directory: Path
) -> dict[str, Any]:
    """Trains one method and evaluates it; a finished one is read back instead."""
    finished = _read_json(directory / "results.json")
    if finished is not None and is_complete(directory):
        say(f"  finished before: {directory}")
        return finished
    blind = name == TEXT_ONLY
    method_name = "none" if blind else name
    if blind:
        data = Prepared(data.splits, None)
    set_seed(recipe.seed)
    model = make_model(task.model_class, recipe.model, processor, **get_method(method_name).model_config)
    trainer = make_trainer(recipe, task, method_name, model, processor, data, directory, recipe.training)
    seconds = _fit(trainer, recipe, directory)
    figures = {name: trainer.measure(data.splits[name], f"evaluate {name}") for name in ("validation", "test")}
    result = {**_headline(figures, blind), "figures": figures, "train_seconds": seconds}
    if trainer.is_world_process_zero():
        write_json(directory / "results.json", result)
        seal(directory)
    trainer.accelerator.wait_for_everyone()
    return result


def _headline(figures: dict[str, dict[str, Any]], blind: bool) -> dict[str, Any]:
    """The figures of the comparison table; layer and head are chosen on validation, reported on test."""
    accuracies = {k: v for k, v in figures["test"].items() if k.endswith("_accuracy") and isinstance(v, float)}
    if blind:
        return accuracies
    return accuracies | {"text_to_region_accuracy": summarise(figures["validation"], figures["test"])}


def _gather(recipe: Recipe, results: dict[str, Any], output: Path) -> dict[str, Any]:
    """Writes `results.json` and shows what the run is worth."""
    reference = next(iter(results.values()))["figures"]["test"]
    plain = {
        kind: {
            k.replace(kind, "accuracy"): v
            for k, v in reference.items()
            if k.endswith("_" + kind) and "region" not in k
        }
        for kind in ("majority", "chance")
    }
    gathered = {
        "methods": {name: result for name, result in results.items() if name != TEXT_ONLY},
        "baselines": {**plain, **({TEXT_ONLY: results[TEXT_ONLY]} if TEXT_ONLY in results else {})},
        "recipe": _identity(recipe),
    }
    if PartialState().is_main_process:
        write_json(output / "results.json", gathered)
    return gathered


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file that is either the old one or the new one, never half of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
