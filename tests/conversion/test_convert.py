# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original checkpoints become Hub directories that give the reference outputs; every key is accounted for."""

import json
from itertools import chain

import pytest
import torch
from safetensors.torch import load_file

from grounded_attention import modeling
from grounded_attention.commands.convert import main
from grounded_attention.conversion.fields import make_config
from grounded_attention.conversion.vl_bert import VL_BERT
from grounded_attention.modeling import (
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
)
from tests.conversion.key_lists import read_key_list
from tests.helpers.closeness import assert_close
from tests.helpers.vl_bert_checkpoints import (
    KEY_LISTS,
    TINY,
    TINY_IMAGE,
    RunsCode,
    image_checkpoint,
    pixel_checkpoint,
    pretraining_checkpoint,
    vgp_checkpoint,
    without,
)
from tests.helpers.vl_bert_parity import GivenVisual, check_vgp, core_inputs, run_core, vgp_inputs
from tests.helpers.vl_bert_reference import list_shapes, list_task_shapes


def read_account(directory):
    return json.loads((directory / "conversion.json").read_text())


def assert_in_its_place(model, state_dict, account):
    """Every converted tensor is that of the model, which has no other."""
    weights = model.state_dict()
    places = account["converted"]
    assert {*places.values(), *account["initialised"]} == set(weights)
    found = {key: weights[place] for key, place in places.items()}
    assert_close(found, {key: state_dict[key] for key in places}, rtol=0, atol=0)


def test_a_pretraining_checkpoint_gives_the_reference_logits(convert):
    reference, state_dict = pretraining_checkpoint()
    content = {"state_dict": state_dict, "optimizer": {"state": {}}, "validation_monitor": {"best": 0.5}}
    directory, printed = convert("vl_bert", content)
    assert "entries of the file that are not weights: optimizer, validation_monitor" in printed
    assert "1 tensors: counter of batch norm, which is frozen" in printed
    model = VLBertForPreTraining.from_pretrained(directory).eval()
    assert model.config.vision_config is None
    assert model.config.region_masking == "feature"
    assert model.config.relationship_head
    assert model.config.region_classes == 17
    inputs = core_inputs(reference)
    _, states, pooled, _ = run_core(model.vl_bert, inputs)
    mask = inputs["text_mask"]
    logits = model.mlm_head(states[:, : mask.shape[1]])[mask]
    assert_close(logits, reference["mlm_logits"][mask])
    assert_close(model.relationship_head(pooled), reference["relationship_logits"])
    expected = state_dict["module.object_mask_visual_embedding.weight"]
    assert_close(model.region_mask_embedding.weight.data, expected)


def test_a_vgp_checkpoint_gives_the_reference_outputs(convert):
    reference, state_dict = vgp_checkpoint()
    directory, printed = convert("vl_bert", {"state_dict": state_dict})
    assert "text_only_visual_embedding.weight (seed 0): only pre-training on text without images has it" in printed
    model = VLBertForVGP.from_pretrained(directory).eval()
    model.vl_bert.region_encoder = GivenVisual(reference["region_visual"])
    inputs = vgp_inputs(reference["inputs"])
    inputs["region_features"] = torch.zeros(*inputs["region_boxes"].shape[:2], 2048)
    check_vgp(model, inputs, reference)


def test_the_directory_holds_weights_config_code_and_account(convert):
    _, state_dict = vgp_checkpoint()
    directory, _ = convert("vl_bert", state_dict)
    names = {path.name for path in directory.iterdir()}
    assert {"model.safetensors", "config.json", "conversion.json"} <= names
    assert {"modeling_vl_bert.py", "configuration_vl_bert.py"} <= names
    config = json.loads((directory / "config.json").read_text())
    assert config["num_attention_heads"] == 4
    assert config["coordinate_embedding"] == "center"
    assert config["identification_pooling"] == "pooled"
    assert config["architectures"] == ["VLBertForVGP"]
    for value in load_file(directory / "model.safetensors").values():
        assert value.dtype == torch.float32
    account = read_account(directory)
    assert sorted([*account["converted"], *chain(*account["left_out"].values())]) == sorted(state_dict)


