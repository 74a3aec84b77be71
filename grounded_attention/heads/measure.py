# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures for every head of a model, and every phrase of a data set, where the head looks; the one counter of heads.

Li et al. (2020), "What does BERT with vision look at?", section 3.1: each head is a classifier; its answer for a word
is the region that it attends to most, among the regions only. The whole-image region and END are not candidates
(`region_candidate_mask`). docs/heads.md lists our decisions where the paper is open.

Shape letters: L layers, B batch, H heads, Q query rows, K key columns, M items, W tokens of an item.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from transformers.utils import logging

from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.processing.grounded_batch import describe_cut
from grounded_attention.processing.phrase_arrays import NO_TOKEN, TRUNCATED
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.supervision.row_states import AttentionPair
from grounded_attention.supervision.score_masks import is_hidden
from grounded_attention.supervision.supervise import check_model, model_device
from grounded_attention.utils.boxes import IOU_THRESHOLD
from grounded_attention.utils.named_types import Columns, Fields, Head
from grounded_attention.utils.progress import with_progress

from .boxes import BoxScore, MappedPhrase, Way, box_scores, judge_ways
from .examples import AuditExample, Images
from .items import (
    DEFAULT_WORD,
    FIRST,
    HeadBatch,
    HeadInputs,
    Items,
    PatchInputs,
    RegionInputs,
    Rules,
    ground,
    region_items,
    text_items,
)
from .maps import TokenGrid, spatial_entropy
from .reading import REGION_TO_TEXT, TEXT_TO_REGION, Observer, get_observer, reads_pixels
from .statistics import ALL, BLOCKS, block_of
from .table import SUMS, HeadCounts, HeadTable

logger = logging.get_logger(__name__)

# Most numbers of kept maps: 256 MiB.
MOST_KEPT = 2**26
# Phrases of which more is kept than sums.
FIRST_PHRASES = 2**12
# Reasons why a processor drops a phrase -> their names in `about`. A phrase that no image token shows is judged.
_DROPPED = {TRUNCATED: "truncated", NO_TOKEN: "no_token"}


def audit(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    regions: Columns | None = None,
    *,
    relations: Iterable[AuditExample] = (),
    word: str = DEFAULT_WORD,
    batch_size: int | None = None,
    directions: Sequence[str] | None = None,
    iou_threshold: float = IOU_THRESHOLD,
    merged_box: bool = False,
    images: Images | None = None,
    instruction: str | None = None,
    about: Columns | None = None,
    progress: bool = True,
) -> HeadTable:
    """Measures where every head of a model looks, for phrases with boxes.

    Args:
        model (`Any`): a model of this project, a model on transformers' attention interface such as a
            vision-language model, or transformers' VisualBERT or LXMERT; with or without a task head or an adapter.
            It is set to evaluation mode. On the interface, its attention back end is replaced by the supervised one
            during the audit.
        processor (`Any`): its processor, of this project (for transformers' two models: `VisualBERTProcessor`; for a
            vision-language model also its own).
        examples (`Iterable[AuditExample]`): captions with phrases, see `grounded_examples`; phrases without gold boxes
            are skipped.
        regions (`Mapping[str, Any]`, *optional*): image id -> regions with `boxes` (n, 4) normalised, `features` (n,
            D) and optionally `scores` (n,), such as a `RegionTable`. As in training, an image with too many regions
            for the processor keeps the first ones. Without it the model is a vision-language model, whose regions are
            its image tokens.
        relations (`Iterable[AuditExample]`, *optional*, defaults to `()`): captions whose "phrases" are words related
            to an entity by a dependency; their group is the relation.
        word (`str`, *optional*, defaults to `DEFAULT_WORD`): the sub-word of a phrase that gives its attention:
            "last", "first" or "mean"; for a vision-language model also "prompt", the last token of its prompt.
        batch_size (`int`, *optional*): captions per batch; by default 32, and 4 for a vision-language model.
        directions (`Sequence[str]`, *optional*): one or both of "text_to_region" and "region_to_text"; by default
            all in which the model can attend. The image tokens of a causal model cannot see words after them.
        iou_threshold (`float`, *optional*, defaults to `IOU_THRESHOLD`): smallest overlap (IoU) of a right region with
            a gold box, in (0, 1]. Not for image tokens: `PatchGroundingProcessor` says which are right.
        merged_box (`bool`, *optional*, defaults to `False`): whether to merge the gold boxes of a phrase into the
            smallest box around them; otherwise any counts.
        images (`Images`, *optional*): pictures by image id, a mapping or a function, for a model that reads pixels.
        instruction (`str`, *optional*): for a vision-language model, words of the user; the captions are then answers
            of the assistant. Without it the captions are what the user says.
        about (`Mapping[str, Any]`, *optional*): additional facts for the result, such as the names of model, data and
            split.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `HeadTable`: the counts; equal in every process of a distributed launch, and equal to those of a single
        process.

    Raises:
        ValueError: if an option is unknown, the attention of the model cannot be read, or no phrase can be judged.
        Errors of the region table, such as a missing image, are passed on.
    """
    rules = Rules(word, iou_threshold, merged_box)
    measurement = Measurement(model, processor, images, regions, rules, instruction, batch_size)
    directions = _check_directions(directions, measurement.inputs, model)
    return measurement.score(examples, "entities", directions, relations, progress=progress, about=about)


