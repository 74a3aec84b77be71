# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of VOLTA: converted models compute what an independent forward pass of its sub-layers computes. Also
full-size configurations, schedules that no family has, and files that are wrong."""

import json
import re

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.commands.convert import main
from grounded_attention.conversion.fields import CheckpointError, OverrideError
from grounded_attention.conversion.volta_families import make_volta_converter
from tests.conversion.volta_reference import (
    CONFIGS,
    VoltaReference,
    list_shapes,
    lxmert_schedule,
    make_state_dict,
    vilbert_schedule,
    visualbert_schedule,
)
from tests.helpers.padded_inputs import padded_inputs

FULL = json.loads(
    """{
    "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
    "max_position_embeddings": 512, "pooler_size": 1024, "v_feature_size": 2048, "v_hidden_size": 768,
    "v_num_attention_heads": 12, "v_intermediate_size": 3072
    }"""
)


def convert(name, weights=None, **changes):
    config = {**CONFIGS[name], **changes}
    converter = make_volta_converter(config["image_embeddings"], config)
    return converter.build_model(make_state_dict(CONFIGS[name]) if weights is None else weights, config)


def make_inputs(words, regions):
    """Two rows, of which the second is padded."""
    inputs = padded_inputs([words, words - 2], [regions, regions - 1], 16, seed=words)
    return {**inputs, "token_type_ids": inputs["input_ids"] % 2}


def run_reference(name, inputs):
    config = CONFIGS[name]
    reference = VoltaReference(config, make_state_dict(config))
    boxes = inputs["region_boxes"]
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1, keepdim=True)
    locations = torch.cat([boxes, area], dim=-1)[..., : config["num_locs"]]
    return reference, reference.run(inputs, locations)


def check_close(found, expected, mask):
    valid = mask.bool()
    assert_close(found[valid], expected[valid], rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [(9, 4), (4, 9)], ids=["long text", "many regions"])
@pytest.mark.parametrize("name", CONFIGS)
def test_states_and_scores_are_those_of_the_sub_layers(name, sizes):
    inputs = make_inputs(*sizes)
    _, expected = run_reference(name, inputs)
    model, conversion = convert(name)
    with torch.no_grad():
        outputs = model.eval()(**inputs)
        base = model.base_model(**inputs)
    text_mask = inputs["attention_mask"]
    region_mask = inputs["region_attention_mask"]
    check_close(base.text_hidden_state, expected["text"], text_mask)
    check_close(base.region_hidden_state, expected["regions"], region_mask)
    check_close(outputs.mlm_logits, expected["words"], text_mask)
    assert_close(base.pooler_output, expected["pooled"], rtol=0, atol=1e-5)
    assert_close(outputs.relationship_logits, expected["relationship"].flip(1), rtol=0, atol=1e-5)
    if name == "ctrl_visualbert":
        reasons = [reason for key, reason in conversion.left_out.items() if "imagePredictions" in key]
        assert len(reasons) == 6
        assert "no head here" in reasons[0]
        return
    background = int(name == "ctrl_lxmert")  # the first of 1,601 classes
    heads = {"0": "region_logits", "3": "region_logits", "4": "attribute_logits", "5": "predicted_features"}
    for target, scores in expected["targets"].items():
        check_close(outputs[heads[target]], scores[..., background:], region_mask)


@pytest.mark.parametrize("name", ["ctrl_vilbert", "vilbert", "ctrl_lxmert", "lxmert"])
def test_both_directions_of_cross_attention_have_the_same_maps(name):
    inputs = make_inputs(7, 5)
    reference, _ = run_reference(name, inputs)
    model, _ = convert(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model.base_model.eval()(**inputs, output_attentions=True).attentions
    crosses = CONFIGS[name]["tv_attn_sublayers"]
    for stream, prefix, mask in (("text", "", "attention_mask"), ("regions", "v_", "region_attention_mask")):
        found = []
        for call, attention in zip(model.config.attention_calls, maps, strict=True):
            if call.query_stream == stream != call.key_stream:
                found.append(attention)
        for number, attention in zip(crosses, found, strict=True):
            expected = reference.maps[number, prefix]
            check_close(attention.transpose(1, 2), expected.transpose(1, 2), inputs[mask])


def test_names_shared_by_both_streams_and_the_record_of_every_key():
    weights = make_state_dict(CONFIGS["ctrl_lxmert"])
    model, conversion = convert("ctrl_lxmert")
    assert {*conversion.converted, *conversion.left_out} == set(weights)
    shared = CONFIGS["ctrl_lxmert"]["shared_sublayers"]
    layers = tuple(f"bert.encoder.layer.{number}." for number in shared)
    second = {key for key in weights if key.startswith(layers) and ".v_" in key}
    assert set(conversion.left_out) == second
    assert len(second) == 10 * len(shared)
    assert set(conversion.converted.values()) <= set(model.state_dict())
    assert model.config.num_object_labels == 1600
    assert "background" in conversion.fields.notes["num_object_labels"]


@pytest.mark.parametrize(
    "fields, expected",
    [
        (
            {"image_embeddings": "vilbert", **vilbert_schedule(6, 6)},
            {
                "num_hidden_layers": 12,
                "v_num_hidden_layers": 6,
                "t_biattention_id": [6, 7, 8, 9, 10, 11],
                "v_biattention_id": [0, 1, 2, 3, 4, 5],
                "bi_hidden_size": 768,
                "bi_num_attention_heads": 12,
                "pooler_size": 1024,
            },
        ),
        (
            {
                "image_embeddings": "vilbert",
                **vilbert_schedule(6, 6),
                **{"v_hidden_size": 1024, "v_num_attention_heads": 8, "v_intermediate_size": 1024},
                "sublayer2attn_hidden_size": dict.fromkeys(map(str, range(12, 36, 4)), 1024),
                "sublayer2num_attention_heads": dict.fromkeys(map(str, range(12, 36, 4)), 8),
            },
            {"bi_hidden_size": 1024, "bi_num_attention_heads": 8, "hidden_size": 768, "v_hidden_size": 1024},
        ),
        (
            {"image_embeddings": "lxmert", **lxmert_schedule(5, 4, 5)},
            {"l_layers": 9, "r_layers": 5, "x_layers": 5, "visual_pos_dim": 5, "fusion_method": "mul"},
        ),
        (
            {"image_embeddings": "visualbert", **visualbert_schedule(12)},
            {"num_hidden_layers": 12, "pooler_size": 1024, "pooler_act": "relu", "visual_embedding_dim": 2048},
        ),
    ],
    ids=["ctrl_vilbert", "vilbert", "ctrl_lxmert", "ctrl_visualbert"],
)
def test_public_configurations_in_full_size(fields, expected):
    config = {**CONFIGS["ctrl_vilbert"], **FULL, **fields}
    weights = {key: torch.zeros(()).expand(shape) for key, shape in list_shapes(config).items()}
    converter = make_volta_converter(config["image_embeddings"], config)
    found = converter.read_fields(converter.convert_state_dict(weights), config).values()
    assert expected.items() <= found.items()


def test_an_option_of_ours_may_stand_in_the_file_and_an_unknown_one_may_not():
    assert convert("ctrl_vilbert", classifier_dropout=0.3)[0].config.classifier_dropout == 0.3
    with pytest.raises(OverrideError, match="unknown configuration field no_such_field"):
        convert("ctrl_vilbert", no_such_field=1)


JOINT = '{"tt_attn_sublayers": [0, 2, 4, 6, 8, 10], "vv_attn_sublayers": [4, 6, 8, 10]}'


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("ctrl_vilbert", '{"vt_attn_sublayers": [8]}', "sub-layer 4 lets text attend to regions"),
        ("ctrl_vilbert", JOINT, "sub-layer 4 is joint of text"),
        ("ctrl_vilbert", '{"shared_sublayers": [4]}', "sub-layer 4 is shared cross of text"),
        ("ctrl_vilbert", json.dumps(lxmert_schedule(1, 1, 2)), "sub-layer 4 is shared cross of text"),
        ("ctrl_vilbert", '{"t_ff_sublayers": [1, 3, 5, 9, 11]}', "sub-layer 8 is cross of text"),
        ("ctrl_vilbert", '{"v_ff_sublayers": [5, 7, 9]}', "sub-layer 10 is the last one for regions"),
        ("ctrl_vilbert", '{"t_ff_sublayers": [1, 2, 3]}', "sub-layer 2 is in lists of attention and of feed-forward"),
        ("ctrl_vilbert", '{"v_ff_sublayers": [5, 7, 9, 13]}', "no list of sub-layers has number 12"),
        ("ctrl_vilbert", '{"sublayer2intermediate_size": {"3": 40}}', "sub-layer 3 has intermediate_size 40, not 36"),
        ("ctrl_vilbert", '{"sublayer2num_attention_heads": {"8": 2}}', "another num_attention_heads of co-attention"),
        ("ctrl_lxmert", json.dumps(vilbert_schedule(1, 1)), "sub-layer 2 is cross of text"),
        (
            "ctrl_lxmert",
            '{"sublayer2v_num_attention_heads": {"5": 2}}',
            "sub-layer 5 has v_num_attention_heads 2, not 4",
        ),
        ("ctrl_lxmert", '{"sublayer2num_attention_heads": {"4": 2}}', "sub-layer 4 has num_attention_heads 2, not 4"),
        ("ctrl_lxmert", '{"v_hidden_dropout_prob": 0}', "v_hidden_dropout_prob is 0 and hidden_dropout_prob is 0.1"),
        ("ctrl_lxmert", '{"v_hidden_size": 32}', "v_hidden_size is 32 and hidden_size is 24"),
        ("ctrl_visualbert", '{"shared_sublayers": [0, 1, 2]}', "sub-layer 3 is feed-forward of text"),
        ("ctrl_visualbert", '{"bert_model": "roberta-base"}', "RoBERTa"),
        ("ctrl_visualbert", '{"fusion_method": "vl-bert_vqa"}', "fusion_method is 'vl-bert_vqa'"),
        ("vilbert", '{"add_global_imgfeat": "last"}', "add_global_imgfeat is 'last', expected 'first'"),
        ("vilbert", '{"visual_target_weights": {"3": 1, "4": 1}}', "has the targets 3, 4, expected one of 0, 1, 2, 6"),
        ("vilbert", '{"tt_attn_sublayers": "0-3"}', "tt_attn_sublayers is '0-3'"),
    ],
)
def test_a_schedule_that_no_family_has_is_refused_with_its_sub_layer(name, changes, message):
    with pytest.raises(OverrideError, match=message):
        convert(name, **json.loads(changes))


@pytest.mark.parametrize(
    "missing, message",
    [
        (r"layer\.[67]\.", r"becomes vilbert\.encoder\.v_layer\.0\."),
        (r"layer\.1[01]\.", "v?_?num_hidden_layers [24]"),
        (r"layer\.6\.", "becomes vilbert.encoder.layer.2.attention.self.query.weight"),
        (r"v_pooler\.dense\.bias", "becomes vilbert.v_pooler.dense.bias"),
    ],
    ids=["gap", "tail", "half a layer", "missing"],
)
def test_missing_tensors_are_named(missing, message):
    weights = make_state_dict(CONFIGS["ctrl_vilbert"])
    rest = {key: value for key, value in weights.items() if not re.search(missing, key)}
    with pytest.raises((CheckpointError, OverrideError), match=message):
        convert("ctrl_vilbert", rest)


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("bert.t_pooler.dense.weight", torch.zeros(3, 24), r"t_pooler.dense.weight has the shape \(3, 24\)"),
        (
            "bert.encoder.layer.12.attention_self.query.weight",
            torch.zeros(2),
            "12.* --config does not have .*0 to 11",
        ),
        ("bert.encoder.layer.0.attention_self.v_key.bias", torch.zeros(24), "0.attention_self.v_key.bias, which"),
        ("cls.predictions.decoder.weight", torch.zeros(40, 24), "decoder.weight differs from"),
    ],
    ids=["shape", "further sub-layer", "further direction", "untied"],
)
def test_wrong_tensors_are_named(key, value, message):
    weights = {**make_state_dict(CONFIGS["ctrl_vilbert"]), key: value}
    with pytest.raises((CheckpointError, OverrideError), match=message):
        convert("ctrl_vilbert", weights)


def test_two_names_of_a_shared_tensor_must_agree():
    weights = make_state_dict(CONFIGS["ctrl_lxmert"])
    weights["bert.encoder.layer.4.attention_self.v_query.bias"] = torch.zeros(24)
    with pytest.raises(CheckpointError, match=r"4\.attention_self\.v_query\.bias differs from .*_self\.query"):
        convert("ctrl_lxmert", weights)


def test_the_file_of_a_task_gives_its_encoder():
    weights = {key: value for key, value in make_state_dict(CONFIGS["vilbert"]).items() if key.startswith("bert.")}
    model, conversion = convert("vilbert", {**weights, "clfs_dict.TASK1.logit_fc.0.weight": torch.zeros(2, 2)})
    assert type(model).__name__ == "ViLBertModel"
    assert len(conversion.left_out) == 1


@pytest.fixture
def command(tmp_path, capsys):
    """Saves a checkpoint and files beside it, runs the command, returns (exit code, output and errors, directory)."""

    def run(family, weights, *options, **beside):
        torch.save(weights, tmp_path / "pytorch_model_9.bin")
        for name, content in beside.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        paths = ["--checkpoint", str(tmp_path / "pytorch_model_9.bin"), "--output", str(tmp_path / "out")]
        code = main([family, *paths, *options])
        return code, "".join(capsys.readouterr()), tmp_path / "out"

    return run


def test_the_configuration_is_given_or_lies_beside_the_file(command, tmp_path):
    config = CONFIGS["ctrl_visualbert"]
    weights = make_state_dict(config)
    code, printed, _ = command("visualbert", weights)
    assert code == 2
    assert printed.count("\n") == 1
    assert "give --config its JSON file, which has tt_attn_sublayers" in printed
    code, printed, directory = command("visualbert", weights, ctrl=config, other={"lr": 1}, third=[])
    assert code == 0
    assert "VisualBERTForPreTraining" in printed
    assert json.loads((directory / "config.json").read_text())["pooler_act"] == "relu"
    code, printed, _ = command("visualbert", weights, "--force", ctrl=config, second=config)
    assert code == 2
    assert "as the only such file" in printed
    assert command("visualbert", weights, "--force", "--config", str(tmp_path / "ctrl.json"))[0] == 0


def test_the_file_of_an_interrupted_training_converts_too(command):
    weights = make_state_dict(CONFIGS["lxmert"])
    optimizer = {"param_groups": [{"params": [0, 1]}]}
    content = {"model_state_dict": weights, "optimizer_state_dict": optimizer, "epoch_id": 3}
    code, printed, directory = command("lxmert", content, ctrl=CONFIGS["lxmert"])
    assert code == 0
    assert "epoch_id" in printed
    account = json.loads((directory / "conversion.json").read_text())
    assert account["left_out_entries"] == ["epoch_id", "optimizer_state_dict"]


@pytest.mark.parametrize(
    "family, name, changes, message",
    [
        ("vilbert", "ctrl_lxmert", {}, "image_embeddings is 'lxmert', not 'vilbert'"),
        (
            "visualbert",
            "ctrl_visualbert",
            {"image_embeddings": "uniter"},
            "image_embeddings is 'uniter', expected vil",
        ),
        ("vl_bert", "ctrl_visualbert", {}, "looks like a VOLTA checkpoint, not VL-BERT"),
    ],
)
def test_another_family_is_named(command, family, name, changes, message):
    config = {**CONFIGS[name], **changes}
    code, printed, directory = command(family, make_state_dict(CONFIGS[name]), ctrl=config)
    assert code == 2
    assert message in printed
    assert printed.count("\n") == 1
    assert not directory.exists()


def test_a_file_of_the_first_public_code_with_a_configuration_of_volta_is_named(command, tmp_path):
    weights = {"bert.encoder.c_layer.0.biattention.query1.weight": torch.zeros(2, 2)}
    config = str(tmp_path / "ctrl.json")
    code, printed, _ = command("vilbert", weights, "--config", config, ctrl=CONFIGS["ctrl_vilbert"])
    assert code == 2
    assert "looks like a ViLBERT checkpoint, not VOLTA: use `convert vilbert`" in printed
