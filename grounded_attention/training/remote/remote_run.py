# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A recipe as a job: what it will run, what it can cost at most, and its start."""

import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants

from grounded_attention.dataset_scripts.hub.hub_errors import HubError
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.publish.hub import plan_repos, prepare_repos
from grounded_attention.training.recipes.places import check_checkpoints
from grounded_attention.training.recipes.recipe import Recipe, RecipeError

from .hub_jobs import Flavour, StartedJob, check_data_on_hub, job_errors, start_job
from .job_files import RECIPE, job_recipe, package_wheel, requirements

REPOSITORY = "grounded-attention-jobs"
FOLDER = "job"
# What is kept of a run beside its models.
KEPT = ("run.html", "table.md", "results.json")
# Keys of `training` that depend on the machine, which is not this one.
OF_THE_MACHINE = ("use_cpu", "fp16", "bf16", "tf32", "fp16_full_eval", "bf16_full_eval")


@dataclass(frozen=True)
class RemoteRun:
    """A checked job that has not started."""

    recipe: Recipe
    files: dict[str, bytes]
    flavour: Flavour
    seconds: int
    namespace: str
    stamp: str
    models: tuple[str, ...]

    @property
    def repository(self) -> str:
        """The private data set with the files of jobs, and with the pages of their runs."""
        return f"{self.namespace}/{REPOSITORY}"

    @property
    def highest_cost(self) -> float | None:
        """USD for the whole time limit; `None` if the price is unknown."""
        price = self.flavour.usd_per_hour
        return None if price is None else price * self.seconds / 3600


def check_remote(recipe: Recipe) -> None:
    """Checks a recipe on this machine as far as that is possible before it runs on another."""
    plan_repos(recipe)
    start = None if recipe.start is None else _elsewhere(recipe.start)
    check(replace(_elsewhere(recipe), start=start))
    check_checkpoints(recipe.model, recipe.data)


def _elsewhere(recipe: Recipe) -> Recipe:
    """The recipe without the keys that are right or wrong by the machine."""
    kept = {key: value for key, value in recipe.training.items() if key not in OF_THE_MACHINE}
    return replace(recipe, training=kept)


def plan(
    recipe: Recipe, path: Path, overrides: Sequence[str], flavour: Flavour, seconds: int, namespace: str, api: HfApi
) -> RemoteRun:
    """Puts a job together; nothing is written to the Hub."""
    _check_machine(recipe, flavour)
    check_data_on_hub(recipe, api)
    wheel, content = package_wheel()
    name = re.sub(r"[^\w.-]+", "-", path.stem)
    stamp = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    models = tuple(
        repo.id if "/" in repo.id else f"{api.whoami()['name']}/{repo.id}" for repo in plan_repos(recipe).values()
    )
    files = {RECIPE: job_recipe(path, overrides), wheel: content}
    return RemoteRun(recipe, files, flavour, seconds, namespace, stamp, models)


def _check_machine(recipe: Recipe, flavour: Flavour) -> None:
    """Refuses a machine that the recipe would not use."""
    for prefix, each in (("", recipe), ("start.", recipe.start)):
        if each is None:
            continue
        on_cpu = each.training.get("use_cpu")
        if on_cpu and flavour.accelerators:
            raise RecipeError(
                f"{prefix}training.use_cpu is true, but {flavour.name} has a GPU that would be paid for nothing: give "
                f"{prefix}training.use_cpu=false, or a machine without a GPU, such as --job cpu-upgrade"
            )
        if on_cpu is False and flavour.accelerators == 0:
            raise RecipeError(
                f"{prefix}training.use_cpu is false, but {flavour.name} has no GPU: give a machine with one, such as "
                f"--job t4-small, or {prefix}training.use_cpu=true"
            )
    if recipe.workers > 1 and (flavour.accelerators or 0) > 1:
        raise RecipeError(
            f"workers={recipe.workers} trains methods side by side in one process, but {flavour.name} has "
            f"{flavour.accelerators} GPUs, each with a process: give workers=1"
        )


def start(run: RemoteRun, secrets: dict[str, str]) -> StartedJob:
    """Makes the repositories of the models, uploads the files of the job, and starts it."""
    prepare_repos(run.recipe)
    api = HfApi(token=secrets["HF_TOKEN"])
    commit = _upload(api, run)
    environment = {"PYTHONUNBUFFERED": "1"}
    if constants.ENDPOINT != "https://huggingface.co":
        environment["HF_ENDPOINT"] = constants.ENDPOINT
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    image = f"ghcr.io/astral-sh/uv:python{version}-bookworm"
    command = ["bash", "-c", job_script(run, commit)]
    return start_job(api, run.flavour.name, image, command, environment, secrets, run.seconds, run.namespace)


def _upload(api: HfApi, run: RemoteRun) -> str:
    """Commits the files of the job to the private repository of jobs; returns the commit."""
    with job_errors(f"the upload to {run.repository}"):
        api.create_repo(run.repository, repo_type="dataset", private=True, exist_ok=True)
        if not api.dataset_info(run.repository).private:
            raise HubError(
                f"{run.repository} is public, and would show your recipe and this package: make it private on the Hub"
            )
        operations = [CommitOperationAdd(name, content) for name, content in run.files.items()]
        done = api.create_commit(
            run.repository, operations, repo_type="dataset", commit_message=f"Files of {run.stamp}"
        )
    return str(done.oid)


def job_script(run: RemoteRun, commit: str) -> str:
    """What the job runs in a shell: it fetches its files, trains, keeps the page of the run, and ends with the status
    of the training. Everybody who sees the job can read it, so no secret is in it.
    """
    needed = requirements(_further(run.recipe))
    hub = next((each for each in needed if each.startswith("huggingface-hub")), "huggingface-hub")
    files = " ".join(map(shlex.quote, run.files))
    wheel = next(name for name in run.files if name.endswith(".whl"))
    keep = " ".join(f"--include {name}" for name in KEPT)
    with_all = " ".join(f"--with {shlex.quote(each)}" for each in (f"./{FOLDER}/{wheel}", *needed))
    hf = f"uvx --from {shlex.quote(hub)} hf"
    program = "grounded-attention train"
    if (run.flavour.accelerators or 0) > 1:
        launcher = f"torch.distributed.run --standalone --nproc_per_node {run.flavour.accelerators}"
        program = f"python -m {launcher} -m grounded_attention train"
    output = shlex.quote(run.recipe.output_dir)
    return "\n".join(
        [
            "set -e",
            f"{hf} download {run.repository} {files} --repo-type dataset --revision {commit} --local-dir {FOLDER}",
            "status=0",
            f"uv run --no-project {with_all} {program} {FOLDER}/{RECIPE} || status=$?",
            f"{hf} upload {run.repository} {output} runs/{run.stamp} --repo-type dataset {keep} || true",
            "exit $status",
        ]
    )


def _further(recipe: Recipe) -> list[str]:
    """Packages that the recipe needs beyond those that the package requires."""
    reporters = recipe.training.get("report_to")
    wanted = [reporters] if isinstance(reporters, str) else list(reporters or ())
    return [name for name in wanted if name not in ("none", "all")] + (["peft"] if recipe.model.adapter else [])
