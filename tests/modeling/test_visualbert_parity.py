# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VisualBERT equals the reference tensors of the public code, and transformers' classes on their own checkpoints."""

import pytest
import torch
import transformers
from torch.nn import functional

from grounded_attention.conversion.visualbert import VISUALBERT
from grounded_attention.modeling import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
)
from tests.helpers.closeness import assert_close

HEADS = 4


@pytest.fixture(scope="module")
def cases(shared):
    file = torch.load(shared / "parity" / "visualbert.pt", weights_only=True)
    return {case["name"]: case for case in file["cases"]}


def as_original(case):
    """The weights as the public code saves them: in AllenNLP's wrapper, whose only attribute is `bert`."""
    return {f"bert.{key}": value for key, value in case["state_dict"].items()}


def convert(case, back_end="sdpa"):
    model, _ = VISUALBERT.build_model(as_original(case), {"num_attention_heads": HEADS})
    model.set_attn_implementation(back_end)
    return model.eval()


def as_inputs(case, alignment=True, types=True):
    names = {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "token_type_ids": "token_type_ids",
        "visual_embeds": "region_features",
        "visual_attention_mask": "region_attention_mask",
        "visual_token_type_ids": "region_token_type_ids",
        "image_text_alignment": "image_text_alignment",
    }
    inputs = {ours: case["inputs"][theirs] for theirs, ours in names.items()}
    if not alignment:
        del inputs["image_text_alignment"]
    if not types:
        del inputs["region_token_type_ids"]
    return inputs


def flat_mask(inputs):
    masks = torch.cat([inputs["attention_mask"], inputs["region_attention_mask"]], dim=-1)
    return masks.flatten(0, -2).bool()


def check_states(model, inputs, expected, **kwargs):
    """States, pooled output and hidden states of the base model at the columns that are not padding."""
    flat = {name: value.flatten(0, 1) if inputs["input_ids"].ndim == 3 else value for name, value in inputs.items()}
    outputs = model.visual_bert(**flat, output_hidden_states=True, **kwargs)
    mask = flat_mask(inputs)
    assert_close(outputs.last_hidden_state[mask], expected["sequence_output"][mask])
    assert_close(outputs.pooler_output, expected["pooled_output"])
    if model.config.bypass_transformer:
        return outputs
    assert len(outputs.hidden_states) == len(expected["hidden_states"])
    for mine, theirs in zip(outputs.hidden_states, expected["hidden_states"], strict=True):
        assert_close(mine[mask], theirs[mask])
    return outputs


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", ["type_default", "type_01", "alignment"])
def test_pretraining(cases, variant, back_end):
    case = cases["pretraining"]
    expected = cases["pretraining"]["outputs"][variant]
    model = convert(case, back_end)
    assert type(model) is VisualBERTForPreTraining
    inputs = as_inputs(case, alignment=variant == "alignment", types=variant == "type_01")
    check_states(model, inputs, expected)
    labels = case["inputs"]["masked_lm_labels"]
    outputs = model(
        **inputs,
        labels=labels.masked_fill(labels == -1, -100),
        relationship_labels=case["inputs"]["is_random_next"],
    )
    text = inputs["attention_mask"].bool()
    length = labels.shape[1]
    assert_close(outputs.mlm_logits[text], expected["prediction_logits"][:, :length][text])
    assert_close(outputs.relationship_logits, expected["seq_relationship_logits"])
    assert_close(outputs.loss, expected["loss"])


def test_maps_of_the_eager_encoder(cases):
    case = cases["pretraining"]
    expected = cases["pretraining"]["outputs"]["type_default"]
    inputs = as_inputs(case, alignment=False, types=False)
    outputs = convert(case, "eager").visual_bert(**inputs, output_attentions=True)
    rows = flat_mask(inputs)
    for mine, theirs in zip(outputs.attentions, expected["attentions"], strict=True):
        assert_close(mine.transpose(1, 2)[rows], theirs.transpose(1, 2)[rows])


def last_token_phrases(case):
    """The reference's word positions, -1 for padding, as phrases of one token."""
    positions = case["inputs"]["flickr_position"]
    length = case["inputs"]["input_ids"].shape[1]
    return functional.one_hot(positions.clamp(min=0), length).bool() & (positions >= 0)[..., None]


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["flickr", "flickr_bypass"])
def test_phrase_grounding(cases, name, back_end):
    case = cases[name]
    expected = cases[name]["outputs"]
    model = convert(case, back_end)
    assert type(model) is VisualBERTForPhraseGrounding
    assert model.config.bypass_transformer is (name == "flickr_bypass")
    inputs = as_inputs(case, alignment=False, types=False)
    check_states(model, inputs, expected)
    outputs = model(**inputs, phrase_mask=last_token_phrases(case), phrase_regions=case["inputs"]["label"] > 0)
    valid = (case["inputs"]["flickr_position"] >= 0)[..., None] & inputs["region_attention_mask"].bool()[:, None]
    assert_close(outputs.logits[valid], expected["scores"][valid])
    assert_close(outputs.loss, expected["loss"])


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "model_class", "read"),
    [
        ("nlvr2", VisualBERTForVisualReasoning, {"alignment": False}),
        ("vcr", VisualBERTForMultipleChoice, {"types": False}),
    ],
)
def test_reasoning_and_multiple_choice(cases, name, model_class, read, back_end):
    case = cases[name]
    expected = cases[name]["outputs"]
    model = convert(case, back_end)
    inputs = as_inputs(case, **read)
    assert type(model) is model_class
    check_states(model, inputs, expected)
    outputs = model(**inputs, labels=case["inputs"]["label"])
    assert_close(outputs.logits, expected["logits"])
    assert_close(outputs.loss, expected["loss"])


