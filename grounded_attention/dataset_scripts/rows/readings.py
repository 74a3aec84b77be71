# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How four numbers are read as a box: said, known from the shape of the rows, or found by counting; never guessed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.named_types import Size

FORMAT = "the format of "  # how a convention is known that files of a tool cannot change
PIXELS = 0.0  # the scale of boxes in pixels
# A box may end this much outside of its picture: a part of the side, or a pixel.
MARGIN = 0.01
# With more boxes than this part against it, a convention that was said or is known is refused.
REFUSED = 0.05
# With at least MANY boxes, a reading with a few of them against it is still the one, if all others have many.
MANY = 100
FEW = 0.01
# So many boxes that all end within 0..100, or 0..1000, in pictures so many times larger, may be no pixels.
SEVERAL = 4
FAR = 2.5
_ORDERS = {
    "xyxy": "xyxy", "corners": "xyxy", "x1y1x2y2": "xyxy", "ltrb": "xyxy", "voc": "xyxy", "xywh": "xywh",
    "coco": "xywh", "ltwh": "xywh", "cxcywh": "cxcywh", "centre": "cxcywh", "center": "cxcywh", "xcycwh": "cxcywh",
    "yolo": "cxcywh", "yxyx": "yxyx", "y1x1y2x2": "yxyx", "points": "points", "point": "points", "xy": "points",
}  # fmt: skip
_SCALES = {
    "pixels": PIXELS, "pixel": PIXELS, "px": PIXELS, "absolute": PIXELS, "normalised": 1.0, "normalized": 1.0,
    "relative": 1.0, "norm1": 1.0, "norm": 1.0, "percent": 100.0, "%": 100.0, "voc": PIXELS, "coco": PIXELS,
    "yolo": 1.0, "real": PIXELS, "norm1000": 1000.0,
}  # fmt: skip
_RANGE = re.compile(r"\[?0(?:\.0)?\s*(?:\.\.+|-|–|to|,)\s*(\d+(?:\.\d+)?)\]?")


@dataclass(frozen=True)
class Reading:
    """A convention of boxes, or a part of one."""

    order: str | None = None  # `xyxy`, `xywh`, `cxcywh`, `yxyx`, `points`, `corners`; None if it is not known
    scale: float | None = None  # The number at the right and lower edge; 0 for pixels, None if it is not known
    padded: bool = False  # Whether the numbers are those of the picture after it was padded to a square

    def __str__(self) -> str:
        scale = {None: "", PIXELS: " pixels"}.get(self.scale, f" 0..{self.scale:g}" if self.scale else "")
        return f"{self.order or 'boxes'}{scale}{' padded' * self.padded}"

    def allows(self, other: "Reading") -> bool:
        """Whether a whole reading agrees with what this one says."""
        order = self.order in (None, other.order) or "points" in (self.order, other.order)
        return order and self.scale in (None, other.scale) and (self.padded <= other.padded)

    def corners(self, numbers: Sequence[float], size: Size) -> npt.NDArray[np.float64]:
        """Reads four numbers, or the two of a point, as x1, y1, x2, y2, divided by width and height; not clipped."""
        values = np.array(numbers, dtype=np.float64)
        # of a point the same
        start = values[:2]
        end = values[-2:]
        if self.order == "yxyx":
            start = start[::-1]
            end = end[::-1]
        elif self.order == "xywh" and len(values) == 4:
            end = start + end
        elif self.order == "cxcywh" and len(values) == 4:
            start, end = start - end / 2, start + end / 2
        box = np.concatenate([start, end])
        sides = np.array([*size, *size], dtype=np.float64)
        if self.scale == PIXELS:
            return box / sides
        box = box / (self.scale or 1.0)
        if self.padded:
            longest = max(size)
            box = (box * longest - (longest - sides) / 2) / sides
        return box

    def holds(self, numbers: Sequence[float], size: Size) -> bool:
        """Whether a box read so is inside of its picture and not inverted."""
        x1, y1, x2, y2 = self.corners(numbers, size)
        across, down = (max(MARGIN, (self.scale == PIXELS) * 1.01 / side) for side in size)
        inside = min(x1 + across, y1 + down, 1 + across - x2, 1 + down - y2) >= 0
        return inside and (len(numbers) == 2 or (x1 < x2 and y1 < y2))


Readings = tuple[Reading, ...]
# What four numbers may mean where nothing says it; the second line only if nothing of the first one holds.
_USUAL = (
    [
        Reading(order, scale)
        for order, scale in (("xyxy", PIXELS), ("xywh", PIXELS), ("xyxy", 1.0), ("xywh", 1.0), ("cxcywh", 1.0))
    ],
    [Reading(order, scale) for scale in (PIXELS, 1.0) for order in ("cxcywh", "yxyx")]
    + [Reading(order, scale) for scale in (100.0, 1000.0) for order in ("xyxy", "xywh", "cxcywh", "yxyx")],
    [Reading(order, 1024.0) for order in ("xyxy", "xywh", "yxyx")],
)
_USUAL_POINTS = ([Reading("points", scale) for scale in (PIXELS, 1.0, 100.0)], [Reading("points", 1000.0)])


