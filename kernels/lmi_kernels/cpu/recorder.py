"""Record a model as a list of native operations, by running its Python code once on `Rows` without numbers. So each
model needs only one implementation. `binding.py` makes programs from the list."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lmi_kernels.attention.paged_sequences import ScoreRules
from lmi_kernels.cpu import structs
from lmi_kernels.cpu.logit_bounds import LogitBounds
from lmi_kernels.cpu.structs import Function, Struct, address
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight, padded

_OF_ALL_ROWS = (structs.Gather, structs.RopeAndStore, structs.Attention)
"""Operations that read the step by row number."""


class NotRecorded(Exception):
    """A model needs an operation that has no native implementation."""


class Ranks(Protocol):
    """The ranks that share a model. `engines.parallel.Communicator` is one of them."""

    rank: int
    world_size: int

    def share(self, num_bytes: int) -> list[torch.Tensor]:
        """Return memory of each rank that all ranks read and write, [num_bytes], uint8, at first 0. All ranks call
        this together."""


class Rows(torch.Tensor):
    """Rows of a step, [num_rows, width], without numbers. Operations of `lmi_kernels`, torch's `+`, and `[places]` with
    the recorder's `places` are recorded. All other torch operations raise `NotRecorded`."""

    recorder: Recorder
    at_places: bool
    """Whether these are only the rows at the step's places."""

    @staticmethod
    def make(recorder: Recorder, width: int) -> Rows:
        rows = torch.empty(0, width, device="meta").as_subclass(Rows)
        rows.recorder = recorder
        rows.at_places = False
        return rows

    @property
    def width(self) -> int:
        return int(self.shape[-1])

    def __add__(self, other: Any) -> Rows:
        if not isinstance(other, Rows):
            raise NotRecorded("the sum of rows and something else")
        return self.recorder.add(self, other)

    __radd__ = __add__
    __iadd__ = __add__  # rows never change

    def __getitem__(self, places: Any) -> Rows:
        if places is not self.recorder.places:
            raise NotRecorded("an index other than the step's places")
        return self.recorder.select(self)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.__name__ == "__get__":
            return super().__torch_function__(func, types, args, kwargs)
        raise NotRecorded(f"torch's {func.__name__}")


@dataclass(frozen=True, slots=True)
class Sharing:
    """What ranks share that compute an operation together."""

    ranks: Ranks
    width: int
    """The largest width that the shared rows have on any rank."""
    rows: str = "x"
    """Key of the operand that all ranks read, or `y`, the output."""


@dataclass(eq=False, slots=True)
class Node:
    """A native operation."""

    struct: type[Struct]
    operands: dict[str, Rows]
    """Operands by the struct's address field. The field for the stride is `<field>_stride`."""
    output: Rows
    fields: dict[str, Any]
    in_place: str = ""
    """Key in `operands` of the operand that the output overwrites. Empty if there is none."""
    scratch: dict[str, tuple[int, torch.dtype]] = field(default_factory=dict)
    """Size and dtype of scratch buffers, by the struct's field."""
    keep_alive: list[object] = field(default_factory=list)
    sharing: Sharing | None = None
    """None: each rank computes the operation alone."""


