# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The grounding of responses: every token of a response asks where the boxes of its row are.

Shape letters: B batch, N sequence, T response tokens, P boxes, R image tokens.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from grounded_attention.dataset_scripts.rows.chats import listed, row_images
from grounded_attention.processing.image_tokens import image_layouts
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor, match_coverage
from grounded_attention.processing.patch_sequences import region_arrays
from grounded_attention.processing.phrase import Phrase, read_phrase
from grounded_attention.supervision.alignment import row_indices
from grounded_attention.utils.named_types import Batch, Fields, Row
from grounded_attention.utils.open_images import open_image

Columns = Literal["boxes", "image", "sequence"]
_WORDS = ("text", "words", "start", "end", "sentence")


def response_batch(
    processor: Any,
    inputs: Batch,
    rows: Sequence[Row],
    columns: Columns = "boxes",
    most: int | None = 64,
    keep: Tensor | None = None,
) -> Fields:
    """Makes the batch of a supervision method for responses, such as the rollouts of a policy or pairs of DPO.

    Each box of the row's `phrases` is a phrase whose words are the tokens of the response, so every method of
    supervision reads the batch. It is given to `method.forward_kwargs` in the pass that makes log-probabilities, and
    to [`grounding_loss`].

    Args:
        processor (`PatchGroundingProcessor` or `ProcessorMixin`): the processor of the model.
        inputs (`Mapping[str, Any]`): `input_ids` and `labels` (B, N), -100 where a token is not of a response.
        rows (`Sequence[Mapping[str, Any]]`): B rows with `image` or `images`, and `phrases` with `boxes`.
        columns (`str`, *optional*, defaults to `"boxes"`): what the regions are: the image tokens, of which those in
            boxes are marked; `"image"`, all image tokens, all marked; `"sequence"`, all tokens (for
            [`EarlierAttention`]).
        most (`int`, *optional*, defaults to 64): the largest number of tokens of a response; of more, evenly spaced
            ones are taken. None takes all.
        keep (`Tensor`, *optional*): (B,) bool, False for responses that are not supervised, such as those whose
            reward is low.

    Returns:
        `dict[str, Any]`: a batch as of [`PatchGroundingProcessor`], without the inputs of the model.

    Raises:
        ValueError: if the images do not fit the sequence, or a phrase has no boxes.
    """
    labels = inputs["labels"].cpu()
    device = inputs["labels"].device
    texts = response_rows(labels >= 0 if keep is None else (labels >= 0) & keep.cpu()[:, None], most)
    if columns == "sequence":
        known = inputs["attention_mask"].cpu() > 0
        every = torch.arange(labels.shape[1]).expand(labels.shape)
        data = {"region_positions": every.masked_fill(~known, -1), "region_attention_mask": known.long()}
        data["phrase_regions"] = known[:, None].float()
    else:
        data = _image_regions(processor, inputs["input_ids"].cpu().numpy(), rows, columns)
    spoken = (texts >= 0)[:, None].expand(-1, data["phrase_regions"].shape[1], -1)
    made = {**data, "text_positions": texts, "phrase_mask": spoken}
    return {name: torch.as_tensor(value).to(device) for name, value in made.items()}


def response_rows(wanted: Tensor, most: int | None) -> Tensor:
    """(B, N) bool -> (B, T) int64: the positions of the True values, at most so many, evenly spaced; -1 is padding."""
    rows = row_indices(wanted)
    counts = (rows >= 0).sum(1, keepdim=True)
    if most is None or rows.shape[1] <= most:
        return rows
    steps = torch.arange(most).expand(len(rows), -1)
    places = torch.where(counts > most, (steps + 0.5) * counts / most, steps.double()).long()
    return rows.gather(1, places.clamp(max=rows.shape[1] - 1)).masked_fill(steps >= counts, -1)


def _image_regions(processor: Any, ids: np.ndarray, rows: Sequence[Row], columns: Columns) -> Fields:
    patches = processor if isinstance(processor, PatchGroundingProcessor) else PatchGroundingProcessor(processor)
    token = patches.tokenizer.convert_tokens_to_ids(patches.family.image_token(patches.processor))
    tokens = []
    evidence = []
    for number, (row, sequence) in enumerate(zip(rows, ids, strict=True)):
        name = f"row {number} of the batch"
        sizes = [open_image(each, name).size for each in row_images(row)]
        layouts = image_layouts(patches.family, patches.processor, sizes, patches.image_settings)
        tokens.append(patches.family.place(np.flatnonzero(sequence == token), layouts, name))
        evidence.append([] if columns == "image" else row_boxes(row, name))
    data: Fields = dict(region_arrays(tokens))
    if columns == "image":
        return {**data, "phrase_regions": data["region_candidate_mask"][:, None].astype(np.float32)}
    most = max(1, *map(len, evidence))
    shape = (len(rows), most)
    boxes = np.full((*shape, 1, 4), -1.0, dtype=np.float32)
    images = np.zeros(shape, dtype=np.int64)
    marks = np.zeros((*shape, data["region_boxes"].shape[1]), dtype=np.float32)
    for row_number, of_row in enumerate(evidence):
        for place, (box, image) in enumerate(of_row):
            boxes[row_number, place, 0], images[row_number, place] = box, image
            shown = data["region_candidate_mask"][row_number] & (data["region_image"][row_number] == image)
            seen = match_coverage(box[None], data["region_boxes"][row_number, shown][None], patches.coverage_threshold)
            marks[row_number, place, shown] = seen[0]
    return {**data, "phrase_regions": marks, "phrase_boxes": boxes, "phrase_image": images}


def row_boxes(row: Row, name: str) -> list[tuple[np.ndarray, int]]:
    """The boxes of all phrases of a row, each with the number of its image; words are not read."""
    boxes = []
    for number, each in enumerate(listed(row.get("phrases"))):
        values = each if not isinstance(each, Phrase) else vars(each)
        phrase_values = {key: value for key, value in values.items() if key not in _WORDS}
        place = f"{name}, phrase {number}"
        phrase = read_phrase({**phrase_values, "start": 0, "end": 0}, [""], place, grounded=True)
        if phrase.boxes is None:
            raise ValueError(f"{place} has no boxes, which are the evidence of a response: give boxes")
        boxes += [(box, phrase.image or 0) for box in np.reshape(phrase.boxes, (-1, 4)).astype(np.float32)]
    return boxes
