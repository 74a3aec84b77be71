# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the converters of all families refuse, and what they say that they assumed."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grounded_attention.commands.convert import main
from grounded_attention.conversion.fast_rcnn import FAST_RCNN
from grounded_attention.conversion.fields import CheckpointError
from grounded_attention.conversion.visualbert import VISUALBERT
from grounded_attention.conversion.vl_bert import VL_BERT
from grounded_attention.modeling import (
    VisualBERTConfig,
    VisualBERTForPreTraining,
    VisualBERTForVisualQuestionAnswering,
    VLBertForVGP,
)
from tests.conversion.conftest import HEADS
from tests.conversion.key_lists import read_key_list
from tests.conversion.resnet_checkpoints import make_resnet_checkpoint
from tests.helpers.vl_bert_checkpoints import (
    TINY,
    image_checkpoint,
    pixel_checkpoint,
    pretraining_checkpoint,
    vgp_checkpoint,
    without,
)
from tests.helpers.vl_bert_reference import list_shapes, list_task_shapes

# Our names of VisualBERT -> those of the public code, from the longest on.
ORIGINAL_NAMES = {
    "visual_bert.embeddings.visual_token_type_embeddings": "bert.embeddings.token_type_embeddings_visual",
    "visual_bert.embeddings.visual_position_embeddings": "bert.embeddings.position_embeddings_visual",
    "visual_bert.embeddings.visual_projection": "bert.embeddings.projection",
    "visual_bert.": "bert.",
}


def visualbert_checkpoint(model_class=VisualBERTForPreTraining, hidden=24):
    sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = VisualBERTConfig(vocab_size=31, max_position_embeddings=16, visual_embedding_dim=8, num_labels=5, **sizes)
    state_dict = {}
    for key, value in model_class(config).state_dict().items():
        for ours, theirs in ORIGINAL_NAMES.items():
            key = key.replace(ours, theirs)
        if model_class is VisualBERTForVisualQuestionAnswering and key.startswith("cls."):
            key = key.replace("cls.", "classifier.")
        state_dict[f"bert.{key}"] = value
    return state_dict


def vgp():
    return vgp_checkpoint()[1]


def heads_of(family):
    return {} if family is FAST_RCNN else HEADS


# -- depth and heads


def as_wide(layers, hidden=768, **sizes):
    """A checkpoint of public width whose tensors take no memory."""
    shapes = list_shapes(hidden=hidden, layers=layers, intermediate=8, vocab=9, positions=5, classes=3, **sizes)
    return {f"module.{key}": torch.zeros(()).expand(shape) for key, shape in shapes.items()}


@pytest.mark.parametrize("hidden, layers, heads", [(768, 12, 12), (1024, 24, 16)])
def test_public_widths_determine_depth_and_heads(hidden, layers, heads):
    fields = VL_BERT.read_fields(VL_BERT.convert_state_dict(as_wide(layers, hidden)), {})
    assert fields.assumed["num_attention_heads"] == heads
    assert fields.read["num_hidden_layers"] == layers
    shallow = VL_BERT.convert_state_dict(as_wide(layers - 1, hidden))
    with pytest.raises(CheckpointError, match=f"num_hidden_layers {layers - 1}, but .* have {layers}: .*are missing"):
        VL_BERT.read_fields(shallow, {})
    fields = VL_BERT.read_fields(shallow, {"num_hidden_layers": layers - 1})
    assert fields.values()["num_hidden_layers"] == layers - 1


def test_a_resnet_of_public_width_without_its_last_block_is_refused():
    content = as_wide(12, end_to_end=True)
    conversion = VL_BERT.convert_state_dict(without(content, "backbone.layer3.22."))
    with pytest.raises(CheckpointError, match=r"depths \[3, 4, 22, 3\]"):
        VL_BERT.read_fields(conversion, {})
    vision = VL_BERT.read_fields(VL_BERT.convert_state_dict(content), {}).nested["vision_config"]
    assert vision.read["depths"][2] == 23


