# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every file of the project that reads a file of a user is in the campaign, and every command, family and builder."""

import ast
from pathlib import Path

from grounded_attention.commands.main import COMMANDS
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.readers import READERS as FORMATS
from grounded_attention.families import FAMILIES
from tests.campaign.coverage import OWN, READ_BY, READING
from tests.campaign.fuzz_options import USUAL
from tests.campaign.fuzz_targets import TARGETS
from tests.campaign.inputs import FAMILY_SIZES
from tests.campaign.jobs import JOBS
from tests.campaign.readers import BUILT, READERS
from tests.helpers.legacy_region_files import CASES

ROOT = Path(__file__).resolve().parents[2]


def calls(path: Path) -> set[str]:
    """The names of the functions that a file calls."""
    called = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}


def reading_files() -> set[str]:
    files = (ROOT / "grounded_attention").rglob("*.py")
    return {str(path.relative_to(ROOT)) for path in files if calls(path) & READING}


def test_every_file_that_reads_is_in_the_campaign():
    found = reading_files() - OWN
    assert found - READ_BY.keys() == set(), "a new reader: add a Reader to the campaign, and a line to READ_BY"
    assert READ_BY.keys() - found == set(), "these files read nothing"
    known = {*READERS, *JOBS, *TARGETS}
    unknown = {place for place in READ_BY.values() if place not in known and not (ROOT / place).is_file()}
    assert not unknown, unknown


def test_every_builder_format_family_and_command_is_in_the_campaign():
    assert set(BUILT) == set(BUILDERS)
    tsv = {"lxmert_tsv", "butd_tsv"}  # read by readers of their own
    assert {kind for kind, _, _ in CASES.values()} | tsv == set(FORMATS)
    assert set(FAMILY_SIZES) == set(FAMILIES)
    assert set(USUAL) == set(COMMANDS)
