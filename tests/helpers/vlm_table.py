# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the contract tests of all vision-language models and prints their results as a table, for any transformers.

`python -m tests.helpers.vlm_table [FILE]` also writes it as a page. The status is 1 if a test failed.
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES, REFUSED_FAMILIES
from tests.helpers.tiny_vlm_processors import image_backends
from tests.helpers.tiny_vlm_relatives import OTHER

# Column -> file and name of a test, and the backend of the image processor where it has one.
COLUMNS = {
    "rows": ("tests/supervision/test_vlm_families.py", "test_rows_equal_eager_maps", None),
    "boxes, PIL": ("tests/processing/test_image_tokens.py", "test_pixels_inside_a_box_change_the_tokens", "pil"),
    "boxes, torchvision": (
        "tests/processing/test_image_tokens.py",
        "test_pixels_inside_a_box_change_the_tokens",
        "torchvision",
    ),
    "check_layout": ("tests/heads/test_layout_check.py", "test_known_layouts_are_confirmed", None),
    "videos": ("tests/processing/test_videos.py", "test_pixels_of_a_frame_change_its_tokens", None),
    "heads": ("tests/heads/test_heads.py", "test_scores_equal_loops_over_eager_maps", None),
    "look, generate": ("tests/lens/test_look.py", "test_rows_equal_eager_generation", None),
    "steer": ("tests/supervision/test_head_changes.py", "test_reported_rows_are_steered_too", None),
    "teach": ("tests/supervision/test_vlm_families.py", "test_a_training_step_with_direct", None),
    "8 bits": ("tests/supervision/test_quantised.py", "test_rows_of_quantised_weights_equal_eager_maps", None),
    "resume": ("tests/training/test_resume_vlms.py", "test_a_whole_model_continues_bit_for_bit", None),
}
PAGE = """# Which vision-language models work

Written by `make families-vlm` with transformers {version}: {count} of its {types} image-text types. Each cell is the
result of tests on a tiny model with random weights and the processors of transformers{sizes}.

- **rows**: the reported rows equal eager attention maps, padded left and right.
- **boxes**: pixels changed inside a box of the image change exactly the image tokens with this box, for odd sizes and
  several images. Image processors are those on PIL and on torchvision (resizing in torch, where torchvision cannot be
  imported); "none": transformers has no such one. Where convolutions make the tokens, the box is the token's cell of
  the grid, though convolutions see a margin around it, which the test takes away.
- **check_layout**: what it says is right; of codebooks (`apertus1p5`, `chameleon`, `emu3`) that it cannot tell.
- **videos**: pixels changed in a frame change exactly the tokens of this frame (or of a pair that is read together)
  whose box has them; empty where videos are not read.
- **heads**: the scores of every head equal loops over eager maps.
- **look, generate**: the rows of prompt and answer equal those of `generate(output_attentions=True)`.
- **steer**: a steered head gives exp(strength) times the weight to chosen image tokens, before normalisation.
- **teach**: the loss of `direct` equals that of eager maps, and a step lowers it.
- **8 bits**: `direct` of a model with quantised weights (bitsandbytes) equals that of its eager maps.
- **resume**: a training that continues from a checkpoint ends with the weights and losses of one without a stop, bit
  by bit. transformers converts the weights of Kimi K2.5 when it loads them, for a decoder that is not one of the tiny
  ones.

{table}

`llava_padded` is LLaVA with images padded to squares, `llava_pixtral` LLaVA with a `PixtralProcessor`. A relative of
these types, whose processor lays out images in the same way, is read with `PatchGroundingProcessor(processor, TYPE)`.

## Refused

{refused}
"""


class Results:
    """Collects the outcome of each test by column and model."""

    def __init__(self):
        self.found = {}

    def pytest_collection_modifyitems(self, items):
        """Keeps the tests of the table."""
        items[:] = [item for item in items if any(item.name.startswith(name) for _, name, _ in COLUMNS.values())]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when != "call" and report.passed:
            return
        params = item.callspec.params
        model = params.get("model_type") or params["family"]
        for column, (_, name, backend) in COLUMNS.items():
            if item.name.startswith(name) and backend in (None, params.get("backend")):
                self.found.setdefault(model, {}).setdefault(column, []).append(report.outcome)

    def table(self):
        """The table in Markdown."""
        words = {"failed": "**no**", "passed": "yes"}
        lines = ["| model type | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
        for model, found in sorted(self.found.items()):
            missing = {column for column, (*_, kind) in COLUMNS.items() if kind and kind not in image_backends(model)}
            empty = {column: "none" if column in missing else "" for column in COLUMNS}
            cells = [
                next((words[one] for one in words if one in found.get(name, [])), empty[name]) for name in COLUMNS
            ]
            lines.append(f"| `{model}` | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def refused():
    """The types that are refused, by reason, as a table in Markdown."""
    reasons = {}
    for name, reason in REFUSED_FAMILIES.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    lines = [f"| {', '.join(sorted(names))} | {reason} |" for reason, names in reasons.items()]
    return "\n".join(["| model types | reason |", "|---|---|", *lines])


def main(arguments):
    os.environ["EVERY_TYPE"] = "1"
    results = Results()
    printed = io.StringIO()
    files = [*dict.fromkeys(file for file, _, _ in COLUMNS.values())]
    with contextlib.redirect_stdout(printed):
        status = pytest.main(["-q", "--tb=short", "-p", "no:warnings", "-p", "no:cacheprovider", *files], [results])
    if status:
        print(printed.getvalue(), file=sys.stderr)
    types = {*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    numbers = {"version": transformers.__version__, "types": len(types), "count": len(types & {*IMAGE_TOKEN_FAMILIES})}
    numbers["sizes"] = ", with patches and pictures of other\nsizes than in `make test`" if OTHER else ""
    page = PAGE.format(table=results.table(), refused=refused(), **numbers)
    print(page)
    if arguments:
        Path(arguments[0]).write_text(page)
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
