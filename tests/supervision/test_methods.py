# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The contract every supervision method keeps, and the paper's losses against a second, plain formulation."""

import doctest
import importlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from grounded_attention.modeling.task_heads import AlignmentHead
from grounded_attention.supervision import from_attention_maps, get_method, method_names, naive, row_states
from grounded_attention.supervision.method import AttentionMethod
from grounded_attention.supervision.soft_attention import SoftAttention
from tests.helpers.supervision_models import HEADS, WIDTH, bert, forbid_maps, gradients, supervised

TEXT = 9
REGIONS = 6
SOFT_METHODS = [name for name in method_names() if isinstance(get_method(name), SoftAttention)]
ATTENTION_METHODS = [name for name in method_names() if isinstance(get_method(name), AttentionMethod)]
ATTENTION_METHODS = [name for name in ATTENTION_METHODS if name not in SOFT_METHODS]
GROUNDED_METHODS = [name for name in method_names() if get_method(name).needs_grounding and name not in SOFT_METHODS]
ALIGNMENT = "grounding_alignment"
CONTRACTS = [(name, {}) for name in GROUNDED_METHODS if name != ALIGNMENT]
CONTRACTS += [(ALIGNMENT, {"level": level}) for level in ("phrase", "token")]
CONTRACTS += [(f"semi_direct+{ALIGNMENT}", {ALIGNMENT: {"weight": 2.0}})]
CONTRACTS += [(name, {"box_weight": 3.0}) for name in ATTENTION_METHODS]
CONTRACTS += [
    ("kl_attention", {"rows": "words", "target": "gaussian"}),
    ("gaze", {"divergence": "reverse_kl", "background": 0.1}),
    ("pointer", {"rows": "last_word", "target": "touched", "outside": 0.5}),
    ("pointer", {"rows": "words", "target": "overlap", "reduction": "queries_soft", "divergence": "jsd"}),
    ("actor", {"rows": "words", "target": "fitts", "outside": 1.0, "dropout": 0.0}),
    ("pointer", {"rows": "words", "target": "fitts", "reduction": "each", "heads": [[0, 1], [2, 3], [1, 0]]}),
]


class Grounder(nn.Module):
    """transformers' BERT on text and region embeddings, with heads of ours: `model(batch, **kwargs)`."""

    def __init__(self, back_end="sdpa", alignment_level=None):
        super().__init__()
        self.bert = bert(back_end)
        torch.manual_seed(3)
        self.phrase_projection = nn.Linear(WIDTH, WIDTH)
        self.box_head = nn.Linear(WIDTH, 4)
        self.alignment_head = None
        if alignment_level:
            fields = {"alignment_size": None, "alignment_level": alignment_level}
            fields |= dict.fromkeys(("text_hidden_size", "region_hidden_size", "pooled_hidden_size"), WIDTH)
            self.alignment_head = AlignmentHead(SimpleNamespace(**fields))

    def forward(self, batch, alignment_phrases=None, alignment_pairs=None, **kwargs):
        mask = torch.cat([batch["attention_mask"], batch["region_attention_mask"]], 1)
        words = batch["attention_mask"].shape[1]
        places = torch.arange(mask.shape[1])
        places[words:] += 100 - words
        outputs = self.bert(
            inputs_embeds=batch["inputs_embeds"], attention_mask=mask, position_ids=places[None], **kwargs
        )
        text, regions = outputs.last_hidden_state.tensor_split([words], 1)
        phrases = self.phrase_projection(batch["phrase_mask"].float() @ text)
        outputs.grounding_logits = phrases @ regions.transpose(1, 2) / WIDTH
        outputs.pred_boxes = self.box_head(text).sigmoid()
        if self.alignment_head is not None:
            outputs.alignment_logits = self.alignment_head(text, regions, alignment_phrases, alignment_pairs)
        return outputs


def prepared(name, **options):
    method = get_method(name, **options)
    model = Grounder(alignment_level=method.model_config["alignment_level"])
    method.prepare(model.bert)
    return model, method


def corners(size, count, generator):
    """(size, count, 4): boxes in [0, 1]."""
    low, extent = torch.rand(2, size, count, 2, generator=generator) / 2
    return torch.cat([low, low + extent], -1)


