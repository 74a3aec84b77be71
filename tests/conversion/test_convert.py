# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original checkpoints become Hub directories that give the reference outputs; every key is accounted for."""

import json

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
from tests.helpers.closeness import assert_close
from tests.helpers.vl_bert_checkpoints import (
    KEY_LISTS,
    TINY,
    TINY_IMAGE,
    RunsCode,
    image_checkpoint,
    pixel_checkpoint,
    pretraining_checkpoint,
    region_projection,
    vgp_checkpoint,
    without,
)
from tests.helpers.vl_bert_parity import GivenVisual, check_vgp, core_inputs, run_core, vgp_inputs
from tests.helpers.vl_bert_reference import as_checkpoint, list_shapes, list_task_shapes, load_fixture
from tests.helpers.vl_bert_task_parity import check_choice, check_referring, check_vqa


@pytest.fixture
def convert(tmp_path, capsys):
    """Saves a file's content, runs the command on it, returns (exit code, output, errors, directory)."""

    def run(content, *options, heads=4):
        checkpoint = tmp_path / "vl-bert.model"
        config = tmp_path / "config.json"
        if isinstance(content, bytes):
            checkpoint.write_bytes(content)
        elif content is not None:
            torch.save(content, checkpoint)
        config.write_text(json.dumps({"num_attention_heads": heads} if heads else {}))
        given = [] if "--config" in options else ["--config", str(config)]
        arguments = ["vl_bert", "--checkpoint", str(checkpoint), "--output", str(tmp_path / "out"), *given, *options]
        code = main(arguments)
        captured = capsys.readouterr()
        # without progress on a slow machine
        if code:
            error = captured.err[captured.err.find("error:") :]
        else:
            error = captured.err
        return code, captured.out, error, tmp_path / "out"

    return run


def test_a_pretraining_checkpoint_gives_the_reference_logits(convert):
    reference, state_dict = pretraining_checkpoint()
    content = {"state_dict": state_dict, "optimizer": {"state": {}}, "validation_monitor": {"best": 0.5}}
    code, printed, _, directory = convert(content)
    assert code == 0
    assert "entries of the file that are not weights: optimizer, validation_monitor" in printed
    assert "1 tensors: counter of batch norm, which is frozen" in printed
    assert VLBertForPreTraining.from_pretrained(directory).config.vision_config is None
    model = VLBertForPreTraining.from_pretrained(directory).eval()
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
    code, printed, _, directory = convert({"state_dict": state_dict})
    assert code == 0
    assert "text_only_visual_embedding.weight (seed 0): only pre-training on text without images has it" in printed
    model = VLBertForVGP.from_pretrained(directory).eval()
    model.vl_bert.region_encoder = GivenVisual(reference["region_visual"])
    inputs = vgp_inputs(reference["inputs"])
    inputs["region_features"] = torch.zeros(*inputs["region_boxes"].shape[:2], 2048)
    check_vgp(model, inputs, reference)


def test_the_directory_holds_weights_config_code_and_account(convert):
    _, state_dict = vgp_checkpoint()
    _, _, _, directory = convert(state_dict)
    names = {path.name for path in directory.iterdir()}
    assert {"model.safetensors", "config.json", "conversion.json"} <= names
    assert {"modeling_vl_bert.py", "configuration_vl_bert.py"} <= names
    config = json.loads((directory / "config.json").read_text())
    assert config["num_attention_heads"] == 4
    assert config["coordinate_embedding"] == "center"
    assert config["identification_pooling"] == "pooled"
    assert config["architectures"] == ["VLBertForVGP"]
    assert all(value.dtype == torch.float32 for value in load_file(directory / "model.safetensors").values())
    account = json.loads((directory / "conversion.json").read_text())
    left_out = [key for keys in account["left_out"].values() for key in keys]
    assert sorted([*account["converted"], *left_out]) == sorted(state_dict)


def test_half_precision_and_bare_keys_are_read(convert):
    _, state_dict = vgp_checkpoint()
    bare = {key.removeprefix("module."): value.half() for key, value in state_dict.items()}
    code, _, _, directory = convert(bare)
    assert code == 0
    name = "vl_bert.embeddings.word_embeddings.weight"
    weights = load_file(directory / "model.safetensors")
    assert_close(weights[name], bare["vlbert.word_embeddings.weight"].float())


def test_phrase_pair_features_move_to_the_papers_order():
    _, state_dict = vgp_checkpoint()
    weights = VL_BERT.convert_state_dict(state_dict).weights["vgp_head.classifier.weight"]
    original = state_dict["module.phrasal_cls.1.weight"]
    assert_close(weights[:, :96], original[:, :96])
    assert_close(weights[:, 96:144], original[:, 144:])
    assert_close(weights[:, 144:], original[:, 96:144])