def test_half_precision_and_bare_keys_are_read(convert):
    _, state_dict = vgp_checkpoint()
    bare = {key.removeprefix("module."): value.half() for key, value in state_dict.items()}
    directory, _ = convert("vl_bert", bare)
    weight = load_file(directory / "model.safetensors")["vl_bert.embeddings.word_embeddings.weight"]
    assert_close(weight, bare["vlbert.word_embeddings.weight"].float())


def test_phrase_pair_features_move_to_the_papers_order():
    _, state_dict = vgp_checkpoint()
    weights = VL_BERT.convert_state_dict(state_dict).weights["vgp_head.classifier.weight"]
    original = state_dict["module.phrasal_cls.1.weight"]
    first, product, difference = original.split([96, 48, 48], dim=1)
    assert_close(weights, torch.cat([first, difference, product], dim=1))


def test_two_layer_and_grounding_heads_are_recognised(convert):
    _, state_dict = vgp_checkpoint()
    first = torch.randn(16, 192)
    grounding = torch.randn(1, 96)
    state_dict |= {
        "module.phrasal_cls.1.weight": first,
        "module.phrasal_cls.1.bias": torch.randn(16),
        "module.phrasal_cls.4.weight": torch.randn(5, 16),
        "module.phrasal_cls.4.bias": torch.randn(5),
        "module.vg_cls.1.weight": grounding,
        "module.vg_cls.1.bias": torch.randn(1),
    }
    directory, _ = convert("vl_bert", state_dict)
    model = VLBertForVGP.from_pretrained(directory)
    assert model.config.vgp_hidden_size == 16
    assert model.config.identification_hidden_size is None
    assert_close(model.vgp_head.dense.weight.data[:, 96:144], first[:, 144:])
    assert_close(model.grounding_head.classifier.weight.data, grounding)


TASKS = {
    "vqa": VLBertForVisualQuestionAnswering,
    "refcoco": VLBertForReferringExpression,
    "vcr": VLBertForMultipleChoice,
}


@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_checkpoint_becomes_its_class(convert, task, end_to_end):
    sizes = {**TINY, **TINY_IMAGE} if end_to_end else TINY
    state_dict = image_checkpoint(list_task_shapes(task, answers=7, **sizes))
    directory, printed = convert("vl_bert", {"state_dict": state_dict})
    assert TASKS[task].__name__ in printed
    model = TASKS[task].from_pretrained(directory)
    account = read_account(directory)
    # Only pre-training sees text without images.
    assert account["initialised"] == ["vl_bert.embeddings.text_only_visual_embedding.weight"]
    for key in set(state_dict) - set(account["converted"]):
        assert ".head.0." in key or "num_batches" in key
    assert_in_its_place(model, state_dict, account)
    assert (model.config.vision_config is not None) == end_to_end


def replace_head(state_dict, head):
    """The checkpoint with other layers under `final_mlp`, (outputs, inputs) by index."""
    rest = {key: value for key, value in state_dict.items() if "final_mlp." not in key}
    for index, shape in head.items():
        rest[f"module.final_mlp.{index}.weight"] = torch.randn(shape)
        rest[f"module.final_mlp.{index}.bias"] = torch.randn(shape[0])
    return rest


@pytest.mark.parametrize(
    "task, head, fields",
    [
        ("vqa", {1: (7, 48)}, {"answer_head": "1fc", "answer_hidden_size": None, "num_labels": 7}),
        ("vqa", {1: (9, 48), 4: (7, 9)}, {"answer_head": "2fc", "answer_hidden_size": 9, "num_labels": 7}),
        ("vcr", {1: (9, 48), 4: (1, 9)}, {"choice_hidden_size": 9}),
    ],
)
def test_other_task_heads_are_recognised(convert, task, head, fields):
    state_dict = replace_head(image_checkpoint(list_task_shapes(task, **TINY)), head)
    directory, _ = convert("vl_bert", state_dict)
    model = TASKS[task].from_pretrained(directory)
    assert {name: getattr(model.config, name) for name in fields} == fields
    last = state_dict[f"module.final_mlp.{max(head)}.weight"]
    name = "answer_head" if task == "vqa" else "choice_head"
    assert torch.equal(getattr(model, name).classifier.weight.data, last)


