# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Jobs of the Hub through `huggingface_hub`: machines and prices, the start of a job, its logs and its end."""

import difflib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import HfApi

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.hub_errors import (
    CONNECTION_LOST,
    HubError,
    explain_failure,
    hub_errors,
    status_of,
)
from grounded_attention.dataset_scripts.hub.tables import is_on_hub, parse_place
from grounded_attention.training.recipes.places import data_places, is_drawn
from grounded_attention.training.recipes.recipe import Data, Recipe, RecipeError

OLDEST = "1.4"  # of huggingface_hub: the first that lists machines with their prices
HOURS = {"second": 1 / 3600, "minute": 1 / 60, "hour": 1.0}
ENDED = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
POLL_SECONDS = 10.0
MOST_FAILURES = 6  # questions without an answer, one after another, until the end of a job is no longer waited for
BILLING = "https://huggingface.co/settings/billing"


@dataclass(frozen=True)
class Flavour:
    """A machine of the Hub."""

    name: str
    title: str = ""
    usd_per_hour: float | None = None
    accelerators: int | None = None


@contextmanager
def job_errors(doing: str) -> Iterator[None]:
    """Turns errors of the Hub's client into one line."""
    try:
        yield
    except DataError:
        raise
    except (OSError, RuntimeError, CONNECTION_LOST) as error:
        raise HubError(f"{doing} failed: {_explained(error)}") from error


def _explained(error: BaseException) -> str:
    said = " ".join((getattr(error, "server_message", None) or "").split())
    if status_of(error) == 402:
        return f"the account cannot pay for it{f' ({said})' if said else ''}: see {BILLING}"
    if status_of(error) == 404:
        return f"the Hub has no such job, machine or organisation{f' ({said})' if said else ''}"
    return explain_failure(error)


def check_client() -> None:
    """Checks that the client knows prices."""
    if not hasattr(HfApi, "list_jobs_hardware"):
        raise HubError(
            f"--job needs huggingface-hub {OLDEST} or newer, found {huggingface_hub.__version__}: "
            "pip install --upgrade huggingface-hub"
        )


def find_flavour(api: HfApi, name: str) -> Flavour:
    """Asks the Hub for a machine and its price."""
    try:
        listed: dict[str, Any] = {str(each.name): each for each in api.list_jobs_hardware()}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, CONNECTION_LOST) as error:
        if status_of(error) in (401, 403):
            raise HubError(f"the list of machines was refused: {_explained(error)}") from error
        return Flavour(name)
    if name not in listed:
        close = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise HubError(f"--job {name}: there is no such machine; {hint}expected one of {', '.join(listed)}")
    hardware = listed[name]
    hours, cost = HOURS.get(str(hardware.unit_label).lower()), hardware.unit_cost_usd
    accelerators = 0 if hardware.accelerator is None else int(hardware.accelerator.quantity)
    price = float(cost) / hours if hours is not None and cost is not None else None
    return Flavour(name, str(hardware.pretty_name), price, accelerators)


@dataclass(frozen=True)
class StartedJob:
    """A job on the Hub: `id`, `url` and the `namespace` that pays for it."""

    id: str
    url: str
    namespace: str


def start_job(
    api: HfApi,
    flavour: str,
    image: str,
    command: list[str],
    environment: dict[str, str],
    secrets: dict[str, str],
    seconds: int,
    namespace: str,
) -> StartedJob:
    """Starts a job."""
    doing = f"the start of a job on {flavour}"
    try:
        job = api.run_job(
            image=image,
            command=command,
            env=environment,
            secrets=secrets,
            flavor=flavour,  # type: ignore[arg-type, unused-ignore]  # newer machines than the client's list
            timeout=seconds,
            namespace=namespace,
        )
    except (OSError, RuntimeError, CONNECTION_LOST) as error:
        unsure = "" if status_of(error) is not None else "; `hf jobs ps` shows whether it started nevertheless"
        raise HubError(f"{doing} failed: {_explained(error)}{unsure}") from error
    return StartedJob(job.id, job.url, namespace)


