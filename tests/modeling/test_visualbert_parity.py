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
from tests.helpers.closeness import assert_close, parity_cases
from tests.helpers.padded_inputs import padded_inputs

HEADS = 4


@pytest.fixture(scope="module")
def cases(shared):
    return parity_cases(shared, "visualbert")


def as_original(case):
    """The weights as the public code saves them: in AllenNLP's wrapper, whose only attribute is `bert`."""
    return {f"bert.{key}": value for key, value in case["state_dict"].items()}


def convert(case, back_end="sdpa"):
    model, _ = VISUALBERT.build_model(as_original(case), {"num_attention_heads": HEADS})
    model.set_attn_implementation(back_end)
    return model.eval()


back_ends = pytest.mark.parametrize("back_end", ["sdpa", "eager"])


READ = ("input_ids", "attention_mask", "token_type_ids", "region_features", "region_attention_mask")
THEIR_NAMES = {
    "region_features": "visual_embeds",
    "region_attention_mask": "visual_attention_mask",
    "region_token_type_ids": "visual_token_type_ids",
}


def as_inputs(case, *options):
    """What every case reads, and options, under our names."""
    return {name: case["inputs"][THEIR_NAMES.get(name, name)] for name in (*READ, *options)}


def flat_mask(inputs):
    masks = torch.cat([inputs["attention_mask"], inputs["region_attention_mask"]], dim=-1)
    return masks.flatten(0, -2).bool()


def check(model, inputs, expected, **targets):
    """States at the columns that are not padding, pooled output and loss; returns the outputs."""
    flat = inputs
    if inputs["input_ids"].ndim == 3:
        flat = {name: value.flatten(0, 1) for name, value in inputs.items()}
    base = model.visual_bert(**flat, output_hidden_states=True)
    mask = flat_mask(inputs)
    assert_close(base.last_hidden_state[mask], expected["sequence_output"][mask])
    assert_close(base.pooler_output, expected["pooled_output"])
    if not model.config.bypass_transformer:
        layers = [base.hidden_states, expected["hidden_states"]]
        assert_close(*([states[mask] for states in history] for history in layers))
    outputs = model(**inputs, **targets)
    assert_close(outputs.loss, expected["loss"])
    return outputs


@back_ends
@pytest.mark.parametrize(
    "variant, options",
    [("type_default", []), ("type_01", ["region_token_type_ids"]), ("alignment", ["image_text_alignment"])],
)
def test_pretraining(cases, variant, options, back_end):
    case = cases["pretraining"]
    expected = case["outputs"][variant]
    model = convert(case, back_end)
    assert type(model) is VisualBERTForPreTraining
    labels = case["inputs"]["masked_lm_labels"]
    targets = {
        "labels": labels.masked_fill(labels == -1, -100),
        "relationship_labels": case["inputs"]["is_random_next"],
    }
    outputs = check(model, as_inputs(case, *options), expected, **targets)
    text = case["inputs"]["attention_mask"].bool()
    assert_close(outputs.mlm_logits[text], expected["prediction_logits"][:, : labels.shape[1]][text])
    assert_close(outputs.relationship_logits, expected["seq_relationship_logits"])


def test_maps_of_the_eager_encoder(cases):
    case = cases["pretraining"]
    inputs = as_inputs(case)
    outputs = convert(case, "eager").visual_bert(**inputs, output_attentions=True)
    maps = [outputs.attentions, case["outputs"]["type_default"]["attentions"]]
    rows = flat_mask(inputs)
    assert_close(*([attention.transpose(1, 2)[rows] for attention in layers] for layers in maps))


def last_token_phrases(case):
    """The reference's word positions, -1 for padding, as phrases of one token."""
    positions = case["inputs"]["flickr_position"]
    length = case["inputs"]["input_ids"].shape[1]
    return functional.one_hot(positions.clamp(min=0), length).bool() & (positions >= 0)[..., None]


@back_ends
@pytest.mark.parametrize("name", ["flickr", "flickr_bypass"])
def test_phrase_grounding(cases, name, back_end):
    case = cases[name]
    expected = case["outputs"]
    model = convert(case, back_end)
    assert type(model) is VisualBERTForPhraseGrounding
    assert model.config.bypass_transformer is (name == "flickr_bypass")
    inputs = as_inputs(case)
    targets = {"phrase_mask": last_token_phrases(case), "phrase_regions": case["inputs"]["label"] > 0}
    outputs = check(model, inputs, expected, **targets)
    valid = (case["inputs"]["flickr_position"] >= 0)[..., None] & inputs["region_attention_mask"].bool()[:, None]
    assert_close(outputs.logits[valid], expected["scores"][valid])


@back_ends
@pytest.mark.parametrize(
    "name, model_class, option",
    [
        ("nlvr2", VisualBERTForVisualReasoning, "region_token_type_ids"),
        ("vcr", VisualBERTForMultipleChoice, "image_text_alignment"),
    ],
)
def test_reasoning_and_multiple_choice(cases, name, model_class, option, back_end):
    case = cases[name]
    model = convert(case, back_end)
    assert type(model) is model_class
    outputs = check(model, as_inputs(case, option), case["outputs"], labels=case["inputs"]["label"])
    assert_close(outputs.logits, case["outputs"]["logits"])


@pytest.mark.parametrize("position", ["found", "given"])
def test_question_answering(cases, position):
    case = cases["vqa"]
    expected = case["outputs"]
    model = convert(case)
    assert type(model) is VisualBERTForVisualQuestionAnswering
    given = {"answer_positions": expected["gather_index"]} if position == "given" else {}
    outputs = check(model, as_inputs(case), expected, **given, labels=case["inputs"]["label"])
    assert_close(outputs.logits, expected["logits"][:, 0])


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
    ours = padded_inputs([7, 5, 7], [2, 4, 4], 10)
    ours["token_type_ids"] = ours["input_ids"] % 2
    ours["region_token_type_ids"] = torch.ones(B, R, dtype=torch.long)
    ours["image_text_alignment"] = torch.randint(-1, 5, (B, R, 2))
    del ours["region_boxes"]
    theirs = {name: value for name, value in ours.items() if not name.startswith("region")}
    theirs |= {"visual_embeds": ours["region_features"], "visual_attention_mask": ours["region_attention_mask"]}
    return ours, theirs


@back_ends
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
    assert_close(model.state_dict(), theirs.state_dict(), rtol=0, atol=0)
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
