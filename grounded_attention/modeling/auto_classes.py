# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The names under which transformers finds the classes of a checkpoint, by the suffixes of the class names."""

from typing import Any

# Suffix of a class name -> the Auto class that finds the class. `AutoModel` is for the base model only.
AUTO_CLASSES = {
    "Config": "AutoConfig",
    "Model": "AutoModel",
    "Features": "AutoModel",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForVisualQuestionAnswering": "AutoModelForVisualQuestionAnswering",
}


def make_auto_map(model_type: str, *names: str) -> dict[str, str]:
    """The `auto_map` of a configuration: the location of each class that is saved with a checkpoint."""
    paths = {}
    for name in names:
        auto = next((auto for end, auto in AUTO_CLASSES.items() if name.endswith(end)), name)
        file = "configuration" if auto == "AutoConfig" else "modeling"
        paths[auto] = f"{file}_{model_type}.{name}"
    return paths


# The content of `custom_pipelines` in config.json, in the form of transformers.
CUSTOM_PIPELINES: dict[str, dict[str, Any]] = {
    "visual-grounding": {
        "impl": "pipeline_visual_grounding.VisualGroundingPipeline",
        "pt": ["AutoModel"],
        "type": "multimodal",
    }
}


class PipelineEntry:
    """Base of a configuration: writes `custom_pipelines` into config.json, drops that of a checkpoint on loading."""

    def __post_init__(self, **kwargs: Any) -> None:
        if not type(self).__module__.startswith("transformers_modules."):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "custom_pipelines": CUSTOM_PIPELINES}  # type: ignore[misc]
