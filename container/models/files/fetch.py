"""The one way from a remote into the cache: resolve, list, check disk space, fetch, verify, publish.

A copy appears under its name only when it is complete. A fetch that was killed or broke off is continued by the next
one, if the model is still the same; a full disk or a damaged file costs only files that are not finished.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from container.models.files import choice, safetensors_headers
from container.models.files.base import DamagedContent, ModelNotAvailable, RemoteUnreachable
from container.models.files.copies import Copy, last_published
from container.models.files.remote import Remote, RemoteFile, Report, Snapshot, Verification
from container.models.publish import flush, lacking_space, locked, publish
from container.progress import ProgressView

_RESERVE_BYTES = 64 << 20
"""Stays free on the disk, for whatever else writes there."""
_UNFINISHED = ".unfinished"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def obtain(remote: Remote, cache: Path, view: ProgressView) -> Path:
    """The model's folder in the cache, fetched if need be.

    Raises: ModelNotAvailable, with one sentence for a person.
    """
    with _disk_errors(remote, cache):
        try:
            copy = Copy(cache, choice.choose(remote.snapshot()))
        except RemoteUnreachable as error:
            copy_folder = locate(remote.name, cache)
            if copy_folder is None:
                raise
            view.say(f"note: {error}; serving the copy of {remote.name} in {copy_folder}")
            return copy_folder
        if locate(remote.name, cache) != copy.folder:
            with _locked(copy, view):
                _make_complete(remote, copy, view)
        return copy.folder


def verify(remote: Remote, cache: Path, view: ProgressView) -> Path:
    """As `obtain`; but every file of a copy that is there is compared with the remote, and a damaged one fetched again.

    Raises: ModelNotAvailable, also when the remote cannot be reached.
    """
    with _disk_errors(remote, cache):
        copy = Copy(cache, choice.choose(remote.snapshot()))
        with _locked(copy, view):
            if copy.is_complete():
                _drop_damaged(remote, copy, view)
            _make_complete(remote, copy, view)
        return copy.folder


def locate(name: str, cache: Path) -> Path | None:
    """The complete copy that was published last for `Remote.name`; opens no connection."""
    return last_published(name, cache)


@contextmanager
def _disk_errors(remote: Remote, cache: Path) -> Iterator[None]:
    """Raise what the local disk answers as `ModelNotAvailable`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _FULL:
            raise ModelNotAvailable(
                f"the disk of the cache {cache} is full ({why}): {remote.name} could not be fetched; make room there, "
                "or name another place by LMI_CACHE_DIR; files that were finished are kept, and the next start goes "
                "on with them"
            ) from error
        raise ModelNotAvailable(
            f"cannot write the cache {cache} ({why}); LMI_CACHE_DIR names another"
        ) from error


@contextmanager
def _locked(copy: Copy, view: ProgressView) -> Iterator[None]:
    """Nobody else makes or removes copies of this remote while the block runs. Raises OSError."""
    copy.lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(copy.lock, f"fetching {copy.snapshot.name}", view):
        yield


def _make_complete(remote: Remote, copy: Copy, view: ProgressView) -> None:
    if not copy.is_complete():
        _Fetch(remote, copy, view).run()
    copy.remember()


def _drop_damaged(remote: Remote, copy: Copy, view: ProgressView) -> None:
    """Remove files of a complete copy that are not what the remote has. Raises: ModelNotAvailable, OSError."""
    files = [file for file in copy.snapshot.files if (copy.folder / file.path).is_file()]
    verified: dict[Verification, list[str]] = {}
    done, total = 0, sum(file.size for file in files)
    view.start(f"verifying {copy.folder} against {remote.name}, {len(files)} files, {total / 1e6:.0f} MB")
    try:
        for file in files:
            try:
                verification = remote.verify(file, copy.folder / file.path)
                verified.setdefault(verification, []).append(file.path)
            except DamagedContent as error:
                view.say(f"warning: {error}; {copy.folder / file.path} is removed and fetched again")
                (copy.folder / file.path).unlink()
            done += file.size
            view.update(done, total)
    finally:
        view.finish()
        _say_verified(view, remote.name, verified)


