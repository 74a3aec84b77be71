# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GUI-Actor: a head of its own compares the state of an anchor token with the image tokens; attention is free.

Shape letters: B batch, Q anchors, K image tokens, d width of the states.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn

from grounded_attention.modeling.task_losses import Losses
from grounded_attention.utils.named_types import Batch, Columns, Fields
from grounded_attention.utils.schema import Share, Weight

from .alignment import gather_rows, sequence_pairs
from .method import VisibleRows
from .score_masks import LOWEST_SCORE
from .soft_attention import ROWS, Divergence, Rows, SoftAttention
from .soft_targets import Target
from .supervise import unwrap_model

HEAD = "pointer_head"  # the attribute of a model, and the start of its weights' names
NUM_HEADS = 8


class ActorHead(nn.Module):
    """The head of GUI-Actor; its weights have the names of the authors' code.

    Args:
        width (`int`): d, a multiple of 8.
        dropout (`float`, *optional*, defaults to 0.1): Dropout of the attention between image tokens and after it.
    """

    def __init__(self, width: int, dropout: float = 0.1):
        super().__init__()
        self.projection_enc, self.projection_dec = (
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(2)
        )
        self.self_attention = nn.MultiheadAttention(width, NUM_HEADS, dropout=dropout, batch_first=True)
        self.layer_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor, visible: Tensor, anchors: Tensor) -> Tensor:
        """(B, K, d), (B, K) bool, (B, Q, d) -> (B, Q, K): log-probabilities of the image tokens that are seen."""
        kind = self.layer_norm.weight.dtype
        images = images.to(kind)
        anchors = anchors.to(kind)
        hidden = ~visible & visible.any(1, keepdim=True)  # no row of the softmax is empty
        mixed = self.self_attention(images, images, images, key_padding_mask=hidden, need_weights=False)[0]
        encoded = self.projection_enc(self.layer_norm(images + self.dropout(mixed)))
        scores = self.projection_dec(anchors) @ encoded.transpose(1, 2) / images.shape[-1] ** 0.5
        logs = scores.float().masked_fill(~visible[:, None], LOWEST_SCORE).log_softmax(-1)
        return logs.masked_fill(~visible[:, None], LOWEST_SCORE)


class Actor(SoftAttention):
    """KL divergence of a head's map from the image tokens of a box; the head is trained and saved with the model.

    The head reads the image tokens as they enter the language model, lets them attend to each other, and compares them
    with the last state of the anchor. To compare with `pointer`, which needs no head.

    Args:
        rows, target, spread, background, divergence, outside: see [`SoftAttention`]. By default `rows="anchor"`,
            `target="touched"`, `divergence="kl"`. `target="fitts"` with `spread=1` and `outside=1` is V2P.
        dropout (`float`, *optional*, defaults to 0.1): of the head.

    References:
        Wu et al. (2025), arXiv 2506.03143, section on the action head; V2P (2508.13634) for its other target.

    Requirements:
        A model that returns hidden states, whose width is a multiple of 8. An adapter would not save the head.

    Inputs:
        | batch entry      | shape        | meaning                                               |
        |------------------|--------------|-------------------------------------------------------|
        | `phrase_mask`    | (B, P, T)    | the tokens of each phrase                             |
        | `phrase_anchor`  | (B, P)       | whether a phrase is one added token                   |
        | `phrase_boxes`   | (B, P, G, 4) | its boxes; -1 for padding                             |
        | `region_boxes`   | (B, R, 4)    | the part of the image that each region shows          |
        | `text_positions` | (B, T)       | with `region_positions` (B, R): as for `direct`       |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("actor", target="given")
        >>> method.prepare(model)
        >>> batch = {  # three regions, three tokens of a question, and the anchor
        ...     "phrase_mask": torch.tensor([[[0, 0, 0, 1]]]), "phrase_anchor": torch.tensor([[True]]),
        ...     "phrase_regions": torch.tensor([[[0.5, 0.25, 0.25]]]),
        ...     "text_positions": torch.arange(3, 7)[None], "region_positions": torch.arange(3)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        1
    """

    name = "actor"
    choosable = ()
    needs_one_sequence = True
    citation = """@misc{wu-etal-2025-gui-actor,
    title = "GUI-Actor: Coordinate-Free Visual Grounding for GUI Agents",
    eprint = "2506.03143",
    archivePrefix = "arXiv",
    year = "2025",
}"""
    effect = "a head of its own was taught to point from its anchor token"
    defaults = {"rows": "anchor", "target": "touched", "reduction": "each"}
    _head: ActorHead | None = None

    def __init__(
        self,
        rows: Rows | None = None,
        target: Target | None = None,
        spread: Annotated[float, Gt(0)] | None = None,
        background: Share | None = None,
        divergence: Divergence | None = None,
        outside: Weight | None = None,
        dropout: Share = 0.1,
    ):
        own_options: Columns = {"spread": spread, "background": background, "divergence": divergence}
        super().__init__(rows=rows, target=target, outside=outside, **own_options)
        self.dropout = dropout

    def get_config_dict(self) -> Fields:
        read = ("rows", "target", "spread", "background", "divergence", "outside")
        return {"name": self.name, **{name: self.options[name] for name in read}, "dropout": self.dropout}

    def prepare(self, model: Any) -> None:
        """Gives the model its head, unless it has one; refuses an adapter, and a width that is no multiple of 8."""
        self.check_sequence(model)
        inner = unwrap_model(model)
        if hasattr(model, "peft_config"):
            raise ValueError("method 'actor': an adapter does not save its head: train without model.adapter")
        self._head = add_head(inner, self.dropout)
        self.visible_rows = VisibleRows(self.empty)

    def forward_kwargs(self, batch: Batch) -> Fields:
        return {"output_hidden_states": True}

    def attention_losses(self, outputs: Any, batch: Batch) -> Losses:
        states = getattr(outputs, "hidden_states", None)
        if self._head is None or states is None:
            raise ValueError(
                "method 'actor' reads hidden states with its head: call method.prepare(model), and give "
                "output_hidden_states=True; a Trainer that drops outputs cannot train it"
            )
        gold = self.targets(batch)[ROWS].gold
        losses, counted = self._compare(gold, self.head_map(self._head, states, batch))
        return {ROWS: (losses.sum(), counted.sum())}

    def head_map(self, head: ActorHead, hidden_states: Any, batch: Batch) -> Tensor:
        """(B, Q, K): the log-probabilities of the image tokens for each row."""
        rows, columns = sequence_pairs(self.targets(batch), batch)[ROWS]
        images = gather_rows(hidden_states[0], columns)
        anchors = gather_rows(hidden_states[-1], rows)
        return head(images, columns >= 0, anchors)


def add_head(model: Any, dropout: float = 0.1) -> ActorHead:
    """The head of a model, a new one if it has none."""
    head = getattr(model, HEAD, None)
    if head is None:
        width = model.config.get_text_config().hidden_size
        if width % NUM_HEADS:
            raise ValueError(f"method 'actor': states of the width {width}, expected a multiple of {NUM_HEADS}")
        head = ActorHead(width, dropout).to(next(model.parameters()).device)
        setattr(model, HEAD, head)
    return head


def load_head(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Gives a model the head whose weights are among those of its checkpoint, if there are any."""
    of_head = {name.removeprefix(f"{HEAD}."): value for name, value in weights.items() if name.startswith(f"{HEAD}.")}
    if of_head:
        with torch.no_grad():
            add_head(model).load_state_dict(of_head)
