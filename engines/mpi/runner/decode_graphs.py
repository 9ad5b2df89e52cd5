"""Decodes as CUDA graphs, one for each captured batch size: a step is then one launch, whatever the model.

The inputs and outputs of a graph have fixed addresses. A batch is padded to the next captured size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from engines.mpi.runner.memory import MAX_OUTSIDE

_MAX_OUTSIDE_PER_GRAPH = 32 * 1024**2
"""Maximum bytes that a later CUDA graph may take outside of torch's allocator. It is enough for about 2000 kernels: a
graph of 600 takes about 10 MB."""


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of a graph, int32 on the device."""

    numbers: torch.Tensor
    """[3, batch size]. Row of the tables, or the padding row; position of the token, -1 for padding; token id, -1
    for the token sampled last."""
    counting: torch.Tensor
    """[batch size + 1]: 0, 1, ...; never changes."""

    @classmethod
    def of(cls, numbers: torch.Tensor) -> DecodeInputs:
        return cls(numbers, torch.arange(numbers.shape[1] + 1, dtype=torch.int32, device=numbers.device))


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """Outputs of decodes, on the device. Replaying a graph overwrites its outputs."""

    tokens: torch.Tensor
    """[n], int64."""
    finite: torch.Tensor
    """[n], bool: whether the row's logits are finite."""
    logits: torch.Tensor | None
    """[n, vocab_size] on rank 0; all graphs share one buffer."""
    logprobs: torch.Tensor | None = None
    """[n], fp32, on rank 0: log-probabilities of the tokens, where requested."""


def batch_sizes(largest: int) -> list[int]:
    """Return the batch sizes to capture, ascending. Small sizes are closer together: there, one more sequence is a
    larger share of the step."""
    sizes = [*range(1, 3), 4, *range(8, 257, 8), *range(272, largest + 16, 16)]
    below = [size for size in sizes if size < largest]
    return [*below, largest] if largest > 0 else []


def graphs_bytes(sizes: Sequence[int], measure: Callable[[int, int], int]) -> int:
    """Return the device memory in bytes that graphs of these sizes will hold together. All graphs share the memory of
    the largest. Each also has some of its own, from the driver and NCCL; the second largest is measured and stands for
    all.

    measure: captures the graph of a size in addition to the existing ones, and returns the bytes that the device lost:
        in torch's allocator, and up to a maximum, its second argument, outside of it.
    """
    largest, *others = sorted(sizes, reverse=True)
    shared = measure(largest, MAX_OUTSIDE)
    # What another process takes meanwhile would count once for each graph, so the maximum is small.
    return shared + len(others) * measure(others[0], _MAX_OUTSIDE_PER_GRAPH) if others else shared


Record = Callable[[Callable[[], DecodeOutputs]], tuple[Callable[[], None], DecodeOutputs]]
"""Recorder of the launches that a call makes. Returns a function that launches them again, and the outputs of the
call, which each launch overwrites."""


def graph_recorder(device: torch.device) -> Record | None:
    """Return a recorder of CUDA graphs that share one memory pool; None if the device has no graphs."""
    if device.type != "cuda":
        return None
    pool = torch.cuda.graph_pool_handle()

    def record(decode: Callable[[], DecodeOutputs]) -> tuple[Callable[[], None], DecodeOutputs]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = decode()
        return graph.replay, outputs

    return record


class DecodeGraphs:
    """Graphs of decodes, recorded once before the first request."""

    def __init__(
        self,
        decode: Callable[[DecodeInputs], DecodeOutputs],
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        """decode: may only launch kernels, and allocate only with torch. record: None if there are no graphs."""
        self._decode = decode
        self._device = device
        self._record = record
        self._graphs: dict[int, tuple[DecodeInputs, Callable[[], None], DecodeOutputs]] = {}
        """Input, launch function and output of each graph, by batch size."""
        self._logits: torch.Tensor | None = None
        """Logits of the largest batch, shared by all graphs. Copying costs little, but separate logits for each
        graph would take gigabytes."""

    def capture(self, sizes: Sequence[int], padding_row: int) -> None:
        """Capture graphs, the largest first, so that smaller ones fit into its memory."""
        if self._record is None:
            return
        for size in sorted(sizes, reverse=True):
            numbers = torch.full((3, size), -1, dtype=torch.int32, device=self._device)
            numbers[0] = padding_row
            inputs = DecodeInputs.of(numbers)
            # Compile kernels and let libraries allocate scratch memory first: neither may be recorded.
            logits = self._decode(inputs).logits
            if self._logits is None and logits is not None:
                self._logits = torch.empty_like(logits)
            self._graphs[size] = inputs, *self._record(partial(self._decode_in_place, inputs))

    def drop(self) -> None:
        """Free all graphs and their memory. Later batches run without graphs."""
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
        """Return the size of the graph for this number of sequences; 0 if there is none."""
        return min((size for size in self._graphs if size >= num_seqs), default=0)

    def replay(self, size: int, numbers: torch.Tensor) -> DecodeOutputs:
        """Replay a graph. numbers: as in `DecodeInputs`."""
        inputs, launch, outputs = self._graphs[size]
        inputs.numbers.copy_(numbers)
        launch()
        return outputs
