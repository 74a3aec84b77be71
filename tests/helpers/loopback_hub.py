# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A Hub server on this machine, made with the standard library, to which `huggingface_hub` pushes in tests.

Its state is on disk (`loopback_hub_state`). `inject` makes it fail in the ways of networks and servers.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, unquote, urlsplit

from tests.helpers.loopback_hub_routes import ROUTES, WRITES
from tests.helpers.loopback_hub_state import LARGE, HubError, State, sibling, tree_entry

TOKEN = "hf_loopback"
LEFT_OUT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_CACHE", "HF_MODULES_CACHE")


class LoopbackHub:
    """The server as a context manager: a thread of this process, on a free port.

    `TOKEN` belongs to the user `tester`, who may write to `tester/...` and `org/...`; other tokens are rejected.
    """

    def __init__(self, state_dir):
        self.state = State(state_dir)
        self.state.add_user(TOKEN, "tester", ("org",))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self.state))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def environment(self, home, token=TOKEN):
        """Returns the environment for a process that uses this Hub; its caches are in `home`."""
        environment = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
        environment.pop("HF_TOKEN", None)
        if token is not None:
            environment["HF_TOKEN"] = token
        return {
            **environment,
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",  # there is no Xet server here, and the client does not return to LFS
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def inject(
        self,
        kind,
        match,
        *,
        times=1,
        status=500,
        after=0,
        headers=None,
    ):
        """Makes some requests fail.

        Args:
            kind (`str`): `"status"` answers with `status`; `"drop"` resets the connection after `after` bytes of an
                upload; `"cut"` resets it after `after` bytes of a download.
            match (`str`): regular expression; it is searched in `METHOD /path` of requests.
            times (`int`, *optional*, defaults to 1): number of matching requests that fail.
            status (`int`, *optional*, defaults to 500): status of the answer.
            after (`int`, *optional*, defaults to 0): number of bytes.
            headers (`dict[str, str]`, *optional*): headers of a failing answer, such as `Retry-After`.
        """
        if kind not in ("status", "drop", "cut"):
            raise ValueError(f"fault {kind!r}: expected status, drop or cut")
        fault = {"kind": kind, "match": match, "times": times, "status": status, "after": after}
        self.state.add_fault({**fault, "headers": headers})

    def pending_faults(self):
        """Returns the number of injected failures that have not happened yet."""
        return sum(fault["times"] for fault in self.state.read("faults.json", []))

    # Content of the Hub, read from disk

    def commits(self, name, revision="main", kind="models"):
        """Returns the commits of a revision, newest first, with `id`, `title`, `files`; the Hub made the oldest."""
        return self.state.history(kind, name, revision)

    def files(self, name, revision="main", kind="models"):
        return sorted(self.state.resolve(kind, name, revision)["files"])

    def read(self, name, path, revision="main", kind="models"):
        return self.state.content(self.state.resolve(kind, name, revision)["files"][path]).read_bytes()

    def copy(self, name, target, kind="models", private=False):
        """Makes a new repository with the files of another repository on main."""
        self.state.create(kind, target, private)
        files = self.state.resolve(kind, name, "main")["files"]
        self.state.set_files(kind, target, files, f"copy of {name}")

    def checkout(self, name, folder, revision="main", kind="models"):
        """Writes the files of a revision to a folder."""
        for path, file in self.state.resolve(kind, name, revision)["files"].items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.state.content(file), target)
        return Path(folder)


def _places(commit):
    """The files and folders of a commit."""
    folders = {str(folder) for path in commit["files"] for folder in PurePosixPath(path).parents}
    return {*commit["files"], *folders} - {"."}


