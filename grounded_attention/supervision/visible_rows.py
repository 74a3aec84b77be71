# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Refuses to train on attention that the mask of the model hides everywhere: its loss would be constant."""

from collections.abc import Mapping

from torch import Tensor

# So many batches may have no visible row, for example because their texts are shorter than the window of a layer.
PATIENCE = 8


class VisibleRows:
    """Checks the losses of a method until each direction had a row that sees a gold column.

    The check reads numbers from the device, so it stops after the first visible row.
    """

    def __init__(self) -> None:
        self._hidden: dict[str, int] = {}

    def check(self, losses: Mapping[str, tuple[Tensor, Tensor]], counts: Mapping[str, Tensor | int]) -> None:
        """
        Checks the losses of one batch.

        Args:
            losses (`Mapping[str, tuple[Tensor, Tensor]]`): component -> (sum, number of rows that see a gold column).
            counts (`Mapping[str, Tensor | int]`): component -> number of rows with a gold column.

        Raises:
            ValueError: if no supervised layer saw a gold column in `PATIENCE` batches.
        """
        for name, (_, seen) in losses.items():
            hidden = self._hidden.get(name, 0)
            if hidden < 0 or int(counts.get(name, 0)) == 0:
                continue
            self._hidden[name] = -1 if int(seen) else hidden + 1
            if self._hidden[name] == PATIENCE:
                raise ValueError(
                    f"{name}: no supervised layer lets these rows see the regions they should attend to, so the loss "
                    "is constant; put images before the words, give directions=['text_to_region'], or choose layers "
                    "without a sliding window"
                )
