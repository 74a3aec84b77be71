# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The head of grounding alignment (Chou et al., 2022): whether a phrase, or a word, and a region belong together.

Shape letters: B batch, T text, R regions, P phrases, L tokens of the longest phrase, N pairs, D text width, S size.
"""

from typing import Any

import torch
from torch import Tensor, nn


class PhraseEncoder(nn.Module):
    """Reads the last states of the tokens of a phrase with an LSTM: its state after the last token."""

    def __init__(self, config: Any, size: int):
        super().__init__()
        self.lstm = nn.LSTM(config.text_hidden_size, size, batch_first=True)

    def forward(self, token_states: Tensor, token_mask: Tensor) -> Tensor:
        """Encodes phrases, (F, L, D) -> (F, S)."""
        # In the type of its weights: under autocast, also to bfloat16, cuDNN takes float16.
        with torch.autocast(token_states.device.type, enabled=False):
            states = self.lstm(token_states.to(next(self.lstm.parameters()).dtype))[0]
        last = (token_mask.sum(-1, keepdim=True).clamp(min=1) - 1)[..., None]  # (F, 1, 1)
        return states.gather(1, last.expand(-1, -1, states.shape[-1]))[:, 0]


class AlignmentHead(nn.Module):
    """Scores pairs of a phrase and a region (equation 2): a linear layer and ReLU on each, one on their product."""

    def __init__(self, config: Any):
        super().__init__()
        size = config.alignment_size or config.pooled_hidden_size
        text_size = config.text_hidden_size
        # CODEPATH: the level "phrase" has it, the level "token" reads the states of single tokens.
        self.phrase_encoder: PhraseEncoder | None = None
        if config.alignment_level == "phrase":
            self.phrase_encoder = PhraseEncoder(config, size)
            text_size = size
        self.text_dense = nn.Linear(text_size, size)
        self.region_dense = nn.Linear(config.region_hidden_size, size)
        self.classifier = nn.Linear(size, 1)

    def forward(
        self,
        text_states: Tensor,
        region_states: Tensor,
        alignment_phrases: Tensor,
        alignment_pairs: Tensor,
    ) -> Tensor:
        """Scores the pairs, (B, N), before a sigmoid; without meaning for padded pairs."""
        phrases = self.text_dense(self._read_phrases(text_states, alignment_phrases)).relu()  # (B, P, S)
        regions = self.region_dense(region_states).relu()  # (B, R, S)
        # A row of zeros before both; padding (-1) selects it.
        phrase, region = (
            nn.functional.pad(states, (0, 0, 1, 0)).gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
            for states, places in ((phrases, alignment_pairs[..., 0] + 1), (regions, alignment_pairs[..., 1] + 1))
        )
        return self.classifier(phrase * region).squeeze(-1)

    def _read_phrases(self, text_states: Tensor, alignment_phrases: Tensor) -> Tensor:
        """One state for each phrase: (B, P, D), or (B, P, S) with the encoder."""
        width = text_states.shape[-1]
        columns = alignment_phrases.clamp(min=0).flatten(1)[..., None].expand(-1, -1, width)
        states = text_states.gather(1, columns).view(*alignment_phrases.shape, width)  # (B, P, L, D)
        if self.phrase_encoder is None:
            return states[:, :, 0]
        encoded = self.phrase_encoder(states.flatten(0, 1), (alignment_phrases >= 0).flatten(0, 1))
        return encoded.unflatten(0, alignment_phrases.shape[:2])
