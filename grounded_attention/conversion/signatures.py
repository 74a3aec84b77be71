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
"""Recognises the family of a checkpoint from its keys. A new converter changes the advice in its line here."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .errors import CheckpointError
from .keys import plain_key


@dataclass(frozen=True)
class Signature:
    """
    The pattern of keys that identifies a family.
    """

    title: str
    mark: str
    advice: str

    @property
    def named(self) -> str:
        """The name with an article, such as `a VL-BERT checkpoint`."""
        article = "an" if self.title.startswith("LX") else "a"
        name, _, origin = self.title.partition(" of ")
        return f"{article} {name} checkpoint" + (f" of {origin}" if origin else "")


VOLTA = "VOLTA"

# The first match applies, so special families come before BERT, which all of them contain.
SIGNATURES = (
    # Its embeddings have the names of the models that it compares.
    Signature(
        VOLTA,
        r"(^|\.)encoder\.layer\.\d+\.attention_self\.",
        "use `convert vilbert`, `lxmert` or `visualbert` with its JSON file as --config",
    ),
    Signature("VL-BERT", r"^vlbert\.", "use `convert vl_bert`"),
    Signature("VL-BERT of this library", r"^vl_bert\.", "it is converted already: load its directory"),
    Signature(
        "VisualBERT",
        r"bert\.embeddings\.(token_type_embeddings_visual|position_embeddings_visual|projection)\.",
        "use `convert visualbert`",
    ),
    Signature(
        "VisualBERT of transformers",
        r"(^|\.)embeddings\.visual_(token_type_embeddings|position_embeddings|projection)\.",
        "it needs no conversion: load its directory with a VisualBERT class of this library",
    ),
    Signature("LXMERT", r"bert\.encoder\.x_layers\.", "use `convert lxmert`"),
    Signature(
        "LXMERT of transformers",
        r"(^|lxmert\.)encoder\.x_layers\.",
        "it needs no conversion: load its directory with an LXMERT class of this library",
    ),
    Signature("ViLBERT of this library", r"^vilbert\.", "it is converted already: load its directory"),
    Signature("ViLBERT", r"(^|\.)encoder\.c_layer\.", "use `convert vilbert`"),
    Signature("UNITER", r"(^|\.)img_embeddings\.(img_linear|pos_linear)\.", "it can't be converted yet"),
    Signature("ResNet", r"^(layer[1-4]\.\d+|image_feature_extractor\.backbone\.layer\d)\.", "use `convert fast_rcnn`"),
    Signature(
        "pixel network of this library", r"^embedder\.embedder\.", "it is converted already: load its directory"
    ),
    Signature("BERT", r"(^|\.)encoder\.layer\.\d+\.", "start a model from it with from_bert"),
)


def recognise(keys: Iterable[str]) -> Signature | None:
    """The signature of the keys of a state dict, with or without wrappers; `None` for an unknown family."""
    bare = [plain_key(key) for key in keys]
    return next((sign for sign in SIGNATURES if any(re.search(sign.mark, key) for key in bare)), None)


def check_family(keys: Collection[str], title: str, accepted: Collection[str], expected: str) -> None:
    """
    Checks that keys belong to a family.
    """
    found = recognise(keys)
    if found is None:
        raise CheckpointError(
            f"not a {title} checkpoint, and not of another known family: it has {len(keys)} keys, such as "
            f"{min(keys, default='none')}. Expected {expected}."
        )
    if found.title not in accepted:
        raise CheckpointError(f"this looks like {found.named}, not {title}: {found.advice}.")
