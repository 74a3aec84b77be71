# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Doubt of nouns: its numbers against eager passes, its fit and scores against scikit-learn, its file and its page."""

import json
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForImageTextToText, AutoProcessor

from grounded_attention import space
from grounded_attention.commands import heads
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.heads_file import ChosenHeads, DoubtModel, fit_doubt
from grounded_attention.lens.doubt import word_evidence
from grounded_attention.lens.doubt_fitting import judge_nouns, measure_doubt, names_of_images
from grounded_attention.lens.exchanges import ready
from grounded_attention.lens.look import look
from grounded_attention.lens.page import lens_page
from grounded_attention.lens.sequences import add_answer, read_prompt
from grounded_attention.metrics.classification import auroc, calibration_error
from grounded_attention.pages.figures import reliability_figure
from grounded_attention.processing.phrase import Phrase
from tests.helpers.commands import read_error, read_result
from tests.helpers.tiny_vlm_models import make_pair

pytestmark = pytest.mark.drawn_figures
TEXT = "what is the small cat near two red balls ?"
ANSWER = "the dog runs near a cat"
HEADS = ((1, 2), (0, 0))
PICTURES = {
    str(seed): Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 56, 3), dtype=np.uint8))
    for seed in range(6)
}
PICTURE = PICTURES["0"]
NAMES = {"0": {"dog"}, "1": {"cat"}, "2": {"dog", "cat"}, "3": {"red"}, "4": {"two"}, "5": {"small", "two"}}
NOUNS = {name: (name,) for name in ("dog", "cat", "red", "two", "small", "near", "runs")} | {"balls": ("dog", "red")}
MODEL = DoubtModel(0.4, -2.0, 3.0, -0.1, ["dog", "cat"])


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
def test_numbers_of_words_equal_an_eager_pass(family):
    model, patches = ready(*make_pair(family))
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    ids = patches.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    whole = add_answer(model, patches.tokenizer, prompt, ids)
    words, evidence = word_evidence(model, patches, whole, HEADS)
    assert [word.text for word in words] == ANSWER.split()

    lens = look(model, patches, PICTURE, TEXT, answer=ANSWER, form="contribution")
    model.set_attn_implementation("eager")
    result = model(**whole.inputs, output_attentions=True)
    columns = prompt.batch["region_positions"][0]
    log_probabilities = result.logits[0].detach().log_softmax(-1)
    for place, (word, values) in enumerate(zip(words, evidence.tolist(), strict=True)):
        [row] = word.rows
        maps = [result.attentions[layer][0, head, row, columns].detach() for layer, head in HEADS]
        share = float(torch.stack(maps).sum(-1).mean())
        contributed = lens.share[place - len(words)].sum()
        said = float(log_probabilities[row - 1, whole.inputs["input_ids"][0, row]])
        assert_allclose(values, [share, contributed, said], rtol=1e-4, atol=1e-5)


def test_an_answer_without_words_has_no_numbers():
    model, patches = ready(*make_pair("llava"))
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    words, evidence = word_evidence(model, patches, add_answer(model, patches.tokenizer, prompt, []), HEADS)
    assert words == () and evidence.shape == (0, 3)


def drawn(count=300, seed=0):
    """Evidence on unlike scales, labels that depend on it, and images of some nouns each."""
    rng = np.random.default_rng(seed)
    evidence = rng.normal(size=(count, 3)) * [0.01, 1, 30] + [5, 0, -40]
    chance = 1 / (1 + np.exp((evidence[:, 2] + 40) / 20 - 100 * (evidence[:, 0] - 5)))
    return evidence, (rng.random(count) < chance).tolist(), [str(number) for number in rng.integers(40, size=count)]


def test_the_fit_is_that_of_scikit_learn():
    evidence, absent, _ = drawn()
    fitted = fit_doubt(evidence, absent, ["dog", "cat"])
    scaler = StandardScaler().fit(evidence)
    oracle = LogisticRegression(C=1, tol=1e-8).fit(scaler.transform(evidence), absent)
    assert_allclose(
        [fitted.share, fitted.contribution, fitted.log_probability], oracle.coef_[0] / scaler.scale_, rtol=1e-4
    )
    expected = oracle.predict_proba(scaler.transform(evidence))[:, 1]
    assert_allclose(fitted.probabilities(evidence), expected, atol=1e-5)
    assert fitted.nouns == ["cat", "dog"]


def test_a_number_that_is_the_same_for_all_nouns_changes_nothing():
    evidence, absent, _ = drawn()
    evidence[:, 1] = 0.1
    fitted = fit_doubt(evidence, absent, [])
    without = LogisticRegression(C=1, tol=1e-8).fit(StandardScaler().fit_transform(evidence[:, [0, 2]]), absent)
    scaled = StandardScaler().fit_transform(evidence[:, [0, 2]])
    assert_allclose(fitted.probabilities(evidence), without.predict_proba(scaled)[:, 1], atol=1e-5)


