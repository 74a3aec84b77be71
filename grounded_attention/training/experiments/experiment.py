# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a recipe: data, a shared start, every supervision method from it, and what they are worth."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, set_seed

from grounded_attention.metrics.attention_grounding import AttentionGrounding, summarise
from grounded_attention.supervision import get_method, supervise
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete, last_complete_checkpoint, seal, step_of
from grounded_attention.training.loop.chosen_heads import measure_heads, supervise_chosen
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.progress import named, plain_bars
from grounded_attention.training.loop.side_by_side import LOG, run_side_by_side
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.publish.card import Trained, progress_card, write_card
from grounded_attention.training.publish.hub import START, HubPush, HubRepo, prepare_repos
from grounded_attention.training.recipes.places import check_places
from grounded_attention.training.recipes.recipe import Model, Preserve, Recipe, blame, is_quiet
from grounded_attention.utils.whole_files import write_json

from .checks import check, check_grounding
from .measuring import TEXT_ONLY, measure_all, reported
from .output import check_output, open_output, read_json
from .setup import (
    Prepared,
    check_pixels,
    check_width,
    make_model,
    make_processor,
    prepare_data,
    record_features,
    training_arguments,
)
from .start_model import make_preservation


@dataclass(frozen=True)
class Outcome:
    """A finished run: the content of `results.json` (`methods` by name, `baselines`, the recipe) and the data."""

    results: dict[str, Any]
    data: Prepared


def run(recipe: Recipe) -> Outcome:
    """Trains and evaluates what the recipe names; writes everything below `output_dir`.

    Raises:
        RecipeError: a recipe that can't run as written, an output directory of another recipe.
        HubError: a repository that can't be pushed to, found out before training, or a final push that failed.
    """
    plain_bars(is_quiet(recipe))
    check_places(recipe)
    check(recipe)
    check_output(recipe)
    drawn = recipe.data.scenes and f" ({recipe.data.scenes.images} scenes; drawn now where they are missing)"
    say(f"data: {recipe.data.data_dir}{drawn or ''}")
    data = prepare_data(recipe)
    check_grounding(recipe, data)
    for name in [split for split in recipe.data.train_splits if split != "train"]:
        say(f"the rows of {name} are trained on: its figures are not those of unseen rows")
    for line in TASKS[recipe.task].remarks(data.options, data.splits):
        say(line)
    processor = make_processor(recipe.model)
    other = record_features(processor, data.regions) if data.images is None else None
    if other is not None:
        say(f"model.source {recipe.model.source}: {other.partition(':')[0]}; it is trained further on these")
    rehearse(recipe, data, processor)
    repos = prepare_repos(recipe)
    output = open_output(recipe)
    if recipe.start is not None:
        recipe = replace(recipe, model=_trained_start(recipe.start, processor, repos.get(START)))
    recipe, chosen = _choose_heads(recipe, data, processor)
    results = _results(recipe, data, processor, repos)
    gathered = {**_gather(results), **chosen, "recipe": read_json(output / "recipe.json")}
    if PartialState().is_main_process:
        write_json(output / "results.json", gathered)
    return Outcome(gathered, data)


def rehearse(recipe: Recipe, data: Prepared, processor: Any) -> None:
    """Makes every training that is still to be run, one after another, and trains none.

    What is wrong with a model, its checkpoint, the width of its regions, a method's or the task's options or the
    training arguments comes out while nothing has been written. What the start has to tell is left out.

    Raises:
        RecipeError: as it would be raised in the middle of the run.
    """
    plain = replace(recipe, preserve=Preserve())
    output = Path(recipe.output_dir)
    runs = ([] if recipe.start is None else [(recipe.start, START)]) + [(plain, name) for name in _names(recipe)]
    with TemporaryDirectory(prefix="rehearsal_") as folder:
        for each, name in runs:
            if recipe.overwrite or not (output / name / MANIFEST).is_file():
                rows = prepare_data(each) if name == START else data
                _rehearse(each, name, rows, processor, Path(folder))


def _rehearse(recipe: Recipe, name: str, data: Prepared, processor: Any, folder: Path) -> None:
    blind = name == TEXT_ONLY
    method = name if name in recipe.methods and name != START else "none"
    trainer = make_trainer(recipe, method, data.text_alone() if blind else data, processor, folder)
    with blame("training"):
        if not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            trainer.create_optimizer_and_scheduler(num_training_steps=1)


@dataclass(frozen=True)
class _Training:
    """A method to be trained beside others."""

    directory: Path
    parent: None = None

    @property
    def name(self) -> str:
        return self.directory.name