def test_vcr_without_region_classes_and_an_unused_pooler(convert):
    vcr = image_checkpoint(list_task_shapes("vcr", **TINY))
    directory, _ = convert("vl_bert", without(vcr, "cnn_loss_reg"))
    assert VLBertForMultipleChoice.from_pretrained(directory).config.choice_region_classes is None
    vqa = image_checkpoint(list_task_shapes("vqa", answers=7, **TINY))
    pooler = {key.replace("_module.", ""): value for key, value in vcr.items() if "pooler" in key}
    _, printed = convert("vl_bert", {**vqa, **pooler}, "--force")
    assert "2 tensors: pooler, which this class does not use (module.vlbert.pooler.dense.weight" in printed


def test_the_answers_can_be_given(convert, run_convert, tmp_path):
    answers = ["yes", "no", "two dogs", "red", "left", "1", "<unk>"]
    content = image_checkpoint(list_task_shapes("vqa", answers=7, **TINY))
    directory, _ = convert("vl_bert", content, answers=answers)
    assert VLBertForVisualQuestionAnswering.from_pretrained(directory).config.answers == answers
    (tmp_path / "all_ans.json").write_text(json.dumps([{"ans": answer} for answer in answers[::-1]]))
    convert("vl_bert", content, "--answers", str(tmp_path / "all_ans.json"), "--force")
    assert VLBertForVisualQuestionAnswering.from_pretrained(directory).config.answers == answers[::-1]
    code, _, errors, _ = run_convert("vl_bert", content, "--force", answers=answers[:5])
    assert code == 2
    assert "final_mlp.2.weight has the shape (7, 48), but the configuration expects (5, 48)" in errors


# -- end to end: the pixel network comes along

LARGE = {"hidden": 1024, "layers": 24, "intermediate": 4096}
IMAGE = "module.image_feature_extractor."


def pixel_inputs():
    return {
        "input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]),
        "pixel_values": 50 * torch.randn(2, 3, 64, 48),
        "image_sizes": torch.tensor([[48, 64], [40, 30]]),
        "region_boxes": torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.6, 0.9]]] * 2),
    }


def read_shapes(shared, name):
    text = (shared / "parity" / "checkpoint_keys" / f"keys_{name}.tsv").read_text()
    return dict(line.split("\t") for line in text.splitlines())


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("kind", ["prec", "e2e"])
def test_the_key_lists_of_these_tests_are_the_original_ones(shared, size, kind):
    sizes = LARGE if size == "large" else {}
    mine = list_shapes(**sizes, end_to_end=kind == "e2e")
    assert {key: str(shape) for key, shape in mine.items()} == read_shapes(shared, f"pretrain_{size}_{kind}")


@pytest.mark.parametrize("task", TASKS)
def test_the_task_key_lists_of_these_tests_are_the_original_ones(shared, task):
    mine = list_task_shapes(task, end_to_end=task != "vqa")
    assert {key: str(shape) for key, shape in mine.items()} == read_shapes(shared, f"{task}_base")


def test_an_end_to_end_checkpoint_brings_its_pixel_network(convert):
    state_dict = pixel_checkpoint()
    directory, printed = convert("vl_bert", {"state_dict": state_dict})
    assert "second copy of roi_head_feature_extractor" in printed
    model = VLBertForPreTraining.from_pretrained(directory).eval()
    vision = model.config.vision_config
    assert vision.depths == [1, 2, 3, 2]
    assert vision.hidden_sizes == [8, 16, 16, 32]
    assert vision.stride_in_1x1
    assert vision.dilated_c5
    assert model.config.region_masking == "pixels"
    assert model.region_mask_embedding is None
    account = read_account(directory)
    assert account["initialised"] == []
    for key in set(state_dict) - set(account["converted"]):
        assert ".head.0." in key or key.endswith("num_batches_tracked")
    assert_in_its_place(model, state_dict, account)
    masked = torch.tensor([[False, True]] * 2)
    assert model(**pixel_inputs(), masked_regions=masked).mlm_logits.isfinite().all()


