"""Decodes as CUDA graphs, one for each of some batch sizes: a step is then one launch, whatever the model.

What a graph reads and writes keeps its place; a batch is padded to the next size that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """int32 on the device."""

    numbers: torch.Tensor
    """[3, batch size]. Rows of the tables, the padding row for padding; positions of the tokens, -1 for padding; token
    ids, -1 for the one chosen last."""
    counting: torch.Tensor
    """[batch size + 1]: 0, 1, ...; never changes."""

    @classmethod
    def of(cls, numbers: torch.Tensor) -> DecodeInputs:
        return cls(numbers, torch.arange(numbers.shape[1] + 1, dtype=torch.int32, device=numbers.device))


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """On the device. A graph's are overwritten when it is replayed."""

    tokens: torch.Tensor
    """[n], int64."""
    finite: torch.Tensor
    """[n], bool: the row's logits were numbers."""
    logits: torch.Tensor | None
    """[n, vocab_size] on rank 0; of all graphs in one place."""
    logprobs: torch.Tensor | None = None
    """[n], fp32, on rank 0: of the tokens, where they are asked for."""


def batch_sizes(largest: int) -> list[int]:
    """Those that are captured, ascending: closer where a sequence more is a larger share of the step."""
    sizes = [*range(1, 3), 4, *range(8, 257, 8), *range(272, largest + 16, 16)]
    below = [size for size in sizes if size < largest]
    return [*below, largest] if largest > 0 else []


def graphs_bytes(sizes: Sequence[int], held: Callable[[int], int]) -> int:
    """Bytes of the device that graphs of these sizes will hold together. The largest one's memory serves all of them;
    beside it each has some of its own, the driver's and NCCL's, and that of the second largest stands for all.

    held: captures the graph of a size beside those there are, and returns how many bytes the device has less.
    """
    largest, *others = sorted(sizes, reverse=True)
    shared = held(largest)
    return shared + len(others) * held(others[0]) if others else shared


Record = Callable[[Callable[[], DecodeOutputs]], tuple[Callable[[], None], DecodeOutputs]]
"""Records the launches that a call makes: returns what launches them again, and what the call returned, which is
written anew each time."""


def graph_recorder(device: torch.device) -> Record | None:
    """None: the device has no graphs."""
    return _CudaRecorder() if device.type == "cuda" else None


class _CudaRecorder:
    """All graphs share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, decode: Callable[[], DecodeOutputs]) -> tuple[Callable[[], None], DecodeOutputs]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = decode()
        return graph.replay, outputs


class DecodeGraphs:
    """Recorded once, before the first request."""

    def __init__(
        self,
        decode: Callable[[DecodeInputs], DecodeOutputs],
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        """decode: launches kernels only, and allocates only with torch. record: None: there are no graphs."""
        self._decode = decode
        self._device = device
        self._record = record
        self._graphs: dict[int, tuple[DecodeInputs, Callable[[], None], DecodeOutputs]] = {}
        """By batch size: what a graph reads, what launches it, and what it writes."""
        self._logits: torch.Tensor | None = None
        """Of the largest batch. Copying costs little, but a place for each graph's logits would be gigabytes."""

    def capture(self, sizes: Sequence[int], padding_row: int) -> None:
        """The largest first: smaller ones then fit into the memory that it took."""
        if self._record is None:
            return
        for size in sorted(sizes, reverse=True):
            numbers = torch.full((3, size), -1, dtype=torch.int32, device=self._device)
            numbers[0] = padding_row
            inputs = DecodeInputs.of(numbers)
            # Compiles what is not compiled yet, and has libraries take their scratch memory: neither may be recorded.
            logits = self._decode(inputs).logits
            if self._logits is None and logits is not None:
                self._logits = torch.empty_like(logits)
            self._graphs[size] = inputs, *self._record(partial(self._decode_in_place, inputs))

    def drop(self) -> None:
        """Free all graphs and what they hold; later batches have none."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self._logits = None

    def _decode_in_place(self, inputs: DecodeInputs) -> DecodeOutputs:
        outputs = self._decode(inputs)
        if self._logits is None or outputs.logits is None:
            return outputs
        logits = self._logits[: len(outputs.logits)]
        logits.copy_(outputs.logits)
        return replace(outputs, logits=logits)

    def bucket(self, num_seqs: int) -> int:
        """The size of the graph for so many sequences; 0: there is none."""
        return min((size for size in self._graphs if size >= num_seqs), default=0)

    def replay(self, size: int, numbers: torch.Tensor) -> DecodeOutputs:
        """numbers: as `DecodeInputs` has them."""
        inputs, launch, outputs = self._graphs[size]
        inputs.numbers.copy_(numbers)
        launch()
        return outputs