def _results(recipe: Recipe, data: Prepared, processor: Any, repos: Mapping[str, HubRepo]) -> dict[str, Any]:
    """The result of every method, trained one after the other or side by side."""
    names = _names(recipe)
    workers = min(recipe.workers, len(names))
    if workers == 1:
        results = {}
        for name in names:
            results[name] = _result(recipe, name, data, processor, repos.get(name))
            say(f"method: {name}: finished")
        return results
    say(f"methods: {', '.join(names)}; {workers} at a time, each with a {LOG} in its folder")
    folders = {name: Path(recipe.output_dir) / name for name in names}
    missing = [_Training(folder) for name, folder in folders.items() if name in repos or _finished(folder) is None]
    work = partial(_train_apart, recipe=recipe, data=data, processor=processor, repos=repos)
    for training in run_side_by_side(missing, workers, work, is_quiet(recipe)):
        say(f"method: {training.directory.name}: finished")
    return {name: _finished(folder) for name, folder in folders.items()}


def _train_apart(
    training: _Training, recipe: Recipe, data: Prepared, processor: Any, repos: Mapping[str, HubRepo]
) -> None:
    """Trains a method in a process of its own; rows and regions travel there as the names of their files."""
    name = training.name
    _result(recipe, name, data, processor, repos.get(name))


def _names(recipe: Recipe) -> list[str]:
    return list(recipe.methods) + ([TEXT_ONLY] if recipe.text_only_baseline else [])


def say(message: str) -> None:
    """A line on the terminal, from the main process alone."""
    if PartialState().is_main_process:
        print(message, flush=True)


def _trained_start(recipe: Recipe, processor: Any, repo: HubRepo | None) -> Model:
    """The model every method starts from; one that was trained before is taken as it is."""
    directory = Path(recipe.output_dir)
    hub = HubPush(repo, directory) if repo else None
    if not is_complete(directory):
        say(f"start: {recipe.task}")
        data = prepare_data(recipe)
        hub = _make_push(recipe, START, data, repo, directory)
        trainer = make_trainer(recipe, "none", data, processor, directory, hub)
        with named(START):
            spent = _fit(trainer, recipe.resume, directory)
        if trainer.is_world_process_zero():
            write_card(_described(recipe, START, trainer, processor, {}, spent), data, directory)
        _seal(trainer, directory)
    if hub is not None:
        hub.finish()
    # The checkpoint has the configuration, but for the attention back end, which none keeps.
    back_end = {key: value for key, value in recipe.model.config.items() if key == "attn_implementation"}
    return replace(recipe.model, source=str(directory), config=back_end)


def _choose_heads(recipe: Recipe, data: Prepared, processor: Any) -> tuple[Recipe, dict[str, Any]]:
    """The recipe that supervises the chosen heads, and `supervised_heads` for the results; heads measured before keep
    their figures."""
    if recipe.supervision.heads == "all":
        return recipe, {}
    path = Path(recipe.output_dir) / "start_heads.json"
    measured = read_json(path)
    if measured is None:
        plain = replace(recipe, preserve=Preserve())
        with named("heads of the start"):
            measured = measure_heads(make_trainer(plain, "none", data, processor, path.parent), recipe.seed)
        if PartialState().is_main_process:
            write_json(path, measured)
    recipe, record = supervise_chosen(recipe, measured)
    say(f"supervised heads: {', '.join('{layer}.{head}'.format(**head) for head in record['heads'])}")
    return recipe, {"supervised_heads": record}


def _result(recipe: Recipe, name: str, data: Prepared, processor: Any, repo: HubRepo | None) -> dict[str, Any]:
    """Trains one method, measures it and pushes it where it goes to the Hub; a finished one is read back instead."""
    hub = _make_push(recipe, name, data, repo, Path(recipe.output_dir) / name)
    say(f"method: {name}")
    result = _trained(recipe, name, data, processor, hub)
    if hub is not None:  # a finished one too: its push may have failed
        hub.finish()
    return result


def _make_push(recipe: Recipe, name: str, data: Prepared, repo: HubRepo | None, directory: Path) -> HubPush | None:
    return None if repo is None else HubPush(repo, directory, partial(progress_card, recipe, name, data))


def _trained(recipe: Recipe, name: str, data: Prepared, processor: Any, hub: HubPush | None) -> dict[str, Any]:
    directory, blind = Path(recipe.output_dir) / name, name == TEXT_ONLY
    finished = _finished(directory)
    if finished is not None:
        say(f"  finished before: {directory}")
        return finished
    if blind:  # what a model can do without seeing, whatever the others are held to
        data, recipe = data.text_alone(), replace(recipe, preserve=Preserve())
    trainer = make_trainer(recipe, "none" if blind else name, data, processor, directory, hub)
    with named(name):
        spent = _fit(trainer, recipe.resume, directory)
        figures = measure_all(trainer, data, directory)
    result = {**_headline(figures), "figures": figures, "train_seconds": spent.seconds}
    if trainer.is_world_process_zero():
        write_json(directory / "results.json", result)
        write_card(_described(recipe, name, trainer, processor, figures, spent), data, directory)
    _seal(trainer, directory)
    return result


