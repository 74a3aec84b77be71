# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes runs to the Hub; repositories are checked before any training.

Every commit contains weights, configuration, processor and code, so every commit can be loaded. A commit is atomic: if
one fails, the Hub keeps the last good one, and the run continues.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, validate_repo_id
from transformers.trainer_utils import HubStrategy
from transformers.utils import ADAPTER_CONFIG_NAME

from grounded_attention.dataset_scripts.hub.push_commit import (
    HUB_FAILURES,
    Files,
    HubError,
    explain_failure,
    make_commit,
    may_pass,
)
from grounded_attention.training.loop.checkpoint import CARD, MANIFEST, STEP, TORN, snapshot, step_of
from grounded_attention.training.recipes.adapters import is_local
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.safe_paths import own_files
from grounded_attention.utils.whole_files import DRAFT

from .card_snippets import EVAL_RESULTS, FIGURE, move_card

T = TypeVar("T")
START = "start"
SNAPSHOTS = ".push"
LAST_CHECKPOINT = "last-checkpoint"
# Seconds before a retry of the final push; a push during training is retried at the next save.
WAITS = (1.0, 5.0)
# Files of the Trainer, and scores of single examples, which are not part of a model.
TRAINER_SUFFIXES = (".pt", ".pth", ".bin")
TRAINER_FILES = ("trainer_state.json", STEP, MANIFEST)
LEFT_OUT = (
    MANIFEST,
    "checkpoint-*/*",
    f"{SNAPSHOTS}/*",
    "*.bin",
    f"*{DRAFT}",
    TORN,
    "items_*.json",
    "predictions_*.json",
)
# Files of an earlier commit that a new commit deletes: old weights, and numbers of other weights.
STALE = ("*.safetensors", "*.safetensors.index.json", "results.json", "history.json", FIGURE, EVAL_RESULTS)


@dataclass(frozen=True)
class HubRepo:
    """The target of one run: a repository, a branch, and when to push."""

    id: str
    revision: str | None = None
    private: bool | None = None
    strategy: HubStrategy = HubStrategy.EVERY_SAVE
    always: bool = False
    token: str | None = field(default=None, repr=False)


# Before training


def plan_repos(recipe: Recipe) -> dict[str, HubRepo]:
    """The repositories of the runs of a recipe."""
    planned = {}
    folder = re.sub(r"[^\w.-]+", "-", Path(recipe.output_dir).resolve().name)
    if recipe.start is not None and recipe.start.training.get("push_to_hub"):
        planned[START] = _repo(recipe.start.training, f"{folder}-{START}", "start.training.")
    if recipe.training.get("push_to_hub"):
        repo = _repo(recipe.training, folder, "training.")
        several = len(recipe.methods) > 1
        for name in recipe.methods:
            planned[name] = replace(repo, id=f"{repo.id}-{re.sub('[_+]', '-', name)}") if several else repo
    places = {(repo.id, repo.revision) for repo in planned.values()}
    if len(places) < len(planned):
        raise RecipeError(
            "start.training.hub_model_id and training.hub_model_id must differ: a repository contains one model"
        )
    return planned


def _repo(training: Columns, default: str, prefix: str) -> HubRepo:
    of_hub = {name: training.get(f"hub_{name}") for name in ("model_id", "revision", "token")}
    for name, value in of_hub.items():
        if not isinstance(value, str | None):
            raise RecipeError(f"{prefix}hub_{name} must be of type str, found {type(value).__name__}")
    name = of_hub["model_id"] or default
    strategy = training.get("hub_strategy", HubStrategy.EVERY_SAVE)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RecipeError(f"{prefix}hub_model_id {name!r}: expected NAMESPACE/NAME ({error})") from error
    check_names([str(getattr(strategy, "value", strategy))], [s.value for s in HubStrategy], f"{prefix}hub_strategy=")
    private = training.get("hub_private_repo")
    always = bool(training.get("hub_always_push"))
    return HubRepo(name, of_hub["revision"], private, HubStrategy(strategy), always, of_hub["token"])


def prepare_repos(recipe: Recipe) -> dict[str, HubRepo]:
    """Creates the repositories of `plan_repos` and checks, before any training, that they are writable."""
    planned = plan_repos(recipe)
    if planned:
        return on_main_process(lambda: {name: prepare_repo(repo) for name, repo in planned.items()})
    return {}


def prepare_repo(repo: HubRepo) -> HubRepo:
    """Creates a repository and its branch if they are missing; returns it with its full name."""
    api = HfApi(token=repo.token)
    try:
        api.whoami()
        name = api.create_repo(repo.id, private=repo.private, exist_ok=True).repo_id
        if repo.private and not api.repo_info(name).private:
            raise HubError(
                f"{name} is public, but a private repository is requested: change it on the Hub, or give another name"
            )
        if repo.revision not in (None, "main"):
            api.create_branch(name, branch=str(repo.revision), exist_ok=True)
    except HUB_FAILURES as error:
        raise HubError(f"cannot push to {repo.id}: {explain_failure(error)}") from error
    return replace(repo, id=name)


def on_main_process(action: Callable[[], T], expected: type[Exception] = HubError) -> T:
    """Runs `action` in the main process; every process returns its result or raises its error of the expected type."""
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome = [action(), None]
        except expected as error:
            outcome = [None, str(error)]
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise expected(outcome[1])
    return outcome[0]


