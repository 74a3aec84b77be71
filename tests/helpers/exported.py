# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models of every family and head, their inputs of any size, and the graphs that `torch.export` makes of them."""

import inspect
from dataclasses import dataclass

import torch
from torch.export import Dim
from torch.testing import assert_close

from grounded_attention.families import FAMILIES
from tests.helpers import tiny_visualbert, tiny_vl_bert
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

# Example sizes of the named axes. They are different primes, so that the graph confuses no two of them.
PRIMES = {"batch": 2, "choices": 3, "pairs": 5, "phrases": 7, "regions": 11, "words": 13}
TEXTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class ModelInput:
    """An input of a model; axes with a name have any size."""

    name: str
    axes: tuple[str | int, ...]
    dtype: torch.dtype

    def example(self):
        """Zeros for indices and features, ones for masks, of the sizes `PRIMES`."""
        sizes = [PRIMES[axis] if isinstance(axis, str) else axis for axis in self.axes]
        made = torch.ones if self.name.endswith("mask") else torch.zeros
        return made(sizes, dtype=self.dtype)


def model_inputs(model):
    """The inputs of a model of one of the families, in order."""
    config = model.config
    name = type(model).__name__
    texts = ("batch", "choices", "words") if name.endswith("ForMultipleChoice") else ("batch", "words")
    inputs = [ModelInput(text, texts, torch.int64) for text in TEXTS]
    inputs += [
        ModelInput("region_features", ("batch", "regions", config.region_feature_size), torch.float32),
        ModelInput("region_boxes", ("batch", "regions", 4), torch.float32),
        ModelInput("region_attention_mask", ("batch", "regions"), torch.int64),
    ]
    if "task_ids" in inspect.signature(model.base_model.forward).parameters and config.task_specific_tokens:
        inputs.append(ModelInput("task_ids", ("batch",), torch.int64))
    read = inspect.signature(model.forward).parameters
    return inputs + [each for end, each in _TASK_INPUTS if name.endswith(end) and each.name in read]


_PHRASES = ModelInput("phrase_mask", ("batch", "phrases", "words"), torch.bool)
# End of a class name -> what this head reads, if its family does.
_TASK_INPUTS = (
    ("ForVGP", _PHRASES),
    ("ForVGP", ModelInput("phrase_pairs", ("batch", "pairs", 2), torch.int64)),
    ("ForPhraseGrounding", _PHRASES),
    ("ForVisualQuestionAnswering", ModelInput("answer_positions", ("batch",), torch.int64)),
    ("ForVisualReasoning", ModelInput("region_token_type_ids", ("batch", "regions"), torch.int64)),
)


MAKERS = {
    "vl_bert": (tiny_vl_bert.make_model, {"num_hidden_layers": 1}),
    "visualbert": (tiny_visualbert.make_model, {"num_hidden_layers": 1}),
    "vilbert": (make_vilbert, {"num_hidden_layers": 1, "v_num_hidden_layers": 1}),
    "lxmert": (make_lxmert, {"l_layers": 1, "r_layers": 1, "x_layers": 1}),
}
SIZES = (
    {"batch": 3, "choices": 2, "words": 6, "regions": 4, "phrases": 3, "pairs": 2},
    {"batch": 1, "choices": 4, "words": 2, "regions": 1, "phrases": 1, "pairs": 1},
)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def tiny_model(family, head, **fields):
    """A model with one layer of each kind; `head` `None` is the base model."""
    make, sizes = MAKERS[family]
    entry = FAMILIES[family]
    return make(entry.base_model if head is None else entry.heads[head], **{**sizes, **fields})


def draw_inputs(inputs, sizes):
    """Random inputs. Row b has b + 2 words; the last row has no region, unless it is the only one."""
    generator = torch.Generator().manual_seed(0)
    drawn = {}
    for each in inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in each.axes]
        if each.dtype == torch.float32:
            drawn[each.name] = torch.rand(shape, generator=generator)
        else:
            high = {"input_ids": 40, "region_token_type_ids": 2, "phrase_pairs": sizes["phrases"]}.get(each.name, 1)
            drawn[each.name] = torch.randint(0, high, shape, generator=generator)
    rows = torch.arange(sizes["batch"])[:, None]
    words = torch.arange(sizes["words"]) < rows + 2
    regions = torch.ones(sizes["batch"], sizes["regions"], dtype=torch.long)
    if sizes["batch"] > 1:
        regions[-1] = 0
    text = words.long() if drawn["input_ids"].dim() == 2 else words[:, None].expand_as(drawn["input_ids"]).long()
    drawn |= {"attention_mask": text, "region_attention_mask": regions}
    if "phrase_mask" in drawn:
        spread = torch.rand(drawn["phrase_mask"].shape, generator=generator) < 0.5
        drawn["phrase_mask"] = spread & words[:, None]
    if "phrase_pairs" in drawn:
        drawn["phrase_pairs"][0, 0] = -1
    return drawn


def assert_exported_equals_model(family, head):
    """Asserts that the graph of `torch.export` computes what the model computes for both `SIZES`, with free sizes.

    The base model and pre-training also return their attention maps; a model of `vqa` skips padding and is exported
    with padding.
    """
    attentions = head in (None, "pretraining")
    model = tiny_model(family, head, unpad=head == "vqa").eval()
    if attentions:
        model.set_attn_implementation("eager")
        model.config.output_attentions = True
    inputs = model_inputs(model)
    names = {axis for each in inputs for axis in each.axes if isinstance(axis, str)}
    longest = {"words": model.config.max_text_length}
    axes = {name: Dim(name, max=longest.get(name)) for name in names}
    shapes = {each.name: tuple(axes.get(axis, Dim.STATIC) for axis in each.axes) for each in inputs}
    given = {each.name: each.example() for each in inputs}
    with torch.no_grad():
        graph = torch.export.export(model, (), kwargs=given, dynamic_shapes=shapes, strict=False).module()
        for sizes in SIZES:
            given |= draw_inputs(inputs, sizes)
            expected = model(**given)
            found = graph(**given)
            assert list(expected) == list(found)
            for name, value in expected.items():
                assert_close(found[name], value, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