def parse_reading(text: str) -> Reading:
    """Reads a convention as users write it, such as `"xywh pixels"`, `"cxcywh 0..1"` or `"yxyx 0..1000"`."""
    order = scale = None
    words = str(text).lower()
    match = _RANGE.search(words)
    if match:
        scale = float(match[1])
        words = words.replace(match[0], " ")
    padded = False
    for word in re.findall(r"[\w%]+", words):
        if word in ("padded", "square"):
            padded = True
        elif word in ("of", "the", "in", "boxes", "to", "a"):
            continue
        elif word in _ORDERS or word in _SCALES:
            order = _ORDERS.get(word, order)
            scale = _SCALES.get(word, scale)
        else:
            raise DataError(
                "boxes: an unknown word",
                found=word,
                expected="an order (xyxy, xywh, cxcywh, yxyx, points) and a scale (pixels, 0..1, 0..100, 0..1000)",
                hint="for example boxes='xywh pixels'",
            )
    return Reading(order, scale, padded)


@dataclass(frozen=True)
class Sample:
    """A box for counting: its numbers, the size of its picture, and what else the row says of it."""

    numbers: Sequence[float]  # Four numbers, or two
    size: Size  # Width and height to which pixels refer
    area: float | None = None  # Its area in pixels
    hull: Sequence[float] | None = None  # Corners in pixels of what it encloses: a mask or a polygon

    def agrees(self, reading: Reading) -> bool | None:
        """Whether a reading gives this area and this hull; None if the row says neither."""
        box = reading.corners(self.numbers, self.size) * np.array([*self.size, *self.size])
        agreements = []
        if self.area:
            area = (box[2] - box[0]) * (box[3] - box[1])
            agreements.append(abs(area - self.area) <= 0.01 * self.area + 1)
        if self.hull is not None:
            near = 2 + 0.02 * max(self.size)
            distances = np.abs(box - np.asarray(self.hull, dtype=np.float64))
            agreements.append(bool(distances.max() <= near))
        if agreements:
            return all(agreements)
        return None


@dataclass(frozen=True)
class Decision:
    """The reading of the boxes of one kind, and what told it."""

    reading: Reading
    known_by: str


class UnclearBoxes(DataError):
    """Several readings of the boxes hold, or none; `readings` are those that may be meant."""

    def __init__(self, problem: str, readings: Sequence[Reading], **details: object) -> None:
        super().__init__(problem, **details)  # type: ignore[arg-type]
        self.readings = list(readings)


def decide(
    samples: Sequence[Sample], readings: Sequence[Reading], given: Reading, known_by: str, **place: object
) -> Decision:
    """Finds the one reading of boxes and how it is known; `UnclearBoxes` if several hold, or none does."""
    samples = [each for each in samples if each.size[0] and each.size[1]]
    if readings and readings[0].order == "corners" and given.order is not None:
        given = Reading("corners", given.scale)  # the box around corners: the order of four numbers says nothing of it
    if given.order is not None and given.scale is not None:
        return _checked(given, samples, "said", place)
    allowed = [each for each in readings if given.allows(each)]
    if readings and not allowed and given != Reading():
        raise UnclearBoxes(
            f"boxes: {given} is said, but {known_by} {_listed(readings)}", readings, hint="leave it out", **place
        )
    if allowed and allowed[0].padded:  # the padded square is usual there; a box beyond it says that it is not meant
        fitting = []
        for each in allowed:
            if all(each.holds(s.numbers, s.size) for s in samples):
                fitting.append(each)
        allowed = (fitting or allowed)[:1]
    if len(allowed) == 1:
        return _checked(allowed[0], samples, known_by, place)
    if allowed:
        tiers: Sequence[Sequence[Reading]] = [allowed]
    elif samples and len(samples[0].numbers) == 2:
        tiers = _USUAL_POINTS
    elif given.order is None:
        tiers = _USUAL
    else:
        tiers = []
        for scales in ((PIXELS, 1.0), (100.0,), (1000.0,)):
            tiers.append([Reading(given.order, scale) for scale in scales])
    counted: dict[Reading, int] = {}
    for tier in tiers:
        tried = [each for each in tier if given.allows(each)]
        counts = count_holding(samples, tried)
        counted |= counts
        holding = [each for each in tried if counts[each] == len(samples)]
        agreeing = _agreeing(samples, holding or tried)
        if len(agreeing) == 1 and len(holding or tried) > 1:
            return Decision(agreeing[0], f"the counts: {agreeing[0]} alone agrees with areas or masks")
        if not holding:
            holding = _almost_holding(counts, len(samples))
        if not allowed:
            holding += [other for each in holding for other in _of_smaller_range(samples, each, given)]
        if len(holding) == 1:
            return Decision(holding[0], f"the counts: {_counts(counted, len(samples))}")
        if holding:
            choices = [f"boxes={str(each)!r}" for each in holding]
            raise UnclearBoxes(
                f"boxes: {_listed(holding)} hold all {len(samples)} boxes that were counted, and nothing tells which "
                "is meant",
                holding,
                hint=f"say it: {' or '.join(choices)}",
                **place,
            )
    raise UnclearBoxes(
        f"boxes: no reading keeps all {len(samples)} boxes that were counted inside of their pictures "
        f"({_counts(counted, len(samples))})",
        [*counted],
        hint="correct them, or say their order and scale by the argument boxes",
        **place,
    )


