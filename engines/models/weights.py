"""Sources of weights. A layer requests its part of a tensor, and only that part is read.

Rows are output features (column-parallel layers), columns are input features (row-parallel layers), as in Megatron-LM
(Shoeybi et al. 2019, arXiv:1909.08053). Loading needs memory for one weight in addition to the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import lmi_kernels
from engines.models.byte_ranges import ByteRanges
from engines.models.gguf_index import read_index
from engines.models.progress import LoadProgress
from engines.models.reading import Piece, Request, TensorReader
from engines.models.safetensors_files import SafetensorsFiles
from engines.models.tensor_files import BadCheckpoint, TensorFiles
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly

Pack = Callable[..., lmi_kernels.LinearWeight]
"""`lmi_kernels.pack`, optionally with its `storage` argument bound."""


class WeightSource(ABC):
    """One rank's weights. Methods return contiguous tensors with the dtype and device that the model computes with.

    Each method raises `BadCheckpoint` if a tensor is missing or has another shape than the given one.
    """

    def __init__(
        self, storage: torch.dtype, compute: torch.dtype | None, device: torch.device, pack: Pack
    ) -> None:
        """Round weights to `storage`, and return them in `compute`; None: matrices as stored, vectors in fp32.

        pack: prepares a matrix for a linear layer.
        """
        self.pack = pack
        self.owned_bytes = 0
        """Checkpoint bytes of all parameters returned so far."""
        self.bytes_read = 0
        """Bytes read so far, from any source."""
        self._storage = storage
        self._compute = compute
        self.device = device

    def has(self, name: str) -> bool:
        """Return whether a tensor of this name is stored."""
        return False

    @abstractmethod
    def rows(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...], exact: bool = False
    ) -> torch.Tensor:
        """Return rows `shards[i]` of tensor `names[i]`, or of the only one, stacked along the first dimension.

        shape: shape of all these tensors stacked, before sharding; exact: return the stored values in fp32, without
            rounding.
        """

    def row_blocks(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, int]
    ) -> list[torch.Tensor]:
        """Like `rows`, but return matrices to stack, for `pack`, which copies them.

        They may be in the page cache, so they must not be kept.
        """
        return [self.rows(names, shards, shape)]

    def column_block(self, name: str, shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """Like `columns`, but for `pack`; see `row_blocks`."""
        return self.columns(name, shard, shape)

    @abstractmethod
    def stacked_columns(self, names: Sequence[str], shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """Return the same columns of several matrices of `shape`, as [len(names), shape[0], shard.size]."""

    def prefetch(  # noqa: B027  most sources need no preparation
        self, build: Callable[[WeightSource], object], progress: LoadProgress | None = None
    ) -> None:
        """Prepare for exactly the tensors that `build` will request. `build` may be called here with another source.

        progress: reports all reads from now on.
        """

    def close(self) -> None:  # noqa: B027  most sources hold nothing
        """Close files."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a whole tensor. Every rank has its own copy."""
        return self.rows([name], [Shard(0, shape[0])], shape)

    def columns(self, name: str, shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        """Return some columns of a matrix of `shape`, as [shape[0], shard.size]."""
        return self.stacked_columns([name], shard, shape)[0]

    def tied_rows(
        self, embedding: str, head: str, shard: Shard, shape: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows of an embedding and of a head, each of `shape`, that the configuration ties; see `row_blocks`.

        They are the same tensor, unless the checkpoint stores both and the rows differ. This happens after training of
        only the head.
        """
        stored = [name for name in (embedding, head) if self.has(name)] or [embedding]
        tables = [self.row_blocks([name], [shard], shape)[0] for name in stored]
        if tables[0].is_meta or torch.equal(tables[0], tables[-1]):  # meta tensors have no numbers to compare
            return tables[0], tables[0]
        return tables[0], tables[-1]

    def _result_dtype(self, stored: torch.dtype, num_dims: int) -> torch.dtype:
        """Return the dtype of returned weights for the checkpoint's dtype `stored`."""
        if self._compute is not None:
            return self._compute
        if num_dims < 2:
            return torch.float32
        return stored if self._storage is torch.float32 else self._storage


class _Checkpoint(WeightSource):
    """Weights in files. Validates names and shapes, and turns calls into `Request` objects."""

    def __init__(
        self,
        files: TensorFiles,
        storage: torch.dtype,
        compute: torch.dtype | None,
        device: torch.device,
        pack: Pack,
        peers: Communicator | None,
        mapped: bool,
    ) -> None:
        """
        Args:
            peers: ranks that request the same matrices, each with its own columns. They share the reads. None: each
                rank reads its columns itself.
            mapped: matrices for `pack` may be in the page cache.
        """
        super().__init__(storage, compute, device, pack)
        self._files = files
        self._peers = peers
        self._mapped = mapped

    @abstractmethod
    def _read(self, request: Request) -> list[torch.Tensor]:
        """Return the requested tensor in the dtype of the checkpoint, as matrices to stack if it may be mapped."""

    def has(self, name: str) -> bool:
        return name in self._files

    def _exchange(self, rows: torch.Tensor, columns: Shard, shape: tuple[int, ...]) -> torch.Tensor:
        """Exchange rows for columns: each rank has some rows of the matrices and returns its columns, of `shape`."""
        out = torch.empty(shape, dtype=rows.dtype)
        for matrix, target in zip(rows, out, strict=True):
            if self._peers is not None:
                self._peers.exchange_columns(matrix, columns, target)
        return out

    def rows(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...], exact: bool = False
    ) -> torch.Tensor:
        return self._read_rows(self._name_each(names, shards, shape), shards, exact)[0]

    def row_blocks(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, int]
    ) -> list[torch.Tensor]:
        return self._read_rows(self._name_each(names, shards, shape), shards, mapped=self._mapped)

    def column_block(self, name: str, shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        if shard.size < shape[1] or self._peers is not None:
            return self.columns(name, shard, shape)
        return self.row_blocks([name], [Shard(0, shape[0])], shape)[0]

    def _name_each(
        self, names: Sequence[str], shards: Sequence[Shard], shape: tuple[int, ...]
    ) -> Sequence[str]:
        """Check that the tensors, stacked, have `shape`, and return a name for each shard."""
        if len(names) == 1:
            self._check(names[0], shape)
            return [names[0]] * len(shards)
        for name in names:
            self._check(name, (None, *shape[1:]))
        if sum(self._files.shape(name)[0] for name in names) != shape[0]:
            found = " and ".join(f"{name!r} has {self._files.shape(name)[0]}" for name in names)
            raise BadCheckpoint(f"of {shape[0]} rows that config.json asks for, tensor {found}")
        return names

    def stacked_columns(self, names: Sequence[str], shard: Shard, shape: tuple[int, int]) -> torch.Tensor:
        for name in names:
            self._check(name, shape)
        dtype, stacked = self._common_dtype(names), (len(names), shape[0], shard.size)
        if dtype is None:
            return torch.cat([self.stacked_columns([name], shard, shape) for name in names])
        if self._peers is None:
            columns = None if shard.size == shape[1] else shard
            pieces = tuple(Piece(name, Shard(0, shape[0]), columns) for name in names)
            return self._finish(self._read(Request(stacked, dtype, pieces))[0])
        # Whole rows are contiguous in a file, columns are not. So each rank reads some rows for all ranks.
        rows = split_evenly(shape[0], self._peers.world_size, self._peers.rank)
        request = Request(
            (len(names), rows.size, shape[1]), dtype, tuple(Piece(name, rows) for name in names)
        )
        return self._finish(self._exchange(self._read(request)[0], shard, stacked))

    def _read_rows(
        self, names: Sequence[str], shards: Sequence[Shard], exact: bool = False, mapped: bool = False
    ) -> list[torch.Tensor]:
        for name, shard in zip(names, shards, strict=True):
            if shard.stop > self._files.shape(name)[0]:
                raise BadCheckpoint(f"tensor {name!r} has only {self._files.shape(name)[0]} rows")
        dtype = self._common_dtype(names)
        if dtype is None:
            blocks = (
                self._read_rows([name], [shard], exact)[0] for name, shard in zip(names, shards, strict=True)
            )
            return [torch.cat(tuple(blocks))]
        pieces = tuple(Piece(name, shard) for name, shard in zip(names, shards, strict=True))
        shape = (sum(shard.size for shard in shards), *self._files.shape(names[0])[1:])
        request = Request(shape, dtype, pieces, mapped)
        return [self._finish(each, exact) for each in self._read(request)]

    def _common_dtype(self, names: Sequence[str]) -> torch.dtype | None:
        """Return the tensors' dtype; None if they differ. They are then read one by one, and `torch.cat` converts them
        to a dtype that represents them exactly."""
        dtypes = {self._files.dtype(name) for name in names}
        return dtypes.pop() if len(dtypes) == 1 else None

    def _check(self, name: str, shape: tuple[int | None, ...]) -> None:
        found = self._files.shape(name)
        if len(found) != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, found, strict=True)
        ):
            wanted = "x".join("any" if length is None else str(length) for length in shape)
            raise BadCheckpoint(
                f"tensor {name!r} has shape {'x'.join(map(str, found))}, config.json says {wanted}"
            )

    def _finish(self, tensor: torch.Tensor, exact: bool = False) -> torch.Tensor:
        self.owned_bytes += tensor.numel() * tensor.element_size()
        if exact:
            return tensor.to(self.device, torch.float32)
        # Converting to fp32 is exact, so fp32 storage needs no rounding.
        rounded = tensor if self._storage is torch.float32 else tensor.to(self._storage)
        return rounded.to(self.device, self._result_dtype(tensor.dtype, tensor.dim()))


