# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How time grows with the number of images: drawing scenes, building rows, importing features, auditing heads.

Every size is measured in this process with one thread, in CPU seconds, which other processes change little. The
exponent e of seconds = c * images ** e is the slope of a straight line through the logarithms: 1 is proportional. A
part that is the same for every size makes it smaller, a part that grows with the square makes it larger. The audit is
that of a tiny untrained model over the training captions. All files are in a temporary folder.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.growth
  OMP_NUM_THREADS=1 python -m benchmarks.growth --sizes 250 500 1000 2000 --figure docs/images/growth.png
"""

import argparse
import base64
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import numpy as np

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.reports.figure_style import BLUE, DPI, GREEN, PURPLE, VERMILLION, WIDTH, save

SIZES = (250, 500, 1000, 2000)
WARM_UP = 20  # images; first calls import modules
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
STYLES = ((VERMILLION, "o", "-"), (BLUE, "s", "--"), (GREEN, "^", "-."), (PURPLE, "D", ":"))


def draw_scenes(folder: Path, images: int) -> None:
    """`grounded-attention data scenes`."""
    from grounded_attention.dataset_scripts.scenes.dataset import write_scenes

    write_scenes(folder / "scenes", images, seed=0)


def build_rows(folder: Path, images: int) -> None:
    """`grounded-attention data build flickr30k_entities`."""
    from grounded_attention.commands import build_data

    arguments = ["flickr30k_entities", "--data-dir", str(folder / "scenes"), "--output", str(folder / "rows")]
    if build_data.main([*arguments, "--json"]):
        raise RuntimeError("the rows could not be built")


def import_features(folder: Path, images: int) -> None:
    """`grounded-attention regions import`, of a file in the format of bottom-up attention."""
    from grounded_attention.commands.import_regions import import_regions

    import_regions([folder / "features.tsv"], "butd_tsv", folder / "imported", progress=False)


def load_audit(folder: Path) -> tuple[Any, Any, Any, RegionTable]:
    """A tiny untrained model, its processor, the rows of the training split, and their region table."""
    import datasets
    from transformers import BertTokenizer

    from grounded_attention import VLBertConfig, VLBertModel, VLBertProcessor

    words = (folder / "scenes" / "vocab.txt").read_text(encoding="utf-8").split()
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    model = VLBertModel(VLBertConfig(vocab_size=len(words), **TINY))
    files = str(folder / "rows" / "*train*.parquet")
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(folder / "cache"))
    return model, VLBertProcessor(tokenizer), rows, RegionTable.open(folder / "scenes" / "regions")


def audit_heads(folder: Path, images: int) -> None:
    """`grounded_attention.audit` of the captions of the training split."""
    from grounded_attention import audit
    from grounded_attention.heads.examples import entity_examples

    model, processor, rows, table = load_audit(folder)
    audit(model, processor, entity_examples(rows), table, progress=False)


STEPS: dict[str, Callable[[Path, int], None]] = {
    "scenes": draw_scenes,
    "rows": build_rows,
    "import": import_features,
    "audit": audit_heads,
}


def write_features(table: RegionTable, path: Path) -> None:
    """Writes a region table as a file of bottom-up attention; not timed."""
    with open(path, "wb") as file:
        for number, image_id in enumerate(table):
            row = table[image_id]
            size = np.array([row.width, row.height] * 2, dtype=np.float32)
            arrays = (row.boxes * size, row.features.astype(np.float32))
            fields = [str(number), str(row.width), str(row.height), str(len(row))]
            file.write("\t".join(fields).encode())
            file.write(b"".join(b"\t" + base64.b64encode(np.ascontiguousarray(array)) for array in arrays) + b"\n")


def measure(images: int) -> dict[str, float]:
    """Returns step -> CPU seconds."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        place = Path(folder)
        for name, step in STEPS.items():
            if name == "import":
                write_features(RegionTable.open(place / "scenes" / "regions"), place / "features.tsv")
            begin = time.process_time()
            step(place, images)
            seconds[name] = time.process_time() - begin
    return seconds


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Returns the slope of the straight line through the logarithms."""
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(slope)


def growth_figure(seconds: Mapping[str, Sequence[float]], sizes: Sequence[int], path: str | Path) -> None:
    """Draws the seconds of every step, divided by those of the smallest size, on logarithmic axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, NullLocator

    figure = Figure(figsize=(0.76 * WIDTH / DPI, 4), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.plot(sizes, [size / sizes[0] for size in sizes], color="black", lw=1, label="proportional (1.00)")
    for (name, taken), (colour, marker, line) in zip(seconds.items(), STYLES, strict=True):
        label = f"{name} ({exponent(sizes, taken):.2f})"
        axes.plot(sizes, np.array(taken) / taken[0], color=colour, marker=marker, ls=line, lw=1.6, ms=5, label=label)
    axes.set(xscale="log", yscale="log", xlabel="images", ylabel=f"CPU time / that of {sizes[0]} images")
    ticks = [2**power for power in range(8) if 2**power <= 1.5 * sizes[-1] / sizes[0]]
    for axis, values in ((axes.xaxis, sizes), (axes.yaxis, ticks)):
        axis.set_ticks(values, [f"{value:,}" for value in values])
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.grid(lw=0.4, color="#dddddd")
    axes.legend(title="step (exponent)", frameon=False)
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.growth", __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images (default: %(default)s)")
    parser.add_argument("--figure", metavar="FILE", help="also draw the times, to a .png, .pdf or .svg file")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON instead")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    """The CPU seconds of each step and size, and the exponents."""
    import torch

    sizes = sorted(set(options.sizes))
    if len(sizes) < 2 or sizes[0] < WARM_UP:
        raise ValueError(
            f"--sizes {' '.join(map(str, sizes))}: give two or more different sizes of at least {WARM_UP}"
        )
    torch.set_num_threads(1)
    measure(WARM_UP)
    found: list[dict[str, float]] = []
    for size in sizes:
        found.append(measure(size))
        if not options.quiet:
            print(f"{size} images: {found[-1]}", file=sys.stderr, flush=True)
    seconds = {name: [each[name] for each in found] for name in STEPS}
    if options.figure:
        growth_figure(seconds, sizes, options.figure)
    if options.json:
        return json.dumps({"sizes": sizes, "seconds": seconds})
    head = f"{'CPU seconds':<12}" + "".join(f"{size:>10,}" for size in sizes) + f"{'exponent':>10}"
    return "\n".join([head, *(_line(name, sizes, taken) for name, taken in seconds.items())])


def _line(name: str, sizes: Sequence[int], taken: Sequence[float]) -> str:
    return f"{name:<12}" + "".join(f"{value:>10.2f}" for value in taken) + f"{exponent(sizes, taken):>10.2f}"


if __name__ == "__main__":
    sys.exit(main())
