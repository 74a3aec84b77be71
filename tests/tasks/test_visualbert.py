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
from torch.nn.functional import cross_entropy
from transformers import BertTokenizer, set_seed

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VisualBERTConfig, VLBertConfig
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.phrase_grounding import PhraseRecall
from grounded_attention.training.loop.data import Collator, check_regions
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_scenes import run_train, tiny_recipe
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
    sizes |= {"visual_embedding_dim": FEATURE_SIZE, "max_position_embeddings": 64, "initializer_range": 0.3}
    config = VisualBERTConfig(vocab_size=len(WORDS) + 1, **sizes, **config)
    return FAMILIES["visualbert"].heads[head](config).eval()


def record(image_id, count=4):
    features = np.random.default_rng(zlib.crc32(image_id.encode())).random((count, FEATURE_SIZE)).astype(np.float16)
    return Regions(image_id, 100, 100, np.array(BOXES[:count], dtype=np.float32), features)


def table(**counts):
    return {name: record(name, count) for name, count in counts.items()}


def collated(task, rows, regions, split=None, given=None, **options):
    return Collator(TASKS[task], given or processor(), regions, split=split, options=options)(list(rows))


def run(task, batch, *targets, **config):
    return model(TASKS[task].head, **config)(**task_inputs(TASKS[task], batch, *targets))


def mean_loss(part, outputs, batch):
    return (part.total(outputs, batch) / part.count(batch)).item()


@pytest.fixture
def regions():
    return {str(image): record(str(image)) for image in range(6)}


# Pre-training


def captions(images=6, count=3):
    """Captions of two words: the first is that of the image, the second that of the caption."""
    nested = []
    for image in range(images):
        texts = [f"{WORDS[5 + image]} {WORDS[12 + number]}" for number in range(count)]
        names = [f"{image}#{number}" for number in range(count)]
        nested.append({"image_id": str(image), "captions": texts, "caption_ids": names})
    return TASKS["caption_match_pretraining"].to_rows(Dataset.from_list(nested))


def seconds(batch):
    """The second caption of each row, with its first word, which names its image."""
    tokenizer = processor().tokenizer
    texts = []
    ids = torch.where(batch["labels"] >= 0, batch["labels"], batch["input_ids"])
    for row, types in zip(ids, batch["token_type_ids"], strict=True):
        texts.append(tokenizer.decode(row[types == 1]).replace("[SEP]", "").strip())
    return texts


def test_the_second_caption_is_another_one_of_the_image_or_one_of_another_image(regions):
    rows = captions()
    batch = collated("caption_match_pretraining", rows, regions, split=rows)
    labels = batch["relationship_labels"].tolist()
    for row, second, label in zip(rows, seconds(batch), labels, strict=True):
        assert (second[0] == row["text"][0]) == (label == 1)
        assert second != row["text"]
        assert label == 0 or second in row["others"]
    assert {*labels} == {0, 1}
    again = collated("caption_match_pretraining", rows, regions, split=rows)
    assert again["relationship_labels"].tolist() == labels


def test_only_words_are_masked_and_the_image_is_whole(regions):
    rows = captions()
    batch = collated("caption_match_pretraining", rows, regions, split=rows, word_probability=1.0)
    words = batch["labels"] != -100
    specials = torch.isin(batch["input_ids"], torch.tensor([0, 2, 3]))
    assert not (words & specials).any()
    assert words.sum(1).tolist() == [4] * len(rows)
    features = [regions[row["image_id"]].features.astype(np.float32) for row in rows]
    assert np.array_equal(batch["region_features"], features)
    outputs = run("caption_match_pretraining", batch)
    of_words, of_match = TASKS["caption_match_pretraining"].losses
    expected = cross_entropy(outputs.mlm_logits.flatten(0, 1), batch["labels"].flatten())
    assert mean_loss(of_words, outputs, batch) == pytest.approx(expected.item(), rel=1e-5)
    expected = cross_entropy(outputs.relationship_logits, batch["relationship_labels"])
    assert mean_loss(of_match, outputs, batch) == pytest.approx(expected.item(), rel=1e-5)


def test_exchange_follows_its_option_and_text_is_capped():
    rows = captions()
    always = collated("caption_match_pretraining", rows, None, split=rows, exchanged=1.0, max_text_length=6)
    assert always["relationship_labels"].sum() == 0
    assert always["input_ids"].shape[1] == 6
    never = collated("caption_match_pretraining", rows, None, split=rows, exchanged=0.0)
    assert never["relationship_labels"].all()


