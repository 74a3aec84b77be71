# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What shipped code takes from inside transformers: the installed version has it, and it means the same."""

import ast
import inspect
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.testing import assert_close

from grounded_attention.modeling import VLBertForPreTraining, VLBertForVGP
from grounded_attention.modeling.unpadding import UnpaddedLayer
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vl_bert import make_model

BERT = "models.bert.modeling_bert"
VISUAL = "models.visual_bert.modeling_visual_bert"
LXMERT = "models.lxmert.modeling_lxmert"
RESNET = "models.resnet.modeling_resnet"
CONFIG = SimpleNamespace(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_attention_heads=2,
    max_position_embeddings=9,
    type_vocab_size=2,
    hidden_act="gelu",
    layer_norm_eps=1e-5,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    pad_token_id=0,
    chunk_size_feed_forward=0,
    is_decoder=False,
    add_cross_attention=False,
    visual_embedding_dim=6,
    special_visual_initialize=True,
    visual_feat_dim=6,
    visual_pos_dim=4,
    num_object_labels=5,
    num_attr_labels=3,
    visual_obj_loss=True,
    visual_attr_loss=True,
    visual_feat_loss=True,
    num_channels=3,
    embedding_size=4,
)
X, Y = torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind()


def transform(part, states):
    """Dense layer, GELU, LayerNorm."""
    return part.LayerNorm(F.gelu(part.dense(states)))


def lxmert_words(part, states):
    return F.linear(transform(part.transform, states), part.decoder.weight, part.bias)


def mean_of_both(part, features, boxes):
    return (part.visn_layer_norm(part.visn_fc(features)) + part.box_layer_norm(part.box_fc(boxes))) / 2


def answers(part, pooled):
    first, _, norm, last = part.logit_fc
    return last(norm(F.gelu(first(pooled))))


def aligned(part, queries, keys, mask):
    scores = part.query(queries) @ part.key(keys).transpose(1, 2) / 4**0.5
    return torch.where(mask[:, None] > 0, scores, torch.finfo(torch.float32).min)


def dense_and_norm(part, states, residual):
    return part.LayerNorm(part.dense(states) + residual)


def words(part, states):
    return part.decoder(transform(part.transform, states))


WIDE = X.repeat(1, 1, 2)[..., :12]
MASK = torch.tensor([[1, 0, 1], [1, 1, 1]])
# Class -> what it computes, from its own layers; its inputs.
PARTS = {
    f"{BERT}.BertIntermediate": (lambda part, x: F.gelu(part.dense(x)), X),
    f"{BERT}.BertOutput": (dense_and_norm, WIDE, Y),
    f"{BERT}.BertSelfOutput": (dense_and_norm, X, Y),
    f"{BERT}.BertPooler": (lambda part, x: part.dense(x[:, 0]).tanh(), X),
    f"{BERT}.BertPredictionHeadTransform": (transform, X),
    f"{BERT}.BertLMPredictionHead": (words, X),
    f"{VISUAL}.VisualBertLMPredictionHead": (words, X),
    f"{VISUAL}.VisualBertRegionToPhraseAttention": (aligned, X, Y, MASK),
    f"{LXMERT}.LxmertLMPredictionHead": (lxmert_words, X),
    f"{LXMERT}.LxmertVisualFeatureEncoder": (mean_of_both, X[..., :6], Y[..., :4]),
    f"{LXMERT}.LxmertVisualAnswerHead": (answers, X[:, 0]),
}
# Class -> the weights that it makes, which are those of checkpoints.
TABLES = "word_embeddings position_embeddings token_type_embeddings LayerNorm"
WEIGHTS = {
    f"{BERT}.BertLayer": "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    f"{BERT}.BertEmbeddings": TABLES,
    f"{VISUAL}.VisualBertEmbeddings": f"{TABLES} "
    "visual_token_type_embeddings visual_position_embeddings visual_projection",
    f"{LXMERT}.LxmertEmbeddings": TABLES,
    f"{VISUAL}.VisualBertPreTrainingHeads": "predictions seq_relationship",
    f"{LXMERT}.LxmertPreTrainingHeads": "predictions seq_relationship",
}
# Function -> a call of it: the number of arguments by place, and the names of others.
CALLS = {
    "masking_utils.create_bidirectional_mask": (0, "config inputs_embeds attention_mask encoder_hidden_states"),
    "pytorch_utils.apply_chunking_to_forward": (4, ""),
    "image_processing_utils.get_patch_output_size": (3, ""),
    "image_processing_utils.select_best_resolution": (2, ""),
    "pipelines.pt_utils.PipelineDataset": (3, ""),
    "pipelines.pt_utils.PipelineIterator": (3, "loader_batch_size"),
    "modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface": (2, ""),
    "initialization.constant_": (2, ""),
    "initialization.zeros_": (1, ""),
    "initialization.copy_": (2, ""),
    f"{RESNET}.ResNetBottleNeckLayer": (2, "stride activation downsample_in_bottleneck"),
}
# Only imported, extended or looked up by a name; what they do is tested where they are used.
OTHER = {
    f"{RESNET}.ResNetEmbeddings",
    f"{LXMERT}.LxmertVisualObjHead",
    "activations.ACT2FN",
    "image_processing_utils.BaseImageProcessor",
    "masking_utils.ALL_MASK_ATTENTION_FUNCTIONS",
    "modeling_layers.GradientCheckpointingLayer",
    "modeling_utils.ALL_ATTENTION_FUNCTIONS",
    "modeling_utils.PreTrainedModel",
    "models.auto.image_processing_auto.AutoImageProcessor",
    "models.auto.modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "models.auto.modeling_auto.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES",
    "models.auto.modeling_auto.MODEL_MAPPING",
    "pipelines.PIPELINE_REGISTRY",
    "pipelines.base.Pipeline",
    "processing_utils.ProcessorMixin",
    "processing_utils.Unpack",
    "utils.ModelOutput",
    "utils.TransformersKwargs",
    "utils.auto_docstring",
    "utils.generic.can_return_tuple",
    "utils.generic.merge_with_config_defaults",
    "utils.logging",
    "utils.output_capturing.capture_outputs",
}


