# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Nouns of sampled answers about annotated images, and the model of doubt that is fitted on them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from grounded_attention.heads.examples import AuditExample, Images, find_picture
from grounded_attention.heads.heads_file import DoubtModel, check_kinds
from grounded_attention.metrics.classification import auroc, calibration_error
from grounded_attention.metrics.significance import Estimates
from grounded_attention.utils.progress import with_progress

from .doubt import word_evidence
from .exchanges import Heads, answer_tokens, ready
from .prompts import read_chat
from .sequences import add_answer, generate, read_prompt

# The model's own distribution, without any cut.
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 64}
Named = Mapping[str, Collection[str]]


class JudgedNoun(NamedTuple):
    """A noun of an answer about an image.

    Args:
        evidence (`np.ndarray`): (E,) float32, see `word_evidence`.
        absent (`bool`): whether nothing in the image has this name.
        built (`bool`): whether the answer was changed, not sampled.
        image_id (`str`): the image.
    """

    evidence: np.ndarray
    absent: bool
    built: bool
    image_id: str


def names_of_images(examples: Iterable[AuditExample]) -> dict[str, set[str]]:
    """Image id -> names of one word of its objects, in lower case; a ValueError if rows have other texts."""
    names: Any = defaultdict(set)
    for example in examples:
        listed = ". ".join(phrase.text for phrase in example.phrases)
        if example.caption != f"{listed}.":
            raise ValueError(
                f"image {example.image_id}: the text {example.caption!r:.80} is no list of names of objects; doubt is "
                "fitted on rows with the names of all objects (COCO, YOLO ...)"
            )
        names[example.image_id].update(phrase.text.casefold() for phrase in example.phrases if " " not in phrase.text)
    return names


def judge_nouns(
    model: Any,
    processor: Any,
    names: Named,
    pictures: Images,
    question: str,
    heads: Heads,
    nouns: Named,
    seed: int = 0,
) -> Iterator[JudgedNoun]:
    """Samples an answer about each image, and changes it once: a noun becomes one that is not in the image.

    Args:
        model (`PreTrainedModel`): a vision-language model.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        names (`Mapping[str, Collection[str]]`): image id -> names of all objects in it, see [`names_of_images`].
        pictures (`Images`): pictures by image id.
        question (`str`): what the user asks about each image.
        heads (sequence of (layer, head)): heads whose attention is read.
        nouns (`Mapping[str, Collection[str]]`): word -> names that it can mean, in lower case. Others are not judged.
        seed (`int`, *optional*, defaults to 0): seed of the answers and of the changes.
    """
    model, patches = ready(model, processor)
    rng = np.random.default_rng(seed)
    for image_id, there in with_progress(names.items(), "answers"):
        chat, opened = read_chat(find_picture(pictures, image_id), question)
        prompt = read_prompt(patches, chat, [question], opened)
        with torch.random.fork_rng():
            torch.manual_seed(rng.integers(2**31))
            answers = [generate(model, patches, prompt, **SAMPLED)]
        said = add_answer(model, patches.tokenizer, prompt, answers[0])
        places = [word for word in said.words if word.answer and word.text.casefold() in nouns]
        others = [noun for noun, means in nouns.items() if {*there}.isdisjoint(means)]
        changed_from = 0
        if places and others:
            place = places[rng.integers(len(places))]
            changed_from = place.start
            text = said.texts[-1]
            changed = text[:changed_from] + rng.choice(others) + text[place.end :]
            answers.append([*answer_tokens(patches, changed)])
        for number, ids in enumerate(answers):
            whole = add_answer(model, patches.tokenizer, prompt, ids)
            words, evidence = word_evidence(model, patches, whole, heads)
            for word, values in zip(words, evidence.numpy(), strict=True):
                means = nouns.get(word.text.casefold())
                if means is not None and word.start >= number * changed_from:
                    yield JudgedNoun(values, {*there}.isdisjoint(means), number == 1, image_id)


def measure_doubt(doubt: DoubtModel, judged: Sequence[JudgedNoun]) -> Estimates:
    """How well doubt tells nouns that name nothing: `auroc`, that of the `log-probability alone`, the `gain` over
    it, paired by image, and `calibration error`.
    """
    check_kinds([noun.absent for noun in judged])
    evidence, absent, _, images = zip(*judged, strict=True)
    probabilities = doubt.probabilities(evidence)
    found = auroc(probabilities, absent, images)
    alone = auroc(-np.stack(evidence)[:, -1], absent, images)  # of the log-probability
    return {
        "auroc": found,
        "log-probability alone": alone,
        "gain": found.change(alone),
        "calibration error": calibration_error(probabilities, absent, images),
    }
