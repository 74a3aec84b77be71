# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Whether the image tokens of a model lie where their boxes say: pixels of one cell are changed, and the tokens move.

Shape letters: R image tokens of an example, D width of the language model.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import check_model, find_language_model, unwrap_model
from grounded_attention.utils.named_types import Batch, Fields

from .reading import inputs_on

# Width and height of the pictures of each example: wide, tall and square ones, small and large ones, one and two.
SIZES = (((480, 480),), ((640, 200),), ((150, 400),), ((61, 47),), ((1300, 900),), ((500, 330), (200, 460)))
CELLS = 8  # of each example, whose pixels are changed one after the other
QUESTION = "What is shown here?"
PLACED = "placed"
MISPLACED = "misplaced"
UNKNOWN = "cannot tell"
# Of the largest change of a token: what the changed one has at least, and what others stay below. Pixels of a resized
# picture are means of neighbours, so that tokens beside the cell move a little.
LEAST = 0.01
STRANGER = 0.5
# Tokens that one cell moves, for each that shows it; more say that the tower mixes them.
MANY = 9
FEWEST = 2  # pixels on a side of a cell that is changed
# Parts of a tower through which a patch learns of others.
_MIXING = ("Attention", "ShortConv")


@dataclass(frozen=True)
class LayoutCase:
    """What was seen of one example.

    Args:
        sizes (`tuple[tuple[int, int], ...]`): width and height of its pictures in pixels.
        tokens (`int`): how many image tokens it has.
        cells (`int`): of how many of them the pixels were changed.
        outcome (`str`): `"placed"`, `"misplaced"` or `"cannot tell"`.
        detail (`str`): the first cell that is misplaced, or why it cannot be told.
    """

    sizes: tuple[tuple[int, int], ...]
    tokens: int
    cells: int
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        pictures = " and ".join(f"{width} x {height}" for width, height in self.sizes)
        if self.outcome == PLACED:
            return f"{pictures}: these {self.tokens} tokens lie where you think ({self.cells} cells changed)"
        return f"{pictures}: {self.outcome}: {self.detail}"


@dataclass(frozen=True)
class LayoutReport:
    """The cases of a model, see [`check_layout`]."""

    model_type: str
    cases: tuple[LayoutCase, ...]

    @property
    def outcome(self) -> str:
        """`"misplaced"` if one case is, else `"placed"` if one is, else `"cannot tell"`."""
        outcomes = [case.outcome for case in self.cases]
        return next(each for each in (MISPLACED, PLACED, UNKNOWN) if each in outcomes)

    def __str__(self) -> str:
        return "\n".join([f"{self.model_type}: {self.outcome}", *map(str, self.cases)])


@torch.no_grad()
def check_layout(
    model: Any,
    processor: Any,
    sizes: Sequence[Sequence[tuple[int, int]]] = SIZES,
    cells: int = CELLS,
    seed: int = 0,
) -> LayoutReport:
    """Checks that image tokens lie where their boxes say, for a type that is known and for one that is not.

    The pixels in the box of one image token are changed, and what the language model reads of the image is compared
    before and after: the token has to move, and no token that shows other pixels as much; it has to move for a
    corner of the box too. A vision tower attends globally, so its attention is switched off meanwhile; where that
    leaves nothing that can be compared, the case says so.

    Args:
        model (`PreTrainedModel`): a vision-language model, which is set to evaluation mode; its weights stay.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        sizes (*optional*): of each example the (width, height) of its pictures in pixels; by default six examples of
            several shapes, small and large, one of two pictures.
        cells (`int`, *optional*, defaults to 8): how many cells of each example are changed, at least 1; among them
            are the first and the last one of each picture.
        seed (`int`, *optional*, defaults to 0): of the noise in the pictures and of the choice of cells.

    Returns:
        [`LayoutReport`]: one line for each example.

    Raises:
        ValueError: if the image tokens of the model are not known, see [`PatchGroundingProcessor`], or `cells` is
            below 1.
    """
    check_model(model, processor)
    if cells < 1:
        raise ValueError(f"cells={cells}, expected at least 1")
    inner = unwrap_model(model).eval()
    if not isinstance(processor, PatchGroundingProcessor):
        processor = PatchGroundingProcessor(processor, inner.config.model_type)
    generator = np.random.default_rng(seed)
    with patches_alone(inner):
        cases = [_check_case(inner, processor, tuple(each), cells, generator) for each in sizes]
    return LayoutReport(inner.config.model_type, tuple(cases))


