# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs a recipe: prepares the data, trains a shared start and every supervision method, and measures them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import PartialState

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.modeling.finite_numbers import NotFiniteError
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete
from grounded_attention.training.loop.chosen_heads import measure_heads, supervise_chosen
from grounded_attention.training.loop.side_by_side import LOG, join_processes, only_process, run_jobs
from grounded_attention.training.loop.trainer import plain_bars
from grounded_attention.training.publish.hub import START, HubPush, HubRepo, prepare_repos
from grounded_attention.training.publish.model_card import Trained, progress_card, write_card
from grounded_attention.training.recipes.recipe import (
    Preserve,
    Recipe,
    is_quiet,
    recipe_key_errors,
)
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.whole_files import write_json

from .checks import check, check_grounding
from .measuring import BEFORE, BEFORE_FILE, TEXT_ONLY, measure_all, reported
from .models import fit_width, make_processor, record_features
from .output import SPLIT, START_HEADS, check_output, check_rows, open_output, read_json
from .prepared_data import PreparedData, prepare_data
from .trainers import check_best_metric, fit, make_trainer, seal_folder


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    results: Fields
    data: PreparedData


def run(recipe: Recipe) -> Outcome:
    """Trains and evaluates the methods of a recipe; writes all files to `output_dir`."""
    join_processes(recipe.training)
    plain_bars(is_quiet(recipe))
    check(recipe)
    check_output(recipe)
    drawn = recipe.data.scenes and f" ({recipe.data.scenes.images} scenes; missing files are generated now)"
    say(f"data: {recipe.data.source or recipe.data.data_dir + (drawn or '')}")
    data = prepare_data(recipe)
    check_grounding(recipe, data)
    for name in [split for split in recipe.data.train_splits if split != "train"]:
        say(f"the split {name} is used for training: its numbers are not those of unseen rows")
    for line in TASKS[recipe.task].configure(data.options).remarks(data.splits):
        say(line)
    processor = make_processor(recipe.model, data.splits["train"])
    fit_width(recipe.model, processor, data.regions)
    other = record_features(processor, data.regions) if data.images is None else None
    if other is not None:
        say(f"model.source {recipe.model.source}: {other.partition(':')[0]}; training continues on the new features")
    rehearse(recipe, data, processor)
    repos = prepare_repos(recipe)
    with only_process(Path(recipe.output_dir)):
        check_output(recipe)  # again: another run may have used the folder in the meantime
        gathered = _run_methods(recipe, data, processor, repos)
    return Outcome(gathered, data)


def _run_methods(recipe: Recipe, data: PreparedData, processor: Any, repos: Mapping[str, HubRepo]) -> Fields:
    """Trains the start and every method, and writes `results.json`; returns its content."""
    output = open_output(recipe)
    if data.split is not None:
        check_rows(output, data.split)
        if PartialState().is_main_process:
            write_json(output / SPLIT, data.split)
    if recipe.start is not None:
        # The model that every method starts from is trained, or a finished one is reused.
        repo = repos.get(START)
        directory = Path(recipe.start.output_dir)
        hub = HubPush(repo, directory) if repo else None
        if not is_complete(directory):
            say(f"start: {recipe.start.task}, method {recipe.start.methods[0]}")
            _train_model(recipe.start, START, prepare_data(recipe.start), processor, directory, hub)
        if hub is not None:
            hub.finish()
        # The checkpoint contains the configuration, except the attention back end, which is never saved.
        back_end = {key: value for key, value in recipe.start.model.config.items() if key == "attn_implementation"}
        trained_start = replace(recipe.start.model, source=str(directory), config=back_end)
        recipe = replace(recipe, model=trained_start)
    recipe, chosen = _choose_heads(recipe, data, processor)
    before = _measure_before(recipe, data, processor)
    # One after another or in parallel; rows and regions are passed to other processes as names of files.
    trainings = [_Training(Path(recipe.output_dir) / name) for name in _names(recipe)]
    workers = min(recipe.workers, len(trainings))
    if workers > 1:
        names = ", ".join(training.name for training in trainings)
        say(f"methods: {names}; {workers} at a time, each with a {LOG} in its folder")
    work = partial(_train, recipe=recipe, data=data, processor=processor, repos=repos)
    missing = []
    for each in trainings:
        if each.name in repos or _finished(each.directory) is None:
            missing.append(each)
        else:
            say(f"method: {each.name}: finished before")
    for training in run_jobs(missing, workers, work, is_quiet(recipe)):
        say(f"method: {training.name}: finished")
    results: dict[str, Any] = {training.name: _finished(training.directory) for training in trainings}
    gathered = {**_gather(results), **chosen, **before, "recipe": read_json(output / "recipe.json")}
    if PartialState().is_main_process:
        write_json(output / "results.json", gathered)
    return gathered


