# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Commands of several processes or trainings: two ranks, loader workers, a study, vision-language models."""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import transformers
import yaml

from grounded_attention.commands import heads, train
from tests.helpers.tiny_scenes import tiny_recipe
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import CHAT_TEMPLATE, PROCESSORS, make_processor
from tests.helpers.tiny_vlm_relatives import RELATIVES

from .inputs import use_cache

STEPS = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant", "learning_rate": 1e-3}
LIMIT = {"train": 8, "validation": 2, "test": 2}
SMALL = {"max_steps": 1, "per_device_train_batch_size": 4, "logging_steps": 1, "disable_tqdm": True, "use_cpu": True}


def run_recipe(recipe):
    """Runs a recipe; the second run of a case finds the file of the first, as a user's second run does."""
    path = Path.cwd().parent / "recipe.yaml"  # without "..", or its writing would count as a file operation of the job
    if not path.exists():
        path.write_text(yaml.safe_dump(recipe))
    return train.main([str(path)])


def train_with(methods=("direct",), start=False, **training):
    """A job that trains two steps with these arguments, and saves after each; `start`: from a model trained before."""

    def work(base):
        use_cache(base)
        recipe = tiny_recipe(base / "scenes", Path("run"), resume=True, methods=list(methods))
        recipe["training"] |= {**STEPS, "max_steps": 2, **training}
        if start:
            recipe["start"] = {"task": "pretraining", "training": {**recipe["training"], "max_steps": 3}}
        recipe["data"]["limit"] = LIMIT
        return run_recipe(recipe)

    return work


STUDY = """
study: table
output_dir: run
seeds: [1]
rows: [original, direct]
against: [original]
original: {options: {relationship: false}}
fine_tuning: {task: vgp}
known_rows: {original: null, direct: {methods: [direct]}}
downstream: {vqa: {task: vqa, options: {answers: {fewest: 1}}}}
columns: [{name: VQA, task: vqa, split: validation, score: vqa_accuracy}]
"""


def study(base):
    """A study of two rows and one task: four trainings."""
    use_cache(base)
    recipe = tiny_recipe(base / "scenes", Path("run"))
    del recipe["data"]["limit"]
    limit = {"data": {"limit": LIMIT}, "training": SMALL}
    content = yaml.safe_load(STUDY)
    content["data"] = recipe["data"]
    content["original"] |= {"model": recipe["model"], **limit}
    content["fine_tuning"] |= limit
    content["downstream"]["vqa"] |= limit
    return run_recipe(content)


def _generation(base, model, **training):
    """Trains a vision-language model."""
    use_cache(base)
    recipe = tiny_recipe(base / "scenes", Path("run"), task="grounded_generation", resume=True)
    images = {"images": str(base / "scenes" / "flickr30k-images"), "regions": None, "limit": LIMIT}
    recipe["data"] = {**recipe["data"], **images}
    recipe["model"] = {"source": str(base / "vlm"), **model}
    recipe["training"] |= {**STEPS, "per_device_train_batch_size": 2, **training}
    return run_recipe(recipe)


def train_adapter(base):
    """Trains an adapter of a vision-language model."""
    return _generation(base, {"adapter": {"lora": {"r": 2, "target_modules": ["q_proj"]}}}, max_steps=2)


# One family of each kind of layout; their relatives share it.
WHOLE = [name for name in PROCESSORS if name not in RELATIVES]


def train_whole(family):
    """A job that trains all weights of a family's model, whose checkpoint may have the names of older versions."""

    def work(base):
        processor = make_processor(family)
        processor.chat_template = processor.chat_template or CHAT_TEMPLATE.replace("IMAGE", "<image>")  # PaliGemma
        type(processor).save_pretrained = lambda *given, **options: []  # a class of tests, which nothing could load
        transformers.AutoProcessor = SimpleNamespace(from_pretrained=lambda place, **settings: processor)
        return _generation(base, {"source": str(base / "vlms" / family)}, max_steps=2)

    return work


def write_whole(base):
    """Writes the models that `train_whole` trains."""
    for family in WHOLE:
        make_model(family, make_processor(family).tokenizer).save_pretrained(base / "vlms" / family)


def train_vlm(base):
    """Trains a vision-language model for one step, and keeps no checkpoint of the training."""
    return _generation(base, {}, max_steps=1, save_strategy="no")


def rank_heads(base):
    """Ranks the heads of a vision-language model."""
    use_cache(base)
    data = ["--data", "flickr30k_entities", "--data-dir", str(base / "scenes")]
    data += ["--images", str(base / "scenes" / "flickr30k-images"), "--limit", "2", "--ablate", "0"]
    return heads.main(["--model", str(base / "vlm"), *data, "--output", "ranked"])


def in_two_ranks(work):
    """A job that runs in two processes, forked with the variables of torchrun; like torchrun it ends with the first
    that fails."""

    def launch(base):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        running = {_rank(work, base, {**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")}
        failed = 0
        while running and not failed:
            time.sleep(0.02)
            for process in list(running):
                found, status = os.waitpid(process, os.WNOHANG)
                if found:
                    running.discard(process)
                    failed = failed or os.waitstatus_to_exitcode(status)
        for process in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        if failed == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return failed

    return launch


def _rank(work, base, environment):
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with the launcher
        os.environ.update(environment)
        status = work(base)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
