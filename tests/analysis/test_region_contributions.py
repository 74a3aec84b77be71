# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Contributions of regions against small changes of what one head reads, with everything else held as it was."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from grounded_attention.analysis.relevancy import region_contributions, region_maps
from grounded_attention.heads.attention_readers import AttentionReader, reading
from tests.helpers.explained_models import answered, identified, lively, lxmert, tiny_inputs, vilbert, visualbert

STEP = 1e-4


MODELS = {
    "vl_bert": (lively, identified),
    "visualbert": (visualbert, identified),
    "vilbert": (vilbert, answered),
    "lxmert": (lxmert, answered),
}


class Held:
    """Holds all linear layers off the path and the statistics of all norms of an encoder as they were."""

    def __init__(self, encoder):
        self.linear = {}
        self.norms = {}
        for name, module in encoder.named_modules():
            if isinstance(module, nn.LayerNorm):
                self.norms[module] = []
            elif isinstance(module, nn.Linear) and not projects(name):
                self.linear[module] = []

    def record(self, run):
        hooks = {module: partial(keep_output, kept) for module, kept in self.linear.items()}
        hooks |= {module: partial(keep_input, kept) for module, kept in self.norms.items()}
        return with_hooks(hooks, run)

    def run(self, run):
        hooks = {module: partial(give, iter(kept)) for module, kept in self.linear.items()}
        hooks |= {module: partial(held_norm, iter(kept)) for module, kept in self.norms.items()}
        return with_hooks(hooks, run)


def with_hooks(hooks, run):
    with ExitStack() as stack:
        for module, hook in hooks.items():
            stack.callback(module.register_forward_hook(hook).remove)
        return run()


def keep_output(kept, module, args, output):
    kept.append(output)


def keep_input(kept, module, args, output):
    kept.append(args[0])


def give(kept, module, args, output):
    return next(kept)


def projects(name):
    return (
        (".output.dense" in f".{name}" and "attention" in name)
        or "biOutput.dense" in name
        or "self_att.output" in name
    )


def held_norm(kept, module, args, output):
    before = next(kept)
    states = args[0]
    spread = (before.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    return module.weight * (states - states.mean(-1, keepdim=True)) / spread + module.bias


class Changed(AttentionReader):
    """Adds to what one call gives, STEP times what head `head` reads at `column` in row 0."""

    def __init__(self, attentions, call, head, column, step):
        self.attentions, self.call, self.head, self.column, self.step = attentions, call, head, column, step
        self.number = -1

    def keep_output(self, module, value, output):
        self.number += 1
        if self.number != self.call:
            return output
        changed = output.clone()
        share = self.attentions[self.call][:, self.head, 0, self.column, None]
        changed[:, 0, self.head] += self.step * share * value[:, self.head, self.column]
        return changed


@pytest.mark.parametrize("family", MODELS)
def test_contributions_are_what_small_changes_do(family):
    make, read_out = MODELS[family]
    model = make().double().eval()
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in tiny_inputs().items()}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    with torch.enable_grad():
        found = region_contributions(model, inputs, read_out, attentions)
    encoder = model.base_model.encoder
    held = Held(encoder)
    with torch.no_grad():
        held.record(lambda: model(**inputs, return_dict=True))

        def score(*change):
            with reading(model, Changed(attentions, *change)):
                return held.run(lambda: read_out(model(**inputs, return_dict=True), inputs).score)

        largest = 0.0
        for call, added in enumerate(found):
            heads = attentions[call].shape[1]
            for column in (0, attentions[call].shape[-1] - 1):
                expected = 0.0
                for head in range(heads):
                    change = score(call, head, column, STEP) - score(call, head, column, -STEP)
                    expected = expected + change / (2 * STEP)
                assert_close(added[:, 0, 0, column].double(), expected, atol=1e-6, rtol=1e-4)
                largest = max(largest, float(expected.abs().max()))
    assert largest > 1e-3


def test_the_map_is_the_row_of_the_read_out():
    model = lively()
    found = region_maps(model, tiny_inputs(), identified, ["contribution"])["contribution"]
    assert found.shape == (3, 4)
    assert found[0, 3] == 0  # a region that is not there
    assert (found != 0).sum() >= 11