@dataclass(slots=True)
class _Arrived:
    """Counts bytes of all files, from any thread, and shows them."""

    view: ProgressView
    total: int
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            self.view.update(min(self.done, self.total), self.total)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch of one snapshot. Whoever makes it holds the lock, so every part folder is a dead one's."""

    remote: Remote
    copy: Copy
    view: ProgressView

    def run(self) -> None:
        """Fetch, verify and publish. Raises `ModelNotAvailable` or OSError."""
        part = self.copy.part
        for left_over in self.copy.other_parts():
            shutil.rmtree(left_over)
        (part / _UNFINISHED).mkdir(parents=True, exist_ok=True)
        if self.copy.folder.exists():
            self.view.say(f"note: {self.copy.folder} is not complete any more; fetching what it lacks")
            self.copy.withdraw()
        try:
            files = self._files()
            self._require_space(files)
            self._fetch_all(files)
            shutil.rmtree(part / _UNFINISHED)
            self.copy.write_list(files)
            publish(part, self.copy.folder)
        except RemoteUnreachable:
            if not any(path.is_file() for path in part.rglob("*")):
                shutil.rmtree(part)
            raise
        except ModelNotAvailable:
            self._drop_unfinished()
            raise
        except OSError as error:
            if error.errno in _FULL:
                self._drop_unfinished()  # gives back room; finished files are kept
            raise
        finally:
            self.view.finish()

    def _files(self) -> tuple[RemoteFile, ...]:
        """What is to be fetched, once the index of a model in several files is here and says it."""
        snapshot: Snapshot = self.copy.snapshot
        for file in snapshot.files:
            if file.path == choice.INDEX:
                self._fetch(file, lambda count: None)
                snapshot = choice.keep_shards(snapshot, choice.safe_join(self.copy.part, file.path))
        return snapshot.files

    def _require_space(self, files: tuple[RemoteFile, ...]) -> None:
        here = sum(path.stat().st_blocks * 512 for path in self.copy.part.rglob("*") if path.is_file())
        size = sum(file.size for file in files)
        needed = max(0, size - here) + _RESERVE_BYTES
        what = f"fetching {self.remote.name} ({size / 1e6:.0f} MB)"
        if lack := lacking_space(self.copy.folder.parent, needed, what):
            raise ModelNotAvailable(lack)

    def _fetch_all(self, files: tuple[RemoteFile, ...]) -> None:
        """Every file into the part folder; small ones first, so that what is wrong with them shows early."""
        arrived = _Arrived(self.view, sum(file.size for file in files))
        verified: dict[Verification, list[str]] = {}
        if any((self.copy.part / _UNFINISHED).iterdir()):
            self.view.say(f"note: going on with an earlier fetch of {self.remote.name} that broke off")
        self.view.start(f"fetching {self.remote.name}, {len(files)} files, {arrived.total / 1e6:.0f} MB")
        try:
            for file in sorted(files, key=lambda file: (choice.is_weights(file.path), file.path)):
                if verification := self._fetch(file, arrived.add):
                    verified.setdefault(verification, []).append(file.path)
        finally:
            _say_verified(self.view, self.remote.name, verified)

    def _fetch(self, file: RemoteFile, report: Report) -> Verification | None:
        """One file, verified, into the part folder, where only whole files are; None where it is there already."""
        target = choice.safe_join(self.copy.part, file.path)
        if target.exists():
            report(file.size)
            return None
        unfinished = choice.safe_join(self.copy.part / _UNFINISHED, file.path)
        verification = self.remote.fetch(file, unfinished, report)
        where = f"{self.remote.name}{'' if self.remote.name.endswith('/') else ' '}{file.path}"
        if (size := unfinished.stat().st_size) != file.size:
            raise ModelNotAvailable(f"{where} came with {size} bytes; {file.size} were listed")
        if choice.is_weights(file.path):
            try:
                safetensors_headers.verify(unfinished)
            except safetensors_headers.DamagedFile as error:
                raise ModelNotAvailable(
                    f"{where} is not a whole safetensors file: {error}; upload it again"
                ) from error
        flush(unfinished)
        unfinished.rename(target)
        return verification

    def _drop_unfinished(self) -> None:
        """After a definite error: nothing half-made stays. Whole files do where there are weights among them."""
        part = self.copy.part
        worth = any(choice.is_weights(path.name) for path in part.glob("*"))
        shutil.rmtree(part / _UNFINISHED if worth else part, ignore_errors=True)


def _say_verified(view: ProgressView, name: str, verified: Mapping[Verification, list[str]]) -> None:
    """A line for each way in which files were verified, and for each reason why they were not."""
    for verification, paths in verified.items():
        if verification.by:
            view.say(f"note: {name}: {_some(paths)}: verified by {verification.by}")
        else:
            view.say(
                f"warning: {name}: {_some(paths)}: NOT VERIFIED: {verification.missing}; only sizes and the headers "
                "of weights were looked at"
            )


def _some(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} files ({paths[0]}, ...)"
