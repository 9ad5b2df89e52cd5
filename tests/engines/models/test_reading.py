"""Read-ahead: tensors are prefetched in the order in which the model uses them."""

from __future__ import annotations

import errno
import json
import mmap
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.models import byte_ranges, reading
from engines.models.byte_ranges import FolderRanges
from engines.models.mapped_files import PageLoader
from engines.models.tensor_files import BadCheckpoint
from engines.models.weights import WeightReader, WeightSource
from engines.partition import Shard, split_evenly
from lmi_kernels.cpu import shared_team
from tests.support.thread_ranks import ThreadCommunicator, run_ranks

CPU = torch.device("cpu")
NAMES = [f"t{number}" for number in range(6)]
ROW_BYTES = 4 * 8
MakeReader = Callable[[FolderRanges], WeightReader]


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    tensors = {name: torch.randn(10, 8) for name in NAMES}
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def tensor_offset(file: Path, name: str) -> int:
    """Return the file offset of a tensor's data."""
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    begin: int = json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    return 8 + length + begin


class _WatchedRanges(FolderRanges):
    """Records the offsets of reads, and counts bytes. Reads from `held_from` on block until `free` is set."""

    def __init__(self, folder: Path, held_from: int = 1 << 60) -> None:
        super().__init__(folder)
        self.offsets: list[int] = []
        self.num_bytes = 0
        self.reached = threading.Event()
        self.free = threading.Event()
        self._held_from = held_from

    def read(self, file: str, offset: int, out: memoryview) -> None:
        self.offsets.append(offset)
        self.num_bytes += len(out)
        if offset >= self._held_from:
            self.reached.set()
            assert self.free.wait(200)
        super().read(file, offset, out)


@pytest.fixture
def make_reader(tmp_path: Path) -> Iterator[MakeReader]:
    """Make readers of the files in `tmp_path`, and close them after the test."""
    with ExitStack() as stack:

        def make(ranges: FolderRanges) -> WeightReader:
            reader = WeightReader(tmp_path, torch.float32, torch.float32, CPU, ranges=ranges)
            return stack.enter_context(closing(reader))

        yield make


def read_rows(names: Sequence[str], source: WeightSource) -> list[torch.Tensor]:
    return [source.rows([name], [Shard(2, 8)], (10, 8)) for name in names]


def test_the_next_tensor_is_read_while_the_previous_one_is_packed(
    tensors: dict[str, torch.Tensor], tmp_path: Path, make_reader: MakeReader
) -> None:
    # Threads may read in any order, so the later tensors are recognized by their offset.
    ranges = _WatchedRanges(tmp_path, held_from=tensor_offset(tmp_path / "model.safetensors", "t2"))
    weights = make_reader(ranges)
    weights.prefetch(lambda source: read_rows(NAMES, source))
    (first,) = read_rows(NAMES[:1], weights)
    assert ranges.reached.wait(60), "nothing is read ahead"
    assert torch.equal(first, tensors["t0"][2:8])
    ranges.free.set()
    others = read_rows(NAMES[1:], weights)
    assert all(torch.equal(rows, tensors[name][2:8]) for name, rows in zip(NAMES[1:], others, strict=True))
    assert len(ranges.offsets) == len(NAMES)
    assert weights.bytes_read == weights.owned_bytes == len(NAMES) * 6 * ROW_BYTES


def test_only_the_requested_rows_and_columns_are_read(
    tensors: dict[str, torch.Tensor], tmp_path: Path, make_reader: MakeReader
) -> None:
    ranges = _WatchedRanges(tmp_path)
    weights = make_reader(ranges)
    columns = weights.columns("t0", Shard(2, 5), (10, 8))
    assert torch.equal(columns, tensors["t0"][:, 2:5])
    (rows,) = read_rows(["t1"], weights)
    assert ranges.num_bytes == weights.bytes_read == columns.nbytes + rows.nbytes


def test_read_ahead_is_limited_in_bytes(
    tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_reader: MakeReader
) -> None:
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 2 * 6 * ROW_BYTES)
    ranges = _WatchedRanges(tmp_path)
    weights = make_reader(ranges)
    weights.prefetch(lambda source: read_rows(NAMES, source))
    for count, name in enumerate(NAMES):
        read_rows([name], weights)
        assert len(ranges.offsets) <= count + 1 + 2


