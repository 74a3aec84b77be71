# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Layout "masked_answer": [CLS] question [SEP] [MASK] [SEP], and the position of its [MASK]."""

import numpy as np
import pytest
import torch

from grounded_attention.processing import VLBertProcessor
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, make_tokenizer

QUESTIONS = ["a man", "the dog on the red ball", "two"]


def test_sequence_is_that_of_the_public_code():
    inputs = make_processor()(QUESTIONS, layout="masked_answer")
    tokenizer = make_tokenizer()
    for row, question in enumerate(QUESTIONS):
        length = int(inputs["attention_mask"][row].sum())
        written = tokenizer.convert_ids_to_tokens(inputs["input_ids"][row][:length].tolist())
        assert written == ["[CLS]", *question.split(), "[SEP]", "[MASK]", "[SEP]"]
        types = inputs["token_type_ids"][row].tolist()
        assert types == [0] * (length - 2) + [1, 1] + [0] * (len(types) - length)
        assert inputs["answer_positions"][row] == length - 2
    assert inputs["answer_positions"].dtype == torch.int64
    assert inputs["answer_positions"].shape == (3,)


@pytest.mark.parametrize("truncation", [True, "only_first"])
@pytest.mark.parametrize("limit", [4, 5, 7, 20])
def test_only_the_question_is_cut(limit, truncation):
    inputs = make_processor()(QUESTIONS, layout="masked_answer", max_length=limit, truncation=truncation)
    mask = make_tokenizer().mask_token_id
    for row, question in enumerate(QUESTIONS):
        kept = min(len(question.split()), limit - 4)
        assert int(inputs["attention_mask"][row].sum()) == kept + 4
        assert inputs["answer_positions"][row] == kept + 2
        assert (inputs["input_ids"][row] == mask).nonzero().tolist() == [[kept + 2]]


def test_the_answer_stays_when_regions_share_the_limit():
    regions = {"region_features": np.ones((5, FEATURE_SIZE)), "region_boxes": [[0.0, 0.0, 1.0, 1.0]] * 5}
    inputs = make_processor()(QUESTIONS[1], layout="masked_answer", max_sequence_length=9, **regions)
    columns = inputs["attention_mask"].sum() + inputs["region_attention_mask"].sum()
    assert columns == 9
    assert inputs["input_ids"][0, inputs["answer_positions"][0]] == make_tokenizer().mask_token_id


def test_mask_written_in_the_question_is_not_the_answer():
    inputs = make_processor()("a [MASK] man", layout="masked_answer")
    assert inputs["answer_positions"].tolist() == [7]  # [CLS] a [ mask ] man [SEP] [MASK] [SEP]


def test_layouts_side_by_side_and_without_an_answer():
    inputs = make_processor()(["a man", "a man"], layout=["caption", "masked_answer"])
    assert inputs["answer_positions"].tolist() == [-1, 4]
    assert "answer_positions" not in make_processor()("a man")


def test_wrong_use_is_named():
    with pytest.raises(ValueError, match=r"Layout 'masked_answer' takes 1 text\(s\) an example, found 2"):
        make_processor()("a", "man", layout="masked_answer")
    with pytest.raises(ValueError, match="max_length=3 is too small for 4 special tokens"):
        make_processor()("a", layout="masked_answer", max_length=3)
    tokenizer = make_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="has no mask_token; layout 'masked_answer' needs it"):
        VLBertProcessor(tokenizer)("a", layout="masked_answer")
