# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention export-model`: the folder that it writes, and what it refuses."""

import json
import shutil

import onnxruntime
import pytest
import torch
from transformers import AutoConfig, AutoProcessor

from grounded_attention.commands.export_model import main
from grounded_attention.modeling import VLBertForReferringExpression
from tests.helpers.tiny_checkpoint import save_checkpoint
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import save_llava


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with scenes and a checkpoint for referring expressions."""
    root = tmp_path_factory.mktemp("places")
    scenes = tiny_scenes(root / "scenes")
    save_checkpoint(scenes, root / "model", "referring_expressions")
    return root


def test_onnx_of_a_checkpoint_scores_as_the_checkpoint(places, capsys):
    output = places / "onnx"
    assert main([str(places / "model"), "--int8", "--json", "--output", str(output)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed["files"]) == ["onnx/model.onnx", "onnx/model_int8.onnx"] and printed["outputs"] == ["logits"]
    assert all((output / name).stat().st_size == size for name, size in printed["files"].items())
    card = (output / "README.md").read_text()
    assert all(f"| `{name}` | {form.partition(' ')[2]} |" in card for name, form in printed["inputs"].items())
    assert AutoConfig.from_pretrained(output).architectures == ["VLBertForReferringExpression"]

    processor = AutoProcessor.from_pretrained(output)
    batch = processor(
        ["a red ball", "a blue cube left of a ball"],
        region_features=[torch.rand(2, processor.region_feature_size), torch.rand(3, processor.region_feature_size)],
        region_boxes=[torch.tensor([[0, 0, 9, 9], [1, 2, 5, 6]]), torch.tensor([[0, 0, 8, 9]] * 3)],
        image_sizes=[(10, 10), (10, 10)],
        return_tensors="pt",
    )
    with torch.no_grad():
        expected = VLBertForReferringExpression.from_pretrained(places / "model").eval()(**batch).logits
    for name in printed["files"]:
        session = onnxruntime.InferenceSession(output / name)
        found = session.run(None, {each.name: batch[each.name].numpy() for each in session.get_inputs()})[0]
        tolerance = 0.05 if "int8" in name else 1e-4
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=tolerance, rtol=tolerance)


def test_a_graph_of_torch_with_attention_maps(places, capsys):
    output = places / "graph"
    options = ["--format", "torch", "--attentions", "--output", str(output)]
    assert main([str(places / "model"), *options]) == 0
    assert "input_ids              int64 (batch, words)" in capsys.readouterr().out
    program = torch.export.load(output / "torch" / "model.pt2")
    inputs = {
        "input_ids": torch.tensor([[2, 6, 7, 3]]),
        "attention_mask": torch.ones(1, 4, dtype=torch.long),
        "token_type_ids": torch.zeros(1, 4, dtype=torch.long),
        "region_features": torch.rand(1, 3, 2048),
        "region_boxes": torch.rand(1, 3, 4),
        "region_attention_mask": torch.ones(1, 3, dtype=torch.long),
    }
    found = program.module()(**inputs)
    maps = [value for name, value in found.items() if name.startswith("attentions_")]
    assert [value.shape for value in maps] == [(1, 2, 8, 8)] * 2
    for value in maps:
        torch.testing.assert_close(value.sum(-1), torch.ones(1, 2, 8))


def test_what_is_refused_in_one_line(places, tmp_path, capsys):
    save_llava(places / "scenes" / "vocab.txt", tmp_path / "llava")
    bare = shutil.copytree(places / "model", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    model, new = str(places / "model"), str(tmp_path / "new")
    capsys.readouterr()  # what saving has printed
    for arguments, message in (
        ([str(tmp_path / "llava"), "--output", new], "a vision-language model is not exported; expected a model of"),
        ([str(bare), "--output", new], "model.safetensors"),
        ([model, "--int8", "--format", "torch", "--output", new], "--int8 writes ONNX"),
        ([model, "--output", str(tmp_path / "full")], "exists and is not empty"),
    ):
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and len(printed.err.strip().splitlines()) == 1 and message in printed.err, printed.err
        assert not (tmp_path / "new").exists()
