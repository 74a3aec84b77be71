# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: lists of answers, targets, losses of the model, figures of balanced questions, predictions, judges."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from grounded_attention.metrics.gqa_scores import gqa_scores
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.answering import answer_targets
from grounded_attention.tasks.gqa import GQAOptions
from grounded_attention.tasks.judges import JudgeContext
from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_vgp import tiny_processor, tiny_table

TASK = TASKS["gqa"]
ANSWERS = ["yes", "light blue", "e"]
GIVEN = ["yes", "light blue", "the unknown"]
OUTPUTS = SimpleNamespace(logits=torch.tensor([[3.0, 0.0, 1.0], [3.0, 0.0, 1.0], [0.0, 3.0, 1.0]]))


def rows(given=GIVEN):
    columns = {
        "is_balanced": [True, True, False],
        "structural_type": ["verify", "query", "query"],
        "semantic_type": ["attr"] * 3,
        "detailed_type": [""] * 3,
        "global_group": ["color"] * 3,
        "entailed": [["00", "02"]] * 3,
        "valid": [["yes"]] * 3,
        "plausible": [[]] * 3,
        "example_id": ["00", "01", "02"],
        "image_id": ["0", "1", "2"],
        "text": ["a b c"] * 3,
        "answer": given,
    }
    return Dataset.from_dict(columns)


def options(**given):
    return GQAOptions(**{"answers": ANSWERS, "majority": "light blue", **given})


def collated(given=GIVEN):
    return Collator(TASK, tiny_processor(), tiny_table(3), options=options())(list(rows(given)))


def metric_of(given=GIVEN):
    """The figures of the task's metric."""
    (metric,) = TASK.configure(options(), SimpleNamespace(vqa_loss="cross_entropy")).metrics()
    metric.update(OUTPUTS, collated(given))
    return metric.compute(metric.state())


