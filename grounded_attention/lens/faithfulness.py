# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How faithful the maps of words are: `measure_words` covers what a map ranks first, and asks the model again.

A map may be of any form, and stands on the cells of one picture. Pictures keep their size, so that the model reads as
many image tokens as before, at the same places.

Shape letters: M maps, S steps, R image tokens, C cells, H and W height and width of the picture in pixels.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

from grounded_attention.analysis import STEPS
from grounded_attention.analysis.faithfulness import (
    GOLD,
    PLAIN,
    RANDOM,
    FaithfulCurves,
    measure_curves,
    random_map,
    step_fractions,
)
from grounded_attention.dataset_scripts.rows.chats import row_images
from grounded_attention.heads.ablation import GroundedWords, logits_before, token_log_likelihoods
from grounded_attention.heads.examples import grounded_examples, picture_name
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.points import is_hit
from grounded_attention.heads.reading import inputs_on
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.processing.grounded_batch import word_inputs
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision.supervise import unwrap_model
from grounded_attention.utils.boxes import covered_shares
from grounded_attention.utils.named_types import Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import check_one_of
from grounded_attention.utils.progress import with_progress

from . import COVERS, INSTRUCTION
from .batches import READ_ALONE
from .exchanges import GivenHeads, answer_tokens, ready
from .look import look
from .prompts import prompt_texts, read_chat
from .sequences import add_answer, read_prompt, token_inputs

BLUR = 0.1  # standard deviation, as a part of the picture's longer side
NEAR = 4  # power of the distance by which neighbours count less


def measure_words(
    model: Any,
    processor: Any,
    rows: Iterable[Row],
    *,
    heads: GivenHeads = "auto",
    forms: Sequence[str] = (PLAIN,),
    token_rows: str | None = None,
    cover: str = COVERS[0],
    instruction: str = INSTRUCTION,
    most_words: int = 300,
    steps: int = STEPS,
    batch_size: int = 16,
    seed: int = 0,
) -> FaithfulCurves:
    """Measures how faithful the maps of the words of given answers are.

    Each text of a row that has phrases is an answer to the instruction. A word is the last one of a phrase with boxes,
    and its score the log-probability of its tokens, after all that is before them, in nats. The cells of its picture
    are covered, or shown alone, in the order of each map: of each form; of `gold`, the part of a cell in boxes; and of
    `random`.

    Args:
        model (`PreTrainedModel`): a causal vision-language model; it is set to evaluation mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        rows (iterable of rows): such as [`grounded_rows`].
        heads (*optional*, defaults to `"auto"`): as for [`look`].
        forms (`Sequence[str]`, *optional*, defaults to `("plain",)`): as for [`look`]; `"plain"` is always measured.
        token_rows (`str`, *optional*): `rows` of [`look`].
        cover (`str`, *optional*, defaults to `"mean"`): what takes the place of covered cells: `"mean"`, the mean
            colour of the picture; `"blur"`, the picture, blurred with a standard deviation of a tenth of its longer
            side; `"neighbours"`, the mean colours of the shown cells, divided by the fourth power of their distance.
        instruction (`str`, *optional*, defaults to `"Describe the image."`): the words of the user.
        most_words (`int`, *optional*, defaults to 300): after so many words no further answer is read.
        steps (`int`, *optional*, defaults to 10): in how many steps cells are covered.
        batch_size (`int`, *optional*, defaults to 16): how many covered pictures are read in one pass.
        seed (`int`, *optional*, defaults to 0): of the random map.

    Returns:
        [`FaithfulCurves`]: `more["pointing"]` is 1 where the middle of a map's best cell is in a box of the phrase.
            `about` has what [`look`] took for a word of prompt and answer, by form (`ms_a_word`), and how many phrases
            were left out: without a box, without a token, or of an answer that has other letters as tokens.

    Raises:
        ValueError: if an option is not valid, no word can be measured, a map is NaN or infinite, or a covered picture
            has other image tokens.
    """
    check_one_of(cover, COVERS, "cover ")
    fractions = step_fractions(steps)
    model, patches = ready(model, processor)
    if unwrap_model(model).config.model_type in READ_ALONE:
        batch_size = 1
    forms = tuple(dict.fromkeys((PLAIN, *forms)))
    left_out = Counter(without_box=0, without_token=0, other_letters=0)
    seconds = dict.fromkeys(forms, 0.0)
    read = 0
    kept: list[str] = []
    scores = []
    pointed = []
    for row in with_progress(rows, "cover pictures"):
        pictures = {picture_name(row["image_id"], number): each for number, each in enumerate(row_images(row))}
        for example in grounded_examples([row]):
            phrases = [phrase for phrase in example.phrases if len(phrase.boxes)]
            left_out["without_box"] += len(example.phrases) - len(phrases)
            if not phrases:
                continue
            picture = open_image(pictures[example.image_id], f"image {example.image_id}")
            answer = CoveredAnswer(model, patches, picture, instruction, example.caption)
            if answer.whole.texts[-1].casefold() != example.caption.casefold():
                left_out["other_letters"] += len(phrases)
                continue
            read += len(answer.whole.words)
            lenses = []
            for form in forms:
                start = perf_counter()
                lens = look(
                    model,
                    patches,
                    picture,
                    instruction,
                    answer=example.caption,
                    heads=heads,
                    form=form,
                    rows=token_rows,
                )
                lenses.append(lens)
                seconds[form] += perf_counter() - start
            for phrase in phrases:
                number = answer.find_word(phrase)
                if number is None:
                    left_out["without_token"] += 1
                    continue
                maps = [answer.to_cells(lens.attention[:, number].mean(0)) for lens in lenses]
                maps.append(covered_shares(answer.cells, phrase.boxes).sum(1).clip(max=1))
                maps.append(random_map(len(answer.cells), seed, len(kept)))
                stacked = np.stack(maps)  # (M, C)
                scores.append(answer.measure(stacked, number, cover, fractions, batch_size))
                best = np.where(answer.candidates, stacked, -np.inf).argmax(1)
                middles = answer.cells[best].reshape(-1, 2, 2).mean(1)
                pointed.append([float(is_hit((x, y), phrase.boxes)) for x, y in middles.tolist()])
                kept.append(example.image_id)
        if len(kept) >= most_words:
            break
    if not kept:
        raise ValueError(f"no word to measure ({dict(left_out)}): expected texts with phrases that have boxes")
    costs = {form: round(1000 * spent / read, 2) for form, spent in seconds.items()}
    about = {"cover": cover, "left_out": dict(left_out), "ms_a_word": costs}
    more = {"pointing": np.array(pointed)}
    return FaithfulCurves((*forms, GOLD, RANDOM), fractions, tuple(kept), np.stack(scores), more, about)