@pytest.mark.parametrize("position", ["found", "given"])
def test_question_answering(cases, position):
    case = cases["vqa"]
    expected = cases["vqa"]["outputs"]
    model = convert(case)
    inputs = as_inputs(case, alignment=False, types=False)
    assert type(model) is VisualBERTForVisualQuestionAnswering
    check_states(model, inputs, expected)
    given = {"answer_positions": expected["gather_index"]} if position == "given" else {}
    outputs = model(**inputs, **given, labels=case["inputs"]["label"])
    assert_close(outputs.logits, expected["logits"][:, 0])
    assert_close(outputs.loss, expected["loss"])


# -- transformers' classes


THEIRS = {
    "VisualBertForPreTraining": VisualBERTForPreTraining,
    "VisualBertForQuestionAnswering": VisualBERTForVisualQuestionAnswering,
    "VisualBertForMultipleChoice": VisualBERTForMultipleChoice,
    "VisualBertForVisualReasoning": VisualBERTForVisualReasoning,
    "VisualBertForRegionToPhraseAlignment": VisualBERTForPhraseGrounding,
    "VisualBertModel": VisualBERTModel,
}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "visual_embedding_dim": 10,
    "initializer_range": 0.2,
}
B = 3
T = 7
R = 4


def make_theirs(name, folder, **fields):
    torch.manual_seed(0)
    model = getattr(transformers, name)(transformers.VisualBertConfig(**SIZES, **fields)).eval()
    model.save_pretrained(folder)
    return model


def random_inputs():
    """Padded inputs under our names and under theirs; their default token type, 1, is given to both."""
    torch.manual_seed(1)
    text_mask = torch.ones(B, T, dtype=torch.long)
    region_mask = torch.ones(B, R, dtype=torch.long)
    text_mask[1, 5:], region_mask[0, 2:] = 0, 0
    alignment = torch.randint(-1, 5, (B, R, 2))
    ours = {
        "input_ids": torch.randint(2, 50, (B, T)),
        "attention_mask": text_mask,
        "token_type_ids": torch.randint(0, 2, (B, T)),
        "region_features": torch.randn(B, R, 10),
        "region_attention_mask": region_mask,
        "region_token_type_ids": torch.ones(B, R, dtype=torch.long),
        "image_text_alignment": alignment,
    }
    names = {
        "region_features": "visual_embeds",
        "region_attention_mask": "visual_attention_mask",
        "region_token_type_ids": "visual_token_type_ids",
    }
    theirs = {names.get(name, name): value for name, value in ours.items()}
    del theirs["visual_token_type_ids"]
    return ours, theirs


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
def test_states_equal_transformers(tmp_path, back_end):
    theirs = make_theirs("VisualBertModel", tmp_path)
    model = VisualBERTModel.from_pretrained(tmp_path, attn_implementation=back_end).eval()
    inputs, their_inputs = random_inputs()
    mask = flat_mask(inputs)
    found = model(**inputs)
    expected = theirs(**their_inputs)
    assert_close(found.last_hidden_state[mask], expected.last_hidden_state[mask])
    assert_close(found.pooler_output, expected.pooler_output)


def test_text_alone_equals_transformers(tmp_path):
    theirs = make_theirs("VisualBertModel", tmp_path)
    model = VisualBERTModel.from_pretrained(tmp_path).eval()
    ids = random_inputs()[0]["input_ids"]
    assert_close(model(ids).last_hidden_state, theirs(ids).last_hidden_state)


@pytest.mark.parametrize("name", THEIRS)
def test_a_directory_of_transformers_loads_with_every_key(tmp_path, name):
    theirs = make_theirs(name, tmp_path)
    model, info = THEIRS[name].from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    weights = theirs.state_dict()
    assert set(weights) == set(model.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(value, weights[key]), key
    assert model.config.model_type == "visualbert"
    assert model.config.pad_token_id == 0


def test_what_is_saved_here_loads_in_transformers_class(tmp_path):
    torch.manual_seed(0)
    make_theirs("VisualBertForPreTraining", tmp_path / "theirs")
    model = VisualBERTForPreTraining.from_pretrained(tmp_path / "theirs").eval()
    model.save_pretrained(tmp_path / "ours")
    again, info = transformers.VisualBertForPreTraining.from_pretrained(
        tmp_path / "ours", config=transformers.VisualBertConfig(**SIZES), output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    inputs, their_inputs = random_inputs()
    expected = again.eval()(**their_inputs)
    text = inputs["attention_mask"].bool()
    found = model(**inputs)
    assert_close(found.mlm_logits[text], expected.prediction_logits[:, :T][text])
    assert_close(found.relationship_logits, expected.seq_relationship_logits)