def test_texts_of_tasks_are_read_alone():
    task = TASKS["caption_match_pretraining"]
    rows = task.to_rows(Dataset.from_list([{"example_id": "1", "image_id": "x", "text": "a b?", "answers": ["c"]}]))
    assert rows[0] == {"image_id": "x", "caption_id": "1", "text": "a b?"}
    batch = collated("caption_match_pretraining", rows, table(x=2), second_caption=False)
    assert "relationship_labels" not in batch
    assert batch["token_type_ids"].sum() == 0
    of_words, of_match = task.losses
    assert of_words.count(batch) is not None
    assert of_match.count(batch) is None


def test_a_statement_matches_where_it_is_true():
    statements = Dataset.from_list([statement(0, 1), statement(1, 0), statement(2, -1)])
    rows = TASKS["caption_match_pretraining"].to_rows(statements)
    batch = collated("caption_match_pretraining", rows, pictures(3), second_caption=False)
    assert batch["relationship_labels"].tolist() == [1, 0, -100]
    assert batch["region_token_type_ids"].tolist() == [[0, 0, 1, 1, 1]] * 3


def test_a_question_of_vcr_stands_with_its_right_choice_and_its_tags():
    questions = Dataset.from_list([vcr_rows.row(0, label=1), vcr_rows.row(1, label=-1)])
    (row,) = TASKS["caption_match_pretraining"].to_rows(questions)
    assert (row["text"], row["second"]) == ("a b c", "f a")
    options = {"second_caption": False, "word_probability": 0.0}
    batch = collated("caption_match_pretraining", [row], vcr_rows.regions(), **options)
    # [CLS] a b c [SEP] f a [SEP]: b is object 0, c is 1 and 0, the choice's a is 1
    assert batch["image_text_alignment"].tolist() == [[[2, 3], [3, 6]]]


@pytest.mark.parametrize(
    "rows, message",
    [
        (captions(count=1), "image 0: 'a h' is its only text"),
        (captions(images=1), "options.second_caption needs several images"),
    ],
)
def test_captions_that_lack_a_second_are_named(rows, message):
    exchanged = float("several" in message)
    with pytest.raises(ValueError, match=message):
        collated("caption_match_pretraining", rows, None, split=rows, exchanged=exchanged)


@pytest.mark.parametrize("task, option", {"pretraining": "regions", "vcr": "region_classes"}.items())
def test_what_the_family_does_not_predict_is_refused_by_its_option(task, option):
    task = TASKS[task]
    with pytest.raises(ValueError, match=rf"'visualbert'.*options\.{option}=false"):
        task.configure(task.Options(), VisualBERTConfig())
    assert task.configure(task.Options(**{option: False}), VisualBERTConfig()).losses


@pytest.mark.parametrize("config", [VisualBERTConfig(), VLBertConfig()])
def test_masked_regions_can_be_left_to_the_family(config):
    options = TASKS["pretraining"].Options(regions=None, relationship=False)
    task = TASKS["pretraining"].configure(options, config)
    regions = {"1": replace(record("1", 3), classes=np.zeros(3, dtype=np.int32))}
    batch = Collator(task, processor(), regions, options=options)(
        [{"image_id": "1", "caption_id": "1#0", "text": "a b c"}]
    )
    assert ("region_labels" in batch) == (config.model_type == "vl_bert")
    assert "labels" in batch


# Reasoning over two images


def statement(number, label=1, side=0):
    pair = f"dev-{number}-{side}"
    names = {
        "example_id": f"{pair}-0",
        "image_id": pair,
        "image_ids": [f"dev-{number}-0-img0", f"dev-{number}-0-img1"],
    }
    return {**names, "text": "a b c", "label": label}


def pictures(count):
    lefts = {f"dev-{number}-0-img0": 2 for number in range(count)}
    rights = {f"dev-{number}-0-img1": 3 for number in range(count)}
    return table(**lefts, **rights)


def test_regions_of_two_images_follow_one_another():
    regions = pictures(2)
    batch = collated("visual_reasoning", [statement(0), statement(1, -1)], regions, given=processor(max_regions=2))
    assert batch["region_token_type_ids"].tolist() == [[0, 0, 1, 1]] * 2
    left = regions["dev-0-0-img0"].features
    right = regions["dev-0-0-img1"].features[:2]
    assert np.array_equal(batch["region_features"][0], np.concatenate([left, right]))
    assert batch["labels"].tolist() == [1, -100]


def test_images_are_told_apart_and_their_order_counts():
    left = record("left", 2)
    right = record("right", 2)
    batch = collated("visual_reasoning", [statement(0)], {"dev-0-0-img0": left, "dev-0-0-img1": right})
    exchanged = collated("visual_reasoning", [statement(0)], {"dev-0-0-img0": right, "dev-0-0-img1": left})
    logits = run("visual_reasoning", batch).logits
    assert not torch.allclose(logits, run("visual_reasoning", exchanged).logits, atol=1e-6)