def _of_smaller_range(samples: Sequence[Sample], reading: Reading, given: Reading) -> list[Reading]:
    """What boxes in pixels may be too: none of several ends beyond a range that is far smaller than the pictures."""
    if reading.scale != PIXELS or given.scale is not None or len(samples) < SEVERAL:
        return []
    highest = max(max(each.numbers) for each in samples)
    smallest = min(min(each.size) for each in samples)
    for scale in (100.0, 1000.0):
        other = Reading(reading.order, scale)
        is_range = scale / 2 < highest <= scale and smallest >= FAR * scale
        if is_range and all(other.holds(sample.numbers, sample.size) for sample in samples):
            return [other]
    return []


def count_holding(samples: Iterable[Sample], readings: Sequence[Reading]) -> dict[Reading, int]:
    """How many boxes each reading keeps inside of their pictures and not inverted. Boxes of which none is above 1 are
    shares of the picture and nothing else, if the picture has more than two pixels a side."""
    kept = list(samples)
    shares = all(max(map(abs, each.numbers)) <= 1 + MARGIN and min(each.size) > 2 for each in kept)
    counts = {}
    for reading in readings:
        if shares and reading.scale != 1.0:
            counts[reading] = 0
        else:
            counts[reading] = sum(reading.holds(s.numbers, s.size) for s in kept)
    return counts


def _checked(reading: Reading, samples: Sequence[Sample], known_by: str, place: Mapping[str, object]) -> Decision:
    """A reading that is said or known; refused if the boxes are against it."""
    counts = count_holding(samples, [reading])
    against = len(samples) - counts[reading]
    agreed = {sample.agrees(reading) for sample in samples} - {None}
    if against > REFUSED * len(samples) or (agreed == {False} and _agreeing(samples, _USUAL[0])):
        if len(samples[0].numbers) == 4:
            usual: Sequence[Sequence[Reading]] = _USUAL
        else:
            usual = _USUAL_POINTS
        others = [*usual[0], *usual[1]]
        counted = count_holding(samples, others)
        holding = []
        for each in others:
            if counted[each] == len(samples) and each != reading:
                holding.append(each)
        may_differ = len(holding) == 1 and not known_by.startswith(FORMAT)
        hint = f"say boxes={str(holding[0])!r}, which holds all" if may_differ else "correct the boxes"
        outside = [s for s in samples if not reading.holds(s.numbers, s.size)]
        first = (outside or samples)[0]
        box = ", ".join(f"{number:g}" for number in first.numbers)
        raise UnclearBoxes(
            f"boxes: read as {reading} ({known_by}), {against or len(samples)} of {len(samples)} boxes leave their "
            f"picture, are inverted, or differ from their area or mask, such as [{box}] in a picture of "
            f"{first.size[0]} x {first.size[1]}",
            holding or [reading],
            hint=hint,
            **place,
        )
    checked = ""
    if samples:
        checked = f", {counts[reading]} of {len(samples)} boxes counted fit"
    return Decision(reading, f"{known_by}{checked}")


def _agreeing(samples: Sequence[Sample], readings: Sequence[Reading]) -> list[Reading]:
    """The readings that agree with every area and mask, if there are any."""
    telling = []
    for each in samples:
        if each.area or each.hull is not None:
            telling.append(each)
    if not telling:
        return []
    return [each for each in readings if all(sample.agrees(each) for sample in telling)]


def _almost_holding(counts: Mapping[Reading, int], number: int) -> list[Reading]:
    best = []
    for each, count in counts.items():
        if number >= MANY and count >= (1 - FEW) * number:
            best.append(each)
    others = [count for each, count in counts.items() if each not in best]
    if len(best) == 1 and all(count <= (1 - 10 * FEW) * number for count in others):
        return best
    return []


def _counts(counts: Mapping[Reading, int], number: int) -> str:
    return ", ".join(f"{reading} {count} of {number}" for reading, count in counts.items())


def _listed(readings: Sequence[Reading]) -> str:
    return " and ".join(map(str, readings))
