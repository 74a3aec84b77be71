# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sections that commands put into the card of a trained model, each at its own place."""

import re
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.whole_files import write_text

CARD = "README.md"


@dataclass(frozen=True)
class CardSection:
    """A section of model cards."""

    title: str
    place: str
    end: str

    def find(self, path: str | Path) -> Path:
        """
        Finds a model card.
        """
        card = Path(path, CARD) if Path(path).is_dir() else Path(path)
        if not card.is_file():
            raise ValueError(f"{card}: no model card found; train.py writes one into the folder of a model")
        if self.place not in read_text(card):
            raise ValueError(
                f"{card}: no place for {self.title}; add this line where the section should be: {self.place}"
            )
        return card

    def put(self, section: str, path: str | Path) -> Path:
        """Writes a section into a card, replacing an earlier one; returns the card."""
        card = self.find(path)
        write_text(card, self.put_in_text(section, read_text(card)))
        return card

    def put_in_text(self, section: str, text: str) -> str:
        """The text of a card with the section at its place."""
        place = re.escape(self.place)
        placed = re.compile(f"{place}(?:(?:(?!{place}).)*?{re.escape(self.end)})?", re.DOTALL)
        return placed.sub(lambda _: f"{self.place}\n\n{section}\n{self.end}", text, count=1)
