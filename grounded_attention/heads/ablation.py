# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What heads count for: the log-likelihood of grounded words without them, against other heads of their layers.

A vision-language model predicts each word from those before it; a pre-trained model that reads regions predicts all
words of the phrases at once, in the place of [MASK].

Chosen heads are removed. How far removing every head moves the log-likelihood of a text, up or down, is estimated from
one forward and one backward pass (attribution patching): |gradient × what the head gives|. The sign says little: the
effects of strong heads saturate, and their slope at full strength is small, up or down (docs/vlm.md has numbers).
Heads that look at an object need not be the heads that a model needs to name it (arXiv 2605.08200, 2605.19792).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from grounded_attention.metrics.intervals import Interval
from grounded_attention.processing.grounded_batch import word_inputs
from grounded_attention.supervision.head_masking import group_heads, mask_heads, output_projections
from grounded_attention.supervision.supervise import is_others, model_device, unwrap_model
from grounded_attention.utils.named_types import Batch, Head
from grounded_attention.utils.progress import with_progress

from .examples import AuditExample, Images, PromptSettings, grounded_prompts, make_batch
from .reading import inputs_on
from .statistics import ratio_intervals

INSTRUCTION = "Describe the image."
# Sets of random heads for the comparison.
DRAWS = 5

Heads = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Effect:
    """The change of the mean log-likelihood of grounded words, in nats a token; `size`: its mean without signs."""

    heads: Heads
    change: float
    size: float
    interval: Interval
    random: float | None
    difference: Interval | None


@dataclass(frozen=True)
class Ablation:
    """The effects of removing heads; `estimates` of size for each head of each layer (empty without heads).

    `agreement`: Spearman's correlation of the estimates with the sizes of the removed heads, from three heads on.
    """

    log_likelihood: float
    tokens: int
    images: int
    together: Effect
    single: tuple[Effect, ...]
    estimates: tuple[tuple[float, ...], ...]
    agreement: float | None


class NotCausal(ValueError):
    """The model reads a word before it predicts it, so that likelihoods say nothing."""


def ablate_heads(
    model: Any,
    processor: Any,
    examples: Sequence[AuditExample],
    images: Images,
    heads: Heads,
    *,
    instruction: str | None = None,
    batch_size: int = 4,
    draws: int = DRAWS,
    seed: int = 0,
    progress: str | None = None,
) -> Ablation:
    """Removes chosen heads and measures how well a vision-language model still predicts words of grounded phrases."""
    chat = getattr(processor.processor, "chat_template", None) or processor.tokenizer.chat_template
    answers = chat or processor.family.decoder is not None
    settings = PromptSettings(instruction=(instruction or INSTRUCTION) if answers else None)

    def make(examples: Sequence[AuditExample]) -> GroundedWords:
        batch = make_batch(processor, examples, images, settings)
        positions = batch["text_positions"]
        grounded = batch["phrase_mask"].any(1) & (positions > 0)
        ids = batch[word_inputs(batch)[0]].gather(1, positions.clamp(min=0))
        return GroundedWords(inputs_on(batch, model), grounded, ids, positions)

    texts = _Texts(model, grounded_prompts(examples, settings), batch_size, make, logits_before)
    model.eval()
    for words in islice(texts, 1):
        _check_causal(model, words)
    return _ablate(texts, heads, draws, seed, progress)


def ablate_region_heads(
    model: Any,
    measurement: Any,
    examples: Sequence[AuditExample],
    heads: Heads,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: str | None = None,
) -> Ablation:
    """Removes chosen heads and measures how well a pre-trained model still predicts masked words of all phrases."""
    inputs = measurement.inputs
    observer = measurement.observer

    def make(examples: Sequence[AuditExample]) -> GroundedWords:
        batch = inputs.make(examples).inputs
        grounded = batch["phrase_mask"].any(1).bool()
        hidden = batch["input_ids"].masked_fill(grounded, inputs.processor.tokenizer.mask_token_id)
        read = observer.inputs({**batch, "input_ids": hidden})
        device = model_device(model)
        read = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in read.items()}
        return GroundedWords(read, grounded, batch["input_ids"])

    prompts = grounded_prompts(examples, PromptSettings())
    texts = _Texts(model, prompts, measurement.batch_size, make, _masked_logits)
    return _ablate(texts, heads, draws, seed, progress)


