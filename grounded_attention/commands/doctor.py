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

from grounded_attention import __version__
from grounded_attention.utils.plain_text import first_sentences
from grounded_attention.utils.project import EXTRAS

from .command_line import Program, Result

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "huggingface-hub", "numpy", "pyarrow", "safetensors")
TIMEOUT = 5.0  # seconds for the answer of the Hub


def doctor() -> Result:
    """Examines this machine."""
    facts = examine()
    return facts, "\n".join(f"{name:20}{fact}" for name, fact in facts.items())


def examine() -> dict[str, str]:
    """Name of a fact -> what this machine has."""
    facts = {"grounded-attention": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "missing"
    facts |= _torch() | {"Hub": _hub()}
    for place in (os.getcwd(), os.path.expanduser("~")):
        facts[f"free in {place}"] = f"{shutil.disk_usage(place).free / 2**30:,.1f} GiB"
    for extra, names in EXTRAS.items():
        there = all(map(importlib.util.find_spec, names))
        facts[f"extra {extra}"] = "installed" if there else f"not: pip install 'grounded-attention[{extra}]'"
    return facts


def _torch() -> dict[str, str]:
    """Threads and devices; a note that torch, or the torchvision beside it, cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"note": f"torch cannot be imported ({first_sentences(error)}): install it for your machine"}
    facts = {"CPUs": f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads", "GPU": "none"}
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass  # the extras say it
    except (OSError, RuntimeError) as error:
        where = f"install the one for torch {torch.__version__}"
        facts["note"] = f"torchvision cannot be imported ({first_sentences(error)}): {where}"
    if torch.accelerator.is_available():
        facts["GPU"] = f"{torch.accelerator.device_count()} x {torch.accelerator.current_accelerator()}"
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts["GPU"] += f", {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return facts


def _hub() -> str:
    from huggingface_hub import constants, get_session, get_token

    about = f"{constants.ENDPOINT}, {'a' if get_token() else 'no'} token"
    if constants.HF_HUB_OFFLINE:
        return f"{about}, not asked"
    try:
        get_session().get(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception as error:  # any: the library below may change
        return f"{about}, not reached: {type(error).__name__}"
    return f"{about}, reached"


main = Program("doctor", doctor)
