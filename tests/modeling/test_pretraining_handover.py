# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What each class takes from the checkpoint of another class: source by source, said in one line, saved as its own."""

import json
import logging

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModel, BertForPreTraining, VisualBertForMultipleChoice, VisualBertForPreTraining
from transformers import VisualBertConfig as TheirConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertForMultipleChoice, VLBertForPreTraining, VLBertForVisualQuestionAnswering
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_visualbert import make_model as make_visualbert
from tests.helpers.tiny_vl_bert import make_bert
from tests.helpers.tiny_vl_bert import make_model as make_vl_bert

MAKE = {"vl_bert": make_vl_bert, "visualbert": make_visualbert, "vilbert": make_vilbert, "lxmert": make_lxmert}
PREFIX = {"vl_bert": "vl_bert.", "visualbert": "visual_bert.", "vilbert": "vilbert.", "lxmert": "lxmert."}
# Heads with documented sources in the public code: (family, head) -> here -> there, tensors in modules of these names.
COPIES = {
    ("vl_bert", "vqa"): {"answer_head.transform": "mlm_head.transform"},
    ("vl_bert", "referring_expressions"): {"referring_head.dense": "region_head.dense"},
    ("vl_bert", "multiple_choice"): {"region_class_head.dense": "region_head.dense"},
    ("visualbert", "phrase_grounding"): {"cls": "cls"},
    ("lxmert", "vqa"): {f"answer_head.logit_fc.{layer}": f"answer_head.logit_fc.{layer}" for layer in (0, 2)},
}
TASKS = [(name, head) for name, family in FAMILIES.items() for head in family.heads if head != "pretraining"]


def pretrain(family, path, **fields):
    """A saved pre-training model with every head; no two tensors and no two rows are alike."""
    model = MAKE[family](FAMILIES[family].heads["pretraining"], **fields)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(path, max_shard_size="20KB")
    return model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Family -> directory and weights of a pre-training checkpoint in several shards."""
    made = {}
    for family in MAKE:
        path = tmp_path_factory.mktemp(family)
        fields = {"relationship_head": True} if family == "vl_bert" else {}
        made[family] = path, pretrain(family, path, **fields).state_dict()
        assert len(list(path.glob("*.safetensors"))) > 1
    return made


def expected_source(family, head, name, weights):
    """The tensor that a weight of a task's model is to be, by the public code's rules; None for a new one."""
    if (family, head) == ("vl_bert", "multiple_choice"):
        if name == "vl_bert.embeddings.token_type_embeddings.weight":
            return weights[name][[0, 0, 2]]
        if name.startswith("choice_head.classifier"):
            rows = weights[name.replace("choice_head.classifier", "relationship_head")]
            return rows[1:] - rows[:1]
    if name.startswith(PREFIX[family]):
        return weights[name]
    for here, there in COPIES.get((family, head), {}).items():
        if name.startswith(f"{here}."):
            return weights[there + name.removeprefix(here)]
    return None


@pytest.mark.parametrize(
    "family, head, dtype",
    [*((*task, torch.float32) for task in TASKS), *((family, "vqa", torch.bfloat16) for family in FAMILIES)],
)
def test_every_weight_has_its_documented_source_or_is_new(checkpoints, family, head, dtype):
    path, weights = checkpoints[family]
    model, info = FAMILIES[family].heads[head].from_pretrained(path, dtype=dtype, output_loading_info=True)
    new = set()
    found = {}
    expected = {}
    for name, value in model.state_dict().items():
        source = expected_source(family, head, name, weights)
        if source is None:
            new.add(name)
        else:
            found[name] = value
            expected[name] = source.to(dtype)
    assert_close(found, expected, rtol=0, atol=1e-6 if dtype is torch.float32 else 0.05)
    assert info["missing_keys"] == new
    assert not info["mismatched_keys"]
    assert info["unexpected_keys"] <= set(weights)
    if family == "vl_bert":
        left = any("relationship_head" in name for name in info["unexpected_keys"])
        assert left == (head != "multiple_choice")


@pytest.mark.parametrize("family, head", TASKS)
def test_a_task_checkpoint_is_loaded_and_saved_as_its_own(checkpoints, tmp_path, family, head):
    """Handed over once: the second load is of the same class, and finds every name and value."""
    cls = FAMILIES[family].heads[head]
    model = cls.from_pretrained(checkpoints[family][0])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    again, info = cls.from_pretrained(tmp_path, device_map={"": "cpu"}, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert "handover" not in info
    assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.fixture
def reports(monkeypatch):
    """What transformers' logger prints of loading."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_one_line_says_what_was_taken(checkpoints, reports):
    path, _ = checkpoints["vl_bert"]
    model = VLBertForVisualQuestionAnswering.from_pretrained(path)
    taken = len(model.state_dict()) - len(model.answer_head.classifier.state_dict())
    (line,) = reports
    origin, new, left = line.split("; ")
    assert origin == f"VLBertForVisualQuestionAnswering from {path} (VLBertForPreTraining): took {taken} tensors"
    assert new == "new: answer_head.classifier"
    modules = "masked_region_embedding mlm_head.decoder region_head.classifier region_head.dense region_mask_embedding"
    assert left.removeprefix("left: ").split(", ") == [*modules.split(), "relationship_head", "vl_bert.pooler.dense"]