def follow(api: HfApi, job: StartedJob, write: Callable[[str], None], warn: Callable[[str], None]) -> tuple[str, str]:
    """Passes on the lines of a job until it ends."""
    known = inspect.signature(api.fetch_job_logs).parameters
    options: dict[str, Any] = {"follow": True} if "follow" in known else {}  # older clients always follow
    try:
        for line in api.fetch_job_logs(job_id=job.id, namespace=job.namespace, **options):
            write(line.rstrip("\n"))
    except (OSError, RuntimeError, ValueError, CONNECTION_LOST) as error:
        warn(f"the logs broke off ({_explained(error)}); the job goes on, and its end is waited for")
    return _wait(api, job)


def _wait(api: HfApi, job: StartedJob) -> tuple[str, str]:
    """Asks for the stage of a job until it is one of `ENDED`."""
    failures = 0
    while True:
        try:
            with job_errors(f"asking for the job {job.id}"):
                status = api.inspect_job(job_id=job.id, namespace=job.namespace).status
        except HubError:
            failures += 1
            if failures == MOST_FAILURES:
                raise
        else:
            failures = 0
            stage = str(getattr(status.stage, "value", status.stage))
            if stage in ENDED:
                return stage, " ".join((status.message or "").split())
        time.sleep(POLL_SECONDS)


REMEDIES = {
    "data_dir": "push the rows (grounded-attention data build ... --push ORG/NAME), then give {key}=hub://ORG/NAME",
    "pseudo_labels": "push them (grounded-attention push), then give {key}=hub://ORG/NAME",
    "images": "images are never on the Hub: train on a region table (data.regions=hub://ORG/NAME), or on this machine",
    "text_corpus": "train on this machine, or give {key}=null",
}
TABLE = "push the table (grounded-attention push), then give {key}=hub://ORG/NAME"
CHECKPOINTS = {
    "source": "push it (grounded-attention push FOLDER ORG/NAME), then give {key}=ORG/NAME",
    "bert": "give the name of a BERT on the Hub",
    "tokenizer": "give the name of a tokenizer on the Hub",
}


def check_destination(recipe: Recipe) -> None:
    """Checks that the trained models are pushed: the disk of a job is deleted at its end."""
    keys = {"push_to_hub": "true", "hub_model_id": "ORG/NAME"}
    missing = [f"training.{key}={value}" for key, value in keys.items() if not recipe.training.get(key)]
    if missing:
        raise RecipeError(
            f"the files of a job are deleted at its end, and the recipe pushes no model: add {' '.join(missing)}"
        )


def check_reach(recipe: Recipe) -> None:
    """Checks that a job can read data and checkpoints: from the Hub, or drawn scenes, which it draws again."""
    sections = {"data.": recipe.data} | ({"start.data.": recipe.start.data} if recipe.start else {})
    for prefix, data in sections.items():
        for name, place in data_places(data):
            if not is_on_hub(place) and not is_drawn(place, data):
                raise _unreachable(prefix + name, place, REMEDIES.get(name, TABLE))
    for name, remedy in CHECKPOINTS.items():
        place = getattr(recipe.model, name)
        if place and not is_drawn(place, recipe.data) and (Path(place).exists() or len(Path(place).parts) > 2):
            raise _unreachable(f"model.{name}", place, remedy)
    for key, place in _options(recipe):
        if isinstance(place, str) and Path(place).suffix and Path(place).exists():
            raise _unreachable(key, place, "give its content in the recipe, or train on this machine")


def _unreachable(key: str, place: str, remedy: str) -> RecipeError:
    return RecipeError(f"{key} {place} is of this machine, and a job cannot read it: {remedy.format(key=key)}")


def _options(recipe: Recipe, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options of the task and of the builder; some may be the name of a file."""
    sections: dict[str, Mapping[str, Any]] = {"options": recipe.options, "data.options": recipe.data.options}
    for section, content in sections.items():
        yield from ((f"{prefix}{section}.{key}", value) for key, value in content.items())
    if recipe.start is not None:
        yield from _options(recipe.start, "start.")


def check_data_on_hub(recipe: Recipe, api: HfApi) -> None:
    """Checks that the data sets on the Hub exist and that the token may read them."""
    for data in (recipe.data, *([recipe.start.data] if recipe.start else [])):
        for name, revision in hub_data(data):
            with hub_errors("reading the data", name):
                api.dataset_info(name, revision=revision)


def hub_data(data: Data) -> list[tuple[str, str | None]]:
    """(repository, revision) of every place of a data section that is on the Hub."""
    return list(dict.fromkeys(parse_place(place) for _, place in data_places(data) if is_on_hub(place)))
