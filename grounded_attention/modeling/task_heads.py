# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Heads that all model families share; they read the outputs of a base model that `task_outputs.py` defines.

Shape letters: B batch, T text, R regions, P phrases, L tokens of the longest phrase, K phrase pairs, D hidden,
E width of the regions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN

from .sequence_inputs import check_shape, get_first_state
from .task_losses import cross_entropy_sum, mean_of
from .task_outputs import VGPOutput

# Score of a column that is not a candidate (VL-BERT and VisualBERT public code), within the range of float16.
NO_CANDIDATE = -10000.0


def pool_phrases(text_states: Tensor, phrase_mask: Tensor) -> Tensor:
    """Max-pooling of token states over each phrase (VGP paper, equation 2)."""
    tokens = phrase_mask.bool()
    states = text_states[:, None]
    # Reading the length of the longest phrase would let a GPU wait, and break the graph of a compiled model.
    if tokens.is_cpu and not torch.compiler.is_compiling():
        states, tokens = _gather_tokens(text_states, tokens)
    pooled = states.masked_fill(~tokens[..., None], torch.finfo(states.dtype).min).amax(dim=2)
    return pooled.masked_fill(~tokens.any(dim=2, keepdim=True), 0.0)


def _gather_tokens(text_states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The states (B, P, L, D) of the tokens (B, P, T) of each phrase, and (B, P, L) bool, false for padding."""
    longest = max(int(tokens.sum(-1).max()) if tokens.numel() else 0, 1)
    columns = tokens.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :longest]
    rows = columns + text_states.shape[1] * torch.arange(len(tokens), device=tokens.device)[:, None, None]
    # On one long axis gather copies whole rows, which is several times as fast.
    states = text_states.flatten(0, 1).gather(0, rows.flatten()[:, None].expand(-1, text_states.shape[2]))
    return states.unflatten(0, columns.shape), tokens.gather(-1, columns)


class ClassificationHead(nn.Module):
    """Dropout and a linear layer, or dropout, linear, ReLU, dropout, linear when a hidden size is given."""

    def __init__(self, input_size: int, hidden_size: int | None, num_labels: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(input_size, hidden_size) if hidden_size is not None else None
        self.classifier = nn.Linear(hidden_size or input_size, num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dropout(hidden_states)
        if self.dense is not None:
            hidden_states = self.dropout(self.dense(hidden_states).relu())
        return self.classifier(hidden_states)


class TwoLayerHead(nn.Module):
    """Two linear layers. Between them GELU and LayerNorm (LXMERT, 12-in-1), or ReLU and dropout 0.5 (ViLBERT)."""

    def __init__(self, input_size: int, hidden_size: int, num_labels: int, kind: str = "gelu", eps: float = 1e-12):
        super().__init__()
        self.dense = nn.Linear(input_size, hidden_size)
        self.activation = ACT2FN[kind]
        self.LayerNorm = None
        if kind == "gelu":
            self.LayerNorm = nn.LayerNorm(hidden_size, eps=eps)
        self.dropout = nn.Dropout(0.0 if kind == "gelu" else 0.5)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.activation(self.dense(hidden_states))
        if self.LayerNorm is not None:
            hidden_states = self.LayerNorm(hidden_states)
        return self.classifier(self.dropout(hidden_states))


class GroundingHead(nn.Module):
    """Scores every pair of phrase and region from [phrase, region] (VGP paper, indirect supervision)."""

    def __init__(self, config: Any):
        super().__init__()
        self.widths = [config.text_hidden_size, config.region_hidden_size]
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(sum(self.widths), 1)

    def forward(self, phrase_states: Tensor, region_states: Tensor) -> Tensor:
        # A linear layer on [e, x] is one on e plus one on x, so (B, P, R, D + E) is never built.
        phrase_weight, region_weight = self.classifier.weight.split(self.widths, dim=1)
        phrases = nn.functional.linear(self.dropout(phrase_states), phrase_weight, self.classifier.bias)
        regions = nn.functional.linear(self.dropout(region_states), region_weight)
        return (phrases[:, :, None] + regions[:, None]).squeeze(-1)


class BoxHead(nn.Linear):
    """Boxes of the objects that words name, (center_x, center_y, width, height) in [0, 1]: (B, T, D) -> (B, T, 4)."""

    def __init__(self, config: Any):
        super().__init__(config.text_hidden_size, 4)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states).sigmoid()


class ReferringHead(nn.Module):
    """Scores how well each region matches the text: (B, R, E) -> (B, R, 1)."""

    def __init__(self, config: Any):
        super().__init__()
        self.dense = nn.Linear(config.region_hidden_size, config.region_hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.referring_dropout)
        self.classifier = nn.Linear(config.region_hidden_size, 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.activation(self.dense(hidden_states))))


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
        phrase = _of_pairs(phrases, alignment_pairs[..., 0])
        region = _of_pairs(regions, alignment_pairs[..., 1])
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


def _of_pairs(states: Tensor, places: Tensor) -> Tensor:
    """The states (B, N, S) at places (B, N) of (B, P, S); zeros for padding (-1)."""
    padded = nn.functional.pad(states, (0, 0, 1, 0))  # a row of zeros before them
    index = (places + 1)[..., None]
    return padded.gather(1, index.expand(-1, -1, states.shape[-1]))


class AlignmentScorer:
    """The head of grounding alignment of a model (`config.alignment_level`)."""

    # A model that is fine-tuned with the method goes on with the head of pre-training.
    _heads_from_pretraining = {"alignment_head.": "alignment_head."}
    config: Any

    def make_alignment_head(self) -> None:
        """Adds the head, if the configuration has it."""
        # CODEPATH: checkpoints of grounding alignment have it, the others do not.
        self.alignment_head = None
        if self.config.alignment_level is not None:
            self.alignment_head = AlignmentHead(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the weights"""
        if not isinstance(module, nn.LSTM):
            super()._init_weights(module)  # type: ignore[misc]
            return
        # The oldest supported transformers does not initialise an LSTM.
        for name, parameter in module.named_parameters():
            if "weight" in name:
                init.xavier_uniform_(parameter)
            else:
                init.zeros_(parameter)

    def score_alignment(
        self, outputs: Any, alignment_phrases: Tensor | None, alignment_pairs: Tensor | None
    ) -> Tensor | None:
        """Scores the pairs, `(batch_size, num_pairs)`; `None` without pairs."""
        if alignment_pairs is None and alignment_phrases is None:
            return None
        if alignment_pairs is None or alignment_phrases is None:
            raise ValueError("alignment_phrases and alignment_pairs belong together; give both, or neither.")
        if self.alignment_head is None:
            raise ValueError("alignment_pairs are given, but config.alignment_level is None.")
        rows = len(outputs.text_hidden_state)
        check_shape("alignment_phrases", alignment_phrases, (rows, "num_phrases", "max_tokens"))
        check_shape("alignment_pairs", alignment_pairs, (rows, "num_pairs", 2))
        states = (outputs.text_hidden_state, outputs.region_hidden_state)
        return self.alignment_head(*states, alignment_phrases, alignment_pairs)


class PhraseHeads(AlignmentScorer):
    """The heads of models for pre-training and for paraphrases that score pairs of phrases and regions."""

    _heads_from_pretraining = {name: name for name in ("grounding_head.", "alignment_head.")}

    def make_phrase_heads(self) -> None:
        """Adds the heads of the configuration."""
        # CODEPATH: checkpoints of indirect supervision have it, the others do not.
        self.grounding_head = GroundingHead(self.config) if self.config.grounding_head else None
        self.make_alignment_head()

    @property
    def scores_regions(self) -> bool:
        """Whether one of these heads reads the states of regions."""
        return self.grounding_head is not None or self.alignment_head is not None

    def score_phrases(
        self,
        outputs: Any,
        phrase_mask: Tensor | None,
        alignment_phrases: Tensor | None,
        alignment_pairs: Tensor | None,
        phrase_states: Tensor | None = None,
    ) -> dict[str, Tensor | None]:
        """Computes `grounding_logits` and `alignment_logits` of the output; `None` without their head or inputs."""
        grounding_logits = None
        if phrase_mask is not None and self.grounding_head is not None:
            if phrase_states is None:
                phrase_states = pool_phrases(outputs.text_hidden_state, phrase_mask)
            grounding_logits = self.grounding_head(phrase_states, outputs.region_hidden_state)
        alignment_logits = self.score_alignment(outputs, alignment_phrases, alignment_pairs)
        return {"grounding_logits": grounding_logits, "alignment_logits": alignment_logits}


class VGPHeads(PhraseHeads):
    """The heads of a model for visually grounded paraphrases. They predict which caption belongs to the image, the
    relation of phrase pairs and, optionally, the region of each phrase and the box of the object that each word names.
    """

    def make_vgp_heads(self) -> None:
        """Adds the heads of the configuration."""
        config = self.config
        text_size = config.text_hidden_size
        dropout = config.classifier_dropout
        pooled = config.identification_pooling == "pooled"
        self.identification_head = ClassificationHead(
            config.pooled_hidden_size if pooled else text_size,
            config.identification_hidden_size,
            config.num_identification_labels,
            dropout,
        )
        self.vgp_head = ClassificationHead(4 * text_size, config.vgp_hidden_size, config.num_vgp_labels, dropout)
        self.make_phrase_heads()
        # CODEPATH: checkpoints of supervision with `box_weight` have it, the others do not.
        self.box_head = BoxHead(config) if config.box_layer is not None else None

    def encode_for_vgp(self, encoder: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Tensor | None]:
        """Runs the encoder and the box head.

        With a box head the hidden states are recorded, and are therefore computed with padding. Those that were not
        requested (`output_hidden_states`: all, or some indices) are removed from the output.
        """
        if self.box_head is None:
            return encoder(*args, return_dict=True, **kwargs), None
        requested = kwargs.pop("output_hidden_states", self.config.output_hidden_states)
        outputs = encoder(*args, return_dict=True, output_hidden_states=True, **kwargs)
        states = outputs.hidden_states
        pred_boxes = self.box_head(states[self.config.box_layer + 1][:, : outputs.text_hidden_state.shape[1]])
        if requested is None or requested is False:
            outputs.hidden_states = None
        elif requested is not True:
            wanted = set()
            for index in [requested] if isinstance(requested, int) else requested:
                wanted.add(index % len(states))
            outputs.hidden_states = tuple(state if index in wanted else None for index, state in enumerate(states))
        return outputs, pred_boxes

    def score_vgp(
        self,
        outputs: Any,
        pred_boxes: Tensor | None,
        attention_mask: Tensor | None,
        phrase_mask: Tensor | None,
        phrase_pairs: Tensor | None,
        identification_labels: Tensor | None,
        vgp_labels: Tensor | None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
    ) -> VGPOutput:
        """Computes the output of a model with these heads: loss, logits, hidden states and attention maps."""
        text_states = outputs.text_hidden_state
        caption_state = self._get_caption_state(text_states, outputs.pooler_output, attention_mask)
        identification_logits = self.identification_head(caption_state)
        vgp_logits = None
        phrase_states = None
        if phrase_mask is not None:
            phrase_states = pool_phrases(text_states, phrase_mask)
            if phrase_pairs is not None:
                # (B, K, C) from [e1, e2, e1 * e2, |e1 - e2|] (VGP paper, equation 3); 0 where a phrase is padded.
                first = _of_pairs(phrase_states, phrase_pairs[..., 0])
                second = _of_pairs(phrase_states, phrase_pairs[..., 1])
                features = torch.cat([first, second, first * second, (first - second).abs()], dim=-1)
                vgp_logits = self.vgp_head(features).masked_fill((phrase_pairs < 0).any(-1, keepdim=True), 0.0)

        losses = []
        if identification_labels is not None:
            losses.append(cross_entropy_sum(identification_logits, identification_labels))
        if vgp_labels is not None:
            if vgp_logits is None:
                raise ValueError("vgp_labels are given without phrase_mask and phrase_pairs.")
            losses.append(cross_entropy_sum(vgp_logits, vgp_labels))
        return VGPOutput(
            loss=mean_of(*losses),
            identification_logits=identification_logits,
            vgp_logits=vgp_logits,
            **self.score_phrases(outputs, phrase_mask, alignment_phrases, alignment_pairs, phrase_states),
            pred_boxes=pred_boxes,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _get_caption_state(self, text_states: Tensor, pooled_output: Tensor, attention_mask: Tensor | None) -> Tensor:
        # CODEPATH: "pooled" in the public VGP code, "cls" in the paper's equation 1.
        if self.config.identification_pooling == "pooled":
            return pooled_output
        if attention_mask is None:
            return text_states[:, 0]
        return get_first_state(text_states, attention_mask.bool())


class StatePooler(nn.Module):
    """A linear layer and an activation on one state."""

    def __init__(self, input_size: int, output_size: int, activation: str):
        super().__init__()
        self.dense = nn.Linear(input_size, output_size)
        self.activation = ACT2FN[activation]

    def forward(self, state: Tensor) -> Tensor:
        return self.activation(self.dense(state))


def fuse_pooled(fusion_method: str, text: Tensor, regions: Tensor) -> Tensor:
    """The product (`"mul"`) or the sum (`"sum"`) of two pooled states (B, F)."""
    if fusion_method == "mul":
        return text * regions
    return text + regions


class TextFirstPooling:
    """The poolers of a base model: `pooler` for text and, unless `fusion_method` is "text", `region_pooler`."""

    config: Any

    def make_poolers(self, wanted: bool) -> None:
        """Adds the poolers; both are `None` if they are not `wanted`."""
        config = self.config
        size = config.pooled_hidden_size
        activation = config.pooler_act
        self.pooler: Any = None
        if wanted:
            self.pooler = StatePooler(config.text_hidden_size, size, activation)
        self.region_pooler: Any = None
        # CODEPATH: "text" in the original checkpoints, "mul" in the controlled ones of VOLTA.
        if wanted and config.fusion_method != "text":
            self.region_pooler = StatePooler(config.region_hidden_size, size, activation)

    def pool(self, text: Tensor, region_states: Tensor) -> Tensor | None:
        """The pooled state (B, F), or `None` without poolers."""
        if self.pooler is None:
            return None
        pooled = self.pooler(text)
        if self.region_pooler is None or region_states.shape[1] == 0:
            return pooled
        return fuse_pooled(self.config.fusion_method, pooled, self.region_pooler(region_states[:, 0]))


def fit_relationship_head(heads: Any, config: Any) -> None:
    """Gives the `seq_relationship` of transformers' heads of pre-training the width of the pooled state."""
    if config.pooled_hidden_size != heads.seq_relationship.in_features:
        heads.seq_relationship = nn.Linear(config.pooled_hidden_size, 2)