# Tokens and regions of each phrase of an example; the third example has none.
PHRASES = {
    0: [([0, 1, 2], [2]), ([4, 5, 6], [1, 3, 4]), ([7], [])],
    1: [([1, 2, 3], [1, 2]), ([3], [2])],
    3: [([2], [0, 5]), ([1, 2], [4]), ([4], [3, 1])],
}


def make_batch(grounded=True, padding=0):
    """Ragged text and regions; `padding` adds columns of tokens and regions, phrases and boxes."""
    generator = torch.Generator().manual_seed(5)
    text = TEXT + padding
    regions = REGIONS + padding
    drawn = torch.randn(4, TEXT + REGIONS, WIDTH, generator=generator)
    embeds = torch.full((4, text + regions, WIDTH), 3.0)
    embeds[:, :TEXT] = drawn[:, :TEXT]
    embeds[:, text : text + REGIONS] = drawn[:, TEXT:]
    region_boxes = torch.full((4, regions, 4), 0.5)
    region_boxes[:, :REGIONS] = corners(4, REGIONS, generator)
    phrase_boxes = torch.full((4, 3 + padding, 2 + padding, 4), -1.0)
    phrase_boxes[:, :3, :2] = corners(4, 6, generator).unflatten(1, (3, 2))
    phrase_mask = torch.zeros(4, 3 + padding, text, dtype=torch.bool)
    phrase_regions = torch.zeros(4, 3 + padding, regions, dtype=torch.bool)
    for example, phrases in PHRASES.items():
        for index, (tokens, gold) in enumerate(phrases):
            phrase_mask[example, index, tokens] = True
            phrase_regions[example, index, gold] = grounded
    real = torch.arange(regions) < torch.tensor([[6], [3], [4], [6]])
    places = torch.arange(text + regions).expand(4, -1)
    return {
        "inputs_embeds": embeds,
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions,
        "attention_mask": (torch.arange(text) < torch.tensor([[9], [5], [7], [6]])).long(),
        "region_attention_mask": real.long(),
        "region_candidate_mask": real & (torch.arange(regions) > 0),
        "region_boxes": region_boxes,
        "phrase_boxes": phrase_boxes,
        "text_positions": places[:, :text],
        "region_positions": places[:, text:],
    }


def losses_of(model, method, batch):
    return method.losses(model(batch, **method.forward_kwargs(batch)), batch)


def mean_loss(losses):
    return sum(total / count for total, count in losses.values())


# The contract


@pytest.mark.parametrize("name", method_names())
def test_the_class_says_what_it_is(name):
    cls = type(get_method(name))
    assert cls.name == name
    assert cls.citation.startswith(("@inproceedings{", "@misc{"))
    headings = ["Args:", "References:", "Requirements:", "Inputs:", "Example:"]
    places = [cls.__doc__.index(heading) for heading in headings]
    assert places == sorted(places)


@pytest.mark.parametrize("name", method_names())
def test_the_docstring_example_runs(name):
    module = importlib.import_module(type(get_method(name)).__module__)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 7
    assert result.failed == 0


