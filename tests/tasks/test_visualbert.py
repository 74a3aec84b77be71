# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VisualBERT's tasks: two-caption pre-training, two images, phrase grounding; VQA, VCR and VGP on it."""

import json
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertTokenizer, set_seed

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VisualBERTConfig, VLBertConfig
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.phrase_grounding import RANKS, PhraseRecall, first_hit
from grounded_attention.training.loop.data import Collator, check_regions
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS
from tests.tasks import vcr_rows

BOXES = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]]
ANSWERS = ["a", "b", "c d"]


def processor(**options):
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate([*WORDS, "?"])})
    return VisualBERTProcessor(tokenizer, **{"region_feature_size": FEATURE_SIZE, **options})


def model(head, **config):
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    fields = {
        "vocab_size": len(WORDS) + 1,
        "visual_embedding_dim": FEATURE_SIZE,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    made = FAMILIES["visualbert"].heads[head](VisualBERTConfig(**{**sizes, **fields, **config}))
    return made.eval()


def record(image_id, count=4):
    features = np.random.default_rng(zlib.crc32(image_id.encode())).random((count, FEATURE_SIZE)).astype(np.float16)
    return Regions(image_id, 100, 100, np.array(BOXES[:count], dtype=np.float32), features)


def table(**counts):
    return {name: record(name, count) for name, count in counts.items()}


def collated(task, rows, regions, split=None, given=None, **options):
    return Collator(TASKS[task], given or processor(), regions, split=split, options=options)(list(rows))


def run(task, batch, **config):
    kept = {name: batch[name] for name in TASKS[task].model_inputs if name in batch}
    return model(TASKS[task].head, **config)(**kept)


# Pre-training


def captions(images=6, each=3):
    nested = [
        {
            "image_id": str(i),
            "captions": [WORDS[5 + i] + " " + WORDS[12 + k] for k in range(each)],
            "caption_ids": [f"{i}#{k}" for k in range(each)],
        }
        for i in range(images)
    ]
    return TASKS["caption_match_pretraining"].to_rows(Dataset.from_list(nested))


def seconds(batch):
    """The second caption of each row, with its first word, which names its image."""
    tokenizer = processor().tokenizer
    ids = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
    return [
        tokenizer.decode(row[types == 1]).replace("[SEP]", "").strip()
        for row, types in zip(ids, batch["token_type_ids"], strict=True)
    ]


def test_the_second_caption_is_another_one_of_the_image_or_one_of_another_image():
    rows = captions()
    regions = {str(i): record(str(i)) for i in range(6)}
    labels = []
    for _ in range(2):
        batch = collated("caption_match_pretraining", rows, regions, split=rows)
        for row, second, label in zip(rows, seconds(batch), batch["relationship_labels"].tolist(), strict=True):
            assert (second.split()[0] == row["text"].split()[0]) == (label == 1)
            assert second != row["text"]
            assert label == 0 or second in row["others"]
        labels.append(batch["relationship_labels"].tolist())
    assert labels[0] == labels[1]
    assert 0 < sum(labels[0]) < len(labels[0])


def test_only_words_are_masked_and_the_image_is_whole():
    rows = captions()
    regions = {str(i): record(str(i)) for i in range(6)}
    batch = collated("caption_match_pretraining", rows, regions, split=rows, word_probability=1.0)
    words = ~torch.isin(batch["labels"], torch.tensor([-100]))
    specials = torch.isin(batch["input_ids"], torch.tensor([0, 2, 3]))
    assert not (words & specials).any()
    assert words.sum(1).tolist() == [4] * len(rows)
    expected = processor()(
        ["a"] * len(rows),
        region_features=[regions[r["image_id"]].features for r in rows],
        region_boxes=[regions[r["image_id"]].boxes for r in rows],
    )
    assert torch.equal(batch["region_features"], expected["region_features"])
    outputs = run("caption_match_pretraining", batch)
    losses = [part.total(outputs, batch) / part.count(batch) for part in TASKS["caption_match_pretraining"].losses]
    shifted = torch.nn.functional.cross_entropy(outputs.mlm_logits.flatten(0, 1), batch["labels"].flatten())
    assert losses[0].item() == pytest.approx(shifted.item(), rel=1e-5)
    match = torch.nn.functional.cross_entropy(outputs.relationship_logits, batch["relationship_labels"])
    assert losses[1].item() == pytest.approx(match.item(), rel=1e-5)


def test_exchange_follows_its_option_and_text_is_capped():
    rows = captions()
    always = collated("caption_match_pretraining", rows, None, split=rows, exchanged=1.0, max_text_length=6)
    assert always["relationship_labels"].sum() == 0
    assert always["input_ids"].shape[1] == 6
    never = collated("caption_match_pretraining", rows, None, split=rows, exchanged=0.0)
    assert never["relationship_labels"].all()


def test_texts_of_tasks_are_read_alone():
    questions = Dataset.from_list([{"example_id": "1", "image_id": "x", "text": "a b?", "answers": ["c"]}])
    rows = TASKS["caption_match_pretraining"].to_rows(questions)
    assert rows[0] == {"image_id": "x", "caption_id": "1", "text": "a b?"}
    batch = collated("caption_match_pretraining", rows, table(x=2), second_caption=False)
    assert "relationship_labels" not in batch
    assert batch["token_type_ids"].sum() == 0
    counted = {part.name: part.count(batch) for part in TASKS["caption_match_pretraining"].losses}
    assert counted["relationship"] is None
    assert counted["words"] is not None


def test_a_statement_matches_where_it_is_true():
    rows = TASKS["caption_match_pretraining"].to_rows(
        Dataset.from_list([statement(0, 1), statement(1, 0), statement(2, -1)])
    )
    batch = collated("caption_match_pretraining", rows, pictures(3), second_caption=False)
    assert batch["relationship_labels"].tolist() == [1, 0, -100]
    assert batch["region_token_type_ids"].tolist() == [[0, 0, 1, 1, 1]] * 3


def test_a_question_of_vcr_stands_with_its_right_choice_and_its_tags():
    row = vcr_rows.row
    rows = TASKS["caption_match_pretraining"].to_rows(Dataset.from_list([row(0, label=1), row(1, label=-1)]))
    assert len(rows) == 1
    assert (rows[0]["text"], rows[0]["second"]) == ("a b c", "f a")
    batch = collated("caption_match_pretraining", rows, vcr_rows.regions(), second_caption=False, word_probability=0.0)
    # [CLS] a b c [SEP] f a [SEP]: b is object 0, c is 1 and 0, the choice's a is 1
    assert batch["image_text_alignment"].tolist() == [[[2, 3], [3, 6]]]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (captions(each=1), {}, "image 0: 'a h' is its only text"),
        (captions(images=1), {"exchanged": 1.0}, "options.second_caption needs several images"),
    ],
)
def test_captions_that_lack_a_second_are_named(rows, options, message):
    with pytest.raises(ValueError, match=message):
        collated("caption_match_pretraining", rows, None, split=rows, **options)


