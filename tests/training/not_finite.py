# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes the loss or the gradients of one row of a tiny training NaN or infinite."""

from grounded_attention.training.loop.grounding_collator import ROW_KEYS

ROW = "7-0"  # a row of `tiny_rows`


def spoil_loss(trainer, rows=(ROW,), add=float("nan"), times=1.0):
    """The first loss component of a batch with such a row is `times` its value plus `add`."""
    plain = trainer.components

    def components(outputs, batch):
        parts = plain(outputs, batch)
        if trainer.model.training and set(rows) & set(batch[ROW_KEYS]):
            name, (total, weight) = next(iter(parts.items()))
            parts[name] = (total * times + add, weight)
        return parts

    trainer.components = components


def spoil_gradient(trainer, value, rows=(ROW,)):
    """One gradient of a batch with such a row is `value`; its loss is that of a good batch."""
    plain = trainer.run_model
    met = []

    def run_model(model, batch):
        met[:] = set(rows) & set(batch[ROW_KEYS])
        return plain(model, batch)

    trainer.run_model = run_model
    weight = next(weight for name, weight in trainer.model.named_parameters() if name.endswith("query.weight"))
    weight.register_hook(lambda gradient: gradient.fill_(value) if met else gradient)
