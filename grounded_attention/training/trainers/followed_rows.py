# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows that another library makes into tokens, followed: which tokens are the words of which phrase; the options.

The words of phrases go into its chat template between marks. Its tokenizer gets texts without marks, and every token
that comes out knows its characters, whatever is cut or put between them.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from grounded_attention.dataset_scripts.rows.reader import LOOKED_AT, grounded_rows
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.processing.chat_prompts import MARK, Prompt, PromptText
from grounded_attention.processing.image_tokens import image_layouts
from grounded_attention.processing.patch_grounding import GROUNDING_KEYS, PatchGroundingProcessor
from grounded_attention.processing.patch_sequences import TokenSequence
from grounded_attention.processing.phrase import Phrase, read_phrase, row_texts
from grounded_attention.supervision import SupervisionMethod, get_method
from grounded_attention.supervision.registry import METHODS
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.training.recipes.recipe import read_yaml
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.schema import Of, Section, Share, Weight, validate


@dataclass
class TrainerOptions(Section):
    """The keys of the YAML file beside the arguments of ms-swift or LLaMA-Factory.

    Args:
        method (`str`, *optional*, defaults to `"direct"`): the supervision method.
        options (`dict`, *optional*): options of the method, such as `{"layers": [2, 3]}`.
        heads_file (`str`, *optional*): a `heads.json` with the heads to supervise.
        attention_weight (`float`, *optional*, defaults to 1.0): the weight of the attention loss, at least 0.
        boxes (`str`, *optional*): how boxes are written, as for [`grounded_rows`]; by default found in the rows.
        images (`str`, *optional*): a folder of the pictures that rows name.
        coverage_threshold (`float`, *optional*, defaults to 0.5): as for [`PatchGroundingProcessor`], in (0, 1].
        report_heads (`bool`, *optional*, defaults to `True`): whether each evaluation prints how often the best head
            is right.
    """

    method: Annotated[str, Of(tuple(METHODS))] = "direct"
    options: Fields = field(default_factory=dict)
    heads_file: str | None = None
    attention_weight: Weight = 1.0
    boxes: str | None = None
    images: str | None = None
    coverage_threshold: Share = 0.5
    report_heads: bool = True

    @classmethod
    def from_file(cls, path: str | Path) -> "TrainerOptions":
        """Reads the file.

        Raises:
            ValueError: it is no YAML, a key is unknown, or a value is not valid.
        """
        options: TrainerOptions = validate(cls, read_yaml(Path(path)), source=str(path))
        options.make_method()
        return options

    def make_method(self) -> SupervisionMethod:
        """Makes the supervision method."""
        options: dict[str, Any] = dict(self.options)
        if self.heads_file is not None:
            options["heads"] = [list(head) for head in ChosenHeads.from_file(self.heads_file).heads]
        return get_method(self.method, **options)


# The entry of a row that the library carries: a text of JSON, which any table holds.
GROUNDING = "grounding"
# Kinds of edges of phrases, in the order in which they stand at one place.
LAST, FIRST = 0, 1


class PlacedToken(int):
    """A token that knows its characters [start, end) in the text that the template makes."""

    start: int
    end: int


def placed(token: int, start: int, end: int) -> PlacedToken:
    made = PlacedToken(token)
    made.start = start
    made.end = end
    return made