def rehearse(recipe: Recipe, data: PreparedData, processor: Any) -> None:
    """Makes the Trainer of every unfinished training, before any file is written, so that errors appear early."""
    output = Path(recipe.output_dir)
    with TemporaryDirectory(prefix="rehearsal_") as folder:
        for name in ([] if recipe.start is None else [START]) + _names(recipe):
            if recipe.overwrite or not (output / name / MANIFEST).is_file():
                _rehearse(recipe, name, data, processor, Path(folder))


def _rehearse(recipe: Recipe, name: str, data: PreparedData, processor: Any, folder: Path) -> None:
    key = "training"
    if name == START and recipe.start is not None:
        recipe = recipe.start
        data = prepare_data(recipe)
        check_grounding(recipe, data, "start.")
        key = "start.training"
    recipe, method, data = _trained_with(replace(recipe, preserve=Preserve()), name, data)
    trainer = make_trainer(recipe, method, data, processor, folder)
    with recipe_key_errors("training"):
        if not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
            trainer.create_optimizer_and_scheduler(num_training_steps=1)
        trainer.get_train_dataloader()
    check_best_metric(trainer, key)


def _trained_with(recipe: Recipe, name: str, data: PreparedData) -> tuple[Recipe, str, PreparedData]:
    """The recipe, the method and the data of a training; that of texts alone has no regions and no `preserve`."""
    if name == TEXT_ONLY:
        return replace(recipe, preserve=Preserve()), "none", data.text_alone()
    return recipe, recipe.methods[0] if name == START else name, data


@dataclass(frozen=True)
class _Training:
    """A method to train."""

    directory: Path
    parent: None = None

    @property
    def name(self) -> str:
        return self.directory.name


def _names(recipe: Recipe) -> list[str]:
    return list(recipe.methods) + ([TEXT_ONLY] if recipe.text_only_baseline else [])


def say(message: str) -> None:
    """Prints a line, from the main process only."""
    if PartialState().is_main_process:
        print(message, flush=True)


def _choose_heads(recipe: Recipe, data: PreparedData, processor: Any) -> tuple[Recipe, Fields]:
    """The recipe that supervises the chosen heads, and `supervised_heads` for the results.

    How often each head looks at the right region before the training is measured once.
    """
    if recipe.supervision.heads == "all":
        return recipe, {}
    path = Path(recipe.output_dir) / START_HEADS
    measured = read_json(path)
    if measured is None:
        with model_named("heads of the start"):
            trainer = make_trainer(replace(recipe, preserve=Preserve()), "none", data, processor, path.parent)
            measured = measure_heads(trainer, recipe.seed)
        if PartialState().is_main_process:
            write_json(path, measured)
    recipe, record = supervise_chosen(recipe, measured)
    say(f"supervised heads: {', '.join('{layer}.{head}'.format(**head) for head in record['heads'])}")
    return recipe, {"supervised_heads": record}


