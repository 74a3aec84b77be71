# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Contributions to logits against plain loops over eager attention, and their sums against logits."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from torch.testing import assert_close

from grounded_attention.heads.reading import inputs_on
from grounded_attention.lens.contributions import contributions, find_decoder, read_path
from grounded_attention.lens.exchanges import ready
from grounded_attention.lens.look import look
from grounded_attention.lens.sequences import add_answer, read_prompt
from grounded_attention.supervision.supervise import hides_later_words, reads_image_apart
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, type_of

TEXT = "what is the small cat near two red balls ?"
ANSWER = "the red cat"
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
LLAVA = make_pair("llava")
# Of each the layers are written out below: a norm before (LLaVA, Qwen, InternVL) or also after attention (Gemma 3),
# grouped heads, sliding windows (Gemma 3), a factor of the residual (Granite), linear attention between (Qwen 3.5),
# experts (Qwen3-VL-MoE), limits of logits and gates.
LOOPS = ("llava", "qwen2_5_vl", "qwen3_vl", "gemma3", "internvl", "mistral3", "qwen3_5", "granite_docling")
FAMILIES = [name for name in PROCESSORS if type_of(name) == name]
SUMMED = ("llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl")
SUMMED += ("mistral3", "idefics3", "smolvlm", "vipllava", "video_llava", "got_ocr2", "lighton_ocr", "kimi_k25")
REFUSED = ("qwen4_exp", "hy_v4_vl", "inkling2", "inkling_mm_model")


def sequence_of(family, pair=None):
    """Model, sequence, rows before the words that are no image tokens, and the tokens that follow them."""
    model, patches = ready(*(pair or make_pair(family)))
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    ids = patches.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    whole = add_answer(model, patches.tokenizer, prompt, ids)
    images = {*prompt.batch["region_positions"][0].tolist()}
    rows = sorted({row - 1 for word in whole.words for row in word.rows} - images)
    return model, whole, rows, whole.inputs["input_ids"][0][[row + 1 for row in rows]]


def read(model, whole, rows, tokens, heads=()):
    reader = read_path(model, whole.inputs, whole.prompt_length, rows, whole.batch["region_positions"][0])
    return contributions(model, reader, rows, reader.unembedding(model).directions(tokens), heads)


class Recorded:
    """What modules of an eager pass took and gave, by the module."""

    def __init__(self, model, whole):
        self.outputs = {}
        self.inputs = {}
        handles = [module.register_forward_hook(self.keep) for module in model.modules()]
        model.set_attn_implementation("eager")
        with torch.no_grad():
            self.result = model(**inputs_on(whole.inputs, model), output_attentions=True, use_cache=False)
        model.set_attn_implementation("sdpa")
        for handle in handles:
            handle.remove()

    def keep(self, module, args, output):
        self.outputs[module] = output[0] if isinstance(output, tuple) else output
        self.inputs[module] = args[0] if args else None


def frozen(norm, given, gave, change):
    """What a change of the input of a root-mean-square norm adds to its output, with its statistic as it was."""
    factor = (given.square().mean(-1, keepdim=True)).rsqrt()
    weight = gave / (given * factor)
    return weight * factor * change