class FollowedRow:
    """One row on its way through a chat template.

    Args:
        texts (sequence of `str`): the texts of the row as the template gets them, in order.
        phrases (sequence of [`Phrase`]): words of these texts.
    """

    def __init__(self, texts: Sequence[str], phrases: Sequence[Phrase]):
        self.phrases = phrases
        self.text = ""  # what the template made so far
        self.problem = ""
        self._texts = texts
        self._tokens: list[PlacedToken] = []
        self._found: list[int] = []  # characters of the marks in `text`
        edges = set()
        for phrase in phrases:
            edges |= {(phrase.sentence, phrase.start, FIRST), (phrase.sentence, phrase.end, LAST)}
        self._edges = sorted(edges)

    def marked(self, sentence: int, start: int = 0, end: int | None = None) -> str:
        """The characters [start, end) of a text, all by default, with a mark at each edge of a phrase."""
        text = self._texts[sentence]
        stop = len(text) if end is None else end
        pieces = []
        place = start
        for number, edge, kind in self._edges:
            # What ends here belongs to the part before, what starts to the part after.
            inside = start < edge <= stop if kind == LAST else start <= edge < stop
            if number == sentence and inside:
                pieces.append(text[place:edge])
                place = edge
        return MARK.join([*pieces, text[place:stop]])

    def encode(self, text: str, tokenizer: Any, encode: Callable[[str], Sequence[int]]) -> list[int]:
        """The tokens of a text with marks; `encode` makes them of a text without."""
        pieces = text.split(MARK)
        plain = "".join(pieces)
        ids = list(encode(plain))
        encoding = tokenizer(plain, add_special_tokens=False, return_offsets_mapping=True)
        if list(encoding["input_ids"]) != ids:
            self.problem = f"the tokenizer makes other tokens of {plain!r:.80} than the template, with other settings"
            return ids
        first = len(self.text)
        self.text += plain
        place = first
        for piece in pieces[:-1]:
            place += len(piece)
            self._found.append(place)
        tokens = []
        for token, (start, end) in zip(ids, encoding["offset_mapping"], strict=True):
            tokens.append(placed(token, first + start, first + end))
        self._tokens += tokens
        return list(tokens)

    def entry(self, ids: Sequence[int], sizes: Sequence[Sequence[int]], special: set[int]) -> str:
        """What is known of the tokens that the library made: a text of JSON, see [`ground_entries`].

        Args:
            ids (sequence of `int`): all tokens of the row, after everything that was inserted or cut.
            sizes (sequence of pairs): width and height of its pictures as the image processor gets them.
            special (`set[int]`): tokens that are no words.
        """
        if len(self._found) != len(self._edges) and not self.problem:
            self.problem = (
                f"the template has {len(self._found)} of {len(self._edges)} marks of phrases: it changes, repeats or "
                "leaves out texts, so that phrases lose their place"
            )
        if self.problem:
            return json.dumps({"problem": f"{self._texts[0]!r:.80}: {self.problem}"})
        places = dict(zip(self._edges, self._found, strict=True))
        spans = []
        for token in ids:
            is_word = isinstance(token, PlacedToken) and token not in special
            spans.append([token.start, token.end] if is_word else [-1, -1])  # type: ignore[attr-defined]
        kept: list[Fields] = []
        lost = 0
        for phrase in self.phrases:
            start = places[phrase.sentence, phrase.start, FIRST]
            end = places[phrase.sentence, phrase.end, LAST]
            moved = replace(phrase, start=start, end=end, sentence=0)
            if _count(self._tokens, start, end) == _count(ids, start, end):
                kept.append({key: value for key, value in vars(moved).items() if value is not None})
            else:
                lost += 1
        return json.dumps({"text": self.text, "spans": spans, "phrases": kept, "lost": lost, "sizes": list(sizes)})


def _count(tokens: Iterable[int], start: int, end: int) -> int:
    placed_tokens = [token for token in tokens if isinstance(token, PlacedToken)]
    return sum(token.start < end and token.end > start for token in placed_tokens)


