# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads checkpoints and captures the attention of an image and its caption; both are kept for the next click."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention, capture_image
from grounded_attention.lens.look import look
from grounded_attention.lens.word_maps import Lens
from grounded_attention.modeling.grounding_items import unknown_words
from grounded_attention.training.experiments.pretrained import load_pipeline, load_vlm
from grounded_attention.utils.open_images import ENOUGH, open_image
from grounded_attention.utils.plain_text import first_sentences

from .settings import SMALL_VLM, SpaceSettings

KEPT_MODELS = 4
KEPT_CAPTURES = 64
# A longer text does not fit into the models, and its words do not fit on a screen.
LONGEST_TEXT = 400
# Larger pictures are scaled down: detectors and processors do so, too, and a visitor waits for every copy.
LARGEST_SIDE = 1600
T = TypeVar("T")


class VisitorError(ValueError):
    """Something that a visitor can correct; the message is one sentence for the page."""


@dataclass(frozen=True, eq=False)
class Capture:
    """The attention of one checkpoint in one image."""

    name: str
    example: ExampleAttention
    notes: tuple[str, ...] = ()


class _Kept:
    """The newest results of a function, by a key."""

    def __init__(self, most: int):
        self._most = most
        self._found: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._found:
            self._found[key] = make()
        self._found.move_to_end(key)
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        return self._found[key]


class Captures:
    """Captures attention for a page. One at a time, since a capture exchanges the attention function of the model."""

    def __init__(self, settings: SpaceSettings):
        self.settings = settings
        self._lock = Lock()
        self._models = _Kept(KEPT_MODELS)
        self._captures = _Kept(KEPT_CAPTURES)

    def grounded(self, image: Image.Image, caption: str, name: str) -> Capture:
        """The attention of a checkpoint of this package."""
        text, key = _read_text(caption, "caption", "write what the picture shows, for example “a red ball”")
        return self._kept((key, name.strip()), image, lambda: self._capture_regions(image, text, name.strip()))

    def look(self, image: Image.Image, question: str, name: str, heads: str = "auto") -> Lens:
        """The answer of a vision-language model, and where it looked."""
        text, key = _read_text(question, "question", "ask about the picture, for example “Describe the image.”")
        return self._kept((key, name.strip(), heads), image, lambda: self._look(image, text, name.strip(), heads))

    def _kept(self, key: tuple[str, ...], image: Image.Image, make: Callable[[], T]) -> T:
        with self._lock:
            return self._captures.get((*key, image.size, hashlib.sha256(image.tobytes()).digest()), make)

    def _capture_regions(self, image: Image.Image, caption: str, name: str) -> Capture:
        pipe = self._model("grounded", name, self._load_pipeline)
        try:
            example = capture_image(pipe, image, caption)
        except ValueError as error:
            if "0 regions" in str(error) or "no region" in str(error):
                hint = "give one with shapes of one colour each on a plain ground, or another detector"
                raise VisitorError(f"No objects were found in this picture: {hint}.") from error
            raise VisitorError(one_sentence(error)) from error
        unknown = ", ".join(f"“{word}”" for word in unknown_words(pipe.processor.tokenizer, caption))
        notes = [f"The model does not know {unknown}; where these words look has no meaning."] if unknown else []
        return Capture(self._title(name), example, notes=(*notes, *pipe.remarks))

    def _load_pipeline(self, place: str) -> Any:
        detector = self.settings.detector
        features = self.settings.features
        try:
            return load_pipeline(place, detector=detector, features=features)
        except ValueError as error:
            if "reads pixels" not in str(error):
                raise
        return load_pipeline(place, detector=detector)

    def _look(self, image: Image.Image, question: str, name: str, heads: str) -> Lens:
        model, processor = self._model("vlm", name, load_vlm)
        try:
            return look(model, processor, image, question, heads=heads, form="plain")
        except ValueError as error:
            raise VisitorError(one_sentence(error)) from error

    def _model(self, kind: str, name: str, load: Callable[[str], T]) -> T:
        place = self.place(name)
        try:
            return self._models.get((kind, place), lambda: load(place))
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            reason = one_sentence(error).removeprefix(f"--model {place}: ")
            raise VisitorError(f"The checkpoint “{name}” cannot be used: {reason}") from error

    def _title(self, name: str) -> str:
        """What the page shows: a folder without its place on this machine."""
        if name not in self.settings.models and Path(name).is_dir():
            return Path(name).name
        return name

    def place(self, name: str) -> str:
        """The folder or Hub name of a checkpoint as the page calls it."""
        if not name:
            raise VisitorError("No checkpoint is chosen: choose one of the list, or write its name on the Hub.")
        if name in self.settings.models:
            return str(self.settings.models[name])
        if name in SMALL_VLM:
            return str(SMALL_VLM[name])
        if name == self.settings.vlm or (self.settings.folders and Path(name).is_dir()):
            return name
        try:
            validate_repo_id(name)
            is_on_hub = self.settings.folders or (name.count("/") == 1 and not Path(name).exists())
        except HFValidationError:
            is_on_hub = False
        if not is_on_hub:
            raise VisitorError(f"There is no checkpoint “{name}”: write ORG/NAME, its name on the Hub.")
        return name


def _read_text(text: str, kind: str, hint: str) -> tuple[str, str]:
    """What a visitor wrote, in one line, and its key among what is kept."""
    text = " ".join(text.split())
    if not text:
        raise VisitorError(f"The {kind} is empty: {hint}.")
    if len(text) > LONGEST_TEXT:
        raise VisitorError(f"The {kind} has {len(text)} characters: shorten it to {LONGEST_TEXT}.")
    if not any(character.isalnum() for character in text):
        raise VisitorError(f"The {kind} has no word: {hint}.")
    return text, f"{kind}: {text}"


def open_picture(path: str | Path) -> Image.Image:
    """Opens the picture of a visitor, upright and not larger than needed."""
    try:
        picture = open_image(path, least=ENOUGH)
    except (MemoryError, ValueError) as error:
        kinds = "give a JPEG, PNG or WebP file"
        problem = f"is not a picture that can be read: {kinds}"
        if (
            isinstance(error, MemoryError) or "pixels" in str(error).lower()
        ):  # also in the name of the variable that allows more
            problem = f"has too many pixels, or none: {kinds} of a usual size"
        raise VisitorError(f"{Path(path).name} {problem}.") from error
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture


def one_sentence(error: BaseException) -> str:
    """The first sentences of an error, with a full stop."""
    text = first_sentences(error)
    if text.endswith((".", "!", "?")):
        return text
    return f"{text}."
