# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The waiting process of `warm_python`: imports the libraries that it is given, then runs scripts in forks of itself.

It reads one request a line. A fork waits for the script, which runs in a fork of that one: it leaves the loop, and its
process ends as Python ends it. Scripts that import the project from the clone run in forks of a second waiting
process, a fork of the first that has imported it.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import types

from matplotlib.figure import Figure
from quick_figures import BLANK  # beside this file

PROJECT = ("grounded_attention.training.experiments.experiment", "grounded_attention.heads.ranking")
# Modules whose constants come from variables, each after those that it reads, and the libraries that copy constants.
SETTINGS = ("huggingface_hub.constants", "transformers.utils.hub", "datasets.config", "evaluate.config")
COPIES = ("huggingface_hub", "transformers", "datasets", "evaluate", "accelerate", "peft", "grounded_attention")


def read_variables_again():
    """Gives the libraries the constants that they would have, had they been imported with the variables of now."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in COPIES]
    for name in filter(sys.modules.get, SETTINGS):
        known = sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, known.__file__)
        fresh = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fresh)
        for constant, value in vars(fresh).items():
            before = vars(known).get(constant)
            if constant.isupper() and value != before:
                for module in modules:
                    if constant in vars(module) and vars(module)[constant] == before:
                        setattr(module, constant, value)
    sys.modules["huggingface_hub.hf_api"].api.endpoint = sys.modules["huggingface_hub.constants"].ENDPOINT


def import_all(names):
    """Imports modules, if they are there; a fork does not copy what its garbage collector would otherwise look at."""
    for name in names:
        with contextlib.suppress(ImportError):  # an optional library
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


import_all(sys.argv[1:])
gc.set_threshold(50_000, 20, 20)  # as `conftest.py` has it
print("ready", flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
requests = open(os.dup(0))
project = None
while True:
    line = requests.readline()
    if not line:
        os._exit(0)
    request = json.loads(line)
    if request["clone"] and requests is not project:
        if project is None:
            read, write = os.pipe()
            if os.fork() == 0:
                os.close(write)
                requests = project = open(read)
                sys.path.insert(0, request["clone"])
                import_all(PROJECT)
                continue
            os.close(read)
            project = open(write, "w", buffering=1)
        project.write(line)
        continue
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    script = os.fork()
    if script == 0:
        break
    with open(request["status"], "w", buffering=1) as status:
        print(script, file=status)
        print(os.waitstatus_to_exitcode(os.waitpid(script, 0)[1]), file=status)
    os._exit(0)
os.chdir(request["cwd"])
for descriptor, name, flags in (
    (0, os.devnull, os.O_RDONLY),
    (1, request["stdout"], os.O_WRONLY),
    (2, request["stderr"], os.O_WRONLY),
):
    opened = os.open(name, flags)
    os.dup2(opened, descriptor)
    os.close(opened)
os.environ.clear()
os.environ.update(request["environment"])
if request["variables_differ"]:
    read_variables_again()
if "WHITE_FIGURES" in os.environ:
    for name, stand_in in BLANK.items():
        setattr(Figure, name, stand_in)
paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
sys.path[:] = ["", *paths, *request["sys_path"]]
sys.argv[:] = ["-c", *request["arguments"]]
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__builtins__ = __builtins__
exec(compile(request["code"], "<string>", "exec"), main.__dict__)
