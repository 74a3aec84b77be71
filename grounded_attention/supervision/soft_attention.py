# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention that follows a distribution over the regions, and its presets `kl_attention`, `pointer` and `gaze`.

Shape letters: L layers, B batch, H heads, N sequence, T text, P phrases, R regions, Q rows, K columns, U query rows.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Len
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import Counts, Loss, Losses
from grounded_attention.supervision.method import from_attention_maps
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Count, Index, Pair, Share, Weight

from .alignment import gather_rows, require, row_indices, sequence_pairs, token_mask
from .direct import DirectSupervision
from .divergences import DIVERGENCES
from .method import TARGETS, GroundingTargets, RowGenerators, fixed_generator, observed_layers
from .row_plans import RowPlans
from .score_masks import LOWEST_SCORE, is_hidden
from .soft_targets import Target, soft_targets

ROWS = "text_to_region"
QUERIES = "queries"
POINTER = "pointer"  # key of the settings of a tokenizer with an anchor: the method that taught it, and its options
Rows = Literal["words", "last_word", "anchor", "answer", "last_answer"]
Reduction = Literal["each", "mean", "queries_hard", "queries_soft"]
Divergence = Literal["cross_entropy", "kl", "reverse_kl", "jsd"]
ANCHORLESS = (
    "no phrase with a box is one added token, so rows='anchor' supervise nothing; a recipe needs model.tokens and "
    "options.expressions=point, and rows of referring expressions (data.builder=refcoco)"
)
_FLOOR = 1e-12  # of the attention of a query, in the soft form


