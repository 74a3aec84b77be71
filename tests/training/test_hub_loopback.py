# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The loopback Hub does for `huggingface_hub` what the Hub does: push, pull, refs, private repositories, faults."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

api, found = HfApi(), {}
found["user"] = api.whoami()["name"]
for kind in ("model", "dataset"):
    repo = api.create_repo(f"org/{kind}-1.5", repo_type=kind, exist_ok=True).repo_id
    assert api.create_repo(repo, repo_type=kind, exist_ok=True).repo_id == repo
    folder = Path(tempfile.mkdtemp())
    (folder / "sub").mkdir()
    (folder / "README.md").write_text("---\\nlicense: apache-2.0\\n---\\n")
    (folder / "sub/a b.bin").write_bytes(bytes(range(256)) * 64)
    (folder / "code.py").write_text("x = 1\\n")
    first = api.upload_folder(repo_id=repo, repo_type=kind, folder_path=folder)
    again = api.upload_folder(repo_id=repo, repo_type=kind, folder_path=folder)
    assert again.oid == first.oid, "a push of the same files makes no commit"
    api.create_branch(repo, branch="side", repo_type=kind)
    (folder / "code.py").write_text("x = 2\\n")
    (folder / "sub/a b.bin").unlink()
    second = api.upload_folder(repo_id=repo, repo_type=kind, folder_path=folder, delete_patterns="sub/*")
    here = Path(snapshot_download(repo, repo_type=kind))
    tagged = Path(snapshot_download(repo, repo_type=kind, revision=first.oid))
    assert (here / "code.py").read_text() == "x = 2\\n" and (tagged / "code.py").read_text() == "x = 1\\n"
    assert not (here / "sub").exists() and (tagged / "sub/a b.bin").read_bytes() == bytes(range(256)) * 64
    assert api.repo_info(repo, repo_type=kind, revision=first.oid).sha == first.oid
    files = HfFileSystem()
    root = ("datasets/" if kind == "dataset" else "") + repo + "@" + first.oid
    assert sorted(p.rsplit("/", 1)[1] for p in files.ls(root, detail=False)) == [
        ".gitattributes", "README.md", "code.py", "sub"]
    with files.open(root + "/sub/a b.bin", block_size=100) as file:
        file.seek(300)
        assert file.read(3) == bytes([44, 45, 46])
    known = api.get_paths_info(repo, ["sub", "code.py", "no"], repo_type=kind, revision=first.oid)
    assert [p.path for p in known] == ["sub", "code.py"]
    for call, error in (
        (lambda: hf_hub_download(repo, "no.txt", repo_type=kind), EntryNotFoundError),
        (lambda: hf_hub_download(repo, "code.py", repo_type=kind, revision="no"), RevisionNotFoundError),
        (lambda: hf_hub_download("org/no", "code.py", repo_type=kind), RepositoryNotFoundError),
        (lambda: api.create_repo("others/model", repo_type=kind), HfHubHTTPError),
        (lambda: api.create_commit(repo, [], commit_message="m", parent_commit="0" * 40, repo_type=kind), None),
    ):
        try:
            call()
        except Exception as raised:
            assert error and isinstance(raised, error), (error, raised)
        else:
            assert error is None
api.create_repo("tester/secret", private=True)
api.upload_file(repo_id="tester/secret", path_or_fileobj=b"hush", path_in_repo="a.txt")
assert Path(hf_hub_download("tester/secret", "a.txt")).read_bytes() == b"hush"
for token in (False, "hf_another", "hf_unknown"):
    try:
        hf_hub_download("tester/secret", "a.txt", token=token, cache_dir=tempfile.mkdtemp())
    except Exception as error:
        found[str(token)] = type(error).__name__
print(json.dumps(found))
"""


def run(script, hub, home, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=hub.environment(home), cwd=home, capture_output=True, text=True, timeout=120)


def test_huggingface_hub_pushes_and_pulls(loopback_hub, tmp_path):
    loopback_hub.state.add_user("hf_another", "another")
    done = run(SCRIPT, loopback_hub, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["user"] == "tester"
    assert found["hf_another"] == "RepositoryNotFoundError"
    assert {found["False"], found["hf_unknown"]} <= {
        "RepositoryNotFoundError",
        "HfHubHTTPError",
        "LocalEntryNotFoundError",
    }
    assert loopback_hub.files("org/model-1.5") == [".gitattributes", "README.md", "code.py"]
