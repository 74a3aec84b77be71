# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes a model directory to the Hub in one commit: weights, configuration, processor, code, card.

Use it for a trained or converted model or an adapter on disk. Training itself pushes with `training.push_to_hub=true`.

examples:
  grounded-attention push runs/scenes_vgp/direct ORG/scenes-vgp-direct
  grounded-attention push checkpoints/vl-bert-base ORG/vl-bert-base --tokenizer google-bert/bert-base-uncased --private
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grounded_attention.families import FAMILIES
from grounded_attention.training.recipes.recipe import Model

from .command_line import make_parser, run

if TYPE_CHECKING:
    from grounded_attention.training.publish.hub import HubRepo


def push(directory: Path, repo: HubRepo, tokenizer: str | None = None) -> str:
    """
    Pushes a model directory.

    Args:
        directory (`Path`): contains `config.json`, safetensors and the code, as `save_pretrained` writes them; or an
            adapter of PEFT.
        repo (`HubRepo`): the repository to push to.
        tokenizer (`str`, *optional*): a directory, a Hub id or a `vocab.txt`, of which the family's processor is made
            and saved in the directory first.

    Raises:
        ValueError: if the directory has no model, or a model that reads text has no processor.
        HubError: if the push fails.
    """
    from transformers import AutoConfig

    from grounded_attention.training.experiments.models import make_processor
    from grounded_attention.training.publish.hub import prepare_repo

    adapter = (directory / "adapter_config.json").is_file()
    if not any(directory.glob("*.safetensors")) or not (adapter or (directory / "config.json").is_file()):
        raise ValueError(
            f"{directory} contains no model: expected config.json and safetensors, as save_pretrained writes"
        )
    if adapter:
        return _push(directory, prepare_repo(repo))
    config = AutoConfig.from_pretrained(directory)
    reads_words = config.model_type in FAMILIES
    if reads_words and tokenizer is None and not (directory / "processor_config.json").is_file():
        raise ValueError(
            f"{directory} contains no processor, and the model cannot be used without one: give --tokenizer, such as "
            "google-bert/bert-base-uncased"
        )
    repo = prepare_repo(repo)
    if tokenizer is not None and reads_words:
        pixels = {"vision_config": getattr(config, "vision_config", None)}
        options = {"region_feature_size": config.region_feature_size}
        model = Model(family=config.model_type, config=pixels, tokenizer=tokenizer, processor=options)
        make_processor(model).save_pretrained(directory)
    return _push(directory, repo)


def _push(directory: Path, repo: HubRepo) -> str:
    from grounded_attention.training.publish.hub import push_folder

    return push_folder(repo, directory, f"Push {directory.name}", "Run the same command to try again")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention push", __doc__)
    parser.add_argument("directory", type=Path, help="model directory")
    parser.add_argument("repository", help="ORG/NAME, or a name in your own namespace; created if missing")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--revision", help="branch to push to; created if missing (default: main)")
    parser.add_argument(
        "--tokenizer", help="tokenizer (directory, Hub id or vocab.txt) for a directory without a processor"
    )
    parser.add_argument("--json", action="store_true", help="print the address of the commit as JSON")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.training.publish.hub import HubRepo

    repo = HubRepo(options.repository, options.revision, private=options.private or None)
    address = push(options.directory, repo, options.tokenizer)
    return json.dumps({"commit_url": address}) if options.json else f"pushed: {address}"


if __name__ == "__main__":
    sys.exit(main())
