# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The methods on whole models: VL-BERT, and models outside this project through the same attention function."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from grounded_attention.modeling import VisualBERTForPhraseGrounding, VLBertConfig, VLBertForVGP
from grounded_attention.supervision import get_method, supervised_implementation
from tests.helpers.supervision_models import bert, forbid_maps
from tests.helpers.tiny_visualbert import make_model

TEXT, REGIONS = 7, 4
IMAGE_TOKEN, PATCHES = 49, 4


def grounding(text: int = TEXT) -> dict[str, torch.Tensor]:
    """Two examples of three phrases each; the second has padded text and a phrase of two regions."""
    phrase_mask = torch.zeros(2, 3, text, dtype=torch.bool)
    phrase_regions = torch.zeros(2, 3, REGIONS, dtype=torch.bool)
    for example, phrase, tokens, regions in [
        (0, 0, [1, 2], [1]),
        (0, 1, [4], [3]),
        (1, 0, [2], [1, 2]),
        (1, 2, [3], [0]),
    ]:
        phrase_mask[example, phrase, tokens] = True
        phrase_regions[example, phrase, regions] = True
    attention_mask = torch.ones(2, text, dtype=torch.long)
    attention_mask[1, 5:] = 0
    return {"phrase_mask": phrase_mask, "phrase_regions": phrase_regions, "attention_mask": attention_mask}


def mean_loss(losses: dict) -> torch.Tensor:
    return sum(total / count for total, count in losses.values())


def train(model, inputs: dict, method, batch: dict, steps: int = 4) -> list[float]:
    """The supervision loss before each of a few gradient steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        loss = mean_loss(method.losses(model(**inputs, **method.forward_kwargs(batch)), batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def eager_loss(model, inputs: dict, method, batch: dict) -> float:
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    return mean_loss(method.maps_losses(maps, batch)).item()


# VL-BERT


def vl_bert() -> VLBertForVGP:
    torch.manual_seed(0)
    config = VLBertConfig(
        hidden_size=32,
        visual_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=50,
        region_feature_size=16,
        coordinate_dim=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        region_dropout=0.0,
        classifier_dropout=0.0,
        initializer_range=0.3,
        visual_scale_text_init=1.0,
        visual_scale_region_init=1.0,
        grounding_head=True,
    )
    return VLBertForVGP(config)


def vl_bert_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    masks = {"region_attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])}
    corners = torch.rand(2, REGIONS, 2, generator=generator) / 2
    return {
        "input_ids": torch.randint(5, 50, (2, TEXT), generator=generator),
        "region_features": torch.randn(2, REGIONS, 16, generator=generator),
        "region_boxes": torch.cat([corners, corners + 0.4], -1),
        **grounding(),
        **masks,
    }


@pytest.mark.parametrize("name", ["indirect", "direct", "semi_direct"])
def test_vl_bert_learns_grounding(name):
    model, batch, method = vl_bert(), vl_bert_inputs(), get_method(name)
    method.prepare(model)
    losses = train(model, batch, method, batch)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_vl_bert_direct_equals_eager_maps_and_builds_none(checkpointing):
    model, batch, method = vl_bert(), vl_bert_inputs(), get_method("direct")
    inputs = batch
    expected = mean_loss(method.maps_losses(_eager_maps(model, inputs), batch))
    wanted = torch.autograd.grad(expected, _encoder(model))
    model.set_attn_implementation("sdpa")
    method.prepare(model)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    with forbid_maps(2, 4, TEXT + REGIONS + 1):
        loss = mean_loss(method.losses(model(**inputs, **method.forward_kwargs(batch)), batch))
        found = torch.autograd.grad(loss, _encoder(model))
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    for here, there in zip(found, wanted, strict=True):
        torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-3)


def _eager_maps(model, inputs: dict) -> tuple[torch.Tensor, ...]:
    model.set_attn_implementation("eager")
    return model(**inputs, output_attentions=True).attentions


def _encoder(model) -> list[torch.nn.Parameter]:
    """Weights that the attention of the last layer depends on."""
    last = model.vl_bert.encoder.layer[-1].attention.self
    below = model.vl_bert.encoder.layer[0]
    return [last.query.weight, last.key.weight, *below.parameters(), model.vl_bert.embeddings.word_embeddings.weight]


def test_vl_bert_without_grounding_head_is_refused():
    model = vl_bert()
    model.config.grounding_head = False
    with pytest.raises(ValueError, match="this VLBertForVGP has none"):
        get_method("indirect").prepare(model)


def test_a_class_without_grounding_head_is_refused():
    model = make_model(VisualBERTForPhraseGrounding, grounding_head=True)
    with pytest.raises(ValueError, match="this VisualBERTForPhraseGrounding has none: use a model for VGP"):
        get_method("indirect").prepare(model)


# Models outside the project


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_transformers_bert_is_supervised(name):
    batch, method, model = grounding(), get_method(name), bert()
    batch |= {
        "text_positions": torch.arange(TEXT).expand(2, -1),
        "region_positions": torch.arange(TEXT, TEXT + REGIONS).expand(2, -1),
    }
    mask = torch.cat([batch["attention_mask"], torch.ones(2, REGIONS, dtype=torch.long)], 1)
    inputs = {"inputs_embeds": torch.randn(2, TEXT + REGIONS, 32), "attention_mask": mask}
    method.prepare(model)
    losses = train(model, inputs, method, batch)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


def llava() -> LlavaForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    vision = CLIPVisionConfig(**sizes, image_size=8, patch_size=4, projection_dim=32)
    text = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=50, initializer_range=0.3)
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, vision_feature_select_strategy="default"
    )
    return LlavaForConditionalGeneration(config)


def test_llava_is_supervised():
    """Regions are the four patches; they come first, so that words can attend to them in a causal model."""
    model, method = llava(), get_method("direct", directions=["text_to_region"])
    batch = grounding(text=TEXT)
    batch |= {
        "text_positions": torch.arange(1 + PATCHES, 1 + PATCHES + TEXT).expand(2, -1),
        "region_positions": torch.arange(1, 1 + PATCHES).expand(2, -1),
    }
    words = torch.randint(5, 40, (2, TEXT), generator=torch.Generator().manual_seed(2))
    start, image = torch.full((2, 1), 1), torch.full((2, PATCHES), IMAGE_TOKEN)
    inputs = {
        "input_ids": torch.cat([start, image, words], 1),
        "attention_mask": torch.cat([torch.ones(2, 1 + PATCHES, dtype=torch.long), batch["attention_mask"]], 1),
        "pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3)),
    }
    expected = eager_loss(llava(), inputs, method, batch)
    method.prepare(model)
    losses = train(model, inputs, method, batch)
    assert losses[0] == pytest.approx(expected, abs=1e-5)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.95 * losses[0]


def test_a_model_outside_the_attention_interface_is_refused():
    model = bert()
    model.set_attn_implementation = lambda name: None  # what transformers does for old models, besides a warning
    with pytest.raises(ValueError, match="does not use the AttentionInterface of transformers"):
        get_method("direct").prepare(model)
    assert supervised_implementation(model) == "supervised_sdpa"
