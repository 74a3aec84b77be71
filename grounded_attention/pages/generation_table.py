# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The table of vision-language models: language, answers, grounding of attention, object hallucination."""

from collections.abc import Iterator, Mapping
from typing import Any

from grounded_attention.heads.attention_grounding import summarise
from grounded_attention.utils.plain_text import markdown_table

MISSING = "–"
# Number -> heading, in this order; without the numbers that no model has.
COLUMNS = {
    "answer_perplexity": "perplexity",
    "answers_accuracy": "exact",
    "vqa_accuracy": "VQA",
    "question_accuracy": "questions",
    "box_accuracy": "acc@0.5",
    "point_accuracy": "point",
    "boxes_off_scale": "off scale",
    "boxes_of_other_form": "other form",
    "best_head": "best head",
    "all_heads": "all heads",
    "chance": "chance",
    "hallucination_random_f1": "POPE random",
    "hallucination_popular_f1": "POPE popular",
    "hallucination_adversarial_f1": "POPE adversarial",
}
# Columns -> what they are.
NOTES = {
    "answer_perplexity": "perplexity: of the tokens of the gold answers, lower is better",
    "answers_accuracy": "exact: greedy decoding gives the gold answer",
    "vqa_accuracy": "VQA: official accuracy of the generated answer",
    "box_accuracy": "acc@0.5: the generated box has an IoU of 0.5 or more",
    "point_accuracy": "point: the generated point, or the middle of the box, is in the right box",
    "boxes_off_scale": "off scale: generated boxes with a number beyond the scale of the model, all misses",
    "boxes_of_other_form": "other form: generated boxes that were read though they are not in the form of the model",
    "best_head": "best head, all heads: the image token that a word of a phrase attends to most is in its box; the "
    "head is chosen on validation",
    "hallucination_random_f1": "POPE: F1 of the answer yes",
}


def generation_table(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Makes a Markdown table, aligned for a terminal."""
    lines = [(name, split, numbers) for name, splits in models.items() for split, numbers in _measured(splits)]
    columns = [name for name in COLUMNS if any(name in numbers for _, _, numbers in lines)]
    rows = [[name, split, *(_shown(numbers.get(column)) for column in columns)] for name, split, numbers in lines]
    text = markdown_table(["model", "split", *(COLUMNS[name] for name in columns)], rows, 2, aligned=True)
    notes = "; ".join(note for name, note in NOTES.items() if name in columns)
    return f"{text}\n\n{notes[:1].upper()}{notes[1:]}."


def _measured(splits: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The splits with answers; their grounding has the head that is best on validation."""
    for split, numbers in splits.items():
        if "answer_perplexity" not in numbers:
            continue
        chosen_on = splits.get("validation", numbers)
        grounded = "text_to_region_by_head" in numbers and "text_to_region_by_head" in chosen_on
        yield split, {**numbers, **(summarise(chosen_on, numbers) if grounded else {})}


def _shown(value: Any) -> str:
    return MISSING if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