def test_the_command_prints_what_was_assumed(convert):
    directory, printed = convert("vl_bert", vgp())
    rows = [tuple(part.strip() for part in line.split("  ", 1)) for line in printed.splitlines()]
    read = " ".join(text for label, text in rows if label == "read")
    for field in ("vocab_size 120", "hidden_size 48", "intermediate_size 96", "num_hidden_layers 3", "visual_size 48"):
        assert field in read
    assert "counted in the keys; the file does not show whether its last layers are missing" in read
    assert ("--config", "num_attention_heads 4") in rows
    assumed = dict(rows)["assumed"]
    assert 'coordinate_embedding "center"' in assumed
    assert "position_offset 0" in assumed
    account = json.loads((directory / "conversion.json").read_text())["config"]
    saved = json.loads((directory / "config.json").read_text())
    assert account["given"] == HEADS
    assert account["assumed"]["coordinate_dim"] == 256
    saved |= {"num_identification_labels": 3, "num_vgp_labels": 5}
    for source in ("read", "given", "assumed"):
        assert account[source].items() <= saved.items()


def wide_vl_bert():
    return image_checkpoint(list_shapes(**{**TINY, "hidden": 64}))


@pytest.mark.parametrize(
    "family, make", [("vl_bert", wide_vl_bert), ("visualbert", lambda: visualbert_checkpoint(hidden=64))]
)
def test_the_number_of_heads_is_never_guessed_silently(refused, family, make):
    """Hidden size 64 with 8 heads: 64 is a multiple of any usual head size, 64 itself among them."""
    assert 'give --config a file with {"num_attention_heads": ...}' in refused(family, make(), config="{}")


@pytest.mark.parametrize(
    "family, make, gap, ours",
    [
        ("vl_bert", vgp, "vlbert.encoder.layer.1.", "vl_bert.encoder.layer.1."),
        ("vl_bert", pixel_checkpoint, "backbone.layer3.1.", "vl_bert.vision_model.stages.2.1."),
        ("visualbert", visualbert_checkpoint, "bert.bert.encoder.layer.0.", "visual_bert.encoder.layer.0."),
        ("fast_rcnn", make_resnet_checkpoint, "layer4.0.", "head.0."),
    ],
)
def test_gaps_are_refused(refused, family, make, gap, ours):
    assert f"becomes {ours}" in refused(family, without(make(), gap))


def test_a_missing_tail_is_refused_where_the_depth_is_known(refused):
    error = refused("vl_bert", without(vgp(), "encoder.layer.2."), num_hidden_layers=3)
    assert "gives num_hidden_layers 3, but the tensors of the file have 2" in error
    assert "fields.json" in error


def test_the_two_copies_of_the_last_stage_determine_its_depth(refused):
    error = refused("vl_bert", without(pixel_checkpoint(), "roi_head_feature_extractor.1."))
    assert "module.image_feature_extractor.head.0.1." in error
    assert "differs from image_feature" in error


# -- keys


FAMILIES = {
    "VL-BERT pre-training": (VL_BERT, lambda: pretraining_checkpoint()[1]),
    "VL-BERT end to end": (VL_BERT, lambda: image_checkpoint(list_shapes(**SHALLOW))),
    "VL-BERT VGP": (VL_BERT, vgp),
    "VL-BERT VQA": (VL_BERT, lambda: image_checkpoint(list_task_shapes("vqa", answers=7, **TINY))),
    "VL-BERT RefCOCO": (VL_BERT, lambda: image_checkpoint(list_task_shapes("refcoco", **TINY))),
    "VL-BERT VCR": (VL_BERT, lambda: image_checkpoint(list_task_shapes("vcr", **TINY))),
    "VisualBERT": (VISUALBERT, visualbert_checkpoint),
    "VisualBERT VQA": (VISUALBERT, lambda: visualbert_checkpoint(VisualBERTForVisualQuestionAnswering)),
    "ResNet": (FAST_RCNN, make_resnet_checkpoint),
}
SHALLOW = {**TINY, "layers": 1, "end_to_end": True, "widths": (4, 8, 8, 8, 16), "depths": (1, 1, 1, 1)}
# Tied to the words or the bias, a counter, or the classifier of another training.
NOT_NEEDED = ("decoder.weight", "predictions.decoder.bias", "num_batches_tracked", "aux_text_visual_embedding.weight")


