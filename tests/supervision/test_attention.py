# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention function against eager attention maps: values, gradients, masks, back ends, what is never built."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grounded_attention.supervision import (
    SupervisedAttention,
    attention_function,
    supervise,
    supervised_implementation,
)
from grounded_attention.supervision import head_mean as head_mean_file
from grounded_attention.supervision.row_plans import RowPlans
from tests.helpers.row_pairs import attend_rows
from tests.helpers.supervision_models import (
    HEADS,
    LAYERS,
    LENGTH,
    PADDING,
    bert,
    embeddings,
    forbid_maps,
    gradients,
    llama,
    supervised,
)
from tests.helpers.tiny_vlm_relatives import INKLING

ROWS = torch.tensor([[1, 4, 6, -1], [2, -1, -1, -1]])
COLUMNS = torch.tensor([[9, 10, 11, 12, 13], [9, 10, 11, -1, -1]])
QUERIES = ((ROWS, COLUMNS),)
# More rows than columns.
MANY = (torch.arange(12).expand(2, -1), torch.tensor([[20, 3, 5], [1, 14, -1]]))


def map_values(maps, rows, columns, share):
    """The attention of rows on columns, by loops over full maps; without `share` 1 in sum."""
    found = []
    for example in range(len(rows)):
        kept = columns[example][columns[example] >= 0]
        for row in rows[example].tolist():
            if row >= 0:
                values = maps[example, :, row, kept]
                total = 1 if share else values.sum(-1, keepdim=True)
                found.append(values / total)
    return torch.cat(found, -1).flatten()


def reported_values(pair, rows, columns):
    """The same numbers, in the same order, out of a supervised layer's pair."""
    logs, log_share = pair
    if log_share is not None:
        logs = logs + log_share[..., None]
    found = []
    for example in range(len(rows)):
        kept = columns[example] >= 0
        for row in logs[example][:, rows[example] >= 0].unbind(1):
            found.append(row[:, kept].exp())
    return torch.cat(found, -1).flatten()


def run(model, inputs, **kwargs):
    return model(inputs_embeds=inputs, output_attentions=True, **kwargs).attentions


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("share", [False, True], ids=["alpha", "share"])
@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
def test_pairs_and_gradients_equal_eager_maps(back_end, make, share, padded):
    mask = PADDING if padded else None
    inputs = embeddings()
    queries = ((ROWS, COLUMNS), MANY)
    if make is llama:  # rows after their columns
        rows = (ROWS + 13).clamp(max=14).where(ROWS >= 0, -1)
        queries = ((rows, COLUMNS), (MANY[0] + 2, MANY[1] % 3))
    plain = make("eager")
    watched = supervised(make(back_end))
    maps = run(plain, inputs, attention_mask=mask)
    layers = run(watched, inputs, attention_mask=mask, attention_queries=queries, attention_share=share)
    assert len(layers) == LAYERS
    expected = []
    found = []
    for layer, layer_maps in zip(layers, maps, strict=True):
        for (rows, columns), pair in zip(queries, layer.pairs, strict=True):
            found.append(reported_values(pair, rows, columns))
            expected.append(map_values(layer_maps, rows, columns, share))
    found = torch.cat(found)
    expected = torch.cat(expected)
    assert_close(found, expected, atol=1e-6, rtol=1e-5)
    weights = torch.randn_like(expected)
    ours = gradients((weights * found).sum(), watched, inputs)
    theirs = gradients((weights * expected).sum(), plain, inputs)
    assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_the_mean_takes_an_additive_mask_in_float16():
    model = bert("eager").half()
    model.set_attn_implementation(supervised_implementation(model))
    inputs = embeddings().detach()
    layers = run(model, inputs.half(), attention_mask=PADDING, attention_mean=True)
    exact = run(supervised(bert()), inputs, attention_mask=PADDING, attention_mean=True)
    for here, there in zip(layers, exact, strict=True):
        assert_close(here.mean, there.mean, atol=2e-2, rtol=0)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("heads", [True, (1, 2, 3)], ids=["all", "some"])
@pytest.mark.parametrize("elements", [1, 2**23], ids=["head_by_head", "half_of_them"])
def test_mean_and_gradients_equal_eager_maps(monkeypatch, elements, heads, make, padded):
    monkeypatch.setattr(head_mean_file, "CHUNK_ELEMENTS", elements)
    mask = PADDING if padded else None
    inputs = embeddings()
    plain = make("eager")
    watched = supervised(make())
    kept = slice(None) if heads is True else list(heads)
    maps = run(plain, inputs, attention_mask=mask)
    expected = torch.stack([layer[:, kept].mean(1) for layer in maps])
    with forbid_maps(2, HEADS, LENGTH):
        layers = run(watched, inputs, attention_mask=mask, attention_mean=heads)
        found = torch.stack([layer.mean for layer in layers])
        weights = torch.randn_like(expected)
        ours = gradients((weights * found).sum(), watched, inputs)
    if padded:  # rows of padding carry no meaning, and differ between back ends
        found = found[:, PADDING > 0]
        expected = expected[:, PADDING > 0]
    assert_close(found, expected, atol=1e-6, rtol=1e-5)
    if not padded:
        theirs = gradients((weights * expected).sum(), plain, inputs)
        assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_output_is_the_back_ends_own():
    given = {"inputs_embeds": embeddings(), "attention_mask": PADDING}
    expected = bert()(**given).last_hidden_state
    found = supervised(bert())(**given, attention_queries=QUERIES, attention_mean=True)
    assert torch.equal(found.last_hidden_state, expected)