def test_two_layer_and_grounding_heads_are_recognised(convert):
    _, state_dict = vgp_checkpoint()
    prefix = "module.phrasal_cls."
    state_dict[prefix + "4.weight"], state_dict[prefix + "4.bias"] = torch.randn(5, 16), torch.randn(5)
    state_dict[prefix + "1.weight"], state_dict[prefix + "1.bias"] = torch.randn(16, 192), torch.randn(16)
    state_dict["module.vg_cls.1.weight"], state_dict["module.vg_cls.1.bias"] = torch.randn(1, 96), torch.randn(1)
    code, _, _, directory = convert(state_dict)
    assert code == 0
    model = VLBertForVGP.from_pretrained(directory)
    assert (model.config.vgp_hidden_size, model.config.identification_hidden_size) == (16, None)
    dense = model.vgp_head.dense.weight.data
    assert_close(dense[:, 96:144], state_dict[prefix + "1.weight"][:, 144:])
    grounding = model.grounding_head.classifier.weight.data
    assert_close(grounding, state_dict["module.vg_cls.1.weight"])


TASKS = {
    "vqa": VLBertForVisualQuestionAnswering,
    "refcoco": VLBertForReferringExpression,
    "vcr": VLBertForMultipleChoice,
}


@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_checkpoint_becomes_its_class(convert, task, end_to_end):
    shapes = list_task_shapes(task, answers=7, **TINY, **(TINY_IMAGE if end_to_end else {}))
    state_dict = image_checkpoint(shapes)
    code, printed, _, directory = convert({"state_dict": state_dict})
    assert code == 0
    assert TASKS[task].__name__ in printed
    model = TASKS[task].from_pretrained(directory).eval()
    account = json.loads((directory / "conversion.json").read_text())
    # Only pre-training sees text without images.
    assert account["initialised"] == ["vl_bert.embeddings.text_only_visual_embedding.weight"]
    assert all(".head.0." in key or "num_batches" in key for key in set(state_dict) - set(account["converted"]))
    weights = model.state_dict()
    assert set(account["converted"].values()) | set(account["initialised"]) == set(weights)
    for key, name in account["converted"].items():
        assert torch.equal(weights[name], state_dict[key]), key
    assert (model.config.vision_config is not None) == end_to_end


@pytest.mark.parametrize("task", TASKS)
def test_a_task_checkpoint_gives_the_reference_logits(convert, task):
    reference = load_fixture(task)
    code, _, _, directory = convert(as_checkpoint({**reference["state_dict"], **region_projection()}))
    assert code == 0
    model = TASKS[task].from_pretrained(directory).eval()
    visual = reference["inputs"].get("obj_reps")
    visual = reference["region_visual"] if visual is None else visual.repeat_interleave(4, dim=0)
    model.vl_bert.region_encoder = GivenVisual(visual)
    check = {"vqa": check_vqa, "refcoco": check_referring, "vcr": check_choice}[task]
    check(model, reference)


def replace_head(state_dict, head):
    """The checkpoint with other layers under `final_mlp`, (outputs, inputs) by index."""
    rest = {key: value for key, value in state_dict.items() if "final_mlp." not in key}
    for index, shape in head.items():
        rest[f"module.final_mlp.{index}.weight"] = torch.randn(shape)
        rest[f"module.final_mlp.{index}.bias"] = torch.randn(shape[0])
    return rest


@pytest.mark.parametrize(
    ("task", "head", "fields"),
    [
        ("vqa", {1: (7, 48)}, {"answer_head": "1fc", "answer_hidden_size": None, "num_labels": 7}),
        ("vqa", {1: (9, 48), 4: (7, 9)}, {"answer_head": "2fc", "answer_hidden_size": 9, "num_labels": 7}),
        ("vcr", {1: (9, 48), 4: (1, 9)}, {"choice_hidden_size": 9}),
    ],
)
def test_other_task_heads_are_recognised(convert, task, head, fields):
    state_dict = replace_head(image_checkpoint(list_task_shapes(task, **TINY)), head)
    code, _, _, directory = convert(state_dict)
    assert code == 0
    model = TASKS[task].from_pretrained(directory)
    assert {name: getattr(model.config, name) for name in fields} == fields
    last = state_dict[f"module.final_mlp.{max(head)}.weight"]
    name = "answer_head" if task == "vqa" else "choice_head"
    assert torch.equal(getattr(model, name).classifier.weight.data, last)


