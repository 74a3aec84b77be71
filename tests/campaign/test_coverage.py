# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every builder, format, and family of the project is in the campaign."""

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.readers import READERS as FORMATS
from grounded_attention.families import FAMILIES
from tests.campaign.inputs import FAMILY_SIZES
from tests.campaign.readers import BUILT
from tests.helpers.legacy_region_files import CASES


def test_every_builder_format_and_family_is_in_the_campaign():
    assert set(BUILT) == set(BUILDERS)
    assert {kind for kind, _, _ in CASES.values()} == set(FORMATS)
    assert set(FAMILY_SIZES) == set(FAMILIES)
