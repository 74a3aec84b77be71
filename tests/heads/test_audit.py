# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit's counts against plain loops over full eager attention maps, on every kind of model; options, errors."""

import numpy as np
import pytest
import torch
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
    if kind in ("vl_bert", "visualbert"):
        model.set_attn_implementation("eager")
        names = ("input_ids", "attention_mask", "token_type_ids", "region_features", "region_boxes")
        given = {name: batch[name] for name in (*names, "region_attention_mask")}
        maps = torch.stack(model.base_model(**given, output_attentions=True).attentions)[:, 0]
        end = text + batch["region_features"].shape[1]
        return maps[:, :, :text, text:end], maps[:, :, text:end, :text]
    words = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    if kind == "visual_bert":
        types = torch.zeros(batch["region_features"].shape[:2], dtype=torch.long)
        seen = {"visual_embeds": batch["region_features"], "visual_token_type_ids": types}
        seen["visual_attention_mask"] = batch["region_attention_mask"]
        maps = torch.stack(model.base_model(**words, **seen, output_attentions=True).attentions)[:, 0]
        return maps[:, :, :text, text:], maps[:, :, text:, :text]
    seen = {"visual_feats": batch["region_features"], "visual_pos": batch["region_boxes"]}
    back = []  # transformers returns one direction; the other is computed again from the inputs of its attention

    def record(module, args, kwargs, outputs):
        query = args[0]
        context = args[1]
        if query.shape[1] == batch["region_features"].shape[1]:
            shape = (1, -1, HEADS, SIZES["hidden_size"] // HEADS)
            q, k = (
                layer(x).view(shape).transpose(1, 2) for layer, x in ((module.query, query), (module.key, context))
            )
            back.append((q @ k.transpose(2, 3) / shape[3] ** 0.5).softmax(-1)[0])

    layers = model.base_model.encoder.x_layers
    hooks = [layer.visual_attention.att.register_forward_hook(record, with_kwargs=True) for layer in layers]
    there = model.base_model(**words, **seen, output_attentions=True).cross_encoder_attentions
    for hook in hooks:
        hook.remove()
    return torch.stack(there)[:, 0], torch.stack(back)


def overlap(box, other):
    width, height = (min(box[i + 2], other[i + 2]) - max(box[i], other[i]) for i in (0, 1))
    both = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    return both / (sum(areas) - both)


def brute_force(model, processor, examples, regions, word="last", merged=False):
    """(direction, group, image) -> [items, right by head, share by head, baseline, chance, reachable]."""
    sums = {}

    def add(direction, groups, image, row, candidates, gold, favourite):
        right = np.array([[max(candidates, key=lambda c: head[c].item()) in gold for head in heads] for heads in row])
        share = np.array([[sum(head[c].item() for c in candidates) for head in heads] for heads in row])
        found = [1, right.astype(int), share, int(favourite in gold), len(gold) / len(candidates), int(bool(gold))]
        for group in ("all", *groups):
            known = sums.get((direction, group, image))
            sums[direction, group, image] = (
                found if known is None else [a + b for a, b in zip(known, found, strict=True)]
            )

    for example in examples:
        record = regions[example.image_id]
        spans = [{"sentence": 0, "start": p.start, "end": p.end} for p in example.phrases]
        batch = processor(
            [example.caption], region_features=[record.features], region_boxes=[record.boxes], phrases=[spans]
        )
        there, back = full_maps(model, batch)
        first = int(batch["region_boxes"].shape[1] > len(record.boxes))  # the whole image comes first
        candidates = list(range(first, first + len(record.boxes)))
        best = first + (0 if record.scores is None else int(record.scores.argmax()))
        meant = {}
        for number, phrase in enumerate(example.phrases):
            if not len(phrase.boxes):
                continue
            tokens = batch["phrase_mask"][0, number].nonzero().flatten().tolist()
            queried = {"last": tokens[-1:], "first": tokens[:1], "mean": tokens}[word]
            boxes = phrase.boxes.tolist()
            if merged:
                boxes = [[*np.min(boxes, 0)[:2], *np.max(boxes, 0)[2:]]]
            gold = {c for c in candidates if any(overlap(record.boxes[c - first].tolist(), b) >= 0.5 for b in boxes)}
            row = sum(there[:, :, token] for token in queried) / len(queried)
            add("text_to_region", phrase.types, example.image_id, row, candidates, gold, best)
            for region in gold:
                found = meant.setdefault(region, (set(), []))
                found[0].update(tokens)
                found[1].extend(group for group in phrase.types if group not in found[1])
        words = list(range(1, batch["input_ids"].shape[1] - 1))  # without [CLS] and [SEP]
        for region, (tokens, groups) in meant.items():
            add("region_to_text", groups, example.image_id, back[:, :, region], words, tokens, 1)
    return sums


def assert_equal(result, expected):
    found = {
        (direction, group, image): (counts, place)
        for direction, groups in result.entities.items()
        for group, counts in groups.items()
        for place, image in enumerate(counts.image_ids)
    }
    assert found.keys() == expected.keys()
    for key, (counts, place) in found.items():
        items, correct, share, baseline, chance, reachable = expected[key]
        assert counts.items[place] == items and counts.baseline[place] == baseline, key
        np.testing.assert_array_equal(counts.correct[place], correct, err_msg=str(key))
        np.testing.assert_allclose(counts.share[place], share, atol=1e-5)
        assert counts.chance[place] == pytest.approx(chance) and counts.reachable[place] == reachable, key


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
    assert result.layers == tuple(f"{'cross ' if 'lxmert' in name else ''}{n}" for n in range(LAYERS))
    assert result.about["phrases"] == {"judged": 42, "without_boxes": 14, "truncated": 0, "no_token": 0}


@pytest.mark.parametrize("options", [{"word": "first"}, {"merged": True}])
def test_first_word_and_merged_box(options):
    regions = make_regions(scores=False)
    examples = make_examples(regions)
    model = vl_bert()
    expected = brute_force(model, processor_of(model), examples, regions, **options)
    given = {"word": options.get("word", "last"), "merged_box": options.get("merged", False)}
    result = audit(vl_bert(), processor_of(model), examples, regions, **given, progress=False)
    assert_equal(result, expected)
    assert result.about["baseline"] == FIRST


def test_the_size_of_batches_does_not_matter_and_relations_are_counted_beside():
    regions = make_regions()
    examples = make_examples(regions)
    model = vl_bert()
    one, many = (
        audit(model, processor_of(model), examples, regions, relations=examples, batch_size=size, progress=False)
        for size in (1, 64)
    )
    assert one.about["baseline"] == CONFIDENT
    assert set(one.relations) == {"x", "y"}
    assert set(one.entities["text_to_region"]) == {"all", "x", "y"}
    for group in ("x", "y"):
        for first, second in ((one, many), (one, one)):
            alone = first.relations[group]
            beside = second.entities["text_to_region"][group]
            assert alone.image_ids == beside.image_ids
            np.testing.assert_array_equal(alone.correct, beside.correct)
            np.testing.assert_allclose(alone.share, beside.share, atol=1e-5)


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
    rng = np.random.default_rng(0)
    boxes = np.tile(np.array([[0.1, 0.1, 0.9, 0.9]], np.float32), (40, 1))
    regions = {"i": Record(boxes, rng.standard_normal((40, FEATURES)).astype(np.float32), None)}
    example = AuditExample("i", "a b c d e", (Phrase("", 0, 3, boxes=boxes[:1]),))
    model = vl_bert()
    with forbid_maps(2, HEADS, 7 + 41 + 1):
        audit(model, processor_of(model), [example] * 2, regions, progress=False)
        with pytest.raises(AssertionError, match="makes a tensor"):
            model.set_attn_implementation("eager")
            audit(model, processor_of(model), [example] * 2, regions, progress=False)


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
    text = torch.tensor([[0, 1, 2, 3]] * 2)
    batch = {"inputs_embeds": embeds, "text_positions": text + 5, "region_positions": text}
    rows = torch.tensor([[1, -1], [0, 3]])
    columns = torch.tensor([[0, 2, 3, -1]] * 2)
    found = get_observer(bert).observe(batch, {"region_to_text": (rows, columns), "text_to_region": (rows, columns)})
    bert.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(bert(inputs_embeds=embeds, output_attentions=True).attentions)  # (L, B, H, N, N)
    for direction, row, column in (("text_to_region", 5, 0), ("region_to_text", 0, 5)):
        log_alpha, log_share = found[direction]
        expected = maps[:, 1, :, row + 3][..., [column, column + 2, column + 3]]
        torch.testing.assert_close((log_alpha + log_share[..., None]).exp()[:, 1, :, 1, :3], expected)


def test_models_that_cannot_be_read_are_refused():
    vilt = ViltModel(ViltConfig(**SIZES, num_hidden_layers=1, image_size=32, patch_size=16))
    with pytest.raises(ValueError, match="ViltModel does not use the AttentionInterface of transformers"):
        get_observer(vilt)
    with pytest.raises(ValueError, match="is not a model of transformers"):
        get_observer(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="has no text_positions, region_positions"):
        get_observer(BertModel(BertConfig(**SIZES, num_hidden_layers=1))).observe(
            {"input_ids": torch.ones(1, 2, dtype=torch.long)},
            {"text_to_region": (torch.zeros(1, 1).long(), torch.zeros(1, 1).long())},
        )


@pytest.mark.parametrize(
    ("options", "message"),
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
    given = {"examples": make_examples(regions), "progress": False, **options}
    model = vl_bert()
    with pytest.raises(ValueError, match=message):
        audit(model, processor_of(model), given.pop("examples"), regions, **given)


# Examples of a builder's rows


def test_examples_of_rows_of_images_and_of_pairs():
    box = [0.0, 0.0, 0.5, 0.5]
    phrases = [
        {"text": "a dog", "start": 0, "end": 5, "sentence": 0, "boxes": [box], "entity": "1", "types": ["animals"]},
        {"text": "it", "start": 9, "end": 11, "sentence": 0, "boxes": [], "entity": "0", "types": ["notvisual"]},
        {"text": "another", "start": 0, "end": 7, "sentence": 1, "boxes": [box], "entity": "1", "types": []},
    ]
    told = {"captions": ["a dog as it", "another"], "caption_ids": ["7#0", "7#1"], "related": [True, False]}
    (example,) = grounded_examples([{"image_id": "7", **told, "phrases": phrases}])
    assert (example.image_id, example.caption) == ("7", "a dog as it")
    assert [(p.start, p.end, p.boxes.tolist(), p.types) for p in example.phrases] == [
        (0, 5, [box], ("animals",)),
        (9, 11, [], ("notvisual",)),
    ]
    pair = {"image_id": "7", "captions": ["a dog", "x"], "caption_ids": ["7#0", "9#3"]}
    pair["phrases"] = [{"sentence": 0, "start": 0, "end": 5, "boxes": [box]}]
    (example,) = grounded_examples([pair, {**pair, "captions": ["a dog", "y"]}])  # a caption of several pairs is one
    assert (example.caption, example.phrases[0].boxes.shape) == ("a dog", (1, 4))
    with pytest.raises(ValueError, match="columns question have no phrases with boxes"):
        list(grounded_examples([{"question": "what"}]))


def test_the_counts_keep_no_arrays_of_a_batch():
    items = 400
    tokens = 5
    heads = 6
    one = torch.arange(tokens)[None]
    asked = Items(
        one,
        one,
        np.zeros(items, dtype=np.int64),
        np.zeros((items, 1), dtype=np.int64),
        np.ones((items, tokens), dtype=bool),
        np.ones(items, dtype=bool),
        [(f"group {number}",) for number in range(items)],
        [np.zeros((1, 4))] * items,
    )
    pair = torch.zeros(2, 1, heads, tokens, tokens).log_softmax(-1), torch.zeros(2, 1, heads, tokens)
    sums = item_sums(pool(pair, asked), asked)
    tally = Tally()
    tally.add(asked, {name: sums[name] for name in ("correct", "share")}, ["image"], [0])
    kept = [array for sums in tally.sums.values() for array in (sums["correct"], sums["share"])]
    assert len(kept) == 2 * (items + 1)
    assert {array.shape for array in kept} == {(2, heads)}
    assert all(array.base is None for array in kept)


@pytest.mark.parametrize("make", [vl_bert, lxmert])
def test_heads_of_a_model_that_reads_regions_are_ranked(make, tmp_path):
    """The ranking, its file and its boxes: those of the audit, and the region that the heads attend to most."""
    model = make()
    regions = make_regions()
    given = make_examples(regions)
    processor = processor_of(make())
    ranking = rank_heads(model, processor, given, {}, regions=regions, count=2, words="last", ablate=0)
    counts = audit(model, processor, given, regions, directions=["text_to_region"], progress=False).counts
    np.testing.assert_allclose(ranking.reported_on.counts.accuracy, counts.accuracy)
    best = np.unravel_index(counts.accuracy.argmax(), counts.accuracy.shape)
    assert counts.accuracy[ranking.heads[0]] == counts.accuracy[best]
    by_name = {score.name: score for score in ranking.boxes}
    assert by_name["best head"].pointing == by_name["best head"].accuracy == counts.accuracy[best]
    chosen = ChosenHeads.from_file(ranking.save(tmp_path))
    assert chosen.heads == ranking.heads
    table = HeadTable.load(tmp_path)
    np.testing.assert_array_equal(table.counts.correct, ranking.reported_on.counts.correct)
    if make is vl_bert:
        chosen.check(model)
    with pytest.raises(ValueError, match="for image tokens only"):
        rank_heads(model, processor, given, {}, regions=regions, rank="localization")