def _ablate(texts: "_Texts", heads: Heads, draws: int, seed: int, progress: str | None) -> Ablation:
    texts.model.eval()
    removed: list[Heads] = [[], heads, *([head] for head in heads)]
    others = _other_heads(texts.model, heads, draws, seed)
    removed += others
    removed += [[drawn[index]] for drawn in others for index in range(len(heads))]
    sums = _log_likelihoods(texts, removed, progress)
    estimates = _estimate(texts, sums[:, 0].sum())
    return _summarise(sums, heads, len(others), [example.image_id for example in texts.examples], estimates)


def _other_heads(model: Any, heads: Heads, draws: int, seed: int) -> list[list[Head]]:
    """Draws sets of other heads of the same layers; none if a layer has too few."""
    group_heads(model, heads)
    widths = {layer: count for layer, (_, count) in output_projections(model).items()}
    generator = np.random.default_rng(seed)
    drawn: list[list[Head]] = []
    for _ in range(draws):
        other: dict[Head, Head] = {}
        for layer in sorted({layer for layer, _ in heads}):
            chosen = [pair for pair in heads if pair[0] == layer]
            free = [head for head in range(widths[layer]) if (layer, head) not in chosen]
            if len(free) < len(chosen):
                return []
            picked = generator.choice(free, len(chosen), replace=False)
            other.update(zip(chosen, ((layer, int(head)) for head in picked), strict=True))
        drawn.append([other[pair] for pair in heads])
    return drawn


class GroundedWords(NamedTuple):
    """The grounded words of a batch: what the model reads, and `grounded` (B, T), the ids (B, T) and, of a sequence of
    image and text, the positions (B, T) of its words.
    """

    inputs: Batch
    grounded: Tensor
    ids: Tensor
    positions: Tensor | None = None


@dataclass
class _Texts:
    """Batches of texts with phrases, made when they are read, and how well a model predicts their grounded words:
    `logits` gives the scores of the vocabulary for each word, (B, T, V) float32.
    """

    model: Any
    examples: Sequence[AuditExample]
    size: int
    make: Callable[[Sequence[AuditExample]], GroundedWords]
    logits: Callable[[Any, GroundedWords], Tensor]

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __iter__(self) -> Iterator[GroundedWords]:
        for start in range(0, len(self.examples), self.size):
            yield self.make(self.examples[start : start + self.size])

    def predict(self, words: GroundedWords) -> Tensor:
        """(B,) float64: the sum of the log-likelihoods of the grounded tokens."""
        return token_log_likelihoods(self.logits(self.model, words), words)


def token_log_likelihoods(logits: Tensor, words: GroundedWords) -> Tensor:
    """(B,) float64: the sum of the log-likelihoods of the grounded tokens, from logits (B, T, V)."""
    logs = logits.log_softmax(-1)
    of_words = logs.gather(-1, words.ids.to(logs.device)[..., None])[..., 0].cpu()
    return (of_words * words.grounded).sum(1).double()


def _masked_logits(model: Any, words: GroundedWords) -> Tensor:
    """All words of the phrases of a text are predicted at once."""
    outputs = model(**words.inputs, return_dict=True)
    if getattr(outputs, "mlm_logits", None) is None:
        raise ValueError(
            f"{type(model).__name__} predicts no masked words, which the ablation needs; give a pre-trained "
            "model (its class ends in ForPreTraining), or ablate=0"
        )
    return outputs.mlm_logits.float()


