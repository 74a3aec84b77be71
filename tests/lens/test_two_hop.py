# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The two-hop map of Saliency-R1: against recorded numbers, and by loops over eager attention."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from grounded_attention.lens.contributions import HeadPath, PathReader, contributions, find_decoder
from grounded_attention.lens.look import look
from grounded_attention.lens.sequences import add_answer, generate_and_read, read_prompt
from grounded_attention.lens.two_hop import find_reasoning, join_hops
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import head_layers
from tests.helpers.tiny_vlm_models import make_pair

PARITY = Path(__file__).parents[3] / "shared/parity/explanations.pt"
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
CASES = [f"saliency_{name}" for name in ("random_wide_0", "random_tall_0", "random_batch_0", "random_batch_1")]
CASES += ["saliency_model_0", "saliency_model_1"]
recorded = pytest.mark.skipif(not PARITY.exists(), reason="no reference tensors here")
TEXT = "what is this ?"
ANSWER = "<think> a small cat near </think> two red balls"


@pytest.fixture(scope="module")
def reference():
    return torch.load(PARITY, weights_only=True)


@recorded
@pytest.mark.parametrize("name", CASES)
def test_maps_are_those_of_the_authors(reference, name):
    """Their second hop begins one row before the token (S4), so these rows are given; the norm has no epsilon (S5)."""
    case = reference[name]
    start = int(case["prompt_length"])
    think = torch.arange(case["think_span"][0], case["think_span"][1] + 1) + start
    answer = torch.arange(case["answer_span"][0], case["answer_span"][1] + 1) + start
    images = case["image_positions"]
    hidden = case["final_hidden_of_answer_steps"]
    read = case["final_norm_weight"] * case["unembedding_rows"] / hidden.square().mean(-1, keepdim=True).sqrt()
    total = torch.zeros(len(images))
    for layer, attention in enumerate(case["attention"]):
        gradients = (read @ case["o_proj"][layer]).unflatten(-1, (len(attention), -1)).transpose(0, 1)
        path = HeadPath(layer, [], None, case["values"][layer], gradients)
        flow = join_hops(attention[:, answer - 1][..., think], attention[:, think - 1][..., images])
        total += (flow * path.readings()).sum((0, 1))
    expected = case["map_signed_linear"].flatten()
    assert_close(total, expected, atol=2e-6 * float(expected.abs().max()), rtol=2e-5)


@recorded
def test_the_reasoning_is_where_the_authors_find_it(reference):
    case = reference["saliency_spans"]
    texts = case["texts"].split("\x1e")
    for number, (text, written) in enumerate(zip(texts, case["token_char_spans"].split("\x1e"), strict=True)):
        of_text = [tuple(map(int, span.split(","))) for span in written.split(";")]
        if case["well_formed"][number]:
            places, _ = find_reasoning(text, of_text)
            assert (places[0], places[-1]) == (case["think_start"][number], case["think_end"][number])
        else:
            with pytest.raises(ValueError, match="two-hop"):
                find_reasoning(text, of_text)


def thinking(family):
    model, processor = make_pair(family)
    processor.tokenizer.add_tokens(["<think>", "</think>"])
    return model, processor


@torch.no_grad()
def by_loops(model, inputs, row, token, reasoning):
    """(N,): what positions add through the reasoning to the logit of a token, each head and hop by itself."""
    text = find_decoder(model)
    kept = {}

    def keep(module, args, output):
        kept[module] = args[0][0], output[0]

    watched = [text.norm, *(layer.self_attn.v_proj for layer in text.layers)]
    handles = [module.register_forward_hook(keep) for module in watched]
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    model.set_attn_implementation("sdpa")
    state, last = kept[text.norm]
    read = last[row] / state[row] * model.get_output_embeddings().weight[token]
    total = torch.zeros(len(state))
    for layer, [attention] in zip(text.layers, maps, strict=True):
        groups = text.config.num_key_value_heads
        values = kept[layer.self_attn.v_proj][1].unflatten(-1, (groups, -1))
        into = layer.self_attn.o_proj.weight.unflatten(-1, (len(attention), -1))
        for head, seen in enumerate(attention):
            written = values[:, head * groups // len(attention)] @ into[:, head].T @ read
            for middle in reasoning:
                total += seen[row, middle] * seen[middle] * written
    return total


def sequence_of(model, processor, ids):
    patches = PatchGroundingProcessor(processor, model.config.model_type)
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    return patches, prompt, add_answer(model, processor.tokenizer, prompt, ids)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("rows", ["before", "own"])
def test_words_equal_loops_over_eager_attention(family, rows):
    """Of the words after the reasoning; the others have no map."""
    model, processor = thinking(family)
    lens = look(model, processor, PICTURE, TEXT, answer=ANSWER, form="two-hop", rows=rows)
    ids = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    _, prompt, whole = sequence_of(model, processor, ids)
    reasoning = range(prompt.prompt_length + 1, prompt.prompt_length + 5)  # a small cat near
    columns = whole.batch["region_positions"][0]
    for number, word in enumerate(whole.words):
        expected = torch.zeros(len(columns))
        if word.text in ("two", "red", "balls"):
            [own] = word.rows
            row = own - (rows == "before")
            expected = by_loops(model, whole.inputs, row, whole.inputs["input_ids"][0, own], reasoning)[columns]
            assert expected.abs().max() > 1e-6
        assert_close(torch.from_numpy(lens.contributions[number]), expected, atol=1e-6, rtol=1e-4)


def test_what_was_kept_while_the_model_answered_is_enough():
    model, processor = make_pair("llava")
    patches, prompt, _ = sequence_of(model, processor, [])
    ids, reader = generate_and_read(model, patches, prompt, head_layers(model), PathReader, max_new_tokens=6)
    inputs = sequence_of(model, processor, ids)[2].inputs
    row = prompt.prompt_length + 4
    token = inputs["input_ids"][0, row + 1]
    direction = reader.unembedding(model).directions(token[None])
    found = contributions(model, reader, [row], direction, through=[row - 3, row - 2])[0]
    columns = prompt.batch["region_positions"][0]
    expected = by_loops(model, inputs, row, token, [row - 3, row - 2])
    assert_close(found[columns], expected[columns], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("answer", ["a cat", "<think> </think> cat", "<think> a cat </think>", "</think> cat <think>"])
def test_an_answer_without_reasoning_is_refused(answer):
    with pytest.raises(ValueError, match="</think>"):
        look(*thinking("llava"), PICTURE, TEXT, answer=answer, form="two-hop")
