# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The jobs of the loopback Hub: machines with prices, jobs that are told how they end, their logs.

It stores what was asked for and runs nothing: a test reads the command of a job from `LoopbackHub.jobs`.
"""

import json
from collections.abc import Callable
from typing import Any

from tests.helpers.loopback_hub_state import HubError, State

JOBS = "jobs.json"
PLAN = "jobs_plan.json"
ROUTES = [
    (("GET",), "/api/jobs/hardware", "job_hardware"),
    (("POST",), "/api/jobs/(?P<namespace>[^/]+)", "job_start"),
    (("GET",), "/api/jobs/(?P<namespace>[^/]+)/(?P<job>[^/]+)", "job_info"),
    (("GET",), "/api/jobs/(?P<namespace>[^/]+)/(?P<job>[^/]+)/logs", "job_logs"),
    (("POST",), "/api/jobs/(?P<namespace>[^/]+)/(?P<job>[^/]+)/cancel", "job_cancel"),
]


def machine(name: str, title: str, gpus: int, usd: float, unit: str = "minute") -> dict[str, Any]:
    gpu = {"type": "gpu", "model": "T4", "quantity": str(gpus), "vram": "16 GB", "manufacturer": "Nvidia"}
    about = {"name": name, "prettyName": title, "cpu": "4 vCPU", "ram": "15 GB", "ephemeralStorage": "50 GB"}
    cost = {"unitCostMicroUSD": round(usd * 1e6), "unitCostUSD": usd, "unitLabel": unit}
    return {**about, "accelerator": gpu if gpus else None, **cost}


MACHINES = [
    machine("cpu-upgrade", "CPU Upgrade", 0, 0.0005),
    machine("t4-small", "Nvidia T4 - small", 1, 0.4 / 60),
    machine("l4x4", "4x Nvidia L4", 4, 3.8, "hour"),
    machine("quantum-small", "Quantum", 0, 1.0, "shot"),
]


def plan_jobs(state: State, lines: list[str], stage: str = "COMPLETED", message: str = "", running: int = 0) -> None:
    """
    Says what jobs that start from now on do.

    Args:
        state (`State`): the state of the Hub.
        lines (`list[str]`): their logs.
        stage (`str`, *optional*, defaults to `"COMPLETED"`): how they end.
        message (`str`, *optional*, defaults to `""`): what the Hub says about the end.
        running (`int`, *optional*, defaults to 0): for how many questions they still run.
    """
    state.write(PLAN, {"lines": lines, "stage": stage, "message": message, "running": running})


class JobRoutes:
    """The routes, for the handler of the loopback Hub."""

    state: State
    user: dict[str, Any] | None
    body: bytes
    _answer: Callable[..., None]

    def _job_user(self, namespace: str) -> dict[str, Any]:
        if self.user is None:
            raise HubError(401, None, "Invalid username or password.")
        if namespace not in (self.user["name"], *self.user["orgs"]):
            raise HubError(403, None, f"you may not start jobs for {namespace}")
        return self.user

    def job_hardware(self) -> None:
        self._answer(MACHINES)

    def job_start(self, namespace: str) -> None:
        user = self._job_user(namespace)
        spec = json.loads(self.body)
        if spec["flavor"] not in [each["name"] for each in MACHINES]:
            raise HubError(404, None, f"no hardware {spec['flavor']}")
        with self.state.lock():
            jobs = self.state.read(JOBS, [])
            jobs.append({"id": f"job{len(jobs)}", "namespace": namespace, "by": user["name"], "spec": spec})
            jobs[-1] |= self.state.read(PLAN, {"lines": [], "stage": "COMPLETED", "message": "", "running": 0})
            self.state.write(JOBS, jobs)
        self._answer(self._shown(jobs[-1]))

    def job_info(self, namespace: str, job: str) -> None:
        self._job_user(namespace)
        with self.state.lock():
            jobs = self.state.read(JOBS, [])
            found = _find(jobs, job)
            found["running"] -= 1
            self.state.write(JOBS, jobs)
        self._answer(self._shown(found))

    def job_logs(self, namespace: str, job: str) -> None:
        self._job_user(namespace)
        events = [{"timestamp": "2026-01-01T00:00:00.000Z", "data": "===== Job started ====="}]
        lines = _find(self.state.read(JOBS, []), job)["lines"]
        events += [{"timestamp": f"2026-01-01T00:00:{n + 1:02d}.000Z", "data": line} for n, line in enumerate(lines)]
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._answer(stream.encode(), headers={"Content-Type": "text/event-stream"})

    def job_cancel(self, namespace: str, job: str) -> None:
        self._job_user(namespace)
        with self.state.lock():
            jobs = self.state.read(JOBS, [])
            _find(jobs, job).update(running=0, stage="CANCELED")
            self.state.write(JOBS, jobs)
        self._answer({})

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job in the format of the Hub, which shows the names of secrets but not their values."""
        spec = job["spec"]
        stage = "RUNNING" if job["running"] > 0 else job["stage"]
        return {
            "id": job["id"],
            "createdAt": "2026-01-01T00:00:00.000Z",
            "owner": {"id": "1", "name": job["namespace"], "type": "user"},
            "dockerImage": spec.get("dockerImage"),
            "command": spec["command"],
            "arguments": spec["arguments"],
            "environment": spec["environment"],
            "secrets": dict.fromkeys(spec.get("secrets", {}), ""),
            "flavor": spec["flavor"],
            "status": {"stage": stage, "message": job["message"] if stage != "RUNNING" else None},
        }


def _find(jobs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = next((job for job in jobs if job["id"] == name), None)
    if found is None:
        raise HubError(404, None, "Job not found")
    return found