def test_masked_regions_are_refused_for_a_family_that_predicts_none():
    task = TASKS["pretraining"]
    with pytest.raises(ValueError, match=r"'visualbert' do not predict.*options.regions=false"):
        task.configure(task.Options(), VisualBERTConfig())
    assert task.configure(task.Options(regions=False), VisualBERTConfig()).losses


@pytest.mark.parametrize("config", [VisualBERTConfig(), VLBertConfig()])
def test_masked_regions_can_be_left_to_the_family(config):
    options = TASKS["pretraining"].Options(regions=None, relationship=False)
    task = TASKS["pretraining"].configure(options, config)
    row = {"image_id": "1", "caption_id": "1#0", "text": "a b c"}
    table = {"1": replace(record("1", 3), classes=np.zeros(3, dtype=np.int32))}
    batch = Collator(task, processor(), table, options=options)([row])
    assert ("region_labels" in batch) == (config.model_type == "vl_bert")
    assert "labels" in batch


# Reasoning over two images


def statement(number, label=1, text="a b c"):
    pair = f"dev-{number}-0"
    names = {"example_id": f"{pair}-0", "image_id": pair, "image_ids": [f"{pair}-img0", f"{pair}-img1"]}
    return {**names, "text": text, "label": label}


def pictures(count):
    return {f"dev-{n}-0-img{side}": record(f"dev-{n}-0-img{side}", 2 + side) for n in range(count) for side in (0, 1)}


