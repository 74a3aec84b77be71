# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts the page on which you click a word and see where it looks: your image, your caption, your checkpoints.

Without options it shows drawn scenes with two small checkpoints that come with the package, and needs no network.
Open the printed address in a browser; Ctrl-C ends the page. It needs `pip install "grounded-attention[space]"`.

examples:
  grounded-attention space run

  # your checkpoints of drawn scenes, and a vision-language model
  grounded-attention space run --model runs/scenes_vgp/none --model runs/scenes_vgp/direct --vlm runs/my_vlm

  # photographs, for a model trained on features of this network
  grounded-attention space run --model runs/own/direct --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50
"""

import argparse
import json

from .command_line import make_main, make_parser
from .number_options import port_number
from .space_options import add_space_options, check_gradio, space_settings

LOCAL = "127.0.0.1"


def serve(options: argparse.Namespace) -> str:
    """Serves the page until it is interrupted."""
    settings = space_settings(options)
    check_gradio()
    from grounded_attention.space.page import build_page, launch_page

    page = build_page(settings)
    launch_page(page, server_name=options.host, server_port=options.port, quiet=True, prevent_thread_lock=True)
    address = page.local_url
    print(json.dumps({"address": address}) if options.json else f"open {address} (Ctrl-C ends the page)", flush=True)
    page.block_thread()
    return ""


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention space run", __doc__)
    add_space_options(parser)
    add = parser.add_argument
    add("--port", type=port_number, metavar="N", help="port of the page (default: the first free one from 7860)")
    add("--host", default=LOCAL, metavar="ADDRESS", help="0.0.0.0 lets other machines in (default: %(default)s)")
    add("--json", action="store_true", help="print the address as JSON")
    return parser


main = make_main(build_parser, serve)