def by_loops(model, whole, rows, tokens, heads=None):
    """(Q, N): each contribution by itself, from eager maps and the outputs of modules."""
    seen = Recorded(model, whole)
    text = find_decoder(model)
    config = text.config
    multiplier = getattr(config, "residual_multiplier", 1.0)
    unembedding = model.get_output_embeddings().weight / getattr(config, "logits_scaling", 1.0)
    total = torch.zeros(len(rows), whole.inputs["input_ids"].shape[1])
    attending = [layer for layer in text.layers if hasattr(layer, "self_attn")]
    maps = [each for each in seen.result.attentions if each is not None]
    for layer, attention in zip(attending, maps, strict=True):
        number = layer.self_attn.layer_idx
        groups = config.num_key_value_heads
        width = layer.self_attn.head_dim
        values = seen.outputs[layer.self_attn.v_proj][0].unflatten(-1, (groups, width))
        shared = config.num_attention_heads // groups
        into = layer.self_attn.o_proj.weight.unflatten(-1, (config.num_attention_heads, width))
        for place, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            gate = torch.ones(config.num_attention_heads, width)
            if number in gated(config):
                both = seen.outputs[layer.self_attn.q_proj][0, row].view(config.num_attention_heads, 2 * width)
                gate = both[:, width:].sigmoid()
            for head in range(config.num_attention_heads):
                if heads is not None and (number, head) not in heads:
                    continue
                written = gate[head] * values[:, head // shared]  # (N, d)
                written = attention[0, head, row, :, None] * (written @ into[:, head].T)
                after = getattr(layer, "post_attention_layernorm", None)
                if hasattr(layer, "pre_feedforward_layernorm"):
                    written = frozen(after, seen.inputs[after][0, row], seen.outputs[after][0, row], written)
                last = frozen(
                    text.norm, seen.inputs[text.norm][0, row], seen.outputs[text.norm][0, row], multiplier * written
                )
                total[place] += last @ unembedding[token]
    return total


def gated(config):
    """Layers whose attention has a gate before its output projection (Qwen 3.5)."""
    return range(config.num_hidden_layers) if "qwen3_5" in config.model_type else ()


@pytest.mark.parametrize("family", LOOPS)
def test_contributions_equal_plain_loops(family):
    model, whole, rows, tokens = sequence_of(family)
    with torch.no_grad():
        expected = by_loops(model, whole, rows, tokens)
    assert_close(read(model, whole, rows, tokens), expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().max() > 1e-3


def test_some_heads_alone_equal_plain_loops():
    model, whole, rows, tokens = sequence_of("gemma3")
    with torch.no_grad():
        expected = by_loops(model, whole, rows, tokens, heads=[(0, 1), (1, 0)])
    assert_close(read(model, whole, rows, tokens, heads=[(0, 1), (1, 0)]), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", SUMMED)
def test_contributions_and_the_rest_add_up_to_the_logit(family):
    """The rest: embeddings, feed-forward layers and biases, which no attention function gave."""
    model, whole, rows, tokens = sequence_of(family)
    added = read(model, whole, rows, tokens)
    seen = Recorded(model, whole)
    text = find_decoder(model)
    rest = seen.inputs[text.layers[0].input_layernorm][0]
    for layer in text.layers:
        rest = rest + seen.outputs[layer.mlp].view(1, *rest.shape)[0]
        bias = layer.self_attn.o_proj.bias
        if bias is not None:
            rest = rest + bias
    norm = text.norm
    with torch.no_grad():
        last = frozen(norm, seen.inputs[norm][0, rows], seen.outputs[norm][0, rows], rest[rows])
        remainder = (last * model.get_output_embeddings().weight[tokens]).sum(-1)
    logits = seen.result.logits[0, rows].gather(1, tokens[:, None])[:, 0]
    assert_close(added.sum(-1) + remainder, logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_or_refused(family):
    """Logits by the kept states are those of the model, and later positions add nothing."""
    model, whole, rows, tokens = sequence_of(family)
    if family in REFUSED or reads_image_apart(model):
        with pytest.raises(ValueError, match="take another form"):
            read(model, whole, rows, tokens)
        return
    added = read(model, whole, rows, tokens)
    for of_row, row in zip(added, rows, strict=True):
        assert of_row[: row + 1].abs().max() > 0
        assert hides_later_words(model) is False or not of_row[row + 1 :].any()
    reader = read_path(model, whole.inputs, whole.prompt_length, rows, whole.batch["region_positions"][0])
    with torch.no_grad():
        logits = model(**inputs_on(whole.inputs, model), use_cache=False).logits[0, rows].float()
    seen = logits > -1e9  # some forbid the tokens of images
    assert_close(reader.unembedding(model).logits(reader.states(rows))[seen], logits[seen], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "qwen3_5", "lfm2_vl"])
def test_look_reads_the_same_beside_the_answer_and_in_a_further_pass(family):
    model, processor = make_pair(family)
    answered = look(model, processor, PICTURE, TEXT, form="contribution", max_new_tokens=5)
    again = look(model, processor, PICTURE, TEXT, form="contribution", num_beams=2, max_new_tokens=5)
    given = look(model, processor, PICTURE, TEXT, form="contribution", answer=answered.answer)
    count = len([word for word in given.words if not word.answer])
    assert again.form == ("contribution",)
    assert_allclose(answered.contributions[:count], given.contributions[:count], atol=1e-5)
    assert answered.rows == "before"
    assert (answered.attention >= 0).all() and (answered.share <= 1.0001).all()


def test_a_contrast_is_the_difference_of_two_words():
    model, whole, rows, tokens = sequence_of("llava", LLAVA)
    lens = look(*LLAVA, PICTURE, TEXT, answer=ANSWER, form="contribution", against={"cat": "balls"})
    place = max(number for number, word in enumerate(lens.words) if word.text == "cat")
    cat, balls = LLAVA[1].tokenizer.convert_tokens_to_ids(["cat", "balls"])
    assert tokens[-1] == cat
    of_cat, of_balls = (read(model, whole, rows[-1:], torch.tensor([token]))[0] for token in (cat, balls))
    columns = whole.batch["region_positions"][0]
    assert_allclose(lens.contributions[place], (of_cat - of_balls)[columns].numpy(), atol=1e-6)
    assert not np.allclose(lens.contributions[place], of_cat[columns].numpy(), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"form": "contribution,sinks"}, "alone"),
        ({"form": "plain", "against": {"red": "blue"}}, "contribution"),
        ({"form": "contribution", "against": {"dog": "blue"}}, "'dog'"),
        ({"form": "contribution", "against": {"red": "red"}}, "the same tokens"),
    ],
)
def test_what_cannot_be_read_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        look(*LLAVA, PICTURE, TEXT, answer=ANSWER, **options)