@torch.no_grad()
def _log_likelihoods(texts: _Texts, removed: Sequence[Heads], progress: str | None) -> np.ndarray:
    """(examples, 1 + sets): number of grounded tokens, then the sum of their log-likelihoods without each set."""
    rows = []
    for words in with_progress(texts, f"{progress}, batches", quiet=progress is None):
        sums = [words.grounded.sum(1).double()]
        for heads in removed:
            with mask_heads(texts.model, heads):
                sums.append(texts.predict(words))
        rows.append(torch.stack(sums, 1).numpy())
    if rows:
        return np.concatenate(rows)
    return np.zeros((0, 1 + len(removed)))


def _estimate(texts: _Texts, tokens: float) -> tuple[tuple[float, ...], ...]:
    """The estimated size of the effect of each head, by layer of the model."""
    projections = output_projections(texts.model)
    sums = {layer: torch.zeros(count, dtype=torch.float64) for layer, (_, count) in projections.items()}
    for words in texts:
        with _recorded(texts.model, projections) as outputs, torch.enable_grad():
            predicted = texts.predict(words)
            read = [output for layer in outputs.values() for output in layer]
            gradients = iter(torch.autograd.grad(predicted.sum(), read, allow_unused=True))
        for layer, of_layer in outputs.items():
            slopes = torch.zeros(len(words.ids), len(sums[layer]), dtype=torch.float64)
            for output in of_layer:
                gradient = next(gradients)
                if gradient is not None:
                    by_head = (output.detach() * gradient).float().unflatten(-1, (slopes.shape[1], -1))
                    slopes += by_head.reshape(len(slopes), -1, *by_head.shape[-2:]).sum((1, 3)).cpu()
            sums[layer] += slopes.abs().sum(0)
    layers = max(sums) + 1
    return tuple(tuple((sums[layer] / tokens).tolist()) if layer in sums else () for layer in range(layers))


@contextmanager
def _recorded(
    model: Any, projections: Mapping[int, tuple[Sequence[nn.Module], int]]
) -> Iterator[dict[int, list[Tensor]]]:
    """Keeps what the heads of each layer give in a padded pass, with its graph, and no graph of the weights."""
    outputs: dict[int, list[Tensor]] = {}

    def keep(layer: int) -> Any:
        def hook(module: nn.Module, args: tuple) -> tuple:
            if args[0].requires_grad:
                output = args[0]
            else:
                output = args[0].detach().requires_grad_()
            outputs.setdefault(layer, []).append(output)
            return (output, *args[1:])

        return hook

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    with ExitStack() as stack:
        for layer, (modules, _) in projections.items():
            for module in dict.fromkeys(modules):
                stack.callback(module.register_forward_pre_hook(keep(layer)).remove)
        for weight in trained:
            weight.requires_grad_(False)
            stack.callback(weight.requires_grad_, True)
        packs = getattr(model.config, "unpad", False)
        if packs:  # packed, the rows of a batch would be one
            stack.callback(setattr, model.config, "unpad", packs)
            model.config.unpad = False
        yield outputs


def logits_before(model: Any, words: GroundedWords) -> Tensor:
    """Each word of a prompt is predicted from those before it: the logits of the token before each position alone,
    since all would need much memory."""
    inputs = words.inputs
    positions = cast(Tensor, words.positions)
    length = inputs[word_inputs(inputs)[0]].shape[1]
    before = (positions - 1).clamp(min=0)
    first = 0
    if (positions > 0).any():
        first = int(before[positions > 0].min())
    kept = {"logits_to_keep": length - first}
    if is_others(unwrap_model(model)):  # which need not know it
        kept = {}
    outputs = model(**inputs, use_cache=False, return_dict=True, **kept)
    logits = getattr(outputs, "logits", None)
    if logits is None:
        raise ValueError(
            f"{type(model).__name__} has no language head, which predicts words; load the model with "
            "AutoModelForImageTextToText (an ablation is left out with ablate=0)"
        )
    before = (before - (length - logits.shape[1])).clamp(min=0).to(logits.device)
    return logits.gather(1, before[..., None].expand(-1, -1, logits.shape[-1])).float()