def test_only_the_asked_layers_report():
    model = supervised(bert())
    inputs = embeddings()
    queries = QUERIES
    every = run(model, inputs, attention_queries=queries)
    (last,) = run(model, inputs, attention_queries=queries, attention_layers=(2,))
    assert len(every) == LAYERS
    assert isinstance(last, SupervisedAttention)
    assert torch.equal(last.pairs[0][0], every[2].pairs[0][0])
    assert run(model, inputs) == ()


def test_probabilities_are_before_dropout():
    model = supervised(bert(attention_probs_dropout_prob=0.5))
    inputs = embeddings()
    asked = {"attention_queries": QUERIES, "attention_mean": True}
    first = run(model.eval(), inputs, **asked)[0]
    second = run(model.train(), inputs, **asked)[0]
    assert torch.equal(first.pairs[0][0], second.pairs[0][0])
    assert torch.equal(first.mean, second.mean)


@torch.no_grad()  # on CPU it has no backward pass
def test_flex_attention_reports_the_same(uncompiled):
    inputs = embeddings()
    asked = {"attention_mask": PADDING, "attention_queries": QUERIES}
    expected = run(supervised(bert()), inputs, **asked)
    flex = supervised(bert("flex_attention"))
    assert flex.config._attn_implementation == "supervised_flex_attention"
    found = run(flex.eval(), inputs, **asked)
    for here, there in zip(found, expected, strict=True):
        assert_close(here.pairs, there.pairs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "device, grad, length, warns",
    [("meta", True, 130, True), ("meta", True, 256, False), ("meta", False, 130, False), ("cpu", True, 130, False)],
)
def test_gradients_of_flex_attention_off_its_blocks_are_doubted(monkeypatch, device, grad, length, warns):
    """`meta` stands for a GPU; the back end itself is replaced."""
    warnings = []
    monkeypatch.setattr(attention_function.logger, "warning_once", warnings.append)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flex_attention", lambda module, query, *_, **__: (query, None))
    query = torch.empty(1, HEADS, length, 8, device=device, requires_grad=grad)
    ALL_ATTENTION_FUNCTIONS["supervised_flex_attention"](torch.nn.Identity(), query, query, query)
    assert bool(warnings) == warns


