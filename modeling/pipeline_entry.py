# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What the configuration of every family says about the pipeline that travels with a checkpoint."""

from typing import Any

# The form in which transformers reads `custom_pipelines` of config.json.
CUSTOM_PIPELINES: dict[str, dict[str, Any]] = {
    "visual-grounding": {
        "impl": "pipeline_visual_grounding.VisualGroundingPipeline",
        "pt": ["AutoModel"],
        "type": "multimodal",
    }
}


class PipelineEntry:
    """
    Part of a configuration class, before `PreTrainedConfig`: writes `custom_pipelines` into config.json.

    Where the project is imported its own pipeline is registered, and what a checkpoint says is dropped on loading:
    `pipeline("visual-grounding", model=...)` would ask for `trust_remote_code` otherwise.
    """

    def __post_init__(self, **kwargs: Any) -> None:
        if not type(self).__module__.startswith("transformers_modules."):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "custom_pipelines": CUSTOM_PIPELINES}  # type: ignore[misc]


__all__ = ["CUSTOM_PIPELINES", "PipelineEntry"]
