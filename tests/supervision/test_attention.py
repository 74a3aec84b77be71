# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention function against eager attention maps: values, gradients, masks, back ends, what is never built."""

import pytest
import torch
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
# More rows than columns.
MANY = (torch.arange(12).expand(2, -1), torch.tensor([[20, 3, 5], [1, 14, -1]]))


def reference(maps, rows, columns):
    """log_alpha and log_share of one layer, by loops over the full maps."""
    alphas = []
    shares = []
    for example in range(len(rows)):
        kept = [int(c) for c in columns[example] if c >= 0]
        for head in range(maps.shape[1]):
            for row in [int(r) for r in rows[example] if r >= 0]:
                values = maps[example, head, row, kept]
                alphas.append((values / values.sum()).log())
                shares.append(values.sum().log())
    return alphas, shares


def observed(pair, rows, columns):
    """The same numbers, in the same order, out of a supervised layer's pair."""
    log_alpha, log_share = pair
    alphas = []
    shares = []
    for example in range(len(rows)):
        kept = columns[example] >= 0
        for head in range(log_alpha.shape[1]):
            for slot in torch.nonzero(rows[example] >= 0)[:, 0]:
                alphas.append(log_alpha[example, head, slot, kept])
                shares.append(None if log_share is None else log_share[example, head, slot])
    return alphas, shares


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
        queries = ((ROWS.where(ROWS < 0, ROWS + 13).clamp(max=14), COLUMNS), (MANY[0] + 2, MANY[1] % 3))
    plain = make("eager")
    watched = supervised(make(back_end))
    maps = run(plain, inputs, attention_mask=mask)
    layers = run(watched, inputs, attention_mask=mask, attention_queries=queries, attention_share=share)
    assert len(layers) == LAYERS
    expected = []
    found = []
    for layer, layer_maps in zip(layers, maps, strict=True):
        for (rows, columns), pair in zip(queries, layer.pairs, strict=True):
            (alphas, shares), (wanted_alphas, wanted_shares) = (
                observed(pair, rows, columns),
                reference(layer_maps, rows, columns),
            )
            found += alphas + shares * share
            expected += wanted_alphas + wanted_shares * share
    reachable = [value > -100 for value in expected]  # a causal model never attends to what comes later
    pairs = [(a[keep], b[keep]) for a, b, keep in zip(found, expected, reachable, strict=True)]
    for here, there in pairs:
        torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)
    weights = [torch.randn_like(there) for _, there in pairs]
    total = sum((w * a).sum() for w, (a, _) in zip(weights, pairs, strict=True))
    wanted = sum((w * b).sum() for w, (_, b) in zip(weights, pairs, strict=True))
    for here, there in zip(gradients(total, watched, inputs), gradients(wanted, plain, inputs), strict=True):
        torch.testing.assert_close(here, there, atol=2e-4, rtol=1e-3)


