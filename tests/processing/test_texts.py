# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import doctest
import json
import random
from itertools import product

import numpy as np
import pytest
from transformers import PreTrainedTokenizer

from grounded_attention import processing
from grounded_attention.processing import LXMERTProcessor, ViLBertProcessor, VisualBERTProcessor, VLBertProcessor
from tests.helpers.closeness import assert_same
from tests.helpers.processing_helpers import FEATURE_SIZE, VOCABULARY, make_processor, make_tokenizer, span

WORDS = "a an the man woman in red shirt dogs running umbrella cafe zebra , .".split()


def random_texts(seed, count):
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(0, 12))) for _ in range(count)]


@pytest.mark.parametrize(
    "pair, truncation",
    [*product([True, False], ["longest_first", "only_first", False]), (True, "only_second")],
)
def test_ids_equal_the_tokenizers_own_template(pair, truncation):
    """The tokenizer's own post-processor and truncation are a second implementation of both layouts."""
    processor = make_processor()
    first = random_texts(0, 60)
    second = random_texts(1, 60) if pair else None
    # The shortest max_length that each strategy can reach for these texts.
    lengths = [7, 9, 12, 15] if truncation in ("longest_first", False) else [22, 25, 28]
    for length in lengths:
        options = {"padding": True, "truncation": truncation, "max_length": length if truncation else None}
        found = processor(first, second, **options)
        expected = make_tokenizer()(first, second, return_tensors="pt", **options)
        found.pop("text_positions")
        assert_same(found, expected)


WRITTEN = "[SEP] [MASK] [PAD] [CLS] [UNK] a[SEP]man [sep] [[MASK]]"


@pytest.mark.parametrize("family", [VLBertProcessor, VisualBERTProcessor, ViLBertProcessor, LXMERTProcessor])
@pytest.mark.parametrize("layout", [None, "masked_answer", "question_mask", "plain"])
def test_special_tokens_that_are_written_in_a_text_are_words(family, layout):
    """Only the layout places special tokens, as many as for a text without their names."""
    tokenizer = make_tokenizer([*VOCABULARY, *"[ ] ? sep mask pad cls unk".split()])
    processor = family(tokenizer, region_feature_size=FEATURE_SIZE)
    second = WRITTEN if layout is None else None
    plain, found = (processor(text, second and text, layout=layout)["input_ids"][0] for text in ("a man", WRITTEN))
    for special in tokenizer.all_special_ids:
        assert (found == special).sum() == (plain == special).sum()
    written = tokenizer.decode(found, skip_special_tokens=True).replace(" ", "").replace("?", "")
    assert written == WRITTEN.replace(" ", "").lower() * (2 if second else 1)


def test_a_phrase_may_contain_a_special_token():
    processor = VLBertProcessor(make_tokenizer([*VOCABULARY, "[", "]", "sep"]), region_feature_size=FEATURE_SIZE)
    text = "a [SEP] dog"
    inputs = processor(text, phrases=[span(text, "[SEP]")])
    assert processor.decode(inputs["input_ids"][0][inputs["phrase_mask"][0, 0]]).replace(" ", "") == "[sep]"


PADDINGS = {
    "{}": 7,
    '{"padding": "longest"}': 7,
    '{"padding": "max_length", "max_length": 10}': 10,
    '{"pad_to_multiple_of": 8}': 8,
    '{"padding": "max_length", "max_length": 9, "pad_to_multiple_of": 4}': 12,
}


@pytest.mark.parametrize("options, width", PADDINGS.items())
def test_padding(options, width):
    inputs = make_processor()(["a man", "a man in a shirt"], **json.loads(options))
    assert inputs["input_ids"].shape == (2, width)
    assert inputs["attention_mask"].sum(dim=1).tolist() == [4, 7]
    assert (inputs["input_ids"][0, 4:] == 0).all()
    assert (inputs["token_type_ids"][0, 4:] == 0).all()


def test_padding_is_on_the_right_whatever_the_tokenizer_prefers():
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    inputs = VLBertProcessor(tokenizer)(["a man", "a"])
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