class _Dropped(Exception):
    """Raised after the connection was reset intentionally."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms

    def __init__(self, state, *args):
        self.state = state
        super().__init__(*args)

    def log_message(self, format, *args):
        pass

    # All requests

    def _serve(self):
        self.query = parse_qs(urlsplit(self.path).query)
        path = urlsplit(self.path).path
        self.fault = self.state.take_fault(f"{self.command} {path}") or {}
        try:
            self.body = self._read_body()
            if self.fault.get("kind") == "status":
                raise HubError(self.fault["status"], None, "an injected fault", self.fault.get("headers"))
            self._route(path)
        except HubError as error:
            self._answer_error(error)
        except (_Dropped, ConnectionError):
            self._reset()

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _route(self, path):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self.user = self.state.user(token)
        for command, pattern, action in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in command:
                groups = {key: unquote(value or "") for key, value in match.groupdict().items()}
                if "kind" in match.re.groupindex:
                    self.kind = groups.pop("kind") or "models"
                    self.name = groups.pop("name")
                    self._check_access(action)
                getattr(self, action)(**groups)
                return
        raise HubError(404, None, f"no such route: {self.command} {path}")

    def _check_access(self, action):
        """Hides private repositories from other users; only owners may write."""
        repo = self.state.repo(self.kind, self.name)
        owned = self.user is not None and self.name.split("/")[0] in (self.user["name"], *self.user["orgs"])
        if repo["private"] and not owned:
            raise HubError(404 if self.user else 401, "RepoNotFound", "Repository not found")
        if action in WRITES and self.user is None:
            raise HubError(401, None, "Invalid username or password.")
        if action in WRITES and not owned:
            raise HubError(403, None, "you don't have the rights to write here")

    def _read_body(self):
        left = self.fault["after"] if self.fault.get("kind") == "drop" else None
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
                if left is not None and len(body) > left:
                    raise _Dropped
            self.rfile.readline()
        else:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length if left is None else min(left, length))
        if left is not None:
            raise _Dropped
        return body

    def _reset(self):
        """Resets the connection, as after a network failure, instead of closing it."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()  # otherwise the socket stays open
        self.connection.close()

    def _answer(self, content=b"", status=200, headers=None):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault.get("kind") == "cut":
            self.wfile.write(content[: self.fault["after"]])
            self.wfile.flush()
            raise _Dropped
        self.wfile.write(content)

    def _answer_error(self, error):
        headers = {"X-Error-Message": error.message}
        if error.code:
            headers["X-Error-Code"] = error.code
        if error.code == "EntryNotFound" and getattr(self, "revision", None):
            headers["X-Repo-Commit"] = self.revision["id"]
        headers |= error.headers
        self._answer({"error": error.message}, error.status, headers)

    # Users and repositories

    def whoami(self):
        if self.user is None:
            raise HubError(401, None, "Invalid username or password.")
        token = {"accessToken": {"displayName": "loopback", "role": "write"}}
        organisations = [{"type": "org", "name": name} for name in self.user["orgs"]]
        self._answer({"type": "user", "name": self.user["name"], "orgs": organisations, "auth": token})

    def create(self):
        content = json.loads(self.body)
        if self.user is None:
            raise HubError(401, None, "Invalid username or password.")
        owner = content.get("organization") or self.user["name"]
        if owner not in (self.user["name"], *self.user["orgs"]):
            raise HubError(403, None, f"You don't have the rights to create a repo under the namespace {owner!r}")
        name = f"{owner}/{content['name']}"
        kind = content.get("type", "model") + "s"
        private = content.get("visibility") == "private" or bool(content.get("private"))
        address = {"url": f"{self._endpoint()}/{'' if kind == 'models' else kind + '/'}{name}", "name": name}
        try:
            self.state.create(kind, name, private)
        except HubError as error:
            return self._answer({"error": error.message, **address}, error.status)
        self._answer(address)

    def validate_yaml(self):
        self._answer({"errors": [], "warnings": []})

    def create_branch(self, branch):
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        self.state.set_ref(self.kind, self.name, f"heads/{branch}", start)
        self._answer({})

    # Reading

    def info(self, revision=""):
        commit = self.state.resolve(self.kind, self.name, revision or "main")
        first = self.state.history(self.kind, self.name, "main")[-1]
        about = {"id": self.name, "sha": commit["id"], "lastModified": commit["date"], "createdAt": first["date"]}
        about |= {"private": self.state.repo(self.kind, self.name)["private"], "gated": False, "disabled": False}
        about |= {"downloads": 0, "likes": 0, "tags": [], "author": self.name.split("/")[0]}
        self._answer({**about, "siblings": [sibling(path, file) for path, file in commit["files"].items()]})

    def tree(self, revision, path=""):
        self.revision = commit = self.state.resolve(self.kind, self.name, revision)
        below = path.strip("/") + "/" if path.strip("/") else ""
        inside = [place for place in _places(commit) if place.startswith(below)]
        if below and not inside:
            raise HubError(404, "EntryNotFound", f"{path} does not exist on {revision}")
        if self.query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
            inside = [place for place in inside if "/" not in place[len(below) :]]
        self._answer([tree_entry(commit, place) for place in sorted(inside)])

    def paths_info(self, revision):
        self.revision = commit = self.state.resolve(self.kind, self.name, revision)
        is_json = "json" in self.headers.get("Content-Type", "")
        content = json.loads(self.body) if is_json else parse_qs(self.body.decode())
        there = _places(commit)
        self._answer([tree_entry(commit, path) for path in content.get("paths", []) if path in there])

    def resolve(self, revision, path):
        self.revision = commit = self.state.resolve(self.kind, self.name, revision)
        if path not in commit["files"]:
            raise HubError(404, "EntryNotFound", "Entry not found")
        file = commit["files"][path]
        content = self.state.content(file).read_bytes()
        headers = {"X-Repo-Commit": commit["id"], "ETag": f'"{file["lfs"] or file["oid"]}"', "Accept-Ranges": "bytes"}
        if file["lfs"]:
            headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(file["size"])}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None:
            return self._answer(content, 200, headers)
        start = int(span[1])
        end = min(int(span[2] or len(content) - 1), len(content) - 1)
        if start >= len(content):
            raise HubError(416, None, f"bytes */{len(content)}")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._answer(content[start : end + 1], 206, headers)

    # Writing

    def preupload(self, revision):
        present = self.state.resolve(self.kind, self.name, revision)["files"]
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            binary = b"\0" in base64.b64decode(file.get("sample", ""))
            large = bool(LARGE.search(path)) or binary or file["size"] > 10_000_000
            oid = (present[path]["lfs"] or present[path]["oid"]) if path in present else None
            mode = "lfs" if large else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer({"files": answers})

    def lfs_batch(self):
        objects = []
        for file in json.loads(self.body)["objects"]:
            answer = {"oid": file["oid"], "size": file["size"]}
            place = f"{self._endpoint()}/lfs/{file['oid']}"
            if not (self.state.folder / "lfs" / file["oid"]).exists():
                answer["actions"] = {"upload": {"href": place}, "verify": {"href": place + "/verify"}}
            objects.append(answer)
        self._answer({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(400, None, "the content does not have the hash in its name")
        self.state.write_bytes(f"lfs/{oid}", self.body)
        self._answer()

    def lfs_verify(self, oid):
        path = self.state.folder / "lfs" / oid
        if not path.exists() or path.stat().st_size != json.loads(self.body)["size"]:
            raise HubError(404, None, "no such object")
        self._answer({})

    def commit(self, revision):
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        for line in lines:
            if line["key"] == "file":
                line["value"]["content"] = base64.b64decode(line["value"]["content"])
        commit = self.state.commit(self.kind, self.name, revision, lines)
        prefix = "" if self.kind == "models" else self.kind + "/"
        address = f"{self._endpoint()}/{prefix}{self.name}/commit/{commit['id']}"
        self._answer({"success": True, "commitOid": commit["id"], "commitUrl": address, "hookOutput": ""})

    def _endpoint(self):
        return f"http://{self.headers['Host']}"