def _check_directions(directions: Sequence[str] | None, inputs: HeadInputs, model: Any) -> tuple[str, ...]:
    """The directions to audit, in the order of `DIRECTIONS`."""
    if directions is None:
        return inputs.directions
    if not directions or not {*directions} <= {*inputs.directions}:
        if len(inputs.directions) > 1:
            why = ""
        else:
            why = f" ({type(model).__name__} is causal: images do not see later words)"
        raise ValueError(f"directions={list(directions)}: expected some of {', '.join(inputs.directions)}{why}")
    return tuple(name for name in DIRECTIONS if name in directions)


# Where heads look


def is_right(scores: Tensor, gold: Tensor) -> Tensor:
    """Whether the candidate with the highest score (..., K) is a right answer; `gold` has a shape that expands."""
    return gold.expand_as(scores).gather(-1, scores.argmax(-1, keepdim=True))[..., 0]


class Pooled(NamedTuple):
    """The attention of M items, summed over their tokens in log space.

    In float32 a very small attention on the candidates would be 0 for all of them. `scores` (M, L, H, K) of each
    candidate, `shares` (M, L, H) of all; `tokens` (M, 1, 1) of each item.
    """

    scores: Tensor
    shares: Tensor
    tokens: Tensor


def pool(pair: AttentionPair, items: Items) -> Pooled:
    """Sums the attention of the tokens of each item."""
    log_alpha = pair[0]
    log_share = cast(Tensor, pair[1])
    device = log_alpha.device
    example = torch.from_numpy(items.example).to(device)[:, None]
    places = torch.from_numpy(items.places).to(device)
    absent = (places < 0)[:, :, None, None]
    index = (example.expand_as(places), places.clamp(min=0))
    shares = log_share.permute(1, 3, 0, 2)[index].masked_fill(absent, -torch.inf)  # (M, W, L, H)
    scores = log_alpha.permute(1, 3, 0, 2, 4)[index] + shares[..., None]  # (M, W, L, H, K)
    return Pooled(scores.logsumexp(1), shares.logsumexp(1), (places >= 0).sum(1)[:, None, None])


# Counting


def item_sums(pooled: Pooled, items: Items) -> dict[str, np.ndarray]:
    """Name -> an entry for each of the M items, which `Tally` sums, see `HeadCounts`; of heads (M, L, H).

    A head is right if the candidate with the most attention, the mean over the tokens of the item, is a right answer.
    Its share is the attention on all candidates, its lift the part of that on right answers over their part of the
    candidates, 0 without a right answer.
    """
    scores, shares, tokens = pooled
    gold = torch.from_numpy(items.gold).to(scores.device)[:, None, None]  # (M, 1, 1, K)
    seen = ~is_hidden(shares)
    right = is_right(scores, gold) & seen
    inside = scores.masked_fill(~gold, -torch.inf).logsumexp(-1)
    part = torch.where(seen, (inside - shares).exp(), 0.0).cpu().numpy()
    lift = part / np.where(items.reachable, items.chance, 1.0)[:, None, None]
    return {
        "items": np.ones(len(items), dtype=np.int64),
        "correct": right.cpu().numpy().astype(np.int64),
        "share": (shares.exp() / tokens).cpu().numpy().astype(np.float64),
        "baseline": items.baseline.astype(np.int64),
        "chance": items.chance,
        "reachable": items.reachable.astype(np.int64),
        "lift": lift.astype(np.float64),
    }