def test_large_tensors_are_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_reader: MakeReader
) -> None:
    tensor = torch.randn(23, 17).bfloat16()
    save_file({"a": tensor, "b": tensor * 2}, tmp_path / "model.safetensors")
    monkeypatch.setattr(FolderRanges, "block_bytes", 100)
    weights = make_reader(FolderRanges(tmp_path))
    rows = weights.rows(["a", "b"], [Shard(3, 22), Shard(0, 4)], (46, 17))
    assert torch.equal(rows, torch.cat((tensor[3:22], tensor[:4] * 2)).float())
    columns = weights.stacked_columns(["a", "b"], Shard(4, 9), (23, 17))
    assert torch.equal(columns, torch.stack((tensor, tensor * 2))[:, :, 4:9].float())
    whole = weights.stacked_columns(["b"], Shard(0, 17), (23, 17))
    assert torch.equal(whole[0], (tensor * 2).float())


def test_tensors_can_be_read_in_another_order_than_prefetched(
    tensors: dict[str, torch.Tensor], tmp_path: Path, make_reader: MakeReader
) -> None:
    weights = make_reader(FolderRanges(tmp_path))
    weights.prefetch(lambda source: read_rows(NAMES, source))
    backwards = NAMES[::-1]
    found = read_rows(backwards, weights)
    assert all(torch.equal(got, tensors[name][2:8]) for name, got in zip(backwards, found, strict=True))


def test_a_missing_tensor_is_reported_before_anything_is_read(
    tensors: dict[str, torch.Tensor], tmp_path: Path, make_reader: MakeReader
) -> None:
    ranges = _WatchedRanges(tmp_path)
    weights = make_reader(ranges)
    with pytest.raises(BadCheckpoint, match="no tensor 'x'"):
        weights.prefetch(lambda source: read_rows([*NAMES, "x"], source))
    assert ranges.offsets == []


def test_a_file_that_is_truncated_while_open_is_an_error(tmp_path: Path, make_reader: MakeReader) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(64, 64)}, path)
    weights = make_reader(FolderRanges(tmp_path))
    path.write_bytes(path.read_bytes()[:2000])
    weights.prefetch(lambda source: source.tensor("a", (64, 64)))
    with pytest.raises(BadCheckpoint, match="is truncated"):
        weights.tensor("a", (64, 64))


def read_blocks(source: WeightSource) -> list[torch.Tensor]:
    """Request matrices for `pack`."""
    return [
        *source.row_blocks(["t3", "t0"], [Shard(1, 9), Shard(0, 3)], (20, 8)),
        *source.row_blocks(["t1"], [Shard(7, 9), Shard(0, 4)], (10, 8)),
        source.column_block("t2", Shard(0, 8), (10, 8)),
        source.column_block("t2", Shard(3, 5), (10, 8)),
    ]


