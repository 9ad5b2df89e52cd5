"""A model's own Python, run once on `Rows` that hold no numbers, written down as a program of native operations.

So a model is described once. The program is then bound to buffers: a sum is added by the linear that computes one of
its parts where that is possible, and a buffer is used again as soon as nobody reads it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lmi_kernels.cpu import structs
from lmi_kernels.cpu.rows import NotRecorded, Rows
from lmi_kernels.cpu.structs import Epilogue, Struct
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight

Outside = Callable[[torch.Tensor], Any]
"""What is done with rows between two native operations, in place."""
_LANES = 16
"""Rows begin at multiples of so many numbers: 64 bytes."""
_NEVER = 1 << 30


@dataclass(eq=False, slots=True)
class _Node:
    """One operation, or (without a struct) something that is done outside."""

    struct: type[Struct] | None
    reads: dict[str, Rows]
    """By the field that takes their address; `<field>_stride` takes their stride."""
    output: Rows
    fields: dict[str, Any] = field(default_factory=dict)
    in_place: str = ""
    """The output takes the place of this operand."""
    scratch: dict[str, tuple[int, torch.dtype]] = field(default_factory=dict)
    """Numbers that an operation needs for itself, by field."""
    keeps: list[object] = field(default_factory=list)
    outside: Outside | None = None


class Recorder:
    """Takes operations down, in the order of their calls."""

    def __init__(self, max_rows: int) -> None:
        """max_rows: of a step that the program is run with."""
        self.max_rows = max_rows
        self._nodes: list[_Node] = []
        self._ending: Outside | None = None

    def ids(self) -> Rows:
        """The step's token ids."""
        return Rows.make(self, 1)

    def gathered(self, source: torch.Tensor, width: int) -> Rows:
        """The rows of another program's result, a buffer of `width` numbers a row, that the step's `places` pick."""
        output = Rows.make(self, width)
        fields = {"x": source.data_ptr(), "x_stride": source.stride(0), "width": width}
        return self._record(structs.Gather, {}, output, fields, keeps=[source])

    def embedding(self, table: NativeWeight, first_id: int) -> Rows:
        output = Rows.make(self, table.in_features)
        fields = {"table": table.handle, "first_id": first_id}
        return self._record(structs.Embed, {}, output, fields, keeps=[table])

    def norm(self, x: Rows, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> Rows:
        """RMSNorm, or with a bias LayerNorm."""
        keeps = [weight.float().contiguous(), None if bias is None else bias.float().contiguous()]
        addresses = [None if each is None else each.data_ptr() for each in keeps]
        fields = {"weight": addresses[0], "bias": addresses[1], "width": x.width, "eps": eps}
        return self._record(structs.Norm, {"x": x}, Rows.make(self, x.width), fields, keeps=[*keeps])

    def add(self, x: Rows, other: Rows) -> Rows:
        reads = {"x": x, "other": other}
        return self._record(structs.Add, reads, Rows.make(self, x.width), {"width": x.width})

    def gelu(self, x: Rows) -> Rows:
        return self._record(structs.Gelu, {"x": x}, Rows.make(self, x.width), {"width": x.width})

    def linear(self, x: Rows, weight: NativeWeight) -> Rows:
        """Of a gated weight silu(gate) * up."""
        width = weight.out_features // 2 if weight.gated else weight.out_features
        epilogue = Epilogue.SILU_AND_MUL if weight.gated else Epilogue.STORE
        fields = {"weight": weight.handle, "epilogue": epilogue}
        scratch = weight.scratch_sizes(self.max_rows)
        output = Rows.make(self, width)
        return self._record(structs.Linear, {"x": x}, output, fields, scratch=scratch, keeps=[weight])

    def experts(
        self, x: Rows, logits: Rows, weights: Sequence[tuple[NativeWeight, NativeWeight]], top_k: int
    ) -> Rows:
        """weights: each expert's gate and up, which are gated, and its down."""
        gate_up, down = ([pair[i] for pair in weights] for i in (0, 1))
        tables = [torch.tensor([each.handle for each in part]) for part in (gate_up, down)]
        choices, hidden = self.max_rows * top_k, x.width
        scratch = {
            "choices": (2 * choices + len(weights) + 1, torch.int32),
            "shares": (choices, torch.float32),
            "inputs": (choices * hidden, torch.float32),
            "middle": (choices * _padded(down[0].in_features), torch.float32),
            "parts": (choices * hidden, torch.float32),
            **max(gate_up[0], down[0], key=lambda each: each.in_features).scratch_sizes(choices),
        }
        fields = {
            "gate_up": tables[0].data_ptr(),
            "down": tables[1].data_ptr(),
            "num_experts": len(weights),
            "top_k": top_k,
        }
        reads, output, keeps = {"x": x, "logits": logits}, Rows.make(self, hidden), [*tables, *weights]
        return self._record(structs.Experts, reads, output, fields, scratch=scratch, keeps=keeps)

    def rope_and_store(
        self,
        qkv: Rows,
        num_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        cos_sin: torch.Tensor | None,
        cache: structs.KvLayer,
    ) -> Rows:
        """cos_sin: [num_positions, rotary_dim], fp32."""
        keeps = [None, None] if norms is None else [norm.float().contiguous() for norm in norms]
        q_norm, k_norm = (None if each is None else each.data_ptr() for each in keeps)
        fields = {
            "q_norm": q_norm,
            "k_norm": k_norm,
            "cos_sin": None if cos_sin is None else cos_sin.data_ptr(),
            "rotary_dim": 0 if cos_sin is None else cos_sin.shape[1],
            "cache": structs.address(cache),
            "num_heads": num_heads,
            "eps": eps,
        }
        output = Rows.make(self, qkv.width)
        return self._record(
            structs.RopeAndStore, {"qkv": qkv}, output, fields, "qkv", keeps=[*keeps, cos_sin, cache]
        )

    def attention(self, qkv: Rows, num_heads: int, scale: float, cache: structs.KvLayer) -> Rows:
        """Of the query heads, which come first in `qkv`."""
        fields = {"cache": structs.address(cache), "num_heads": num_heads, "scale": scale}
        output = Rows.make(self, num_heads * cache.head_dim)
        return self._record(structs.Attention, {"q": qkv}, output, fields, keeps=[cache])

    def outside(self, x: Rows, function: Outside) -> Rows:
        """Have `function` change rows in place, [num_rows, width and padding], between native operations."""
        return self._add(_Node(None, {"x": x}, Rows.make(self, x.width), in_place="x", outside=function))

    def end_with(self, function: Outside) -> None:
        """Have `Recording.run` return what `function` makes of the result."""
        self._ending = function

    def bind(self, result: Rows, team: Team) -> Recording:
        """The program, ready to be run by a team.

        Raises:
            NotRecorded: rows are changed in place that are read again later.
        """
        nodes = _with_sums_in_linears(self._nodes)
        places = _places(nodes, result, self.max_rows)
        parts: list[Program | tuple[Outside, torch.Tensor]] = []
        operations: list[Struct] = []
        keeps: list[object] = []
        shared: dict[str, torch.Tensor] = {}
        for node in nodes:
            for name, (size, dtype) in node.scratch.items():
                if name not in shared or shared[name].numel() < size:
                    shared[name] = torch.empty(size, dtype=dtype)
        for node in nodes:
            if node.outside is not None:
                parts += [Program(operations, keeps), (node.outside, places[id(node.output)])]
                operations, keeps = [], []
                continue
            operations.append(_bound(node, places, shared))
            keeps += [*node.keeps, places[id(node.output)], *(shared[name] for name in node.scratch)]
        parts.append(Program(operations, keeps))
        return Recording(team, parts, places[id(result)][:, : result.width], self._ending)

    def _record(
        self,
        struct: type[Struct],
        reads: dict[str, Rows],
        output: Rows,
        fields: dict[str, Any],
        in_place: str = "",
        scratch: dict[str, tuple[int, torch.dtype]] | None = None,
        keeps: list[object] | None = None,
    ) -> Rows:
        return self._add(_Node(struct, reads, output, fields, in_place, scratch or {}, keeps or []))

    def _add(self, node: _Node) -> Rows:
        self._nodes.append(node)
        return node.output


class Recording:
    """Programs of native operations, and what is done between them."""

    def __init__(
        self,
        team: Team,
        parts: Sequence[Program | tuple[Outside, torch.Tensor]],
        result: torch.Tensor,
        ending: Outside | None,
    ) -> None:
        self._team = team
        self._parts = parts
        self._ending = ending
        self.result = result
        """[max_rows, width]: what a run leaves behind, in its first rows."""

    def run(self, step: structs.Step, on_call: Callable[[], None] | None = None, most_ops: int = 0) -> Any:
        """Compute a step; returns its rows of `result`, or what the recorder's ending made of them.

        most_ops: of one native call, after each of which `on_call` is called; 0: as many as there are.
        """
        for part in self._parts:
            if isinstance(part, Program):
                stride = most_ops or max(1, part.num_ops)
                for first in range(0, part.num_ops, stride):
                    self._team.run(part, step, first, stride)
                    if on_call is not None:
                        on_call()
            else:
                function, rows = part
                function(rows[: step.num_rows])
        rows = self.result[: step.num_rows]
        return rows if self._ending is None else self._ending(rows)


def _with_sums_in_linears(nodes: Sequence[_Node]) -> list[_Node]:
    """Where a linear's product is but one part of a sum whose other part nobody reads meanwhile or afterwards, the
    linear adds to that other part."""
    users = _users(nodes)
    makers = {id(node.output): index for index, node in enumerate(nodes)}
    gone: set[int] = set()
    for index, node in enumerate(nodes):
        if node.struct is not structs.Add:
            continue
        first, second = node.reads["x"], node.reads["other"]
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
                linear.reads["y"], linear.in_place, linear.output = other, "y", node.output
                gone.add(index)
                break
    return [node for index, node in enumerate(nodes) if index not in gone]


def _places(nodes: Sequence[_Node], result: Rows, max_rows: int) -> dict[int, torch.Tensor]:
    """By the identity of a node's output its buffer, [max_rows, width and padding]; several that are never needed
    together share one."""
    users = _users(nodes)
    users[id(result)].append(_NEVER)
    free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
    places: dict[int, torch.Tensor] = {}
    for index, node in enumerate(nodes):
        if node.in_place:
            taken = node.reads[node.in_place]
            if users[id(taken)][-1] > index:
                raise NotRecorded("rows that are changed are read again later")
            places[id(node.output)] = places[id(taken)]
        else:
            stride = _stride(node.output.width, node.output is result)
            kept = free[stride]
            places[id(node.output)] = kept.pop() if kept else torch.empty(max_rows, stride)
        for name, rows in node.reads.items():
            if name != node.in_place and users[id(rows)][-1] == index:
                free[_stride(rows.width, rows is result)].append(places[id(rows)])
    return places


def _stride(width: int, is_result: bool) -> int:
    """Results are tensors for others, too: without padding."""
    return width if is_result else _padded(width)


def _padded(width: int) -> int:
    return -(-width // _LANES) * _LANES


def _users(nodes: Sequence[_Node]) -> defaultdict[int, list[int]]:
    """By the identity of rows: who reads them, in order."""
    users: defaultdict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        for rows in node.reads.values():
            if index not in users[id(rows)][-1:]:
                users[id(rows)].append(index)
    return users


def _bound(node: _Node, places: dict[int, torch.Tensor], shared: dict[str, torch.Tensor]) -> Struct:
    if node.struct is None:
        raise ValueError("what is done outside is no native operation")
    names = {each[0] for each in node.struct._fields_}
    operands = {**node.reads, "y": node.output}
    values = dict(node.fields)
    for name, rows in operands.items():
        if name in names:
            place = places[id(rows)]
            values |= {name: place.data_ptr(), f"{name}_stride": place.stride(0)}
    values |= {name: shared[name].data_ptr() for name in node.scratch}
    return node.struct(**values)