def test_statements_are_scored_and_exported(tmp_path):
    task = TASKS["visual_reasoning"]
    rows = [statement(0, 1), statement(1, 0), statement(2, -1), statement(0, 0, side=1)]
    batch = collated("visual_reasoning", rows, pictures(3))
    outputs = SimpleNamespace(logits=torch.tensor([[0.0, 2.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]]))
    metric = task.metrics()[0]
    metric.update(outputs, batch)
    figures = metric.compute(metric.state())
    # Statement 0 is right on both pairs, 1 is wrong, 2 has no label.
    assert figures == {"nlvr2_accuracy": pytest.approx(2 / 3), "nlvr2_consistency": 0.5, "nlvr2_count": 4}
    [loss] = task.losses
    expected = cross_entropy(outputs.logits, batch["labels"])
    assert mean_loss(loss, outputs, batch) == pytest.approx(expected.item())
    task.export(metric.items(), tmp_path / "predictions_test")
    written = "dev-0-0-0,True\ndev-1-0-0,True\ndev-2-0-0,False\ndev-0-1-0,False\n"
    assert (tmp_path / "predictions_test.csv").read_text() == written


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
    row = """{"image_id": "x", "width": 10, "height": 10, "captions": ["a b c d", "c d a b", "d"],
        "caption_ids": ["x#0", "x#1", "x#2"], "related": [true, false, true], "phrases": [
        {"text": "a b", "start": 0, "end": 3, "sentence": 0, "boxes": [[0.5, 0.0, 1.0, 0.5], [0.0, 0.5, 0.5, 1.0]],
         "types": ["people", "other"]},
        {"text": "c", "start": 4, "end": 5, "sentence": 0, "boxes": [[0.4, 0.4, 0.6, 0.6]], "types": ["other"]},
        {"text": "d", "start": 6, "end": 7, "sentence": 0, "boxes": [], "types": ["notvisual"]},
        {"text": "a b", "start": 4, "end": 7, "sentence": 1, "boxes": [[0.5, 0.0, 1.0, 0.5]], "types": ["people"]}]}"""
    return Dataset.from_list([json.loads(row)])


@pytest.fixture
def phrase_rows():
    return TASKS["phrase_grounding"].to_rows(entities())


def test_rows_are_captions_with_phrases_that_have_boxes(phrase_rows):
    (row,) = phrase_rows
    people, thing = row["phrases"]
    assert row["example_id"] == "x#0"
    assert (people["text"], thing["text"]) == ("a b", "c")
    assert people["boxes"] == [BOXES[1], BOXES[2]]
    with pytest.raises(ValueError, match="needs captions and phrases"):
        TASKS["phrase_grounding"].to_rows(Dataset.from_list([{"image_id": "x", "text": "a"}]))


def test_the_loss_is_that_of_the_model(phrase_rows):
    batch = collated("phrase_grounding", phrase_rows, table(x=4))
    assert batch["phrase_regions"].tolist() == [[[False, True, True, False], [False] * 4]]
    outputs = run("phrase_grounding", batch)
    own = run("phrase_grounding", batch, "phrase_regions").loss
    [loss] = TASKS["phrase_grounding"].losses
    assert mean_loss(loss, outputs, batch) == pytest.approx(own.item(), rel=1e-5)
    shares = outputs.logits[0, 0].log_softmax(-1)
    by_hand = -0.5 * shares[1] - 0.5 * shares[2] + np.log(0.5)
    assert own.item() == pytest.approx(by_hand.item(), rel=1e-4)


def ranked(*orders):
    """Logits that put the regions in these orders, phrase by phrase."""
    logits = torch.zeros(1, len(orders), 4)
    for phrase, order in enumerate(orders):
        logits[0, phrase, order] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    return SimpleNamespace(logits=logits)


def test_recalls_of_ranked_regions_by_type(phrase_rows):
    batch = collated("phrase_grounding", phrase_rows, table(x=4))
    metric = PhraseRecall()
    metric.update(ranked([0, 3, 2, 1], [0, 1, 2, 3]), batch)
    found = metric.compute(metric.state())
    # The third region is right for the first phrase (people, other), and none for the second (other).
    for name, best in {"": 0.5, "_people": 1.0, "_other": 0.5}.items():
        assert found[f"phrase_recall@1{name}"] == 0.0
        for figure in ("phrase_recall@5", "phrase_recall@10", "phrase_upper_bound"):
            assert found[figure + name] == best
    assert found["phrase_accuracy"] == 0.0
    assert found["phrase_count"] == 2
    metric.update(ranked([1, 0, 2, 3], [0, 1, 2, 3]), batch)
    items = metric.items()
    assert items["phrase_accuracy_by_caption"] == [0.0, 0.5]
    assert items["example_id"] == 2 * batch["example_id"]
    assert metric.compute(metric.state())["phrase_accuracy"] == 0.25, "captions of two phrases each"


