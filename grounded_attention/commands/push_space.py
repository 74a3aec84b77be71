# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes the page of `grounded-attention space run` to the Hub as a Space, in one commit.

The Space contains the package, the settings and the checkpoints that are folders here; checkpoints with a name on the
Hub are loaded from there. Visitors may also write other names on the Hub. The same command updates the Space.

examples:
  grounded-attention space push ORG/where-words-look
  grounded-attention space push ORG/where-words-look --model ORG/scenes-vgp-direct --vlm ORG/my-vlm --private
"""

from .command_line import Program, Result


def push(
    repository: str,
    *,
    model: list[str] | None = None,
    vlm: str | None = None,
    detector: str = "scenes",
    features: str = "scenes",
    private: bool = False,
) -> Result:
    """Pushes the Space.

    Args:
        repository (ORG/NAME): the Space, or a name in your own namespace; created if missing
        model (NAME_OR_DIR): checkpoints; the first two are compared (default: two small ones of drawn scenes)
        vlm (NAME_OR_DIR): vision-language model beside the small one
        detector (NAME): detector of transformers, or "scenes"
        features (NAME): feature network or backbone, or "scenes"
        private: make a new Space private
    """
    from grounded_attention.space.settings import settings_of
    from grounded_attention.utils.project import require

    settings = settings_of(model or [], vlm, detector, features)
    require("gradio")
    from grounded_attention.space.publish import push_space

    address = push_space(repository, settings, private)
    return {"commit_url": address}, f"pushed: {address}"


main = Program("space push", push)
