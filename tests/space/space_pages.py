# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page of the Space on a free port of this machine, for tests with and without a browser."""

from contextlib import contextmanager


@contextmanager
def serve(settings):
    """Serves the page of these settings, and gives its address."""
    from grounded_attention.space.page import build_page, launch_page

    page = build_page(settings)
    try:
        launch_page(page, prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")
        yield page.local_url.rstrip("/")
    finally:
        page.close(verbose=False)
