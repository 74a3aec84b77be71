# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The head of grounding alignment (Chou et al., 2022): whether a phrase, or a word, and a region belong together.

Shape letters: B batch, T text, R regions, P phrases, L tokens of the longest phrase, N pairs, D text width, S size.
"""

from typing import Any

import torch
from torch import nn


def _apply(lstm: nn.LSTM, states: torch.Tensor) -> torch.Tensor:
    """The states of an LSTM in the type of its weights: under autocast, also to bfloat16, cuDNN takes float16."""
    with torch.autocast(states.device.type, enabled=False):
        return lstm(states.to(next(lstm.parameters()).dtype))[0]


class PhraseEncoder(nn.Module):
    """Reads the last states of the tokens of a phrase with an LSTM: one state for each phrase."""

    def __init__(self, config: Any, size: int):
        super().__init__()
        self.pooling = config.alignment_pooling
        self.lstm = nn.LSTM(config.text_hidden_size, size, batch_first=True)
        # An LSTM of its own for each direction, so that padding comes last in both.
        self.backward_lstm: nn.LSTM | None = None
        # CODEPATH: only models of grounding alignment with `bidirectional` have it.
        if config.alignment_bidirectional:
            self.backward_lstm = nn.LSTM(config.text_hidden_size, size, batch_first=True)

    def forward(self, token_states: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
        """Encodes phrases."""
        lengths = token_mask.sum(-1, keepdim=True)  # (F, 1)
        encoded = [self._pool(_apply(self.lstm, token_states), token_mask)]
        if self.backward_lstm is not None:
            places = torch.arange(token_mask.shape[1], device=token_mask.device)
            reversed_places = (lengths - 1 - places).clamp(min=0)[..., None].expand_as(token_states)
            reversed_states = token_states.gather(1, reversed_places)
            encoded.append(self._pool(_apply(self.backward_lstm, reversed_states), token_mask))
        return torch.cat(encoded, dim=-1)

    def _pool(self, states: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
        """The state after the last token, or the mean state of the tokens: (F, L, S) -> (F, S)."""
        lengths = token_mask.sum(-1, keepdim=True).clamp(min=1)[..., None]  # (F, 1, 1)
        if self.pooling == "mean":
            return ((states * token_mask[..., None]).sum(1, keepdim=True) / lengths)[:, 0]
        return states.gather(1, (lengths - 1).expand(-1, -1, states.shape[-1]))[:, 0]


class AlignmentHead(nn.Module):
    """Scores pairs of a phrase and a region (Chou et al., 2022, equation 2): a linear layer and ReLU on each, their
    product or concatenation, and a linear layer.
    """

    def __init__(self, config: Any):
        super().__init__()
        size, text_size = config.alignment_size or config.pooled_hidden_size, config.text_hidden_size
        # CODEPATH: the level "phrase" has it, the level "token" reads the states of single tokens.
        self.phrase_encoder: PhraseEncoder | None = None
        if config.alignment_level == "phrase":
            self.phrase_encoder = PhraseEncoder(config, size)
            text_size = 2 * size if config.alignment_bidirectional else size
        self.text_dense = nn.Linear(text_size, size)
        self.region_dense = nn.Linear(config.region_hidden_size, size)
        self.fusion = config.alignment_fusion
        self.classifier = nn.Linear(2 * size if self.fusion == "concat" else size, 1)

    def forward(
        self,
        text_states: torch.Tensor,
        region_states: torch.Tensor,
        alignment_phrases: torch.Tensor,
        alignment_pairs: torch.Tensor,
    ) -> torch.Tensor:
        """Scores the pairs, (B, N), before a sigmoid; without meaning for padded pairs."""
        phrases = self.text_dense(self._read_phrases(text_states, alignment_phrases)).relu()  # (B, P, S)
        regions = self.region_dense(region_states).relu()  # (B, R, S)
        # A row of zeros before both; padding (-1) selects it.
        phrase, region = (
            nn.functional.pad(states, (0, 0, 1, 0)).gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
            for states, places in ((phrases, alignment_pairs[..., 0] + 1), (regions, alignment_pairs[..., 1] + 1))
        )
        joined = torch.cat([phrase, region], dim=-1) if self.fusion == "concat" else phrase * region
        return self.classifier(joined).squeeze(-1)

    def _read_phrases(self, text_states: torch.Tensor, alignment_phrases: torch.Tensor) -> torch.Tensor:
        """One state for each phrase: (B, P, D), or (B, P, S) with the encoder."""
        width = text_states.shape[-1]
        columns = alignment_phrases.clamp(min=0).flatten(1)[..., None].expand(-1, -1, width)
        states = text_states.gather(1, columns).view(*alignment_phrases.shape, width)  # (B, P, L, D)
        if self.phrase_encoder is None:
            return states[:, :, 0]
        encoded = self.phrase_encoder(states.flatten(0, 1), (alignment_phrases >= 0).flatten(0, 1))
        return encoded.unflatten(0, alignment_phrases.shape[:2])


__all__ = ["AlignmentHead", "PhraseEncoder"]