class SoftAttention(DirectSupervision):
    """Base class of methods whose target is a distribution; a method gives `defaults`, an option replaces one.

    Args:
        layers, heads: see [`AttentionMethod`].
        rows (`str`, *optional*): whose attention is taught: `"words"` of a phrase, its `"last_word"`, `"anchor"`
            (phrases that are one added token), `"answer"` (every token of the answers, for all phrases of the example)
            or `"last_answer"` (the last of them).
        target (`str`, *optional*): see [`soft_targets`].
        spread (`float`, *optional*): standard deviation of a Gaussian target, in sides of the box.
        background (`float`, *optional*): the part of the target that is spread evenly over all regions, in [0, 1].
        reduction (`str`, *optional*): what is compared with the target: attention of `"each"` head, normalised over
            the regions; its `"mean"` over the heads of a layer; or one map of all layers and heads, each weighted by
            how much the words of the prompt look at the image (GUI-AIMA): `"queries_hard"`, by the `top_queries` words
            whose states are nearest to those of the image, or `"queries_soft"`, by all of them.
        top_queries (`int`, *optional*): see `reduction`.
        divergence (`str`, *optional*): `"cross_entropy"`, `"kl"` (of the attention from the target), `"reverse_kl"`
            (needs a background) or `"jsd"`.
        outside (`float`, *optional*): factor of one more term, the attention on regions outside the target (V2P).

    Raises:
        ValueError: if an option has another value.
    """

    defaults: Fields = {}

    def __init__(
        self,
        layers: Annotated[Sequence[Index | str], Len(1)] | None = None,
        heads: Annotated[Sequence[Index] | Sequence[Pair], Len(1)] | None = None,
        rows: Rows | None = None,
        target: Target | None = None,
        spread: Annotated[float, Gt(0)] | None = None,
        background: Share | None = None,
        reduction: Reduction | None = None,
        top_queries: Count | None = None,
        divergence: Divergence | None = None,
        outside: Weight | None = None,
    ):
        super().__init__(layers, heads, directions=["text_to_region"])
        given = {
            "rows": rows,
            "target": target,
            "spread": spread,
            "background": background,
            "reduction": reduction,
            "top_queries": top_queries,
            "divergence": divergence,
            "outside": outside,
        }
        usual = {
            "spread": 0.8,
            "background": 0.0,
            "top_queries": 1,
            "divergence": "kl",
            "outside": 0.0,
        } | self.defaults
        self.options: Fields = {name: usual[name] if value is None else value for name, value in given.items()}
        if self.options["rows"] == "anchor":
            self.empty = ANCHORLESS
        if self.options["divergence"] == "reverse_kl" and not self.options["background"]:
            raise ValueError("divergence='reverse_kl' is infinite where the target is 0: give background above 0")

    @property
    def weighs_heads(self) -> bool:
        """Whether heads are weighted by what the words of the prompt look at."""
        return self.options["reduction"].startswith("queries")

    @property
    def needs_one_sequence(self) -> bool:
        return self.weighs_heads

    def get_config_dict(self) -> Fields:
        config = super().get_config_dict()
        return {"name": self.name, **{name: config[name] for name in ("layers", "heads")}, **self.options}

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        of_phrases = soft_targets(batch, self.options["target"], self.options["spread"])
        tokens = self._tokens(batch).float()
        targets = tokens.transpose(1, 2) @ of_phrases  # (B, T, R)
        total = targets.sum(-1, keepdim=True)
        rows = row_indices(total[..., 0] > 0)
        targets = targets / torch.where(total > 0, total, 1.0)
        gold = gather_rows(targets, rows) * (rows >= 0)[..., None]
        valid = batch.get("region_attention_mask")
        columns = torch.arange(targets.shape[2], device=rows.device).expand(len(rows), -1)
        if valid is not None and valid.shape[1] == columns.shape[1]:
            columns = columns.masked_fill(valid == 0, -1)
        prepared = {ROWS: {"rows": rows, "columns": columns, "gold": gold}}
        if self.weighs_heads:
            asked = GroundingTargets(rows, columns, gold)
            first = sequence_pairs({ROWS: asked}, batch)[ROWS][0]
            prepared[QUERIES] = {"rows": query_rows(batch, first)}
        return {TARGETS: prepared}

    def _tokens(self, batch: Batch) -> Tensor:
        """(B, P, T) bool, the tokens whose attention the target of each phrase is for."""
        which = self.options["rows"]
        words = batch["phrase_mask"].bool()
        valid = token_mask(batch)
        if valid is not None:
            words = words & valid[:, None]
        if which == "anchor":
            origin = (
                "PatchGroundingProcessor makes it of phrases that are one added token (`model.tokens` of a recipe)"
            )
            require(batch, ("phrase_anchor",), f"rows='anchor' needs it, (B, P); {origin}")
            return words & batch["phrase_anchor"].bool()[..., None]
        if which in ("answer", "last_answer"):
            require(batch, ("labels", "text_positions"), f"rows={which!r} needs those of the answers")
            places = batch["text_positions"]
            answer = (batch["labels"].gather(1, places.clamp(min=0)) >= 0) & (places >= 0)
            words = answer[:, None] & words.any(-1, keepdim=True)
        if which in ("words", "answer"):
            return words
        return words & (words.flip(-1).cumsum(-1) == 1).flip(-1)

    def targets(self, batch: Batch) -> dict[str, GroundingTargets]:
        return {ROWS: GroundingTargets(**self._prepared(batch)[TARGETS][ROWS])}

    def counts(self, batch: Batch) -> Counts:
        return {ROWS: (self._prepared(batch)[TARGETS][ROWS]["rows"] >= 0).sum()}

    def forward_kwargs(self, batch: Batch) -> Fields:
        prepared = {**batch, **self._prepared(batch)}
        arguments: Fields = {"output_attentions": True, "attention_share": self.weighs_heads}
        arguments["attention_plans"] = RowPlans()
        if self.layers is not None:
            arguments["attention_layers"] = self.layers
        places = sequence_pairs(self.targets(prepared), prepared)
        if self.weighs_heads:
            places[QUERIES] = (prepared[TARGETS][QUERIES]["rows"], places[ROWS][1])
            arguments["output_hidden_states"] = True
        return {**arguments, "attention_queries": tuple(places.values())}

    def attention_losses(self, outputs: Any, batch: Batch) -> Losses:
        pairs, queries = self._pairs(outputs)
        return {ROWS: self.distribution_loss(pairs, queries, getattr(outputs, "hidden_states", None), batch)}

    def _pairs(self, outputs: Any) -> list[Any]:
        """The attention of the rows, and that of the queries, in each layer with the heads that are taught."""
        observed = observed_layers(outputs)
        chosen = []
        for place in (0, 1) if self.weighs_heads else (0, 0):
            chosen.append(self._select_heads([pair for layer in observed if (pair := layer.pairs[place]) is not None]))
        return chosen

    def attention_map(self, outputs: Any, batch: Batch) -> Tensor:
        """(B, Q, K): the logarithm of one map of each row: weighted as in training, or the mean of taught heads."""
        pairs, queries = self._pairs(outputs)
        if self.weighs_heads:
            return self.weighted_map(pairs, queries, outputs.hidden_states, batch)
        logs = torch.cat([alpha for alpha, _ in pairs], 1)
        return logs.logsumexp(1) - torch.tensor(float(logs.shape[1])).log()

    def maps_losses(
        self,
        maps: Sequence[Tensor],
        batch: Batch,
        streams: Sequence[tuple[str, str]] | None = None,
        hidden_states: Sequence[Tensor] | None = None,
    ) -> Losses:
        prepared = {**batch, **self._prepared(batch)}
        rows, columns = sequence_pairs(self.targets(prepared), prepared)[ROWS]
        asked = prepared[TARGETS].get(QUERIES, {"rows": rows})["rows"]
        pairs = [from_attention_maps(layer, rows, columns) for layer in maps]
        queries = [from_attention_maps(layer, asked, columns) for layer in maps]
        return {ROWS: self.distribution_loss(pairs, queries, hidden_states, prepared)}

    def distribution_loss(
        self, pairs: Sequence[Any], queries: Sequence[Any], hidden_states: Sequence[Tensor] | None, batch: Batch
    ) -> Loss:
        """(Sum over rows, number of rows) of the loss, from the attention of rows and of queries in each layer."""
        target = self.targets(batch)[ROWS].gold
        reduction = self.options["reduction"]
        if self.weighs_heads:
            maps = [self.weighted_map(pairs, queries, hidden_states, batch)]
        elif reduction == "mean":
            maps = [alpha.logsumexp(1) - torch.tensor(float(alpha.shape[1])).log() for alpha, _ in pairs]
        else:
            maps = [alpha.transpose(1, 2) for alpha, _ in pairs]
        losses = target.new_zeros(target.shape[:2])
        num_heads = target.new_zeros(target.shape[:2])
        for logs in maps:
            if logs.dim() == 4:
                wanted = target[:, :, None]
            else:
                wanted = target
            loss, visible = self._compare(wanted, logs)
            loss, visible = (loss.mean(-1), visible.any(-1)) if logs.dim() == 4 else (loss, visible)
            losses = losses + loss
            num_heads = num_heads + visible
        return (losses / num_heads.clamp(min=1)).sum(), (num_heads > 0).sum()

    def _compare(self, target: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and visibility of rows: a target that the mask hides in part is normalised over the rest."""
        visible = ~is_hidden(logs)
        target = target * visible
        total = target.sum(-1, keepdim=True)
        has_gold = total[..., 0] > 0
        target = target / torch.where(total > 0, total, 1.0)
        outside = (logs.exp() * (target == 0) * visible).sum(-1)
        share = self.options["background"]
        if share:
            target = (1 - share) * target + share * visible / visible.sum(-1, keepdim=True).clamp(min=1)
        loss = DIVERGENCES[self.options["divergence"]](target, logs.masked_fill(~visible, LOWEST_SCORE))
        return torch.where(has_gold, loss + self.options["outside"] * outside, 0.0), has_gold

    def weighted_map(
        self, pairs: Sequence[Any], queries: Sequence[Any], hidden_states: Sequence[Tensor] | None, batch: Batch
    ) -> Tensor:
        """(B, Q, K): the logarithm of the map that all heads make together, 1 in sum over the regions."""
        if hidden_states is None:
            raise ValueError(
                f"reduction={self.options['reduction']!r} reads hidden states, which these outputs have not: give "
                "output_hidden_states=True, or reduction='mean' with a Trainer that drops outputs"
            )
        rows = batch[TARGETS][QUERIES]["rows"]
        anchors, columns = sequence_pairs(self.targets(batch), batch)[ROWS]
        nearness = query_nearness(hidden_states, rows, columns)
        shares = torch.cat([share for _, share in queries], 1)  # (B, LH, U)
        known = asked_before(rows, anchors)
        weights = head_weights(shares, nearness, known, self.options["top_queries"], self.options["reduction"])
        logs = torch.cat([alpha + share[..., None] for alpha, share in pairs], 1)
        hidden = is_hidden(torch.cat([alpha for alpha, _ in pairs], 1)).all(1)
        mixed = (logs + weights.transpose(1, 2)[..., None]).logsumexp(1).masked_fill(hidden, LOWEST_SCORE)
        return mixed.log_softmax(-1).masked_fill(hidden, LOWEST_SCORE)


def query_rows(batch: Batch, rows: Tensor) -> Tensor:
    """(B, U) int64: the positions after the last image token and before the last of `rows`, -1 for padding."""
    if batch.get("region_positions") is not None:
        images = batch["region_positions"].amax(1)
    else:
        images = rows.new_tensor([-1])
    length = int(rows.amax()) + 1 if rows.numel() else 0
    if rows.shape[1]:
        last = rows.amax(1)
    else:
        last = rows.new_zeros(len(rows))
    places = torch.arange(max(length, 1), device=rows.device)
    return row_indices((places > images[:, None]) & (places < last[:, None]))


def asked_before(queries: Tensor, rows: Tensor) -> Tensor:
    """(B, Q, U) bool: the queries (B, U) of each of `rows` (B, Q), sorted and padded with -1.

    They are those after the row before it; rows that follow each other without a gap share theirs.
    """
    runs = rows - torch.arange(rows.shape[1], device=rows.device)
    run = runs[..., None]
    other = runs[:, None]
    others = rows[:, None]  # (B, 1, Q)
    last_before = others.masked_fill(other >= run, -1).amax(-1, keepdim=True)
    first_of_run = others.masked_fill(other != run, torch.iinfo(rows.dtype).max).amin(-1, keepdim=True)
    asked = queries[:, None]
    return (asked > last_before) & (asked < first_of_run) & (rows >= 0)[..., None]


def query_nearness(hidden_states: Sequence[Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """(B, U): the cosines between the states of a query and of all image tokens, summed over the layers."""
    total: Any = 0.0
    for states in hidden_states[1:]:
        states = F.normalize(states.float(), dim=-1, eps=1e-8)
        of_images = gather_rows(states, columns) * (columns >= 0)[..., None]
        total = total + gather_rows(states, rows) @ of_images.sum(1, keepdim=True).transpose(1, 2)
    return total[..., 0]


def head_weights(shares: Tensor, nearness: Tensor, known: Tensor, count: int, form: str) -> Tensor:
    """Logarithms of the weights of all heads, (B, Q, LH), from the log-share of the image in the attention of queries.

    `shares` (B, LH, U); `nearness` (B, U); `known` (B, Q, U), the queries of each row. Equal weights without queries.
    """
    hidden = ~known[:, :, None]
    nearness = nearness[:, None]
    if form == "queries_hard":
        order = (
            nearness.detach()
            .masked_fill(~known, -torch.inf)
            .argsort(dim=-1, descending=True, stable=True)[..., :count]
        )
        chosen = torch.zeros_like(known).scatter(-1, order, True) & known
        return (chosen.to(shares) @ shares.exp().transpose(1, 2)).log_softmax(-1)
    pattern = nearness.masked_fill(~known, LOWEST_SCORE).log_softmax(-1)[:, :, None]
    of_heads = shares.exp()[:, None].masked_fill(hidden, LOWEST_SCORE).softmax(-1)
    terms = pattern.exp() * (pattern - of_heads.clamp(min=_FLOOR).log())
    divergence = terms.masked_fill(hidden, 0.0).sum(-1)
    return (-divergence).log_softmax(-1)


def tell_anchor(method: Any, tokenizer: Any) -> None:
    """Writes how an anchor is taught into the settings of its tokenizer, which are saved with a model or adapter."""
    tokenizer.init_kwargs.pop(POINTER, None)
    for part in getattr(method, "parts", (method,)):
        if isinstance(part, SoftAttention) and part.options["rows"] == "anchor":
            tokenizer.init_kwargs[POINTER] = part.get_config_dict()


class KLAttention(SoftAttention):
    """KL divergence of a layer's attention, averaged over heads, from a target over the image tokens.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="last_answer"`, `target="overlap"`, `reduction="mean"`,
            `divergence="kl"`; all layers, whose losses are averaged.

    References:
        Esmaeilkhani and Latecki (2026), arXiv 2511.12738.

    Requirements:
        As `direct`; rows of an answer need `labels`.

    Inputs:
        | batch entry      | shape        | meaning                                               |
        |------------------|--------------|-------------------------------------------------------|
        | `phrase_mask`    | (B, P, T)    | the tokens of each phrase                             |
        | `phrase_regions` | (B, P, R)    | its regions; with `target="given"` their weights      |
        | `phrase_boxes`   | (B, P, G, 4) | its boxes, for targets of boxes; -1 for padding      |
        | `region_boxes`   | (B, R, 4)    | the part of the image that each region shows          |
        | `labels`         | (B, N)       | for rows of answers: not negative for their tokens    |
        | `text_positions` | (B, T)       | with `region_positions` (B, R): as for `direct`       |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("kl_attention", rows="words", target="given")
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; how much tokens 1 and 2 should look at each
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[0.5, 0.25, 0.25]]]),
        ...     "text_positions": torch.arange(4)[None], "region_positions": torch.arange(4, 7)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        2
    """

    name = "kl_attention"
    citation = """@inproceedings{esmaeilkhani-latecki-2026-direct,
    title = "Direct Visual Grounding by Directing Attention of Visual Tokens",
    author = "Esmaeilkhani, Parsa and Latecki, Longin Jan",
    booktitle = "IEEE/CVF Winter Conference on Applications of Computer Vision (WACV)",
    year = "2026",
}"""
    defaults = {"rows": "last_answer", "target": "overlap", "reduction": "mean"}


class Pointer(SoftAttention):
    """KL divergence of one map of all heads, in the row of an anchor token, from a Gaussian in the box.

    Heads count by how much the words between image and anchor look at the image (`reduction`). The anchor is a token
    that was added to the model (`model.tokens` of a recipe), and a phrase of its own whose boxes are the target.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="anchor"`, `target="gaussian"`, `spread=0.8`,
            `reduction="queries_hard"`, `top_queries=1`, `divergence="kl"`. `target="fitts"` with `spread=1` and
            `outside=1` is the loss of V2P.

    References:
        Zhou et al. (2025), arXiv 2511.00810. Unlike the authors' code, thin boxes keep their target, and a map without
        attention on a patch has no gradient of NaN.

    Requirements:
        As `direct`, of a model that returns hidden states.

    Inputs:
        | batch entry      | shape        | meaning                                               |
        |------------------|--------------|-------------------------------------------------------|
        | `phrase_mask`    | (B, P, T)    | the tokens of each phrase                             |
        | `phrase_anchor`  | (B, P)       | whether a phrase is one added token                   |
        | `phrase_boxes`   | (B, P, G, 4) | its boxes; -1 for padding                            |
        | `region_boxes`   | (B, R, 4)    | the part of the image that each region shows          |
        | `text_positions` | (B, T)       | with `region_positions` (B, R): as for `direct`       |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("pointer", target="given")
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

    name = "pointer"
    citation = """@misc{zhou-etal-2025-gui-aima,
    title = "GUI-AIMA: Aligning Intrinsic Multimodal Attention with a Context Anchor for GUI Grounding",
    author = "Zhou, Shijie and Lai, Viet Dac and Tan, Hao and Kil, Jihyung and Zhu, Wanrong and Chen, Changyou
        and Zhang, Ruiyi",
    eprint = "2511.00810",
    archivePrefix = "arXiv",
    year = "2025",
}"""
    effect = "the attention of its anchor token was taught to point"
    defaults = {"rows": "anchor", "target": "gaussian", "reduction": "queries_hard"}


class Gaze(SoftAttention):
    """KL divergence of a layer's attention, averaged over heads, from maps that rows give.

    Args:
        layers, heads, rows, target, spread, background, reduction, top_queries, divergence, outside: see
            [`SoftAttention`]. By default `rows="words"`, `target="given"`, `reduction="mean"`, `divergence="kl"`.

    References:
        Pani and Yang (2026), arXiv 2603.23202, whose rows and layers are not published.

    Requirements:
        As `direct`.

    Inputs:
        | batch entry      | shape     | meaning                                         |
        |------------------|-----------|-------------------------------------------------|
        | `phrase_mask`    | (B, P, T) | the tokens of each phrase                       |
        | `phrase_regions` | (B, P, R) | how much each region is looked at, at least 0   |
        | `text_positions` | (B, T)    | with `region_positions` (B, R): as for `direct` |

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from grounded_attention import get_method
        >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99))
        >>> method = get_method("gaze")
        >>> method.prepare(model)
        >>> batch = {  # four tokens, three regions; how long people looked at each region when they said token 1
        ...     "phrase_mask": torch.tensor([[[0, 1, 0, 0]]]), "phrase_regions": torch.tensor([[[0.9, 0.2, 0.0]]]),
        ...     "text_positions": torch.arange(4)[None], "region_positions": torch.arange(4, 7)[None]}
        >>> outputs = model(inputs_embeds=torch.randn(1, 7, 32), **method.forward_kwargs(batch))
        >>> total, count = method.losses(outputs, batch)["text_to_region"]
        >>> total.backward(); int(count)
        1
    """

    name = "gaze"
    citation = """@misc{pani-yang-2026-gaze,
    title = "Gaze-Regularized Vision-Language-Action Models for Robotic Manipulation",
    author = "Pani, Anupam and Yang, Yanchao",
    eprint = "2603.23202",
    archivePrefix = "arXiv",
    year = "2026",
}"""
    defaults = {"rows": "words", "target": "given", "reduction": "mean"}
