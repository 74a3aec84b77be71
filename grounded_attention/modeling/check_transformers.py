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
"""Raises an error if transformers is too old, before the import of names that an old version lacks."""

import transformers
from packaging import version

# The oldest version that the models support (the test suite passes with it).
OLDEST_TRANSFORMERS = "5.4.0"

if version.parse(transformers.__version__) < version.parse(OLDEST_TRANSFORMERS):
    raise ImportError(
        f"This model needs transformers >= {OLDEST_TRANSFORMERS}, but {transformers.__version__} is installed. "
        f'Run: pip install -U "transformers>={OLDEST_TRANSFORMERS}"'
    )