# While training


class HubPush:
    """Pushes one run to its repository, from the main process; all processes must call `wait` and `finish`."""

    card: Callable[[int], str] | None = None  # of a training step, in the place of the one in its checkpoint

    def __init__(self, repo: HubRepo, directory: Path):
        self.repo = repo
        self.directory = directory
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="push")
        self._running: Future | None = None

    def save(self, checkpoint: Path) -> None:
        """Pushes a sealed checkpoint, unless an earlier push is still running; a failure is a warning."""
        busy = self._running is not None and not self._running.done()
        if self.repo.strategy == HubStrategy.END or (busy and not self.repo.always):
            return
        disable_progress_bars()  # the terminal shows the progress of the training
        copy = snapshot(checkpoint, self.directory / SNAPSHOTS / checkpoint.name)
        self._running = self._worker.submit(self._push_checkpoint, copy)

    def _push_checkpoint(self, folder: Path) -> None:
        step = step_of(folder)
        try:
            # The model at the root; with two of the strategies also the checkpoint in a separate folder.
            files: Files = {**model_files(folder)}
            if self.repo.strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                if self.repo.strategy == HubStrategy.CHECKPOINT:
                    place = LAST_CHECKPOINT
                else:
                    place = folder.name
                files |= {f"{place}/{path.relative_to(folder).as_posix()}": path for path in own_files(folder)}
            if self.card is not None:
                files[CARD] = self.card(step).encode()
            push_files(self.repo, files, f"Training in progress, step {step}")
        except Exception as error:
            print(
                f"warning: step {step} was not pushed to {self.repo.id}: {explain_failure(error)}; the Hub keeps the "
                "last good commit; the next save or the end of training pushes again",
                file=sys.stderr,
                flush=True,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def wait(self) -> None:
        """Waits until no push is running, and removes the hard links."""
        if not PartialState().is_main_process:
            return
        self._worker.shutdown()
        shutil.rmtree(self.directory / SNAPSHOTS, ignore_errors=True)
        enable_progress_bars()

    def finish(self) -> None:
        """Pushes the finished run: the files of its directory, except checkpoints and scores of single examples."""
        on_main_process(self._finish)

    def _finish(self) -> None:
        self.wait()
        again = "Fix the cause, then run the same command with resume=true to push it"
        address = push_folder(self.repo, self.directory, "End of training", again)
        print(f"  pushed: {address}", flush=True)


def push_folder(repo: HubRepo, directory: Path, message: str, again: str) -> str:
    """Pushes a model directory; retries after `WAITS` seconds where a retry may help."""
    kept: Files = {}
    for path in own_files(directory):
        name = path.relative_to(directory).as_posix()
        if not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
            kept[name] = path
    local = _local_base(directory / ADAPTER_CONFIG_NAME)
    if CARD in kept:
        text = move_card(read_text(directory / CARD), repo.id, repo.revision)
        kept[CARD] = (text.replace(local, Path(local).name) if local else text).encode()
    for wait in (*WAITS, None):
        try:
            return push_files(repo, kept, message)
        except HUB_FAILURES as error:
            if wait is None or not may_pass(error):
                raise HubError(
                    f"{directory} was not pushed to {repo.id}: {explain_failure(error)}; the local files are complete "
                    f"and the Hub keeps the last good commit. {again}"
                ) from error
            print(f"warning: push to {repo.id}: {explain_failure(error)}; retry in {wait:g} s", file=sys.stderr)
            time.sleep(wait)
    raise AssertionError("unreachable")


def _local_base(file: Path) -> str | None:
    """The folder that a pushed adapter names as its base model, with a warning; None for a name on the Hub."""
    if file.is_file():
        base = str(read_json(file)["base_model_name_or_path"] or "")
    else:
        base = None
    if base is None or not is_local(base):
        return None
    print(
        f"warning: {file.name} names {base or 'nothing'} as the base model, which nobody else can load: push that "
        "model, and write its name on the Hub there; the card is pushed without this path",
        file=sys.stderr,
    )
    return base


def push_files(repo: HubRepo, files: Mapping[str, Path | bytes], message: str) -> str:
    """Makes one commit with these files, deletes old weights and checkpoints in it, and returns its address."""
    api = HfApi(token=repo.token)
    listed = api.list_repo_files(repo.id, revision=repo.revision)
    stale = list(STALE)
    stale += [f"{LAST_CHECKPOINT}/*"] if any(name.startswith(LAST_CHECKPOINT) for name in files) else []
    old = []
    for name in listed:
        at_root = []
        for pattern in stale:
            if fnmatch(name, pattern) and ("/" in pattern or "/" not in name):
                at_root.append(pattern)
        if name not in files and at_root:
            old.append(name)
    return make_commit(api, repo.id, files, old, message, revision=repo.revision)


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a checkpoint that belong to the model, without those of the Trainer."""
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    files = {k: p for k, p in files.items() if p.suffix not in TRAINER_SUFFIXES and k not in TRAINER_FILES}
    configured = "config.json" in files or ADAPTER_CONFIG_NAME in files
    if not configured or not any(name.endswith(".safetensors") for name in files):
        raise HubError(
            f"{folder.name} has no complete model.safetensors; give training.hub_strategy=end to push at the end"
        )
    return files