WRONG_ARGUMENTS = {
    '{"text": ["a", "a man"], "padding": false}': r"padding=False, but the examples have \[3, 4\] tokens",
    '{"text": "a", "padding": "left"}': "Unknown padding 'left'",
    '{"text": "a", "padding": "max_length"}': "needs max_length",
    '{"text": "a", "truncation": "middle", "max_length": 8}': "Unknown truncation 'middle'",
    '{"text": "a", "max_length": 1}': "max_length=1 is too small",
    '{"text": "a", "layout": "answer"}': "Unknown sequence layout 'answer'",
    '{"text": ["a", "a"], "layout": ["caption"]}': "layout has 1 entries, but `text` has 2",
    '{"text": ["a", "a"], "layout": ["caption", "plane"]}': "Example 1: Unknown sequence layout 'plane'",
    '{"text": ["a", "a"], "text_pair": ["a", null], "layout": "caption_pair"}': "Example 1: Layout 'caption_pair'",
    '{"text": ["a"], "phrases": 7}': "phrases: 7, expected a list with an entry for each of 1 texts",
    '{"text": "a", "layout": "caption_pair"}': r"takes 2 text\(s\) an example, found 1",
    '{"text": ["a"], "text_pair": ["a", "a"]}': "text_pair has 2 entries, but `text` has 1",
    '{"text": ["a"], "text_pair": "a"}': "text_pair must be a str, or a list of str",
    '{"text": ["a", null]}': "text must be a str",
    '{"text": []}': "batch is empty",
    '{"text": ["a"], "phrase_pairs": [[[0, 0]]]}': "phrase_pairs are given without phrases",
    '{"text": ["a"], "image_sizes": [[1, 1]]}': "image_sizes given without region_features",
    '{"text": ["a", "a"], "text_pair": ["a", "a man in a red shirt"], "truncation": "only_first", "max_length": 6}':
        "Example 1: only_first .* raise max_length",
}  # fmt: skip


@pytest.mark.parametrize("arguments, message", WRONG_ARGUMENTS.items())
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_processor()(**json.loads(arguments))


def test_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="max_lenght"):
        make_processor()("a man", max_lenght=3)


class LetterTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, which has no character offsets."""

    vocab_size = 0

    def get_vocab(self):
        return {}

    def _tokenize(self, text):
        return list(text)


def test_unsuitable_tokenizers_are_refused():
    with pytest.raises(ValueError, match="needs a fast tokenizer"):
        VLBertProcessor(LetterTokenizer())
    tokenizer = make_tokenizer()
    tokenizer.sep_token = None
    with pytest.raises(ValueError, match="has no sep_token"):
        VLBertProcessor(tokenizer)


def test_senseless_limits_are_refused():
    with pytest.raises(ValueError, match="iou_threshold=0"):
        make_processor(iou_threshold=0)
    with pytest.raises(ValueError, match="max_regions=0"):
        make_processor(max_regions=0)


def test_a_single_text_is_a_batch_of_one():
    processor = make_processor()
    assert processor("a man", "the dog")["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    for kind in ("np", None):
        found = processor("a man", return_tensors=kind)["input_ids"]
        assert found.tolist() == processor(["a man"])["input_ids"].tolist()
        assert isinstance(found, np.ndarray)


def test_docstring_example_runs():
    """`auto_docstring` indents it; doctest does not mind."""
    source = VLBertProcessor.__call__.__doc__.replace("```", "")
    example = doctest.DocTestParser().get_doctest(source, {"processing": processing}, "VLBertProcessor", None, 0)
    assert len(example.examples) > 5
    results = doctest.DocTestRunner().run(example)
    assert results.failed == 0


def test_layouts_may_differ_within_a_batch():
    """Each row equals that of a batch with this row only."""
    texts = ["a man", "two dogs on a shirt", "a dog"]
    pairs = [None, None, "the ball"]
    layouts = ["caption", "plain", "caption_pair"]
    inputs = make_processor()(texts, pairs, layout=layouts)
    assert inputs["input_ids"].shape == (3, 7)
    for row, text in enumerate(texts):
        alone = make_processor()(text, pairs[row], layout=layouts[row], padding="max_length", max_length=7)
        assert_same({key: values[[row]] for key, values in inputs.items()}, alone)
    plain = inputs["input_ids"][1, inputs["attention_mask"][1].bool()]
    assert make_tokenizer().decode(plain) == "two dogs on a shirt"
    found = make_processor()(texts, pairs)["token_type_ids"].tolist()
    assert found == [[0] * 8, [0] * 8, [0, 0, 0, 0, 1, 1, 1, 0]]


def test_phrases_of_plain_text_start_at_column_zero():
    inputs = make_processor()("a man", layout="plain", phrases=[span("a man", "man")])
    assert inputs["phrase_mask"].tolist() == [[[False, True]]]