def _finished(directory: Path) -> dict[str, Any] | None:
    """The result of a training that has ended, its model complete."""
    return read_json(directory / "results.json") if is_complete(directory) else None


def _described(
    recipe: Recipe, name: str, trainer: GroundingTrainer, processor: Any, figures: Any, spent: "Spent"
) -> Trained:
    """What the model card is written of."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    steps = trainer.state.global_step
    return Trained(recipe, name, model, processor, trainer.method, figures, spent.seconds, steps, spent.after_step)


def make_trainer(
    recipe: Recipe, method_name: str, data: Prepared, processor: Any, directory: Path, hub: HubPush | None = None
) -> GroundingTrainer:
    """The Trainer of one run, with a fresh model; `method_name` with the recipe's options supervises the attention,
    `hub` pushes what is saved."""
    task, options = TASKS[recipe.task], data.options
    method = get_method(method_name, **recipe.supervision.options.get(method_name, {}))
    set_seed(recipe.seed)
    model = make_model(task.head, recipe.model, processor, **method.model_config, **task.model_config(options))
    with blame("options"):
        task.initialise(model, processor, options)
    task = task.configure(task, options, model.config)
    supervise(model)
    with blame(f"supervision.options.{method_name}"):
        method.prepare(model)
    _check_regions(model, processor, recipe, data)
    grounded = data.regions is not None and "phrase_mask" in task.model_inputs
    train, validation = data.splits["train"], data.splits.get("validation")
    arguments = training_arguments(recipe, directory)
    preservation = make_preservation(recipe, model, processor, arguments.device)
    with blame("training"):
        return GroundingTrainer(
            model,
            arguments,
            data_collator=Collator(
                task,
                processor,
                data.regions,
                recipe.seed,
                split=train,
                texts=data.texts,
                images=data.images,
                options=options,
                labels=recipe.supervision.labels,
                method=method,
            ),
            train_dataset=train,
            eval_dataset=validation,
            processing_class=processor,
            task=task,
            method=method,
            metrics=lambda: task.metrics() + ([AttentionGrounding()] if grounded else []),
            attention_weight=recipe.supervision.weight,
            preservation=preservation,
            hub=hub,
        )


def _check_regions(model: PreTrainedModel, processor: Any, recipe: Recipe, data: Prepared) -> None:
    if data.images is not None or data.regions is not None:  # else it is to see text alone
        check_pixels(model, data.images)
    if data.images is not None or data.regions is None:
        return
    check_width(model, processor, str(recipe.data.regions), data.regions.feature_size)
    for name, table in data.tracks.items():
        check_width(model, processor, f"data.tracks.{name}", table.feature_size)


@dataclass(frozen=True)
class Spent:
    """The seconds of training after a step: that of the checkpoint it was continued from, or 0."""

    seconds: float
    after_step: int


def _fit(trainer: GroundingTrainer, resume: bool, directory: Path) -> Spent:
    """Trains (from the last complete checkpoint when resuming), saves the model."""
    checkpoint = last_complete_checkpoint(directory) if resume else None
    outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.hub is not None:
        trainer.hub.wait()  # what it pushes from lies in the directory that is sealed next
    trainer.save_model(str(directory))
    if trainer.is_world_process_zero():
        write_json(directory / "history.json", trainer.state.log_history)
    return Spent(outcome.metrics["train_runtime"], step_of(checkpoint) if checkpoint else 0)


def _seal(trainer: GroundingTrainer, directory: Path) -> None:
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        seal(directory)
    trainer.accelerator.wait_for_everyone()


def _headline(figures: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of the comparison table; layer and head are chosen on validation, reported on test."""
    found = reported(figures)
    accuracies = {k: v for k, v in found.items() if k.endswith("_accuracy") and isinstance(v, float)}
    if "text_to_region_by_head" not in found:
        return accuracies
    return accuracies | {"text_to_region_accuracy": summarise(figures["validation"], found)}


def _gather(results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Methods and baselines: those without training are the same for every method, so the first one's are taken."""
    found = reported(next(iter(results.values()))["figures"])
    plain = {
        kind: {k.replace(kind, "accuracy"): v for k, v in found.items() if k.endswith("_" + kind) and "_to_" not in k}
        for kind in ("majority", "chance")
    }
    trained = {TEXT_ONLY: results[TEXT_ONLY]} if TEXT_ONLY in results else {}
    methods = {name: result for name, result in results.items() if name != TEXT_ONLY}
    return {"methods": methods, "baselines": {**plain, **trained}}