def test_settings_without_a_trace_in_the_weights_can_be_given(convert):
    directory, _ = convert("vl_bert", pixel_checkpoint(), vision_config={"dilated_c5": False, "roi_size": 7})
    vision = VLBertForPreTraining.from_pretrained(directory).config.vision_config
    assert vision.dilated_c5 is False
    assert vision.roi_size == 7
    assert vision.depths == [1, 2, 3, 2]


def test_the_pixel_network_can_be_left_out(convert):
    directory, printed = convert("vl_bert", pixel_checkpoint(), vision_config=None, region_feature_size=32)
    assert "tensors: pixel network, which --config removes (module.image_feature_extractor.backbone." in printed
    assert "region_mask_embedding.weight (seed 0): end-to-end pre-training masks pixels" in printed
    assert VLBertForPreTraining.from_pretrained(directory).vl_bert.vision_model is None


@pytest.mark.parametrize("name", KEY_LISTS)
def test_every_key_of_the_original_checkpoints_has_a_place_or_a_reason(shared, name):
    state_dict = read_key_list(shared, name)
    conversion = VL_BERT.convert_state_dict(state_dict)
    assert conversion.class_name == KEY_LISTS[name]
    assert set(conversion.converted) | set(conversion.left_out) == set(state_dict)
    assert not any("unknown" in reason for reason in conversion.left_out.values())
    config = make_config(VL_BERT.config_class, VL_BERT.read_fields(conversion, {}))
    sizes = [1024, 24, 16] if "large" in name else [768, 12, 12]
    assert [config.hidden_size, config.num_hidden_layers, config.num_attention_heads] == sizes
    with torch.device("meta"):
        model = getattr(modeling, conversion.class_name)(config)
    places = {key: value.shape for key, value in model.state_dict().items()}
    converted = {key: value.shape for key, value in conversion.weights.items()}
    assert converted.items() <= places.items()
    # Only pre-training sees text without images.
    absent = set(places) - set(converted) - {"mlm_head.decoder.weight"}
    assert absent == (set() if "pretrain" in name else {"vl_bert.embeddings.text_only_visual_embedding.weight"})
    if name in ("pretrain_base_prec", "pretrain_large_prec", "vqa_base"):
        assert config.vision_config is None
    else:
        assert config.vision_config.depths == [3, 4, 23, 3]
        assert any("vl_bert.vision_model." in key for key in converted)
    assert (config.region_masking == "pixels") == name.endswith("e2e")


# -- wrong files


@pytest.mark.parametrize(
    "content, message",
    [
        (b"not a checkpoint", "not a file of torch.save"),
        (b"", "not a file of torch.save"),
        ({"state_dict": {}, "x": RunsCode()}, "reading it would run code (`print`); no code was run"),
        ([1, 2], "contains a list without weights"),
        ({"state_dict": {"a": 1}}, "entry 'a' is a int"),
    ],
    ids=["text", "empty", "code", "list", "numbers"],
)
def test_a_file_that_is_no_checkpoint_is_refused(refused, content, message):
    assert message in refused("vl_bert", content)


