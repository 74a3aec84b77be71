# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The state of the loopback Hub on disk: users, repositories with commits and refs, large files, and faults to inject.

Two server processes may share a folder: each change holds one file lock and ends with one rename, so a reader never
sees a part of a commit.
"""

import fcntl
import hashlib
import json
import os
import re
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

# Files that the default .gitattributes of the Hub stores in LFS; only those that occur in tests.
LARGE = re.compile(r"\.(safetensors|parquet|arrow|bin|pt|pth|npy|npz|h5|zip|gz|tar|onnx|msgpack|tfevents.*)$")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(Exception):
    """An error response: status, `X-Error-Code`, `X-Error-Message`."""

    def __init__(self, status, code, message, headers=None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


class State:
    """The folder. A commit is `{id, parent, title, description, date, files: path -> {oid, size, lfs}}`."""

    def __init__(self, folder):
        self.folder = Path(folder)
        for name in ("repos", "lfs", "blobs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    # Files and the lock

    @contextmanager
    def lock(self):
        with open(self.folder / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self, name, default=None):
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return default

    def write(self, name, content):
        self.write_bytes(name, json.dumps(content, indent=1).encode())

    def write_bytes(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)

    # Users

    def add_user(self, token, name, organisations=()):
        with self.lock():
            users = self.read("users.json", {})
            self.write("users.json", {**users, token: {"name": name, "orgs": list(organisations)}})

    def user(self, token):
        """Returns the user of a token; None without a token."""
        if token is None:
            return None
        users = self.read("users.json", {})
        if token not in users:
            raise HubError(401, None, "Invalid credentials in Authorization header")
        return users[token]

    # Faults

    def add_fault(self, fault):
        with self.lock():
            self.write("faults.json", [*self.read("faults.json", []), fault])

    def take_fault(self, request):
        """Returns the first fault for `METHOD path`, and counts it."""
        if not (self.folder / "faults.json").exists():
            return None
        with self.lock():
            faults = self.read("faults.json", [])
            found = next((f for f in faults if f["times"] > 0 and re.search(f["match"], request)), None)
            if found is not None:
                found["times"] -= 1
                self.write("faults.json", faults)
            return found

    # Repositories

    def create(self, kind, name, private):
        with self.lock():
            if self.read(f"{_place(kind, name)}/repo.json") is not None:
                raise HubError(409, None, "You already created this repo")
            attributes = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
            self._commit(kind, name, None, "initial commit", "", {".gitattributes": self.put_blob(attributes)}, "main")
            self.write(f"{_place(kind, name)}/repo.json", {"private": private})

    def repo(self, kind, name):
        found = self.read(f"{_place(kind, name)}/repo.json")
        if found is None:
            raise HubError(404, "RepoNotFound", "Repository not found")
        return found

    def refs(self, kind, name):
        """Returns ref, such as `heads/main` -> commit."""
        return self.read(f"{_place(kind, name)}/refs.json", {})

    def set_ref(self, kind, name, ref, start):
        with self.lock():
            refs = self.refs(kind, name)
            if ref in refs:
                raise HubError(409, None, "Reference already exists")
            self.write(f"{_place(kind, name)}/refs.json", {**refs, ref: self.resolve(kind, name, start)["id"]})

    def resolve(self, kind, name, revision):
        """Returns the commit of a branch, tag or commit id."""
        refs = self.refs(kind, name)
        found = refs.get(f"heads/{revision}", refs.get(f"tags/{revision}"))
        if found is None and COMMIT.fullmatch(revision):
            found = revision
        commit = self.read(f"{_place(kind, name)}/commits/{found}.json")
        if commit is None:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def history(self, kind, name, revision):
        """Returns the commits of a revision, newest first."""
        commits = []
        following = self.resolve(kind, name, revision)["id"]
        while following is not None:
            commits.append(self.read(f"{_place(kind, name)}/commits/{following}.json"))
            following = commits[-1]["parent"]
        return commits

    def commit(self, kind, name, branch, lines):
        """Applies the ndjson lines of a commit to a branch; if one of them is wrong, nothing changes."""
        header = next(line["value"] for line in lines if line["key"] == "header")
        with self.lock():
            refs = self.refs(kind, name)
            if f"heads/{branch}" not in refs:
                raise HubError(404, "RevisionNotFound", f"Invalid rev id: {branch}")
            parent = self.resolve(kind, name, refs[f"heads/{branch}"])
            if header.get("parentCommit") not in (None, parent["id"]):
                raise HubError(412, None, "A commit has happened since. Please refresh and try again.")
            files = dict(parent["files"])
            for line in lines:
                self._apply(files, line["key"], line["value"])
            title = header["summary"]
            description = header.get("description", "")
            return self._commit(kind, name, parent["id"], title, description, files, branch)

    def set_files(self, kind, name, files, title):
        """Commits these files to main; their content must exist."""
        with self.lock():
            self._commit(kind, name, self.refs(kind, name)["heads/main"], title, "", files, "main")

    def _apply(self, files, key, value):
        if key == "file":
            files[value["path"]] = self.put_blob(value["content"])
        elif key == "lfsFile":
            path = self.folder / "lfs" / value["oid"]
            if not path.exists():
                raise HubError(400, None, f"LFS object {value['oid']} of {value['path']} was never uploaded")
            size = path.stat().st_size
            pointer = f"oid sha256:{value['oid']}".encode()
            files[value["path"]] = {"oid": _blob_id(pointer), "size": size, "lfs": value["oid"]}
        elif key == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise HubError(404, "EntryNotFound", "A file with this name doesn't exist")
        elif key == "deletedFolder":
            for path in [path for path in files if path.startswith(value["path"].rstrip("/") + "/")]:
                del files[path]
        elif key != "header":
            raise HubError(400, None, f"unknown operation {key}")

    def _commit(self, kind, name, parent, title, description, files, branch):
        about = {"parent": parent, "title": title, "description": description, "files": files}
        about["date"] = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        commit = {"id": hashlib.sha1(json.dumps([name, uuid.uuid4().hex, about]).encode()).hexdigest(), **about}
        self.write(f"{_place(kind, name)}/commits/{commit['id']}.json", commit)
        self.write(f"{_place(kind, name)}/refs.json", {**self.refs(kind, name), f"heads/{branch}": commit["id"]})
        return commit

    # Content

    def put_blob(self, content):
        oid = _blob_id(content)
        self.write_bytes(f"blobs/{oid}", content)
        return {"oid": oid, "size": len(content), "lfs": None}

    def content(self, file):
        return self.folder / ("lfs" if file["lfs"] else "blobs") / (file["lfs"] or file["oid"])


def _place(kind, name):
    return f"repos/{kind}/{quote(name, safe='')}"


def _blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


# Descriptions of files, in the format of the Hub


def tree_entry(commit, path):
    """Describes a file or folder of a tree, including the fields of `expand`."""
    last = {"id": commit["id"], "title": commit["title"], "date": commit["date"]}
    file = commit["files"].get(path)
    if file is None:
        name = hashlib.sha1(path.encode()).hexdigest()
        return {"type": "directory", "path": path, "oid": name, "size": 0, "lastCommit": last}
    entry = {"type": "file", "path": path, "oid": file["oid"], "size": file["size"], "lastCommit": last}
    if file["lfs"]:
        entry["lfs"] = {"oid": file["lfs"], "size": file["size"], "pointerSize": 130}
    return entry


def sibling(path, file):
    """Describes a file in the information about a repository."""
    entry = {"rfilename": path, "size": file["size"], "blobId": file["oid"]}
    if file["lfs"]:
        entry["lfs"] = {"sha256": file["lfs"], "size": file["size"], "pointerSize": 130}
    return entry
