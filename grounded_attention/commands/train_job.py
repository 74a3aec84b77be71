# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention train RECIPE --job FLAVOUR`: states the cost of a job, asks, starts it and follows it."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grounded_attention.commands.command_line import INTERRUPTED, CommandFailed
from grounded_attention.training.recipes.recipe import load_recipe, read_recipe

if TYPE_CHECKING:
    from grounded_attention.training.remote.hub_jobs import StartedJob
    from grounded_attention.training.remote.remote_run import RemoteRun

TIMEOUT = "1h"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
OF_A_JOB = ("timeout", "namespace", "secret", "yes", "detach")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a job to the parser of `train`."""
    group = parser.add_argument_group("on a machine of the Hub (docs/hub.md)")
    add = group.add_argument
    add("--job", metavar="FLAVOUR", help="train there, as a job on this machine, such as cpu-upgrade or t4-small")
    add("--timeout", metavar="TIME", help=f"the Hub stops the job after this time, such as 90m or 6h: {TIMEOUT}")
    add("--namespace", metavar="ORG", help="organisation that pays for the job; default: your account")
    add("--secret", action="append", metavar="NAME", help="variable of your environment that the job needs too")
    add("--yes", action="store_true", help="start without asking")
    add("--detach", action="store_true", help="return when the job has started, without following its logs")


def check_job_options(options: argparse.Namespace) -> None:
    """Refuses options of a job without a job, and a job that several processes would start."""
    of_a_job = [name for name in OF_A_JOB if getattr(options, name)]
    if options.job is None and of_a_job:
        raise ValueError(f"--{of_a_job[0]} is about a job: give --job FLAVOUR too")
    if options.job is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("--job in several processes would start several jobs: run grounded-attention train --job")


def run_job(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Checks a recipe, starts it as a job and follows it."""
    seconds = parse_time(options.timeout or TIMEOUT)
    secrets = _secrets(options.secret or ())
    if "study" in read_recipe(path):
        raise ValueError(f"{path} is a study, whose models are never pushed: a job trains one recipe")
    recipe = load_recipe(path, options.overrides)

    from huggingface_hub import HfApi

    from grounded_attention.training.remote.hub_jobs import (
        check_client,
        check_destination,
        check_reach,
        find_flavour,
        job_errors,
    )

    check_client()
    check_destination(recipe)
    check_reach(recipe)
    # These import torch, which takes seconds.
    from grounded_attention.training.remote.remote_run import check_remote, plan, start

    check_remote(recipe)
    secrets["HF_TOKEN"] = _token(recipe.training.get("hub_token"))
    api = HfApi(token=secrets["HF_TOKEN"])
    with job_errors("asking for the account"):
        namespace = options.namespace or str(api.whoami()["name"])
    flavour = find_flavour(api, options.job)
    run = plan(recipe, path, options.overrides, flavour, seconds, namespace, api)
    _say(statement(run))
    _confirm(options.yes)
    try:
        job = start(run, secrets)
    except KeyboardInterrupt:
        raise CommandFailed("interrupted at the start; `hf jobs ps` shows whether it started", INTERRUPTED) from None
    _say(f"started: job {job.id}\n  {job.url}")
    stage = "STARTED" if options.detach else _follow(api, job)
    if options.detach:
        _say(f"its logs: {_logs(job)}; stop it: {_cancel(job)}")
    else:
        _say("\n".join(["finished; pull the models from", *(f"  {name}" for name in run.models)]))
    return _described(run, job, stage)


