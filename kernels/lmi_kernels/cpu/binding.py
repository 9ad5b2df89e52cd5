"""Bind a recorded list of operations to buffers, and make programs that a team runs.

A linear layer or an all-reduce accumulates into the other operand of a sum if possible. A buffer is reused as soon as
nothing reads it any more.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lmi_kernels.cpu import structs
from lmi_kernels.cpu.recorder import Node, NotRecorded, Ranks, Recorder, Rows, Sharing
from lmi_kernels.cpu.structs import Epilogue
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import padded

_NEVER = 1 << 30
_OVERWRITING = (structs.Norm, structs.Add, structs.Elementwise)
"""Operations that can write their output over an operand."""


def bind(recorder: Recorder, result: Rows) -> Recording:
    """Make a `Recording` from the recorded operations. All ranks that share the model call this together.

    Raises:
        NotRecorded: an operation changes rows in place that are read again later.
    """
    nodes = _fuse_sums(recorder.nodes)
    ranks = next((node.sharing.ranks for node in nodes if node.sharing is not None), None)
    arrivals = [] if ranks is None else ranks.share(structs.ARRIVALS_BYTES)
    buffers = _assign_buffers(nodes, result, recorder.max_rows, ranks)
    scratch: dict[str, torch.Tensor] = {}
    for node in nodes:
        for name, (size, dtype) in node.scratch.items():
            if name not in scratch or scratch[name].numel() < size:
                scratch[name] = torch.empty(size, dtype=dtype)
    keep_alive: list[object] = [recorder.nodes, arrivals, buffers, scratch]
    operations = []
    for node in nodes:
        values = node.fields | _addresses(node, buffers, scratch)
        if node.sharing is not None:
            tables = _pointers(buffers[id(_shared_rows(node, node.sharing))].of_ranks), _pointers(arrivals)
            keep_alive.append(tables)
            values |= {
                f"{node.sharing.rows}_of_ranks": ctypes.addressof(tables[0]),
                "arrivals": ctypes.addressof(tables[1]),
                "rank": node.sharing.ranks.rank,
                "num_ranks": node.sharing.ranks.world_size,
            }
        operations.append(node.struct(**values))
    program = Program(operations, keep_alive, [node.output.at_places for node in nodes])
    results = buffers[id(result)].own[:, : result.width]
    return Recording(recorder.team, program, results, result.at_places)


class Recording:
    """A program of native operations."""

    def __init__(self, team: Team, program: Program, results: torch.Tensor, at_places: bool) -> None:
        """at_places: whether the results are the rows at the step's places, or all rows."""
        self._team = team
        self._program = program
        self._at_places = at_places
        self.buffer = results
        """[max_rows, width]: buffer with the results of the last run in its first rows."""

    def run(self, step: structs.Step) -> torch.Tensor:
        """Compute a step. Return its rows of `buffer`."""
        self._team.run(self._program, step)
        return self.buffer[: step.num_places if self._at_places else step.num_rows]


def _fuse_sums(nodes: Sequence[Node]) -> list[Node]:
    """Fuse sums into linear layers and all-reduces: they accumulate into the other operand, if nothing else reads that
    operand after them."""
    users = _users(nodes)
    makers = {id(node.output): index for index, node in enumerate(nodes)}
    fused: set[int] = set()
    for index, node in enumerate(nodes):
        if node.struct is not structs.Add:
            continue
        first, second = node.operands["x"], node.operands["other"]
        for product, other in ((first, second), (second, first)):
            maker = makers.get(id(product), -1)
            if (
                maker >= 0
                and users[id(product)] == [index]
                and makers.get(id(other), _NEVER) < maker
                and all(user < maker or user == index for user in users[id(other)])
                and _accumulate(nodes[maker], other)
            ):
                nodes[maker].output = node.output
                fused.add(index)
                break
    return [node for index, node in enumerate(nodes) if index not in fused]


def _accumulate(node: Node, other: Rows) -> bool:
    """Let an operation add its results to `other`, in place. Returns False if it cannot."""
    if node.struct is structs.Linear and node.fields["epilogue"] is Epilogue.STORE:
        node.fields["epilogue"] = Epilogue.ACCUMULATE
        node.in_place = "y"
    elif node.struct is structs.AllReduce and not node.in_place:
        node.in_place = "other"
    else:
        return False
    node.operands[node.in_place] = other
    return True