class CoveredAnswer:
    """A given answer to a question about a picture, whose words are predicted while cells of the picture are covered.

    A pixel is of the cell in which its middle is. A cell without pixels is no candidate: nothing covers it.

    Attributes:
        whole (`Sequenced`): question and answer, whose words have the rows of their own tokens.
        cells (`np.ndarray`): (C, 4) float32, the box of each cell, x1, y1, x2, y2 in [0, 1].
        candidates (`np.ndarray`): (C,) bool.
    """

    def __init__(self, model: Any, patches: PatchGroundingProcessor, picture: Image.Image, question: str, answer: str):
        self.model = model
        self.patches = patches
        self.chat, _ = read_chat(picture, question)
        self.prompt = read_prompt(patches, self.chat, prompt_texts(self.chat), [picture])
        self.whole = add_answer(model, patches.tokenizer, self.prompt, answer_tokens(patches, answer))
        self.grid = TokenGrid.of_tokens(self.prompt.batch["region_boxes"][0], self.prompt.token_images == 0)
        self.cells = self.grid.cell_boxes()
        self.picture = picture.convert("RGB")
        self.pixels = np.asarray(self.picture)  # (H, W, 3) uint8
        numbers = np.arange(len(self.cells), dtype=np.int32).reshape(self.grid.rows, -1)
        self.cell_of = np.asarray(self._on_pixels(Image.fromarray(numbers)))  # (H, W), C outside of all cells
        self.sizes = np.bincount(self.cell_of.ravel(), minlength=len(self.cells) + 1)[:-1]
        self.candidates = self.sizes > 0

    def _on_pixels(self, cells: Image.Image) -> Image.Image:
        """The picture's pixels with the values of cells, C outside of all."""
        x1, y1, x2, y2 = self.grid.frame
        across = cells.width / (x2 - x1)
        down = cells.height / (y2 - y1)
        extent = (-x1 * across, -y1 * down, (1 - x1) * across, (1 - y1) * down)  # the whole picture, in cells
        return cells.transform(self.picture.size, Image.Transform.EXTENT, extent, fillcolor=len(self.cells))

    def find_word(self, phrase: Phrase) -> int | None:
        """The number of the last word of a phrase of the answer, if it has tokens."""
        found = None
        for number, word in enumerate(self.whole.words):
            if word.answer and word.rows and word.start < phrase.end and word.end > phrase.start:
                found = number
        return found

    def to_cells(self, values: np.ndarray) -> np.ndarray:
        """The map (C,) of values of image tokens (R,)."""
        shown = self.prompt.token_images == 0
        return self.grid.maps(torch.from_numpy(values) * shown).flatten().numpy()

    def measure(self, maps: np.ndarray, number: int, cover: str, fractions: np.ndarray, batch_size: int) -> np.ndarray:
        """(M, 2, F) float64: deletion and insertion of maps (M, C) for a word."""

        def score(shown: np.ndarray) -> np.ndarray:
            parts = []
            for start in range(0, len(shown), batch_size):
                pictures = self.cover(shown[start : start + batch_size, 0], cover)
                parts.append(self.predict(pictures, self.whole.words[number].rows))
            return np.concatenate(parts)[:, None]

        return measure_curves(maps[None], self.candidates[None], score, fractions)[0]

    def cover(self, shown: np.ndarray, cover: str) -> list[Image.Image]:
        """The pictures with the cells covered that are not shown, (S, C) bool."""
        mean = self.pixels.mean((0, 1))
        if cover == "mean":
            fill = mean
        elif cover == "blur":
            fill = np.asarray(self.picture.filter(ImageFilter.GaussianBlur(BLUR * max(self.picture.size))))
        else:
            colours = self._from_neighbours(shown & self.candidates, mean)
            fill = np.pad(colours, ((0, 0), (0, 1), (0, 0)))[:, self.cell_of]
        is_shown = np.pad(shown, ((0, 0), (0, 1)), constant_values=True)[:, self.cell_of]  # (S, H, W)
        painted = np.where(is_shown[..., None], self.pixels, np.round(fill)).astype(np.uint8)
        return [Image.fromarray(each) for each in painted]

    def _from_neighbours(self, shown: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """(S, C, 3) float64, the colour of each cell by those that are shown, (S, C); without any the mean (3,)."""
        sums = np.zeros((len(self.cells) + 1, 3))
        np.add.at(sums, self.cell_of, self.pixels)
        colours = sums[:-1] / self.sizes.clip(min=1)[:, None]
        places = np.indices((self.grid.rows, self.grid.columns)).reshape(2, -1)
        distances = np.hypot(*(places[:, None] - places[:, :, None]))
        near = distances.clip(min=1) ** -NEAR  # (C, C)
        least = np.finfo(float).tiny
        weighted = near @ (shown[..., None] * colours) + least * mean  # (S, C, 3)
        return weighted / (shown @ near + least)[..., None]

    @torch.no_grad()
    def predict(self, pictures: Sequence[Image.Image], rows: Sequence[int]) -> np.ndarray:
        """(S,) float64, the sum of the log-probabilities of the tokens of some rows, with each picture."""
        count = len(pictures)
        batch = self.patches([self.chat] * count, images=[[each] for each in pictures], phrases=[[]] * count)
        known = {**self.prompt.batch, "input_ids": self.prompt.inputs["input_ids"]}
        for name in ("input_ids", "region_positions", "region_boxes"):
            if not torch.equal(batch[name], known[name].expand(count, *known[name].shape[1:])):
                raise ValueError(
                    f"a covered picture has other image tokens ({name}) than the picture, so that no map fits both: "
                    "the processor decides by what a picture shows, and its model cannot be measured"
                )
        end = rows[-1] + 1  # what follows a word does not change it
        read = {name: self.whole.inputs[name][:, :end] for name in token_inputs(batch)}
        whole = {name: value.expand(count, *value.shape[1:]) for name, value in read.items()}
        positions = torch.tensor([rows]).expand(count, -1)
        ids = whole[word_inputs(whole)[0]].gather(1, positions)
        words = GroundedWords(inputs_on({**batch, **whole}, self.model), torch.ones_like(ids), ids, positions)
        logits = finite_scores(logits_before(self.model, words), "a logit of the answer")
        return token_log_likelihoods(logits, words).numpy()
