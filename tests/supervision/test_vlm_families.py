# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The contract of every family of vision-language models: reported rows equal eager maps, and a training step trains.

It fails when transformers changes how keyword arguments reach the attention of a family.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.reading import get_observer, read_phrases
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method, supervise
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.supervise import head_layers
from tests.helpers.tiny_vlm_batches import eager_maps, make_batch
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, make_processor, meant


def image_places(batch, example):
    places = batch["region_positions"][example]
    return places[places >= 0]


@torch.no_grad()
@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("model_type", [*PROCESSORS, *ANSWERERS])
def test_rows_equal_eager_maps(model_type, padding_side):
    model, inputs, batch = make_batch(model_type, padding_side)
    maps = eager_maps(model, inputs)
    words = batch["text_positions"]
    queries = ((words, batch["region_positions"]),)
    with supervise(model):
        reports = observed_layers(model(**inputs, attention_queries=queries, output_attentions=True))
    assert len(reports) == len(maps) == len(head_layers(model))
    for layer, report in zip(maps, reports, strict=True):
        log_alpha, log_share = report.pairs[0]
        found = (log_alpha + log_share[..., None]).exp()
        for example in range(2):
            known = words[example] >= 0
            columns = image_places(batch, example)
            expected = layer[example][:, words[example][known]][..., columns]
            rows = found[example][:, known, : len(columns)]
            assert_close(rows, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model_type", [*PROCESSORS, *ANSWERERS])
def test_a_training_step_with_direct(model_type):
    """The loss is that of eager maps, and a step on it lowers it."""
    model, inputs, batch = make_batch(model_type, "right")
    method = get_method("direct", directions=["text_to_region"])
    expected = method.maps_losses(eager_maps(model, inputs), batch)["text_to_region"]
    method.prepare(model)
    model.train()
    for part in model.modules():
        part.training = not isinstance(part, torch.nn.BatchNorm3d)  # Emu 3 makes its codes as in evaluation
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # small for experts, which change by jumps
    totals = []
    for _ in range(2):
        outputs = model(**inputs, **method.forward_kwargs(batch))
        total, count = method.losses(outputs, batch)["text_to_region"]
        assert count == 2 + 2 + 2  # "a dog", "small cat", "red balls"
        totals.append(total)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_close(totals[0], expected[0], atol=1e-4, rtol=1e-4)
    assert totals[1] < totals[0]


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", "paligemma"])
def test_semi_direct_is_the_rollout_of_eager_maps(model_type):
    """One row at a time: the share of the gold image tokens in the rollout, among all image tokens."""
    model, inputs, batch = make_batch(model_type, "left")
    method = get_method("semi_direct", directions=["text_to_region"])
    method.prepare(model)
    total, count = method.losses(model(**inputs, **method.forward_kwargs(batch)), batch)["text_to_region"]
    maps = eager_maps(model, inputs)
    losses = []
    for example in range(2):
        itself = torch.eye(maps[0].shape[-1])
        rollout = itself
        rollouts = []
        for layer in maps:
            mixed = layer[example].mean(0) + itself
            rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout
            rollouts.append(rollout)
        places = image_places(batch, example)
        for phrase, word in batch["phrase_mask"][example].nonzero():  # no word is in two phrases
            row = batch["text_positions"][example, word]
            gold = batch["phrase_regions"][example, phrase][: len(places)].bool()
            shares = [layer[row, places[gold]] / layer[row, places].sum() for layer in rollouts]
            losses.append(-torch.cat(shares).log().mean())
    assert count == len(losses) == 6
    assert_close(total, sum(losses), rtol=1e-3, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llava_next", "smolvlm", "qwen3_vl"])
def test_grounding_is_measured_on_tokens_with_a_place(model_type):
    """`AttentionGrounding` chooses among the candidates; newlines are none."""
    model, inputs, batch = make_batch(model_type, "left")
    maps = eager_maps(model, inputs)
    metric = AttentionGrounding(rollout=False)
    with supervise(model):
        metric.update(model(**inputs, **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())["text_to_region_by_head"]
    for layer, found in zip(maps, figures, strict=True):
        right = []
        for example, phrase, word in batch["phrase_mask"].nonzero():
            candidates = batch["region_candidate_mask"][example]
            columns = batch["region_positions"][example][candidates]
            gold = batch["phrase_regions"][example, phrase][candidates]
            row = layer[example][:, batch["text_positions"][example, word], columns]  # (heads, columns)
            right.append(gold[row.argmax(-1)].double())
        assert found == pytest.approx(torch.stack(right).mean(0).tolist())


@pytest.mark.parametrize("model_type", [*meant(), *ANSWERERS])
def test_default_directions_leave_out_what_a_causal_model_cannot_see(model_type):
    """Without a choice every direction has a row that sees a gold column; PaliGemma's image sees its prompt."""
    model, inputs, batch = make_batch(model_type, "right")
    method = get_method("direct", weights={"text_to_region": 0.5})
    method.prepare(model)
    both = ("text_to_region", "region_to_text")
    assert method.directions == (both if model_type == "paligemma" else both[:1])
    assert get_method(**method.get_config_dict()).get_config_dict() == method.get_config_dict()
    with torch.no_grad():
        losses = method.losses(model(**inputs, **method.forward_kwargs(batch)), batch)
    for _, count in losses.values():
        assert count > 0


@torch.no_grad()
def test_words_before_an_image_of_mllama_see_none_of_it():
    """Its eager maps have equal numbers there, over padded tiles too."""
    processor = make_processor("mllama")
    model = make_model("mllama", processor.tokenizer)
    patches = PatchGroundingProcessor(processor)
    picture = np.random.default_rng(3).integers(0, 255, (16, 40, 3), dtype=np.uint8)
    prompt = f"two {patches.placeholder} balls"
    batch = patches(prompt, images=[picture], phrases=[{"text": "two"}, {"text": "balls"}])
    read = read_phrases(get_observer(model), batch)[:, 0]  # (layers, heads, phrases, regions)
    assert not read[:, :, 0].any()
    assert_close(read[[1, 3], :, 1].sum(-1), torch.ones(2, 4))
    in_picture = batch["region_candidate_mask"][0]
    assert 0 < read[[1, 3], :, 1][..., in_picture].sum(-1).min() < 1, "class tokens and padded tiles have no place"
    assert not read[:, :, 1, 3 * 17 :].any(), "a wide picture has three of four tiles"

    processor.image_processor.patch_size = 2
    with pytest.raises(ValueError, match="patch_size = 4"):
        patches.check_model(model.config)


def test_a_processor_of_another_type_is_refused():
    """That of T5Gemma 2 is of the class of Gemma 3's."""
    processor = make_processor("gemma3")
    with pytest.raises(ValueError, match="t5gemma2"):
        rank_heads(make_model("t5gemma2", processor.tokenizer), processor, [], {})