@dataclass(frozen=True, slots=True)
class _Buffer:
    own: torch.Tensor
    """[max_rows, width and padding]"""
    of_ranks: list[torch.Tensor]
    """The same buffer of each rank, if the ranks share it."""


def _new_buffer(max_rows: int, stride: int, ranks: Ranks | None) -> _Buffer:
    if ranks is not None:
        size = max_rows * stride * torch.float32.itemsize
        shared = [memory.view(torch.float32).view(max_rows, stride) for memory in ranks.share(size)]
        shared[ranks.rank].fill_(0.0)
        return _Buffer(shared[ranks.rank], shared)
    # Written once, because memory counts only then: the largest step that is measured does not write all rows.
    return _Buffer(torch.full((max_rows, stride), 0.0), [])


def _assign_buffers(
    nodes: Sequence[Node], result: Rows, max_rows: int, ranks: Ranks | None
) -> dict[int, _Buffer]:
    """Return a buffer for each node's output, by the output's id. Outputs with disjoint lifetimes share a buffer."""
    users = _users(nodes)
    users[id(result)].append(_NEVER)
    shared_widths = _shared_widths(nodes)
    free: defaultdict[tuple[int, bool], list[_Buffer]] = defaultdict(list)
    buffers: dict[int, _Buffer] = {}

    def kind(rows: Rows) -> tuple[int, bool]:
        if (width := shared_widths.get(id(rows))) is not None:
            return padded(width), True
        # Results have no padding, because callers read them as tensors.
        return rows.width if rows is result else padded(rows.width), False

    def release(node: Node, index: int) -> None:
        last = {id(rows): rows for rows in node.operands.values() if users[id(rows)][-1] == index}
        for rows in last.values():
            if rows is not node.operands.get(node.in_place):
                free[kind(rows)].append(buffers[id(rows)])

    for index, node in enumerate(nodes):
        overwrites = node.struct in _OVERWRITING
        if overwrites:
            release(node, index)
        if node.in_place:
            overwritten = node.operands[node.in_place]
            if users[id(overwritten)][-1] > index:
                raise NotRecorded("rows that are read again after they were changed in place")
            buffers[id(node.output)] = buffers[id(overwritten)]
        else:
            stride, is_shared = kind(node.output)
            unused = free[stride, is_shared]
            buffers[id(node.output)] = (
                unused.pop() if unused else _new_buffer(max_rows, stride, ranks if is_shared else None)
            )
        if not overwrites:
            release(node, index)
    return buffers


def _shared_widths(nodes: Sequence[Node]) -> dict[int, int]:
    """Return the largest width on any rank of the rows that other ranks read, by the id of the rows."""
    widths: dict[int, int] = {}
    for node in reversed(nodes):
        if node.sharing is not None:
            rows = id(_shared_rows(node, node.sharing))
            widths[rows] = max(node.sharing.width, widths.get(rows, 0))
        if node.in_place and id(node.output) in widths:
            widths[id(node.operands[node.in_place])] = widths[id(node.output)]
    return widths


def _shared_rows(node: Node, sharing: Sharing) -> Rows:
    return node.operands.get(sharing.rows, node.output)


def _users(nodes: Sequence[Node]) -> defaultdict[int, list[int]]:
    """Return the indices of the nodes that read rows, in order, by the id of the rows."""
    users: defaultdict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for rows in node.operands.values():
            if index not in users[id(rows)][-1:]:
                users[id(rows)].append(index)
    return users


def _addresses(node: Node, buffers: dict[int, _Buffer], scratch: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return addresses and strides of the operation's rows, and addresses of its scratch, by the struct's field."""
    names = {each[0] for each in node.struct._fields_}
    values: dict[str, int] = {}
    for name, rows in {**node.operands, "y": node.output}.items():
        buffer = buffers[id(rows)].own
        found = {name: buffer.data_ptr(), f"{name}_stride": buffer.stride(0)}
        values |= {field: value for field, value in found.items() if field in names}
    return values | {name: scratch[name].data_ptr() for name in node.scratch}


def _pointers(places: Sequence[torch.Tensor]) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(places))(*[place.data_ptr() for place in places])
