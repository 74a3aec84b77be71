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
from pathlib import Path
from typing import Any

from grounded_attention import __version__
from grounded_attention.utils.extras import EXTRAS
from grounded_attention.utils.plain_text import first_sentences

from .command_line import Program

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "huggingface-hub", "numpy", "pyarrow", "safetensors")
TIMEOUT = 5.0  # seconds for the answer of the Hub


def doctor() -> tuple[Any, str]:
    """Examines this machine."""
    machine = examine()
    return machine, to_text(machine)


def examine() -> dict[str, Any]:
    """Collects the facts of the report."""
    versions = {"grounded-attention": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "missing"
    return {
        "versions": versions,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "torch": _torch(),
        "hub": _hub(),
        "disk": _disk(),
        "extras": {extra: all(map(importlib.util.find_spec, names)) for extra, names in EXTRAS.items()},
    }


def _torch() -> dict[str, Any]:
    """Threads and devices; `error`: that torch, or the torchvision beside it, cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": f"torch cannot be imported ({first_sentences(error)}): install it for your machine"}
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "devices": {}}
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # `extras` says it
    except (OSError, RuntimeError) as error:
        where = f"install the one for torch {torch.__version__}"
        found["error"] = f"torchvision cannot be imported ({first_sentences(error)}): {where}"
    for number in range(torch.accelerator.device_count()):
        name = f"{torch.accelerator.current_accelerator()}:{number}"
        found["devices"][name] = ""
        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(number)
            found["devices"][name] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return found


def _hub() -> dict[str, Any]:
    from huggingface_hub import constants, get_session, get_token

    about: dict[str, Any] = {"address": constants.ENDPOINT, "token": get_token() is not None, "reached": None}
    if constants.HF_HUB_OFFLINE:
        return about
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
        below = next(folder for folder in (Path(place), *Path(place).parents) if folder.is_dir())
        free[place] = shutil.disk_usage(below).free
    return free


def to_text(report: dict[str, Any]) -> str:
    """The report as text, one fact a line."""
    hub = report["hub"]
    torch = report["torch"]
    state = {True: "reached", False: f"not reached: {hub.get('error')}", None: "not asked"}[hub["reached"]]
    facts = [*report["versions"].items(), ("system", report["machine"]["system"])]
    facts.append(("CPUs", f"{report['machine']['cpus']}, torch uses {torch.get('threads', 'no')} threads"))
    facts += [("GPU", f"{name} {about}") for name, about in torch.get("devices", {}).items()] or [("GPU", "none")]
    facts.append(("Hub", f"{hub['address']} {state}, {'a' if hub['token'] else 'no'} token"))
    facts += [("free disk", f"{free / 2**30:,.1f} GiB in {place}") for place, free in report["disk"].items()]
    for extra, there in report["extras"].items():
        wanted = "installed" if there else f"not installed: pip install 'grounded-attention[{extra}]'"
        facts.append((f"extra {extra}", wanted))
    facts += [("note", torch["error"])] if "error" in torch else []
    return "\n".join(f"{name:20}{fact}" for name, fact in facts)


main = Program("doctor", doctor)