def test_regions_of_two_images_follow_one_another():
    regions = pictures(2)
    batch = collated("visual_reasoning", [statement(0), statement(1, -1)], regions, given=processor(max_regions=2))
    assert batch["region_token_type_ids"].tolist() == [[0, 0, 1, 1]] * 2
    left = regions["dev-0-0-img0"]
    right = regions["dev-0-0-img1"]
    expected = np.concatenate([left.features, right.features[:2]]).astype(np.float32)
    assert torch.equal(batch["region_features"][0], torch.from_numpy(expected))
    assert batch["labels"].tolist() == [1, -100]


def test_images_are_told_apart_and_their_order_counts():
    regions = pictures(1)
    regions["dev-0-0-img1"] = record("dev-0-0-img1", 2)
    swapped = {"dev-0-0-img0": regions["dev-0-0-img1"], "dev-0-0-img1": regions["dev-0-0-img0"]}
    logits = [
        run("visual_reasoning", collated("visual_reasoning", [statement(0)], each)).logits
        for each in (regions, regions, swapped)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2], atol=1e-6)


def test_statements_are_scored_and_exported(tmp_path):
    task = TASKS["visual_reasoning"]
    rows = [statement(0, 1), statement(1, 0), statement(2, -1)]
    rows += [{**statement(0, 0), "example_id": "dev-0-1-0"}]
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]])
    batch = collated("visual_reasoning", rows, pictures(3))
    outputs = SimpleNamespace(logits=logits)
    metric = task.metrics()[0]
    metric.update(outputs, batch)
    figures = metric.compute(metric.state())
    # Statement 0 is right on both pairs, 1 is wrong, 2 has no label.
    assert figures == {"nlvr2_accuracy": pytest.approx(2 / 3), "nlvr2_consistency": 0.5, "nlvr2_count": 4}
    [loss] = task.losses
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"])
    assert (loss.total(outputs, batch) / loss.count(batch)).item() == pytest.approx(expected.item())
    task.export(metric.items(), tmp_path / "predictions_test")
    lines = ["dev-0-0-0,True", "dev-1-0-0,True", "dev-2-0-0,False", "dev-0-1-0,False"]
    assert (tmp_path / "predictions_test.csv").read_text().splitlines() == lines


def test_a_picture_that_the_table_lacks_is_named():
    regions = pictures(2)
    del regions["dev-1-0-img1"]

    class Table(dict):
        ids = property(list)

        def __missing__(self, image_id):
            raise ValueError(f"no regions of image {image_id!r}")

    with pytest.raises(ValueError, match="'dev-1-0-img1'"):
        check_regions([Dataset.from_list([statement(0), statement(1)])], Table(regions))
    check_regions([Dataset.from_list([statement(0)])], Table(regions))


# Phrase grounding


def entities():
    told = {
        "captions": ["a b c d", "c d a b", "d"],
        "caption_ids": ["x#0", "x#1", "x#2"],
        "related": [True, False, True],
    }
    first = [BOXES[1], BOXES[2]]
    second = [[0.4, 0.4, 0.6, 0.6]]
    phrases = [
        {"text": "a b", "start": 0, "end": 3, "sentence": 0, "boxes": first, "types": ["people", "other"]},
        {"text": "c", "start": 4, "end": 5, "sentence": 0, "boxes": second, "types": ["other"]},
        {"text": "d", "start": 6, "end": 7, "sentence": 0, "boxes": [], "types": ["notvisual"]},
        {"text": "a b", "start": 4, "end": 7, "sentence": 1, "boxes": first, "types": ["people", "other"]},
    ]
    return Dataset.from_list([{"image_id": "x", "width": 10, "height": 10, **told, "phrases": phrases}])


