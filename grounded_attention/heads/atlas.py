# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An atlas of heads: a data set of the Hub with the `heads.json` of many models, each for one revision.

There is none by default; `GROUNDED_ATTENTION_ATLAS=ORG/NAME` or an argument names one.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers.utils import CONFIG_NAME, cached_file

from grounded_attention.supervision.supervise import unwrap_model
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.plain_text import first_sentences

from .heads_file import FILE, ChosenHeads

VARIABLE = "GROUNDED_ATTENTION_ATLAS"
ENTRY = "atlas"  # the part of an entry that says whose heads they are


def find_in_atlas(model: Any, atlas: str | None = None) -> ChosenHeads | None:
    """Finds the heads of a model in an atlas.

    Args:
        model (`PreTrainedModel`): the model, loaded from the Hub; from the branch main, if its configuration has no
            `_commit_hash`, which newer versions of transformers do not keep.
        atlas (`str`, *optional*): the data set, ORG/NAME; by default the one of `GROUNDED_ATTENTION_ATLAS`.

    Returns:
        `ChosenHeads`: its heads; `None` if no atlas is named.

    Raises:
        ValueError: if the atlas has no entry for the model, or one for another revision or another size.
    """
    atlas = atlas or os.environ.get(VARIABLE)
    if not atlas:
        return None
    inner = unwrap_model(model)
    name = inner.name_or_path
    revision = getattr(inner.config, "_commit_hash", None) or find_revision(name)
    try:
        file = hf_hub_download(atlas, f"{name}/{FILE}", repo_type="dataset")
    except (OSError, ValueError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise ValueError(f"the atlas {atlas} has no heads of {name}") from error
        raise ValueError(f"the atlas {atlas} cannot be read: {first_sentences(error)}") from error
    content = read_json(file)
    chosen = ChosenHeads.from_dict(content, f"{atlas}/{name}/{FILE}")
    measured = content.get(ENTRY, {}).get("revision")
    if revision is not None and measured != revision:
        raise ValueError(f"{chosen.source}: heads of the revision {measured}, but the model is of {revision}")
    chosen.check(model)
    return chosen


def find_revision(name: str, revision: str | None = None) -> str | None:
    """The commit of a model on the Hub, as its files in the cache say; `None` for a folder."""
    place = cached_file(name, CONFIG_NAME, revision=revision, _raise_exceptions_for_missing_entries=False)
    commit = "" if place is None else Path(place).parent.name
    if re.fullmatch("[0-9a-f]{40}", commit):
        return commit
    return None


def publish_heads(path: str | Path, model: str, revision: str, atlas: str | None = None) -> str:
    """Opens a pull request that adds the heads of a model to an atlas.

    Args:
        path (`str` or `Path`): `heads.json`, or its folder.
        model (`str`): the name of the model on the Hub.
        revision (`str`): the commit of the model that was measured.
        atlas (`str`, *optional*): the data set, ORG/NAME; by default the one of `GROUNDED_ATTENTION_ATLAS`.

    Returns:
        `str`: the address of the pull request.

    Raises:
        ValueError: if no atlas is named, the file is no ranking of heads, or the Hub refuses.
    """
    atlas = atlas or os.environ.get(VARIABLE)
    if not atlas:
        raise ValueError(f"no atlas is named: give ORG/NAME, or set {VARIABLE}")
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    ChosenHeads.from_file(path)
    entry = {"model": model, "revision": revision, "transformers": transformers.__version__}
    content = json.dumps({**read_json(path), ENTRY: entry}, indent=1).encode()
    operation = CommitOperationAdd(f"{model}/{FILE}", content)
    message = f"Heads of {model} at {revision[:12]}"
    try:
        done = HfApi().create_commit(atlas, [operation], commit_message=message, repo_type="dataset", create_pr=True)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ValueError(f"the atlas {atlas}: {first_sentences(error)}") from error
    return str(done.pr_url or done.commit_url)
