# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Second formulations of official scores, by plain loops."""

import random
from collections import defaultdict

ANSWERS = ("yes", "no", "red", "color", "material")
NAMED = (("select", "car"), ("exist", "?"), ("query", "name"), ("query", "color"), ("choose name", "a|b"))
STEPS = [{"operation": operation, "argument": argument, "dependencies": []} for operation, argument in NAMED]


def question(number="1", answer="red", **changes):
    return {
        "example_id": number,
        "image_id": "7",
        "text": "What color is it?",
        "semantic": [{"operation": "select", "argument": "car (1)", "dependencies": []}],
        "answer": answer,
        "is_balanced": True,
        "structural_type": "query",
        "semantic_type": "attr",
        "detailed_type": "directOf",
        "global_group": "",
        "entailed": [number],
        "valid": [],
        "plausible": [],
        **changes,
    }


def random_questions(rng):
    names = [str(number) for number in range(60)]
    return [
        question(
            name,
            rng.choice(ANSWERS[:3]),
            text="word" + " word" * rng.randrange(2, 5),
            semantic=rng.sample(STEPS, rng.randrange(1, 5)),
            is_balanced=rng.random() < 0.6,
            structural_type=rng.choice(("query", "verify", "choose")),
            semantic_type=rng.choice(("attr", "rel")),
            detailed_type=rng.choice(("directOf", "twoCommon")),
            global_group=rng.choice(("", "color", "size")),
            entailed=rng.sample(names, rng.randrange(4)),
            valid=rng.sample(ANSWERS, 3),
            plausible=rng.sample(ANSWERS, 2),
        )
        for name in names
    ]


def counted_steps(question):
    """Whether something is there, its name, and a choice of names are no steps."""
    uncounted = ("exist", "query name", "choose name")
    steps = [f"{step['operation']} {step['argument']}" for step in question["semantic"]]
    return sum(not step.startswith(uncounted) for step in steps)


def belongs(answer, question, column):
    if "Common" in question["detailed_type"]:
        return answer in ("color", "material", "shape")
    return answer in question[column]


def by_loops(predictions, questions):
    """The definitions, metric by metric, with `{"accuracy": ..., ...}` of those that have a question."""
    outcomes = defaultdict(list)
    balanced = [question for question in questions if question["is_balanced"]]
    right = {one["example_id"]: predictions[one["example_id"]] == one["answer"] for one in questions}
    means = []
    for question in balanced:
        number = question["example_id"]
        kinds = ["accuracy", "open" if question["structural_type"] == "query" else "binary"]
        kinds += [f"{kind}_{question[f'{kind}_type']}" for kind in ("structural", "semantic")]
        kinds += [f"words_0{len(question['text'].split(' '))}", f"steps_0{counted_steps(question)}"]
        for kind in kinds:
            outcomes[kind].append(right[number])
        for name, column in (("validity", "valid"), ("plausibility", "plausible")):
            if question[column]:
                outcomes[name].append(belongs(predictions[number], question, column))
        others = [right[other] for other in question["entailed"] if other != number]
        if right[number] and others:
            means.append(sum(others) / len(others))
    found = {name: sum(values) / len(values) for name, values in outcomes.items()}
    found["consistency"] = sum(means) / len(means) if means else 0.0
    total = 0.0
    grouped = [question for question in balanced if question["global_group"]]
    for group in {question["global_group"] for question in grouped}:
        members = [question for question in grouped if question["global_group"] == group]
        for answer in {question["answer"] for question in members}:
            expected = sum(question["answer"] == answer for question in members)
            observed = sum(predictions[question["example_id"]] == answer for question in members)
            total += len(members) * (observed - expected) ** 2 / expected
    if grouped:
        found["distribution"] = total / len(grouped) / 100
    return found


def by_hand(right):
    """The official script's way: one flag a key, with the third field of the identifier emptied."""
    consistent: dict[tuple[str, str, str], bool] = {}
    for identifier, value in right.items():
        split, number, _, sentence = identifier.split("-")
        key = (split, number, sentence)
        consistent[key] = consistent.get(key, True) and value
    return sum(right.values()) / len(right), sum(consistent.values()) / len(consistent)


def drawn():
    rng = random.Random(0)
    ids = {f"dev-{rng.randrange(60)}-{rng.randrange(4)}-{rng.randrange(2)}" for _ in range(300)}
    return {identifier: rng.random() < 0.8 for identifier in sorted(ids)}


def leave_one_out(prediction, answers):
    """The definition, set by set."""
    total = 0.0
    for left_out in range(len(answers)):
        others = answers[:left_out] + answers[left_out + 1 :]
        total += min(1.0, others.count(prediction) / 3)
    return total / len(answers)
