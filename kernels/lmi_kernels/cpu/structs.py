"""ctypes definitions of the structs and enums in `native/native.h` and `native/operations.h`. Keep them equal."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import partial
from typing import Any

import torch

from lmi_kernels.attention.paged_sequences import ScoreRules


class Storage(IntEnum):
    """Storage format of a native weight or the KV cache."""

    BF16 = 0
    FP16 = 1
    FP32 = 2
    INT8 = 3
    BF16_PAIRS = 4


STORAGES = {torch.bfloat16: Storage.BF16, torch.float16: Storage.FP16, torch.float32: Storage.FP32}


class OpKind(IntEnum):
    EMBED = 0
    GATHER = 1
    NORM = 2
    ADD = 3
    ELEMENTWISE = 4
    LINEAR = 5
    ROPE_AND_STORE = 6
    ATTENTION = 7
    EXPERTS = 8
    TRUNCATE = 9
    CHOOSE = 10
    LOGPROBS = 11
    GREEDY_HEAD = 12
    ALL_REDUCE = 13
    GATHER_COLUMNS = 14


class Epilogue(IntEnum):
    STORE = 0
    ACCUMULATE = 1
    ACTIVATE_AND_MUL = 2
    BOUNDS = 3


class Function(IntEnum):
    """Elementwise function. Activations have the names of `lmi_kernels.Activation` in capitals."""

    GELU = 0
    GELU_TANH = 1
    RELU = 2
    SILU = 3
    QUICK_GELU = 4
    RELU2 = 5
    SCALE = 6
    SOFTCAP = 7


def address(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor's numbers; None, a null pointer, if there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


class Struct(ctypes.Structure):
    """Base class of the structs whose sizes the library reports. Fields are initialized by name."""


def _fields(kind: type[Any], *names: str) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names]


_pointers, _int64s, _int32s, _floats = (
    partial(_fields, kind) for kind in (c_void_p, c_int64, c_int32, c_float)
)


class KvLayer(Struct):
    _fields_ = (
        *_pointers("data"),
        *_int64s("block_bytes"),
        *_int32s("storage", "block_size", "num_kv_heads", "head_dim"),
    )


class Sequence(Struct):
    _fields_ = (*_int64s("first_row"), *_int32s("query_len", "kv_len"), *_pointers("blocks"))


class Step(Struct):
    _fields_ = (
        *_int64s("num_rows"),
        *_pointers("ids", "positions", "slots", "sequences"),
        *_int64s("num_sequences"),
        *_pointers("places"),
        *_int64s("num_places"),
    )


class Layout(Struct):
    _fields_ = (
        *_int64s("num_sequences", "num_rows"),
        *_pointers("plan", "tables"),
        *_int64s("num_tables", "table_width", "num_blocks", "num_positions"),
        *_int32s("block_size", "reserved"),
        *_pointers("positions", "slots", "sequences"),
    )


class Op(Struct):
    _fields_ = (*_int32s("kind", "at_places"), *_pointers("what"))


class Embed(Struct):
    KIND = OpKind.EMBED
    _fields_ = (
        *_pointers("table", "y"),
        *_int64s("y_stride", "first_id"),
        *_int32s("of_positions", "reserved"),
    )


class Gather(Struct):
    KIND = OpKind.GATHER
    _fields_ = (*_pointers("x", "y"), *_int64s("x_stride", "y_stride", "width"))


class Norm(Struct):
    KIND = OpKind.NORM
    _fields_ = (
        *_pointers("x", "y", "weight", "bias"),
        *_int64s("x_stride", "y_stride", "width"),
        *_floats("eps"),
        *_int32s("is_layer_norm"),
    )


class Add(Struct):
    KIND = OpKind.ADD
    _fields_ = (
        *_pointers("x", "other", "y"),
        *_int64s("x_stride", "other_stride", "y_stride", "width"),
    )


class Elementwise(Struct):
    KIND = OpKind.ELEMENTWISE
    _fields_ = (*Gather._fields_, *_int32s("function"), *_floats("parameter"))


class Linear(Struct):
    KIND = OpKind.LINEAR
    _fields_ = (
        *_pointers("weight", "x", "y"),
        *_int64s("x_stride", "y_stride"),
        *_int32s("epilogue", "gate"),
        *_pointers("integers", "row_scales", "row_norms", "column_norms"),
    )


class RopeAndStore(Struct):
    KIND = OpKind.ROPE_AND_STORE
    _fields_ = (
        *_pointers("qkv"),
        *_int64s("qkv_stride"),
        *_pointers("q_norm", "k_norm", "cos_sin", "cache"),
        *_int32s("num_heads", "rotary_dim"),
        *_floats("eps"),
        *_int32s("interleaved"),
    )


class Attention(Struct):
    KIND = OpKind.ATTENTION
    _fields_ = (
        *_pointers("q", "y"),
        *_int64s("q_stride", "y_stride"),
        *_pointers("cache"),
        *_int32s("num_heads"),
        *_floats("scale"),
        *_int32s("window"),
        *_floats("softcap"),
        *_pointers("slopes", "sinks", "scratch"),
        *_int64s("scratch_bytes"),
    )


def score_fields(rules: ScoreRules) -> dict[str, Any]:
    """Return the fields of `Attention` for the rules, whose tensors must live as long as the struct."""
    return {
        "scale": rules.scale,
        "window": rules.window or 0,
        "softcap": rules.softcap or 0.0,
        "slopes": address(rules.alibi_slopes),
        "sinks": address(rules.sinks),
    }


class Experts(Struct):
    KIND = OpKind.EXPERTS
    _fields_ = (
        *_pointers("x", "logits", "y"),
        *_int64s("x_stride", "logits_stride", "y_stride"),
        *_pointers("gate_up", "down"),
        *_int32s("num_experts", "top_k", "gate", "renormalize"),
        *_pointers("choices", "shares", "inputs", "middle", "parts", "integers", "row_scales"),
    )


class Truncate(Struct):
    KIND = OpKind.TRUNCATE
    _fields_ = (
        *_pointers("logits"),
        *_int64s("stride", "vocab_size"),
        *_pointers("temperature", "top_k", "top_p", "min_p", "thresholds", "last_ids", "scratch"),
    )


class Choose(Struct):
    KIND = OpKind.CHOOSE
    _fields_ = (
        *_pointers("logits"),
        *_int64s("stride", "vocab_size"),
        *_pointers("temperature", "thresholds", "last_ids", "seeds", "positions", "tokens", "finite"),
    )


class Logprobs(Struct):
    KIND = OpKind.LOGPROBS
    _fields_ = (
        *_pointers("logits"),
        *_int64s("stride", "vocab_size"),
        *_pointers("rows", "tokens", "counts", "logprobs", "top_tokens", "top_logprobs"),
        *_int64s("top_stride"),
        *_pointers("scratch"),
    )


class GreedyHead(Struct):
    KIND = OpKind.GREEDY_HEAD
    _fields_ = (
        *_pointers("x", "y"),
        *_int64s("x_stride", "y_stride"),
        *_pointers("exact", "approximate", "column_norms"),
        *_int64s("first_column", "max_rows"),
        *_floats("softcap", "max_exact_share"),
        *_pointers("pause", "integers", "row_scales", "row_norms", "bounds", "products"),
        *_pointers("y_of_ranks", "arrivals"),
        *_int32s("rank", "num_ranks"),
    )


class AllReduce(Struct):
    KIND = OpKind.ALL_REDUCE
    _fields_ = (
        *_pointers("x_of_ranks", "other", "y"),
        *_int64s("x_stride", "other_stride", "y_stride", "width"),
        *_pointers("arrivals"),
        *_int32s("rank", "num_ranks"),
    )


class GatherColumns(Struct):
    KIND = OpKind.GATHER_COLUMNS
    _fields_ = (
        *_pointers("x_of_ranks", "first_columns", "y"),
        *_int64s("x_stride", "y_stride"),
        *_pointers("arrivals"),
        *_int32s("rank", "num_ranks"),
    )


ARRIVALS_BYTES = 64
"""Size of `Arrivals`."""
SECONDS = c_double * len(OpKind)
"""Array in which `lmi_run` adds up the seconds of each kind of operation."""