def test_vcr_without_region_classes_and_an_unused_pooler(convert, tmp_path):
    shapes = list_task_shapes("vcr", **TINY)
    code, _, _, directory = convert(image_checkpoint(without(shapes, "cnn_loss_reg")))
    assert code == 0
    assert VLBertForMultipleChoice.from_pretrained(directory).config.choice_region_classes is None
    pooler = {key: value for key, value in image_checkpoint(shapes).items() if "pooler" in key}
    pooler = {key.replace("_module.", ""): value for key, value in pooler.items()}
    content = {**image_checkpoint(list_task_shapes("vqa", answers=7, **TINY)), **pooler}
    code, printed, _, _ = convert(content, "--force")
    assert code == 0
    assert "2 tensors: pooler, which this class does not use (module.vlbert.pooler.dense.weight" in printed


def test_the_answers_can_be_given(convert, tmp_path):
    answers = ["yes", "no", "two dogs", "red", "left", "1", "<unk>"]
    (tmp_path / "fields.json").write_text(json.dumps({"num_attention_heads": 4, "answers": answers}))
    content = image_checkpoint(list_task_shapes("vqa", answers=7, **TINY))
    code, _, _, directory = convert(content, "--config", str(tmp_path / "fields.json"))
    assert code == 0
    assert VLBertForVisualQuestionAnswering.from_pretrained(directory).config.answers == answers
    (tmp_path / "fields.json").write_text(json.dumps({"num_attention_heads": 4}))
    (tmp_path / "all_ans.json").write_text(json.dumps([{"ans": answer} for answer in answers[::-1]]))
    lists = ("--config", str(tmp_path / "fields.json"), "--answers", str(tmp_path / "all_ans.json"))
    assert convert(content, *lists, "--force")[0] == 0
    assert VLBertForVisualQuestionAnswering.from_pretrained(directory).config.answers == answers[::-1]
    (tmp_path / "fields.json").write_text(json.dumps({"num_attention_heads": 4, "answers": answers[:5]}))
    code, _, error, _ = convert(content, "--config", str(tmp_path / "fields.json"), "--force")
    assert code == 2
    assert "final_mlp.2.weight has the shape (7, 48), but the configuration expects (5, 48)" in error


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


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("kind", ["prec", "e2e"])
def test_the_key_lists_of_these_tests_are_the_original_ones(shared, size, kind):
    lines = (shared / "parity" / "checkpoint_keys" / f"keys_pretrain_{size}_{kind}.tsv").read_text().splitlines()
    original = dict(line.split("\t") for line in lines)
    mine = list_shapes(**(LARGE if size == "large" else {}), end_to_end=kind == "e2e")
    assert {key: str(shape) for key, shape in mine.items()} == original


@pytest.mark.parametrize("task", ["vqa", "refcoco", "vcr"])
def test_the_task_key_lists_of_these_tests_are_the_original_ones(shared, task):
    lines = (shared / "parity" / "checkpoint_keys" / f"keys_{task}_base.tsv").read_text().splitlines()
    mine = list_task_shapes(task, end_to_end=task != "vqa")
    assert {key: str(shape) for key, shape in mine.items()} == dict(line.split("\t") for line in lines)


def test_an_end_to_end_checkpoint_brings_its_pixel_network(convert):
    state_dict = pixel_checkpoint()
    code, printed, _, directory = convert({"state_dict": state_dict})
    assert code == 0
    assert "second copy of roi_head_feature_extractor" in printed
    model = VLBertForPreTraining.from_pretrained(directory).eval()
    vision = model.config.vision_config
    assert (vision.depths, vision.hidden_sizes) == ([1, 2, 3, 2], [8, 16, 16, 32])
    assert (vision.stride_in_1x1, vision.dilated_c5) == (True, True)
    assert (model.config.region_masking, model.region_mask_embedding) == ("pixels", None)
    account = json.loads((directory / "conversion.json").read_text())
    assert account["initialised"] == []
    assert {
        key.rsplit(".", 1)[-1] for key in set(state_dict) - set(account["converted"]) if ".head.0." not in key
    } == {"num_batches_tracked"}
    weights = model.state_dict()
    assert set(account["converted"].values()) == set(weights)
    for key, name in account["converted"].items():
        assert torch.equal(weights[name], state_dict[key]), key
    masked = torch.tensor([[False, True]] * 2)
    assert model(**pixel_inputs(), masked_regions=masked).mlm_logits.isfinite().all()


