# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores as modules of `evaluate`: equal to official scores item by item, in any batches, and from the Hub."""

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import evaluate
import numpy as np
import pytest

from grounded_attention.metrics.gqa_scores import gqa_scores
from grounded_attention.tasks.referring_expressions import is_right
from grounded_attention.tasks.score_modules import SCORES, VGP_LABELS
from grounded_attention.training.publish.score_folders import write_scores
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.warm_python import run_python
from tests.metrics.score_formulations import ANSWERS, by_hand, drawn, leave_one_out, random_questions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads a score from its folder, as any program would."""
    home = tmp_path_factory.mktemp("scores")
    write_scores(home)
    make = evaluate.loading.init_dynamic_modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.loading, "init_dynamic_modules", lambda: make(hf_modules_cache=str(home / "modules")))
        yield lambda name, *kind: evaluate.load(str(home / name), *kind, cache_dir=str(home / "numbers"))


def in_pieces(module, predictions, references, **columns):
    """The numbers of batches of three, and of one call; they must be equal."""
    for start in range(0, len(predictions), 3):
        piece = slice(start, start + 3)
        module.add_batch(predictions=predictions[piece], references=references[piece])
    found = module.compute(**columns)
    assert found == module.compute(predictions=predictions, references=references, **columns)
    return found


def one_by_one(module, predictions, references, name):
    pairs = zip(predictions, references, strict=True)
    return [module.compute(predictions=[p], references=[r])[name] for p, r in pairs]


def drawn_boxes(count, seed):
    rng = random.Random(seed)
    boxes = []
    for _ in range(count):
        x, y = rng.randrange(20), rng.randrange(20)
        boxes.append([x, y, x + rng.randrange(5, 30), y + rng.randrange(5, 30)])
    return boxes


@pytest.mark.parametrize("name", SCORES)
def test_the_example_of_a_card_is_right(load, name):
    prediction, reference = SCORES[name].example
    module = load(name)
    assert type(module).__name__ == name.title().replace("_", "")
    numbers = in_pieces(module, [prediction] * 4, [reference] * 4)
    assert 1.0 in numbers.values()
    assert numbers[next(key for key in numbers if key.endswith("_count"))] == 4


def test_vqa_scores_questions_and_kinds_of_answers(load):
    rng = random.Random(5)
    words = ("cat", "dog", "red")
    answers = [rng.choices(words, k=10) for _ in range(24)]
    predicted = rng.choices(words, k=24)
    kinds = np.array(rng.choices(("other", "yes/no"), k=24))
    expected = np.array(list(map(leave_one_out, predicted, answers)))
    module = load("vqa_accuracy")
    assert one_by_one(module, predicted, answers, "vqa_accuracy") == pytest.approx(expected)
    numbers = in_pieces(module, predicted, answers, answer_types=kinds.tolist())
    assert (numbers["vqa_accuracy"], numbers["vqa_count"]) == (pytest.approx(expected.mean()), 24)
    for kind in ("other", "yes/no"):
        found = numbers[f"vqa_{kind.replace('/', '_')}_accuracy"]
        assert found == pytest.approx(expected[kinds == kind].mean())


def test_expressions_follow_the_chosen_convention(load):
    predicted, gold = drawn_boxes(40, seed=0), drawn_boxes(40, seed=1)
    predicted[:3] = [[], gold[1], [0, 0, 10, 10]]
    gold[2] = [0, 0, 10, 20]  # exactly one half as areas, more with the pixel
    differ = set()
    for kind in ("vl_bert", "continuous", "continuous_strict"):
        right = list(map(partial(is_right, convention=kind), predicted, gold))
        module = load("refcoco_accuracy", kind)
        assert one_by_one(module, predicted, gold, "expressions_accuracy") == right
        assert in_pieces(module, predicted, gold)["expressions_accuracy"] == pytest.approx(np.mean(right))
        differ.add(sum(right))
    assert len(differ) > 1
    assert load("refcoco_accuracy").kind == "vl_bert"


@pytest.mark.parametrize("kind", VGP_LABELS)
def test_paraphrases_count_labelled_pairs(load, kind):
    rng = random.Random(2)
    names = list(VGP_LABELS[kind])
    right = [rng.choice(names) for _ in range(30)]
    predicted = [rng.choice((label, *names)) for label in right]
    group = "identification" if kind == "identification" else "vgp"
    numbers = in_pieces(load("vgp_accuracy", kind), predicted, right)
    pairs = list(zip(predicted, right, strict=True))
    assert numbers[f"{group}_accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / 30)
    assert numbers[f"{group}_majority"] == pytest.approx(max(Counter(right).values()) / 30)
    unlabelled = load("vgp_accuracy", kind).compute(predictions=[*predicted, names[0]], references=[*right, -1])
    assert unlabelled == numbers


def test_gqa_follows_its_script(load):
    rng = random.Random(3)
    questions = random_questions(rng)
    predicted = [rng.choice((row["answer"], *ANSWERS)) for row in questions]
    rows = [{**question, "phrases": [], "annotations": None} for question in questions]  # a builder's have more
    numbers = in_pieces(load("gqa_scores"), predicted, rows)
    incomplete = [{name: value for name, value in rows[0].items() if name != "valid"}]
    with pytest.raises(ValueError, match="item 0: the reference has no valid"):
        load("gqa_scores").compute(predictions=predicted[:1], references=incomplete)
    names = [row["example_id"] for row in questions]
    expected = gqa_scores(dict(zip(names, predicted, strict=True)), questions)
    assert numbers.pop("gqa_count") == len(questions)
    assert numbers == pytest.approx({f"gqa_{name}": value for name, value in expected.items()})


def test_nlvr2_follows_its_script(load):
    right = drawn()
    rng = random.Random(4)
    references = [{"example_id": name, "label": rng.random() < 0.5} for name in right]
    predicted = [each["label"] == right[each["example_id"]] for each in references]
    numbers = in_pieces(load("nlvr2_scores"), predicted, references)
    assert (numbers["nlvr2_accuracy"], numbers["nlvr2_consistency"]) == pytest.approx(by_hand(right))


def test_places_of_heads_against_loops(load):
    gold = [drawn_boxes(1 + number % 3, seed=number) for number in range(30)]
    boxes = [[], *drawn_boxes(29, seed=100)]
    points = [[(x1 + x2) / 2, (y1 + y2) / 2] for x1, y1, x2, y2 in boxes[1:]]
    points.insert(0, [])
    hit = []
    fit = []
    for point, box, own in zip(points, boxes, gold, strict=True):
        hit.append(any(x1 <= point[0] <= x2 and y1 <= point[1] <= y2 for x1, y1, x2, y2 in own) if point else False)
        fit.append(any(plain_iou(box, each) >= 0.5 for each in own) if box else False)
    assert 0 < sum(fit) < sum(hit) < 30
    assert one_by_one(load("pointing_accuracy"), points, gold, "pointing_accuracy") == hit
    assert one_by_one(load("box_accuracy"), boxes, gold, "box_accuracy") == fit
    assert in_pieces(load("box_accuracy"), boxes, gold)["box_accuracy"] == pytest.approx(np.mean(fit))


REFUSED = """[
    ["box_accuracy", [[0, 0, 1, NaN]], [[[0, 0, 1, 1]]], "item 0"],
    ["box_accuracy", [[0, 0, 1]], [[[0, 0, 1, 1]]], "item 0"],
    ["box_accuracy", [[1, 0, 0, 1]], [[[0, 0, 1, 1]]], "item 0"],
    ["box_accuracy", [[]], [[]], "item 0"],
    ["pointing_accuracy", [[0, 0], [0, 0, 1, 1]], [[[0, 0, 1, 1]], [[0, 0, 1, 1]]], "item 1"],
    ["refcoco_accuracy", [[]], [[0, 0, 1]], "item 0"],
    ["vqa_accuracy", ["red"], [[]], "item 0"],
    ["vgp_accuracy", ["likeness"], ["equivalence"], "likeness"],
    ["nlvr2_scores", [true], [{"example_id": "dev-1-0-0", "label": null}], "label"],
    ["nlvr2_scores", [true], [{"example_id": "dev-1", "label": true}], "dev-1"]
]"""


@pytest.mark.parametrize("name, predictions, references, named", json.loads(REFUSED))
def test_what_cannot_be_scored_is_named(load, name, predictions, references, named):
    with pytest.raises(ValueError, match=named):
        load(name).compute(predictions=predictions, references=references)


def test_unknown_kinds_columns_and_scores_are_named(load, tmp_path):
    with pytest.raises(ValueError, match="continuous_strict"):
        load("refcoco_accuracy", "area")
    vqa = {"predictions": ["red"], "references": [["red"] * 10]}
    with pytest.raises(ValueError, match="answer_types"):
        load("vqa_accuracy").compute(**vqa, answer_kinds=["other"])
    with pytest.raises(ValueError, match="answer_types has 2 values for 1"):
        load("vqa_accuracy").compute(**vqa, answer_types=["other", "number"])
    with pytest.raises(ValueError, match="box_accuracy"):
        write_scores(tmp_path / "none", ["boxes"])
    assert not (tmp_path / "none").exists()


PUSHED = """import sys, evaluate
from grounded_attention.commands.push import main
from grounded_attention.training.publish.score_folders import write_scores
write_scores("scores", ["box_accuracy"])
codes = [main(["scores/box_accuracy", *each.split()]) for each in sys.argv[1:]]
score = evaluate.load("org/found-boxes")
score.add_batch(predictions=[[0, 0, 1, 1], []], references=[[[0, 0, 1, 1]]] * 2)
print(codes, score.compute())
"""


def test_a_pushed_score_loads_by_its_name(loopback_hub, tmp_path):
    loopback_hub.state.create("spaces", "org/other", False)
    blob = loopback_hub.state.put_blob(b"print()")
    loopback_hub.state.set_files("spaces", "org/other", {"main.py": blob}, "an app")
    environment = {**loopback_hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    calls = ["org/found-boxes", "org/found-boxes", "org/other", "org/found-boxes --licence mit"]
    done = run_python(PUSHED, calls, cwd=tmp_path, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[0, 0, 2, 2] {'box_accuracy': 0.5, 'box_count': 2}"
    assert "--licence" in done.stderr
    files = set(loopback_hub.files("org/found-boxes", kind="spaces")) - {".gitattributes"}
    assert files == {"README.md", "found-boxes.py", "index.html"}
    card = loopback_hub.read("org/found-boxes", "README.md", kind="spaces").decode()
    assert 'evaluate.load("org/found-boxes")' in card
    assert loopback_hub.files("org/other", kind="spaces") == ["main.py"]
