# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of a checkpoint that two readers would read in two ways are refused; a token of the Hub is not printed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from grounded_attention.commands.main import main
from grounded_attention.conversion.file import CheckpointError, check_family
from grounded_attention.supervision import get_method
from grounded_attention.training.recipes.adapters import base_of, load_base_model
from tests.helpers.tiny_vgp import tiny_model


@pytest.fixture
def checkpoint(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert base_of(str(tmp_path)) == str(tmp_path)
    return tmp_path


def test_a_key_that_is_twice_in_the_configuration(checkpoint):
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace("{", '{"hidden_size": 8,', 1))
    with pytest.raises(ValueError, match=r"config\.json.*'hidden_size' is there twice"):
        base_of(str(checkpoint))


def rewrite(path, change):
    """Changes the header of a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = change(content[8 : 8 + size].decode().rstrip()).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])


def test_a_weight_that_is_twice_in_the_header(checkpoint):
    def double(header):
        name, entry = json.loads(header).popitem()
        return f'{header[:-1]},"{name}":{json.dumps(entry)}}}'

    rewrite(checkpoint / "model.safetensors", double)
    with pytest.raises(ValueError, match=r"model\.safetensors.*is there twice"):
        base_of(str(checkpoint))


def test_weights_that_are_declared_as_whole_numbers(checkpoint):
    rewrite(checkpoint / "model.safetensors", lambda header: header.replace('"F32"', '"I32"', 1))
    with pytest.raises(ValueError, match=r"model\.safetensors: the weight .* is declared as I32"):
        base_of(str(checkpoint))


def test_weights_that_are_missing_are_not_drawn(checkpoint):
    weights = load_file(checkpoint / "model.safetensors")
    weights.pop("vl_bert.embeddings.word_embeddings.weight")
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing, such as embeddings\.word_embeddings"):
        load_base_model(str(checkpoint))


def test_quantised_weights_and_places_are_no_such(tmp_path):
    some = {"a.qweight": torch.zeros(2, dtype=torch.int32), "a.weight": torch.zeros(2, dtype=torch.int8)}
    save_file({**some, "position_ids": torch.arange(3)}, tmp_path / "model.safetensors")
    assert base_of(str(tmp_path)) == str(tmp_path)


def test_a_token_in_a_wrong_place_is_not_printed(capsys):
    token = "hf_" + "aB3" * 11
    options = ["training.push_to_hub=true", f"training.hub_model_id={token}/a b", "data.x=1"]
    assert main(["train", "scenes_vgp", *options]) == 2
    assert main(["train", f"{token}.yaml"]) == 2
    assert token not in "".join(capsys.readouterr())


def test_an_unknown_prefix_is_named():
    names = ["net.vlbert.word_embeddings.weight", "net.vlbert.pooler.weight"]
    with pytest.raises(CheckpointError, match=r"begin with 'net'.*VL-BERT"):
        check_family(names, "VL-BERT", ["VL-BERT"], "names")


@pytest.mark.parametrize("name", ["direct", "indirect", "grounding_alignment"])
def test_a_batch_without_phrases_is_no_key_error(name):
    batch = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3)}
    with pytest.raises(ValueError, match="phrase_mask: give phrases"):
        get_method(name).counts(batch)