def test_rows_are_captions_with_phrases_that_have_boxes():
    rows = TASKS["phrase_grounding"].to_rows(entities())
    assert list(rows["example_id"]) == ["x#0"]
    assert [phrase["text"] for phrase in rows[0]["phrases"]] == ["a b", "c"]
    assert rows[0]["phrases"][0]["boxes"] == [BOXES[1], BOXES[2]]
    with pytest.raises(ValueError, match="needs captions and phrases"):
        TASKS["phrase_grounding"].to_rows(Dataset.from_list([{"image_id": "x", "text": "a"}]))


def test_the_loss_is_that_of_the_model():
    batch = collated("phrase_grounding", TASKS["phrase_grounding"].to_rows(entities()), table(x=4))
    assert batch["phrase_regions"].tolist() == [[[False, True, True, False], [False] * 4]]
    outputs = run("phrase_grounding", batch)
    kept = {name: batch[name] for name in TASKS["phrase_grounding"].model_inputs if name in batch}
    own = model("phrase_grounding")(**kept, phrase_regions=batch["phrase_regions"]).loss
    [loss] = TASKS["phrase_grounding"].losses
    assert (loss.total(outputs, batch) / loss.count(batch)).item() == pytest.approx(own.item(), rel=1e-5)
    by_hand = torch.stack([-outputs.logits[0, 0].log_softmax(-1)[k] * 0.5 for k in (1, 2)]).sum() + np.log(0.5)
    assert own.item() == pytest.approx(by_hand.item(), rel=1e-4)


def ranked(*orders):
    """Logits that put the regions in these orders, phrase by phrase."""
    logits = torch.zeros(1, len(orders), 4)
    for phrase, order in enumerate(orders):
        logits[0, phrase, order] = torch.arange(4, 0, -1).float()
    return SimpleNamespace(logits=logits)


def _of_type(name, hits):
    counted = {f"recall@{k}": [hit is not None and hit <= k for hit in hits] for k in RANKS}
    counted["upper_bound"] = [hit is not None for hit in hits]
    return {f"{figure}{name}": sum(right) / len(hits) for figure, right in counted.items()}


def test_recalls_equal_the_metric_on_ranked_boxes():
    batch = collated("phrase_grounding", TASKS["phrase_grounding"].to_rows(entities()), table(x=4))
    metric = PhraseRecall()
    orders = ([0, 3, 2, 1], [0, 1, 2, 3])
    metric.update(ranked(*orders), batch)
    found = metric.compute(metric.state())
    boxes = [[BOXES[k] for k in order] for order in orders]
    gold = [[BOXES[1], BOXES[2]], [[0.4, 0.4, 0.6, 0.6]]]
    hits = [first_hit(*pair, "proposal") for pair in zip(boxes, gold, strict=True)]
    expected = {
        **_of_type("", hits),
        **_of_type("_people", hits[:1]),
        **_of_type("_other", hits),
    }  # the first has both
    assert {k.removeprefix("phrase_"): v for k, v in found.items() if "recall" in k or "upper" in k} == expected
    assert found["phrase_accuracy"] == expected["recall@1"] == 0.0
    assert found["phrase_count"] == 2
    assert expected["recall@5"] == expected["upper_bound"] == 0.5
    metric.update(ranked([1, 0, 2, 3], [0, 1, 2, 3]), batch)
    of_captions = metric.items()["phrase_accuracy_by_caption"]
    assert of_captions == [0.0, 0.5]
    assert metric.items()["example_id"] == 2 * batch["example_id"]
    assert sum(of_captions) / 2 == metric.compute(metric.state())["phrase_accuracy"], "captions of two phrases each"


def test_a_phrase_that_is_cut_and_an_image_without_regions_are_misses():
    rows = TASKS["phrase_grounding"].to_rows(entities())
    cut = collated("phrase_grounding", rows, table(x=4), max_text_length=4)
    metric = PhraseRecall()
    metric.update(ranked([1, 0, 2, 3], [0, 1, 2, 3]), cut)
    assert not cut["phrase_mask"][0, 1].any()
    assert metric.compute(metric.state())["phrase_recall@1"] == 0.5
    empty = collated("phrase_grounding", rows, table(x=0))
    metric = PhraseRecall()
    metric.update(run("phrase_grounding", empty), empty)
    assert metric.compute(metric.state())["phrase_upper_bound"] == 0.0
    [loss] = TASKS["phrase_grounding"].losses
    assert loss.total(run("phrase_grounding", empty), empty).item() == 0.0


