# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every fixture-hungry test shares: an offline Hub and, where present, the folder of real excerpts."""

import gc
import logging
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.quick_figures import BLANK

os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny models: a second thread would only wait, here and in the processes that tests start. torch reads it at import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Checkpoints' code, apart from the user's and from that of tests in another process.
_MODULES = tempfile.TemporaryDirectory(prefix="checkpoint_code_")
os.environ["HF_MODULES_CACHE"] = _MODULES.name


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No garbage collection while ten thousand tests are found: they stay."""
    gc.disable()
    found = yield
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # later it is rare; that saves a few percent at most
    gc.enable()
    return found


@pytest.fixture(autouse=True, scope="module")
def frozen_heap():
    """Leaves libraries out of garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def quick_trainings():
    """No full garbage collection before each training, a quarter of a tiny one, and no wait for the disk after it."""
    from accelerate.utils import memory  # it reads the environment set above

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "gc", SimpleNamespace(collect=lambda: gc.collect(1)))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def figures(request):
    """White figures, unless a module is marked `drawn_figures`: drawing takes most of the time of a tiny training.

    Scripts in forks of the waiting process of `warm_python` have them by the variable.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("drawn_figures") is None:
            for name, stand_in in BLANK.items():
                patch.setattr(Figure, name, stand_in)
            patch.setenv("WHITE_FIGURES", "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def quick_ends_of_loaders():
    """PyTorch waits five seconds for a worker of a loader that the garbage collector ends; here half a second."""
    from torch.utils.data import _utils  # torch reads the environment set above

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


@pytest.fixture(autouse=True)
def plain_logging():
    """Loggers as a new process has them: a command that a test runs in this process may have made them quiet."""
    from transformers.utils import logging as transformers_logging  # it reads the environment set above

    if transformers_logging.get_verbosity() != logging.WARNING:  # each change goes through all loggers
        transformers_logging.set_verbosity_warning()
    pipeline = logging.getLogger("grounded_attention.modeling.pipeline_visual_grounding")
    if pipeline.level != logging.NOTSET:
        pipeline.setLevel(logging.NOTSET)


@pytest.fixture
def fresh_compiler():
    """torch.compile without what it compiled in other tests: for a second shape it compiles in another way."""
    import torch  # it reads the environment set above

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def uncompiled():
    """FlexAttention computed operator by operator; its C++ takes half a minute to compile the first time."""
    import torch  # it reads the environment set above

    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A few drawn scenes for the tests of a file, none of which changes them."""
    from tests.helpers.tiny_scenes import tiny_scenes  # it imports torch

    return tiny_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="session")
def shared():
    """The `shared` folder beside the checkout (real excerpts, reference tensors); the test is skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}, which is not part of the project")
    return folder


@pytest.fixture
def loopback_hub(tmp_path):
    """An empty Hub on this machine; processes work with it in `loopback_hub.environment(home)`."""
    with LoopbackHub(tmp_path / "loopback_hub") as hub:
        yield hub