def test_precomputed_checkpoints_mask_features(convert):
    code, _, _, directory = convert(image_checkpoint(list_shapes(**TINY)))
    assert code == 0
    model = VLBertForPreTraining.from_pretrained(directory)
    assert (model.config.vision_config, model.config.region_masking) == (None, "feature")
    assert model.vl_bert.vision_model is None


def test_a_task_checkpoint_brings_its_pixel_network(convert):
    _, state_dict = vgp_checkpoint()
    image = {key: shape for key, shape in list_shapes(**TINY, **TINY_IMAGE).items() if "extractor." in key}
    state_dict = {**state_dict, **image_checkpoint(image)}
    code, _, _, directory = convert(state_dict)
    assert code == 0
    model = VLBertForVGP.from_pretrained(directory).eval()
    assert model.config.region_masking == "feature"
    weight = model.vl_bert.vision_model.head[1].layer[2].convolution.weight
    assert torch.equal(weight, state_dict[IMAGE + "roi_head_feature_extractor.1.conv3.weight"])
    assert model(**pixel_inputs()).identification_logits.isfinite().all()


def test_settings_without_a_trace_in_the_weights_can_be_given(convert, tmp_path):
    fields = {"num_attention_heads": 4, "vision_config": {"dilated_c5": False, "roi_size": 7}}
    (tmp_path / "fields.json").write_text(json.dumps(fields))
    code, _, _, directory = convert(pixel_checkpoint(), "--config", str(tmp_path / "fields.json"))
    assert code == 0
    vision = VLBertForPreTraining.from_pretrained(directory).config.vision_config
    assert (vision.dilated_c5, vision.roi_size, vision.depths) == (False, 7, [1, 2, 3, 2])


def test_the_pixel_network_can_be_left_out(convert, tmp_path):
    fields = {"num_attention_heads": 4, "vision_config": None, "region_feature_size": 32}
    (tmp_path / "fields.json").write_text(json.dumps(fields))
    code, printed, _, directory = convert(pixel_checkpoint(), "--config", str(tmp_path / "fields.json"))
    assert code == 0
    assert "tensors: pixel network, which --config removes (module.image_feature_extractor.backbone." in printed
    assert "region_mask_embedding.weight (seed 0): end-to-end pre-training masks pixels" in printed
    assert VLBertForPreTraining.from_pretrained(directory).vl_bert.vision_model is None


@pytest.mark.parametrize("name", KEY_LISTS)
def test_every_key_of_the_original_checkpoints_has_a_place_or_a_reason(shared, name):
    lines = (shared / "parity" / "checkpoint_keys" / f"keys_{name}.tsv").read_text().splitlines()
    state_dict = {}
    for line in lines:
        key, shape = line.split("\t")
        sizes = [int(size) for size in shape.strip("()").split(",") if size.strip()]
        state_dict[f"module.{key}"] = torch.zeros(()).expand(sizes)  # one number, whatever the shape
    conversion = VL_BERT.convert_state_dict(state_dict)
    assert conversion.class_name == KEY_LISTS[name]
    assert set(conversion.converted) | set(conversion.left_out) == set(state_dict)
    assert not any("unknown" in reason for reason in conversion.left_out.values())
    config = make_config(VL_BERT.config_class, VL_BERT.read_fields(conversion, {}))
    sizes = (1024, 24, 16) if "large" in name else (768, 12, 12)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == sizes
    with torch.device("meta"):
        model = getattr(modeling, conversion.class_name)(config)
    places = {key: value.shape for key, value in model.state_dict().items()}
    for key, value in conversion.weights.items():
        assert places[key] == value.shape, key
    # Only pre-training sees text without images.
    absent = set(places) - set(conversion.weights)
    only_pretraining = set() if "pretrain" in name else {"vl_bert.embeddings.text_only_visual_embedding.weight"}
    assert absent - {"mlm_head.decoder.weight"} == only_pretraining
    precomputed = name in ("pretrain_base_prec", "pretrain_large_prec", "vqa_base")
    assert (config.vision_config is None) == precomputed
    if not precomputed:
        assert config.vision_config.depths == [3, 4, 23, 3]
        assert any("vl_bert.vision_model." in key for key in conversion.weights)
    assert (config.region_masking == "pixels") == (name in ("pretrain_base_e2e", "pretrain_large_e2e"))


# -- wrong files: one line, exit code 2, nothing written


