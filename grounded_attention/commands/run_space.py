# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts the page on which you click a word and see where it looks: your image, your caption, your checkpoints.

Without options it shows drawn scenes with two small checkpoints that come with the package, and needs no network.
Open the printed address in a browser; Ctrl-C ends the page. GRADIO_SERVER_NAME=0.0.0.0 lets other machines in,
GRADIO_SERVER_PORT is the port (default: the first free one from 7860). It needs
`pip install "grounded-attention[space]"`.

examples:
  grounded-attention space run

  # your checkpoints of drawn scenes, and a vision-language model
  grounded-attention space run --model runs/scenes_vgp/none --model runs/scenes_vgp/direct --vlm runs/my_vlm

  # photographs, for a model trained on features of this network
  grounded-attention space run --model runs/own/direct --detector PekingU/rtdetr_r50vd --features microsoft/resnet-50
"""

from .command_line import Program, Result


def serve(
    *,
    model: list[str] | None = None,
    vlm: str | None = None,
    detector: str = "scenes",
    features: str = "scenes",
) -> Result:
    """Serves the page until it is interrupted.

    Args:
        model (NAME_OR_DIR): checkpoints; the first two are compared (default: two small ones of drawn scenes)
        vlm (NAME_OR_DIR): vision-language model beside the small one
        detector (NAME): detector of transformers, or "scenes"
        features (NAME): feature network or backbone, or "scenes"
    """
    from grounded_attention.space.settings import settings_of

    settings = settings_of(model or [], vlm, detector, features)
    from grounded_attention.space.page import build_page, launch_page

    page = build_page(settings)
    launch_page(page, quiet=True, prevent_thread_lock=True)
    print(f"open {page.local_url} (Ctrl-C ends the page)", flush=True)
    page.block_thread()
    return None, ""


main = Program("space run", serve, json=False)