class Tally:
    """Sums of one direction, per group and image; its size does not depend on the number of phrases, nor on that of
    images where they are more than `BLOCKS`.
    """

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str], Fields] = {}
        self._apart: set[str] | None = set()  # the images; none where they are counted in blocks

    def add(self, items: Items, sums: Mapping[str, np.ndarray], images: Sequence[str], numbers: Sequence[int]) -> None:
        """Adds the items of a batch, with their `item_sums`."""
        for item, example in enumerate(items.example):
            parts = {name: values[item].copy() for name, values in sums.items()}  # a view would keep the whole batch
            for group in (ALL, *items.groups[item]):
                self.add_sums((group, images[example]), {"first": numbers[example], **parts})

    def add_sums(self, place: tuple[str, str], sums: Fields) -> None:
        """Adds the sums of a group and image."""
        group, image = place
        if self._apart is not None:
            self._apart.add(image)
            if len(self._apart) > BLOCKS or block_of(image) == image:
                self._count_in_blocks()
        if self._apart is None:
            place = (group, block_of(image))
        known = self.sums.get(place)
        if known is None:
            self.sums[place] = sums
        else:
            first = min(known["first"], sums["first"])
            self.sums[place] = {name: known[name] + value for name, value in sums.items()} | {"first": first}

    def _count_in_blocks(self) -> None:
        apart = self.sums
        self.sums = {}
        self._apart = None
        for place, sums in apart.items():
            self.add_sums(place, sums)

    def merge(self, other: "Tally") -> None:
        """Adds the counts of another process."""
        for place, sums in other.sums.items():
            self.add_sums(place, sums)

    def counts(self) -> dict[str, HeadCounts]:
        """Group -> its counts; "all" first, the others sorted by name; images in the order of the examples."""
        groups: dict[str, dict[str, Fields]] = {}
        for (group, image), sums in sorted(self.sums.items(), key=lambda place: place[1]["first"]):
            groups.setdefault(group, {})[image] = sums
        return {name: _to_counts(groups[name]) for name in sorted(groups, key=lambda name: (name != ALL, name))}


def _to_counts(images: Mapping[str, Columns]) -> HeadCounts:
    sums = [*images.values()]
    arrays = {}
    for name in SUMS:
        if name in sums[0]:
            arrays[name] = np.stack([each[name] for each in sums])
    return HeadCounts(tuple(images), **arrays)


@dataclass
class Counted:
    """The counts of one pass over examples."""

    tallies: dict[str, Tally]
    phrases: Counter = field(default_factory=lambda: Counter(judged=0, without_boxes=0, truncated=0, no_token=0))
    fitted: int = 0  # judged phrases with a right answer among their candidates
    scored: int = 0
    unscored: int = 0
    cut: Fields = field(default_factory=dict)  # image -> the tokens and phrases that its caption lost

    def groups(self, direction: str) -> Fields:
        if direction in self.tallies:
            return self.tallies[direction].counts()
        return {}

    def summary(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.phrases.items())

    def gathered(self) -> "Counted":
        """The counts of all processes together."""
        whole = Counted({name: Tally() for name in self.tallies})
        for part in gather_object([self]):
            for name, tally in part.tallies.items():
                whole.tallies[name].merge(tally)
            whole.add(part.phrases, part.fitted, part.scored, part.unscored)
            whole.cut |= part.cut
        return whole

    def add(self, phrases: Mapping[str, int], fitted: int, scored: int, unscored: int) -> None:
        """Adds the numbers of another part of the examples."""
        self.phrases.update(phrases)
        self.fitted += fitted
        self.scored += scored
        self.unscored += unscored


class _KeptMap(NamedTuple):
    """The map (h, R) of some heads for a phrase, and what it is judged by."""

    number: int  # of its batch
    image: str
    maps: Tensor
    gold: tuple[Tensor, np.ndarray]
    regions: tuple[Tensor, Tensor, TokenGrid | None]


