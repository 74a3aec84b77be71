# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prints the notes of a release from CHANGELOG.md: `python .github/release_notes.py v0.1.0`.

The section `## 0.1.0` is taken. The tag must be the version of the package.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def package_version(root: Path = ROOT) -> str:
    """The `__version__` of the package, without importing it."""
    body = ast.parse((root / "grounded_attention" / "__init__.py").read_text(encoding="utf-8")).body
    values = {ast.unparse(line.targets[0]): line.value for line in body if isinstance(line, ast.Assign)}
    return ast.literal_eval(values["__version__"])


def release_notes(tag: str, changelog: str, version: str) -> str:
    """
    The notes of a release.

    Args:
        tag (`str`): the tag, such as "v0.1.0".
        changelog (`str`): text of CHANGELOG.md.
        version (`str`): version of the package.

    Raises:
        ValueError: if the tag is not the version, or there are no notes.
    """
    if tag != f"v{version}":
        raise ValueError(
            f"the tag is {tag}, but the package has version {version}: tag v{version}, or change __version__"
        )
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL))
    notes = sections.get(version, "").strip()
    if not notes:
        raise ValueError(f"CHANGELOG.md has nothing below '## {version}': put there what is below '## Unreleased'")
    return notes


def main() -> int:
    try:
        print(release_notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), package_version()))
    except (IndexError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
