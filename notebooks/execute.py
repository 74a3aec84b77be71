# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Executes the notebooks of this folder and stores their outputs: `make notebooks`.

    python -m notebooks.execute                          # all of them
    python -m notebooks.execute your_own_image           # one

Each runs in a kernel of its own, offline, with one thread, all in one temporary folder: they share the drawn scenes.
Stored pictures are scaled down and have few colours, so that a notebook stays small.
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

from grounded_attention.utils.whole_files import write_text

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PNG, JPEG = "image/png", "image/jpeg"
WIDEST, COLOURS = 600, 64
LONGEST = 1800  # seconds of a cell, on a machine with other work


def read(name: str) -> Any:
    """The notebook in the file `name`.ipynb of this folder."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(notebook: Any, folder: Path) -> Any:
    """Runs a notebook in a folder.

    Args:
        notebook (`NotebookNode`): see `read`. Its outputs are replaced.
        folder (`Path`): where the notebook reads and writes.

    Returns:
        `NotebookNode`: the notebook with its outputs as they are stored.

    Raises:
        CellExecutionError: if a cell raises an error.
    """
    metadata = dict(notebook.metadata)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=LONGEST,
        startup_timeout=LONGEST,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # it warns that it listens on this machine
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment(folder))
    notebook.metadata = metadata  # without the version of this Python
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if PNG in data:
                data[PNG] = shrink(data[PNG])
                data.pop(JPEG, None)  # the same picture again
    return notebook


def environment(folder: Path) -> dict[str, str]:
    """Variables of a kernel: this clone, no network, one thread, nothing written to the user's folders."""
    paths = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # ipywidgets would draw progress bars
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "HF_MODULES_CACHE": str(folder / "code"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def shrink(picture: str) -> str:
    """A PNG file in base64, at most `WIDEST` pixels wide, with `COLOURS` colours."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    if image.width > WIDEST:
        image = image.resize((WIDEST, round(image.height * WIDEST / image.width)), Image.Resampling.LANCZOS)
    small = io.BytesIO()
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")


def to_text(notebook: Any) -> str:
    """The content of the file of a notebook."""
    return nbformat.writes(notebook, indent=1, ensure_ascii=False).rstrip("\n") + "\n"


def main(names: list[str]) -> int:
    """Executes notebooks and stores them; a notebook with an error keeps its old outputs."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"error: there is no notebook {', '.join(unknown)}; known are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        for name in names or NAMES:
            text = to_text(execute(read(name), Path(folder)))
            write_text(FOLDER / f"{name}.ipynb", text)
            print(f"notebooks/{name}.ipynb: {len(text.encode()) / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