def mistral():
    """A causal model that sees a window of 4 keys."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
    config = AutoConfig.for_model("mistral", **sizes, num_key_value_heads=2, vocab_size=9, sliding_window=4)
    return AutoModel.from_config(config).eval()


KERNELS = ("flash_attention_2", "flash_attention_4", "kernels-community/flash-attn2", "someone/kernel@v1:forward")


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("make", [bert, llama, mistral])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gets_its_own_name_and_mask(monkeypatch, make, padded, name):
    """With a stand-in for the kernel: what it gets, and that its (B, N) mask and its causality are honoured."""
    queries = ((torch.tensor([[12, 14], [12, 14]]), COLUMNS), (torch.tensor([[5], [6]]), MANY[1] % 8))
    asked = {"attention_mask": PADDING if padded else None, "attention_queries": queries}
    model = make()
    inputs = embeddings()
    expected = run(supervised(model), inputs, **asked)
    names = []
    masks = []

    def kernel(module, query, key, value, attention_mask, sliding_window=None, **kwargs):
        names.append(module.config._attn_implementation)
        masks.append(attention_mask)
        visible = torch.ones(2, 1, LENGTH, LENGTH).bool()
        if module.is_causal:
            visible = visible.tril()
        if sliding_window is not None:
            visible = visible.triu(1 - sliding_window)
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None]
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, visible, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, kernel)
    own_mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, own_mask)
    model.config._attn_implementation_internal = name
    with supervise(model):
        found = run(model, inputs, **asked)
        used = model.config._attn_implementation
    assert model.config._attn_implementation == name  # without loading a kernel again
    assert used.startswith("supervised_")
    assert "/" not in used
    assert "flash" not in used.split("_")
    assert names[0] == name
    if padded:
        assert torch.equal(masks[0], PADDING.bool())
    else:
        assert masks[0] is None
    assert_close(found[-1].pairs, expected[-1].pairs)


@pytest.mark.parametrize("share", [True, False])
def test_the_order_of_heads_and_positions_in_memory_does_not_matter(share):
    torch.manual_seed(0)
    by_head = torch.randn(2, 2, HEADS, LENGTH, 8)
    by_position = by_head.transpose(2, 3).contiguous().transpose(2, 3)
    found = []
    for states in (by_head, by_position):
        states.requires_grad_()
        pairs = attend_rows(*states, [(ROWS, COLUMNS), MANY], 0.3, None, share)
        logs = [log_alpha.clamp(min=-9) for log_alpha, _ in pairs]
        torch.cat([log_alpha.flatten() for log_alpha in logs]).square().sum().backward()
        found.append([*logs, states.grad])
    assert_close(*found)


def test_gradients_of_rows_are_added_in_place():
    """Out of place, every layer would write gradients of all positions once more, for queries and for keys."""
    model = supervised(bert("sdpa"))
    outputs = model(
        inputs_embeds=embeddings(), output_attentions=True, attention_queries=QUERIES, attention_share=False
    )
    loss = outputs.last_hidden_state.square().sum() + sum(layer.pairs[0][0].mean() for layer in outputs.attentions)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        loss.backward()
    names = [event.name for event in profiler.events()]
    assert names.count("aten::add_") >= 2 * LAYERS
    assert "aten::add" not in names


SIZES = {"hidden_size": 32, "num_attention_heads": HEADS, "head_dim": 8, "intermediate_size": 32, "vocab_size": 9}
SIZES |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "sliding_window": 6, "initializer_range": 0.5}
# Gemma 2 caps its scores; gpt-oss has a score without a key, and a window in every second layer. Inkling adds what
# depends on distances, its second version a score without a key for each row too.
SCORES = {
    "gemma2": {"attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 8},
    "gpt_oss": {"num_local_experts": 4},
    "inkling_text": {**INKLING, "sliding_window_size": 6},
    "inkling2_text": {**INKLING, "sliding_window_size": 6},
}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    "kind, back_end",
    [
        *((kind, "eager") for kind in SCORES),
        ("inkling_text", "sdpa"),
        ("gemma2", "flex_attention"),  # PyTorch's has no sinks on a CPU
    ],
)
def test_scores_that_are_more_than_products(kind, back_end, share, uncompiled):
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES, **SCORES[kind])).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    inputs = embeddings()
    rows = torch.tensor([[12, 14], [12, 14]])
    columns = torch.tensor([[3, 8, 9], [1, 12, -1]])
    real = PADDING.bool()
    model.set_attn_implementation("eager")
    maps = run(model, inputs, attention_mask=PADDING)
    with torch.set_grad_enabled(back_end != "flex_attention"):  # which has none on a CPU
        model.set_attn_implementation(back_end)
        asked = {"attention_queries": ((rows, columns),), "attention_share": share, "attention_mean": True}
        layers = run(supervised(model), inputs, attention_mask=PADDING, **asked)
    found = []
    expected = []
    for layer, layer_maps in zip(layers, maps, strict=True):
        found += [layer.mean[real].flatten(), reported_values(layer.pairs[0], rows, columns)]
        expected += [layer_maps.mean(1)[real].flatten(), map_values(layer_maps, rows, columns, share)]
    found = torch.cat(found)
    expected = torch.cat(expected)
    assert_close(found, expected, atol=1e-5, rtol=1e-4)
    if back_end != "flex_attention":
        ours = gradients(found.square().sum(), model, inputs)
        theirs = gradients(expected.square().sum(), model, inputs)
        assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_unknown_back_end_is_refused():
    model = supervised(bert())
    assert supervised_implementation(model) == supervised_implementation(model.config) == "supervised_sdpa"
    model.config._attn_implementation_internal = "paged|eager"
    with pytest.raises(ValueError, match=r"'paged\|eager'"):
        supervised_implementation(model)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_in_one_graph():
    model = supervised(bert())
    inputs = embeddings()
    asked = {"attention_mask": PADDING, "attention_queries": ((ROWS, COLUMNS), MANY), "attention_mean": True}
    asked["attention_plans"] = RowPlans()
    expected = run(model, inputs, **asked)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = run(compiled, inputs, **asked)
    total = 0
    for here, there in zip(found, expected, strict=True):
        assert_close(here.pairs, there.pairs)
        assert_close(here.mean, there.mean)
        total = total + here.mean.square().sum() + here.pairs[1][0].sum()
    for gradient in gradients(total, model, inputs):
        assert gradient.isfinite().all()


def test_bfloat16_reports_float32():
    model = supervised(bert()).bfloat16()
    inputs = embeddings().bfloat16()
    layer = run(model, inputs, attention_mask=PADDING, attention_queries=QUERIES, attention_mean=True)[0]
    log_alpha, log_share = layer.pairs[0]
    assert log_share.dtype == torch.float32
    assert_close(log_alpha.exp().sum(-1), torch.ones(2, HEADS, 4))
    assert_close(layer.mean.sum(-1), torch.ones(2, LENGTH))


@pytest.mark.parametrize("columns", [8, 20])
def test_large_states_in_half_precision_stay_finite(columns):
    """Products of queries and keys beyond 65,504: they are scaled before the product, as in attention itself."""
    query = torch.full((1, 1, 24, 64), 40.0, dtype=torch.float16)
    queries = [(torch.tensor([[0, 1]]), torch.arange(columns)[None])]
    ((log_alpha, _),) = attend_rows(query, query, queries, 1 / 8, None, share=False)
    assert_close(log_alpha.exp(), torch.full((1, 1, 2, columns), 1 / columns))
