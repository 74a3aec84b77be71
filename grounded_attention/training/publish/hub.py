# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushing runs to the Hub: where each run goes, checked before anything is trained, and how it gets there.

A commit holds weights, configuration, processor and code together, so every one loads. The Hub shows a commit whole or
not at all; one that fails leaves the last good one, and the run goes on.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, validate_repo_id
from transformers.trainer_utils import HubStrategy

from grounded_attention.dataset_scripts.hub.hub_errors import LOST, HubError, explain_failure, status_of
from grounded_attention.training.loop.checkpoint import CARD, MANIFEST, snapshot, step_of
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, check_names
from grounded_attention.utils.whole_files import DRAFT

from .card_place import EVAL_RESULTS, FIGURE, move_card

T = TypeVar("T")
START = "start"
SNAPSHOTS = ".push"
LAST_CHECKPOINT = "last-checkpoint"
# Seconds before the final push is tried again; one in the middle is tried again at the next save.
WAITS = (1.0, 5.0)
# The Trainer's own files, and single examples' scores: no part of a model.
TRAINER_SUFFIXES, TRAINER_FILES = (".pt", ".pth", ".bin"), ("trainer_state.json", MANIFEST)
LEFT_OUT = (MANIFEST, "checkpoint-*/*", f"{SNAPSHOTS}/*", "*.bin", f"*{DRAFT}", "items_*.json", "predictions_*.json")
# What an earlier commit may hold and this one not: weights that would load as part of this model, and what was
# measured on others.
STALE = ("*.safetensors", "*.safetensors.index.json", "results.json", "history.json", FIGURE, EVAL_RESULTS)


@dataclass(frozen=True)
class HubRepo:
    """Where one run goes: a repository, a branch of it, and how often.

    Args:
        id (`str`): `NAMESPACE/NAME`, or a name in the namespace of the token's user.
        revision (`str`, *optional*): branch, made where it is missing; None is main.
        private (`bool`, *optional*): whether nobody else is to see it; None as the namespace has it.
        strategy (`HubStrategy`, *optional*, defaults to `HubStrategy.EVERY_SAVE`): `end`, `every_save`, `checkpoint`
            (with the newest checkpoint, to resume from) or `all_checkpoints`.
        always (`bool`, *optional*, defaults to `False`): push a save also while an earlier one is under way, one after
            the other.
        token (`str`, *optional*): None takes the one of `hf auth login` or HF_TOKEN.
    """

    id: str
    revision: str | None = None
    private: bool | None = None
    strategy: HubStrategy = HubStrategy.EVERY_SAVE
    always: bool = False
    token: str | None = field(default=None, repr=False)


# Before training


def plan_repos(recipe: Recipe) -> dict[str, HubRepo]:
    """Where the runs of a recipe go, by name; none without `training.push_to_hub`.

    One method goes to `training.hub_model_id`, several to `<hub_model_id>-<method>`; the default is the name of the
    output directory. The start is pushed where `start.training` says so, the text-only baseline never.

    Raises:
        RecipeError: a name, branch or strategy that the Hub does not have, or two runs for one repository.
    """
    planned, folder = {}, re.sub(r"[^\w.-]+", "-", Path(recipe.output_dir).resolve().name)
    if recipe.start is not None and recipe.start.training.get("push_to_hub"):
        planned[START] = _repo(recipe.start.training, f"{folder}-{START}", "start.training.")
    if recipe.training.get("push_to_hub"):
        repo = _repo(recipe.training, folder, "training.")
        several = len(recipe.methods) > 1
        for name in recipe.methods:
            planned[name] = replace(repo, id=f"{repo.id}-{name.replace('_', '-')}") if several else repo
    places = {(repo.id, repo.revision) for repo in planned.values()}
    if len(places) < len(planned):
        raise RecipeError("start.training.hub_model_id and training.hub_model_id must differ: each holds one model")
    return planned