@dataclass
class Maps:
    """Counts, for each image, how often the boxes of sets of heads are right, and keeps the first phrases.

    Regions of a detector (`tokens` False) have no entropy. The heads of `sets` are compared with a box of
    `centre_size` in the centre of each image. `judge_kept` reads the maps of the first `keep` examples: those of all
    heads, and only of the half that is right more often whenever they have more than `MOST_KEPT` numbers. The first
    phrases have the spatial entropy of each head if heads are ranked by it (`entropies`).
    """

    tokens: bool = True
    sets: Mapping[str, Way] = field(default_factory=dict)
    centre_size: tuple[float, float] = (0.5, 0.5)
    keep: int = 0
    entropies: bool = False
    phrases: list[MappedPhrase] = field(default_factory=list)
    judged: Tally = field(default_factory=Tally)
    _batches: list[int] = field(default_factory=list)
    _kept: list[_KeptMap] = field(default_factory=list)
    _heads: list[Head] | None = None
    _right: Any = 0  # (L, H), how often each head was right

    def add(
        self,
        number: int,
        pooled: Pooled,
        items: Items,
        batch: HeadBatch,
        images: Sequence[str],
        numbers: Sequence[int],
    ) -> Fields:
        """Reads the map of each item of a batch; returns the entropies (M, L, H) of image tokens, for the table."""
        scores, _, tokens = pooled
        attention = scores.exp().masked_fill(is_hidden(scores), 0.0) / tokens[..., None]
        entropies = []
        grids = {}
        for place, example in enumerate(items.example.tolist()):
            maps = attention[place]
            gold_boxes = items.boxes[place]
            boxes = batch.inputs["region_boxes"][example]
            candidates = batch.candidates[example]
            if self.tokens and example not in grids:
                grids[example] = TokenGrid.of_tokens(boxes, candidates)
            grid = grids.get(example)
            entropy = None
            if grid is not None:
                values = spatial_entropy(grid.maps(maps.flatten(0, 1))).unflatten(0, maps.shape[:2])
                entropies.append(entropy := values.cpu().numpy())
            right = torch.from_numpy(items.gold[place])
            one = _KeptMap(number, images[example], maps, (right, gold_boxes), (boxes, candidates, grid))
            self._judge(one, entropy if self.entropies else None)
            if numbers[example] < self.keep:
                self._keep(one)
        if entropies:
            return {"entropy": np.stack(entropies).astype(np.float64)}
        return {}

    def _judge(self, one: _KeptMap, entropy: np.ndarray | None = None) -> None:
        boxes = one.gold[1]
        sides = (boxes[:, 2:] - boxes[:, :2]).mean(0, dtype=np.float64)
        sums: Fields = {"first": one.number, "items": 1, "sides": sides}
        if self.sets:
            ways = judge_ways(self.sets, self.centre_size, one.maps, one.gold, one.regions)
            sums |= {name: np.array(right) for name, right in ways.items()}
        self.judged.add_sums((ALL, one.image), sums)
        if len(self.phrases) < FIRST_PHRASES:
            self.phrases.append(MappedPhrase(one.image, boxes, entropy))
            self._batches.append(one.number)

    def _keep(self, one: _KeptMap) -> None:
        self._right = self._right + is_right(one.maps, one.gold[0].to(one.maps.device)).cpu().numpy()
        if self._heads is None:
            heads = list(np.ndindex(self._right.shape))
        else:
            heads = self._heads
        self._kept.append(one._replace(maps=torch.stack([one.maps[head] for head in heads]).cpu()))
        while len(heads) > 1 and sum(each.maps.numel() for each in self._kept) > MOST_KEPT:
            best = np.argsort([-self._right[head] for head in heads], kind="stable")[: len(heads) // 2].tolist()
            heads = [heads[place] for place in best]
            self._kept = [each._replace(maps=each.maps[best]) for each in self._kept]
        self._heads = heads

    def judge_kept(self, sets: Mapping[str, Way], centre_size: tuple[float, float]) -> "Maps | None":
        """The boxes of sets of heads for the kept phrases; `None` if the maps of one of the heads were not kept."""
        places = {head: (0, place) for place, head in enumerate(self._heads or ())}
        wanted: set[Head] = set()
        for heads, _ in sets.values():
            wanted.update(heads)
        if not all(gather_object([self._heads is None or wanted <= places.keys()])):
            return None
        judged = Maps(self.tokens, {}, centre_size)
        if self._kept:
            judged.sets = {name: ([places[head] for head in heads], rule) for name, (heads, rule) in sets.items()}
        for one in self._kept:
            judged._judge(one._replace(maps=one.maps[None]))
        judged.gather()
        return judged

    def gather(self) -> None:
        """Takes in the phrases of all processes, in the order of a single process."""
        numbered = gather_object(list(zip(self._batches, self.phrases, strict=True)))
        numbered.sort(key=lambda pair: pair[0])
        del numbered[FIRST_PHRASES:]
        self._batches = [number for number, _ in numbered]
        self.phrases = [phrase for _, phrase in numbered]
        whole = Tally()
        for part in gather_object([self.judged]):
            whole.merge(part)
        self.judged = whole

    def sums(self) -> dict[str, np.ndarray]:
        """What was judged of I images, in the order of their names: `items` (I,), `sides` (I, 2) of the gold boxes,
        and (I, 2) for each way to ground.
        """
        sums = self.judged.sums
        places = sorted(sums)
        return {name: np.stack([sums[place][name] for place in places]) for name in sums[places[0]]}

    def scores(self) -> list[BoxScore]:
        """How good the boxes of each set of heads are, and of the baselines."""
        sums = self.sums()
        right = {name: sums[name] for name in sums if name not in ("first", "items", "sides")}
        return box_scores(right, sums["items"], self.phrases)

    def mean_size(self) -> tuple[float, float]:
        """Mean width and height of the gold boxes."""
        sums = self.sums()
        width, height = (sums["sides"].sum(0) / sums["items"].sum()).tolist()
        return width, height


class Measurement:
    """Passes of one model over examples.

    To choose heads (`for_choice`), phrases that no image token shows are left out, and rows of image tokens are not
    read. Phrases that no region of a detector fits always count, as wrong ones.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        images: Images | None,
        regions: Columns | None,
        rules: Rules,
        instruction: str | None = None,
        batch_size: int | None = None,
        for_choice: bool = False,
    ):
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more")
        check_model(model, processor)
        self.observer: Observer = get_observer(model)
        self.inputs: HeadInputs
        if regions is None:
            self.inputs = PatchInputs(model, processor, images, rules, instruction)
        elif instruction is None:
            pictures = images if reads_pixels(self.observer.model) else None
            self.inputs = RegionInputs(model, processor, regions, rules, pictures)
        else:
            raise ValueError(
                f"instruction={instruction!r}: only for a vision-language model, which has no region table"
            )
        self.batch_size = batch_size or self.inputs.batch_size
        self.tokens = regions is None
        self.only_reachable = for_choice and self.tokens
        model.eval()

    def score(
        self,
        examples: Iterable[AuditExample],
        title: str,
        directions: Sequence[str] | None = None,
        relations: Iterable[AuditExample] = (),
        *,
        progress: bool = False,
        maps: Maps | None = None,
        about: Columns | None = None,
    ) -> HeadTable:
        """The table of the phrases of examples, and of related words."""
        if directions is None:
            directions = (TEXT_TO_REGION,) if self.only_reachable else self.inputs.directions
        entities = self.run(examples, directions, progress and title, maps)
        words = self.run(relations, (TEXT_TO_REGION,), progress and "relations")
        if not entities.phrases["judged"] + (0 if maps is not None else words.phrases["judged"]):
            hint = ", which image tokens show: are they those of these images?" if self.tokens else ""
            raise ValueError(
                f"{title}: no phrase can be judged ({entities.summary()}); expected texts with phrases that "
                f"have gold boxes{hint}"
            )
        table = make_table(self.facts(), entities, words, about)
        if self.only_reachable:
            return table.sorted_images()
        return table

    def run(
        self,
        examples: Iterable[AuditExample],
        directions: Sequence[str] = (TEXT_TO_REGION,),
        progress: str | bool = False,
        maps: Maps | None = None,
    ) -> Counted:
        """Runs one pass. The processes take batches in turn, so the batches equal those of a single process."""
        state = _processes()
        counted = Counted({name: Tally() for name in directions})
        judged = self._with_boxes(examples, counted if state.is_main_process else Counted({}))
        total = None
        if isinstance(examples, Sized):
            total = -(-len(examples) // self.batch_size)
        quiet = not progress or not state.is_main_process
        batches = with_progress(_batches(judged, self.batch_size), f"{progress}, batches", total, quiet)
        for number, batch in enumerate(batches):
            if number % state.num_processes == state.process_index:
                self._count(number, batch, counted, maps)
        if maps is not None:
            maps.gather()
        counted = counted.gathered()
        if counted.cut and state.is_main_process:
            logger.warning(describe_cut(counted.cut))
        return counted

    def _with_boxes(self, examples: Iterable[AuditExample], counted: Counted) -> Iterator[tuple[int, AuditExample]]:
        """Yields numbered prompts, with only the phrases that have gold boxes."""
        for number, example in enumerate(examples):
            kept = tuple(phrase for phrase in example.phrases if len(phrase.boxes))
            counted.phrases["without_boxes"] += len(example.phrases) - len(kept)
            if kept:
                yield from ((number, prompt) for prompt in self.inputs.prompts(replace(example, phrases=kept)))

    def _count(
        self, number: int, numbered: Sequence[tuple[int, AuditExample]], counted: Counted, maps: Maps | None
    ) -> None:
        numbers = [each for each, _ in numbered]
        examples = [example for _, example in numbered]
        batch = self.inputs.make(examples)
        for phrases in batch.dropped:
            counted.phrases.update(_DROPPED[each.reason] for each in phrases if each.reason in _DROPPED)
        for example, tokens, phrases in zip(
            examples, getattr(batch.inputs, "cut_tokens", ()), batch.dropped, strict=False
        ):
            if tokens:
                counted.cut[example.image_id] = (tokens, [each.words for each in phrases if each.reason == TRUNCATED])
        grounded = ground(batch, examples)
        if self.only_reachable:
            judged = [one for one in grounded if one.gold.any()]
            counted.phrases["out_of_sight"] += len(grounded) - len(judged)
            grounded = judged
        counted.phrases["judged"] += len(grounded)
        counted.fitted += sum(bool(one.gold.any()) for one in grounded)
        counted.scored += sum(scores is not None for scores in batch.scores)
        counted.unscored += sum(scores is None for scores in batch.scores)
        makers = {TEXT_TO_REGION: text_items, REGION_TO_TEXT: region_items}
        items = {name: makers[name](grounded, batch, self.inputs.rules.word) for name in counted.tallies}
        wanted = {name: asked for name, asked in items.items() if len(asked)}
        if not wanted:
            return
        device = model_device(self.observer.model)
        inputs = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.inputs.items()}
        queries = {name: (asked.rows.to(device), asked.columns.to(device)) for name, asked in wanted.items()}
        pairs = self.observer.observe(inputs, queries)
        for name, asked in wanted.items():
            pooled = pool(pairs[name], asked)
            images = [example.image_id for example in examples]
            finite_scores(pooled.shares, f"the attention on the images {', '.join(dict.fromkeys(images))}")
            sums = item_sums(pooled, asked)
            if maps is not None and name == TEXT_TO_REGION:
                sums |= maps.add(number, pooled, asked, batch, images, numbers)
            counted.tallies[name].add(asked, sums, images, numbers)

    def count(self, examples: Iterable[AuditExample]) -> Counted:
        """Counts examples in this process alone, whatever others do; in the directions that are chosen on."""
        counted = Counted({TEXT_TO_REGION: Tally()})
        for number, batch in enumerate(_batches(self._with_boxes(examples, counted), self.batch_size)):
            self._count(number, batch, counted, None)
        return counted

    def facts(self) -> "Facts":
        """What a table says about model and inputs."""
        observer = self.observer
        return Facts(observer.layers, observer.heads, observer.headless, self.inputs.rule, self.inputs.about)


class Facts(NamedTuple):
    """What a table says about the model, and the rule and settings of its inputs; as JSON has them."""

    layers: Sequence[str]
    heads: int
    headless: Sequence[int]
    rule: str
    about: Columns


def make_table(facts: Facts, entities: Counted, words: Counted, about: Columns | None = None) -> HeadTable:
    """The table of what was counted of entities, and of related words."""
    if not entities.fitted + words.fitted:
        logger.warning(
            f"no region fits a gold box ({entities.summary()}), so every head is wrong: are these the regions of "
            "these images, with boxes of the same convention?"
        )
    by_direction = {}
    for name in entities.tallies:
        groups = entities.groups(name)
        if groups:
            by_direction[name] = groups
    relations = words.groups(TEXT_TO_REGION)
    relations.pop(ALL, None)
    described: Fields = {**(about or {}), **facts.about}
    described["baseline"] = FIRST
    if entities.scored and not entities.unscored:
        described["baseline"] = facts.rule
    described["phrases"] = dict(entities.phrases)
    if words.phrases["judged"]:
        described["relation_words"] = dict(words.phrases)
    return HeadTable(
        layers=tuple(facts.layers),
        heads=facts.heads,
        entities=by_direction,
        relations=relations,
        about=described,
        headless=tuple(facts.headless),
    )


def _processes() -> PartialState:
    """The processes of this launch; without a GPU, accelerate needs `cpu=True` to find several."""
    return PartialState(cpu=not torch.cuda.is_available())


def _batches(examples: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(examples, size)):
        yield batch
