# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit's counts against plain loops over full eager attention maps, on every kind of model; options, errors."""

import contextlib
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertModel,
    LxmertConfig,
    LxmertForPreTraining,
    LxmertModel,
    ViltConfig,
    ViltModel,
    VisualBertConfig,
    VisualBertForPreTraining,
    VisualBertModel,
)

from grounded_attention.heads.examples import AuditExample, grounded_examples
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.items import CONFIDENT, FIRST, Items
from grounded_attention.heads.measure import Tally, audit, item_sums, pool
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.reading import get_observer
from grounded_attention.heads.table import HeadTable
from grounded_attention.modeling import VisualBERTConfig, VisualBERTForVGP, VisualBERTModel
from grounded_attention.processing.phrase import Phrase
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.supervision_models import forbid_maps
from tests.helpers.tiny_audit import (
    FEATURES,
    HEADS,
    LAYERS,
    VOCABULARY,
    Record,
    make_examples,
    make_regions,
    processor_of,
    vl_bert,
)

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": HEADS, "initializer_range": 0.6}
SIZES |= {"vocab_size": len(VOCABULARY), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def visualbert(cls=VisualBERTForVGP):
    torch.manual_seed(0)
    return cls(VisualBERTConfig(**SIZES, num_hidden_layers=LAYERS, region_feature_size=FEATURES)).eval()


def visual_bert(cls=VisualBertModel):
    torch.manual_seed(0)
    return cls(
        VisualBertConfig(**SIZES, num_hidden_layers=LAYERS, visual_embedding_dim=FEATURES, pad_token_id=0)
    ).eval()


def lxmert(cls=LxmertModel):
    torch.manual_seed(0)
    layers = {"l_layers": 1, "r_layers": 1, "x_layers": LAYERS}
    return cls(LxmertConfig(**SIZES, **layers, visual_feat_dim=FEATURES)).eval()


MODELS = {
    "vl_bert": vl_bert,
    "visualbert": visualbert,
    "visualbert without heads": lambda: visualbert(VisualBERTModel),
    "visual_bert": visual_bert,
    "visual_bert with heads": lambda: visual_bert(VisualBertForPreTraining),
    "lxmert": lxmert,
    "lxmert with heads": lambda: lxmert(LxmertForPreTraining),
}


# Brute force: one caption at a time, full maps of the model's own eager code


@torch.no_grad()
def full_maps(model, batch):
    """(L, H, T, R) attention from text to regions and (L, H, R, T) back, of a batch of one."""
    kind = model.config.model_type
    text = batch["input_ids"].shape[1]
    features = batch["region_features"]
    end = text + features.shape[1]
    words = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    if kind == "lxmert":
        return lxmert_maps(model.base_model, words, features, batch["region_boxes"])
    if kind == "visual_bert":
        seen = {
            "visual_embeds": features,
            "visual_token_type_ids": torch.zeros(features.shape[:2], dtype=torch.long),
            "visual_attention_mask": batch["region_attention_mask"],
        }
    else:
        model.set_attn_implementation("eager")
        seen = {name: batch[name] for name in ("region_features", "region_boxes", "region_attention_mask")}
    maps = torch.cat(list(model.base_model(**words, **seen, output_attentions=True).attentions))
    return maps[:, :, :text, text:end], maps[:, :, text:end, :text]


def by_head(states):
    """(H, N, D) of the first example."""
    return states[0].unflatten(1, (HEADS, -1)).transpose(0, 1)


def lxmert_maps(model, words, features, boxes):
    """transformers returns one direction; the other is computed again from the inputs of its attention."""
    back = []

    def record(module, args, kwargs, outputs):
        if args[0].shape[1] == features.shape[1]:
            query = by_head(module.query(args[0]))
            key = by_head(module.key(args[1]))
            scores = query @ key.transpose(1, 2) / query.shape[2] ** 0.5
            back.append(scores.softmax(-1))

    with contextlib.ExitStack() as hooks:
        for layer in model.encoder.x_layers:
            hooks.enter_context(layer.visual_attention.att.register_forward_hook(record, with_kwargs=True))
        outputs = model(**words, visual_feats=features, visual_pos=boxes, output_attentions=True)
    return torch.cat(list(outputs.cross_encoder_attentions)), torch.stack(back)


class Sums(dict):
    """(direction, group, image) -> [items, right by head, share by head, baseline, chance, reachable]."""

    def add(self, direction, groups, image, row, candidates, gold, favourite):
        """One item: the attention `row` (L, H, N), and which of the candidates are right."""
        right = np.isin(candidates, list(gold))
        values = row[..., candidates].numpy()
        found = [1, right[values.argmax(-1)], values.sum(-1), favourite in gold, right.mean(), right.any()]
        for group in ("all", *groups):
            known = self.get((direction, group, image), [0] * 6)
            self[direction, group, image] = [a + b for a, b in zip(known, found, strict=True)]


def brute_force(model, processor, examples, regions, word="last", merged_box=False):
    sums = Sums()
    for example in examples:
        image = example.image_id
        record = regions[image]
        spans = [{"sentence": 0, "start": p.start, "end": p.end} for p in example.phrases]
        batch = processor(
            [example.caption], region_features=[record.features], region_boxes=[record.boxes], phrases=[spans]
        )
        there, back = full_maps(model, batch)
        first = int(batch["region_boxes"].shape[1] > len(record.boxes))  # the whole image comes first
        candidates = list(range(first, first + len(record.boxes)))
        best = first + (0 if record.scores is None else int(record.scores.argmax()))
        tokens_of = {}
        types_of = {}
        for number, phrase in enumerate(example.phrases):
            if not len(phrase.boxes):
                continue
            tokens = batch["phrase_mask"][0, number].nonzero()[:, 0].tolist()
            queried = {"last": tokens[-1:], "first": tokens[:1], "mean": tokens}[word]
            boxes = phrase.boxes.tolist()
            if merged_box:
                boxes = [[*np.min(boxes, 0)[:2], *np.max(boxes, 0)[2:]]]
            gold = {c for c in candidates if any(plain_iou(record.boxes[c - first], box) >= 0.5 for box in boxes)}
            row = there[:, :, queried].mean(2)
            sums.add("text_to_region", phrase.types, image, row, candidates, gold, best)
            for region in gold:
                tokens_of.setdefault(region, set()).update(tokens)
                types_of.setdefault(region, set()).update(phrase.types)
        words = list(range(1, batch["input_ids"].shape[1] - 1))  # without [CLS] and [SEP]
        for region, tokens in tokens_of.items():
            sums.add("region_to_text", types_of[region], image, back[:, :, region], words, tokens, 1)
    return sums


def assert_equal(result, expected):
    compared = 0
    for direction, groups in result.entities.items():
        for group, counts in groups.items():
            for place, image in enumerate(counts.image_ids):
                items, correct, share, baseline, chance, reachable = expected[direction, group, image]
                assert counts.items[place] == items
                assert counts.baseline[place] == baseline
                assert counts.reachable[place] == reachable
                assert counts.chance[place] == pytest.approx(chance)
                assert_array_equal(counts.correct[place], correct)
                assert_allclose(counts.share[place], share, atol=1e-5)
                compared += 1
    assert compared == len(expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("word", ["last", "mean"])
def test_counts_equal_loops_over_full_maps(name, word):
    regions = make_regions()
    examples = make_examples(regions)
    model = MODELS[name]()
    processor = processor_of(model)
    expected = brute_force(model, processor, examples, regions, word)
    result = audit(model, processor, examples, regions, word=word, batch_size=4, progress=False)
    assert_equal(result, expected)
    counts = result.entities["text_to_region"]["all"]
    assert len(np.unique(counts.accuracy)) > 2  # heads differ, or the comparison says little
    assert 0 < counts.upper_bound < 1
    assert counts.total == 14 * 3
    layers = ("cross 0", "cross 1", "cross 2") if "lxmert" in name else ("0", "1", "2")
    assert result.layers == layers
    assert result.about["phrases"] == {"judged": 42, "without_boxes": 14, "truncated": 0, "no_token": 0}


@pytest.mark.parametrize("options", [{"word": "first"}, {"merged_box": True, "word": "last"}])
def test_first_word_and_merged_box(options):
    regions = make_regions(scores=False)
    examples = make_examples(regions)
    model = vl_bert()
    expected = brute_force(model, processor_of(model), examples, regions, **options)
    result = audit(vl_bert(), processor_of(model), examples, regions, **options, progress=False)
    assert_equal(result, expected)
    assert result.about["baseline"] == FIRST


def test_the_size_of_batches_does_not_matter_and_relations_are_counted_beside():
    regions = make_regions()
    examples = make_examples(regions)
    model = vl_bert()
    processor = processor_of(model)
    one, many = (
        audit(model, processor, examples, regions, relations=examples, batch_size=size, progress=False)
        for size in (1, 64)
    )
    assert one.about["baseline"] == CONFIDENT
    assert set(one.relations) == {"x", "y"}
    assert set(one.entities["text_to_region"]) == {"all", "x", "y"}
    for group, alone in one.relations.items():
        for other in (one, many):
            beside = other.entities["text_to_region"][group]
            assert alone.image_ids == beside.image_ids
            assert_array_equal(alone.correct, beside.correct)
            assert_allclose(alone.share, beside.share, atol=1e-5)


def test_truncated_phrases_are_reported():
    regions = make_regions()
    examples = make_examples(regions)
    model = vl_bert()
    processor = processor_of(model)
    processor.tokenizer.model_max_length = 8
    phrases = audit(model, processor, examples, regions, progress=False).about["phrases"]
    assert phrases["truncated"] > 0
    assert phrases["judged"] + phrases["truncated"] == 42


def test_no_attention_map_is_ever_made_under_sdpa():
    """Captions and regions of one length, so that a map would be N x N."""
    boxes = np.tile(np.array([[0.1, 0.1, 0.9, 0.9]], np.float32), (40, 1))
    features = np.random.default_rng(0).standard_normal((40, FEATURES)).astype(np.float32)
    regions = {"i": Record(boxes, features, None)}
    example = AuditExample("i", "a b c d e", (Phrase("", 0, 3, boxes=boxes[:1]),))
    model = vl_bert()
    processor = processor_of(model)
    with forbid_maps(2, HEADS, 7 + 41 + 1):
        audit(model, processor, [example] * 2, regions, progress=False)
        model.set_attn_implementation("eager")
        with pytest.raises(AssertionError, match="makes a tensor"):
            audit(model, processor, [example] * 2, regions, progress=False)


def test_hooked_models_keep_no_maps_and_no_hooks():
    regions = make_regions()
    model = visual_bert()
    batch = processor_of(model)(
        ["a b"], region_features=[regions["image0"].features], region_boxes=[regions["image0"].boxes]
    )
    queries = {"text_to_region": (torch.tensor([[1]]), torch.tensor([[0, 1]]))}
    get_observer(model).observe(batch, queries)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_on_the_interface_needs_positions_of_tokens_and_regions():
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**SIZES, num_hidden_layers=2)).eval()
    embeds = torch.randn(2, 9, 16)
    places = torch.arange(4).expand(2, -1)
    batch = {"inputs_embeds": embeds, "text_positions": places + 5, "region_positions": places}
    queries = (torch.tensor([[1, -1], [0, 3]]), torch.tensor([[0, 2, 3, -1]] * 2))
    found = get_observer(bert).observe(batch, {"region_to_text": queries, "text_to_region": queries})
    bert.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(bert(inputs_embeds=embeds, output_attentions=True).attentions)  # (L, B, H, N, N)
    columns = torch.tensor([0, 2, 3])
    for direction, row, start in (("text_to_region", 8, 0), ("region_to_text", 3, 5)):
        log_alpha, log_share = found[direction]
        attention = (log_alpha + log_share[..., None]).exp()
        assert_close(attention[:, 1, :, 1, :3], maps[:, 1, :, row, start + columns])


