# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounding alignment: the final states of a phrase and a region predict whether they belong together."""

from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from grounded_attention.utils.schema import Count, Weight

from .alignment_pairs import alignment_matrix, draw_pairs
from .draws import RowGenerators, fixed_generator
from .method import Batch, SupervisionMethod

COMPONENT = "alignment"  # the loss component
PAIRS = "alignment_pairs"  # the entry that `prepare_batch` adds to a batch
# Options of the head -> the configuration field of a model.
HEAD_FIELDS = {
    "level": "alignment_level",
    "size": "alignment_size",
    "fusion": "alignment_fusion",
    "pooling": "alignment_pooling",
    "bidirectional": "alignment_bidirectional",
}


class GroundingAlignment(SupervisionMethod):
    """Binary cross-entropy of balanced pairs of a phrase (or a word) and a region (equations 2 and 3).

    The alignment matrix of an example has an entry for each phrase and region: 1 if the region overlaps a box of the
    phrase. As many entries with 1 as with 0 are drawn from it, new ones in each epoch. A head of the model scores
    them; it is saved with the model. The paper leaves much open; the options have its settings where it gives them.

    Args:
        level (`str`, *optional*, defaults to `"phrase"`): `"phrase"`: an LSTM reads the words of a phrase. `"token"`:
            each word of a phrase has entries of its own.
        weight (`float`, *optional*, defaults to `20.0`): factor of the loss, the paper's lambda_gnd.
        pairs (`int`, *optional*): largest number of entries with 1, and of those with 0, of an example; by default as
            many as there are of the rarer kind.
        negatives (`str`, *optional*, defaults to `"all"`): the entries with 0: `"all"`, of all phrases, or
            `"grounded"`, only of phrases that match a region. Both are of the same image.
        masked (`bool`, *optional*, defaults to `True`): whether words and regions that pre-training predicts have
            entries. If not, a phrase without all its words has none.
        whole_image (`bool`, *optional*, defaults to `False`): whether the region of the whole image, which matches no
            phrase, has entries.
        confidence (`bool`, *optional*, defaults to `True`): whether an entry counts with the confidence of its box
            (`phrase_scores`), if the phrases have any. It multiplies the loss of the entry and not the count.
        size (`int`, *optional*): width of the head and of its LSTM; by default that of the pooled state.
        fusion (`str`, *optional*, defaults to `"product"`): how the head joins phrase and region: `"product"` or
            `"concat"`.
        pooling (`str`, *optional*, defaults to `"last"`): the state of a phrase: `"last"`, the LSTM's state after its
            last word, or `"mean"`, of all its words. Only for phrases, as the next one.
        bidirectional (`bool`, *optional*, defaults to `False`): whether a second LSTM reads the phrase from its end.

    References:
        Chou et al. (2022), section III.

    Requirements:
        A model with `config.alignment_level`, whose outputs have `alignment_logits` (B, N): the models for
        pre-training, paraphrases (VGP) and phrase grounding.

    Inputs:
        | batch entry             | shape     | meaning                                                      |
        |-------------------------|-----------|--------------------------------------------------------------|
        | `phrase_mask`           | (B, P, T) | the tokens of each phrase                                    |
        | `phrase_regions`        | (B, P, R) | its regions                                                  |
        | `phrase_scores`         | (B, P, R) | optional: the confidence of each entry of `phrase_regions`   |
        | `attention_mask`        | (B, T)    | 0 for padded tokens                                          |
        | `region_candidate_mask` | (B, R)    | the regions without whole image and padding                  |
        | `region_attention_mask` | (B, R)    | used if there is no `region_candidate_mask`, and with        |
        |                         |           | `whole_image`                                                |
        | `masked_regions`        | (B, R)    | with `masked=False`: the regions to leave out                |
        | `labels`, `input_ids`   | (B, T)    | with `masked=False`: a word with a label is left out         |

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from grounded_attention import get_method
        >>> method = get_method("grounding_alignment", weight=1.0)
        >>> batch = {  # four tokens, three regions; the phrase of tokens 1 and 2 names region 1
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[0, 1, 0]]])}
        >>> asked = method.forward_kwargs(batch)
        >>> asked["alignment_phrases"].tolist(), asked["alignment_pairs"][0, 0].tolist()
        ([[[1, 2]]], [0, 1])
        >>> outputs = SimpleNamespace(alignment_logits=torch.zeros(1, asked["alignment_pairs"].shape[1]))
        >>> total, count = method.losses(outputs, batch)["alignment"]
        >>> int(count), round(float(total / count), 3)
        (2, 0.693)
    """

    name = "grounding_alignment"
    effect = "it was trained to tell which phrases and regions belong together"
    citation = """@inproceedings{chou-etal-2022-semi,
    title = "Semi-supervised Grounding Alignment for Multi-modal Feature Learning",
    author = "Chou, Shih-Han and Fan, Zicong and Little, James J. and Sigal, Leonid",
    booktitle = "19th Conference on Robots and Vision (CRV)",
    year = "2022",
}"""

    def __init__(
        self,
        level: Literal["phrase", "token"] = "phrase",
        weight: Weight = 20.0,
        pairs: Count | None = None,
        negatives: Literal["all", "grounded"] = "all",
        masked: bool = True,
        whole_image: bool = False,
        confidence: bool = True,
        size: Count | None = None,
        fusion: Literal["product", "concat"] = "product",
        pooling: Literal["last", "mean"] = "last",
        bidirectional: bool = False,
    ):
        if level == "token" and (pooling != "last" or bidirectional):
            raise ValueError("pooling and bidirectional have no effect with level='token': remove them")
        self.weight, self.pairs = float(weight), pairs
        self.matrix: dict[str, Any] = {
            "level": level,
            "negatives": negatives,
            "masked": masked,
            "whole_image": whole_image,
            "confidence": confidence,
        }
        self.head: dict[str, Any] = {
            "level": level,
            "size": size,
            "fusion": fusion,
            "pooling": pooling,
            "bidirectional": bidirectional,
        }

    @property
    def model_config(self) -> dict[str, Any]:
        return {**super().model_config, **{HEAD_FIELDS[name]: value for name, value in self.head.items()}}

    def prepare(self, model: Any) -> None:
        """Checks that the model has the head. A model whose configuration has no field for it is checked in
        [`losses`], by its outputs.

        Raises:
            ValueError: if the model has no head, or another one.
        """
        if not hasattr(model.config, HEAD_FIELDS["level"]):
            return
        wanted = {HEAD_FIELDS[name]: value for name, value in self.head.items()}
        different = [name for name, value in wanted.items() if getattr(model.config, name) != value]
        if getattr(model, "alignment_head", None) is None or different:
            name = different[0] if different else HEAD_FIELDS["level"]
            found = getattr(model.config, name) if different else "no head in this class of models"
            raise ValueError(
                f"grounding_alignment needs a model with its head, but this {type(model).__name__} has "
                f"config.{name}={found!r}: make it with config.{name}={wanted[name]!r}, for pre-training, vgp or "
                "phrase_grounding"
            )

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> dict[str, Any]:
        matrix = alignment_matrix(batch, **self.matrix)
        return {PAIRS: {**draw_pairs(matrix, self.pairs, generators), "phrases": matrix.phrases}}

    def _prepared(self, batch: Batch) -> dict[str, Tensor]:
        return (batch if PAIRS in batch else self.prepare_batch(batch))[PAIRS]

    def drawn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns which pairs are no padding, (B, N) bool, and their labels, (B, N) float32, 1 for matching pairs."""
        prepared = self._prepared(batch)
        return prepared["pairs"][..., 0] >= 0, prepared["labels"]

    def forward_kwargs(self, batch: Batch) -> dict[str, Any]:
        prepared = self._prepared(batch)
        return {"alignment_phrases": prepared["phrases"], "alignment_pairs": prepared["pairs"]}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {COMPONENT: self.drawn(batch)[0].sum()}

    def losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        logits = getattr(outputs, "alignment_logits", None)
        if logits is None:
            raise ValueError(
                "the outputs have no alignment_logits: grounding_alignment needs a model with config.alignment_level, "
                "run with **method.forward_kwargs(batch)"
            )
        drawn, labels = self.drawn(batch)
        losses = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").masked_fill(~drawn, 0.0)
        total = (losses * self._prepared(batch)["weights"]).sum()
        found = {COMPONENT: (self.weight * total, drawn.sum())}
        self.visible_rows.check(found, dict)
        return found

    def get_config_dict(self) -> dict[str, Any]:
        return {"name": self.name, "weight": self.weight, "pairs": self.pairs, **self.matrix, **self.head}