def test_phrase_grounding_without_regions_or_protocol_is_refused():
    with pytest.raises(ValueError, match="phrase grounding needs regions: set"):
        collated("phrase_grounding", TASKS["phrase_grounding"].to_rows(entities()), None)
    assert PhraseRecall().compute({}) == {"phrase_count": 0}


# What VL-BERT has too


def test_a_question_is_answered_at_its_mask_with_the_public_loss():
    rows = [
        {"example_id": str(n), "image_id": "x", "text": "a b", "answers": ["a"] * 4 + ["b"] * 6, "answer_type": ""}
        for n in range(2)
    ]
    batch = collated("vqa", rows, table(x=2), answers=ANSWERS)
    tokenizer = processor().tokenizer
    assert tokenizer.decode(batch["input_ids"][0]) == "[CLS] a b? [MASK] [SEP]"
    at_answer = batch["input_ids"].gather(1, batch["answer_positions"][:, None])
    assert (at_answer == tokenizer.mask_token_id).all()
    outputs = run("vqa", batch, answers=ANSWERS)
    task = TASKS["vqa"].configure(TASKS["vqa"].Options(answers=ANSWERS), VisualBERTConfig())
    [loss] = task.losses
    expected = torch.nn.KLDivLoss(reduction="batchmean")(outputs.logits.log_softmax(-1), batch["labels"])
    assert (loss.total(outputs, batch) / loss.count(batch)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_answers_cannot_start_as_words_here():
    options = TASKS["vqa"].Options(answers=ANSWERS, initialise_answers=True)
    with pytest.raises(ValueError, match="VisualBERTForVisualQuestionAnswering does not support"):
        TASKS["vqa"].configure(options).initialise(model("vqa", answers=ANSWERS), processor())


def test_choices_of_vcr_get_the_positions_of_their_words():
    batch = collated("vcr", [vcr_rows.row()], vcr_rows.regions(), region_classes=False)
    # [CLS] a b c [SEP] d e [SEP]: b is object 0, c is objects 1 and 0; in the second choice "a" is object 1.
    assert batch["image_text_alignment"].tolist()[0][0] == [[2, 3], [3, -1]]
    assert batch["image_text_alignment"].tolist()[0][1] == [[2, 3], [3, 6]]
    outputs = run("vcr", batch)
    assert outputs.logits.shape == (1, 4)
    moved = {**batch, "image_text_alignment": torch.full_like(batch["image_text_alignment"], -1)}
    assert not torch.allclose(run("vcr", moved).logits, outputs.logits, atol=1e-6)


def test_classes_of_regions_are_refused_by_name():
    task = TASKS["vcr"]
    with pytest.raises(ValueError, match=r"'visualbert'.*options\.region_classes=false"):
        task.configure(task.Options(), VisualBERTConfig())
    assert task.configure(task.Options(region_classes=False), VisualBERTConfig()).losses


def test_vgp_and_the_new_tasks_are_trained_by_naming_the_family(tmp_path, monkeypatch):
    scenes = tiny_scenes(tmp_path / "scenes")
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none", "indirect", "direct", "semi_direct"])
    recipe["model"] |= {"family": "visualbert"}
    own = {"region_classes": recipe["model"]["config"].pop("region_classes")}
    recipe["model"]["family_config"] = {"vl_bert": own}
    recipe["start"] = {"options": {"regions": None, "relationship": False}, "training": recipe["training"]}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["methods"]) == {"none", "indirect", "direct", "semi_direct"}
    assert all("text_to_region_accuracy" in figures for figures in results["methods"].values())
    recipe |= {"task": "visual_reasoning", "methods": ["none"], "output_dir": str(tmp_path / "nlvr2")}
    recipe["data"]["options"] = {"image_id_format": "url_stem"}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    measured = json.loads((tmp_path / "nlvr2" / "results.json").read_text())["methods"]["none"]["figures"]["test"]
    assert {"nlvr2_accuracy", "nlvr2_consistency"} <= set(measured)
    assert (tmp_path / "nlvr2" / "none" / "predictions_test.csv").is_file()