VILT = {"num_hidden_layers": 1, "image_size": 32, "patch_size": 16}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ViltModel(ViltConfig(**SIZES, **VILT)), "ViltModel does not use the AttentionInterface"),
        (lambda: torch.nn.Linear(1, 1), "is not a transformers model"),
    ],
)
def test_models_that_cannot_be_read_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        get_observer(make())


def test_a_batch_without_positions_is_refused():
    model = BertModel(BertConfig(**SIZES, num_hidden_layers=1))
    places = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="has no text_positions, region_positions"):
        get_observer(model).observe({"input_ids": places}, {"text_to_region": (places, places)})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"word": "middle"}, "word='middle' is unknown"),
        ({"directions": ["up"]}, "directions=.*expected some of text_to_region, region_to_text"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"iou_threshold": 0}, "iou_threshold=0"),
        ({"examples": []}, r"no phrase can be judged \(0 judged, 0 without boxes"),
    ],
)
def test_errors(options, message):
    regions = make_regions()
    given = {"examples": make_examples(regions), "regions": regions, "progress": False, **options}
    model = vl_bert()
    with pytest.raises(ValueError, match=message):
        audit(model, processor_of(model), **given)


# Examples of a builder's rows


BOX = [0.0, 0.0, 0.5, 0.5]
ROW = """{"image_id": "7", "captions": ["a dog as it", "another"], "caption_ids": ["7#0", "7#1"],
"related": [true, false], "phrases": [
{"sentence": 0, "text": "a dog", "start": 0, "end": 5, "boxes": [[0, 0, 0.5, 0.5]], "entity": "1",
 "types": ["animals"]},
{"sentence": 0, "text": "it", "start": 9, "end": 11, "boxes": [], "entity": "0", "types": ["notvisual"]},
{"sentence": 1, "text": "another", "start": 0, "end": 7, "boxes": [[0, 0, 0.5, 0.5]], "entity": "1", "types": []}]}"""


