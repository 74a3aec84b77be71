# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One pass over a batch of prompts with their answers, and the attention of the rows of each of them.

Shape letters: B batch, N sequence, Q rows, R image tokens, H heads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grounded_attention.heads.attention_readers import AttentionReader, reading
from grounded_attention.heads.reading import attention_of, inputs_on, own_maps
from grounded_attention.supervision.row_plans import AttentionQuery, RowPlans
from grounded_attention.supervision.row_states import HandedStates, RowStates
from grounded_attention.supervision.supervise import find_encoder, returns_maps, unwrap_model
from grounded_attention.utils.named_types import Batch, Fields

from .sequences import Sequenced, few_at_once, token_inputs

# Models whose numbers for a sequence depend on its batch (pixels are padded; words before an image see padding images;
# the longest sequence scales rotations), or that read only pictures of as many tiles together.
READ_ALONE = ("emu3", "hunyuan_vl", "mllama", "perception_lm")


def pad_sequences(inputs: Batch, sequences: Sequence[Sequenced], pad: int, side: str = "right") -> Fields:
    """The inputs of a batch of prompts with the tokens of `sequences`, padded behind their ends: what is read of a
    causal sequence does not know what follows; or on the left, where answers are to be generated.
    """
    padded = dict(inputs)
    for name in token_inputs(inputs):
        tokens = [each.inputs[name][0] for each in sequences]
        value = pad if name.endswith("input_ids") else 0
        padded[name] = pad_sequence(tokens, batch_first=True, padding_value=value, padding_side=side)
    return padded


@dataclass(frozen=True)
class ExampleRows:
    """What the rows of one sequence of a batch are computed from, by layer."""

    places: dict[int, int]  # row -> its place
    states: dict[int, RowStates]

    @torch.no_grad()
    def of(self, wanted: Sequence[int], layers: Iterable[int] | None = None) -> dict[int, Tensor]:
        """Layer -> attention of rows (H, Q, R), float32 on the CPU."""
        read = {}
        for layer in self.states if layers is None else layers:
            states = self.states[layer].select_rows([self.places[row] for row in wanted])
            parts = []
            for part in few_at_once(states):
                parts.append(attention_of(states.select_rows(part).pair())[0].float())
            read[layer] = torch.cat(parts, 1).cpu()
        return read


class BatchReader(AttentionReader):
    """Keeps what the rows of each sequence are computed from in one pass over a batch; see [`RowReader`].

    Queries of few rows and the keys of the layers stay in memory, no scores: heads and rows are chosen afterwards.
    """

    def __init__(self, rows: Sequence[Sequence[int]], columns: Sequence[Tensor], layers: Iterable[int]):
        self._rows = rows
        self._columns = columns
        of_each = [torch.tensor(each) for each in rows]
        self._asked = (
            pad_sequence(of_each, batch_first=True, padding_value=-1),
            pad_sequence(list(columns), batch_first=True, padding_value=-1),
        )
        self._layers = frozenset(layers)
        self._states: dict[int, RowStates] = {}
        self._plans: dict[torch.device, tuple[AttentionQuery, RowPlans]] = {}

    def keep(self, handed: HandedStates) -> None:
        """Keeps the queries of the rows and the keys of a layer."""
        if handed.layer not in self._layers:
            return
        device = handed.key.device
        if device not in self._plans:
            rows, columns = self._asked
            self._plans[device] = (rows.to(device), columns.to(device)), RowPlans()
        asked, plans = self._plans[device]
        [self._states[handed.layer]] = handed.read((asked,), plans=plans)

    def examples(self) -> list[ExampleRows]:
        """The rows of each sequence."""
        of_each = []
        for number, (rows, columns) in enumerate(zip(self._rows, self._columns, strict=True)):
            places = {row: place for place, row in enumerate(rows)}
            states = {}
            for layer in sorted(self._states):
                states[layer] = self._states[layer].select_example(number).select_columns(len(columns))
            of_each.append(ExampleRows(places, states))
        return of_each


@torch.no_grad()
def read_batch(
    model: Any, inputs: Batch, rows: Sequence[Sequence[int]], columns: Sequence[Tensor], layers: Iterable[int]
) -> list[ExampleRows]:
    """Runs a model over a batch of B padded sequences, and keeps rows of each, over its columns, in some layers."""
    inner = unwrap_model(model)
    base = find_encoder(inner)
    reader = BatchReader(rows, columns, layers)
    if returns_maps(inner):
        for handed in own_maps(inner, inputs_on(inputs, model)):
            reader.keep(handed)
        return reader.examples()
    with reading(model, reader):
        base(**inputs_on(inputs, model), use_cache=False)
    return reader.examples()