def _measure_before(recipe: Recipe, data: PreparedData, processor: Any) -> Fields:
    """The numbers of a vision-language checkpoint before training, as `before`. An earlier measurement is reused."""
    if not TASKS[recipe.task].image_tokens or recipe.model.source is None:
        return {}
    path = Path(recipe.output_dir) / BEFORE_FILE
    numbers = read_json(path)
    if numbers is None:
        say(f"{BEFORE}: the numbers of the checkpoint")
        with model_named("before"), TemporaryDirectory(prefix="before_") as folder:
            trainer = make_trainer(recipe, "none", data, processor, Path(folder))
            numbers = measure_all(trainer, data, Path(folder))
        if PartialState().is_main_process:
            write_json(path, numbers)
    return {"before": numbers}


def _train(
    training: _Training, recipe: Recipe, data: PreparedData, processor: Any, repos: Mapping[str, HubRepo]
) -> None:
    """Trains one method and measures it, unless that is done, and pushes it if it has a repository."""
    name = training.name
    directory = training.directory
    hub = None
    if name in repos:
        hub = HubPush(repos[name], directory)
    say(f"method: {name}")
    if _finished(directory) is not None:
        say(f"  finished before: {directory}")
    else:
        _train_model(recipe, name, data, processor, directory, hub)
    if hub is not None:  # also for a finished method, because its push may have failed
        hub.finish()


def _train_model(
    recipe: Recipe, name: str, data: PreparedData, processor: Any, directory: Path, hub: HubPush | None
) -> None:
    """Trains a model, measures it unless it is a start, and writes its card; its folder is then complete."""
    recipe, method, data = _trained_with(recipe, name, data)
    if hub is not None:
        hub.card = partial(progress_card, recipe, name, data)
    trainer = make_trainer(recipe, method, data, processor, directory, hub)
    with model_named(name):
        duration = fit(trainer, recipe.resume, directory)
        numbers = {} if name == START else measure_all(trainer, data, directory)
    result = {**_headline(numbers), "figures": numbers, "train_seconds": duration.seconds}
    steps = trainer.state.global_step
    if trainer.is_world_process_zero():
        if name != START:
            write_json(directory / "results.json", result)
        model: Any = trainer.accelerator.unwrap_model(trainer.model)
        before = read_json(Path(recipe.output_dir) / BEFORE_FILE)
        times = (duration.seconds, steps, duration.after_step)
        write_card(Trained(recipe, name, model, processor, trainer.method, numbers, *times, before), data, directory)
    seal_folder(trainer, directory)


@contextmanager
def model_named(name: str) -> Iterator[None]:
    """Names the model in the error of one whose numbers are NaN or infinite."""
    try:
        yield
    except NotFiniteError as error:
        raise NotFiniteError(f"{name}: {error}") from error


def _finished(directory: Path) -> Fields | None:
    """The result of a finished training with a complete model; `None` otherwise."""
    if is_complete(directory):
        return read_json(directory / "results.json")
    return None


def _headline(numbers: Mapping[str, Fields]) -> Fields:
    """The numbers of the comparison table; layer and head are chosen on validation and reported on test."""
    measured = reported(numbers)
    accuracies = {}
    for k, v in measured.items():
        if k.endswith("_accuracy") and isinstance(v, float):
            accuracies[k] = v
    if "text_to_region_by_head" not in measured:
        return accuracies
    return accuracies | {"text_to_region_accuracy": summarise(numbers["validation"], measured)}


def _gather(results: Mapping[str, Fields]) -> Fields:
    """Methods and baselines; baselines without training are equal for all methods, so those of the first are used."""
    numbers = reported(next(iter(results.values()))["figures"])
    plain = {}
    for kind in ("majority", "chance"):
        plain[kind] = {
            k.replace(kind, "accuracy"): v for k, v in numbers.items() if k.endswith("_" + kind) and "_to_" not in k
        }
    trained = {TEXT_ONLY: results[TEXT_ONLY]} if TEXT_ONLY in results else {}
    methods = {name: result for name, result in results.items() if name != TEXT_ONLY}
    return {"methods": methods, "baselines": {**plain, **trained}}