def test_targets_are_one_for_the_right_answer():
    batch = collated()
    assert batch["labels"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert answer_targets([{}, {"e": 1.0}], {"e": 0}).tolist() == [[0.0], [1.0]]
    mask = tiny_processor().tokenizer.mask_token_id
    assert (batch["input_ids"].gather(1, batch["answer_positions"][:, None]) == mask).all()


def test_figures_are_those_of_the_metric_with_baselines():
    answers = {"00": "yes", "01": "yes", "02": "light blue"}
    expected = {f"gqa_{name}": value for name, value in gqa_scores(answers, rows()).items()}
    assert expected["gqa_consistency"] == 0.0, "00 is right, 02, which it entails, is wrong"
    expected |= {"gqa_upper_bound": 1.0, "gqa_majority": 0.5, "gqa_answers_outside_the_list": 1, "gqa_count": 3}
    assert metric_of() == expected


def test_questions_without_answers_are_answered_but_not_scored(tmp_path):
    batch = collated(["", "", ""])
    scored = TASK.configure(options()).score(OUTPUTS, batch)
    assert not scored.scores
    assert not scored.totals
    items = {"example_id": batch["example_id"], "image_id": batch["image_id"], **scored.notes}
    TASK.export(items, tmp_path / "predictions_test")
    found = TASK.read_predictions(tmp_path / "predictions_test.json")
    assert found == {"00": "yes", "01": "yes", "02": "light blue"}
    assert metric_of(["", "", ""]) == {"gqa_count": 3}


def test_a_file_of_predictions_has_the_figures_of_the_model(tmp_path):
    path = tmp_path / "answers.json"
    TASK.write_predictions(path, {"00": "yes", "01": "yes", "02": "light blue", "of another split": "no"})
    answers = TASK.read_predictions(path)
    assert TASK.prediction_options(answers) == {"answers": ["light blue", "no", "yes"]}
    scored = TASK.score_predictions(path, answers, "validation", rows())
    assert scored.numbers.items() <= metric_of().items()
    assert [one.score for one in scored.judged] == [1.0, 0.0, None]
    names = {"example_id": ["00", "01", "02"], "image_id": ["0", "1", "2"]}
    assert scored.items == {**names, "answer": ["yes", "yes", "light blue"]}
    with pytest.raises(ValueError, match=r"answers\.json: no predictions for 1 of .* questions, such as 01"):
        TASK.score_predictions(path, {"00": "yes"}, "validation", rows())
    with pytest.raises(ValueError, match="the answers of the split test are not published"):
        TASK.score_predictions(path, answers, "test", rows(["", "", ""]))


GRID = [[0.0, 0.0], [0.2, 0.6]]  # the first index is that of x
REGIONS = [[0, 0, 0.5, 1, 0.1], [0.5, 0.25, 1, 0.75, 0.8]]


def grounding(path, first, second=REGIONS, objects=((0.5, 0.5, 1, 1),)):
    """The grounding score of a file with the attention of two questions; the third is not balanced."""
    annotations = [{"part": "question", "tokens": "0", "object": "1", "box": box} for box in objects]
    annotated = rows().add_column("annotations", [annotations] * 3)
    entries = []
    for number, attention in enumerate((first, second, None)):
        entries.append({"questionId": f"0{number}", "prediction": "yes"})
        if attention is not None:
            entries[-1]["attention"] = attention
    path.write_text(json.dumps(entries))
    scored = TASK.score_predictions(path, TASK.read_predictions(path), "validation", annotated)
    return scored.numbers.get("gqa_grounding")


def test_a_file_with_attention_has_a_grounding_score(tmp_path):
    """By hand. The grid has all of the right half, in whose lower half the object is; a region is half in it."""
    path = tmp_path / "answers.json"
    assert grounding(path, GRID) == pytest.approx((0.6 + 0.8 * 0.5) / 2)
    assert grounding(path, None, None) is None


@pytest.mark.parametrize("attention", [[[0.0], [1.0, 2.0]], [[1, 0, 0, 1, 0.5]], [["a"]], []])
def test_attention_of_another_form_is_refused(tmp_path, attention):
    with pytest.raises(ValueError, match=r"answers\.json"):
        grounding(tmp_path / "answers.json", attention)


def test_attention_of_some_questions_or_without_objects_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no attention for 1 of .* questions, such as 01"):
        grounding(tmp_path / "answers.json", GRID, None)
    with pytest.raises(ValueError, match="scene graphs"):
        grounding(tmp_path / "answers.json", [[1.0]], [[1.0]], objects=())


def test_judged_answers_are_beside_the_right_ones():
    context = JudgeContext(SimpleNamespace(vqa_loss="binary_cross_entropy", answers=ANSWERS), None)
    judged = list(TASK.judge(OUTPUTS, {}, rows(), context))
    assert [(one.predicted, one.gold, one.score) for one in judged] == [
        ("yes", "yes", 1.0),
        ("yes", "light blue", 0.0),
        ("light blue", "the unknown", None),
    ]
    assert judged[1].kinds == {"structural type": "query", "semantic type": "attr"}
    assert judged[0].confidence == pytest.approx(torch.tensor(3.0).sigmoid().item())


def test_the_explained_decision_is_scored_by_question():
    assert TASK.configure(options()).example_scores(OUTPUTS, collated()) == [1.0, 0.0, None]


def test_the_list_has_the_answers_of_training_as_they_are_written(tmp_path):
    train = Dataset.from_dict({"answer": ["two", "a dog", "two", "a dog", "no,", "two", ""]})
    splits = {"train": train, "test": Dataset.from_dict({"answer": [""]})}
    fitted = TASK.configure(GQAOptions()).fit_options(splits)
    assert list(fitted.index) == ["two", "a dog", "no,"]
    assert fitted.majority == "two"
    frequent = TASK.configure(GQAOptions(answers={"fewest": 2})).fit_options(splits)
    assert list(frequent.index) == ["two", "a dog"]
    path = tmp_path / "answers.json"
    path.write_text('["e", "a dog"]')
    task = TASK.configure(GQAOptions(answers=str(path)))
    with pytest.raises(ValueError, match="the list has not been read yet, call fit_options first"):
        task.model_config()
    task = TASK.configure(task.fit_options(splits))
    assert task.model_config() == {"answers": ["e", "a dog"]}
    assert task.remarks(splits) == [
        "answers: 2",
        "answers, train: 4 of 6 answers are outside the list; 4 of 6 questions have none in it",
    ]
