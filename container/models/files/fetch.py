"""Fetch a model from any remote into the cache: list, check the disk space, fetch, verify, publish.

A copy appears under its final name only when it is complete. If it later lacks files, it is completed in place, since a
server may use it. The next fetch resumes one that was interrupted or that filled the disk, if the model is unchanged.
After a damaged file, only complete files are kept, if weights are among them.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from container.models.errors import (
    AccessRefused,
    DamagedContent,
    DiskFull,
    ModelNotAvailable,
    RemoteUnreachable,
)
from container.models.files import choice
from container.models.files.copies import Copy, copy_name, last_published
from container.models.files.journal import forget
from container.models.files.remote import (
    DEFAULT_SELECTION,
    Remote,
    RemoteFile,
    Report,
    Selection,
    Snapshot,
    Verification,
)
from container.models.files.retry import Throttled, ThrottleWaits
from container.models.publish import cannot_write, disk_bytes, flush, locked, publish, require_space
from container.progress import ProgressView
from engines.models.weight_files import read_header

_RESERVE_BYTES = 64 << 20
"""Disk space left free for other programs."""
_UNFINISHED = ".unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class OtherCache:
    """A cache that other programs fill. It is only read."""

    name: str
    folder: Path
    find: Callable[[], Path]
    """Return the model's folder, or its first GGUF file. Raises ModelNotAvailable if there is no complete copy, without
    a message if there is none at all."""


def obtain(
    remote: Remote,
    cache: Path,
    view: ProgressView,
    selection: Selection = DEFAULT_SELECTION,
    other_cache: Callable[[], OtherCache | None] = lambda: None,
) -> Path:
    """Return the model's folder in the cache, fetched if needed. Raises: ModelNotAvailable.

    other_cache: returns a cache to use if the remote does not respond and `cache` has no copy. The result may then be
    the model's first GGUF file.
    """
    name = copy_name(remote.name, selection)
    waits = ThrottleWaits(view.say)
    with _disk_errors(name, cache):
        while True:
            try:
                copy = _list(remote, cache, selection)
                break
            except RemoteUnreachable as error:
                try:
                    return _without_listing(error, name, cache, view, other_cache())
                except RemoteUnreachable:
                    if not waits.wait(error):
                        raise
        if last_published(name, cache) != copy.folder:
            with _locked(copy, view):
                _make_complete(remote, copy, view)
        return copy.folder


def _without_listing(
    error: RemoteUnreachable, name: str, cache: Path, view: ProgressView, other: OtherCache | None
) -> Path:
    """Return the copy to use because the remote does not respond. Raises RemoteUnreachable if there is none."""
    folder = last_published(name, cache)
    if folder is not None:
        view.say(f"note: {error}; using the cached copy of {name} in {folder}")
        return folder
    if other is None:
        raise error
    try:
        model = other.find()
    except ModelNotAvailable as reason:
        why = f": {reason}" if str(reason) else ""
        searched = f"neither LMI_CACHE_DIR ({cache}) nor {other.name} ({other.folder})"
        raise RemoteUnreachable(f"{error}; {searched} has a complete copy{why}") from error
    view.say(f"note: {error}; using the copy of {name} in {other.name}: {model}")
    return model


def verify(remote: Remote, cache: Path, view: ProgressView, selection: Selection = DEFAULT_SELECTION) -> Path:
    """Like `obtain`, but compare all fetched files with the remote, and fetch damaged ones again.

    Raises: ModelNotAvailable, also if the remote does not respond.
    """
    with _disk_errors(copy_name(remote.name, selection), cache):
        copy = ThrottleWaits(view.say).run(lambda: _list(remote, cache, selection))
        with _locked(copy, view):
            _drop_damaged(remote, copy, view)
            _make_complete(remote, copy, view)
        return copy.folder


def _list(remote: Remote, cache: Path, selection: Selection) -> Copy:
    snapshot = Snapshot(copy_name(remote.name, selection), remote.list_files(), selection)
    return Copy(cache, choice.choose(snapshot))


@contextmanager
def _disk_errors(name: str, cache: Path) -> Iterator[None]:
    """Turn errors of the local disk into ModelNotAvailable."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ModelNotAvailable(
                f"the disk of the cache {cache} is full ({error.strerror}): cannot download {name}; free some space,"
                " and the next start resumes the download; or set LMI_CACHE_DIR to another folder"
            ) from error
        raise cannot_write(cache, error) from error


