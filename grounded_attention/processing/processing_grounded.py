# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Common processor of all model families: converts texts, regions or images, and phrases to model inputs."""

from ..utils.named_types import Columns
from .number_arrays import Arrays

from .oldest_transformers import OLDEST_TRANSFORMERS as OLDEST_TRANSFORMERS  # isort: skip

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from transformers.processing_utils import ProcessorMixin
from transformers.utils import auto_docstring

from ..utils.boxes import IOU_THRESHOLD
from ..utils.open_images import open_image
from .grounded_batch import GroundedBatch, as_batch
from .image_processing_fast_rcnn import FastRCNNImageProcessor
from .image_regions import pixel_arrays, read_images
from .load_extractor import load_extractor
from .phrase_arrays import match_iou, phrase_arrays
from .region_columns import (
    GivenRegions,
    RegionColumns,
    arrange_regions,
    check_regions,
    first_ranked,
    limit_each_image,
    rank_regions,
)
from .sequence_layouts import (
    NO_LIMIT,
    arrange_columns,
    check_tokenizer,
    encode_texts,
    end_texts,
    fit_lengths,
    get_layouts,
    min_width,
)
from .text_tags import find_tagged, token_regions


def feature_source(provenance: Columns | None) -> dict[str, str] | None:
    """Identifies the extractor of region features."""
    known = provenance or {}
    features = known.get("features")
    if isinstance(features, Mapping) and features.get("name"):
        return {key: str(features[key]) for key in ("name", "weights") if features.get(key)}
    detector = known.get("detector")
    name = detector if isinstance(detector, str) else known.get("source")
    if isinstance(name, str) and name:
        return {"name": name}
    return None


def feature_mismatch(source: Mapping[str, str] | None, trained_on: Mapping[str, str] | None) -> str | None:
    """Compares the source of features with that of training."""
    if source is None or trained_on is None:
        return None
    if any(source.get(key) and source.get(key) == trained_on.get(key) for key in ("name", "weights")):
        return None
    return (
        f"the features are those of {source.get('name')!r}, but the model was trained on those of "
        f"{trained_on.get('name')!r}: its attention is not meaningful"
    )


