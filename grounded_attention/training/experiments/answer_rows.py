# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts the answers of a model from the same answers of a checkpoint with another list of answers."""

from copy import deepcopy
from typing import Any

import torch
from transformers import PreTrainedModel

from grounded_attention.modeling.plain_answers import plain_answer


def answer_weights(model: PreTrainedModel) -> set[str]:
    """The names of the weights with one row for each answer."""
    config = deepcopy(model.config)
    config.answers = [*config.answers, "\0"]
    with torch.device("meta"):
        longer = type(model)(config).state_dict()
    return {name for name, weight in model.state_dict().items() if longer[name].shape != weight.shape}


def other_answers(model: PreTrainedModel, checkpoint: str) -> list[str] | None:
    """The answers of a checkpoint of the same class, if they are not those of the model; `None` if they are."""
    config: Any = type(model).config_class
    found = config.from_pretrained(checkpoint)
    same_class = type(model).__name__ in (found.architectures or ())
    return list(found.answers) if same_class and list(found.answers) != list(model.config.answers) else None


@torch.no_grad()
def take_answers(model: PreTrainedModel, checkpoint: str, answers: list[str]) -> str:
    """
    Copies the rows of the answers that a checkpoint has too, and initialises the rows of other answers.
    """
    rows = {plain_answer(answer): row for row, answer in reversed(list(enumerate(answers)))}
    wanted = [plain_answer(answer) for answer in model.config.answers]
    pairs = [(row, rows[answer]) for row, answer in enumerate(wanted) if answer in rows]
    names = answer_weights(model)
    for module in sorted({name.rpartition(".")[0] for name in names}):
        for parameter in model.get_submodule(module).parameters(recurse=False):
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        model._init_weights(model.get_submodule(module))
    given: Any = type(model).from_pretrained(checkpoint)
    theirs, mine = given.state_dict(), model.state_dict()
    to, of = ([pair[side] for pair in pairs] for side in (0, 1))
    for name in names:
        mine[name][to] = theirs[name][of].to(mine[name])
    return f"{checkpoint} has other answers: took the weights of {len(pairs)} of {len(wanted)}, the others are new"