def _repo(training: Mapping[str, Any], default: str, prefix: str) -> HubRepo:
    given = {name: training.get(f"hub_{name}") for name in ("model_id", "revision", "token")}
    for name, value in given.items():
        if not isinstance(value, str | None):
            raise RecipeError(f"{prefix}hub_{name} must be of type str, found {type(value).__name__}")
    name, strategy = given["model_id"] or default, training.get("hub_strategy", HubStrategy.EVERY_SAVE)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise RecipeError(f"{prefix}hub_model_id {name!r}: expected NAMESPACE/NAME ({error})") from error
    check_names([str(getattr(strategy, "value", strategy))], [s.value for s in HubStrategy], f"{prefix}hub_strategy=")
    private, always = training.get("hub_private_repo"), bool(training.get("hub_always_push"))
    return HubRepo(name, given["revision"], private, HubStrategy(strategy), always, given["token"])


def prepare_repos(recipe: Recipe) -> dict[str, HubRepo]:
    """The repositories of `plan_repos`, there and writable; found out before hours of training.

    Raises:
        HubError: no token, a rejected one, no right to write, a public repository where a private one is asked for.
    """
    planned = plan_repos(recipe)
    return on_main_process(lambda: {name: prepare_repo(repo) for name, repo in planned.items()}) if planned else {}


def prepare_repo(repo: HubRepo) -> HubRepo:
    """Makes a repository and its branch where they are missing; returns it with its whole name."""
    api = HfApi(token=repo.token)
    try:
        api.whoami()
        name = api.create_repo(repo.id, private=repo.private, exist_ok=True).repo_id
        if repo.private and not api.repo_info(name).private:
            raise HubError(
                f"{name} is public, but a private repository is asked for: change it on the Hub, or give another name"
            )
        if repo.revision not in (None, "main"):
            api.create_branch(name, branch=str(repo.revision), exist_ok=True)
    except (OSError, RuntimeError, LOST) as error:
        raise HubError(f"{repo.id} can't be pushed to: {explain_failure(error)}") from error
    return replace(repo, id=name)


def on_main_process(action: Callable[[], T]) -> T:
    """What `action` returns in the main process, in all of them; all raise its HubError."""
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome = [action(), None]
        except HubError as error:
            outcome = [None, str(error)]
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise HubError(outcome[1])
    return outcome[0]


# While training


