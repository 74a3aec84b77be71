# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models of transformers as grounders: Grounding DINO, MM Grounding DINO, OWL-ViT, OWLv2, and Florence-2.

Shape letters: B captions, N boxes of the detector, T tokens, Q queries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForZeroShotObjectDetection, Florence2ForConditionalGeneration

from grounded_attention.labelling import FLORENCE
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.processing.region_detection import KEEP_ALL, dictionary_digest, model_provenance
from grounded_attention.utils.named_types import Fields, Span
from grounded_attention.utils.plain_text import explained

from .grounder import Candidates, Example, load_grounding_model, visible

TASK = "<CAPTION_TO_PHRASE_GROUNDING>"
MAX_NEW_TOKENS = 64  # a box is four tokens
STEPS = 1000  # Florence-2 divides each side of the image into this number of places


class FlorenceGrounder:
    """Florence-2 with its task of phrase grounding; each phrase is a prompt of its own, decoded greedily.

    Florence-2 gives no scores. The score of all boxes of a phrase is the geometric mean of the probabilities of the
    tokens that it wrote.
    """

    reads_images = True

    def __init__(self, model: Any, processor: Any, name: str = "", batch_size: int = 8) -> None:
        self.model = model.eval()
        self.processor = processor
        self.batch_size = batch_size
        self.provenance: Fields = {
            "kind": "florence-2",
            **model_provenance(model, name),
            "processor": dictionary_digest(processor.image_processor.to_dict()),
            "task": TASK,
        }

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        asked = [(example, phrase.text) for example in examples for phrase in example.phrases]
        candidates: list[Candidates] = []
        for start in range(0, len(asked), self.batch_size):
            candidates += self._run(asked[start : start + self.batch_size])
        by_example = []
        for example in examples:
            count = len(example.phrases)
            by_example.append(candidates[:count])
            candidates = candidates[count:]
        return by_example

    @torch.no_grad()
    def _run(self, asked: Sequence[tuple[Example, str]]) -> list[Candidates]:
        inputs = self.processor(
            text=[TASK + text for _, text in asked],
            images=[example.image for example, _ in asked],
            padding=True,
            return_tensors="pt",
        )
        generated = self.model.generate(
            **inputs.to(self.model.device, self.model.dtype),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = [step.float().cpu() for step in generated.logits]
        padding = self.processor.tokenizer.pad_token_id
        scores = written_probability(generated.sequences.cpu(), logits, padding)
        candidates = []
        for (example, _), sequence, score in zip(asked, generated.sequences.cpu(), scores.tolist(), strict=True):
            # The processor rounds boxes down to whole pixels; with this size it returns the steps that were written.
            answer = self.processor.post_process_generation(sequence=sequence, task=TASK, image_size=(STEPS, STEPS))
            steps = np.asarray(answer[TASK]["bboxes"], dtype=np.float32).reshape(-1, 4)
            size = np.array([example.width, example.height] * 2)
            boxes = ((steps + 0.5) * size / STEPS).astype(np.float32)
            # The model may write the corners in any order.
            boxes = boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
            candidates.append(Candidates(boxes, np.full(len(boxes), score, dtype=np.float32)))
        return candidates


def written_probability(sequences: Tensor, logits: Sequence[Tensor], padding: int) -> Tensor:
    """The geometric mean of the probabilities of the tokens that a model wrote."""
    tokens = sequences[:, sequences.shape[1] - len(logits) :]
    log_probabilities = torch.stack(list(logits), dim=1).log_softmax(-1)  # (B, steps, V)
    chosen = log_probabilities.gather(-1, tokens[..., None])[..., 0]
    written = tokens != padding
    return ((chosen * written).sum(-1) / written.sum(-1).clamp(min=1)).exp()


def load_florence(name_or_path: str, batch_size: int = 8, **options: Any) -> FlorenceGrounder:
    """Loads Florence-2 from the Hub or a folder, in transformers' format ("florence-community/Florence-2-base"); the
    `options` are those of `load_grounding_model`.
    """
    model, processor = load_grounding_model(Florence2ForConditionalGeneration, (FLORENCE,), name_or_path, **options)
    return FlorenceGrounder(model, processor, name_or_path, batch_size)


BY_TOKENS = ("grounding-dino", "mm-grounding-dino")
BY_QUERIES = ("owlvit", "owlv2")


class ZeroShotGrounder:
    """A zero-shot detector that is asked for each phrase.

    With the prompt "phrases", the detector reads the phrases of a caption as separate queries, as the grounder of the
    paper does (equation 1: an image and one noun phrase). With "caption", Grounding DINO reads the caption, so words
    around a phrase count too. The score of a box for a phrase is the sigmoid of the logit of its query (OWL-ViT), or
    the largest of those of its tokens (Grounding DINO, as in its post-processing). Every box has a score for every
    phrase.
    """

    reads_images = True

    def __init__(self, model: Any, processor: Any, name: str = "", prompt: str = "phrases") -> None:
        kind = model.config.model_type
        if prompt == "caption" and kind not in BY_TOKENS:
            raise ValueError(f"--prompt caption needs Grounding DINO: a model of type {kind} reads single queries")
        self.model = model.eval()
        self.processor = processor
        self.prompt = prompt
        self.provenance: Fields = {
            "kind": "zero-shot",
            **model_provenance(model, name),
            "processor": dictionary_digest(processor.image_processor.to_dict()),
            "prompt": prompt,
        }

    @torch.no_grad()
    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        if self.model.config.model_type in BY_TOKENS:
            return self._by_tokens(examples)
        return self._by_queries(examples)

    # Grounding DINO: logits (B, N, T) of the tokens of one text

    def _by_tokens(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        texts, spans = zip(*(self._prompt(example) for example in examples), strict=True)
        limit = self.model.config.max_text_len
        encoded = self.processor.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            split_special_tokens=True,
            max_length=limit,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets = encoded.pop("offset_mapping")
        outputs, boxes = self._run(examples, encoded, text_threshold=1.0)
        scores = outputs.logits.sigmoid()[..., : offsets.shape[1]]
        candidates = []
        for place, example in enumerate(examples):
            by_phrase = []
            for span in spans[place]:
                best = _best(scores[place], _tokens(offsets[place], span))
                by_phrase.append(_candidates(boxes[place], best, example))
            candidates.append(by_phrase)
        return candidates

    def _prompt(self, example: Example) -> tuple[str, list[Span]]:
        """The text for Grounding DINO, and the characters of each phrase in it."""
        if self.prompt == "caption":
            text = example.text.rstrip()
            if not text.endswith("."):
                text += "."
            return text, [(phrase.start, phrase.end) for phrase in example.phrases]
        queries = [clean(phrase.text) for phrase in example.phrases]
        places: dict[str, Span] = {}
        text = ""
        for query in filter(None, dict.fromkeys(queries)):
            start = len(text) + bool(text)
            text = f"{text} {query}.".lstrip()
            places[query] = (start, start + len(query))
        return text or ".", [places.get(query, (0, 0)) for query in queries]

    # OWL-ViT: logits (B, N, Q) of the queries

    def _by_queries(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        asked = [[clean(phrase.text) for phrase in example.phrases] for example in examples]
        unique = [list(dict.fromkeys(queries)) for queries in asked]
        most = max(map(len, unique))
        texts = []
        for queries in unique:
            texts += queries + [" "] * (most - len(queries))
        encoded = self.processor.tokenizer(
            texts,
            padding="max_length",
            truncation=True,
            split_special_tokens=True,
            max_length=self.model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        )
        outputs, boxes = self._run(examples, encoded)
        scores = outputs.logits.sigmoid()
        by_example = []
        for place, example in enumerate(examples):
            by_phrase = []
            for query in asked[place]:
                number = unique[place].index(query)
                by_phrase.append(_candidates(boxes[place], scores[place, :, number], example))
            by_example.append(by_phrase)
        return by_example

    def _run(self, examples: Sequence[Example], encoded: Mapping[str, Tensor], **options: Any) -> tuple[Any, list]:
        """The outputs in float32 on the CPU, and the boxes (N, 4) in pixels of each image."""
        with explained("the grounder cannot read images", ImportError):  # OWLv2 needs torchvision or SciPy to resize
            pixels = self.processor.image_processor([example.image for example in examples], return_tensors="pt")
        inputs = {}
        for name, value in {**encoded, **pixels}.items():
            dtype = self.model.dtype if value.is_floating_point() else None
            inputs[name] = value.to(self.model.device, dtype)
        outputs = self.model(**inputs, return_dict=True)
        finite_scores(outputs.pred_boxes, "a box of the grounder")
        # Some post-processing functions mix devices.
        for name, value in outputs.items():
            if isinstance(value, Tensor):
                outputs[name] = value.float().cpu() if value.is_floating_point() else value.cpu()
        if options:
            options["input_ids"] = encoded["input_ids"]
        sizes = [(example.height, example.width) for example in examples]
        results = self.processor.post_process_grounded_object_detection(
            outputs, threshold=KEEP_ALL, target_sizes=sizes, **options
        )
        return outputs, [result["boxes"] for result in results]


def clean(phrase: str) -> str:
    """A phrase as a query: lower case, single spaces, and no period, which would end a query of Grounding DINO."""
    return " ".join(phrase.lower().replace(".", " ").split())


def _tokens(offsets: Tensor, span: Span) -> Tensor:
    """The tokens (T,) bool that share a character with a span; padding and special tokens are empty."""
    start, end = span
    return (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 1] > offsets[:, 0])


def _best(scores: Tensor, mask: Tensor) -> Tensor:
    """The largest score over the tokens of a phrase, (N,); 0 for a phrase behind the end of the text."""
    if mask.any():
        return scores[:, mask].amax(-1)
    return torch.zeros(len(scores))


def _candidates(boxes: Tensor, scores: Tensor, example: Example) -> Candidates:
    kept = visible(boxes, example.width, example.height) & (scores > 0)
    return Candidates(boxes[kept].float().numpy(), scores[kept].float().numpy())


def load_zero_shot(name_or_path: str, prompt: str = "phrases", **options: Any) -> ZeroShotGrounder:
    """Loads a zero-shot detector from the Hub or a folder; the `options` are those of `load_grounding_model`."""
    model, processor = load_grounding_model(
        AutoModelForZeroShotObjectDetection, (*BY_TOKENS, *BY_QUERIES), name_or_path, **options
    )
    return ZeroShotGrounder(model, processor, name_or_path, prompt)
