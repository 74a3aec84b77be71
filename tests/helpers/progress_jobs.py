# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Jobs that report their progress."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    directory: Path
    parent: "Job | None" = None

    @property
    def name(self):
        return self.directory.name
