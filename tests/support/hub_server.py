"""A model hub on 127.0.0.1 for huggingface_hub: repositories with commits, branches and tags, small files in git, large
files in LFS (behind a redirect to another host), tokens, and injected faults.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.loopback import LoopbackServer, QuietHandler

_LFS_SUFFIXES = (".safetensors", ".bin", ".model")
_PIECE = 16384


@dataclass(frozen=True, slots=True)
class Blob:
    """The content of a file."""

    content: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs\noid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()

    @property
    def git_id(self) -> str:
        stored = self.pointer if self.lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_id

    def entry(self) -> dict[str, Any]:
        """Size, id and LFS pointer, as in the hub's listings."""
        entry: dict[str, Any] = {"size": len(self.content), "blobId": self.git_id, "oid": self.git_id}
        if self.lfs:
            entry["lfs"] = {
                "sha256": self.sha256,
                "oid": self.sha256,  # the name of sha256 in the other listing
                "size": len(self.content),
                "pointerSize": len(self.pointer),
            }
        return entry


@dataclass(slots=True)
class Repository:
    """A repository. Only `HubServer.commit` modifies it."""

    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    private: bool = False
    """Visible only to callers with a token. Others get 'not found'."""
    gated: bool = False
    """Listed for everyone, but nobody may read its files."""

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a branch, a tag or a commit id."""
        found = self.branches.get(revision) or self.tags.get(revision)
        return found or (revision if revision in self.commits else None)


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` requests with `where` in their path."""

    where: str
    times: int = 1
    status: int = 0
    """Respond with this status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Cut the connection after this many bytes of the body."""
    stall_after: int | None = None
    """Stop sending after this many bytes of the body."""
    corrupt: bool = False
    """Change the first byte of the body."""
    ignore_range: bool = False
    without: tuple[str, ...] = ()
    """Headers of a file to leave out."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Headers of a file to replace."""
    body: bytes | None = None
    """Respond with this body to any request."""
    before: Callable[[], object] | None = None
    """Called before the response, which is otherwise normal."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A received request."""

    method: str
    path: str
    headers: Mapping[str, str]