def test_examples_of_rows_of_images():
    (example,) = grounded_examples([json.loads(ROW)])
    assert (example.image_id, example.caption) == ("7", "a dog as it")
    dog, it = example.phrases
    assert (dog.start, dog.end, dog.boxes.tolist(), dog.types) == (0, 5, [BOX], ("animals",))
    assert (it.start, it.end, it.boxes.tolist(), it.types) == (9, 11, [], ("notvisual",))


def test_a_caption_of_several_pairs_is_one_example():
    phrases = [{"sentence": 0, "start": 0, "end": 5, "boxes": [BOX]}]
    pair = {"image_id": "7", "caption_ids": ["7#0", "9#3"], "phrases": phrases}
    (example,) = grounded_examples([{**pair, "captions": ["a dog", "x"]}, {**pair, "captions": ["a dog", "y"]}])
    assert (example.caption, example.phrases[0].boxes.shape) == ("a dog", (1, 4))


def test_rows_without_phrases_are_refused():
    with pytest.raises(ValueError, match="columns question have no phrases with boxes"):
        list(grounded_examples([{"question": "what"}]))


def test_the_counts_keep_no_arrays_of_a_batch():
    items = 400
    one = torch.arange(5)[None]
    first = np.zeros((items, 1), dtype=np.int64)
    words = np.ones((items, 5), dtype=bool)
    groups = [(f"group {number}",) for number in range(items)]
    asked = Items(one, one, first[:, 0], first, words, words[:, 0], groups, [np.zeros((1, 4))] * items)
    pair = torch.zeros(2, 1, 6, 5, 5).log_softmax(-1), torch.zeros(2, 1, 6, 5)
    sums = item_sums(pool(pair, asked), asked)
    tally = Tally()
    tally.add(asked, {name: sums[name] for name in ("correct", "share")}, ["image"], [0])
    assert len(tally.sums) == items + 1
    for kept in tally.sums.values():
        for name in ("correct", "share"):
            assert kept[name].shape == (2, 6)
            assert kept[name].base is None