def test_contribution_is_the_default_where_heads_are_not_named(caplog):
    lens = look(*LLAVA, PICTURE, TEXT, answer=ANSWER)
    assert_allclose(
        lens.attention, look(*LLAVA, PICTURE, TEXT, answer=ANSWER, form="contribution").attention, atol=1e-6
    )
    assert lens.form == ("contribution",)
    assert look(*LLAVA, PICTURE, TEXT, answer=ANSWER, heads=[(1, 2)]).form == ("plain",)
    pair = make_pair("inkling2")
    attention = look(*pair, PICTURE, TEXT, answer=ANSWER)
    assert attention.form == ("plain",)
    assert "form='plain'" in caplog.text
    assert_allclose(attention.attention, look(*pair, PICTURE, TEXT, answer=ANSWER, form="plain").attention, atol=1e-6)


@pytest.mark.parametrize("answer", [None, "a small cat"])
@pytest.mark.parametrize("family", ["mllama", *ANSWERERS])
def test_attention_is_shown_where_words_read_the_image_apart(family, answer, caplog):
    model, processor = make_pair(family)
    others = [*processor.tokenizer.added_tokens_decoder, *range(len(processor.tokenizer), 1400)]
    others += processor.tokenizer.convert_tokens_to_ids([*".,:?\n"])
    options = {"max_new_tokens": 3, "min_new_tokens": 3, "suppress_tokens": others}
    lens = look(model, processor, PICTURE, TEXT, answer=answer, **options)
    assert lens.form == ("plain",)
    assert (lens.share > 0).all()
    assert caplog.text.count("cross-attention") == 1
    with pytest.raises(ValueError, match="cross-attention"):
        look(model, processor, PICTURE, TEXT, answer=answer, form="contribution", **options)
