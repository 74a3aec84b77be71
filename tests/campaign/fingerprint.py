# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The content of a folder of output, without what two equal runs may differ in: times, and the names of drafts."""

import hashlib
import json
import re

from grounded_attention.utils.whole_files import DRAFT

# Durations: what a run took, what is computed from it, and how often a cell of a study was begun.
TIMES = re.compile(r"seconds|_runtime$|_per_second$|^created|_time$|^duration|^spent$|^runs$")
# These contain durations in words, or the step that a run was continued from; that they exist is compared.
IN_WORDS = ("README.md", "log.txt", "table.md")
TIMES_OF_PAGE = re.compile(rb'<h2 id="times">.*?(?=<h2 |$)', re.DOTALL)
# Locks and unfinished builds of `datasets` stay after a kill; nothing reads them.
LITTER = re.compile(r"\.lock$|\.incomplete(/|$)|_builder\.lock|(^|/)\.tmp")
# It contains the digests of the files in `IN_WORDS`.
SEALS = ("checkpoint_manifest.json",)


def fingerprint(folder):
    """File name -> digest of its content, below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.suffix == DRAFT or LITTER.search(name):
            continue
        found[name] = _digest(path)
    return found


def differences(expected, found):
    """The names of files that are missing, are new or have another content."""
    missing = [f"{name}: missing" for name in sorted(expected.keys() - found.keys())]
    new = [f"{name}: not in the run without a fault" for name in sorted(found.keys() - expected.keys())]
    both = sorted(expected.keys() & found.keys())
    return missing + new + [f"{name}: other content" for name in both if expected[name] != found[name]]


def _digest(path):
    if path.name in IN_WORDS:
        return "exists"
    content = path.read_bytes()
    if path.name == "run.html":
        content = TIMES_OF_PAGE.sub(b"", content)
    if path.suffix in (".json", ".jsonl") or path.name in SEALS:
        try:
            content = json.dumps(_timeless(json.loads(content), path.name in SEALS), sort_keys=True).encode()
        except ValueError:
            pass
    return hashlib.sha256(content).hexdigest()


def _timeless(value, names_only=False):
    if names_only:
        return sorted(value)
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if not TIMES.search(key)}
    if isinstance(value, list):
        return [_timeless(inner) for inner in value]
    return value