def test_a_phrase_that_is_cut_is_a_miss(phrase_rows):
    cut = collated("phrase_grounding", phrase_rows, table(x=4), max_text_length=4)
    metric = PhraseRecall()
    metric.update(ranked([1, 0, 2, 3], [0, 1, 2, 3]), cut)
    assert not cut["phrase_mask"][0, 1].any()
    assert metric.compute(metric.state())["phrase_recall@1"] == 0.5


def test_an_image_without_regions_is_a_miss(phrase_rows):
    empty = collated("phrase_grounding", phrase_rows, table(x=0))
    outputs = run("phrase_grounding", empty)
    metric = PhraseRecall()
    metric.update(outputs, empty)
    assert metric.compute(metric.state())["phrase_upper_bound"] == 0.0
    [loss] = TASKS["phrase_grounding"].losses
    assert loss.total(outputs, empty).item() == 0.0


def test_phrase_grounding_without_regions_or_protocol_is_refused(phrase_rows):
    with pytest.raises(ValueError, match="phrase grounding needs regions: set"):
        collated("phrase_grounding", phrase_rows, None)
    assert PhraseRecall().compute({}) == {"phrase_count": 0}


# What VL-BERT has too


def test_a_question_is_answered_at_its_mask_with_the_public_loss():
    row = {"example_id": "1", "image_id": "x", "text": "a b", "answers": ["a"] * 4 + ["b"] * 6, "answer_type": ""}
    batch = collated("vqa", [row, row], table(x=2), answers=ANSWERS)
    tokenizer = processor().tokenizer
    assert tokenizer.decode(batch["input_ids"][0]) == "[CLS] a b? [MASK] [SEP]"
    assert batch["answer_positions"].tolist() == [4, 4]
    outputs = run("vqa", batch, answers=ANSWERS)
    [loss] = TASKS["vqa"].configure(TASKS["vqa"].Options(answers=ANSWERS), VisualBERTConfig()).losses
    expected = torch.nn.KLDivLoss(reduction="batchmean")(outputs.logits.log_softmax(-1), batch["labels"])
    assert mean_loss(loss, outputs, batch) == pytest.approx(expected.item(), rel=1e-5)


def test_answers_cannot_start_as_words_here():
    options = TASKS["vqa"].Options(answers=ANSWERS, initialise_answers=True)
    with pytest.raises(ValueError, match="VisualBERTForVisualQuestionAnswering does not support"):
        TASKS["vqa"].configure(options).initialise(model("vqa", answers=ANSWERS), processor())


def test_choices_of_vcr_get_the_positions_of_their_words():
    batch = collated("vcr", [vcr_rows.row()], vcr_rows.regions(), region_classes=False)
    alignment = batch["image_text_alignment"]
    # [CLS] a b c [SEP] d e [SEP]: b is object 0, c is objects 1 and 0; in the second choice "a" is object 1.
    assert alignment[0, :2].tolist() == [[[2, 3], [3, -1]], [[2, 3], [3, 6]]]
    logits = run("vcr", batch).logits
    assert logits.shape == (1, 4)
    moved = {**batch, "image_text_alignment": torch.full_like(alignment, -1)}
    assert not torch.allclose(run("vcr", moved).logits, logits, atol=1e-6)


def test_vgp_and_the_new_tasks_are_trained_by_naming_the_family(scenes, tmp_path, monkeypatch):
    methods = ["none", "indirect", "direct", "semi_direct"]
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=methods)
    classes = recipe["model"]["config"].pop("region_classes")
    recipe["model"] |= {"family": "visualbert", "family_config": {"vl_bert": {"region_classes": classes}}}
    recipe["start"] = {"options": {"regions": None, "relationship": False}, "training": recipe["training"]}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]
    assert [*results] == methods
    assert all("text_to_region_accuracy" in figures for figures in results.values())
    recipe |= {"task": "visual_reasoning", "methods": ["none"], "output_dir": str(tmp_path / "nlvr2")}
    recipe["data"]["options"] = {"image_id_format": "url_stem"}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    measured = json.loads((tmp_path / "nlvr2" / "results.json").read_text())["methods"]["none"]["figures"]["test"]
    assert {"nlvr2_accuracy", "nlvr2_consistency"} <= set(measured)
    assert (tmp_path / "nlvr2" / "none" / "predictions_test.csv").is_file()
