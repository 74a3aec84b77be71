# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which commands there are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("attention_supervision", "benchmarks", "dataset_scripts", "evaluation", "modeling", "processing", "tasks")
FILES = [*ROOT.glob("*.py"), *(path for folder in (*FOLDERS, "training") for path in (ROOT / folder).rglob("*.py"))]
# As they are called -> the module: a package that is a command has `__main__`.
MODULES = {
    module.removesuffix(".__main__"): module
    for path in FILES
    for module in [".".join(path.relative_to(ROOT).with_suffix("").parts)]
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
}
COMMANDS = sorted(MODULES)
