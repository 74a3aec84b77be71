# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The output folder of a run, and the recipe that it belongs to."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState

from grounded_attention.dataset_scripts.files.manifests import describe_changes
from grounded_attention.training.loop.checkpoint import MANIFEST, last_complete_checkpoint
from grounded_attention.training.publish.hub import START
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, build, without_hub
from grounded_attention.utils import bounded_files
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.safe_paths import path_below, refuse_links
from grounded_attention.utils.whole_files import write_json

from .measuring import BEFORE_FILE, TEXT_ONLY

# Keys that may differ when a run is resumed; the Hub keys may differ too.
ASIDE = ("resume", "overwrite", "output_dir", "pictures", "card", "workers")
RECIPE = "recipe.json"
START_HEADS = "start_heads.json"
SPLIT = "split.json"  # digests of the rows of a source, and the images that are held out if it has no validation split
LENGTHS = (("max_steps", -1), ("num_train_epochs", 3.0))  # how long a training is, with the defaults
OF_RUN = ("task", "options", "methods", "text_only_baseline", "data", "seed")
# What a run writes to its folder beside `RECIPE` and one folder for each method.
WRITTEN = (
    BEFORE_FILE,
    "cell.json",
    "heads.png",
    "log.txt",
    "loss_curves.png",
    "results.json",
    "run.html",
    SPLIT,
    START_HEADS,
    "table.md",
)


def check_output(recipe: Recipe) -> None:
    """Checks that the output directory is free for the recipe; writes nothing."""
    output = Path(recipe.output_dir)
    taken = next((path for path in (output, *output.parents) if path.exists() and not path.is_dir()), None)
    if taken is not None:
        raise RecipeError(f"output_dir {output}: {taken} is a file; give a folder, such as output_dir=runs/mine")
    refuse_links(output, _names(recipe))
    before = read_json(output / RECIPE)
    if not _is_recipe(before):
        _check_free(output, recipe)
    elif not recipe.overwrite:
        other, longer = _differences(before, _wanted(recipe))
        if other:
            raise RecipeError(
                f"{output} contains a run of another recipe ({other}): give another output_dir, or overwrite=true to "
                "delete it"
            )
        if not recipe.resume:
            raise RecipeError(
                f"{output} contains a run of this recipe: resume=true continues it, overwrite=true restarts it"
            )
        for folder in _finished(output, before) if longer else ():
            if last_complete_checkpoint(folder) is None:
                raise RecipeError(
                    f"{folder} has no checkpoint, so it cannot be trained longer ({longer}): give another output_dir, "
                    "or overwrite=true; training.save_strategy=steps or epoch keeps checkpoints"
                )


def _names(recipe: Recipe) -> set[str]:
    """What this package writes to the folder of a run."""
    return {*recipe.methods, RECIPE, TEXT_ONLY, START, *WRITTEN}


def _wanted(recipe: Recipe) -> Fields:
    return json.loads(json.dumps(identity(recipe)))


def open_output(recipe: Recipe) -> Path:
    """Creates the output directory and writes `recipe.json`."""
    output = Path(recipe.output_dir)
    state = PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        if recipe.overwrite:
            delete_run(output)
        # Finished methods of a shorter run lose their seals: each then continues from its last checkpoint.
        before = read_json(output / RECIPE)
        longer = None
        if _is_recipe(before):
            longer = _differences(before, _wanted(recipe))[1]
        if longer:
            for folder in _finished(output, before):
                (folder / MANIFEST).unlink()
            print(
                f"{output}: the run is trained longer ({longer}): it continues from the last checkpoints, and "
                "the learning rate follows the schedule of the longer training from there",
                flush=True,
            )
        write_json(output / RECIPE, _wanted(recipe))
    state.wait_for_everyone()
    return output