class _RequestRecorder(_Checkpoint):
    """Records requests, and returns meta tensors."""

    def __init__(self, files: TensorFiles, pack: Pack, peers: Communicator | None, mapped: bool) -> None:
        super().__init__(files, torch.float32, None, torch.device("meta"), pack, peers, mapped)
        self.requests: list[Request] = []

    def _read(self, request: Request) -> list[torch.Tensor]:
        self.requests.append(request)
        return [torch.empty(request.shape, dtype=request.dtype, device="meta")]

    def _exchange(self, rows: torch.Tensor, columns: Shard, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=rows.dtype, device="meta")


class WeightReader(_Checkpoint):
    """Weights in a folder of safetensors files, in GGUF files, or in files that `ranges` reads."""

    def __init__(
        self,
        folder: Path,
        storage: torch.dtype,
        compute: torch.dtype | None,
        device: torch.device,
        pack: Pack = lmi_kernels.pack,
        ranges: ByteRanges | None = None,
        comm: Communicator | None = None,
    ) -> None:
        """folder, ranges: see `SafetensorsFiles`; comm: the ranks, if they share the reads of column shards.

        Raises:
            BadCheckpoint: see `SafetensorsFiles` and `GgufFiles`.
        """
        peers = comm if comm is not None and comm.world_size > 1 else None
        mapped = lmi_kernels.pack_copies(device)
        super().__init__(_open(folder, ranges), storage, compute, device, pack, peers, mapped)
        self._reader = TensorReader(self._files)
        self._progress: LoadProgress | None = None

    def prefetch(self, build: Callable[[WeightSource], object], progress: LoadProgress | None = None) -> None:
        """Prefetch the tensors that `build` requests. Raises `BadCheckpoint` before anything is read."""
        recorder = _RequestRecorder(self._files, self.pack, self._peers, self._mapped)
        build(recorder)
        self._files.require_used({piece.name for request in recorder.requests for piece in request.pieces})
        self._progress = progress
        if progress is not None:
            progress.start(sum(request.num_bytes for request in recorder.requests))
        self._reader.prefetch(recorder.requests)

    def close(self) -> None:
        self._reader.close()
        self._files.close()

    def _read(self, request: Request) -> list[torch.Tensor]:
        tensors = self._reader.read(request)
        self.bytes_read = self._reader.bytes_read
        if self._progress is not None:
            self._progress.add(request.num_bytes)
        return tensors


def _open(folder: Path, ranges: ByteRanges | None) -> TensorFiles:
    index = read_index(folder)
    if index is None:
        return SafetensorsFiles(folder, ranges)
    # Imported here because other models do not need the gguf package.
    from engines.models.gguf_files import GgufFiles

    return GgufFiles(index)