@torch.no_grad()
def _check_causal(model: Any, words: GroundedWords) -> None:
    """Raises [`NotCausal`] if a word changes its own prediction."""
    if not words.grounded.any():
        return
    example = int(words.grounded.any(1).int().argmax())
    name, _ = word_inputs(words.inputs)
    ids = words.inputs[name]
    last = int(cast(Tensor, words.positions)[example][words.grounded[example]].max())
    other = ids.clone()
    other[example, last] = ids[example, last - 1]
    if torch.equal(other, ids):
        return
    place = torch.full((len(ids), 1), last)
    plain, changed = (
        logits_before(model, words._replace(inputs={**words.inputs, name: each}, positions=place))[example]
        for each in (ids, other)
    )
    if not torch.allclose(plain, changed, atol=1e-2):
        raise NotCausal(
            f"{type(model).__name__} reads a word of the prompt before it predicts it (a bidirectional prefix), so "
            "that removing heads has no meaningful effect on its likelihood; leave ablation out (--ablate 0)"
        )


def _summarise(
    sums: np.ndarray, heads: Heads, draws: int, image_ids: Sequence[str], estimates: tuple[tuple[float, ...], ...]
) -> Ablation:
    """Makes the effects from the sums of `_log_likelihoods`: all heads, the chosen ones, each of them, random sets."""
    tokens = sums[:, 0]
    change = sums[:, 2:] - sums[:, 1:2]
    if not tokens.sum():
        raise ValueError("no phrase with boxes has a token; nothing to ablate")
    k = len(heads)
    together = change[:, 0]
    single = change[:, 1 : 1 + k]
    drawn = change[:, 1 + k :]
    random: list[np.ndarray | None] = [None] * (1 + k)
    if draws:
        one_by_one = drawn[:, draws:].reshape(-1, draws, k).mean(1)
        random = [drawn[:, :draws].mean(1), *one_by_one.T]
    judged = tokens > 0
    _, index = np.unique(np.array(image_ids)[judged], return_inverse=True)
    effects = []
    removed: list[Heads] = [heads, *([head] for head in heads)]
    for given, values, other in zip(removed, [together, *single.T], random, strict=True):
        drawn_values = None if other is None else other[judged]
        effects.append(_effect(given, values[judged], drawn_values, index, tokens[judged]))
    log_likelihood = float(sums[:, 1].sum() / tokens.sum())
    images = int(index.max() + 1)
    all_together, *single = effects
    agreement = None
    if len(single) >= 3:
        pairs = []
        for one in single:
            for layer, head in one.heads:
                pairs.append((estimates[layer][head], one.size))
        ranks = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0)
        agreement = float(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1])
    return Ablation(log_likelihood, int(tokens.sum()), images, all_together, tuple(single), estimates, agreement)


def _effect(
    heads: Heads, change: np.ndarray, random: np.ndarray | None, index: np.ndarray, tokens: np.ndarray
) -> Effect:
    """The effect of removing heads, from sums over the tokens of each example and the image of each example."""
    columns = np.stack([change] if random is None else [change, random, change - random], 1)
    per_image = np.zeros((index.max() + 1, columns.shape[1]))
    np.add.at(per_image, index, columns)
    ends = ratio_intervals(per_image, np.bincount(index, weights=tokens)).T.tolist()
    mean = (columns.sum(0) / tokens.sum()).tolist()
    size = float(np.abs(change).sum() / tokens.sum())
    if random is None:
        return Effect(heads, mean[0], size, tuple(ends[0]), None, None)
    return Effect(heads, mean[0], size, tuple(ends[0]), mean[1], tuple(ends[2]))