@pytest.mark.parametrize("name", FAMILIES)
def test_no_tensor_may_be_missing(name):
    """Every key of a layer alone: without it the file is refused by its name here, unless it is optional.

    Keys of the words and layers that all checkpoints of a family share are those of the first one.
    """
    family, make = FAMILIES[name]
    content = make()
    places = family.convert_state_dict(content).converted
    first = next(other for other in FAMILIES if FAMILIES[other][0] is family)
    known = set() if name == first else {*FAMILIES[first][1]()}
    for key in {re.sub(r"encoder\.layer\.\d+", "", key): key for key in content if key not in known}.values():
        rest = dict(content)
        del rest[key]
        if key.endswith(NOT_NEEDED) or ".head.0." in key or key.startswith("fc."):
            family.build_model(rest, heads_of(family))
            continue
        ours = re.sub(r"(layer\.\d+)\..*", r"\1", places[key])
        theirs = key.rpartition(".")[0].removeprefix("module.")
        with pytest.raises(CheckpointError, match=f"{re.escape(ours)}|{re.escape(theirs)}"):
            family.build_model(rest, heads_of(family))


def test_superfluous_keys_are_named_or_refused(convert, refused):
    bias = "module.vlbert.encoder.layer.0.attention.self.distances.weight"
    error = refused("vl_bert", {**vgp(), bias: torch.zeros(2)})
    assert f"has {bias}, which VLBertForVGP does not have" in error
    _, printed = convert("vl_bert", {**vgp(), "module.new_head.weight": torch.zeros(2)})
    assert "1 tensors: unknown key, which the public code does not have (module.new_head.weight)" in printed


