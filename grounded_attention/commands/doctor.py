# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reports what this machine has for training: versions, threads, GPU, access to the Hub, disk, optional packages.

The command changes nothing and makes one request to the Hub (none with HF_HUB_OFFLINE=1). Its exit status is 0,
also if something optional is missing. Put its output into a report of a problem.

examples:
  grounded-attention doctor
  HF_HUB_OFFLINE=1 grounded-attention doctor --json
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from typing import Any

from grounded_attention import __version__
from grounded_attention.utils.extras import EXTRAS
from grounded_attention.utils.plain_text import first_sentences

from .command_line import Program

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "huggingface-hub", "numpy", "pyarrow", "safetensors")
TIMEOUT = 5.0  # seconds for the answer of the Hub
LITTLE = 5 * 2**30  # bytes; less free disk is worth a remark


def doctor() -> tuple[Any, str]:
    """Examines this machine."""
    machine = examine()
    return machine, to_text(machine)


def examine() -> dict[str, Any]:
    """Collects the facts of the report."""
    report: dict[str, Any] = {
        "versions": {"grounded-attention": __version__, "python": platform.python_version(), **_versions()},
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "devices": [],
        "hub": _hub(),
        "disk": _disk(),
        "extras": {extra: all(map(importlib.util.find_spec, names)) for extra, names in EXTRAS.items()},
    }
    remarks: list[str] = []
    _look_at_torch(report, remarks)
    if report["hub"]["reached"] is False:
        remarks.append(f"the Hub cannot be reached ({report['hub']['error']}): scenes and local files work without it")
    remarks += [f"{place} has {free / 2**30:.1f} GiB free" for place, free in report["disk"].items() if free < LITTLE]
    return report | {"remarks": remarks}


def _versions() -> dict[str, str]:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "missing"
    return installed


def _look_at_torch(report: dict[str, Any], remarks: list[str]) -> None:
    """Adds threads and devices; a torch that cannot be imported becomes a remark."""
    try:
        import torch
    except (ImportError, OSError) as error:
        remarks.append(f"torch cannot be imported ({first_sentences(error)}): install it for your machine")
        return
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # `extras` says it
    except (OSError, RuntimeError) as error:
        remarks.append(f"torchvision cannot be imported ({error}): install the one for torch {torch.__version__}")
    report["machine"]["threads"] = torch.get_num_threads()
    if not torch.accelerator.is_available():
        remarks.append("torch finds no GPU: the recipes on scenes are made for a CPU, the papers' recipes are not")
        return
    kind = torch.accelerator.current_accelerator()
    for number in range(torch.accelerator.device_count()):
        device: dict[str, Any] = {"device": f"{kind}:{number}"}
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(number)
            device |= {"name": properties.name, "memory": properties.total_memory}
        report["devices"].append(device)


def _hub() -> dict[str, Any]:
    from huggingface_hub import constants, get_token

    about: dict[str, Any] = {"address": constants.ENDPOINT, "token": get_token() is not None, "reached": None}
    if constants.HF_HUB_OFFLINE:
        return about
    from huggingface_hub import get_session

    try:
        get_session().get(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception as error:  # any: the library below may change
        return about | {"reached": False, "error": type(error).__name__}
    return about | {"reached": True}


def _disk() -> dict[str, int]:
    """Free bytes of the current folder and of the cache of Hugging Face."""
    from huggingface_hub import constants

    free = {}
    for place in (os.getcwd(), constants.HF_HOME):
        below = place
        while not os.path.isdir(below):
            below = os.path.dirname(below)
        free[place] = shutil.disk_usage(below).free
    return free


def to_text(report: dict[str, Any]) -> str:
    """The report as text, one fact a line."""
    machine, hub = report["machine"], report["hub"]
    state = {True: "reached", False: "not reached", None: "not asked"}[hub["reached"]]
    lines = [f"{name:20}{version}" for name, version in report["versions"].items()]
    lines += [f"{'system':20}{machine['system']}"]
    lines += [f"{'CPUs':20}{machine['cpus']}, torch uses {machine.get('threads', 'no')} threads"]
    lines += [f"{'GPU':20}{_device(device)}" for device in report["devices"] or [{}]]
    lines += [f"{'Hub':20}{hub['address']} {state}, {'a' if hub['token'] else 'no'} token"]
    lines += [f"{'free disk':20}{free / 2**30:,.1f} GiB in {place}" for place, free in report["disk"].items()]
    for extra, there in report["extras"].items():
        wanted = "installed" if there else f"not installed: pip install 'grounded-attention[{extra}]'"
        lines.append(f"{'extra ' + extra:20}{wanted}")
    return "\n".join([*lines, *(f"note: {remark}" for remark in report["remarks"])])


def _device(device: dict[str, Any]) -> str:
    if not device:
        return "none"
    memory = f", {device['memory'] / 2**30:.0f} GiB" if "memory" in device else ""
    return f"{device['device']} {device.get('name', '')}{memory}"


main = Program("doctor", doctor)