@pytest.mark.parametrize("name, options", CONTRACTS, ids=str)
class TestContract:
    def test_counts_match_losses(self, name, options):
        model, method = prepared(name, **options)
        batch = make_batch()
        losses = losses_of(model, method, batch)
        counts = method.counts(batch)
        assert list(losses) == list(counts)
        for key, (total, count) in losses.items():
            assert count == counts[key] > 0
            assert count.dtype == counts[key].dtype == torch.int64
            assert total.shape == ()
            assert total > 0
        with torch.no_grad():
            prepared_batch = {**batch, **method.prepare_batch(batch)}
            assert losses_of(model, method, prepared_batch) == losses_of(model, method, batch)

    @pytest.mark.parametrize("empty", ["no_grounding", "no_phrases"])
    def test_nothing_grounded_gives_zero_with_a_graph(self, name, options, empty):
        model, method = prepared(name, **options)
        batch = make_batch(grounded=False)
        inputs = batch["inputs_embeds"].requires_grad_()
        if empty == "no_phrases":
            for key in ("phrase_mask", "phrase_regions", "phrase_boxes"):
                batch[key] = batch[key][:, :0]
        for total, count in losses_of(model, method, batch).values():
            assert total == 0
            assert count == 0
            found = gradients(total, model, inputs)
            assert found
            assert not any(gradient.any() for gradient in found)

    def test_gradients_are_finite_and_reach_the_queries(self, name, options):
        model, method = prepared(name, **options)
        mean_loss(losses_of(model, method, make_batch())).backward()
        for parameter in model.parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all()
        for layer in model.bert.encoder.layer:
            assert layer.attention.self.query.weight.grad.any()

    def test_sums_and_counts_add_up_over_a_split_batch(self, name, options):
        model, method = prepared(name, **options)
        batch = make_batch()
        first = losses_of(model, method, {key: tensor[:1] for key, tensor in batch.items()})
        rest = losses_of(model, method, {key: tensor[1:] for key, tensor in batch.items()})
        for key, (total, count) in losses_of(model, method, batch).items():
            assert_close(first[key][0] + rest[key][0], total)
            assert first[key][1] + rest[key][1] == count

    def test_padding_changes_nothing(self, name, options):
        model, method = prepared(name, **options)
        padded = losses_of(model, method, make_batch(padding=7))
        assert_close(padded, losses_of(model, method, make_batch()))

    def test_a_step_lowers_the_loss(self, name, options):
        model, method = prepared(name, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        before = mean_loss(losses_of(model, method, make_batch()))
        before.backward()
        optimizer.step()
        assert mean_loss(losses_of(model, method, make_batch())) < before


# The paper's losses, plainly


def plain_attention_losses(maps, batch, target):
    """Equations 6 to 8 over maps (B, H, N, N) of a sequence of the words, then the regions."""
    text = batch["text_positions"].where(batch["attention_mask"] > 0, -1)
    regions = batch["region_positions"].where(batch["region_attention_mask"] > 0, -1)
    gold = naive.gold_pairs(batch)
    return {
        "text_to_region": naive.direct_loss(maps, gold, text, regions, target),
        "region_to_text": naive.direct_loss(maps, gold.transpose(1, 2), regions, text, target),
    }


def plain_rollout(maps):
    joint = torch.eye(maps[0].shape[-1])
    rollouts = []
    for layer in maps:
        joint = (layer.mean(1) + torch.eye(layer.shape[-1])) / 2 @ joint
        rollouts.append(joint[:, None])
    return rollouts


def eager_maps(batch, name="direct"):
    maps = Grounder("eager")(batch, output_attentions=True).attentions
    return plain_rollout(maps) if name == "semi_direct" else maps


@pytest.mark.parametrize("target", ["uniform", "sum", "any"])
@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_paper_equals_a_plain_formulation(name, target):
    batch = make_batch()
    model, method = prepared(name, target=target)
    expected = plain_attention_losses(eager_maps(batch, name), batch, target)
    for direction, (total, count) in losses_of(model, method, batch).items():
        assert_close(total / count, expected[direction], rtol=1e-4, atol=1e-6)


def test_indirect_equals_a_plain_formulation():
    batch = make_batch()
    model, method = prepared("indirect")
    logits = model(batch).grounding_logits
    grounded = batch["phrase_mask"].any(-1) & batch["phrase_regions"].any(-1)
    means = []
    for example, phrase in grounded.nonzero().tolist():
        losses = []
        for region in batch["region_candidate_mask"][example].nonzero():
            score = logits[example, phrase, region].item()
            gold = batch["phrase_regions"][example, phrase, region]
            losses.append(math.log1p(math.exp(-score if gold else score)))
        means.append(sum(losses) / len(losses))
    found = mean_loss(losses_of(model, method, batch)).item()
    assert found == pytest.approx(sum(means) / len(means), rel=1e-5)


def test_indirect_leaves_out_phrases_that_no_candidate_grounds():
    batch = {
        "phrase_mask": torch.tensor([[[1, 0], [0, 1], [0, 0]]]),  # the third is padding
        "phrase_regions": torch.tensor([[[1, 0, 0], [1, 1, 0], [0, 1, 0]]]),  # the first names the whole image alone
        "region_attention_mask": torch.tensor([[1, 1, 0]]),
        "region_candidate_mask": torch.tensor([[0, 1, 0]]),
    }
    method = get_method("indirect")
    assert method.counts(batch)["grounding"] == 1
    del batch["region_candidate_mask"]
    assert method.counts(batch)["grounding"] == 2


@pytest.mark.parametrize("options", [{}, {"heads": [[0, 1], [1, 0], [1, 2], [2, 3]]}], ids=str)
def test_layers_one_by_one_have_the_losses_of_all_at_once(options, monkeypatch):
    batch = make_batch()
    model, method = prepared("direct", **options)
    together = losses_of(model, method, batch)
    monkeypatch.setattr(row_states, "JOINED_NUMBERS", 0)  # layers report attention, not states
    assert_close(losses_of(model, method, batch), together)


# Direct supervision runs without maps


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_loss_and_gradients_equal_eager_maps_without_building_any(name, checkpointing):
    batch = make_batch()
    inputs = batch["inputs_embeds"].requires_grad_()
    model, method = prepared(name)
    assert model.bert.config._attn_implementation == "supervised_sdpa"
    if checkpointing:
        model.bert.gradient_checkpointing_enable()
        model.train()
    with forbid_maps(4, HEADS, TEXT + REGIONS):
        losses = losses_of(model, method, batch)
        found = gradients(mean_loss(losses), model.bert, inputs)
    eager = Grounder("eager")
    maps = eager(batch, output_attentions=True).attentions
    if name == "semi_direct":
        maps = plain_rollout(maps)
    expected = method.maps_losses(maps, batch)
    wanted = gradients(mean_loss(expected), eager.bert, inputs)
    assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    assert_close(found, wanted, atol=1e-5, rtol=1e-4)


# Options


def test_layers_heads_directions_and_weights_select():
    batch = make_batch()
    options = {"layers": [1, 2], "heads": [0, 3], "directions": ["region_to_text"]}
    model, method = prepared("direct", **options, weights={"region_to_text": 0.25})
    maps = [layer[:, [0, 3]] for layer in eager_maps(batch)[1:]]
    total, count = get_method("direct").maps_losses(maps, batch)["region_to_text"]
    assert_close(losses_of(model, method, batch), {"region_to_text": (0.25 * total, count)})


def test_semi_direct_layers_and_heads_select():
    batch = make_batch()
    model, method = prepared("semi_direct", layers=[1], heads=[0, 3])
    assert method.forward_kwargs(batch)["attention_layers"] == (0, 1)
    rollouts = plain_rollout([layer[:, [0, 3]] for layer in eager_maps(batch)])
    expected = get_method("semi_direct").maps_losses([rollouts[1]], batch)
    assert_close(losses_of(model, method, batch), expected)


def test_maps_of_zeros_stay_finite():
    maps = torch.zeros(1, 1, 3, 3).requires_grad_()
    log_alpha, log_share = from_attention_maps(maps, torch.tensor([[0, -1]]), torch.tensor([[1, 2, -1]]))
    (log_alpha[..., :2].sum() + log_share.sum()).backward()
    assert log_alpha.isfinite().all()
    assert maps.grad.isfinite().all()


def test_outputs_without_supervised_attention_are_refused():
    method = get_method("direct")
    batch = make_batch()
    unprepared = Grounder("eager")(batch, output_attentions=True)
    without_rows = supervised(bert())(inputs_embeds=batch["inputs_embeds"])
    for outputs in (unprepared, without_rows):
        with pytest.raises(ValueError, match=r"call method\.prepare"):
            method.losses(outputs, batch)


def test_indirect_needs_a_grounding_head():
    model = bert()
    model.config.grounding_head = False
    with pytest.raises(ValueError, match="grounding_head=True"):
        get_method("indirect").prepare(model)
    with pytest.raises(ValueError, match="no grounding_logits"):
        get_method("indirect").losses(SimpleNamespace(), make_batch())