class HubServer:
    """The hub, a context manager. `url` is the value for HF_ENDPOINT. Its state may be changed at any time."""

    def __init__(self, token: str = "") -> None:
        """`token`: the only accepted token; empty: every token is accepted."""
        self.token = token
        self.repositories: dict[str, Repository] = {}
        self.seen: list[Seen] = []
        self.body_bytes = 0
        """Bytes of files sent in all responses."""
        self.faults: list[Fault] = []
        """Pending faults. The first match applies."""
        self.lists_sizes = True
        """Whether the listing has sizes and ids of files, which some mirrors leave out."""
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._hub, self._store = (
            LoopbackServer(type("Handler", (handler,), {"hub": self})).start()
            for handler in (_HubHandler, _StoreHandler)
        )
        self.url = self._hub.url
        self.store_url = self._store.url
        """Address of the LFS files, on another origin."""

    def commit(
        self, repo_id: str, files: Mapping[str, bytes] | Path, *, branch: str = "main", tag: str = ""
    ) -> str:
        """Commit these files (or those of a folder) to the branch, and return the commit id."""
        repository = self.repositories.setdefault(repo_id, Repository())
        if isinstance(files, Path):
            paths = (path for path in files.rglob("*") if path.is_file())
            files = {str(path.relative_to(files)): path.read_bytes() for path in paths}
        tree = {path: Blob(content, path.endswith(_LFS_SUFFIXES)) for path, content in sorted(files.items())}
        parent = repository.branches.get(branch, "")
        text = parent + "".join(f"{path} {blob.git_id}\n" for path, blob in tree.items())
        commit = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = tree
        repository.branches[branch] = commit
        if tag:
            repository.tags[tag] = commit
        return commit

    def break_next(self, fault: Fault) -> None:
        with self._lock:
            self.faults.append(fault)

    def take_fault(self, path: str) -> Fault:
        """Return the fault for this request, or one without effect."""
        with self._lock:
            for fault in self.faults:
                if fault.where in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return Fault("")

    def count(self, sent: int) -> None:
        with self._lock:
            self.body_bytes += sent

    def paths(self, part: str = "") -> list[str]:
        """The paths of all requests so far that contain `part`."""
        return [seen.path for seen in self.seen if part in seen.path]

    def close_store(self) -> None:
        """Stop the storage host. The hub itself still responds."""
        self._store.close()

    def close(self) -> None:
        self.closing.set()
        self._hub.close()
        self.close_store()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Handler(ABC, QuietHandler):
    """Common code of both hosts."""

    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        fault = self.hub.take_fault(self.path)
        try:
            if fault.before is not None:
                fault.before()
            if fault.status:
                self.refuse(fault.status, "", "on demand", fault.headers)
            elif fault.body is not None:
                self.respond(200, fault.body, {})
            else:
                self.answer(urlsplit(self.path), fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    @abstractmethod
    def answer(self, url: Any, fault: Fault) -> None:
        """Respond to a request for `url`."""

    def refuse(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        named = {"X-Error-Code": code} if code else {}
        body = json.dumps({"error": message}).encode()
        self.respond(status, body, {**named, "X-Error-Message": message, **(headers or {})})

    def send_file(self, blob: Blob, headers: Mapping[str, str], fault: Fault) -> None:
        """Send the file or the requested range of it, with the fault applied."""
        content, begin = blob.content, 0
        range_header = self.headers.get("Range", "")
        if range_header and not fault.ignore_range:
            begin = int(range_header.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(content):
                self.refuse(416, "", "range")
                return
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
            self.send_response(206)
        else:
            self.send_response(200)
        body = content[begin:]
        described = {"Content-Length": str(len(body)), "ETag": f'"{blob.etag}"', **headers, **fault.instead}
        for name, value in described.items():
            if name not in fault.without:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.corrupt:
            body = bytes([body[0] ^ 1]) + body[1:]
        stop = min(n for n in (len(body), fault.cut_after, fault.stall_after) if n is not None)
        for start in range(0, stop, _PIECE):
            piece = body[start : min(start + _PIECE, stop)]
            self.wfile.write(piece)
            self.hub.count(len(piece))
        if fault.stall_after is not None:
            self.hub.closing.wait(600)
        if stop < len(body):
            self.close_connection = True


class _StoreHandler(_Handler):
    """The host of the LFS files. Serves them by sha256, without a token."""

    def answer(self, url: Any, fault: Fault) -> None:
        wanted = url.path.rpartition("/")[2]
        for repository in self.hub.repositories.values():
            for tree in repository.commits.values():
                for blob in tree.values():
                    if blob.lfs and blob.sha256 == wanted:
                        self.send_file(blob, {}, fault)
                        return
        self.refuse(404, "", "no such object")


class _HubHandler(_Handler):
    """The host of the API and of the small files."""

    def answer(self, url: Any, fault: Fault) -> None:
        path = url.path
        if path.startswith("/api/models/"):
            self._api(path.removeprefix("/api/models/"), parse_qs(url.query))
        elif "/resolve/" in path:
            repo_id, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            self._resolve(repo_id, unquote(revision), unquote(name), fault)
        else:
            self.refuse(404, "", "no such page")

    def _repository(self, repo_id: str) -> Repository | None:
        """Return the repository if the caller may see it. Otherwise send an error and return None."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and self.hub.token and token != self.hub.token:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and not token):
            if token:
                self.refuse(404, "RepoNotFound", "Repository not found")
            else:
                self.refuse(401, "RepoNotFound", "Invalid username or password.")
            return None
        return repository

    def _commit(self, repository: Repository, revision: str) -> str | None:
        commit = repository.resolve(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _api(self, rest: str, query: Mapping[str, list[str]]) -> None:
        parts = rest.split("/")
        at = next((i for i, part in enumerate(parts) if part in ("revision", "tree", "refs")), len(parts))
        repo_id, action, revision = (
            "/".join(parts[:at]),
            parts[at : at + 1],
            unquote("/".join(parts[at + 1 :])),
        )
        repository = self._repository(repo_id)
        if repository is None:
            return
        if action == ["refs"]:
            refs = {"branches": repository.branches, "tags": repository.tags}
            self._json(
                {"converts": []}
                | {kind: [_ref(kind, *ref) for ref in names.items()] for kind, names in refs.items()}
            )
            return
        commit = self._commit(repository, revision or "main")
        if commit is None:
            return
        tree = repository.commits[commit]
        if action == ["tree"]:
            self._json([{"type": "file", "path": path, **blob.entry()} for path, blob in tree.items()])
            return
        with_blobs = "blobs" in query and self.hub.lists_sizes
        siblings = [
            {"rfilename": path, **(blob.entry() if with_blobs else {})} for path, blob in tree.items()
        ]
        facts = {"private": repository.private, "gated": repository.gated and "manual"}
        self._json(
            {"_id": "1", "id": repo_id, "modelId": repo_id, "sha": commit, "siblings": siblings, **facts}
        )

    def _json(self, answer: object) -> None:
        self.respond(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo_id: str, revision: str, name: str, fault: Fault) -> None:
        repository = self._repository(repo_id)
        commit = self._commit(repository, revision) if repository else None
        if repository is None or commit is None:
            return
        if repository.gated:
            self.refuse(403, "GatedRepo", "Access to this model is restricted.")
            return
        blob = repository.commits[commit].get(name)
        if blob is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": commit}
        if not blob.lfs:
            self.send_file(blob, headers, fault)
            return
        linked = {"X-Linked-ETag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
        location = f"{self.hub.store_url}/{quote(repo_id)}/{quote(name)}/{blob.sha256}"
        self.respond(302, b"", {**headers, **linked, "Location": location})


def _ref(kind: str, name: str, commit: str) -> dict[str, str]:
    where = "heads" if kind == "branches" else "tags"
    return {"name": name, "ref": f"refs/{where}/{name}", "targetCommit": commit}