@pytest.mark.parametrize(
    "key, shape, message",
    [
        ("module.vlbert.encoder.layer.1.output.dense.weight", (48, 95), "(48, 95), but the configuration expects (48"),
        ("module.object_linguistic_embeddings.weight", (81, 48), "has the shape (81, 48)"),
        ("module.image_feature_extractor.obj_downsample.1.weight", (48, 4224), "has 4224 columns, expected 4096"),
        ("module.vlbert.special_word_embeddings.weight", (9, 48), "word_embedding_frozen"),
        ("object_linguistic_embeddings.weight", (1, 48), "are the same key"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(refused, key, shape, message):
    _, state_dict = vgp_checkpoint()
    error = refused("vl_bert", {**state_dict, key: torch.zeros(shape)})
    assert key in error
    assert message in error


def test_copies_that_differ_are_refused(refused):
    _, state_dict = pretraining_checkpoint()
    state_dict["module.vlbert.mlm_head.predictions.decoder.weight"] = torch.zeros(120, 48)
    assert "decoder.weight differs from module.vlbert.word_embeddings.weight" in refused("vl_bert", state_dict)
    pixels = pixel_checkpoint()
    stage = IMAGE + "roi_head_feature_extractor.1.conv2.weight"
    pixels[stage] = pixels[stage] + 1.0  # not in place: the other name has the same tensor
    assert "head.0.1.conv2.weight differs from" in refused("vl_bert", pixels)


def test_a_missing_file_is_refused(tmp_path, capsys):
    assert main(["vl_bert", "--checkpoint", str(tmp_path / "a.model"), "--output", str(tmp_path / "out")]) == 2
    assert "a.model: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "not JSON"),
        ("[1]", "contains a list, expected an object"),
        ('{"num_attention_heads": 4, "vision_config": {"depth": [1]}}', "unknown configuration field depth; expected"),
        ('{"num_attention_heads": 4, "vision_config": 3}', "vision_config 3, expected an object of fields"),
        (
            '{"num_attention_heads": 4, "vision_config": {"depths": [1, 1, 1, 1]}}',
            "becomes vl_bert.vision_model.embedder.embedder.convolution.weight",
        ),
        ('{"num_attention_heads": 4, "region_masking": "pixels"}', 'region_masking "pixels" needs vision_config'),
        ('{"num_attention_heads": 5}', "must be a multiple of num_attention_heads"),
    ],
)
def test_a_wrong_config_is_refused(run_convert, text, message):
    code, _, errors, directory = run_convert("vl_bert", vgp_checkpoint()[1], config=text)
    assert code == 2
    assert message in errors.splitlines()[-1]
    assert not directory.exists()


def test_a_missing_config_is_refused(run_convert, tmp_path):
    code, _, errors, _ = run_convert("vl_bert", vgp_checkpoint()[1], "--config", str(tmp_path / "none.json"))
    assert code == 2
    assert "none.json: No such file" in errors


@pytest.fixture
def existing(convert):
    """A directory with a converted model."""
    return convert("vl_bert", vgp_checkpoint()[1])[0]


def test_an_existing_directory_is_replaced_only_with_force(existing, run_convert):
    _, state_dict = vgp_checkpoint()
    old = existing / "model-00001-of-00002.safetensors"
    old.write_text("old")
    code, _, errors, _ = run_convert("vl_bert", state_dict)
    assert code == 2
    assert "or replace it with --force" in errors
    assert old.exists()
    assert run_convert("vl_bert", state_dict, "--force")[0] == 0
    assert not old.exists()


@pytest.mark.parametrize("place", ["vocab.txt", "train.py", "my_runs/results.json"])
def test_files_of_others_in_a_model_directory_are_not_deleted(existing, run_convert, place):
    mine = existing / place
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    code, _, errors, _ = run_convert("vl_bert", vgp_checkpoint()[1], "--force")
    assert code == 2
    assert f"contains {place.split('/')[0]}, which --force would delete" in errors
    assert mine.read_text() == "precious"
    assert (existing / "model.safetensors").is_file()


def test_a_directory_that_is_no_model_is_never_replaced(run_convert, tmp_path):
    thesis = tmp_path / "out" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("precious")
    code, _, errors, _ = run_convert("vl_bert", vgp_checkpoint()[1], "--force")
    assert code == 2
    assert "is not a model directory" in errors
    assert thesis.read_text() == "precious"


def test_conversion_is_deterministic_and_leaves_the_random_state():
    _, state_dict = vgp_checkpoint()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, _ = VL_BERT.build_model(state_dict, {"num_attention_heads": 4})
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    second, _ = VL_BERT.build_model(state_dict, {"num_attention_heads": 4})
    assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


def test_a_conversion_shows_its_progress(run_convert, monkeypatch):
    _, state_dict = pretraining_checkpoint()
    assert "tensors: " in run_convert("vl_bert", state_dict)[2]
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert run_convert("vl_bert", state_dict, "--force")[2] == ""