@pytest.mark.parametrize("family", MAKE)
def test_a_base_model_says_nothing_of_heads_and_names_what_is_missing(checkpoints, family, reports):
    path, weights = checkpoints[family]
    base = AutoModel.from_pretrained(path)
    assert reports == []
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(base.state_dict()[name], weights[PREFIX[family] + name])
    for layers in (3, 1):
        assert AutoModel.from_pretrained(path, num_hidden_layers=layers).config.num_hidden_layers == layers
    deeper, shallower = reports
    assert "; new: encoder.layer.2" in deeper
    assert f"{PREFIX[family]}encoder.layer.1" in shallower.split("; left: ")[1]


def test_heads_of_another_task_are_left_even_under_the_same_name(tmp_path, reports):
    """`cls` is the answer head of one VisualBERT and the choice head of another."""
    heads = FAMILIES["visualbert"].heads
    source = make_visualbert(heads["vqa"], answers=["yes", "no"])
    source.save_pretrained(tmp_path)
    model, info = heads["visual_reasoning"].from_pretrained(tmp_path, output_loading_info=True)
    assert model.cls.weight.shape == source.cls.weight.shape
    assert info["missing_keys"] == info["unexpected_keys"] == {"cls.weight", "cls.bias"}
    assert heads["multiple_choice"].from_pretrained(tmp_path).cls.weight.shape == (1, 24)
    assert [line.split("; ", 1)[1] for line in reports] == ["new: cls; left: cls"] * 2


@pytest.mark.parametrize(
    "cls, head",
    [(VisualBertForPreTraining, "pretraining"), (VisualBertForMultipleChoice, "multiple_choice")],
)
def test_classes_of_other_libraries_are_known_by_their_names(tmp_path, cls, head, reports):
    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    source = cls(TheirConfig(**sizes, intermediate_size=36, visual_embedding_dim=10))
    source.save_pretrained(tmp_path)
    heads = FAMILIES["visualbert"].heads
    weights = heads[head].from_pretrained(tmp_path).state_dict()
    assert reports == []
    theirs = source.state_dict()
    assert_close({name: theirs[name] for name in weights}, dict(weights), rtol=0, atol=0)
    _, info = heads["vqa"].from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {"cls.weight", "cls.bias"}
    assert "position_ids" not in str(info["unexpected_keys"])


