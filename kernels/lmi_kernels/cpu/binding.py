"""Bind a recorded list of operations to buffers, and make programs that a team runs.

A linear layer accumulates into the other operand of a sum if possible. A buffer is reused as soon as nothing reads it
any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lmi_kernels.cpu import structs
from lmi_kernels.cpu.recorder import Node, NotRecorded, PythonFunction, Recorder, Rows
from lmi_kernels.cpu.structs import Epilogue, Struct
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import padded

_NEVER = 1 << 30
_OVERWRITING = (structs.Norm, structs.Add, structs.Elementwise)
"""Operations that can write their output over an operand."""


def bind(recorder: Recorder, result: Rows) -> Recording:
    """Make a `Recording` from the recorded operations.

    Raises:
        NotRecorded: an operation changes rows in place that are read again later.
    """
    nodes = _fuse_sums(recorder.nodes)
    buffers = _assign_buffers(nodes, result, recorder.max_rows)
    parts: list[Program | tuple[PythonFunction, BoundRows]] = []
    operations: list[Struct] = []
    at_places: list[bool] = []
    keep_alive: list[object] = []
    shared: dict[str, torch.Tensor] = {}
    for node in nodes:
        for name, (size, dtype) in node.scratch.items():
            if name not in shared or shared[name].numel() < size:
                shared[name] = torch.empty(size, dtype=dtype)
    for node in nodes:
        if node.python_function is not None:
            rows = BoundRows(buffers[id(node.output)], node.output.at_places)
            parts += [Program(operations, keep_alive, at_places), (node.python_function, rows)]
            operations, keep_alive, at_places = [], [], []
            continue
        operations.append(_bind_node(node, buffers, shared))
        at_places.append(node.output.at_places)
        keep_alive += [*node.keep_alive, buffers[id(node.output)], *(shared[name] for name in node.scratch)]
    parts.append(Program(operations, keep_alive, at_places))
    results = BoundRows(buffers[id(result)][:, : result.width], result.at_places)
    return Recording(recorder.team, parts, results, recorder.ending)


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Rows in a buffer."""

    buffer: torch.Tensor
    """[max_rows, width]"""
    at_places: bool
    """Whether these are the rows at the step's places, or all rows."""

    def of(self, step: structs.Step) -> torch.Tensor:
        return self.buffer[: step.num_places if self.at_places else step.num_rows]


class Recording:
    """Programs of native operations, and the Python functions between them."""

    def __init__(
        self,
        team: Team,
        parts: Sequence[Program | tuple[PythonFunction, BoundRows]],
        results: BoundRows,
        ending: PythonFunction | None,
    ) -> None:
        self._team = team
        self._parts = parts
        self._ending = ending
        self._results = results
        self.buffer = results.buffer
        """[max_rows, width]: buffer with the results of the last run in its first rows."""

    def run(self, step: structs.Step) -> Any:
        """Compute a step. Return its rows of `buffer`, or what the recorder's `ending` returns for them."""
        for part in self._parts:
            if isinstance(part, Program):
                self._team.run(part, step)
            else:
                function, rows = part
                function(rows.of(step))
        found = self._results.of(step)
        return found if self._ending is None else self._ending(found)


def _fuse_sums(nodes: Sequence[Node]) -> list[Node]:
    """Fuse sums into linear layers: the layer accumulates into the other operand, if nothing else reads that operand
    between the layer and the sum, or later."""
    users = _users(nodes)
    makers = {id(node.output): index for index, node in enumerate(nodes)}
    fused: set[int] = set()
    for index, node in enumerate(nodes):
        if node.struct is not structs.Add:
            continue
        first, second = node.operands["x"], node.operands["other"]
        for product, other in ((first, second), (second, first)):
            maker = makers.get(id(product), -1)
            linear = nodes[maker]
            if (
                maker >= 0
                and linear.struct is structs.Linear
                and linear.fields["epilogue"] is Epilogue.STORE
                and users[id(product)] == [index]
                and makers.get(id(other), _NEVER) < maker
                and all(user < maker or user == index for user in users[id(other)])
            ):
                linear.fields["epilogue"] = Epilogue.ACCUMULATE
                linear.operands["y"], linear.in_place, linear.output = other, "y", node.output
                fused.add(index)
                break
    return [node for index, node in enumerate(nodes) if index not in fused]


def _assign_buffers(nodes: Sequence[Node], result: Rows, max_rows: int) -> dict[int, torch.Tensor]:
    """Return a buffer, [max_rows, width and padding], for each node's output, by the output's id. Outputs with disjoint
    lifetimes share a buffer."""
    users = _users(nodes)
    users[id(result)].append(_NEVER)
    free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
    buffers: dict[int, torch.Tensor] = {}

    def release(node: Node, index: int) -> None:
        last = {id(rows): rows for rows in node.operands.values() if users[id(rows)][-1] == index}
        for rows in last.values():
            if rows is not node.operands.get(node.in_place):
                free[_stride(rows.width, rows is result)].append(buffers[id(rows)])

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
            stride = _stride(node.output.width, node.output is result)
            unused = free[stride]
            # Written once, because memory counts only then: the largest step that is measured does not write all rows.
            buffers[id(node.output)] = unused.pop() if unused else torch.full((max_rows, stride), 0.0)
        if not overwrites:
            release(node, index)
    return buffers


def _stride(width: int, is_result: bool) -> int:
    """Return the stride of rows. Results have no padding, because callers read them as tensors."""
    return width if is_result else padded(width)


def _users(nodes: Sequence[Node]) -> defaultdict[int, list[int]]:
    """Return the indices of the nodes that read rows, in order, by the id of the rows."""
    users: defaultdict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for rows in node.operands.values():
            if index not in users[id(rows)][-1:]:
                users[id(rows)].append(index)
    return users


def _bind_node(node: Node, buffers: dict[int, torch.Tensor], shared: dict[str, torch.Tensor]) -> Struct:
    if node.struct is None:
        raise ValueError("a call of a Python function is not a native operation")
    names = {each[0] for each in node.struct._fields_}
    rows_by_field = {**node.operands, "y": node.output}
    values = dict(node.fields)
    for name, rows in rows_by_field.items():
        if name in names:
            buffer = buffers[id(rows)]
            values |= {name: buffer.data_ptr(), f"{name}_stride": buffer.stride(0)}
    values |= {name: shared[name].data_ptr() for name in node.scratch}
    return node.struct(**values)
