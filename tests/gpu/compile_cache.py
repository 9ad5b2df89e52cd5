"""Transfer Triton's cache of compiled kernels between machines: pack what launches need into small archives."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

_KEPT_SUFFIXES = (".json", ".cubin", ".so")
"""Suffixes of the compiler's files to keep. The intermediate representations are larger and never read again."""
ARCHIVE = "triton-cache-{}.tar.gz"
MAX_ARCHIVES = 3
ARCHIVE_BYTES = 14_000_000
_PIECE_BYTES = 4 * ARCHIVE_BYTES
"""Size of an archive's files before compression: machine code shrinks to a quarter or less."""


class CompileCache:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._packed: set[str] = set()

    def __len__(self) -> int:
        """Return the number of kernels and launchers."""
        return sum(1 for _ in self.folder.iterdir())

    def unpack(self, source: Path) -> int:
        """Unpack `source`, an archive or a folder of archives. Return how many archives could be read."""
        archives = sorted(source.glob(ARCHIVE.format("*"))) if source.is_dir() else [source]
        count = 0
        for archive in archives:
            try:
                with tarfile.open(archive) as tar:
                    tar.extractall(self.folder, filter="data")
                count += 1
            except (OSError, tarfile.TarError) as error:
                print(f"{archive}: {error}", flush=True)
        self._rewrite_paths()
        return count

    def pack(self, out: Path) -> list[Path]:
        """Write the cache to `out` as at most `MAX_ARCHIVES` archives of `ARCHIVE_BYTES`, over those already there.
        Return their paths, or nothing if no kernel is new. The oldest kernels are left out if they do not fit, and are
        compiled again."""
        folders = [path for path in self.folder.iterdir() if path.is_dir()]
        if {path.name for path in folders} <= self._packed:
            return []
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        archives: list[Path] = []
        for piece in _split(folders):
            if len(archives) == MAX_ARCHIVES:
                break
            archive = out / ARCHIVE.format(len(archives))
            partial = out / "triton-cache.partial"
            with tarfile.open(partial, "w:gz", compresslevel=6) as tar:
                for folder in piece:
                    for file in sorted(folder.iterdir()):
                        if file.suffix in _KEPT_SUFFIXES:
                            tar.add(file, f"{folder.name}/{file.name}")
            if partial.stat().st_size > ARCHIVE_BYTES:
                partial.unlink()
                continue
            partial.rename(archive)
            archives.append(archive)
        self._packed = {path.name for path in folders}
        return archives

    def _rewrite_paths(self) -> None:
        """Rewrite the absolute paths in Triton's group files to this folder."""
        for group in self.folder.glob("*/__grp__*.json"):
            names = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
            paths = {name: str(group.parent / name) for name in names}
            group.write_text(json.dumps({"child_paths": paths}), encoding="utf-8")


def _split(folders: list[Path]) -> Iterator[list[Path]]:
    piece: list[Path] = []
    size = 0
    for folder in folders:
        folder_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in _KEPT_SUFFIXES)
        if piece and size + folder_bytes > _PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(folder)
        size += folder_bytes
    if piece:
        yield piece
