# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A model whose outputs are NaN or infinite gives no number, no box and no word: one line and status 2."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from grounded_attention.commands.main import main
from grounded_attention.modeling.finite_numbers import NotFiniteError, finite_scores
from grounded_attention.training.experiments.experiment import model_named
from tests.helpers.commands import read_error
from tests.helpers.project_files import PACKAGE, ROOT
from tests.helpers.tiny_trainer import make_trainer

SPACE = ROOT / PACKAGE / "space"
IMAGE = next((SPACE / "scenes").glob("*.jpg"))
REGIONS = ("--detector", "scenes", "--features", "scenes")
# Parts of the names of weights -> a factor with which they stay finite, and the outputs do not.
SPOILED = {
    "scores": (("query.weight", "key.weight", "q_proj.weight", "k_proj.weight"), 1e25),
    "feed forward": (("intermediate.dense.weight", "gate_proj.weight", "up_proj.weight"), 1e30),
    "values": (("value.weight", "v_proj.weight"), 1e38),
}


def spoil(source, folder, kind):
    parts, factor = SPOILED[kind]
    shutil.copytree(source, folder)
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    for name in [name for name in weights if name.endswith(parts)]:
        weights[name] = weights[name].float() * factor
    assert all(torch.isfinite(each).all() for each in weights.values())
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", SPOILED)
def test_commands_say_it_in_one_line_and_write_nothing(tmp_path, capsys, kind):
    region = spoil(SPACE / "models" / "direct", tmp_path / "region", kind)
    decoder = spoil(SPACE / "models" / "vlm" / "direct", tmp_path / "decoder", kind)
    made = tmp_path / "made"
    made.mkdir()
    calls = (
        ("ground", IMAGE, "a red plus", "--phrases", "a red plus", "--model", region, *REGIONS),
        ("ground", IMAGE, "a red plus", "--phrases", "a red plus", "--model", decoder),
        ("look", IMAGE, "a red plus", "--model", decoder),
        ("look", IMAGE, "a red plus", "--model", decoder, "--answer", "yes"),
        ("point", IMAGE, "a red plus", "--model", decoder),
    )
    for number, words in enumerate(calls):
        output = made / f"{number}{'.html' if words[0] == 'look' else '.png'}"
        assert main([*map(str, words), "--output", str(output)]) == 2, words
        assert "NaN or infinite" in read_error(capsys)
    assert not [*made.iterdir()]


def test_an_evaluation_has_no_numbers_and_names_the_model(tmp_path):
    trainer = make_trainer(tmp_path)
    assert trainer.measure(trainer.eval_dataset)["vgp_count"] > 0
    for name, weight in trainer.model.named_parameters():
        if name.endswith(("query.weight", "key.weight")):
            weight.data *= 1e30
    with pytest.raises(NotFiniteError, match=r"^direct: .*logits") as error, model_named("direct"):
        trainer.measure(trainer.eval_dataset)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_one_number_of_many_is_enough(value, kind):
    scores = torch.zeros(2, 3, 4, dtype=kind)
    assert finite_scores(scores) is scores
    assert finite_scores(scores[:0]).numel() == 0
    scores[1, 2, 3] = value
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        finite_scores(scores)