class HubPush:
    """Pushes one run to its repository; the main process does, the others come along to `wait` and `finish`.

    Saves are pushed by a thread, from hard links, so that training goes on and may delete old checkpoints.

    Args:
        repo (`HubRepo`): where to.
        directory (`Path`): of the run.
        card (`Callable[[int], str]`, *optional*): the card of a model that is still being trained, by its step; None
            where nothing is trained.
    """

    def __init__(self, repo: HubRepo, directory: Path, card: Callable[[int], str] | None = None):
        self.repo, self.directory, self.card = repo, directory, card
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="push")
        self._running: Future | None = None

    def save(self, checkpoint: Path) -> None:
        """Pushes a sealed checkpoint, unless an earlier one is still under way; a failure is a warning."""
        busy = self._running is not None and not self._running.done()
        if self.repo.strategy == HubStrategy.END or (busy and not self.repo.always):
            return
        disable_progress_bars()  # the training's own is on the terminal
        copy = snapshot(checkpoint, self.directory / SNAPSHOTS / checkpoint.name)
        self._running = self._worker.submit(self._push_checkpoint, copy)

    def _push_checkpoint(self, folder: Path) -> None:
        step = step_of(folder)
        try:
            files = self._checkpoint_files(folder)
            if self.card is not None:
                files[CARD] = self.card(step).encode()
            push_files(self.repo, files, f"Training in progress, step {step}")
        except Exception as error:
            print(
                f"warning: step {step} was not pushed to {self.repo.id}: {explain_failure(error)}; the Hub keeps the "
                "last good commit, the next save or the end of training pushes again",
                file=sys.stderr,
                flush=True,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _checkpoint_files(self, folder: Path) -> dict[str, Path | bytes]:
        """The model at the root; with two of the strategies the checkpoint in a folder of its own."""
        files: dict[str, Path | bytes] = {**model_files(folder)}
        if self.repo.strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = LAST_CHECKPOINT if self.repo.strategy == HubStrategy.CHECKPOINT else folder.name
            files |= {f"{place}/{path.relative_to(folder).as_posix()}": path for path in _files(folder)}
        return files

    def wait(self) -> None:
        """Until nothing is under way, and nothing of it is left in the directory."""
        if not PartialState().is_main_process:
            return
        self._worker.shutdown()
        shutil.rmtree(self.directory / SNAPSHOTS, ignore_errors=True)
        enable_progress_bars()

    def finish(self) -> None:
        """Pushes the finished run: what is in its directory, apart from checkpoints and single examples' scores.

        Raises:
            HubError: it failed, again and again where that may help; the directory is whole.
        """
        on_main_process(self._finish)

    def _finish(self) -> None:
        self.wait()
        again = "Once the cause is mended, the same command with resume=true pushes it"
        address = push_folder(self.repo, self.directory, "End of training", again)
        print(f"  pushed: {address}", flush=True)


def push_folder(repo: HubRepo, directory: Path, message: str, again: str) -> str:
    """Pushes a model directory, with `WAITS` between attempts where another one may help; returns its address.

    Args:
        repo (`HubRepo`): where to; its branch is there.
        directory (`Path`): with the files.
        message (`str`): of the commit.
        again (`str`): what to do after a failure.

    Raises:
        HubError: the last failure.
    """
    kept: dict[str, Path | bytes] = {}
    for path in _files(directory):
        name = path.relative_to(directory).as_posix()
        if not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
            kept[name] = path
    if CARD in kept:
        kept[CARD] = move_card((directory / CARD).read_text(encoding="utf-8"), repo.id, repo.revision).encode()
    for wait in (*WAITS, None):
        try:
            return push_files(repo, kept, message)
        except (OSError, RuntimeError, ValueError, LOST) as error:
            if wait is None or not _may_pass(error):
                raise HubError(
                    f"{directory} was not pushed to {repo.id}: {explain_failure(error)}; it is whole, and the Hub "
                    f"keeps the last good commit. {again}"
                ) from error
            print(f"warning: push to {repo.id}: {explain_failure(error)}; again in {wait:g} s", file=sys.stderr)
            time.sleep(wait)
    raise AssertionError("unreachable")


def push_files(repo: HubRepo, files: Mapping[str, Path | bytes], message: str) -> str:
    """One commit: these files or contents, and without what was of older weights and checkpoints; returns its
    address."""
    api = HfApi(token=repo.token)
    stale = [*STALE, *([f"{LAST_CHECKPOINT}/*"] if any(name.startswith(LAST_CHECKPOINT) for name in files) else [])]
    operations: list[Any] = [
        CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
        for name, content in sorted(files.items())
    ]
    for name in api.list_repo_files(repo.id, revision=repo.revision):
        at_root = [pattern for pattern in stale if fnmatch(name, pattern) and ("/" in pattern or "/" not in name)]
        if name not in files and at_root:
            operations.append(CommitOperationDelete(name))
    return str(api.create_commit(repo.id, operations, commit_message=message, revision=repo.revision).commit_url)


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a checkpoint that make the model: all but the Trainer's own.

    Raises:
        HubError: there are no weights to load, as where each process saves its own part.
    """
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    files = {k: p for k, p in files.items() if p.suffix not in TRAINER_SUFFIXES and k not in TRAINER_FILES}
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise HubError(f"{folder.name} holds no whole model.safetensors (training.hub_strategy=end pushes at the end)")
    return files


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


# Failures


def _may_pass(error: BaseException) -> bool:
    """Whether the same push may succeed in a moment: a server's or the network's failure, not the user's."""
    status = status_of(error)
    if status is not None:
        return status in (408, 412, 429) or status >= 500
    return not isinstance(error, ValueError | FileNotFoundError | OfflineModeIsEnabled)
