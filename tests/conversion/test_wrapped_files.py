# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What training loops put around weights and before their names changes nothing, in every family."""

import itertools

import pytest
import torch

from grounded_attention.conversion.fast_rcnn import FAST_RCNN
from grounded_attention.conversion.fields import CheckpointError
from grounded_attention.conversion.file import read_checkpoint
from grounded_attention.conversion.lxmert import LXMERT
from grounded_attention.conversion.vilbert import VILBERT
from grounded_attention.conversion.visualbert import VISUALBERT
from grounded_attention.conversion.vl_bert import VL_BERT
from tests.conversion.key_lists import read_key_list
from tests.conversion.resnet_checkpoints import make_resnet_checkpoint
from tests.helpers.vl_bert_checkpoints import vgp_checkpoint

FIRST = ("module.", "_orig_mod.", "model.", "_fsdp_wrapped_module.")
INSIDE = ("_checkpoint_wrapped_module.", "module._orig_mod.")


def bare(weights):
    return {key.removeprefix("module."): value for key, value in weights.items()}


@pytest.fixture(scope="module")
def originals(shared):
    """Family -> a bare state dict of its public code."""
    cases = torch.load(shared / "parity" / "visualbert.pt", weights_only=True)["cases"]
    return {
        VL_BERT: bare(vgp_checkpoint()[1]),
        VISUALBERT: cases[0]["state_dict"],
        FAST_RCNN: make_resnet_checkpoint(),
        VILBERT: bare(read_key_list(shared, "vilbert_pretrain_6l6c")),
        LXMERT: bare(read_key_list(shared, "lxmert_pretrain")),
    }


def wrapped(key, first, inside):
    """A key with prefixes in front and inside, and with the old names of a layer norm."""
    start, dot, rest = key.partition(".layer.0.")
    if "LayerNorm." in key:
        rest = (rest or start).replace(".weight", ".gamma").replace(".bias", ".beta")
        if not dot:
            start = ""
    return first + (start + dot + inside + rest if dot else rest or start)


@pytest.mark.parametrize("family", [VL_BERT, VISUALBERT, FAST_RCNN, VILBERT, LXMERT], ids=lambda family: family.title)
def test_prefixes_in_every_order(originals, family):
    weights = originals[family]
    expected = family.convert_state_dict(weights)
    pairs = itertools.pairwise([*FIRST, *FIRST[::-1]])  # each beside its neighbours, in both orders, and beside itself
    orders = [*pairs, ("module.", "module."), ("model.", "_orig_mod.", "module.")]
    for number, order in enumerate(orders):
        first = "".join(order)
        names = {wrapped(key, first, INSIDE[number % 2]): key for key in weights}
        found = family.convert_state_dict({name: weights[key] for name, key in names.items()})
        assert found.class_name == expected.class_name
        assert {names[name]: place for name, place in found.converted.items()} == expected.converted
        assert {names[name] for name in found.left_out} == set(expected.left_out)


@pytest.mark.parametrize(
    "names", [*itertools.permutations(("state_dict", "model", "module"), 2), ("model_state_dict",)]
)
def test_dictionaries_around_the_weights(tmp_path, names):
    content = {"a.weight": torch.ones(2)}
    for name in reversed(names):
        content = {name: content, "epoch": 3, "optimizer": {"param_groups": [{"params": [0, 1]}]}}
    torch.save(content, tmp_path / "x.model")
    file = read_checkpoint(tmp_path / "x.model")
    assert list(file.state_dict) == ["a.weight"]
    assert set(file.others) == {"epoch", "optimizer"}


def test_two_sets_of_weights_are_named(tmp_path):
    torch.save({"model": {"a": torch.ones(1)}, "state_dict": {"a": torch.zeros(1)}}, tmp_path / "x.model")
    with pytest.raises(CheckpointError, match=r"x\.model: weights under state_dict, model"):
        read_checkpoint(tmp_path / "x.model")
