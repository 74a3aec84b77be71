# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the tasks share in which a model chooses an answer of a list: the list, options, inputs, loss, start."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Len
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.dataset_scripts.files.records import read_answer_file, write_answer_file
from grounded_attention.metrics.item_scores import Scored
from grounded_attention.metrics.vqa_accuracy import normalise_answer
from grounded_attention.modeling.task_losses import answer_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.bounded_files import FileError, read_json
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row
from grounded_attention.utils.schema import Count, Of, Section, section

from .judges import JudgeContext, Rows
from .task import TEXT_AND_REGIONS, Examples, LossComponent, Task, seen_arguments, text_inputs

FEWEST = "fewest"
EXPECTED = 'a JSON file with a list of answers, a list of answers, or {"fewest": n}'
# The field `answers` of a recipe, see [`read_answers`].
Answers = Annotated[
    Any, Of(Annotated[str, Len(1)] | Annotated[list[str], Len(1)] | Annotated[section({FEWEST: Count}), Len(1)])
]
LXMERT_ANSWER = "ans"  # the key of an answer in LXMERT's all_ans.json, whose entries also list data sets


def check_list(answers: Sequence[Any], source: str) -> list[str]:
    """Checks a list of answers."""
    wrong = [answer for answer in answers if not isinstance(answer, str)]
    if wrong or not answers:
        instead = repr(wrong[0]) if wrong else "an empty list"
        raise ValueError(f"{source}: found {instead}, expected a list of answers, which are strings")
    twice = [answer for answer, count in Counter(answers).items() if count > 1]
    if twice:
        raise ValueError(f"{source}: the answer {twice[0]!r} occurs twice; remove one, because each answer is a class")
    return list(answers)


def normalise_vqa(answer: str) -> str:
    """Normalises an answer as the evaluation of VQA v2 does, and removes commas."""
    return normalise_answer(answer).replace(",", "")