def delete_run(output: Path) -> None:
    """Deletes files and folders of an earlier run, and nothing beside them; `recipe.json`, which names them, comes
    last: a process killed here leaves a folder that can be deleted again.
    """
    before = read_json(output / RECIPE)
    if _is_recipe(before):
        names = {str(name) for name in before["methods"]} | {START, TEXT_ONLY}
    else:
        names = set()
    for path in [path for path in output.glob("*") if path.name in {*names, *WRITTEN}]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (output / RECIPE).unlink(missing_ok=True)


def _is_recipe(content: Any) -> bool:
    """Whether a `recipe.json` was written by a run of this package."""
    return isinstance(content, dict) and isinstance(content.get("methods"), list) and "task" in content


def _check_free(output: Path, recipe: Recipe) -> None:
    """Refuses to train into files that belong to something else; a folder with a complete checkpoint is a run's."""
    names = _names(recipe) - {"cell.json", "log.txt"}
    there = []
    for path in sorted(output.glob("*")):
        if path.name in names and not _has_checkpoint(path):
            there.append(path.name)
    if there:
        raise RecipeError(
            f"{output} contains {there[0]!r} but no {RECIPE} of this package, so no run wrote it: "
            "move it, or give another output_dir"
        )


def _has_checkpoint(folder: Path) -> bool:
    """Whether a folder is a complete checkpoint, or has one, such as a checkpoint that was fetched from the Hub."""
    return any(folder.glob(MANIFEST)) or any(folder.glob(f"checkpoint-*/{MANIFEST}"))


def check_rows(output: Path, split: Columns) -> None:
    """Refuses to continue a run, or to take its results, where `data.source` has other rows than then."""
    before = None
    if (output / SPLIT).is_file():
        before = read_json(output / SPLIT).get("rows")
    if before is not None and before != split["rows"]:
        names = [name for name in {**before, **split["rows"]} if before.get(name) != split["rows"].get(name)]
        raise RecipeError(
            f"{output} contains a run of other rows: {', '.join(names)} of data.source changed since; "
            "give another output_dir, or overwrite=true to delete it"
        )


def _differences(before: Fields, wanted: Fields) -> tuple[str, str]:
    """What differs, and the key of a longer training, which is no such difference."""
    there = before.get("training", {})
    here = wanted["training"]
    key, default = LENGTHS[0] if {*there, *here} & {LENGTHS[0][0]} else LENGTHS[1]
    lengths = [training.get(key, default) for training in (there, here)]
    if 0 < lengths[0] < lengths[1]:
        longer = f"training.{key} is {lengths[0]} there, {lengths[1]} here"
        before = {**before, "training": {**there, key: here[key]}}
        return describe_changes(before, wanted), longer
    return describe_changes(before, wanted), ""


def _finished(output: Path, before: Fields) -> list[Path]:
    """The folders of the methods that were trained to the end."""
    folders = [output / str(name) for name in (*before["methods"], TEXT_ONLY)]
    return [folder for folder in folders if (folder / MANIFEST).is_file()]


def read_run(folder: Path, remedy: str) -> Recipe:
    """Reads what a finished run says of itself."""
    path = folder / RECIPE
    content = read_json(path)
    if content is None:
        raise ValueError(f"{folder}: {RECIPE} is missing, so this is not a run of train.py; {remedy}")
    if not _is_recipe(content):
        raise ValueError(f"{path}: not the recipe of a run, expected keys such as task and methods; {remedy}")
    content = {key: value for key, value in content.items() if key in OF_RUN}
    recipe = build(Recipe, content, str(path), "")
    for name in recipe.methods:
        path_below(folder, name)
    return recipe


def identity(recipe: Recipe) -> Fields:
    """The content of a recipe that identifies its run."""
    return _without_aside(asdict(recipe))


def _without_aside(content: Fields) -> Fields:
    kept = {key: value for key, value in content.items() if key not in ASIDE}
    kept["training"] = without_hub(kept["training"])
    if kept["start"]:
        return kept | {"start": _without_aside(kept["start"])}
    return kept


def read_json(path: Path) -> Any:
    """The content of a JSON file; `None` if the file does not exist."""
    if path.is_file():
        return bounded_files.read_json(path)
    return None
