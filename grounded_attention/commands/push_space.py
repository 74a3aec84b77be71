# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes the page of `grounded-attention space run` to the Hub as a Space, in one commit.

The Space contains the package, the settings and the checkpoints that are folders here; checkpoints with a name on the
Hub are loaded from there. Visitors may also write other names on the Hub. The same command updates the Space.

examples:
  grounded-attention space push ORG/where-words-look
  grounded-attention space push ORG/where-words-look --model ORG/scenes-vgp-direct --vlm ORG/my-vlm --private
"""

import argparse
import json

from .command_line import make_main, make_parser
from .space_options import add_space_options, check_gradio, space_settings


def push(options: argparse.Namespace) -> str:
    """Pushes the Space and returns the text to print."""
    settings = space_settings(options)
    check_gradio()
    from grounded_attention.space.publish import push_space

    address = push_space(options.repository, settings, options.private)
    return json.dumps({"commit_url": address}) if options.json else f"pushed: {address}"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention space push", __doc__)
    parser.add_argument("repository", help="ORG/NAME, or a name in your own namespace; created if missing")
    add_space_options(parser)
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    parser.add_argument("--json", action="store_true", help="print the address of the commit as JSON")
    return parser


main = make_main(build_parser, push)
