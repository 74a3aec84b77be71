# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a user says of attention supervision beside the arguments of another trainer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.supervision import SupervisionMethod, get_method
from grounded_attention.supervision.registry import METHODS
from grounded_attention.training.recipes.recipe import read_yaml
from grounded_attention.utils.named_types import Fields
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