def test_the_mean_takes_an_additive_mask_in_float16():
    model = bert("eager").half()
    model.set_attn_implementation(supervised_implementation(model))
    inputs = embeddings().detach()
    layers = run(model, inputs.half(), attention_mask=PADDING, attention_mean=True)
    exact = run(supervised(bert()), inputs, attention_mask=PADDING, attention_mean=True)
    for here, there in zip(layers, exact, strict=True):
        torch.testing.assert_close(here.mean, there.mean, atol=2e-2, rtol=0)


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
    expected = torch.stack([layer[:, kept].mean(1) for layer in run(plain, inputs, attention_mask=mask)])
    with forbid_maps(2, HEADS, LENGTH):
        layers = run(watched, inputs, attention_mask=mask, attention_mean=heads)
        found = torch.stack([layer.mean for layer in layers])
        weights = torch.randn_like(expected)
        here = gradients((weights * found).sum(), watched, inputs)
    if padded:  # rows of padding carry no meaning, and differ between back ends
        rows = PADDING.bool()[None, :, :, None]
        found = found * rows
        expected = expected * rows
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    if not padded:
        for one, other in zip(here, gradients((weights * expected).sum(), plain, inputs), strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_output_is_the_back_ends_own():
    inputs = embeddings()
    expected = bert()(inputs_embeds=inputs, attention_mask=PADDING).last_hidden_state
    found = supervised(bert())(
        inputs_embeds=inputs, attention_mask=PADDING, attention_queries=((ROWS, COLUMNS),), attention_mean=True
    ).last_hidden_state
    assert torch.equal(found, expected)


def test_only_the_asked_layers_report():
    model = supervised(bert())
    inputs = embeddings()
    every = run(model, inputs, attention_queries=((ROWS, COLUMNS),))
    last = run(model, inputs, attention_queries=((ROWS, COLUMNS),), attention_layers=(2,))
    assert len(every) == LAYERS
    assert len(last) == 1
    assert isinstance(last[0], SupervisedAttention)
    assert torch.equal(last[0].pairs[0][0], every[2].pairs[0][0])
    assert run(model, inputs) == ()


@pytest.mark.parametrize("kind", ["rows", "mean"])
def test_probabilities_are_before_dropout(kind):
    asked = {"rows": {"attention_queries": ((ROWS, COLUMNS),)}, "mean": {"attention_mean": True}}[kind]
    model = supervised(bert(attention_probs_dropout_prob=0.5))
    inputs = embeddings()
    first = run(model.eval(), inputs, **asked)[0]
    second = run(model.train(), inputs, **asked)[0]
    both = [layer.mean if kind == "mean" else layer.pairs[0][0] for layer in (first, second)]
    assert torch.equal(*both)


@torch.no_grad()  # on CPU it has no backward pass
def test_flex_attention_reports_the_same(uncompiled):
    inputs = embeddings().detach()
    expected = run(supervised(bert()), inputs, attention_mask=PADDING, attention_queries=((ROWS, COLUMNS),))
    flex = supervised(bert("flex_attention")).eval()
    assert flex.config._attn_implementation == "supervised_flex_attention"
    found = run(flex, inputs, attention_mask=PADDING, attention_queries=((ROWS, COLUMNS),))
    for here, there in zip(found, expected, strict=True):
        for one, other in zip(here.pairs[0], there.pairs[0], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "device, grad, length, warns",
    [("meta", True, 130, True), ("meta", True, 256, False), ("meta", False, 130, False), ("cpu", True, 130, False)],
)
def test_gradients_of_flex_attention_off_its_blocks_are_doubted(monkeypatch, device, grad, length, warns):
    """`meta` stands for a GPU; the back end itself is replaced."""
    said = []
    monkeypatch.setattr(attention_function.logger, "warning_once", said.append)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flex_attention", lambda module, query, *_, **__: (query, None))
    query = torch.empty(1, HEADS, length, 8, device=device, requires_grad=grad)
    ALL_ATTENTION_FUNCTIONS["supervised_flex_attention"](torch.nn.Identity(), query, query, query)
    assert bool(said) == warns


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
    """With a stand-in for the kernel: what it is told, and that its (B, N) mask and its causality are honoured."""
    mask = PADDING if padded else None
    queries = ((torch.tensor([[12, 14], [12, 14]]), COLUMNS), (torch.tensor([[5], [6]]), MANY[1] % 8))
    model = make()
    inputs = embeddings()
    expected = run(supervised(model), inputs, attention_mask=mask, attention_queries=queries)
    told = []

    def kernel(module, query, key, value, attention_mask, **kwargs):
        told.append((module.config._attn_implementation, attention_mask))
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        if module.is_causal:
            seen = seen.tril()
        if kwargs.get("sliding_window") is not None:
            seen = seen.triu(1 - kwargs.pop("sliding_window"))
        if attention_mask is not None:
            seen = seen & attention_mask[:, None, None]
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, seen.expand(2, 1, -1, -1), **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, kernel)
    own_mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, own_mask)
    model.config._attn_implementation_internal = name
    with supervise(model):
        found = run(model, inputs, attention_mask=mask, attention_queries=queries)
        used = model.config._attn_implementation
    assert model.config._attn_implementation == name  # without loading a kernel again
    assert used.startswith("supervised_")
    assert not {"/", "flash"} & {*used, *used.split("_")}
    assert told[0][0] == name
    assert torch.equal(told[0][1], PADDING.bool()) if padded else told[0][1] is None
    torch.testing.assert_close(found[-1].pairs, expected[-1].pairs)