def find(name):
    place, _, last = name.rpartition(".")
    try:
        return getattr(import_module(f"transformers.{place}"), last)
    except ModuleNotFoundError:
        return getattr(find(place), last)


def build(name, *arguments):
    torch.manual_seed(0)
    return find(name)(CONFIG, *arguments).eval()


def assert_says(condition, name, expected):
    assert condition, f"transformers {transformers.__version__}: {name} is not as the models use it: {expected}"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_computes_what_the_models_mean(name):
    formula, *inputs = PARTS[name]
    part = build(name, 7) if name.endswith("AnswerHead") else build(name)
    assert_close(part(*inputs), formula(part, *inputs), msg=lambda text: f"{name}: {text}")


def test_the_object_head_gives_scores_by_name():
    part = build(f"{LXMERT}.LxmertVisualObjHead")
    found = {key: scores.shape for key, scores in part(X).items()}
    assert found == {"obj": (2, 3, 5), "attr": (2, 3, 3), "feat": (2, 3, 6)}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_part_has_the_weights_of_checkpoints(name):
    found = {key.rpartition(".")[0] for key in build(name).state_dict()}
    if name.endswith("Heads"):
        found = {key.partition(".")[0] for key in found}
    expected = set(WEIGHTS[name].split())
    assert_says(found == expected, name, f"expected weights {sorted(expected)}, found {sorted(found)}")


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_the_arguments_that_it_gets(name):
    places, names = CALLS[name]
    try:
        inspect.signature(find(name)).bind(*range(places), **dict.fromkeys(names.split()))
    except TypeError as error:
        pytest.fail(f"transformers {transformers.__version__}: {name}: {error}")


def test_blocks_of_the_pixel_network_have_their_parts():
    block = find(f"{RESNET}.ResNetBottleNeckLayer")(3, 8, stride=2, downsample_in_bottleneck=True)
    for layer in block.layer:
        assert isinstance(layer.convolution, torch.nn.Conv2d)
        assert isinstance(layer.normalization, torch.nn.BatchNorm2d)
    assert [layer.convolution.stride[0] for layer in block.layer] == [2, 1, 1]


def test_a_layer_of_bert_computes_the_same():
    """BERT's own layer, with its weights, against ours: eager attention, and every column visible."""
    config = transformers.BertConfig(**{**vars(CONFIG), "num_hidden_layers": 1}, attn_implementation="eager")
    torch.manual_seed(0)
    theirs = transformers.BertModel(config).eval()
    ours = UnpaddedLayer(config, 0).eval()
    ours.load_state_dict(theirs.encoder.layer[0].state_dict())
    expected = theirs(inputs_embeds=X, output_hidden_states=True)
    assert_close(ours(expected.hidden_states[0]), expected.last_hidden_state)


def test_a_loaded_class_says_what_is_new_and_no_table_is_printed(tmp_path, caplog):
    """The handover reads transformers' loading info, and holds its table back by its heading."""
    make_model(VLBertForPreTraining).save_pretrained(tmp_path)
    logger = transformers.utils.logging.get_logger("transformers.modeling_utils")
    logger.addHandler(caplog.handler)
    try:
        transformers.BertModel.from_pretrained(tmp_path, config=transformers.BertConfig(num_hidden_layers=1))
        assert_says("LOAD REPORT" in caplog.text, "the table of missing weights", "expected 'LOAD REPORT' in it")
        caplog.clear()
        _, info = VLBertForVGP.from_pretrained(tmp_path, output_loading_info=True)
    finally:
        logger.removeHandler(caplog.handler)
    assert {"missing_keys", "unexpected_keys", "mismatched_keys"} <= {*info}
    assert "LOAD REPORT" not in caplog.text


def test_every_inner_name_that_is_shipped_has_a_contract():
    """A name from the top of transformers is public; others are in one of the lists above."""
    found = set()
    for path in (*ROOT.glob("modeling/*.py"), *ROOT.glob("processing/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers."):
                found |= {f"{node.module.removeprefix('transformers.')}.{alias.name}" for alias in node.names}
    known = {*PARTS, *WEIGHTS, *CALLS, *OTHER}
    assert found <= known, f"no contract for {sorted(found - known)}: add one here, or write the lines yourself"
    inner = {name for name in known - found if not name.startswith(("initialization.", "modeling_utils.ALL_"))}
    assert not inner, f"not used any more: {sorted(inner)}"
