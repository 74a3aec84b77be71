# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The pipeline `visual-grounding`: finds the region of an image to which each phrase of a caption attends.

The pipeline is saved with every checkpoint, uses the processor of the checkpoint, and needs only transformers.

Shape letters: B batch, L layers, H heads, T text, R regions, P phrases, n regions of an image.
"""

from ..utils.named_types import Fields, Head

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pipelines.base import Pipeline
from transformers.pipelines.pt_utils import PipelineDataset, PipelineIterator
from transformers.utils import logging

from .attention_calls import AttentionCall, layer_names
from .finite_numbers import finite_scores
from .grounding_items import BY_WORDS, GroundingItem, find_phrases, read_caption, unknown_words
from .pipeline_regions import RegionSource, load_features
from .sequence_inputs import asking_tokens

logger = logging.get_logger(__name__)

_INPUTS = ("image", "caption", "boxes", "features", "scores", "labels", "regions", "image_size", "phrases")


# The registered name of the attention function. A name with "flash" in it would make transformers load a kernel.
ATTENTION_QUERY = "sdpa_attention_query"
LOWEST_SCORE = -1e9  # its exponential is 0


def attend_query_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    attention_queries: Sequence[tuple[Tensor, Tensor] | None] = (),
    attention_layers: Sequence[int] | None = None,
    attention_call: Any = None,  # not used
    output_attentions: bool | None = None,  # not passed on: SDPA warns about it
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """SDPA, and the attention of the query rows normalised over the key columns, before dropout."""
    output = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    first = attention_queries[0] if attention_queries else None
    if first is None or not (attention_layers is None or module.layer_idx in attention_layers):
        return output, None
    rows, columns = first
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    query_rows = _at_positions(query, rows)
    key_columns = _at_positions(key, columns)
    scores = (query_rows * scaling @ key_columns.transpose(2, 3)).float()
    return output, scores.masked_fill((columns < 0)[:, None, None], LOWEST_SCORE).softmax(-1)


def _at_positions(states: Tensor, positions: Tensor) -> Tensor:
    """(B, H, N, d) at (B, Q) -> (B, H, Q, d); padding reads position 0."""
    index = positions.clamp(min=0)[:, None, :, None]
    return states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))


AttentionInterface.register(ATTENTION_QUERY, attend_query_rows)
# A name without a registered mask function gets no mask, and the model would attend to padding.
AttentionMaskInterface.register(ATTENTION_QUERY, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def choose_layers(calls: Sequence[AttentionCall], layer: int | None, head: int | None) -> list[int]:
    """The layers to read attention from, counted from 0: the requested layer, or the upper half. In the first layers
    the words do not contain their context yet, so these layers cannot distinguish two objects with the same name.
    """
    layers = len(layer_names(calls))
    heads = min((call.num_heads for call in calls), default=0)
    for name, value, count in (("layer", layer, layers), ("head", head, heads)):
        if value is not None and not 0 <= value < count:
            raise ValueError(f"{name} {value}: the model has the {name}s 0 to {count - 1}")
    if layer is not None:
        return [layer]
    return list(range(layers // 2, layers))


class VisualGroundingPipeline(RegionSource, Pipeline):
    """
    Finds, for each phrase of a caption, the regions of the image to which the phrase attends in the model.

    Args:
        detector (`str` or object, *optional*): finds the regions of images that are given without boxes: name or
            folder of a detector of transformers, or an object with `detect(images)` or `extract(images)`.
        feature_model (`str` or object, *optional*): computes features of boxes that are given without features: name
            or folder of a region-feature network or a vision backbone, or an object with the same call signature,
            `name`, `config.feature_size` and an `image_processor`. A model that reads pixels needs none.
        queries (`list[str]`, *optional*): the objects that a zero-shot detector searches for.
        layer, head (`int`, *optional*): layer and head, counted from 0. The default is the mean over the upper half of
            the layers, and over all heads.
        top_k (`int`, *optional*, defaults to 1): largest number of regions per phrase; `None` for all.
        threshold (`float`, *optional*): lowest score of returned regions, in [0, 1].
        kwargs: arguments of every pipeline: `model`, `processor`, `device`, `dtype`, `batch_size` ...

    For a vision-language model such as LLaVA, importing `grounded_attention` registers a subclass in `others`.

    A call also accepts `layer`, `head`, `top_k`, `threshold`, and `heads`: pairs of layer and head, whose mean counts;
    and `words`, the tokens of a phrase that ask: all of them ("mean"), its "last" or its "first".

    Attributes:
        remarks (`list[str]`): all warnings so far, each once: words that the tokenizer does not know, and features
            that differ from those of training.
    """

    # Pipelines for models outside this package: model type -> subclass. `VisualGroundingPipeline(model)` makes them.
    others: ClassVar[dict[str, type["VisualGroundingPipeline"]]] = {}

    _load_processor: Any = True
    _load_tokenizer: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False
    _load_video_processor: Any = False

    def __new__(cls, *args: Any, **kwargs: Any) -> "VisualGroundingPipeline":
        model = kwargs.get("model", args[0] if args else None)
        kind = getattr(getattr(model, "config", None), "model_type", "")
        return super().__new__(cls.others.get(kind, cls))

    def __init__(
        self,
        *args: Any,
        detector: Any = None,
        feature_model: Any = None,
        queries: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            super().__init__(*args, **kwargs)
        except (AssertionError, RuntimeError) as error:  # PyTorch's two ways to say that a device is missing
            if kwargs.get("device") is None:
                raise
            reason = " ".join(str(error).split()).partition(". ")[0]
            raise ValueError(
                f"device={kwargs['device']!r} cannot be used: {reason}; leave it out or give 'cpu'"
            ) from error
        self._check_parts()
        if not hasattr(self.model.config, "grounding_calls"):
            known = f"; other models that ground are {', '.join(self.others)}" if self.others else ""
            raise ValueError(f"model type {self.model.config.model_type} is not of this package{known}")
        self.remarks: list[str] = []
        self.feature_model_name = feature_model if isinstance(feature_model, str) else ""
        self.feature_model: Any = None
        if feature_model is not None:
            if self.reads_pixels:
                raise ValueError("the model reads pixels and does not use a feature model: remove feature_model")
            loaded = load_features(feature_model) if isinstance(feature_model, str) else feature_model
            self.feature_model = loaded.to(self.device)
            self._check_width(self.feature_model.config.feature_size)
        if queries and not isinstance(detector, str):
            raise ValueError("queries are for a zero-shot detector: give its name as detector too")
        self.extractor = detector
        if detector is not None and not hasattr(detector, "extract"):
            self.extractor = self._make_extractor(detector, queries)
        self._check_source(self.extractor)

    def _check_parts(self) -> None:
        if self.processor is None:
            raise ValueError('a model object needs a processor: pipeline("visual-grounding", model, processor=...)')

    def _warn(self, line: str) -> None:
        if line not in self.remarks:
            self.remarks.append(line)
            logger.warning(line)

    def __call__(  # type: ignore[override]
        self, inputs: Any, caption: str | None = None, **kwargs: Any
    ) -> Any:
        """
        Grounds the phrases of captions.

        Args:
            inputs: an image (path, URL, PIL image) together with `caption`; or a dictionary with the keys below; or a
                list, a generator or a data set of such dictionaries. A data set or generator returns an iterator.

                - `caption` (`str`).
                - `image`: path, URL or PIL image; not needed if features and `image_size` are given.
                - `boxes` (`(n, 4)`, *optional*): x1, y1, x2, y2 in pixels. Without boxes the detector finds regions.
                - `features` (`(n, D)`, *optional*): features of these boxes.
                - `scores`, `labels` (n entries, *optional*): the detector's scores and classes of these boxes.
                - `regions`: replaces the four keys above: a record of a region table, or the output of an extractor.
                  A file or PIL image given with it may be a larger or smaller copy of the image of the record.
                - `image_size`: width and height in pixels, needed without image.
                - `phrases` (*optional*): a text or texts in the caption, or spans of characters `(start, end)`. The
                  default is noun phrases by spaCy or, if spaCy is not installed, each content word.
            caption (`str`, *optional*): the caption of an image. The other keys are then keyword arguments.
            layer, head, top_k, threshold: see the class.
            batch_size (`int`, *optional*): number of captions in one run of the model.

        Returns:
            for each caption a list of dictionaries that can be written as JSON, in the order of the phrases, and per
            phrase the best region first:

            - `text`, `start`, `end`: the phrase, the index of its first character and the index after its last.
            - `box`: `xmin`, `ymin`, `xmax`, `ymax` in pixels.
            - `score`: the region's share of the phrase's attention over all regions, in [0, 1].
            - `label`: the detector's class of the region, or `None`.
            - `region`: the index of the region.

        Raises:
            ValueError: if an input is incomplete, its parts do not fit, an image cannot be read, or the model reads no
                token of a phrase.
        """
        if caption is not None:
            named = {name: kwargs.pop(name) for name in _INPUTS if name in kwargs}
            inputs = {"image": inputs, "caption": caption, **named}
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__(inputs, **kwargs)

    def _sanitize_parameters(self, **parameters: Any) -> tuple[Fields, Fields, Fields]:
        names = ("layer", "head", "heads", "words")
        chosen: Fields = {name: parameters.pop(name) for name in names if name in parameters}
        kept: Fields = {name: parameters.pop(name) for name in ("top_k", "threshold") if name in parameters}
        if parameters:
            raise TypeError(
                f"unknown: {', '.join(sorted(parameters))}; known are layer, head, heads, words, top_k, "
                f"threshold, and with a caption {', '.join(_INPUTS)}"
            )
        if chosen.get("words", "mean") not in ("mean", "last", "first"):
            raise ValueError(f"words {chosen['words']!r}: expected mean, last or first")
        if kept.get("top_k") is not None and kept["top_k"] < 1:
            raise ValueError(f"top_k {kept['top_k']}: expected 1 or more, or None for all regions")
        return {}, chosen, kept

    def get_iterator(
        self,
        inputs: Any,
        num_workers: int,
        batch_size: int,
        preprocess_params: Fields,
        forward_params: Fields,
        postprocess_params: Fields,
    ) -> Iterator:
        """As in every pipeline, with a different collation function: the processor pads inputs of unequal length."""
        kind = PipelineDataset if hasattr(inputs, "__len__") else PipelineIterator
        items = kind(inputs, self.preprocess, preprocess_params)
        workers = num_workers if kind is PipelineDataset else min(num_workers, 1)
        loader = DataLoader(items, num_workers=workers, batch_size=batch_size, collate_fn=_collate)
        batches = PipelineIterator(loader, self.forward, forward_params, loader_batch_size=batch_size)
        return PipelineIterator(batches, self.postprocess, postprocess_params)

    # One caption

    def preprocess(  # type: ignore[override]
        self, input_: Any, **preprocess_parameters: Any
    ) -> dict[str, list[GroundingItem]]:
        """The checked input as a batch of one."""
        caption = read_caption(input_, _INPUTS)
        phrases, way = find_phrases(caption, input_.get("phrases"))
        if way == BY_WORDS:
            logger.warning_once("spaCy is not installed: each content word is a phrase. Give phrases to choose them.")
        unknown = unknown_words(self.processor.tokenizer, caption)
        if unknown:
            named = ", ".join(map(repr, unknown))
            self._warn(f"unknown words, which the model reads as [UNK]: {named}; their attention has no meaning")
        item = GroundingItem(caption, phrases)
        if input_.get("regions") is not None:
            self._take_record(item, input_)
        else:
            self._take_regions(item, input_)
        if item.image is None and (item.features is None or item.size is None):
            raise ValueError("found no image to find regions in; give an image, or features, boxes and image_size")
        if item.features is not None:
            self._check_width(item.features.shape[-1])
        return {"items": [item]}

    def find_regions(self, image: Any, caption: str, **known: Any) -> GroundingItem:
        """
        Checks an image and its caption, and finds the boxes and features that are not given.

        Args:
            image: as in a call.
            caption (`str`): the text.
            known: given data of the regions, as in a call: `regions`, or `boxes`, `features`, ...

        Returns:
            `GroundingItem`: `boxes` (n, 4) in [0, 1], `features` (n, D) unless the model reads pixels, `labels`.

        Raises:
            ValueError: as in a call.
        """
        item = self.preprocess({"image": image, "caption": caption, **known})["items"][0]
        self._find_regions([item])
        return item

    # A batch of captions

    def _forward(  # type: ignore[override]
        self,
        input_tensors: dict[str, list[GroundingItem]],
        layer: int | None = None,
        head: int | None = None,
        heads: Sequence[Head] | None = None,
        words: str = "mean",
    ) -> Fields:
        """The attention of each item's phrases over its regions: `weights` (P, n) float32."""
        items = input_tensors["items"]
        calls = self.model.config.grounding_calls
        for pair in heads or ():
            choose_layers(calls, *pair)
        if heads:
            layers = sorted({chosen for chosen, _ in heads})
        else:
            layers = choose_layers(calls, layer, head)
        self._find_regions(items)
        batch = self._encode(items)
        for item, tokens in zip(items, batch["phrase_mask"], strict=True):
            for phrase, mask in zip(item.phrases, tokens, strict=False):
                if not mask.any():
                    raise ValueError(
                        f"phrase {phrase.text!r} has no token within the model's text length; shorten the caption"
                    )
        if head is not None:
            heads = [(chosen, head) for chosen in layers]
        batch["phrase_mask"] = asking_tokens(batch["phrase_mask"], words)
        found = zip(items, self._attention(batch, layers, heads), batch["region_candidate_mask"].bool(), strict=True)
        return {"items": [{"item": each, "weights": rows[: len(each.phrases)][:, mask]} for each, rows, mask in found]}

    def _encode(self, items: Sequence[GroundingItem]) -> Any:
        """The output of the processor for the batch, on the pipeline's device; the order of regions is unchanged."""
        visual: Fields = {"images": [item.image for item in items]}
        if not self.reads_pixels:
            visual = {"region_features": [item.features for item in items]}
        limit = self.processor.max_regions
        self.processor.max_regions = max(limit, *(len(item.known_boxes) for item in items))
        try:
            batch = self.processor(
                [item.caption for item in items],
                region_boxes=[item.known_boxes for item in items],
                phrases=[item.phrases for item in items],
                **visual,
            )
        finally:
            self.processor.max_regions = limit
        return batch.to(self.device)

    def _attention(self, batch: Any, layers: Sequence[int], chosen: Sequence[Head] | None) -> Tensor:
        """(B, P, R) float32: mean over a phrase's tokens and the chosen heads, or all heads of the layers."""
        regions = batch["region_candidate_mask"].bool()
        mask = batch["phrase_mask"].float()
        rows = torch.arange(mask.shape[2], device=mask.device).expand(len(mask), -1)
        columns = torch.arange(regions.shape[1], device=mask.device).expand_as(regions).masked_fill(~regions, -1)
        model = self.model.base_model
        before = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION_QUERY)
        try:
            outputs = model(
                **batch,
                output_attentions=True,
                return_dict=True,
                grounding_queries={"text_to_region": (rows, columns)},
                attention_layers=tuple(layers),
            )
        finally:
            model.config._attn_implementation = before  # the method of the model would load a kernel again
        heads = torch.stack(list(outputs.attentions))  # (L, B, H, T, R)
        if chosen is None:
            alpha = heads.mean((0, 2))
        else:
            alpha = torch.stack([heads[layers.index(layer), :, head] for layer, head in chosen]).mean(0)
        return finite_scores((mask / mask.sum(-1, keepdim=True).clamp(min=1)) @ alpha)

    # The output

    def postprocess(  # type: ignore[override]
        self, model_outputs: Fields, top_k: int | None = 1, threshold: float | None = None
    ) -> list[Fields]:
        """The regions of each phrase, see `__call__`."""
        entry = model_outputs["items"]
        if isinstance(entry, list):
            entry = entry[0]
        item = entry["item"]
        weights = entry["weights"].numpy()
        edges = ("xmin", "ymin", "xmax", "ymax")
        corners = item.pixels.tolist()
        grounded = []
        for phrase, shares in zip(item.phrases, weights, strict=True):
            for region in np.argsort(-shares, kind="stable")[:top_k].tolist():
                if threshold is None or shares[region] >= threshold:
                    grounded.append(
                        {
                            "text": phrase.text,
                            "start": phrase.start,
                            "end": phrase.end,
                            "box": {edge: round(value, 1) for edge, value in zip(edges, corners[region], strict=True)},
                            "score": float(shares[region]),
                            "label": item.labels[region],
                            "region": region,
                        }
                    )
        return grounded

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Saves model, code and processor; `push_to_hub` pushes the same."""
        self.model.save_pretrained(save_directory, **kwargs)  # with the code of this pipeline
        self.processor.save_pretrained(save_directory)


def _collate(batch: Sequence[Mapping[str, list[GroundingItem]]]) -> dict[str, list[GroundingItem]]:
    return {"items": [item for one in batch for item in one["items"]]}


__all__ = ["OLDEST_TRANSFORMERS", "VisualGroundingPipeline", "choose_layers"]