def parse_time(text: str) -> int:
    """The seconds of a time such as "90m"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = int(float(match[1]) * SECONDS[match[2]]) if match else 0
    if seconds < 60:
        raise ValueError(f"--timeout {text}: expected a number with s, m, h or d, at least 1m, such as 90m or 6h")
    return seconds


def statement(run: RemoteRun) -> str:
    """What a job will do and can cost, for a terminal."""
    from grounded_attention.training.remote.hub_jobs import hub_data

    flavour, price = run.flavour, run.flavour.usd_per_hour
    machine = f"{flavour.name} ({flavour.title})" if flavour.title else flavour.name
    cost = (
        "price unknown: the Hub did not say it; see https://huggingface.co/pricing"
        if price is None or run.highest_cost is None
        else f"{_usd(price)} an hour; with all of the time limit {_usd(_cents(run.highest_cost))}, "
        "which is the highest cost"
    )
    data = [name for name, _ in hub_data(run.recipe.data)] + (
        ["scenes, drawn there"] if run.recipe.data.scenes else []
    )
    lines = {
        "job": f"{run.stamp} on {machine}, paid by {run.namespace}",
        "cost": cost,
        "time limit": f"{_duration(run.seconds)}, then the Hub stops it (--timeout)",
        "data": ", ".join(data),
        "models": ", ".join(run.models),
        "files": f"{run.repository}, a private data set: recipe and package; then the page and table of the run",
    }
    return "\n".join(f"{name + ':':12}{text}" for name, text in lines.items())


def _duration(seconds: int) -> str:
    return f"{seconds / 3600:g} h" if seconds % 360 == 0 else f"{seconds / 60:.3g} min"


def _cents(amount: float) -> float:
    """The amount rounded up to cents, so that a highest cost is never stated too low."""
    return math.ceil(round(amount * 100, 6)) / 100


def _usd(amount: float) -> str:
    return f"{amount:.2f} USD" if amount >= 0.1 or amount == 0 else f"{amount:.3g} USD"


def _say(text: str) -> None:
    """On standard error; standard output has the lines of the job, or the JSON."""
    print(text, file=sys.stderr, flush=True)


def _secrets(names: tuple[str, ...] | list[str]) -> dict[str, str]:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ValueError(f"--secret {missing[0]}: your environment has no such variable; export it first")
    return {name: os.environ[name] for name in names}


def _token(secret: Any) -> str:
    from huggingface_hub import get_token

    token = secret or get_token()
    if not token:
        raise ValueError(
            "a job needs a Hugging Face token: hf auth login, or HF_TOKEN=... with a token that may write"
        )
    return str(token)


def _confirm(agreed: bool) -> None:
    if agreed:
        return
    if not sys.stdin.isatty():
        raise ValueError("a job costs money, and there is no terminal to ask on: give --yes to start it")
    print("start it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("not started: nothing was written to the Hub, and nothing is paid")


def _follow(api: Any, job: StartedJob) -> str:
    """Prints the lines of the job until its end; returns its stage if it was successful."""
    from grounded_attention.dataset_scripts.hub.hub_errors import HubError
    from grounded_attention.training.remote.hub_jobs import follow

    try:
        stage, message = follow(api, job, _line, lambda text: _say(f"warning: {text}"))
    except KeyboardInterrupt:
        _leave(job, "interrupted", INTERRUPTED)
    except HubError as error:
        _leave(job, str(error), 1)
    if stage != "COMPLETED":
        detail = f" ({message})" if message else ""
        raise CommandFailed(f"the job {job.id} ended as {stage}{detail}; its logs: {_logs(job)}, or {job.url}")
    return stage


def _leave(job: StartedJob, why: str, status: int) -> NoReturn:
    """Says that the job is still paid for, and how to stop it."""
    raise CommandFailed(f"{why}; the job goes on: {_logs(job)} follows it, {_cancel(job)} stops it", status) from None


def _line(text: str) -> None:
    print(text, flush=True)


def _logs(job: StartedJob) -> str:
    return f"`hf jobs logs --follow {job.namespace}/{job.id}`"


def _cancel(job: StartedJob) -> str:
    return f"`hf jobs cancel {job.namespace}/{job.id}`"


def _described(run: RemoteRun, job: StartedJob, stage: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "url": job.url,
        "stage": stage,
        "flavour": run.flavour.name,
        "timeout_seconds": run.seconds,
        "usd_per_hour": run.flavour.usd_per_hour,
        "highest_cost_usd": run.highest_cost,
        "models": list(run.models),
        "run": f"{run.repository}/runs/{run.stamp}",
    }
