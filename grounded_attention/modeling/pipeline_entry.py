# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Declares the pipeline that is saved with a checkpoint in the configuration of every family."""

from typing import Any

# The content of `custom_pipelines` in config.json, in the form of transformers.
CUSTOM_PIPELINES: dict[str, dict[str, Any]] = {
    "visual-grounding": {
        "impl": "pipeline_visual_grounding.VisualGroundingPipeline",
        "pt": ["AutoModel"],
        "type": "multimodal",
    }
}


class PipelineEntry:
    """
    Base class of a configuration, before `PreTrainedConfig`: writes `custom_pipelines` into config.json.

    This package registers its own pipeline on import, so the entry of a checkpoint is removed on loading. With the
    entry, `pipeline("visual-grounding", model=...)` would require `trust_remote_code`.
    """

    def __post_init__(self, **kwargs: Any) -> None:
        if not type(self).__module__.startswith("transformers_modules."):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "custom_pipelines": CUSTOM_PIPELINES}  # type: ignore[misc]


__all__ = ["CUSTOM_PIPELINES", "PipelineEntry"]
