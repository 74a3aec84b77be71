# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VisualBERT's inputs: text, then regions of one image or two, without a region for the whole image."""

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import AutoProcessor

from grounded_attention.families import FAMILIES
from grounded_attention.processing import VisualBERTProcessor, VLBertProcessor
from tests.helpers.processing_helpers import FEATURE_SIZE, make_tokenizer, span

TEXT = "a man and a dog"
PAIR = "the umbrella, the ball"
BOXES = json.loads("[[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]]")


def make_processor(**options):
    words = [*make_tokenizer().get_vocab(), "?", "what", "is", "this"]
    return VisualBERTProcessor(make_tokenizer(words), **{"region_feature_size": FEATURE_SIZE, **options})


def regions(*counts):
    """Region number k of an example has the feature k everywhere."""
    features = np.tile(np.arange(4)[:, None], FEATURE_SIZE)
    return {
        "region_features": [features[:count] for count in counts],
        "region_boxes": [BOXES[:count] for count in counts],
    }


def pieces(processor, ids):
    return " ".join(processor.tokenizer.convert_ids_to_tokens(ids.tolist()))


def test_regions_are_in_order_without_a_whole_image():
    inputs = make_processor()([TEXT, TEXT, TEXT], **regions(2, 3, 0))
    assert inputs["region_features"][..., 0].tolist() == [[0, 1, 0], [0, 1, 2], [0, 0, 0]]
    assert inputs["region_attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert torch.equal(inputs["region_candidate_mask"], inputs["region_attention_mask"].bool())
    assert_close(inputs["region_boxes"][1], torch.tensor(BOXES[:3]))
    assert not {"region_token_type_ids", "image_text_alignment", "token_regions"} & set(inputs)


def test_texts_and_phrases_equal_those_of_vl_bert():
    ours = make_processor()
    other = VLBertProcessor(ours.tokenizer, region_feature_size=FEATURE_SIZE)
    phrases = [span(TEXT, "man", boxes=[BOXES[1]]), span(PAIR, "the ball", 1, regions=[0, 2])]
    arguments = {"phrases": [phrases], "phrase_pairs": [[[0, 1]]], **regions(3)}
    found = ours([TEXT], [PAIR], **arguments)
    expected = other([TEXT], [PAIR], **arguments)
    for name in ("input_ids", "attention_mask", "token_type_ids", "phrase_mask", "phrase_pairs"):
        assert torch.equal(found[name], expected[name]), name
    # VL-BERT's columns without the whole image at the start.
    for name in ("phrase_regions", "region_candidate_mask"):
        assert torch.equal(found[name], expected[name][..., 1:]), name
    assert torch.equal(found["region_features"], expected["region_features"][:, 1:])


@pytest.mark.parametrize("question", ["what is this", "what is this?", "what is this ? "])
def test_a_question_ends_in_one_question_mark_and_a_mask(question):
    processor = make_processor()
    inputs = processor([question, "a dog"], layout=processor.answer_layout)
    assert pieces(processor, inputs["input_ids"][0]) == "[CLS] what is this ? [MASK] [SEP]"
    assert pieces(processor, inputs["input_ids"][1]) == "[CLS] a dog ? [MASK] [SEP] [PAD]"
    assert inputs["token_type_ids"].sum() == 0
    # The public code reads the answer at the number of tokens less two.
    assert inputs["answer_positions"].tolist() == (inputs["attention_mask"].sum(1) - 2).tolist()


def test_tags_align_regions_with_the_columns_of_their_words():
    tags = [span(TEXT, "man", regions=[1]), span(PAIR, "umbrella", 1, regions=[1]), span(TEXT, "a dog", regions=[0])]
    inputs = make_processor()([TEXT, TEXT], [PAIR, None], tags=[tags, None], **regions(3, 1))
    # 0 [CLS] 1 a 2 man 3 and 4 a 5 dog 6 [SEP] 7 the 8 umbrella 9 , 10 the 11 ball
    expected = json.loads("[[[4, 5], [2, 8], [-1, -1]], [[-1, -1], [-1, -1], [-1, -1]]]")
    assert inputs["image_text_alignment"].tolist() == expected


def test_a_word_can_refer_to_two_regions_with_all_its_pieces():
    text = "dogs run"
    tags = [span(text, "dogs", regions=[region]) for region in (2, 0, 2)]
    inputs = make_processor()([text], tags=[tags], **regions(3))
    unseen = [-1, -1]
    assert inputs["image_text_alignment"].tolist() == [[[1, 2], unseen, [1, 2]]]


def test_tags_follow_truncation_and_dropped_regions():
    tags = [span(TEXT, "man", regions=[0]), span(TEXT, "a dog", regions=[2]), span(TEXT, "and", regions=[1])]
    processor = make_processor(max_regions=2)
    inputs = processor([TEXT], tags=[tags], max_length=5, region_scores=[[0.1, 0.5, 0.9]], **regions(3))
    # [CLS] a man and [SEP]; regions 1 and 2 stay
    assert inputs["image_text_alignment"].tolist() == [[[3], [-1]]]


def test_two_images_keep_max_regions_each():
    given = {"region_image_indices": [[0, 0, 1, 1], [1, 0]], **regions(4, 2)}
    processor = make_processor(max_regions=1)
    first = processor([TEXT, TEXT], **given)
    assert first["region_features"][..., 0].tolist() == [[0, 2], [0, 1]]
    assert first["region_token_type_ids"].tolist() == [[0, 1], [1, 0]]
    best = processor([TEXT, TEXT], region_scores=[[0.1, 0.9, 0.2, 0.8], [0.5, 0.4]], **given)
    assert best["region_features"][..., 0].tolist() == [[1, 3], [0, 1]]


def test_regions_of_two_images_may_be_missing_in_one_example():
    given = {name: [*value, None] for name, value in regions(2).items()}
    inputs = make_processor()([TEXT, TEXT], region_image_indices=[[1, 1], None], **given)
    assert inputs["region_token_type_ids"].tolist() == [[1, 1], [0, 0]]
    assert inputs["region_attention_mask"].tolist() == [[1, 1], [0, 0]]


def test_spatial_features_are_box_and_size_and_zero_for_padding():
    processor = make_processor(spatial_features=True)
    given = regions(2, 1)
    plain = make_processor()([TEXT, TEXT], **given)["region_features"]
    given["region_boxes"] = json.loads("[[[10, 20, 30, 60], [0, 0, 200, 100]], [[0, 0, 20, 10]]]")
    found = processor([TEXT, TEXT], image_sizes=[(200, 100), (20, 40)], **given)["region_features"]
    assert processor.model_feature_size == FEATURE_SIZE + 6 == found.shape[-1]
    expected = """[[[0.05, 0.2, 0.15, 0.6, 0.1, 0.4], [0, 0, 1, 1, 1, 1]],
        [[0, 0, 1, 0.25, 1, 0.25], [0, 0, 0, 0, 0, 0]]]"""
    assert_close(found[..., FEATURE_SIZE:], torch.tensor(json.loads(expected)))
    assert_close(found[..., :FEATURE_SIZE], plain)


@pytest.mark.parametrize(
    "text, limit, columns, kept",
    [(TEXT, 8, 4, 4), ("a dog", 6, 3, 3)],  # of 7 text columns and 4 regions each side keeps half
)
def test_long_sequences_lose_regions_and_have_no_whole_image(text, limit, columns, kept):
    inputs = make_processor()([text], max_sequence_length=limit, **regions(4))
    assert inputs["input_ids"].shape == (1, columns)
    assert inputs["region_features"][0, :, 0].tolist() == [*range(kept)]


def test_input_names_are_the_keys_of_a_full_batch():
    processor = make_processor()
    inputs = processor(
        [TEXT],
        phrases=[[span(TEXT, "man", boxes=[BOXES[1]], scores=[0.5])]],
        phrase_pairs=[[[0, 0]]],
        tags=[[span(TEXT, "man", regions=[0])]],
        region_image_indices=[[0]],
        layout="question_mask",
        **regions(1),
    )
    assert list(inputs) == processor.model_input_names


WRONG_ARGUMENTS = {
    '{"region_image_indices": [[0, 2]]}': r"Example 0: region_image_indices \[0, 2\].*2 image.*expected 0 to 1",
    '{"region_image_indices": [[0]]}': r"shape \(1,\).*for 2 regions",
    '{"region_image_indices": [[0.0, 1.0]]}': "float64.*one integer",
    '{"image_features": [[1, 1, 1, 1, 1, 1]]}': "VisualBERTProcessor has no region for the whole image",
    '{"tags": [[{"sentence": 0, "start": 2, "end": 5, "regions": [2]}]]}': r"tag 0: regions \[2\]",
}


@pytest.mark.parametrize("arguments, message", WRONG_ARGUMENTS.items())
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_processor()([TEXT], **regions(2), **json.loads(arguments))


def test_vl_bert_takes_one_image():
    processor = VLBertProcessor(make_tokenizer(), region_feature_size=FEATURE_SIZE)
    with pytest.raises(ValueError, match=r"takes 1 image\(s\) an example; expected 0"):
        processor([TEXT], region_image_indices=[[0, 1]], **regions(2))
    assert "region_token_type_ids" not in processor([TEXT], region_image_indices=[[0, 0]], **regions(2))


def test_image_indices_without_regions_are_an_error():
    with pytest.raises(ValueError, match="region_image_indices given without region_features"):
        make_processor()([TEXT], region_image_indices=[[]])


def test_saves_and_loads_with_the_project(tmp_path):
    settings = {"max_regions": 7, "iou_threshold": 0.25, "spatial_features": True, "region_feature_size": FEATURE_SIZE}
    make_processor(**settings).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "processor_config.json").read_text())
    assert config["auto_map"] == {"AutoProcessor": "processing_visualbert.VisualBERTProcessor"}
    assert [path.name for path in tmp_path.glob("*.py")] == ["processing_visualbert.py"]
    processor = AutoProcessor.from_pretrained(tmp_path)
    assert type(processor) is VisualBERTProcessor is FAMILIES["visualbert"].processor_class
    assert settings.items() <= vars(processor).items()