def read_answers(
    answers: Any, train: Iterable[Sequence[str]], normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """Reads the list of answers of a recipe."""
    if isinstance(answers, Mapping):
        return frequent_answers(train, answers[FEWEST], normalise)
    if not isinstance(answers, str):
        return check_list(answers, "answers")
    try:
        content = read_json(answers)
    except (OSError, FileError) as error:
        raise ValueError(f"{answers}: cannot read a list of answers ({error}); expected {EXPECTED}") from error
    if not isinstance(content, list):
        raise ValueError(f"{answers}: found {type(content).__name__}, expected {EXPECTED}")
    listed = []
    for each in content:
        listed.append(each.get(LXMERT_ANSWER, each) if isinstance(each, dict) else each)
    return check_list(listed, answers)


def frequent_answers(
    train: Iterable[Sequence[str]], fewest: int, normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """The most frequent answers of at least `fewest` questions (bottom-up attention code: 3,129 of VQA v2)."""
    usual: Counter[str] = Counter()
    for answers in train:
        if answers:
            usual[normalise(Counter(answers).most_common(1)[0][0])] += 1
    kept = sorted((answer for answer, count in usual.items() if count >= fewest), key=lambda a: (-usual[a], a))
    if not kept:
        raise ValueError(
            f"no answer is the most frequent one of {fewest} or more of the {usual.total()} training questions: "
            "give a smaller answers.fewest"
        )
    return kept


def outside(answers: Iterable[str], known: Columns) -> int:
    """Returns the number of answers that are not in the list."""
    return sum(answer not in known for answer in answers)


def fitted(answers: Answers | None) -> list[str]:
    """The list, once it has been read."""
    if not isinstance(answers, list):
        raise ValueError(f"answers is {answers!r}: the list has not been read yet, call fit_options first")
    return answers


@dataclass(frozen=True)
class AnswerOptions(Section):
    """Options of such a task."""

    answers: Answers
    initialise_answers: bool = False
    majority: str | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """Answer -> its class."""
        return {answer: number for number, answer in enumerate(fitted(self.answers))}


class AnsweringTask(Task):
    """Base class of these tasks; the answers to predict are known when the options are fitted to the rows. `column`
    has the answer of a row, or those of several people; `normalise` writes them as they are in the list."""

    prediction_names: Mapping[str, str]  # of the official file
    column: str
    normalise = staticmethod(normalise_vqa)
    head = "vqa"
    model_inputs = (*TEXT_AND_REGIONS, "answer_positions")
    Options = AnswerOptions
    explains = True
    hub_task = "visual-question-answering"
    example = """inputs = processor(caption, layout=processor.answer_layout, **seen)
with torch.no_grad():
    best = model(**inputs).logits[0].argmax().item()
print(f"answer: {{model.config.id2label[best]}}")"""

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        return (answer_loss("binary_cross_entropy" if self.config is None else self.config.vqa_loss),)

    def known_answers(self, rows: Any) -> list[list[str]]:
        """The answers to each question of a split."""
        return [[each] * bool(each) if isinstance(each, str) else list(each) for each in rows[self.column]]

    def fit_options(self, splits: Columns) -> Any:
        """The options with the list of answers itself, and the most frequent answer of the training questions."""
        train = self.known_answers(splits["train"]) if "train" in splits else []
        counted = Counter(answer for answers in train for answer in answers)
        usual = counted.most_common(1)[0][0] if counted else None
        answers = read_answers(self.options.answers, train, self.normalise)
        return replace(self.options, answers=answers, majority=self.options.majority or usual)

    def remarks(self, splits: Columns) -> list[str]:
        """The number of answers, and of those to the questions of each split that are not in the list."""
        index = self.options.index
        lines = [f"answers: {len(index)}"]
        for name, rows in splits.items():
            answered = [answers for answers in self.known_answers(rows) if answers]
            if answered:
                lost = [outside(answers, index) for answers in answered]
                empty = sum(count == len(answers) for count, answers in zip(lost, answered, strict=True))
                lines.append(
                    f"answers, {name}: {sum(lost)} of {sum(map(len, answered))} answers are outside the list; "
                    f"{empty} of {len(answered)} questions have none in it"
                )
        return lines

    def model_config(self) -> Fields:
        return {"answers": list(self.options.index)}

    def initialise(self, model: Any, processor: Any) -> None:
        """Initialises the classifier with embeddings of the words of answers, if `initialise_answers` is True."""
        if self.options.initialise_answers and not hasattr(model, "init_classifier_from_answers"):
            raise ValueError(
                f"{type(model).__name__} does not support options.initialise_answers, only VL-BERT does: set it to "
                "false"
            )
        if self.options.initialise_answers:
            model.init_classifier_from_answers(processor.tokenizer)

    def trained_options(self, config: Any, grounded: bool) -> Fields:
        return {"answers": list(config.answers)}

    def question_inputs(self, examples: Examples, processor: Any) -> Fields:
        """The model inputs of rows whose `text` is a question, their ids, and `labels` (B, A) float32: what each
        answer of the list is worth. Phrases of `evidence` are measured."""
        if "evidence" in examples.rows[0]:
            evidence = {"phrases": [row["evidence"] for row in examples.rows]}
        else:
            evidence = {}
        visual = seen_arguments(examples.images, examples.regions)
        inputs = text_inputs(examples.rows, processor, layout=processor.answer_layout, **visual, **evidence)
        labels = answer_targets([self.worth(row) for row in examples.rows], self.options.index)
        return {**inputs, "labels": labels}

    @abstractmethod
    def worth(self, row: Row) -> dict[str, float]:
        """Each answer that is right, or partly -> its score in [0, 1]; none if no answer is known."""

    def chosen_answers(self, outputs: Any) -> list[str]:
        """The answer with the highest score of each row."""
        known = list(self.options.index)
        return [known[number] for number in outputs.logits.argmax(-1).tolist()]

    @abstractmethod
    def score(self, outputs: Any, batch: Batch) -> Scored:
        """The scores of each question's best answer, and the answer."""

    @abstractmethod
    def judge_answer(self, row: Row, answer: str, confidence: float = 0.0) -> Judged:
        """Judges an answer to a question."""

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        logits = outputs.logits.float()
        binary = context.config.vqa_loss == "binary_cross_entropy"
        confidences, best = (logits.sigmoid() if binary else logits.softmax(-1)).max(-1)
        for row, confidence, number in zip(rows, confidences.tolist(), best.tolist(), strict=True):
            yield self.judge_answer(row, context.config.answers[number], confidence)

    def read_out(self, outputs: Any, inputs: Batch) -> ReadOut:
        """The score of the chosen answer, read from [MASK], or [CLS] for a pooled state."""
        scores = outputs.logits.max(-1).values
        return ReadOut(scores, inputs.get("answer_positions", torch.zeros(len(scores), dtype=torch.long)))

    def export(self, items: Mapping[str, list], path: Path) -> bool:
        answers = dict(zip(items["example_id"], items["answer"], strict=True))
        self.write_predictions(path.with_name(path.name + ".json"), answers)
        return True

    def read_predictions(self, path: Path) -> dict[str, str]:
        return read_answer_file(path, **self.prediction_names)

    def write_predictions(self, path: Path, answers: Mapping[str, str]) -> None:
        """Writes an official file of predictions."""
        write_answer_file(path, answers, **self.prediction_names)

    def prediction_options(self, predictions: Mapping[str, str]) -> Fields:
        return {"answers": sorted({*predictions.values()})}


def answer_targets(worth: Sequence[Mapping[str, float]], index: Mapping[str, int]) -> Tensor:
    """(B, A) float32: what each answer of the list is worth for each row."""
    targets = torch.zeros(len(worth), len(index))
    for row, answers in zip(targets, worth, strict=True):
        for answer, value in answers.items():
            if answer in index:
                row[index[answer]] = value
    return targets


def answer_loss(form: str) -> LossComponent:
    """Makes a loss over questions from `config.vqa_loss`; "cross_entropy" counts only questions with a target."""

    def count(batch: Batch) -> Tensor:
        if form == "cross_entropy":
            return (batch["labels"].sum(-1) > 0).sum()
        return torch.tensor(len(batch["labels"]))

    return LossComponent("answers", lambda outputs, batch: answer_sum(outputs.logits, batch["labels"], form)[0], count)
