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
"""Processor of VL-BERT: texts, region features and boxes, and labelled phrases become model inputs."""

from .check_processor_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers.processing_utils import ProcessorMixin
from transformers.utils import auto_docstring, logging

from .grounded_batch import DroppedPhrase, GroundedBatch
from .phrase_grounding import (
    NO_TOKEN,
    REGIONS_CUT,
    TRUNCATED,
    flatten_phrases,
    ground_phrases,
    list_dropped,
    pair_phrases,
    phrase_tokens,
)
from .region_columns import RegionColumns, build_regions
from .sequence_layouts import EncodedTexts, TextColumns, arrange_columns, encode_texts, get_layout, kept_lengths

logger = logging.get_logger(__name__)

# A tokenizer without a limit has a huge number in the place of one.
NO_LIMIT = 1_000_000


@auto_docstring(
    custom_intro="""
    Turns words and image regions into the inputs of VL-BERT. Region features are made beforehand by any detector;
    the processor puts a region for the whole image in front of them.
    """
)
class VLBertProcessor(ProcessorMixin):
    def __init__(
        self,
        tokenizer: Any,
        max_regions: int = 100,
        region_feature_size: int = 2048,
        iou_threshold: float = 0.5,
    ) -> None:
        r"""
        max_regions (`int`, *optional*, defaults to 100):
            How many regions an image keeps, not counting the whole image. Without `region_scores` the first ones
            stay: give regions in the order of the detector's confidence.
        region_feature_size (`int`, *optional*, defaults to 2048):
            Width of the region features.
        iou_threshold (`float`, *optional*, defaults to 0.5):
            A region belongs to a phrase when its intersection over union with one of the phrase's gold boxes is at
            least this; above 0, at most 1.
        """
        super().__init__(tokenizer)
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(f"VLBertProcessor needs a fast tokenizer for character spans, found {type(tokenizer)}.")
        missing = [name for name in ("cls_token", "sep_token", "pad_token") if getattr(tokenizer, name) is None]
        if missing:
            raise ValueError(f"The tokenizer has no {', '.join(missing)}; the sequence layouts need them.")
        if max_regions < 1 or region_feature_size < 1 or not 0 < iou_threshold <= 1:
            raise ValueError(
                f"max_regions={max_regions}, region_feature_size={region_feature_size}, "
                f"iou_threshold={iou_threshold}: expected two positive integers and a number above 0 and at most 1."
            )
        self.max_regions = max_regions
        self.region_feature_size = region_feature_size
        self.iou_threshold = iou_threshold

    @auto_docstring
    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        *,
        region_features: Any = None,
        region_boxes: Any = None,
        image_sizes: Any = None,
        image_features: Any = None,
        region_scores: Any = None,
        region_entity_ids: Any = None,
        phrases: Any = None,
        phrase_pairs: Any = None,
        layout: str | None = None,
        padding: bool | str = True,
        truncation: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = "pt",
    ) -> GroundedBatch:
        r"""
        text (`str` or `list[str]`):
            A text, or a batch of B texts. With a single `str` every other argument is that of one example, without
            the batch dimension; the outputs have it, with B = 1.
        text_pair (`str` or `list[str]`, *optional*):
            Second texts, as many.
        region_features (list of B arrays `(n, region_feature_size)`, or one array `(B, n, ...)`, *optional*):
            NumPy or torch, any floating type. The number of regions n may differ. `None` in the list is an example
            without an image. Without this argument the inputs are text only and have no region keys.
        region_boxes (list of B arrays `(n, 4)`, or one array `(B, n, 4)`, *optional*):
            Boxes (x1, y1, x2, y2) of the same regions: in pixels with `image_sizes`, else divided by image width and
            height. Up to 0.001 outside the image is clipped, more is an error.
        image_sizes (list of B pairs `(width, height)`, *optional*):
            Sizes of the images in pixels; says that `region_boxes` are in pixels.
        image_features (`(B, region_feature_size)`, or a list with `None` for some, *optional*):
            Feature of the whole image. By default the mean of all its region features, as in the public code's
            precomputed mode (zeros when it has no region).
        region_scores (list of B arrays `(n,)`, *optional*):
            When an image has more than `max_regions` regions, those with the best scores stay, in their given order.
        region_entity_ids (list of B lists of n entries, *optional*):
            Entity of each region: an id, a list of ids, or `None`.
        phrases (list of B lists of dictionaries, *optional*):
            `{"text": 0 or 1, "start": int, "end": int}`, a character span in one of the texts, and at most one of
            `"regions"` (indices into the given regions, from 0, without the whole image), `"entity_id"` (all regions
            with this id in `region_entity_ids`) and `"boxes"` (normalised gold boxes; regions whose IoU with any
            reaches `iou_threshold`). With several the first of them counts that can be used. Without one, or with no
            box, a phrase is ungrounded. Other keys are ignored.
        phrase_pairs (list of B arrays `(k, 2)`, *optional*):
            Pairs of indices into the example's phrases.
        layout (`str`, *optional*):
            Sequence layout: `"caption"` ([CLS] text [SEP]) or `"caption_pair"` ([CLS] text [SEP] text_pair [SEP],
            token types 0 and 1). Chosen by the number of texts when not given.
        padding (`bool` or `str`, *optional*, defaults to `True`):
            `True` or `"longest"`, `"max_length"` (texts only), or `False` (all examples must have one length). Padding
            is always on the right.
        truncation (`bool` or `str`, *optional*, defaults to `True`):
            `True` or `"longest_first"`, `"only_first"`, `"only_second"`, or `False`. Cuts texts at their end when
            `[CLS]`, texts and `[SEP]` are longer than `max_length`.
        max_length (`int`, *optional*):
            Text columns an example may take; the tokenizer's `model_max_length` by default.
        pad_to_multiple_of (`int`, *optional*):
            Makes T a multiple of this.
        return_tensors (`str`, *optional*, defaults to `"pt"`):
            `"pt"`, `"np"`, or `None` for lists (of arrays, for features and boxes).

        Returns:
            [`GroundedBatch`]: With T text columns, R regions, the whole image first, P phrases and K pairs:

            - `input_ids`, `attention_mask`, `token_type_ids`: (B, T) int64.
            - `region_features` (B, R, `region_feature_size`) and `region_boxes` (B, R, 4, in [0, 1]) float32,
              `region_attention_mask` (B, R) int64, `region_candidate_mask` (B, R) bool, which is False for the whole
              image and padding. Only with `region_features`.
            - `phrase_mask` (B, P, T) bool, and `phrase_regions` (B, P, R) bool with `region_features`: the tokens and
              the regions of each phrase. The whole image never belongs to a phrase. Only with `phrases`.
            - `phrase_pairs` (B, K, 2) int64, -1 for padding. Only with `phrase_pairs`.

            `dropped_phrases` of the result lists every labelled phrase that was cut. Rows of phrases and pairs keep
            their place, so labels stay aligned; see [`DroppedPhrase`].

        Raises:
            ValueError: For regions that do not fit the arguments above (features of another width, another number of
                boxes, NaN, boxes inverted, outside the image, or in pixels without `image_sizes`), a span outside its
                text, an index out of range, or an `entity_id` without `region_entity_ids`. The
                message names the example and the region or phrase.

        Example:

        ```python
        >>> import numpy as np
        >>> from transformers import BertTokenizer
        >>> from processing import VLBertProcessor

        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "##s"]
        >>> tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
        >>> processor = VLBertProcessor(tokenizer, region_feature_size=4)
        >>> inputs = processor(
        ...     "A dog runs",
        ...     region_features=np.ones((2, 4), dtype=np.float16),
        ...     region_boxes=[[10, 10, 50, 90], [60, 0, 100, 100]],
        ...     image_sizes=(100, 100),
        ...     phrases=[{"text": 0, "start": 0, "end": 5, "boxes": [[0.1, 0.1, 0.5, 0.8]]}],
        ... )
        >>> inputs["input_ids"].tolist()  # [CLS] a dog runs [SEP]
        [[2, 5, 6, 7, 3]]
        >>> inputs["phrase_mask"].int().tolist()
        [[[0, 1, 1, 0, 0]]]
        >>> inputs["phrase_regions"].int().tolist()  # whole image, first region, second region
        [[[0, 1, 0]]]

        ```
        """
        given = {
            "region_features": region_features,
            "region_boxes": region_boxes,
            "image_sizes": image_sizes,
            "image_features": image_features,
            "region_scores": region_scores,
            "region_entity_ids": region_entity_ids,
            "phrases": phrases,
            "phrase_pairs": phrase_pairs,
        }
        texts, given = _as_batch(text, text_pair, given)
        encoded = encode_texts(self.tokenizer, texts)
        columns = self._text_columns(layout, encoded, padding, truncation, max_length, pad_to_multiple_of)
        regions = self._region_columns(given)
        data = {**columns.arrays, **({} if regions is None else regions.arrays)}
        dropped: list[list[DroppedPhrase]] = [[] for _ in texts[0]]
        if given["phrases"] is not None:
            phrase_data, dropped = self._phrase_arrays(texts, encoded, columns, regions, given)
            data.update(phrase_data)
        elif given["phrase_pairs"] is not None:
            raise ValueError("phrase_pairs are given without phrases; they are indices into them.")
        if return_tensors is None:
            lists = {key: list(value) if value.dtype == np.float32 else value.tolist() for key, value in data.items()}
            return GroundedBatch(lists, dropped_phrases=dropped)
        return GroundedBatch(data, tensor_type=return_tensors, dropped_phrases=dropped)

    @property
    def model_input_names(self) -> list[str]:
        """Every key a batch may have; models that do not need one ignore it."""
        regions = ["region_features", "region_boxes", "region_attention_mask", "region_candidate_mask"]
        return [
            "input_ids",
            "attention_mask",
            "token_type_ids",
            *regions,
            "phrase_mask",
            "phrase_regions",
            "phrase_pairs",
        ]

    def _text_columns(
        self,
        layout: str | None,
        encoded: EncodedTexts,
        padding: bool | str,
        truncation: bool | str,
        max_length: int | None,
        pad_to_multiple_of: int | None,
    ) -> TextColumns:
        text_count = len(encoded.lengths)
        spec = get_layout(layout or ("caption", "caption_pair")[text_count - 1], text_count)
        limit = min(self.tokenizer.model_max_length if max_length is None else max_length, NO_LIMIT)
        kept = encoded.lengths
        if truncation not in (False, None, "do_not_truncate"):
            strategy = "longest_first" if truncation is True else str(truncation)
            if limit < spec.special_count:
                raise ValueError(f"max_length={limit} leaves no room for {spec.special_count} special tokens.")
            kept = kept_lengths(kept, limit - spec.special_count, strategy)
        width = _min_width(padding, limit, kept.sum(axis=0) + spec.special_count)
        return arrange_columns(spec, self.tokenizer, encoded, kept, width, pad_to_multiple_of or 1)

    def _region_columns(self, given: Mapping[str, Any]) -> RegionColumns | None:
        if given["region_features"] is None:
            orphans = [name for name in given if name.startswith(("region", "image")) and given[name] is not None]
            if orphans:
                raise ValueError(f"{', '.join(orphans)} given without region_features.")
            return None
        if given["region_boxes"] is None:
            raise ValueError("region_features are given without region_boxes; every region needs its box.")
        return build_regions(
            given["region_features"],
            given["region_boxes"],
            given["image_sizes"],
            given["image_features"],
            given["region_scores"],
            self.max_regions,
            self.region_feature_size,
        )

    def _phrase_arrays(
        self,
        texts: list[list[str]],
        encoded: EncodedTexts,
        columns: TextColumns,
        regions: RegionColumns | None,
        given: Mapping[str, Any],
    ) -> tuple[dict[str, np.ndarray], list[list[DroppedPhrase]]]:
        flat = flatten_phrases(given["phrases"], texts)
        counts = [len(example or ()) for example in given["phrases"]]
        batch, width = columns.arrays["input_ids"].shape
        shape = (batch, max(counts, default=0), width)
        mask, truncated, empty = phrase_tokens(flat, shape, encoded, columns)
        absent = truncated | empty
        data, flags = {"phrase_mask": mask}, {TRUNCATED: truncated, NO_TOKEN: empty}
        if regions is not None:
            gold, lost = ground_phrases(flat, regions, given["region_entity_ids"], self.iou_threshold)
            data["phrase_regions"] = np.zeros((*shape[:2], gold.shape[1]), dtype=bool)
            data["phrase_regions"][flat.example, flat.row] = gold & ~absent[:, None]
            flags[REGIONS_CUT] = lost & ~absent
        if given["phrase_pairs"] is not None:
            data["phrase_pairs"] = pair_phrases(given["phrase_pairs"], flat, absent, counts)
        dropped = list_dropped(flat, texts, flags)
        _warn_about(dropped, len(flat.records))
        return data, dropped


