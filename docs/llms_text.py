# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`llms.txt` of the site: its pages by topic, for programs that read the manual (https://llmstxt.org)."""

from pathlib import Path

from search_sections import HEADING, plain

ROOT = Path(__file__).resolve().parents[1]
ABOUT = """\
# grounded-attention

> See where a vision-and-language Transformer looks in an image, and teach it where to look. Models are ordinary
> Hugging Face models; `grounded-attention COMMAND --help` ends in examples, `--json` prints a result for programs.
"""


def llms_text(navigation: dict[str, list[str]]) -> str:
    """The text: a heading for each group of the navigation, below it the title and the address of each page."""
    lines = [ABOUT]
    for group, pages in navigation.items():
        lines.append(f"## {group}\n")
        for page in pages:
            heading = HEADING.search((ROOT / page).read_text(encoding="utf-8"))
            lines.append(f"- [{plain(heading[2])}]({page.removesuffix('.md')}.html)")
        lines.append("")
    return "\n".join(lines)
