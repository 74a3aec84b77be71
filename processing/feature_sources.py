# Copyright 2026 The grounded-attention authors.
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
"""What computed region features, as a processor keeps it: a model understands the features of its training alone."""

from collections.abc import Mapping
from typing import Any


def feature_source(provenance: Mapping[str, Any] | None) -> dict[str, str] | None:
    """What identifies the extractor of region features.

    Args:
        provenance: of a [`RegionExtractor`] or of a region table.

    Returns:
        `name` and, where it is known, `weights` (a hash of them); `None` where nothing is known. An imported table
        has the name that `--detector` gave it, the table of drawn scenes is called "scenes".
    """
    known = provenance or {}
    features = known.get("features")
    if isinstance(features, Mapping) and features.get("name"):
        return {key: str(features[key]) for key in ("name", "weights") if features.get(key)}
    detector = known.get("detector")
    name = detector if isinstance(detector, str) else known.get("source")
    return {"name": name} if isinstance(name, str) and name else None


def foreign_features(found: Mapping[str, str] | None, trained_on: Mapping[str, str] | None) -> str | None:
    """One line that says that features are not those of training; `None` where they are, or where one is not known.

    They are the same where their names or the hashes of their weights are.
    """
    if found is None or trained_on is None:
        return None
    if any(found.get(key) and found.get(key) == trained_on.get(key) for key in ("name", "weights")):
        return None
    return (
        f"the features are those of {found.get('name')!r}, but the model was trained on those of "
        f"{trained_on.get('name')!r}: what it attends to means nothing"
    )


__all__ = ["feature_source", "foreign_features"]