def stacked_blocks(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """All numbers of `read_blocks`."""
    t = tensors
    parts = (t["t3"][1:9], t["t0"][:3], t["t1"][7:9], t["t1"][:4], t["t2"], t["t2"][:, 3:5])
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("mappable", [True, False])
def test_matrices_to_pack_are_read_in_place_if_possible(
    mappable: bool,
    tensors: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_reader: MakeReader,
) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")
    if not mappable:
        monkeypatch.setattr(byte_ranges, "can_populate", lambda: False)
    monkeypatch.setattr(reading, "_LOADED_BYTES", 48)
    ranges = _WatchedRanges(tmp_path)
    weights = make_reader(ranges)
    weights.prefetch(read_blocks)
    blocks = read_blocks(weights)
    assert torch.equal(torch.cat([block.flatten() for block in blocks]), stacked_blocks(tensors))
    assert weights.bytes_read == weights.owned_bytes == sum(block.nbytes for block in blocks)
    copied = blocks[-1].nbytes  # some columns are not contiguous in the file
    assert ranges.num_bytes == (copied if mappable else weights.bytes_read)


def test_a_mapped_file_that_is_truncated_is_an_error(
    tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    ranges = FolderRanges(tmp_path)
    mapped = ranges.map(path.name, 100, path.stat().st_size - 100)
    assert mapped is not None, "this kernel cannot load mapped pages"
    with path.open("r+b") as file:
        file.truncate(0)
    with pytest.raises(EOFError, match=r"model\.safetensors is truncated"):
        mapped.load(0, len(mapped.view))
    with pytest.raises(EOFError, match=r"model\.safetensors is truncated"):
        ranges.map(path.name, 100, 1 << 20)
    ranges.close()
    assert ranges.map(path.name, 0, 1) is None, "an empty file cannot be mapped"
    assert ranges.map("missing", 0, 1) is None


def test_pages_are_unmapped_with_the_last_tensor(tmp_path: Path) -> None:
    path, size = tmp_path / "model.safetensors", 16 << 20
    path.write_bytes(bytes(size))
    ranges = FolderRanges(tmp_path)

    def mapped_bytes() -> int:
        found = re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    before = mapped_bytes()
    mapped = ranges.map(path.name, 4, size - 4)
    assert mapped is not None, "this kernel cannot load mapped pages"
    mapped.load(0, size - 4)
    tensor = torch.frombuffer(mapped.view, dtype=torch.int32)[5:]
    del mapped
    assert not tensor.any()
    assert mapped_bytes() - before > size * 0.9
    del tensor
    assert mapped_bytes() - before < size * 0.1


def test_pages_are_loaded_in_the_order_of_the_file() -> None:
    loader = PageLoader()
    free, done = threading.Event(), []

    def load(position: int) -> int:
        assert free.wait(200)
        done.append(position)
        return position

    futures = [loader.submit(("a", each), partial(load, each)) for each in (4, 5, 2, 9, 3)]
    free.set()
    assert [future.result() for future in futures] == [4, 5, 2, 9, 3]
    assert done == [4, 5, 9, 2, 3]
    with pytest.raises(ZeroDivisionError):
        loader.submit(("a", 1), lambda: 1 // 0).result()
    loader.close()


@pytest.mark.parametrize("degree", [2, 3])
def test_ranks_that_share_reads_get_their_columns(degree: int, tmp_path: Path) -> None:
    stacked = torch.randn(2, 7, 8).bfloat16()
    save_file({"a": stacked[0], "b": stacked[1]}, tmp_path / "model.safetensors")

    def build(source: WeightSource, columns: Shard) -> torch.Tensor:
        return source.stacked_columns(["a", "b"], columns, (7, 8))

    def rank(comm: ThreadCommunicator) -> int:
        columns = split_evenly(8, degree, comm.rank)
        dtype = torch.float32
        weights = WeightReader(tmp_path, dtype, None, CPU, ranges=FolderRanges(tmp_path), comm=comm)
        weights.prefetch(lambda source: build(source, columns))
        tensor = build(weights, columns)
        assert torch.equal(tensor, stacked[:, :, columns.start : columns.stop])
        assert weights.owned_bytes == tensor.numel() * 2
        weights.close()
        return weights.bytes_read

    assert sum(run_ranks(degree, rank)) == stacked.numel() * 2, "every byte is read once"


def test_memory_of_released_tensors_is_reused(
    tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_reader: MakeReader
) -> None:
    monkeypatch.setattr(reading, "_SMALL_BYTES", 1)
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    weights = make_reader(FolderRanges(tmp_path))
    weights.prefetch(lambda source: read_rows(NAMES, source))
    addresses = []
    for name in NAMES:
        (tensor,) = read_rows([name], weights)
        assert torch.equal(tensor, tensors[name][2:8])
        addresses.append(tensor.data_ptr())
        part = tensor[1:]  # a view keeps the memory alive, like the tensor
        del tensor
    assert len(set(addresses)) < len(addresses)
    assert torch.equal(part, tensors[NAMES[-1]][3:8])


def test_tensors_are_read_on_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Memory)
    staging = reading._Staging()
    tensor = staging.new_tensor(reading.Request((512, 1024), torch.float32, ()))
    assert tensor.shape == (512, 1024)