@pytest.mark.parametrize("make", [vl_bert, lxmert])
def test_heads_of_a_model_that_reads_regions_are_ranked(make, tmp_path):
    """The ranking, its file and its boxes: those of the audit, and the region that the heads attend to most."""
    model = make()
    regions = make_regions()
    given = make_examples(regions)
    processor = processor_of(model)
    ranking = rank_heads(model, processor, given, {}, regions=regions, count=2, words="last", ablate=0)
    counts = audit(model, processor, given, regions, directions=["text_to_region"], progress=False).counts
    assert_allclose(ranking.reported_on.counts.accuracy, counts.accuracy)
    best = counts.accuracy.max()
    assert counts.accuracy[ranking.heads[0]] == best
    by_name = {score.name: score for score in ranking.boxes}
    assert by_name["best head"].pointing == by_name["best head"].accuracy == best
    chosen = ChosenHeads.from_file(ranking.save(tmp_path))
    assert chosen.heads == ranking.heads
    table = HeadTable.load(tmp_path)
    assert_array_equal(table.counts.correct, ranking.reported_on.counts.correct)
    if make is vl_bert:
        chosen.check(model)
    with pytest.raises(ValueError, match="for image tokens only"):
        rank_heads(model, processor, given, {}, regions=regions, rank="localization")