def _check_case(
    model: Any,
    patches: PatchGroundingProcessor,
    sizes: tuple[tuple[int, int], ...],
    cells: int,
    generator: np.random.Generator,
) -> LayoutCase:
    pictures = [generator.integers(0, 120, (height, width, 3), dtype=np.uint8) for width, height in sizes]
    try:
        before, batch = read_by_language_model(model, patches, pictures)
    except ValueError as error:
        return LayoutCase(sizes, 0, 0, UNKNOWN, str(error))
    images = batch["region_image"][0].numpy()
    placed = batch["region_candidate_mask"][0].numpy()
    of_each = np.array(sizes)[images]  # (R, 2)
    boxes = batch["region_boxes"][0].numpy() * np.tile(of_each, 2)  # in pixels
    areas = whole_pixels(boxes)
    shown = np.flatnonzero(placed & (areas[:, 2:] - areas[:, :2] >= FEWEST).all(axis=1))
    tokens = len(before.tokens)
    if not len(shown):
        return LayoutCase(sizes, tokens, 0, UNKNOWN, f"no image token has a box of {FEWEST} x {FEWEST} pixels")
    chosen = [*dict.fromkeys([*shown[:1], *shown[-1:], *generator.permutation(shown)])][:cells]
    for token in chosen:
        # The whole cell, and a corner of it: a box that is too large has corners of which the token shows nothing.
        for whole, part in ((True, boxes[token]), (False, _corner(boxes[token], generator))):
            left, top, right, bottom = area = whole_pixels(part[None])[0]
            if left >= right or top >= bottom:
                continue
            changed = [picture.copy() for picture in pictures]
            pixels = changed[images[token]][top:bottom, left:right]
            pixels[:] = 255 - pixels
            after, _ = read_by_language_model(model, patches, changed)
            shared = np.minimum(boxes[:, 2:], area[2:]) - np.maximum(boxes[:, :2], area[:2])
            shows = placed & (images == images[token]) & (shared > 1e-3).all(axis=1)
            alike = np.flatnonzero(shows & (boxes == boxes[token]).all(axis=1))  # queries of one window
            if len(alike) > MANY or len(alike) == len(shown):
                alike = np.array([token])
            outcome, detail = _judge(alike, shows, before, after, whole)
            if outcome != PLACED:
                where = f"pixels {left}, {top}, {right}, {bottom} of picture {images[token]}"
                cell = f"{where}, image token {token} of {tokens}"
                return LayoutCase(sizes, tokens, len(chosen), outcome, f"{cell}: {detail}")
    return LayoutCase(sizes, tokens, len(chosen), PLACED)


def whole_pixels(boxes: np.ndarray) -> np.ndarray:
    """The whole pixels inside boxes (R, 4) in pixels."""
    return np.concatenate([np.ceil(boxes[:, :2] - 1e-3), np.floor(boxes[:, 2:] + 1e-3)], axis=1).astype(int)