@auto_docstring(
    custom_intro="""
    Common part of the processors of all families. A family defines whether the first region is the whole image,
    whether text and regions are one sequence, how many images an example may have, and the layout of a question whose
    answer is read at [MASK].
    """
)
class GroundedProcessor(ProcessorMixin, ABC):
    whole_image: ClassVar[bool]
    images_per_example: ClassVar[int] = 1
    one_sequence: ClassVar[bool] = True  # whether the regions follow the text in one sequence
    answer_layout: ClassVar[str]
    # The pipeline of a checkpoint uses these if only the files of the checkpoint are available.
    load_extractor = staticmethod(load_extractor)
    open_image = staticmethod(open_image)
    feature_source = staticmethod(feature_source)
    # Tags of words become the model input of this name. Without it they are only checked: the public code of two
    # streams writes names into the text instead.
    tag_input: ClassVar[str | None] = None
    read_tags = staticmethod(token_regions)

    def __init__(
        self,
        tokenizer: Any,
        image_processor: FastRCNNImageProcessor | Columns | None = None,
        max_regions: int = 100,
        region_feature_size: int = 2048,
        iou_threshold: float = IOU_THRESHOLD,
        region_feature_source: Mapping[str, str] | None = None,
    ) -> None:
        r"""
        image_processor ([`FastRCNNImageProcessor`] or `dict`, *optional*):
            Makes the pixels for a model that computes region features; a dictionary contains its settings.
        max_regions (`int`, *optional*, defaults to 100):
            Number of regions that an image keeps, without the whole image. Without `region_scores` the first ones
            stay, so sort regions by the detector's confidence.
        region_feature_size (`int`, *optional*, defaults to 2048):
            Width of the region features.
        iou_threshold (`float`, *optional*, defaults to 0.5):
            A region belongs to a phrase if its intersection over union with one of the phrase's gold boxes is at
            least this; above 0, at most 1.
        region_feature_source (`dict[str, str]`, *optional*):
            The source of the region features in training: `name` and, if known, `weights`, a hash of the extractor's
            weights. Training writes it; `None` means unknown.
        """
        super().__init__(tokenizer)
        self._check_settings(
            max_regions=max_regions, region_feature_size=region_feature_size, iou_threshold=iou_threshold
        )
        check_tokenizer(tokenizer, type(self).__name__)
        missing = [name for name in ("cls_token", "sep_token", "pad_token") if getattr(tokenizer, name) is None]
        if missing:
            raise ValueError(f"The tokenizer has no {', '.join(missing)}; the sequence layouts need them.")
        words = tokenizer.get_vocab()
        if len(set(words.values())) < len(words):
            # The first id of several tokens, and these tokens.
            tokens: dict[int, list[str]] = {}
            for token, number in words.items():
                tokens.setdefault(number, []).append(token)
            number, same = next((number, names) for number, names in tokens.items() if len(names) > 1)
            shared = f"{number}: {', '.join(map(repr, same[:3]))}"
            raise ValueError(f"The tokenizer gives one id to several tokens ({shared}); its files are damaged.")
        longest = tokenizer.model_max_length
        if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 1:  # also NaN
            raise ValueError(f"model_max_length of the tokenizer must be a positive number, found {longest!r:.80}.")
        if max_regions < 1 or region_feature_size < 1 or not 0 < iou_threshold <= 1:
            raise ValueError(
                f"max_regions={max_regions}, region_feature_size={region_feature_size}, "
                f"iou_threshold={iou_threshold}: expected two positive integers and a number above 0 and at most 1."
            )
        self.image_processor = _as_image_processor(image_processor)
        self.max_regions = max_regions
        self.region_feature_size = region_feature_size
        self.iou_threshold = iou_threshold
        self.region_feature_source = None if region_feature_source is None else dict(region_feature_source)

    def _check_settings(self, **settings: Any) -> None:
        """Checks that settings, which may come from a file, have the types of their defaults in `__init__`."""
        defaults = inspect.signature(type(self).__init__).parameters
        for name, value in settings.items():
            kind = type(defaults[name].default)
            allowed = {int: (int, np.integer), float: (int, float, np.integer, np.floating)}.get(kind, kind)
            if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
                raise ValueError(f"{name} must be of type {kind.__name__}, found {value!r:.80}.")

    @classmethod
    def get_attributes(cls) -> list[str]:
        """Returns the required parts of a processor; `image_processor` is stored with the settings."""
        return ["tokenizer"]

    def feature_mismatch(self, source: Mapping[str, str] | None) -> str | None:
        """Returns one line if features of this source ([`feature_source`]) are not those of training, else None."""
        return feature_mismatch(source, self.region_feature_source)

    @auto_docstring
    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str | None] | None = None,
        *,
        images: Any = None,
        detector: Any = None,
        region_features: Any = None,
        region_boxes: Any = None,
        image_sizes: Any = None,
        image_features: Any = None,
        region_scores: Any = None,
        region_image_indices: Any = None,
        phrases: Any = None,
        phrase_pairs: Any = None,
        tags: Any = None,
        layout: str | Sequence[str] | None = None,
        padding: bool | str = True,
        truncation: bool | str = True,
        max_length: int | None = None,
        max_sequence_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = "pt",
    ) -> GroundedBatch:
        r"""
        text (`str` or `list[str]`):
            A text, or a batch of B texts. With a single `str` every other argument is that of one example, without
            the batch dimension; the outputs have the batch dimension, with B = 1. A special token that is written in
            a text, such as `[SEP]` or `[MASK]`, is read as words; to hide a word, replace its `input_ids`.
        text_pair (`str` or `list[str]`, *optional*):
            B second texts; `None` in the list is an example with one text.
        images (list of B images, or one array `(B, ...)`, *optional*):
            Paths, PIL images or arrays, see [`open_image`]; `None` is an example without an image. With `region_boxes`
            and the processor's `image_processor` the outputs contain pixels and no features; with `detector` no boxes
            are needed.
        detector (object with `extract(images)`, such as a [`RegionExtractor`], *optional*):
            Finds the regions of `images`, and computes their features if it has a feature model; without one the
            outputs contain pixels.
        region_features (list of B arrays `(n, region_feature_size)`, or one array `(B, n, ...)`, *optional*):
            NumPy or torch, any floating type. The number of regions n may differ. `None` in the list is an example
            without an image. Without this argument and `images` the outputs are text only and have no region keys.
        region_boxes (list of B arrays `(n, 4)`, or one array `(B, n, 4)`, *optional*):
            Boxes (x1, y1, x2, y2) of the same regions: in pixels with `image_sizes`, else divided by image width and
            height. Up to 0.001 outside the image is clipped, more is an error.
        image_sizes (list of B pairs `(width, height)`, *optional*):
            Sizes of the images in pixels, in which the boxes were measured; then `region_boxes` are in pixels.
        image_features (`(B, region_feature_size)`, or a list with `None` for some, *optional*):
            Feature of the whole image, for families that have a region for it (VL-BERT). By default the mean of all
            its region features (zeros without a region), as in the precomputed mode of VL-BERT's public code.
        region_scores (list of B arrays `(n,)`, *optional*):
            If an image has more regions than fit, those with the best scores stay, in their given order.
        region_image_indices (list of B arrays `(n,)`, *optional*):
            The image of each region, 0 or 1, for families with two images (VisualBERT). Each image keeps
            `max_regions`.
        phrases (list of B lists of [`Phrase`] or mappings with its keys, *optional*):
            Words of the texts, such as `{"text": "a dog", "boxes": [[0.1, 0.1, 0.5, 0.8]]}`; see [`read_phrase`]. The
            regions of a phrase are those of `regions` (indices into the given regions, from 0, without the whole
            image), else those whose IoU with one of its `boxes` reaches `iou_threshold`.
        phrase_pairs (list of B arrays `(k, 2)`, *optional*):
            Pairs of indices into the example's phrases.
        tags (list of B lists of [`Phrase`] or mappings, *optional*):
            Phrases with `regions`, which their words see as with the object tags of VCR. VL-BERT uses a region as the
            words' visual part (for several of a token, the first); VisualBERT gives the region the words' positions.
        layout (`str` or `list[str]`, *optional*):
            Sequence layout, one for all or one for each example: `"caption"` ([CLS] text [SEP]), `"caption_pair"`
            ([CLS] text [SEP] text_pair [SEP], token types 0 and 1), `"masked_answer"` ([CLS] text [SEP] [MASK] [SEP],
            token type 1 from [MASK] on, where the answer is read), `"question_mask"` ([CLS] text ? [MASK] [SEP], with
            a question mark if the text does not end in one), or `"plain"` (no special tokens, as in the text corpus
            of the VL-BERT public code). By default one of the first two, by the number of texts.
        padding (`bool` or `str`, *optional*, defaults to `True`):
            `True` or `"longest"`, `"max_length"` (texts only), or `False` (all examples must have one length). Padding
            is always on the right.
        truncation (`bool` or `str`, *optional*, defaults to `True`):
            `True` or `"longest_first"`, `"only_first"`, `"only_second"`, or `False`. Cuts texts at their end when
            texts and special tokens are longer than `max_length`. Special tokens are never cut.
        max_length (`int`, *optional*):
            Largest number of text columns of an example, and at most the tokenizer's `model_max_length`, which is the
            default.
        max_sequence_length (`int`, *optional*):
            Largest number of columns of text, special tokens and regions together, including the whole image, without
            END. Above it, the longer side loses one at a time (VL-BERT public code): a region if there are more
            regions, else a word piece. Special tokens and the whole image stay. Of two images, the last regions go.
        pad_to_multiple_of (`int`, *optional*):
            Makes T a multiple of this.
        return_tensors (`str`, *optional*, defaults to `"pt"`):
            `"pt"`, `"np"`, or `None` for arrays of NumPy too.

        Returns:
            [`GroundedBatch`]: With T text columns, R region columns (the whole image first, where the family has it,
            at least one column), P phrases and K pairs:

            - `input_ids`, `attention_mask`, `token_type_ids`: (B, T) int64.
            - `answer_positions` (B,) int64, the column of [MASK] in the layouts `"masked_answer"` and
              `"question_mask"`, -1 in another one. Only if an example has one of them.
            - `region_features` (B, R, `model_feature_size`) float32 if they are given or computed; else, for a model
              that computes them, `pixel_values` (B, 3, H, W) float32 and `image_sizes` (B, 2) int64, width and height
              in pixels of each image inside the padded canvas, (0, 0) without an image.
            - `region_boxes` (B, R, 4) float32 in [0, 1], the whole image as (0, 0, 1, 1), `region_attention_mask`
              (B, R) int64, `region_candidate_mask` (B, R) bool, which is False for the whole image and padding,
              `region_image` (B, R) int64, the image of each region. Only with regions or images.
            - `text_positions` (B, T) and, with regions, `region_positions` (B, R) int64: positions of the columns in
              the sequence of the model; with two streams each has its own. -1 is padding.
            - `region_token_type_ids` (B, R) int64: `region_image` for the model. Only with `region_image_indices`.
            - `token_regions` (B, T) int64: the region column that each tagged token sees, -1 for all others and for
              tags whose region was dropped. Only with `tags`, for VL-BERT.
            - `image_text_alignment` (B, R, A) int64: the text columns whose tags refer to each region, -1 past their
              number. Only with `tags`, for VisualBERT.
            - `phrase_mask` (B, P, T) bool, and with regions `phrase_regions` (B, P, R) float32: the tokens of each
              phrase, and 1 for its regions, 0 for others (also the whole image). Only with `phrases`.
            - `phrase_scores` (B, P, R) float32 in (0, 1], only with regions and if a phrase has `"scores"`: how sure
              each entry of `phrase_regions` is. For a region of the phrase, the highest score of the boxes that it
              matches; for another, the highest score of the phrase's boxes; 1 for phrases without scores.
            - `phrase_pairs` (B, K, 2) int64, -1 for padding. Only with `phrase_pairs`.

            `dropped_phrases` of the result lists every labelled phrase that was cut. Rows of phrases and pairs keep
            their position, so labels stay aligned; see [`DroppedPhrase`].

        Raises:
            ValueError: Regions do not fit the arguments above (features have another width or another number than the
                boxes, values are NaN or not numbers, boxes are inverted, outside the image, or in pixels without
                `image_sizes`), an image cannot be read, images have neither boxes nor detector, a span is outside its
                text, an index is out of range, or tags have no regions. The message names the example and the region,
                phrase, tag or file.

        Example:

        ```python
        >>> import numpy as np
        >>> from transformers import BertTokenizer
        >>> from grounded_attention import VLBertProcessor

        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "##s"]
        >>> tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
        >>> processor = VLBertProcessor(tokenizer, region_feature_size=4)
        >>> inputs = processor(
        ...     "A dog runs",
        ...     region_features=np.ones((2, 4), dtype=np.float16),
        ...     region_boxes=[[10, 10, 50, 90], [60, 0, 100, 100]],
        ...     image_sizes=(100, 100),
        ...     phrases=[{"text": "A dog", "boxes": [[0.1, 0.1, 0.5, 0.8]]}],
        ... )
        >>> inputs["input_ids"].tolist()  # [CLS] a dog runs [SEP]
        [[2, 5, 6, 7, 3]]
        >>> inputs["phrase_mask"].int().tolist()
        [[[0, 1, 1, 0, 0]]]
        >>> inputs["phrase_regions"].int().tolist()  # whole image, first region, second region
        [[[0, 1, 0]]]

        ```
        """
        inputs = {
            "images": images,
            "region_features": region_features,
            "region_boxes": region_boxes,
            "image_sizes": image_sizes,
            "image_features": image_features,
            "region_scores": region_scores,
            "region_image_indices": region_image_indices,
            "phrases": phrases,
            "phrase_pairs": phrase_pairs,
            "tags": tags,
        }
        texts, text_counts, inputs = as_batch(text, text_pair, inputs)
        layouts = get_layouts(layout, text_counts)
        inputs, pictures = read_images(inputs, self.image_processor, detector)
        regions = self._given_regions(inputs, pictures)
        kept_regions = None if regions is None else self._kept_regions(regions, inputs)
        encoded = encode_texts(self.tokenizer, end_texts(layouts, texts))
        limit = min(self.tokenizer.model_max_length, NO_LIMIT if max_length is None else max_length, NO_LIMIT)
        kept, region_limits = fit_lengths(
            layouts,
            encoded.lengths,
            self._region_counts(regions, kept_regions, len(layouts)),
            truncation,
            limit,
            max_sequence_length,
        )
        width = min_width(padding, limit, kept.sum(axis=0) + [layout.special_count for layout in layouts])
        columns = arrange_columns(layouts, self.tokenizer, encoded, kept, width, pad_to_multiple_of or 1)
        data = {**columns.arrays, **self._pixel_arrays(pictures)}
        arranged = None
        if regions is not None and kept_regions is not None:
            arranged = self._arrange_regions(regions, kept_regions, region_limits, inputs)
            data.update(self._region_arrays(arranged, inputs))
        if tags is not None:
            if arranged is None:
                raise ValueError("tags are given without region_features or images; they refer to regions.")
            tagged = find_tagged(inputs["tags"], texts, encoded, columns, arranged)
            data |= {} if self.tag_input is None else {self.tag_input: self.read_tags(tagged, columns, arranged)}
        data.update(self._position_arrays(data))
        images = np.full(len(layouts), self.images_per_example)
        match = partial(match_iou, iou_threshold=self.iou_threshold)
        arrays, dropped = phrase_arrays(
            inputs, texts, encoded, columns, data["input_ids"].shape[1], arranged, match, images
        )
        data.update(arrays)
        cut = (encoded.lengths - kept).sum(axis=0).tolist()
        return GroundedBatch(data, tensor_type=return_tensors, dropped_phrases=dropped, cut_tokens=cut)

    @property
    def model_input_names(self) -> list[str]:
        """All keys that a batch may have; models ignore those that they do not need."""
        pixels = [] if self.image_processor is None else self.image_processor.model_input_names
        texts = ["input_ids", "attention_mask", "token_type_ids", "answer_positions"]
        regions = ["region_features", "region_boxes", "region_attention_mask", "region_candidate_mask", "region_image"]
        phrases = [
            "text_positions",
            "region_positions",
            "phrase_mask",
            "phrase_regions",
            "phrase_scores",
            "phrase_pairs",
        ]
        return [*texts, *pixels, *regions, *self._family_input_names(), *phrases]

    @property
    def model_feature_size(self) -> int:
        """Width of the region features that the model receives."""
        return self.region_feature_size

    @abstractmethod
    def _family_input_names(self) -> list[str]:
        """Returns the keys from regions and tags that only this family has."""

    def _region_arrays(self, regions: RegionColumns, inputs: Columns) -> Arrays:
        return regions.arrays

    def _given_regions(self, inputs: Columns, pictures: Sequence[Image.Image | None] | None) -> GivenRegions | None:
        if pictures is not None:
            has_image = np.array([picture is not None for picture in pictures])
            return check_regions(inputs, has_image, self.region_feature_size, self.images_per_example)
        if inputs["region_features"] is None:
            unused = []
            for name in inputs:
                if name.startswith(("region", "image")) and inputs[name] is not None:
                    unused.append(name)
            if unused:
                raise ValueError(f"{', '.join(unused)} given without region_features or images.")
            return None
        if inputs["region_boxes"] is None:
            raise ValueError("region_features are given without region_boxes; every region needs a box.")
        if inputs["image_features"] is not None and not self.whole_image:
            raise ValueError(f"image_features are given, but {type(self).__name__} has no region for the whole image.")
        return check_regions(inputs, None, self.region_feature_size, self.images_per_example)

    def _kept_regions(self, regions: GivenRegions, inputs: Columns) -> np.ndarray:
        """Returns (B, G) bool: the regions that stay after `max_regions`."""
        ranks = rank_regions(regions.counts, inputs["region_scores"])
        return limit_each_image(ranks, regions.counts, regions.images, self.max_regions)

    def _region_counts(self, regions: GivenRegions | None, kept: np.ndarray | None, batch_size: int) -> np.ndarray:
        """Returns (B,) int64: the columns of the regions, including the whole image."""
        if regions is None or kept is None:
            return np.zeros(batch_size, dtype=np.int64)
        return np.where(regions.has_image, int(self.whole_image) + kept.sum(axis=1), 0)

    def _arrange_regions(
        self, regions: GivenRegions, kept: np.ndarray, region_limits: np.ndarray, inputs: Columns
    ) -> RegionColumns:
        """Arranges the region columns; `region_limits` (B,) is the largest number of them."""
        limit = region_limits - int(self.whole_image)
        if (kept.sum(axis=1) > np.maximum(limit, 0)).any():
            kept = first_ranked(rank_regions(regions.counts, inputs["region_scores"]), kept, limit)
        return arrange_regions(
            regions, kept, inputs["image_features"], self.region_feature_size, whole_image=self.whole_image
        )

    def _pixel_arrays(self, pictures: Sequence[Image.Image | None] | None) -> Arrays:
        if pictures is None or self.image_processor is None:
            return {}
        return pixel_arrays(pictures, self.image_processor)

    def _position_arrays(self, data: Mapping[str, np.ndarray]) -> Arrays:
        """Makes the positions of text columns and region columns in the sequence of the model; -1 for padding."""
        text = data["attention_mask"]
        regions = data.get("region_attention_mask")
        positions = {"text_positions": np.where(text > 0, np.arange(text.shape[1]), -1)}
        if regions is not None:
            start = text.shape[1] * self.one_sequence
            positions["region_positions"] = np.where(regions > 0, start + np.arange(regions.shape[1]), -1)
        return positions


def _as_image_processor(value: Any) -> FastRCNNImageProcessor | None:
    """Returns the image processor, or a new one with its settings (also for a copy of the class from a checkpoint)."""
    if value is None or isinstance(value, FastRCNNImageProcessor):
        return value
    settings = value.to_dict() if hasattr(value, "to_dict") else value
    name = FastRCNNImageProcessor.__name__
    if not isinstance(settings, Mapping) or settings.get("image_processor_type", name) != name:
        raise ValueError(f"image_processor: {type(value).__name__}, expected a {name} or its settings.")
    return FastRCNNImageProcessor.from_dict(dict(settings))