@contextmanager
def _locked(copy: Copy, view: ProgressView) -> Iterator[None]:
    """Prevent other processes from creating or removing copies of this remote. Raises OSError."""
    copy.lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(copy.lock, f"fetching {copy.snapshot.name}", view):
        yield


def _make_complete(remote: Remote, copy: Copy, view: ProgressView) -> None:
    if not copy.is_complete():
        _Fetch(remote, copy, view).run()
    copy.record_as_latest()


def _drop_damaged(remote: Remote, copy: Copy, view: ProgressView) -> None:
    """Remove finished files that differ from the remote's. Raises: ModelNotAvailable, OSError.

    Files of another size are left: the next fetch replaces them.
    """
    files = [file for file in copy.snapshot.files if copy.has(file)]
    if not files:
        return
    verified: dict[Verification, list[str]] = {}
    done, total = 0, sum(file.size for file in files)
    view.start(
        f"verifying {copy.finished} against {copy.snapshot.name}, {len(files)} files, {total / 1e6:.0f} MB"
    )
    try:
        for file in files:
            try:
                path = copy.finished / file.path
                verification = ThrottleWaits(view.say).run(partial(remote.verify, file, path))
                verified.setdefault(verification, []).append(file.path)
            except DamagedContent as error:
                view.say(f"warning: {error}; removing {path} and downloading it again")
                path.unlink()
            done += file.size
            view.update(done, total)
    finally:
        view.finish()
        _say_verified(view, copy.snapshot.name, verified)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A fetch of one snapshot. The caller holds the lock, so existing part folders were left by killed fetches."""

    remote: Remote
    copy: Copy
    view: ProgressView

    def run(self) -> None:
        """Fetch, verify and publish. Raises `ModelNotAvailable` or OSError."""
        part, folder = self.copy.part, self.copy.folder
        for left_over in self.copy.other_parts():
            shutil.rmtree(left_over)
        (part / _UNFINISHED).mkdir(parents=True, exist_ok=True)
        if folder.exists():
            self.view.say(f"note: {folder} is no longer complete; downloading the missing files")
        try:
            files = self._files()
            streamed = self.copy.snapshot.selection.streamed
            size = sum(file.size for file in files if not (streamed and choice.is_weights(file.path)))
            what = f"fetching {self.copy.snapshot.name} ({size / 1e6:.0f} MB)"
            missing = max(0, size - disk_bytes(part) - disk_bytes(folder))
            require_space(folder.parent, missing + _RESERVE_BYTES, what)
            self._fetch_all(files)
            shutil.rmtree(part / _UNFINISHED)
            self.copy.write_list(files)
            publish(self.copy.finished, folder)
            shutil.rmtree(part, ignore_errors=True)  # left if the copy was completed in place
        except (RemoteUnreachable, AccessRefused, DiskFull):
            if not any(path.is_file() for path in part.rglob("*")):
                shutil.rmtree(part)
            raise
        except ModelNotAvailable:
            self._drop_unfinished()
            raise
        finally:
            self.view.finish()

    def _files(self) -> tuple[RemoteFile, ...]:
        """Return the files to fetch. Fetches the index of sharded weights first, which names the shards."""
        snapshot: Snapshot = self.copy.snapshot
        if snapshot.selection.everything:
            return snapshot.files
        for file in snapshot.files:
            if file.path == choice.INDEX:
                if self._fetch(file, lambda count: None):
                    self._commit(file)
                snapshot = choice.keep_shards(snapshot, self._paths(file)[0])
        return snapshot.files

    def _fetch_all(self, files: tuple[RemoteFile, ...]) -> None:
        """Fetch all files that are missing, small files first, so that errors in them are reported early.

        While a file is flushed to disk, the next one is fetched.
        """
        done, total, lock = 0, sum(file.size for file in files), threading.Lock()

        def report(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                self.view.update(min(done, total), total)

        verified: dict[Verification, list[str]] = {}
        if any((self.copy.part / _UNFINISHED).iterdir()):
            self.view.say(f"note: resuming an interrupted fetch of {self.copy.snapshot.name}")
        self.view.start(f"fetching {self.copy.snapshot.name}, {len(files)} files, {total / 1e6:.0f} MB")
        try:
            with ThreadPoolExecutor(1, "flush") as pool:
                commit: Future[None] | None = None
                for file in sorted(files, key=lambda file: (choice.is_weights(file.path), file.path)):
                    verification = self._fetch(file, report)
                    if commit:
                        commit.result()
                    if verification:
                        verified.setdefault(verification, []).append(file.path)
                        commit = pool.submit(self._commit, file)
                if commit:
                    commit.result()
        finally:
            _say_verified(self.view, self.copy.snapshot.name, verified)

    def _fetch(self, file: RemoteFile, report: Report) -> Verification | None:
        """Fetch and verify one file, which the caller passes to `_commit`. Returns None if it is there already."""
        if self.copy.has(file):
            report(file.size)
            return None
        target, unfinished = self._paths(file)
        for path in (target, unfinished):
            path.parent.mkdir(parents=True, exist_ok=True)
        verification = self._fetch_patiently(file, unfinished, report)
        where = self.copy.snapshot.where(file.path)
        if (size := unfinished.stat().st_size) != file.size:
            raise ModelNotAvailable(
                f"{where} has {size} bytes after the download, but the listing has {file.size}"
            )
        if choice.is_safetensors(file.path):
            try:
                read_header(unfinished)
            except SafetensorError as error:
                raise ModelNotAvailable(
                    f"{where} is not a complete safetensors file: {error}; upload it again"
                ) from error
        return verification

    def _fetch_patiently(self, file: RemoteFile, target: Path, report: Report) -> Verification:
        """Fetch one file, and wait while the remote throttles. Raises the errors of `Remote.fetch`."""
        waits, best, lock = ThrottleWaits(self.view.say), 0, threading.Lock()
        while True:
            received = 0

            def count(more: int) -> None:
                nonlocal received
                with lock:
                    received += more
                report(more)

            try:
                return self.remote.fetch(file, target, count)
            except Throttled as error:
                if received > best:
                    waits.progress()
                best = max(best, received)
                if not waits.wait(error):
                    raise
                report(-received)  # the next attempt reports these bytes again

    def _commit(self, file: RemoteFile) -> None:
        """Flush a fetched file to disk, then move it to the folder of finished files."""
        target, unfinished = self._paths(file)
        try:
            flush(unfinished)
        except OSError:
            forget(unfinished)  # the kernel may have dropped bytes
            raise
        unfinished.rename(target)

    def _paths(self, file: RemoteFile) -> tuple[Path, Path]:
        """Return the path of a file when it is finished, and its path while it is fetched."""
        unfinished = self.copy.part / _UNFINISHED
        return choice.safe_join(self.copy.finished, file.path), choice.safe_join(unfinished, file.path)

    def _drop_unfinished(self) -> None:
        """Remove unfinished files after a permanent error. Complete files are kept if weights are among them."""
        part = self.copy.part
        complete = (path for path in part.rglob("*") if part / _UNFINISHED not in path.parents)
        has_weights = any(path.is_file() and choice.is_weights(path.name) for path in complete)
        shutil.rmtree(part / _UNFINISHED if has_weights else part, ignore_errors=True)


def _say_verified(view: ProgressView, name: str, verified: Mapping[Verification, list[str]]) -> None:
    """Report how files were verified, or why they were not."""
    for verification, paths in verified.items():
        if verification.by:
            view.say(f"note: {name}: {_summary(paths)}: verified by {verification.by}")
        else:
            view.say(
                f"warning: {name}: {_summary(paths)}: NOT VERIFIED: {verification.missing}; checked only "
                "sizes and weight headers"
            )


def _summary(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} files ({paths[0]}, ...)"
