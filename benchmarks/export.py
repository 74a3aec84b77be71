# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Size, speed and accuracy of exported models: ONNX with 32-bit and with 8-bit weights, compared to PyTorch.

Speed: VL-BERT of base width with random weights for visual question answering, 16 words and 36 regions. The ways take
turns; a figure is the median and the range over rounds of the time of PyTorch divided by that of the way, in CPU
seconds of the process, which other processes change little.

Accuracy, with --model: a checkpoint for visually grounded paraphrases on the validation rows of --data-dir. The
figures are the largest difference of a score from that of PyTorch, the share of rows with the same answer, and the
accuracy.

examples:
  OMP_NUM_THREADS=1 python -m benchmarks.export --rounds 5
  python -m benchmarks.export --quick
  python -m benchmarks.export --layers 2 --model runs/scenes_vgp/direct --data-dir data/scenes
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks.measuring import benchmark_parser, quotients, report, take_turns
from benchmarks.pretraining_step import TINY, make_batches
from grounded_attention.commands.command_line import run
from grounded_attention.conversion.export_graph import NamedScores, export_graph, output_names, write_int8, write_onnx
from grounded_attention.conversion.export_inputs import export_inputs
from grounded_attention.modeling import VLBertConfig, VLBertForVisualQuestionAnswering
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.experiments.scoring import make_scorer
from grounded_attention.training.recipes.recipe import Data, Recipe

PYTORCH, ONNX, INT8 = "PyTorch", "ONNX", "ONNX int8"
WORDS, REGIONS = 16, 36
Batch = Mapping[str, torch.Tensor]
Ratios = dict[str, dict[str, list[float]]]
Way = Callable[[Batch], dict[str, np.ndarray]]


def make_ways(model: Any, folder: Path) -> tuple[dict[str, Way], dict[str, int]]:
    """Exports a model; returns its ways to compute by name, and the sizes of the files in bytes."""
    import onnxruntime

    inputs = export_inputs(model)
    program, scores = export_graph(model, inputs), NamedScores(model, inputs)
    names = [each.name for each in inputs]
    files = {ONNX: folder / "model.onnx", INT8: folder / "model_int8.onnx"}
    write_onnx(program, inputs, files[ONNX])
    write_int8(files[ONNX], files[INT8])

    def run_torch(batch: Batch) -> dict[str, np.ndarray]:
        with torch.no_grad():
            return {name: value.numpy() for name, value in scores(**{name: batch[name] for name in names}).items()}

    def make_way(file: Path) -> Way:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(file, options)

        def run_session(batch: Batch) -> dict[str, np.ndarray]:
            outputs = session.run(None, {name: batch[name].numpy() for name in names})
            return dict(zip(output_names(program), outputs, strict=True))

        return run_session

    ways: dict[str, Way] = {PYTORCH: run_torch, **{name: make_way(file) for name, file in files.items()}}
    sizes = {PYTORCH: sum(weight.nbytes for weight in model.state_dict().values())}
    # Weights of more than 2 GB are in a file beside the model.
    return ways, sizes | {
        way: sum(p.stat().st_size for p in folder.glob(f"{file.name}*")) for way, file in files.items()
    }


def make_base(options: argparse.Namespace) -> Any:
    """VL-BERT of base width with random weights and 3,129 answers, as in VQA."""
    torch.manual_seed(0)
    answers = [f"answer {number}" for number in range(10 if options.quick else 3129)]
    layers = options.layers or (1 if options.quick else 12)
    config = VLBertConfig(**(TINY if options.quick else {}), num_hidden_layers=layers, answers=answers)
    return VLBertForVisualQuestionAnswering(config).eval()


def make_batch(rows: int, config: Any) -> Batch:
    """Random words and regions, without padding."""
    (batch,) = make_batches(config, rows, rows, (WORDS, WORDS), (REGIONS, REGIONS))
    names = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
    more = {"token_type_ids": torch.zeros_like(batch["input_ids"]), "answer_positions": torch.ones(rows).long()}
    return {name: batch[name] for name in names} | more


def measure_speed(options: argparse.Namespace, folder: Path) -> Ratios:
    """Size of each way of the base model, and its speed over PyTorch's in each round."""
    model = make_base(options)
    ways, sizes = make_ways(model, folder)
    numbers: Ratios = {f"base width, {way}": {"size": [size / sizes[PYTORCH]]} for way, size in sizes.items()}
    for rows in (1, 8):
        batch = make_batch(rows, model.config)
        for way in ways.values():
            way(batch)
        times = take_turns({name: partial(way, batch) for name, way in ways.items()}, options.rounds)
        for name, taken in times.items():
            numbers[f"base width, {name}"][f"speed, batch {rows}"] = quotients(times[PYTORCH], taken)
    return numbers


def measure_accuracy(options: argparse.Namespace, folder: Path) -> Ratios:
    """By way: the largest difference of a score, the share of equal answers, and the accuracy of identification."""
    data = Data(
        data_dir=options.data_dir,
        regions=str(Path(options.data_dir, "regions")),
        train_splits=["validation"],
        limit={"validation": options.limit},
        options={"splits": ["validation"]},
    )
    recipe = Recipe("vgp", data=data, training={"per_device_eval_batch_size": 16, "use_cpu": True})
    prepared = prepare_data(recipe)
    trainer = make_scorer(recipe, options.model, prepared, str(folder / "scorer"))
    ways, sizes = make_ways(trainer.model.eval(), folder)
    rows = prepared.splits["validation"]
    collator: Any = trainer.data_collator
    loader = DataLoader(rows, 16, collate_fn=collator.evaluating(rows))
    outputs_of: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in ways}
    labels = []
    for batch in loader:
        labels.append(batch["identification_labels"].numpy())
        for name, way in ways.items():
            outputs_of[name].append(way(batch))
    exact, gold = outputs_of[PYTORCH], np.concatenate(labels)
    expected = _answers(exact)
    numbers: Ratios = {}
    for name, outputs in outputs_of.items():
        apart = [np.abs(one[key] - other[key]).max() for one, other in zip(outputs, exact, strict=True) for key in one]
        numbers[f"trained, {name}"] = {
            "size": [sizes[name] / sizes[PYTORCH]],
            "difference": [float(max(apart))],
            "same answer": [float((_answers(outputs) == expected).mean())],
            "accuracy": [float((_answers(outputs) == gold).mean())],
        }
    return numbers


def _answers(outputs: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    return np.concatenate([each["identification_logits"].argmax(-1) for each in outputs])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as trained:
        numbers = measure_speed(options, Path(base))
        if options.model:
            numbers |= measure_accuracy(options, Path(trained))
    return report(numbers, options.json)


def _parser() -> argparse.ArgumentParser:
    parser = benchmark_parser("export", __doc__, rounds=5)
    add = parser.add_argument
    add("--layers", type=int, help="layers of the model of base width (12)")
    add("--model", help="checkpoint for visually grounded paraphrases, to measure accuracy")
    add("--data-dir", default="data/scenes", help="its data set, with regions (data/scenes)")
    add("--limit", type=int, default=400, help="rows to measure accuracy on (400)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