class Recorder:
    """Records operations in the order of their calls."""

    def __init__(self, team: Team, max_rows: int) -> None:
        """team: runs the program; max_rows: maximum rows in a step."""
        self.team = team
        self.max_rows = max_rows
        self.nodes: list[Node] = []
        self.ids = Rows.make(self, 1)
        """The step's token ids."""
        self.positions = Rows.make(self, 1)
        """The positions of the step's tokens in their sequences."""
        self.places = Rows.make(self, 1)
        """Numbers of the rows that the step selects."""

    def select(self, x: Rows) -> Rows:
        """Record selecting the rows at the step's places."""
        return self._record(structs.Gather, {"x": x}, x.width, {"width": x.width})

    def gather(self, source: torch.Tensor, width: int) -> Rows:
        """Record gathering the rows at the step's places from another program's result, [max_rows, width]."""
        fields = {"x": source.data_ptr(), "x_stride": source.stride(0), "width": width}
        return self._record(structs.Gather, {}, width, fields, keep_alive=[source])

    def embedding(self, numbers: Rows, table: NativeWeight, first_id: int) -> Rows:
        """Record the lookup of the step's ids or positions."""
        if numbers is not self.ids and numbers is not self.positions:
            raise NotRecorded("embeddings of rows that are neither token ids nor positions")
        of_positions = numbers is self.positions
        fields = {"table": table.handle, "first_id": first_id, "of_positions": of_positions}
        return self._record(structs.Embed, {}, table.in_features, fields, keep_alive=[table])

    def rms_norm(self, x: Rows, weight: torch.Tensor, eps: float) -> Rows:
        return self._norm(x, weight, None, {"eps": eps})

    def layer_norm(self, x: Rows, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> Rows:
        return self._norm(x, weight, bias, {"eps": eps, "is_layer_norm": True})

    def _norm(self, x: Rows, weight: torch.Tensor, bias: torch.Tensor | None, fields: dict[str, Any]) -> Rows:
        keep_alive = [weight.float().contiguous(), None if bias is None else bias.float().contiguous()]
        fields |= {"weight": address(keep_alive[0]), "bias": address(keep_alive[1]), "width": x.width}
        return self._record(structs.Norm, {"x": x}, x.width, fields, keep_alive=keep_alive)

    def add(self, x: Rows, other: Rows) -> Rows:
        if x.width != other.width:
            raise NotRecorded("the sum of rows of different widths")
        return self._record(structs.Add, {"x": x, "other": other}, x.width, {"width": x.width})

    def elementwise(self, x: Rows, function: Function, parameter: float = 0.0) -> Rows:
        fields = {"width": x.width, "function": function, "parameter": parameter}
        return self._record(structs.Elementwise, {"x": x}, x.width, fields)

    def linear(self, x: Rows, weight: NativeWeight) -> Rows:
        """Record a linear layer. For a gated weight the result is activation(gate) * up.

        Raises:
            ValueError: x has another width than the weight.
        """
        weight.check_width(x)
        fields = {"weight": weight.handle, **weight.epilogue}
        scratch = weight.scratch_sizes(self.max_rows)
        return self._record(
            structs.Linear, {"x": x}, weight.width, fields, scratch=scratch, keep_alive=[weight]
        )

    def experts(
        self,
        x: Rows,
        logits: Rows,
        weights: Sequence[tuple[NativeWeight, NativeWeight]],
        top_k: int,
        renormalize: bool,
    ) -> Rows:
        """Record a mixture of experts. weights: each expert's gated gate_up weight, and its down weight."""
        gate_up, down = ([pair[i] for pair in weights] for i in (0, 1))
        tables = [torch.tensor([each.handle for each in part]) for part in (gate_up, down)]
        choices, hidden = self.max_rows * top_k, x.width
        scratch = {
            "choices": (2 * choices + len(weights) + 1, torch.int32),
            "shares": (choices, torch.float32),
            "inputs": (choices * hidden, torch.float32),
            "middle": (choices * padded(down[0].in_features), torch.float32),
            "parts": (choices * hidden, torch.float32),
        }
        for each in (gate_up[0], down[0]):  # their storages may differ
            for name, (size, dtype) in each.scratch_sizes(choices).items():
                scratch[name] = max(size, scratch.get(name, (0, dtype))[0]), dtype
        fields = {
            "gate_up": tables[0].data_ptr(),
            "down": tables[1].data_ptr(),
            "num_experts": len(weights),
            "top_k": top_k,
            "gate": gate_up[0].gate,
            "renormalize": renormalize,
        }
        operands, keep_alive = {"x": x, "logits": logits}, [*tables, *weights]
        return self._record(structs.Experts, operands, hidden, fields, scratch=scratch, keep_alive=keep_alive)

    def greedy_head(
        self,
        x: Rows,
        weight: NativeWeight,
        bounds: LogitBounds,
        first_column: int,
        softcap: float,
        ranks: Ranks | None,
    ) -> Rows:
        """Record the search for the largest product of each row; see `lmi_kernels.greedy_head`."""
        max_rows, pause = padded(self.max_rows), torch.zeros(1, dtype=torch.int32)
        scratch = bounds.scratch_sizes(max_rows, self.team.num_threads)
        for name, (size, dtype) in weight.scratch_sizes(max_rows).items():
            scratch[name] = max(size, scratch[name][0]), dtype
        fields = {
            "exact": weight.handle,
            "approximate": bounds.weight.handle,
            "column_norms": bounds.column_norms.data_ptr(),
            "first_column": first_column,
            "max_rows": max_rows,
            "softcap": softcap,
            "max_exact_share": bounds.max_exact_share,
            "pause": pause.data_ptr(),
        }
        others = {"scratch": scratch, "keep_alive": [weight, bounds, pause]}
        sharing = None if ranks is None else Sharing(ranks, 2, "y")
        return self._record(structs.GreedyHead, {"x": x}, 2, fields, sharing=sharing, **others)

    def rope_and_store(
        self,
        qkv: Rows,
        num_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        cos_sin: torch.Tensor | None,
        cache: structs.KvLayer,
    ) -> Rows:
        """Record norms, rotary embedding and cache write. cos_sin: [num_positions, rotary_dim], fp32."""
        weights = [None, None] if norms is None else [norm.float().contiguous() for norm in norms]
        fields = {
            "q_norm": address(weights[0]),
            "k_norm": address(weights[1]),
            "cos_sin": address(cos_sin),
            "rotary_dim": 0 if cos_sin is None else cos_sin.shape[1],
            "cache": ctypes.addressof(cache),
            "num_heads": num_heads,
            "eps": eps,
        }
        keep_alive = [*weights, cos_sin, cache]
        return self._record(
            structs.RopeAndStore, {"qkv": qkv}, qkv.width, fields, in_place="qkv", keep_alive=keep_alive
        )

    def attention(self, qkv: Rows, num_heads: int, cache: structs.KvLayer, rules: ScoreRules) -> Rows:
        """Record attention of the query heads, which come first in `qkv`."""
        size = self.team.attention_scratch_bytes(num_heads, cache.num_kv_heads, cache.head_dim)
        fields = {
            "cache": ctypes.addressof(cache),
            "num_heads": num_heads,
            "scratch_bytes": size,
            **structs.score_fields(rules),
        }
        width, scratch = num_heads * cache.head_dim, {"scratch": (size, torch.uint8)}
        return self._record(
            structs.Attention, {"q": qkv}, width, fields, scratch=scratch, keep_alive=[cache, rules]
        )

    def all_reduce(self, x: Rows, ranks: Ranks) -> Rows:
        """Record the sum of all ranks' rows, in the order of ranks."""
        sharing = Sharing(ranks, x.width)
        return self._record(structs.AllReduce, {"x": x}, x.width, {"width": x.width}, sharing=sharing)

    def gather_columns(self, x: Rows, widths: Sequence[int], ranks: Ranks) -> Rows:
        """Record the concatenation of all ranks' rows on rank 0. On other ranks, the width of the result is 0."""
        first_columns = torch.tensor([0, *widths]).cumsum(0)
        fields = {"first_columns": first_columns.data_ptr()}
        width = 0 if ranks.rank else sum(widths)
        others = {"keep_alive": [first_columns], "sharing": Sharing(ranks, max(widths))}
        return self._record(structs.GatherColumns, {"x": x}, width, fields, **others)

    def _record(
        self,
        struct: type[Struct],
        operands: dict[str, Rows],
        width: int,
        fields: dict[str, Any],
        **others: Any,
    ) -> Rows:
        """Record a `Node` with an output of this width, and return the output. others: attributes of the node."""
        selected = {rows.at_places for rows in operands.values()}
        if len(selected) > 1 or (True in selected and struct in _OF_ALL_ROWS):
            raise NotRecorded("an operation that needs all rows, on selected ones")
        output = Rows.make(self, width)
        output.at_places = struct is structs.Gather or True in selected
        self.nodes.append(Node(struct, operands, output, fields, **others))
        return output