def wrong_files():
    _, vgp = vgp_checkpoint()
    _, pretraining = pretraining_checkpoint()
    untied = {**pretraining, "module.vlbert.mlm_head.predictions.decoder.weight": torch.zeros(120, 48)}
    narrow = {**vgp, "module.vlbert.encoder.layer.1.output.dense.weight": torch.zeros(48, 95)}
    words = {**vgp, "module.object_linguistic_embeddings.weight": torch.zeros(81, 48)}
    wide = {**vgp, "module.image_feature_extractor.obj_downsample.1.weight": torch.zeros(48, 4224)}
    frozen = {**vgp, "module.vlbert.special_word_embeddings.weight": torch.zeros(9, 48)}
    twice = {**vgp, "object_linguistic_embeddings.weight": torch.zeros(1, 48)}
    pixels = pixel_checkpoint()
    stage = IMAGE + "roi_head_feature_extractor.1.conv2.weight"
    two_heads = {**pixels, stage: pixels[stage] + 1.0}
    return {
        "two heads": (two_heads, "head.0.1.conv2.weight differs from"),
        "text": (b"not a checkpoint", "not a file of torch.save"),
        "empty": (b"", "not a file of torch.save"),
        "code": (
            {"state_dict": vgp, "x": RunsCode()},
            "reading it would run code (`print`); no code was run",
        ),
        "list": ([1, 2], "contains a list without weights"),
        "numbers": ({"state_dict": {"a": 1}}, "entry 'a' is a int"),
        "untied": (untied, "decoder.weight differs from module.vlbert.word_embeddings.weight"),
        "shape": (
            narrow,
            r"layer.1.output.dense.weight has the shape (48, 95), but the configuration expects (48, 96)",
        ),
        "many words": (words, "object_linguistic_embeddings.weight has the shape (81, 48)"),
        "semantic": (wide, "has 4224 columns, expected 4096"),
        "frozen": (frozen, "word_embedding_frozen"),
        "two names": (twice, "and object_linguistic_embeddings.weight are the same key"),
    }


@pytest.mark.parametrize("name", wrong_files())
def test_a_wrong_file_is_refused_in_one_line(convert, name):
    content, message = wrong_files()[name]
    code, printed, error, directory = convert(content)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert "vl-bert.model" in error
    assert "executed" not in printed + error
    assert not directory.exists()
    assert [path.name for path in directory.parent.glob(".*")] == []


def test_a_missing_file_is_refused(convert):
    code, _, error, _ = convert(None)
    assert code == 2
    assert "vl-bert.model: No such file" in error


@pytest.mark.parametrize(
    ("text", "message"),
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
        (None, "No such file"),
    ],
)
def test_a_wrong_config_is_refused(convert, tmp_path, text, message):
    path = tmp_path / "fields.json"
    if text is not None:
        path.write_text(text)
    code, _, error, directory = convert(vgp_checkpoint()[1], "--config", str(path))
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not directory.exists()


def test_an_existing_directory_is_replaced_only_with_force(convert):
    _, state_dict = vgp_checkpoint()
    _, _, _, directory = convert(state_dict)
    old = directory / "model-00001-of-00002.safetensors"
    old.write_text("old")
    code, _, error, _ = convert(state_dict)
    assert code == 2
    assert "or replace it with --force" in error
    assert old.exists()
    code, _, _, _ = convert(state_dict, "--force")
    assert code == 0
    assert not old.exists()


@pytest.mark.parametrize("place", ["vocab.txt", "train.py", "my_runs/results.json"])
def test_files_of_others_in_a_model_directory_are_not_deleted(convert, place):
    _, state_dict = vgp_checkpoint()
    _, _, _, directory = convert(state_dict)
    mine = directory / place
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    code, _, error, _ = convert(state_dict, "--force")
    assert code == 2
    assert f"contains {place.split('/')[0]}, which --force would delete" in error
    assert mine.read_text() == "precious"
    assert (directory / "model.safetensors").is_file()


def test_a_directory_that_is_no_model_is_never_replaced(convert, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    code, _, error, directory = convert(vgp_checkpoint()[1], "--force")
    assert code == 2
    assert "is not a model directory" in error
    assert (directory / "thesis.txt").read_text() == "precious"


def test_conversion_is_deterministic_and_leaves_the_random_state(convert):
    _, state_dict = vgp_checkpoint()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, _ = VL_BERT.build_model(state_dict, {"num_attention_heads": 4})
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    second, _ = VL_BERT.build_model(state_dict, {"num_attention_heads": 4})
    for (name, mine), theirs in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_conversion_shows_its_progress(convert, monkeypatch):
    code, _, errors, _ = convert(pretraining_checkpoint()[1])
    assert code == 0
    assert "tensors: " in errors
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert convert(pretraining_checkpoint()[1], "--force")[::2] == (0, "")