@pytest.mark.parametrize("absent", [[True] * 300, [False] * 300])
def test_nouns_of_one_kind_fit_nothing(absent):
    with pytest.raises(ValueError, match="300 nouns"):
        fit_doubt(drawn()[0], absent, [])


def test_a_number_that_is_nan_fits_nothing():
    evidence, absent, _ = drawn()
    evidence[7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fit_doubt(evidence, absent, [])


def test_auroc_and_its_interval_are_those_of_scikit_learn():
    evidence, absent, images = drawn()
    scores = evidence[:, 2].round(-1)  # with ties
    found = auroc(scores, absent, images)
    assert found.value == pytest.approx(roc_auc_score(absent, scores))
    rng = np.random.default_rng(5)
    names = sorted({*images})
    draws = []
    for _ in range(600):
        counts = dict(zip(*np.unique(rng.choice(names, len(names)), return_counts=True), strict=True))
        draws.append(roc_auc_score(absent, scores, sample_weight=[counts.get(image, 0) for image in images]))
    assert_allclose([found.low, found.high], np.quantile(draws, [0.025, 0.975]), atol=0.015)


def test_the_calibration_error_is_that_of_plain_loops():
    rng = np.random.default_rng(3)
    probabilities = np.append(rng.random(200), [0.0, 1.0])
    positive = rng.random(202) < probabilities**2
    expected = 0.0
    for low in range(10):
        inside = [n for n in range(202) if min(int(probabilities[n] * 10), 9) == low]
        if inside:
            expected += abs(probabilities[inside].mean() - positive[inside].mean()) * len(inside) / 202
    found = calibration_error(probabilities, positive, [str(n // 4) for n in range(202)])
    assert found.value == pytest.approx(expected)
    assert found.low < expected < found.high


@cache
def judged(seed=0, again=False):
    return [*judge_nouns(*make_pair("llava"), NAMES, PICTURES, TEXT, HEADS, NOUNS, seed=seed)]


def test_nouns_of_sampled_answers_are_judged_by_the_names_of_their_image():
    """The same again from the tokens that `generate` gives with the same seed."""
    nouns = judged()
    assert {noun.built for noun in nouns} == {noun.absent for noun in nouns} == {False, True}
    again = judged(again=True)
    assert [noun.absent for noun in nouns] == [noun.absent for noun in again]
    assert_allclose(np.stack([noun.evidence for noun in nouns]), np.stack([noun.evidence for noun in again]))
    other = judged(seed=1)
    assert [noun.image_id for noun in nouns if not noun.built] != [noun.image_id for noun in other if not noun.built]
    # Of a changed answer the noun that was put in is the first that is judged.
    for image_id in NAMES:
        before = [noun.absent for noun in nouns if noun.image_id == image_id and not noun.built]
        after = [noun.absent for noun in nouns if noun.image_id == image_id and noun.built]
        assert bool(after) == bool(before)
        assert len(after) <= len(before)
        assert all(after[:1])


def test_the_gain_is_paired_with_the_log_probability():
    nouns = judged() + judged(seed=1)
    evidence = np.stack([noun.evidence for noun in nouns])
    absent = [noun.absent for noun in nouns]
    doubt = fit_doubt(evidence, absent, NOUNS)
    measured = measure_doubt(doubt, nouns)
    ours = roc_auc_score(absent, doubt.probabilities(evidence))
    alone = roc_auc_score(absent, -evidence[:, 2])
    assert measured["gain"].value == pytest.approx(ours - alone)
    # Doubt that is the log-probability gains nothing in any draw.
    same = measure_doubt(DoubtModel(0.0, 0.0, 0.0, -1.0, []), nouns)["gain"]
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_names_are_those_of_objects_and_captions_are_refused():
    box = np.array([[0, 0, 1, 1]], dtype=np.float32)
    dog, ball = Phrase("Dog", 0, 3, boxes=box), Phrase("fire hydrant", 5, 17, boxes=box)
    examples = [AuditExample("1", "Dog. fire hydrant.", (dog, ball)), AuditExample("1", "Dog.", (dog,))]
    assert names_of_images(examples) == {"1": {"dog"}}  # an answer has no word of two
    with pytest.raises(ValueError, match="image 2"):
        names_of_images([AuditExample("2", "Dog runs after a cat.", (dog,))])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The model of the package, which describes scenes, and rows with objects."""
    folder = tmp_path_factory.mktemp("doubt")
    shutil.copytree(Path(space.__file__).parent / "models" / "vlm" / "direct", folder / "vlm")
    objects = [{"bbox": [1, 1, 20, 20], "category": name} for name in ("ball", "cube", "star", "ring", "cone")]
    rows = []
    for number, (name, picture) in enumerate(PICTURES.items()):
        picture.save(folder / f"{name}.png")
        rows.append({"image": f"{name}.png", "objects": objects[number % 3 : number % 3 + 3]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(files, *options):
    given = ["--model", files / "vlm", "--data", files / "rows.jsonl", "--images", files, "--device", "cpu"]
    given += ["--boxes", "xywh pixels", "--doubt", files / "vlm" / "heads.json"]
    return heads.main([*map(str, [*given, *options])])


def test_look_shows_doubt_of_the_nouns_that_the_model_knows(files):
    model, processor = make_pair("llava")
    chosen = ChosenHeads(HEADS, doubt=MODEL)
    for form, rows in (("plain", "own"), ("sinks", "before"), ("contribution", "before"), ("tam", None)):
        lens = look(model, processor, PICTURE, TEXT, answer=ANSWER, heads=chosen, form=form, rows=rows)
        _, patches = ready(model, processor)
        prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
        ids = patches.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
        _, evidence = word_evidence(model, patches, add_answer(model, patches.tokenizer, prompt, ids), HEADS)
        for place, text in enumerate(ANSWER.split()):
            number = len(lens.words) - 6 + place
            entry = lens.to_dict()["words"][number]
            if text in MODEL.nouns:
                logit = float(evidence[place] @ torch.tensor([-2.0, 3.0, -0.1]))
                assert entry["doubt"] == pytest.approx(1 / (1 + np.exp(-logit - MODEL.bias)), rel=1e-5)
                assert entry["doubt"] == lens.doubts[number]
            else:
                assert "doubt" not in entry
        assert {lens.words[number].text for number in lens.doubts} == {"dog", "cat"}
        assert all(lens.words[number].answer for number in lens.doubts)
        assert f'"doubts": {json.dumps({str(n): p for n, p in lens.doubts.items()})}' in _spaced(lens_page([lens]))


def test_a_look_without_options_shows_the_doubt_of_the_models_file(files):
    model = AutoModelForImageTextToText.from_pretrained(files / "vlm")
    processor = AutoProcessor.from_pretrained(files / "vlm")
    path = files / "vlm" / "heads.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "doubt": asdict(replace(MODEL, nouns=["cube", "star"]))}))
    lens = look(model, processor, PICTURE, "Describe the image.", answer="a red cube and a star")
    path.write_text(before)
    assert lens.form == ("contribution",)
    assert {lens.words[number].text for number in lens.doubts} == {"cube", "star"}


def _spaced(page):
    return page.replace('","', '", "').replace('":', '": ').replace(',"', ', "').replace(":  ", ": ")


def test_the_command_adds_doubt_to_heads_json_and_keeps_the_rest(files, capsys):
    file = files / "vlm" / "heads.json"
    before = json.loads(file.read_text())
    assert run(files, "--json") == 0
    printed = read_result(capsys)
    after = json.loads(file.read_text())
    doubt = after.pop("doubt")
    assert after == before
    assert asdict(ChosenHeads.from_file(file).doubt) == doubt
    assert doubt["nouns"] == ["ball", "cone", "cube", "ring", "star"]
    assert printed["fitted_on"] > 0 and printed["reported_on"] > 0
    value, low, high = printed["measured"]["auroc"]
    assert low <= value <= high
    assert Image.open(file.with_name("doubt.png")).width > 300


def test_the_reliability_picture_has_the_means_of_ten_bins(tmp_path):
    rng = np.random.default_rng(0)
    probabilities = rng.random(300)
    positive = rng.random(300) < probabilities**2
    figure = reliability_figure(probabilities, positive, tmp_path / "picture.png")
    drawn = figure.axes[0].lines[1].get_xydata()
    for number, (said, found) in enumerate(drawn):
        inside = (probabilities >= number / 10) & (probabilities < (number + 1) / 10)
        assert said == pytest.approx(probabilities[inside].mean())
        assert found == pytest.approx(positive[inside].mean())
    assert len(drawn) == 10


def test_options_of_the_choice_are_refused(files, capsys):
    assert run(files, "--top-k", 2) == 2
    assert "--top-k" in read_error(capsys)


@pytest.mark.parametrize(
    ("name", "value"), [("share", None), ("share", "0.1"), ("share", float("nan")), ("evidence", 1.0)]
)
def test_a_model_of_doubt_is_read_whole_or_refused(name, value):
    entry = asdict(MODEL)
    entry[name] = value
    if value is None:
        del entry[name]
    chosen = [{"layer": 0, "head": 1}]
    content = {"format": 2, "about": {"word": "mean"}, "layers": ["0"], "heads": 4, "chosen": chosen, "doubt": entry}
    with pytest.raises(ValueError, match=r"here\.json: .*(share|evidence)"):
        ChosenHeads.from_dict(content, "here.json")
    content["doubt"] = asdict(MODEL)
    assert ChosenHeads.from_dict(content, "here.json").doubt == MODEL