class Grounding:
    """Attention supervision in another trainer: reads phrases of its rows, and completes its batches.

    Args:
        options (`TrainerOptions`): what the user says.
        records (iterable of `Mapping[str, Any]`): rows of the data, with `messages`, `images` and perhaps `objects`;
            how boxes are written is found in the first 2,000.
        processor (`ProcessorMixin`): the processor of the model.
        model_type (`str`, *optional*): `config.model_type` of the model.
        image_settings (`Mapping[str, Any]`, *optional*): settings that the trainer gives to the image processor.

    Raises:
        DataError: if these rows cannot be read, or their boxes can be read in several ways.
        ValueError: if none of them has a phrase with boxes, or the image tokens of the model are not known.
    """

    def __init__(
        self,
        options: TrainerOptions,
        records: Iterable[Columns],
        processor: Any,
        model_type: str | None = None,
        image_settings: Columns | None = None,
    ):
        self.options = options
        self.patches = PatchGroundingProcessor(processor, model_type, options.coverage_threshold, image_settings)
        sample = list(islice(records, LOOKED_AT))
        self._rows = grounded_rows(sample, boxes=options.boxes, images=options.images)
        if not self._rows.report.boxes:
            raise ValueError(f"no phrase with boxes in the first {len(sample)} rows: {self._rows.report}")
        self.method = options.make_method()
        self.collator = GroundingCollator(self.patches, self.method)
        tokenizer = self.patches.tokenizer
        self.special = {*tokenizer.all_special_ids, *self.patches.picture_ids}

    def read(self, record: Columns) -> tuple[list[str], list[Phrase]]:
        """The texts of a row, and the phrases in them that have boxes; no phrases where there is no picture."""
        texts = row_texts(record)
        if not record.get("images"):
            return texts, []
        rows = self._rows.of_record(record)
        phrases: list[Phrase] = []
        for row in rows:
            texts = row_texts(row)
            phrases += [read_phrase(each, texts, "a phrase") for each in row["phrases"] if each["boxes"]]
        return texts, phrases

    def complete(self, batch: Fields, entries: Sequence[str]) -> Fields:
        """Adds grounding, and what the method prepares, to a batch of the trainer.

        Args:
            batch (`dict[str, Any]`): `input_ids` and `attention_mask` (B, N), and what the model needs besides.
            entries (sequence of `str`): of each row [`FollowedRow.entry`].

        Raises:
            ValueError: if rows are packed, a phrase has lost its place, or image tokens are not where they should be.
        """
        mask = batch.get("attention_mask")
        if mask is None or mask.dim() != 2 or len(mask) != len(entries):
            raise ValueError("attention supervision needs one row of the data in each row of a batch: do not pack")
        read = [json.loads(entry) for entry in entries]
        for entry in read:
            if "problem" in entry:
                raise ValueError(f"a row cannot be supervised: {entry['problem']}")
        input_ids = batch["input_ids"].numpy()
        sequences = []
        for row, entry in enumerate(read):
            positions = np.flatnonzero(mask[row].numpy())
            sequences.append(self._sequence(f"row {row} of the batch", positions, input_ids[row, positions], entry))
        examples = {"phrases": [entry["phrases"] for entry in read], "phrase_pairs": None}
        data, _ = self.patches.ground(sequences, input_ids, examples)
        made = {name: torch.from_numpy(data[name]) for name in GROUNDING_KEYS if name in data}
        return self.collator.prepare({**batch, **made}, read)

    def _sequence(self, name: str, positions: np.ndarray, ids: np.ndarray, entry: Fields) -> TokenSequence:
        spans = np.array(entry["spans"], dtype=np.int64).reshape(-1, 2)
        if len(spans) != len(ids):
            raise ValueError(
                f"{name} has {len(ids)} tokens, but {len(spans)} were made: its tokens were changed since"
            )
        processor = self.patches.processor
        layouts = image_layouts(self.patches.family, processor, entry["sizes"], self.patches.image_settings)
        tokens = np.isin(ids, [*self.patches.picture_ids])
        image_tokens = self.patches.family.place(positions[tokens], layouts, name)
        text = entry["text"]
        prompt = Prompt(text, [PromptText(text, 0, 0, len(text))])
        return TokenSequence(prompt, image_tokens, positions, spans[None], ids, len(layouts))


class CompletedBatches:
    """A collator of another library, whose batches are completed."""

    def __init__(self, collate: Callable[[list[Fields]], Fields], grounding: Grounding):
        self._collate = collate
        self._grounding = grounding

    def __call__(self, rows: list[Fields]) -> Fields:
        if GROUNDING not in rows[0]:  # of an evaluation that generates answers
            return self._collate(rows)
        rows = [dict(row) for row in rows]
        entries = [row.pop(GROUNDING) for row in rows]
        return self._grounding.complete(dict(self._collate(rows)), entries)