def test_a_class_of_ones_own_is_loaded_as_transformers_does(tmp_path):
    class OwnChoice(VLBertForMultipleChoice):
        pass

    model = make_vl_bert(OwnChoice)
    model.save_pretrained(tmp_path)
    loaded, info = VLBertForMultipleChoice.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(loaded.choice_head.classifier.weight, model.choice_head.classifier.weight)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["SomebodysModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, info = VLBertForMultipleChoice.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert "handover" not in info


def test_code_of_a_checkpoint_hands_over_too(checkpoints, tmp_path):
    """As a user without the project loads it."""
    path, weights = checkpoints["vl_bert"]
    config = json.loads((path / "config.json").read_text())
    get_class_from_dynamic_module(config["auto_map"]["AutoConfig"], str(path))  # as AutoConfig does first
    cls = get_class_from_dynamic_module(config["auto_map"]["AutoModelForVisualQuestionAnswering"], str(path))
    assert cls is not VLBertForVisualQuestionAnswering
    model = cls.from_pretrained(path)
    assert torch.equal(model.answer_head.transform.dense.weight, weights["mlm_head.transform.dense.weight"])


@pytest.mark.parametrize("family", MAKE)
def test_a_bert_fills_only_what_the_checkpoint_lacks(tmp_path, family, reports):
    source = pretrain(family, tmp_path / "pretrained", vocab_size=31)
    bert = make_bert(BertForPreTraining, tmp_path / "bert")
    cls = FAMILIES[family].heads["multiple_choice"]
    reports.clear()
    model, info = cls.from_pretrained(tmp_path / "pretrained", bert=str(tmp_path / "bert"), output_loading_info=True)
    expected = source.base_model
    taken = "nothing"
    if family == "vl_bert":
        expected = bert.bert
        taken = "vl_bert.pooler"
    pooler = "t_pooler" if family == "vilbert" else "pooler"
    found = model.base_model.get_submodule(pooler).dense.weight
    assert torch.equal(found, expected.get_submodule(pooler).dense.weight)
    assert torch.equal(model.get_input_embeddings().weight, source.get_input_embeddings().weight)
    assert f"from {tmp_path / 'bert'}: {taken}" in reports[-1]
    assert not any("pooler" in name for name in info["missing_keys"])


@pytest.mark.parametrize("family", MAKE)
def test_a_bert_and_a_checkpoint_that_change_places_are_refused(checkpoints, tmp_path, family):
    path, _ = checkpoints[family]
    cls = FAMILIES[family].heads["multiple_choice"]
    make_bert(BertForPreTraining, tmp_path)
    for place, options in ((tmp_path, {}), (path, {"bert": str(path)})):
        with pytest.raises(ValueError, match=r"family '.*'; expected"):
            cls.from_pretrained(place, **options)


def test_a_bert_of_another_vocabulary_is_refused(checkpoints, tmp_path):
    path, _ = checkpoints["vl_bert"]
    make_bert(BertForPreTraining, tmp_path)
    with pytest.raises(ValueError, match=r"vocab_size is 31 .* but 40"):
        VLBertForMultipleChoice.from_pretrained(path, bert=str(tmp_path))


def test_a_checkpoint_that_holds_nothing_of_the_family(checkpoints, tmp_path):
    model = make_vl_bert(VLBertForPreTraining)
    weights = {f"module.{name}": value.clone() for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(
        ValueError,
        match=r"expected weights of vl_bert, found names such as 'module\..*grounded-attention convert",
    ):
        VLBertForMultipleChoice.from_pretrained(tmp_path)


def test_sizes_that_do_not_fit_may_be_accepted(checkpoints):
    path, _ = checkpoints["vl_bert"]
    given = {"vocab_size": 41, "output_loading_info": True}
    with pytest.raises(ValueError, match=r"word_embeddings.*remove the override"):
        VLBertForMultipleChoice.from_pretrained(path, **given)
    with pytest.raises(TypeError, match="'hidden'"):
        VLBertForMultipleChoice.from_pretrained(path, hidden=48)
    model, info = VLBertForMultipleChoice.from_pretrained(path, ignore_mismatched_sizes=True, **given)
    assert len(model.get_input_embeddings().weight) == 41
    assert "new: region_class_head.classifier, vl_bert.embeddings.word_embeddings" in info["handover"]