@pytest.mark.parametrize("share", [True, False])
def test_the_order_of_heads_and_positions_in_memory_does_not_matter(share):
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, LENGTH, HEADS, 8).unbind()
    found = []
    for by_position in (True, False):
        states = [(x if by_position else x.transpose(1, 2).contiguous()).requires_grad_() for x in (query, key)]
        views = [x.transpose(1, 2) if by_position else x for x in states]
        pairs = attend_rows(*views, [(ROWS, COLUMNS), MANY], 0.3, None, share)
        loss = sum(pair[0].clamp(min=-9).square().sum() for pair in pairs)
        made = torch.autograd.grad(loss, states)
        found.append([pair[0] for pair in pairs] + [x if by_position else x.transpose(1, 2) for x in made])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_rows_are_added_in_place():
    """Out of place, every layer would write gradients of all positions once more, for queries and for keys."""
    model = supervised(bert("sdpa"))
    outputs = model(
        inputs_embeds=embeddings(), output_attentions=True, attention_queries=((ROWS, COLUMNS),), attention_share=False
    )
    loss = outputs.last_hidden_state.square().sum() + sum(layer.pairs[0][0].mean() for layer in outputs.attentions)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        loss.backward()
    names = [event.name for event in profiler.events()]
    assert names.count("aten::add_") >= 2 * LAYERS
    assert "aten::add" not in names


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("kind", "back_end"),
    [
        *((kind, "eager") for kind in ("gemma2", "gpt_oss", "inkling_text", "inkling2_text")),
        ("inkling_text", "sdpa"),
        ("gemma2", "flex_attention"),  # PyTorch's has no sinks on a CPU
    ],
)
def test_scores_that_are_more_than_products(kind, back_end, share, uncompiled):
    """Gemma 2 caps its scores; gpt-oss has a score without a key, and a window in every second layer.

    Inkling adds what depends on distances, its second version a score without a key for each row too.
    """
    more = {"gemma2": {"attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 8}, "gpt_oss": {"num_local_experts": 4}}
    more |= {key: {**INKLING, "sliding_window_size": 6} for key in ("inkling_text", "inkling2_text")}
    sizes = {"hidden_size": 32, "num_attention_heads": HEADS, "head_dim": 8, "intermediate_size": 32, "vocab_size": 9}
    sizes |= {"num_hidden_layers": 2, "num_key_value_heads": 2, "sliding_window": 6, "initializer_range": 0.5}
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **more[kind])).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    inputs = embeddings()
    rows = torch.tensor([[12, 14], [12, 14]])
    columns = torch.tensor([[3, 8, 9], [1, 12, -1]])
    model.set_attn_implementation("eager")
    maps = model(inputs_embeds=inputs, attention_mask=PADDING, output_attentions=True).attentions
    with torch.set_grad_enabled(back_end != "flex_attention"):  # which has none on a CPU
        model.set_attn_implementation(back_end)
        asked = {"attention_queries": ((rows, columns),), "attention_share": share, "attention_mean": True}
        found = run(supervised(model), inputs, attention_mask=PADDING, **asked)
    sums = [[], []]
    for report, each in zip(found, maps, strict=True):
        real = PADDING.bool()
        torch.testing.assert_close(report.mean[real], each.mean(1)[real], atol=1e-5, rtol=1e-4)
        log_alpha, log_share = report.pairs[0]
        for example in range(2):
            kept = columns[example][columns[example] >= 0]
            expected = each[example][:, rows[example]][..., kept]
            if not share:
                expected = expected / expected.sum(-1, keepdim=True)
            part = log_alpha if log_share is None else log_alpha + log_share[..., None]
            read = part[example].exp()[..., : len(kept)]
            torch.testing.assert_close(read, expected, atol=1e-5, rtol=1e-4)
            for parts, values in zip(sums, (read, expected), strict=True):
                parts.append(values.square().sum())
        for parts, values in zip(sums, (report.mean, each.mean(1)), strict=True):
            parts.append(values[real].square().sum())
    if back_end != "flex_attention":
        made = [torch.autograd.grad(sum(parts), [*model.parameters()], allow_unused=True) for parts in sums]
        for one, other in zip(*made, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


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
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close((here.pairs, here.mean), (there.pairs, there.mean))
    total = sum(layer.mean.square().sum() + layer.pairs[1][0].sum() for layer in found)
    assert all(gradient.isfinite().all() for gradient in gradients(total, model, inputs))


def test_bfloat16_reports_float32():
    model = supervised(bert()).bfloat16()
    inputs = embeddings().detach().bfloat16()
    layer = run(model, inputs, attention_mask=PADDING, attention_queries=((ROWS, COLUMNS),), attention_mean=True)[0]
    assert {tensor.dtype for tensor in (*layer.pairs[0], layer.mean)} == {torch.float32}
    torch.testing.assert_close(layer.pairs[0][0].exp().sum(-1), torch.ones(2, HEADS, 4))
    torch.testing.assert_close(layer.mean.sum(-1), torch.ones(2, LENGTH))


def test_the_watchdog_sees_eager_maps():
    with pytest.raises(AssertionError, match="makes a tensor of"), forbid_maps(2, HEADS, LENGTH):
        run(bert("eager"), embeddings())


@pytest.mark.parametrize("columns", [8, 20])
def test_large_states_in_half_precision_stay_finite(columns):
    """Products of queries and keys beyond 65,504: they are scaled before the product, as in attention itself."""
    query = torch.full((1, 1, 24, 64), 40.0, dtype=torch.float16)
    queries = [(torch.tensor([[0, 1]]), torch.arange(columns)[None])]
    ((log_alpha, _),) = attend_rows(query, query, queries, 1 / 8, None, share=False)
    torch.testing.assert_close(log_alpha.exp(), torch.full((1, 1, 2, columns), 1 / columns))
