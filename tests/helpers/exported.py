# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models of every family and head for tests of exported models, and random inputs of any size."""

from typing import Any

import torch

from grounded_attention.families import FAMILIES
from tests.helpers import tiny_visualbert, tiny_vl_bert
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

MAKERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vl_bert": (tiny_vl_bert.make_model, {"num_hidden_layers": 1}),
    "visualbert": (tiny_visualbert.make_model, {"num_hidden_layers": 1}),
    "vilbert": (make_vilbert, {"num_hidden_layers": 1, "v_num_hidden_layers": 1}),
    "lxmert": (make_lxmert, {"l_layers": 1, "r_layers": 1, "x_layers": 1}),
}
# Every family without a head and with the heads of the main tasks; LXMERT's pre-training, which has most outputs,
# stands for its model without a head. The others share the code of a task over all families, so one family stands for
# each.
HEADS = ("vgp", "referring_expressions", "vqa", "visual_reasoning")
CASES = [
    *((family, head) for family, entry in FAMILIES.items() for head in (None, *HEADS) if head in (None, *entry.heads)),
    ("visualbert", "multiple_choice"),
    ("visualbert", "phrase_grounding"),
    ("lxmert", "pretraining"),
]
CASES.remove(("lxmert", None))
# ONNX is translated from the graph operator by operator, which takes three quarters of the time: every family without
# a head, and the heads with operators of their own in the family of the smallest graph. Those of `vqa` and
# `visual_reasoning` are layers that `vgp` has too.
OWN_OPERATORS = ("vgp", "referring_expressions", "multiple_choice", "phrase_grounding")
TRANSLATED = [case for case in CASES if case[1] in (None, "pretraining")]
TRANSLATED += [("visualbert", head) for head in OWN_OPERATORS]


def tiny_model(family: str, head: str | None, **fields: Any) -> Any:
    """A model with one layer of each kind; `head` `None` is the base model."""
    make, sizes = MAKERS[family]
    entry = FAMILIES[family]
    return make(entry.base_model if head is None else entry.heads[head], **{**sizes, **fields})


def draw_inputs(inputs: Any, sizes: dict[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random inputs. Row b has b + 2 words; the last row has no region, unless it is the only one."""
    generator = torch.Generator().manual_seed(seed)
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
