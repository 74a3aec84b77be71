# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""transformers' own common tests: fetched from the package index and unpacked into an importable package.

The tests of transformers are in its source distribution only, and not all of them: modules that the common tests
import and the distribution lacks are written here, as small as these tests allow.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

# The package the tests become. Not "tests", which is ours.
PACKAGE = "transformers_tests"

_EMPTY_MIXIN = '"""Not in the source distribution."""\n\n\nclass {name}:\n    pass\n'

# Fields that every configuration takes (transformers' PreTrainedConfig), with values that are no defaults.
_CONFIGURATION_FIELDS = """
config_common_kwargs = {
    "architectures": ["SomeModel"],
    "chunk_size_feed_forward": 3,
    "dtype": "float16",
    "id2label": {0: "first", 1: "second", 2: "third"},
    "is_encoder_decoder": True,
    "label2id": {"first": 0, "second": 1, "third": 2},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}
"""

# Path in the unpacked folder -> text, written where the distribution has no such file.
MISSING_MODULES = {
    f"{PACKAGE}/__init__.py": "",
    f"{PACKAGE}/exporters/__init__.py": "",
    f"{PACKAGE}/exporters/test_export.py": _EMPTY_MIXIN.format(name="ExportTesterMixin"),
    f"{PACKAGE}/generation/__init__.py": "",
    f"{PACKAGE}/generation/test_utils.py": _EMPTY_MIXIN.format(name="GenerationTesterMixin"),
    f"{PACKAGE}/utils/__init__.py": "",
    f"{PACKAGE}/utils/test_configuration_utils.py": _CONFIGURATION_FIELDS,
    # The processor tests look for it in utils/ beside tests/. Nothing is fetched: no test here uses an address.
    "utils/fetch_hub_objects_for_ci.py": "def url_to_local_path(url):\n    return url\n",
}


class UpstreamError(ValueError):
    """The source distribution cannot be had or read."""


def fetch_source(version, cache):
    """The source distribution of transformers `version`, downloaded into `cache` unless it lies there.

    Raises:
        UpstreamError: When pip cannot download it, with pip's last line.
    """
    name = f"transformers-{version}.tar.gz"
    archive = cache / name
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        # pip asks even a source distribution for its metadata; without isolation it needs no build environment for it.
        options = ["--no-deps", "--no-binary", "transformers", "--no-build-isolation", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", folder]
        done = subprocess.run([*command, f"transformers=={version}"], capture_output=True, text=True)
        found = Path(folder) / name
        if done.returncode != 0 or not found.exists():
            reason = (done.stderr.strip() or f"pip saved {os.listdir(folder)}").splitlines()[-1]
            raise UpstreamError(
                f"{name} could not be downloaded from the package index: {reason}. Its tests are what is run here; "
                f"connect to an index that has it, or put the file into {cache}."
            )
        os.replace(found, archive)
    return archive


def unpack_tests(archive, folder):
    """Unpacks the tests of a source distribution as the package `PACKAGE` into a new `folder`.

    Raises:
        UpstreamError: When the archive is damaged, holds no tests, or a member would lie outside `folder`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with tarfile.open(archive) as source:
            count = sum(_unpack_member(source, member, folder) for member in source)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UpstreamError(f"{archive}: {error}. Delete the file and start again.") from error
    if not count:
        raise UpstreamError(f"{archive}: holds no tests/ folder; expected a source distribution of transformers.")
    for name, text in MISSING_MODULES.items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _unpack_member(source, member, folder):
    parts = PurePosixPath(member.name).parts
    if len(parts) < 3 or parts[1] != "tests" or not member.isfile():
        return False
    # The filter refuses what would lie outside the folder.
    source.extract(member.replace(name=str(PurePosixPath(PACKAGE, *parts[2:]))), folder, filter="data")
    return True
