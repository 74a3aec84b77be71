# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes a folder to the Hub in one commit: a model, a region table, pseudo-labels or a score, with a card.

A model, or an adapter of PEFT, is pushed with its configuration, processor and code; of the folder of a run, the best
method. An adapter of a training of your own gets a card in the place of PEFT's empty one. Training itself pushes with
`training.push_to_hub=true`.

A table is pushed to a data set repository, its files unchanged, after every row was checked. Features reveal something
about images, and phrases are parts of captions: where the licence of the data does not clearly allow a push,
--licence (your own data) or --permission is required. A score of `write_scores` becomes a Space for `evaluate.load`.

examples:
  grounded-attention push runs/scenes_vgp/direct ORG/scenes-vgp-direct
  grounded-attention push checkpoints/vl-bert-base ORG/vl-bert-base --tokenizer google-bert/bert-base-uncased --private
  grounded-attention push data/scenes/regions ORG/scenes-regions
  grounded-attention push data/photos/regions ORG/photo-regions --licence cc-by-4.0
  grounded-attention push data/flickr30k/pseudo_labels ORG/flickr30k-labels --private \\
      --permission "for members of our group, who have the captions"
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from grounded_attention.families import FAMILIES

from .command_line import Program, Result

if TYPE_CHECKING:
    from grounded_attention.training.publish.hub import HubRepo


# What is pushed -> the options that do nothing for it.
NO_EFFECT = {
    "a model": ("permission", "licence"),
    "a table": ("tokenizer",),
    "a score": ("tokenizer", "permission", "licence"),
}


def push(directory: Path, repo: HubRepo, tokenizer: str | None = None) -> str:
    """Pushes a model directory."""
    from transformers import AutoConfig

    from grounded_attention.training.experiments.models import make_processor
    from grounded_attention.training.publish.adapter_card import complete_adapter_card
    from grounded_attention.training.publish.hub import prepare_repo
    from grounded_attention.training.recipes.recipe import Model

    adapter = (directory / "adapter_config.json").is_file()
    if not any(directory.glob("*.safetensors")) or not (adapter or (directory / "config.json").is_file()):
        raise ValueError(
            f"{directory} contains no model (config.json and safetensors, as save_pretrained writes) and no finished "
            "region table or pseudo-labels; for rows see `grounded-attention data push`, for the page `space push`"
        )
    if adapter:
        complete_adapter_card(directory)
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


def best_of_run(directory: Path) -> Path:
    """The folder of the best method of a run; another folder is returned as it is."""
    from grounded_attention.pages.tables import best_method
    from grounded_attention.utils.bounded_files import read_json

    results = read_json(directory / "results.json") if (directory / "results.json").is_file() else {}
    if "methods" not in results:
        return directory
    best = directory / best_method(results)
    print(f"the best method of {directory}: {best.name}", file=sys.stderr)
    return best


def _push(directory: Path, repo: HubRepo) -> str:
    from grounded_attention.training.publish import hub

    return hub.push_folder(repo, directory, f"Push {directory.name}", "Run the same command to try again")


def push_folder(
    directory: Path,
    repository: str,
    *,
    private: bool = False,
    tokenizer: str | None = None,
    permission: str | None = None,
    licence: str | None = None,
) -> Result:
    """Pushes a folder.

    Args:
        directory (DIR): folder of a model, a run, a region table, pseudo-labels or a score
        repository (ORG/NAME): or a name in your own namespace for a model; created if missing
        private: make a new repository private
        tokenizer (NAME): tokenizer (directory, Hub id or vocab.txt) for a model without a processor
        permission (TEXT): of a table: why you may push other people's data; the card shows it
        licence (ID): of a table of your own data: the licence as a Hub identifier
    """
    from grounded_attention.training.publish.hub import HubRepo
    from grounded_attention.training.publish.score_folders import is_score, push_score

    from .push_tables import TABLES

    manifest = next((name for name in TABLES if (directory / name).is_file()), None)
    kind = "a model"
    if manifest is not None:
        kind = "a table"
    elif is_score(directory):
        kind = "a score"
    given = {"tokenizer": tokenizer, "permission": permission, "licence": licence}
    useless = [f"--{name}" for name in NO_EFFECT[kind] if given[name] is not None]
    if useless:
        raise ValueError(f"{', '.join(useless)}: {directory} is {kind}, for which this has no effect; remove it")
    if kind == "a score":
        address = push_score(directory, repository, private)
    elif manifest is None:
        address = push(best_of_run(directory), HubRepo(repository, private=private or None), tokenizer)
    else:
        terms = {"permission": permission, "licence": licence}
        address = TABLES[manifest](directory, repository, private=private, **terms)
    return {"commit_url": address}, f"pushed: {address}"


main = Program("push", push_folder, resumable="run the same command again to continue; nothing is published yet")