def _as_batch(
    text: str | Sequence[str], text_pair: str | Sequence[str] | None, given: dict[str, Any]
) -> tuple[list[list[str]], dict[str, Any]]:
    """Lists of texts, first and second, and the other arguments, all with a batch dimension and of one length."""
    if isinstance(text, str):
        text, text_pair = [text], None if text_pair is None else [text_pair]  # type: ignore[list-item]
        given = {name: None if value is None else [value] for name, value in given.items()}
    texts = [text] if text_pair is None else [text, text_pair]
    for name, value in {"text": text, "text_pair": text_pair}.items():
        if isinstance(value, str) or not all(isinstance(item, str) for item in value or ()):
            raise ValueError(f"{name} must be a str, or a list of str as `text` is; found {value!r:.80}.")
    if not len(text):
        raise ValueError("The batch is empty: `text` has no entry.")
    for name, value in {"text_pair": text_pair, **given}.items():
        if value is not None and len(value) != len(text):
            raise ValueError(
                f"{name} has {len(value)} entries, but `text` has {len(text)}: one an example is expected."
            )
    return [list(row) for row in texts], given


def _min_width(padding: bool | str, limit: int, lengths: np.ndarray) -> int:
    if padding in (True, "longest"):
        return 0
    if padding == "max_length":
        if limit >= NO_LIMIT:
            raise ValueError("padding='max_length' needs max_length, since the tokenizer has no model_max_length.")
        return limit
    if padding not in (False, None, "do_not_pad"):
        raise ValueError(f"Unknown padding {padding!r}; known: True, 'longest', 'max_length', False.")
    if len(set(lengths.tolist())) > 1:
        raise ValueError(f"padding=False, but the examples have {lengths.tolist()} tokens; use padding=True.")
    return 0


def _warn_about(dropped: list[list[DroppedPhrase]], phrase_count: int) -> None:
    records = [(example, record) for example, found in enumerate(dropped) for record in found]
    if records:
        shown = "; ".join(
            f"example {example}, phrase {record.phrase} ({record.words!r}): {record.reason}"
            for example, record in records[:3]
        )
        more = f"; and {len(records) - 3} more" if len(records) > 3 else ""
        logger.warning(
            f"{len(records)} of {phrase_count} phrases lost their label: {shown}{more} (`dropped_phrases`)."
        )


__all__ = ["OLDEST_TRANSFORMERS", "VLBertProcessor"]
