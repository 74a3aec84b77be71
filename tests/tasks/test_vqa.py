# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA: lists of answers, soft targets, both losses, per-question scores, predictions, answers outside the list."""

import json
from types import SimpleNamespace

import pytest
import torch

from grounded_attention.metrics.vqa_accuracy import vqa_accuracy
from grounded_attention.modeling import VLBertConfig, VLBertForVisualQuestionAnswering
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.answering import answer_targets, frequent_answers, read_answers
from grounded_attention.tasks.vqa import VQAOptions
from grounded_attention.training.loop.data import Collator
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_table

TASK = TASKS["vqa"]
ANSWERS = ["2", "c d", "e"]
HUMANS = [["2"] * 2 + ["two"] * 7 + ["e"], ["c d"] * 10, ["nobody knows"] * 10]


def rows(humans=HUMANS):
    return [
        {"example_id": str(10 + n), "image_id": str(n), "text": "a b c", "answers": h, "answer_type": "yes/no"}
        for n, h in enumerate(humans)
    ]


def options(**given):
    return VQAOptions(**{"answers": ANSWERS, "majority": "e", **given})


def collated(humans=HUMANS):
    return Collator(TASK, tiny_processor(), tiny_table(3), options=options())(rows(humans))


def model(**config):
    fields = {**tiny_model().config.to_dict(), **config}
    for name in ("id2label", "label2id", "architectures", "auto_map", "model_type", "transformers_version", "dtype"):
        fields.pop(name, None)
    torch.manual_seed(0)
    return VLBertForVisualQuestionAnswering(VLBertConfig(**fields, answers=ANSWERS)).eval()


def test_targets_are_the_accuracy_of_answers_as_they_are_written():
    batch = collated()
    assert batch["labels"].tolist() == [pytest.approx([0.6, 0.0, 0.3]), [0, 1, 0], [0, 0, 0]]
    mask = tiny_processor().tokenizer.mask_token_id
    at_answer = batch["input_ids"].gather(1, batch["answer_positions"][:, None])
    assert (at_answer == mask).all()


def test_scores_are_the_official_accuracy_of_each_question():
    batch = collated()
    logits = torch.tensor([[3.0, 0.0, 1.0], [3.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
    scored = TASK.configure(options()).score(SimpleNamespace(logits=logits), batch)
    answers = ["2", "2", "c d"]
    assert scored.notes["answer"] == answers
    expected = [vqa_accuracy(answer, humans) for answer, humans in zip(answers, HUMANS, strict=True)]
    assert expected == [1.0, 0.0, 0.0]  # "two" counts as "2" here
    figures = {
        "vqa_accuracy": expected,
        "vqa_yes_no_accuracy": expected,
        "vqa_soft_accuracy": pytest.approx([0.6, 0.0, 0.0]),
        "vqa_majority": pytest.approx([0.3, 0.0, 0.0]),
        "vqa_soft_upper_bound": pytest.approx([0.6, 1.0, 0.0]),
    }
    assert {name: scored.scores[name] for name in figures} == figures
    assert scored.totals == {"vqa_answers_outside_the_list": 7 + 10}


def test_questions_without_answers_are_answered_but_not_scored(tmp_path):
    batch = collated([[], [], []])
    scored = TASK.configure(options()).score(SimpleNamespace(logits=torch.eye(3)), batch)
    assert not scored.scores
    assert not scored.totals
    items = {"example_id": batch["example_id"], "image_id": batch["image_id"], **scored.notes}
    TASK.export(items, tmp_path / "predictions_test")
    assert TASK.read_predictions(tmp_path / "predictions_test.json") == {"10": "2", "11": "c d", "12": "e"}


@pytest.mark.parametrize("form", ["binary_cross_entropy", "cross_entropy"])
def test_the_loss_is_the_models_own(form):
    vqa = model(vqa_loss=form)
    task = TASK.configure(options(), vqa.config)
    batch = collated()
    found = vqa(**task_inputs(TASK, batch, "labels"))
    (component,) = task.losses
    mean = component.total(found, batch) / component.count(batch)
    assert mean.item() == pytest.approx(found.loss.item(), rel=1e-5)
    assert component.count(batch) == (3 if form == "binary_cross_entropy" else 2)


def test_the_classifier_starts_from_the_answers_words():
    vqa = model()
    processor = tiny_processor()
    before = vqa.answer_head.classifier.weight.clone()
    TASK.configure(options(answers=["c d"])).initialise(vqa, processor)
    assert torch.equal(vqa.answer_head.classifier.weight, before)
    TASK.configure(options(initialise_answers=True)).initialise(vqa, processor)
    words = vqa.get_input_embeddings().weight[processor.tokenizer.convert_tokens_to_ids(["c", "d"])]
    assert torch.allclose(vqa.answer_head.classifier.weight[1], words.mean(0))


def test_answers_of_the_training_questions():
    """The public rule: most frequent answer of a question, normalised, without commas; at least n questions."""
    train = [["Two"] * 6 + ["3"] * 4, ["2"] * 10, ["the dog"] * 10, ["dog"] * 9 + ["2"], ["1,000"] * 10, []]
    assert frequent_answers(train, 2) == ["2", "dog"]
    assert frequent_answers(train, 1) == ["2", "dog", "1000"]
    with pytest.raises(ValueError, match="the most frequent one of 3 or more of the 5 training questions"):
        frequent_answers(train, 3)


def test_the_options_are_completed_by_the_rows(tmp_path):
    splits = {"train": {"answers": HUMANS}, "test": {"answers": [[]]}}
    fitted = TASK.configure(VQAOptions(answers={"fewest": 1})).fit_options(splits)
    assert fitted.index == {"2": 0, "c d": 1, "nobody knows": 2}
    assert fitted.majority in ("c d", "nobody knows")
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(["", "e"]))
    assert TASK.configure(VQAOptions(answers=str(path))).fit_options(splits).index == {"": 0, "e": 1}
    assert TASK.configure(fitted).model_config() == {"answers": list(fitted.index)}


def test_answers_outside_the_list_are_counted():
    lines = TASK.configure(options()).remarks({"train": {"answers": HUMANS}, "test": {"answers": [[]]}})
    assert lines == [
        "answers: 3",
        "answers, train: 17 of 30 answers are outside the list; 1 of 3 questions have none in it",
    ]
    assert answer_targets([{"somebody": 1.0}], {"e": 0}).tolist() == [[0.0]]


@pytest.mark.parametrize(
    "content, message",
    [
        ("[", "cannot read a list of answers"),
        ('{"a": 1}', "found dict"),
        ("[1]", "found 1"),
        ("[]", "an empty list"),
        ('["a", "a"]', "'a' occurs twice"),
    ],
)
def test_files_that_hold_no_list_of_answers(tmp_path, content, message):
    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_answers(str(path), [])
    assert str(path) in str(error.value)
    with pytest.raises(ValueError, match="cannot read a list of answers"):
        read_answers(str(tmp_path / "none.json"), [])


def test_the_list_of_lxmert(shared):
    listed = read_answers(str(shared / "real" / "lxmert" / "vqa_trainval_label2ans.json"), [])
    assert len(listed) == 3129
    assert listed[:2] == ["", "woods"]