# -- numbers


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "family, make, key",
    [
        ("vl_bert", vgp, "module.vlbert.encoder.layer.1.output.dense.bias"),
        ("vl_bert", pixel_checkpoint, "module.image_feature_extractor.backbone.bn1.running_var"),
        ("visualbert", visualbert_checkpoint, "bert.cls.predictions.transform.dense.weight"),
        ("fast_rcnn", make_resnet_checkpoint, "layer2.0.conv1.weight"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(refused, family, make, key, number):
    content = make()
    content[key] = content[key].clone()
    content[key].view(-1)[:3] = number
    assert f"{key} has 3 NaN or infinite numbers, of {content[key].numel()}" in refused(family, content)


@pytest.mark.parametrize(
    "family, make, key",
    [
        ("vl_bert", vgp, "module.vlbert.encoder.layer.1.output.dense.bias"),
        ("fast_rcnn", make_resnet_checkpoint, "layer2.0.conv1.weight"),
    ],
)
def test_whole_numbers_are_refused(refused, family, make, key):
    content = make()
    content[key] = content[key].long()
    assert f"{key} has dtype torch.int64" in refused(family, content)


@pytest.mark.parametrize("name", FAMILIES)
def test_tensors_of_other_dimensions_are_refused(name):
    family, make = FAMILIES[name]
    content = make()
    sizes = ("word_embeddings.weight", "obj_downsample.1.weight", "projection.weight", "conv1.weight", "conv3.weight")
    for key in content:
        if ".head.0." in key or not key.endswith((*sizes, "classifier.weight", "phrasal_cls.1.weight")):
            continue
        for shape in ((), (3,), (1, 1, 1)):
            with pytest.raises(CheckpointError, match=f"{key}.* has the shape|differs from .*{key}"):
                family.build_model({**content, key: torch.zeros(shape)}, heads_of(family))


# -- --config


@pytest.mark.parametrize(
    "family, make, field, value, message",
    [
        ("fast_rcnn", make_resnet_checkpoint, "depth", [1], "unknown configuration field depth"),
        ("fast_rcnn", make_resnet_checkpoint, "embedding_size", 8, "gives embedding_size 8, but the tensors"),
        ("visualbert", visualbert_checkpoint, "heads", 4, "unknown configuration field heads"),
        ("visualbert", visualbert_checkpoint, "hidden_size", 32, "gives hidden_size 32, but the tensors"),
        ("visualbert", visualbert_checkpoint, "num_hidden_layers", 1, "gives num_hidden_layers 1, but the tensors"),
        ("visualbert", visualbert_checkpoint, "region_feature_size", 9, "gives visual_embedding_dim 9, but"),
        ("visualbert", visualbert_checkpoint, "id2label", 3, "is inconsistent"),
        ("vl_bert", vgp, "num_hidden_layers", 1, "gives num_hidden_layers 1, but"),
        ("vl_bert", vgp, "grounding_head", True, "gives grounding_head True, but"),
        ("vl_bert", vgp, "num_attention_heads", 0, "expected a positive number"),
        ("vl_bert", vgp, "num_attention_heads", -4, "expected a positive number"),
        ("vl_bert", vgp, "num_attention_heads", "4", "is inconsistent"),
        ("vl_bert", vgp, "model_type", "visualbert", "has model_type 'visualbert'"),
        ("vl_bert", vgp, "hidden_act", "a", "cannot make a model of this configuration (KeyError: 'a')"),
        ("vl_bert", vgp, "coordinate_dim", "a", "is inconsistent"),
        ("vl_bert", pixel_checkpoint, "vision_config", {"depths": [1, 1, 1, 1]}, "gives depths [1, 1, 1, 1], but"),
    ],
)
def test_fields_that_are_unknown_or_contradict_the_file_are_refused(refused, family, make, field, value, message):
    error = refused(family, make(), **{field: value})
    assert message in error
    assert "with --config" in error
    assert "fields.json" in error


def test_a_written_configuration_can_be_given_again(convert):
    directory, _ = convert("vl_bert", pixel_checkpoint())
    written = (directory / "config.json").read_text()
    convert("vl_bert", pixel_checkpoint(), "--force", config=written)
    assert json.loads((directory / "config.json").read_text()) == json.loads(written)


# -- the wrong family, or no original file


OTHERS = {
    "module.bert.encoder.x_layers.0.visual_attention.att.key.bias": "an LXMERT check",
    "module.lxrt_encoder.model.bert.encoder.x_layers.0.a": "use `convert lxmert`",
    "lxmert.encoder.x_layers.0.a": "an LXMERT checkpoint of transformers",
    "bert.encoder.c_layer.0.a bert.encoder.layer.0.a": "a ViLBERT checkpoint",
    "uniter.img_embeddings.img_linear.weight": "a UNITER checkpoint",
    "visual_bert.embeddings.visual_token_type_embeddings.weight": "transformers, not VL-BERT: it needs no conversion",
    "bert.encoder.layer.0.output.dense.bias": "a BERT checkpoint",
    "vl_bert.embeddings.end_embedding.weight": "it is converted already",
}


@pytest.mark.parametrize("keys", OTHERS)
def test_another_family_is_named(refused, keys):
    assert OTHERS[keys] in refused("vl_bert", dict.fromkeys(keys.split(), torch.zeros(2)))


@pytest.mark.parametrize(
    "family, make, message",
    [
        ("vl_bert", visualbert_checkpoint, "a VisualBERT checkpoint, not VL-BERT: use `convert visualbert`"),
        ("vl_bert", make_resnet_checkpoint, "a ResNet checkpoint, not VL-BERT: use `convert fast_rcnn`"),
        ("visualbert", vgp, "a VL-BERT checkpoint, not VisualBERT: use `convert vl_bert`"),
        ("fast_rcnn", vgp, "this VL-BERT checkpoint has no pixel network"),
        ("fast_rcnn", visualbert_checkpoint, "a VisualBERT checkpoint, not ResNet"),
    ],
)
def test_each_converter_names_the_others(refused, family, make, message):
    assert message in refused(family, make())


@pytest.mark.parametrize(
    "name, title",
    [
        ("lxmert_pretrain", "LXMERT"),
        ("vilbert_pretrain_6l6c", "ViLBERT"),
        ("vilbert_tasks_6l6c", "ViLBERT"),
        ("vilbert_tasks_6l6c_tasktoken", "ViLBERT"),
        ("vilbertbeta_tasks_6l6c", "ViLBERT"),
    ],
)
def test_original_key_lists_of_other_families_are_recognised(shared, name, title):
    for family in (VL_BERT, VISUALBERT, FAST_RCNN):
        with pytest.raises(CheckpointError, match=f"looks like an? {title} .*use `convert {title.lower()}`"):
            family.convert_state_dict(read_key_list(shared, name))


def test_directories_and_safetensors_are_named(tmp_path, capsys):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "lxmert"}')
    save_file({"lxmert.encoder.x_layers.0.bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "theirs": "a model directory of the transformers format (model_type 'lxmert' in its config.json)",
        "model.safetensors": "this looks like an LXMERT checkpoint of transformers; it needs no conversion",
        "empty": "a directory, expected one file of the original code",
    }.items():
        assert main(["vl_bert", "--checkpoint", str(tmp_path / name), "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert str(tmp_path / name) in error
        assert error.count("\n") == 1


# -- pickles that run code


class CallsSystem:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return (os.system, (self.command,))


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle 0", "pickle 2"])
def test_a_pickle_that_runs_code_is_called_so(tmp_path, capfd, kind):
    path = tmp_path / "original.model"
    trace = tmp_path / "trace"
    call = CallsSystem(f"touch {trace}")
    if kind.startswith("pickle"):
        path.write_bytes(pickle.dumps(call, protocol=int(kind[-1])))
    else:
        torch.save({"a": torch.zeros(2), "b": call}, path, _use_new_zipfile_serialization=kind == "zip")
    assert main(["vl_bert", "--checkpoint", str(path), "--output", str(tmp_path / "out")]) == 2
    error = capfd.readouterr().err
    assert f"{path}: reading it would run code (`posix.system`); no code was run" in error
    assert error.count("error: ") == 1
    assert "Traceback" not in error
    assert not trace.exists()


# -- files


def test_the_file_is_named_whatever_it_is_called(tmp_path, monkeypatch, capsys):
    """A name that stands in other words too: `e` is in every message."""
    monkeypatch.chdir(tmp_path)
    torch.save(without(vgp(), "end_embedding"), "e")
    Path("c").write_text(json.dumps(HEADS))
    for output in ("o", "e-out"):
        assert main(["vl_bert", "--checkpoint", "e", "--output", output, "--config", "c"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "error: e: nothing in the file becomes vl_bert.embeddings.end_embedding.weight" in error
    Path("c").write_text('{"a": 1}')
    assert main(["vl_bert", "--checkpoint", "e", "--output", "o", "--config", "c"]) == 2
    assert "error: e with --config c: --config has the unknown" in capsys.readouterr().err.splitlines()[-1]


def test_a_failed_replacement_leaves_the_old_model(convert, run_convert, monkeypatch):
    directory, _ = convert("vl_bert", vgp())
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    replace = os.replace

    def fail(source, target):
        if Path(source).name == "new":
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    code, _, errors, _ = run_convert("vl_bert", vgp(), "--force")
    assert code == 2
    assert "No space left on device" in errors
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert not list(directory.parent.glob(".*"))


def test_inputs_inside_the_output_are_not_deleted(convert, tmp_path, capsys):
    directory, _ = convert("vl_bert", vgp())
    inside = directory / "original.model"
    torch.save(vgp(), inside)
    paths = ["--checkpoint", str(inside), "--output", str(directory), "--config", str(tmp_path / "fields.json")]
    assert main(["vl_bert", *paths, "--force"]) == 2
    assert f"contains {inside}, which --force would delete" in capsys.readouterr().err
    assert inside.is_file()
    assert VLBertForVGP.from_pretrained(directory)