def _corner(box: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A corner of a box (4,), a quarter as wide and high."""
    side = (box[2:] - box[:2]) / 4
    low = np.where(generator.integers(0, 2, 2), box[2:] - side, box[:2])
    return np.concatenate([low, low + side])


@dataclass(frozen=True)
class ReadStates:
    """What the language model reads: of the image tokens (R, D), and of all other positions (M, E)."""

    tokens: Tensor
    others: Tensor


def _judge(
    alike: np.ndarray, shows: np.ndarray, before: ReadStates, after: ReadStates, whole: bool
) -> tuple[str, str]:
    """Whether tokens with the box of a changed cell moved, or of its corner, and others that show its pixels alone."""
    moved = (after.tokens - before.tokens).norm(dim=-1).numpy()
    others = (after.others - before.others).norm(dim=-1).numpy()
    most = max(moved.max(), others.max(initial=0))
    if not most > 0 and not whole:
        return MISPLACED, "no token moved, but one did when all pixels of the box were changed: it is too large"
    if not most > 0:
        return UNKNOWN, "no token moved: what the tower makes of a patch alone does not reach the language model"
    share = moved / most
    strangers = np.flatnonzero((share > STRANGER) & ~shows)
    outside = int((others > LEAST * most).sum())
    if share[alike].max() > LEAST and not outside and not (whole and len(strangers)):
        return PLACED, ""
    mixed = int((share > LEAST).sum())
    if mixed > MANY * shows.sum():
        return UNKNOWN, f"{mixed} tokens moved: the tower mixes patches in a way that is not switched off"
    if outside:
        return MISPLACED, f"{outside} positions moved that are not among the image tokens"
    return MISPLACED, f"they moved {', '.join(map(str, strangers)) or 'other tokens'} instead"


class _Read(Exception):
    """Stops a pass where the language model begins."""


def _refuse_codes(*call: Any) -> None:
    raise ValueError("its image tokens are words of a codebook, which a changed cell changes by jumps or not at all")


def read_by_language_model(
    model: Any, patches: PatchGroundingProcessor, pictures: Sequence[np.ndarray]
) -> tuple[ReadStates, Batch]:
    """What the language model reads, float32 on the CPU, and the batch."""
    batch = patches(QUESTION, images=[Image.fromarray(picture) for picture in pictures])
    positions = batch["region_positions"][0]
    read: list[Tensor] = []
    others: list[Tensor] = []

    def stop(module: nn.Module, args: tuple, kwargs: Fields) -> None:
        if kwargs.get("cross_attention_states") is not None:  # of all tiles
            states = kwargs["cross_attention_states"].flatten(0, -2)
        else:
            states = (args[0] if args else kwargs["inputs_embeds"])[0]
        states = states.float().cpu()
        read.append(states[positions])
        is_other = torch.ones(len(states), dtype=torch.bool).index_fill(0, positions, False)
        others.append(states[is_other])
        for name, later in kwargs.items():  # what its layers add to the states of image tokens
            if name.startswith("deepstack") and later is not None:
                read.extend(later.values() if isinstance(later, dict) else later)
        raise _Read

    part: Any = find_language_model(model)
    if part is model:
        part = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[0]
    if patches.family.decoder is not None:
        part = find_language_model(model.get_encoder())
    with part.register_forward_pre_hook(stop, with_kwargs=True), suppress(_Read):
        model(**inputs_on(batch, model))
    return ReadStates(torch.cat([states.float().cpu() for states in read], dim=-1), others[0]), batch


@contextmanager
def patches_alone(model: Any) -> Iterator[None]:
    """Inside it, the vision tower embeds each patch by itself: attention adds nothing, and convolutions see a cell."""
    language = {*find_language_model(model).modules()}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if module in language and "vqmodel" not in name:  # all of Chameleon is its language model
                continue
            if _mixes(module) and not any(_mixes(child) for child in [*module.modules()][1:]):
                stack.enter_context(module.register_forward_hook(_add_nothing, with_kwargs=True))
            if type(module).__name__.endswith("VectorQuantizer"):
                stack.enter_context(module.register_forward_pre_hook(_refuse_codes))
            if isinstance(module, nn.GroupNorm):  # it takes means of the whole picture
                stack.enter_context(module.register_forward_hook(lambda module, args, output: args[0].clone()))
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                stack.callback(module.weight.copy_, module.weight.clone())
                module.weight.mul_(_own_cell(module))
        yield


def _mixes(module: nn.Module) -> bool:
    return any(part in type(module).__name__ for part in _MIXING)


def _add_nothing(module: nn.Module, args: tuple, kwargs: Fields, output: Any) -> Any:
    """Zeros, where a module gives what is added to the one sequence that it reads; others gather patches."""
    sequences = [each for each in args if isinstance(each, Tensor) and each.dim() > 2]
    gathers = len(sequences) > 1 or kwargs.get("encoder_hidden_states") is not None
    first = output[0] if isinstance(output, tuple) else output
    states = args[0] if args else kwargs["hidden_states"]
    if gathers or states.numel() != first.numel():  # Florence-2 gives a grid as a sequence
        return output
    if isinstance(output, tuple):
        return (torch.zeros_like(first), *output[1:])
    return torch.zeros_like(first)


def _own_cell(convolution: Any) -> Tensor:
    """A factor of the weights of a convolution (out, in, ..., H, W): what it reads of the cell of its own place."""
    seen = torch.zeros_like(convolution.weight)
    padding = convolution.padding
    if isinstance(padding, str):
        padding = (0, 0)
    places: list[Any] = [...]
    sides = zip(convolution.kernel_size[-2:], convolution.stride[-2:], padding[-2:], strict=True)
    for size, step, padded in sides:
        first = padded if step > 1 else (size - 1) // 2
        places.append(slice(first, first + step))
    seen[tuple(places)] = 1.0
    return seen * seen.mean() ** -0.5  # as large as before
