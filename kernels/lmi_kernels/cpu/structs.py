"""ctypes definitions of the structs and enums in `native/native.h` and `native/operations.h`. Keep them equal."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

import torch


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


class Struct(ctypes.Structure):
    """Base class of the structs whose sizes the library reports. Fields are initialised by name."""


class KvLayer(Struct):
    _fields_ = (
        ("data", c_void_p),
        ("block_bytes", c_int64),
        ("storage", c_int32),
        ("block_size", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
    )


class Sequence(Struct):
    _fields_ = (
        ("first_row", c_int64),
        ("query_len", c_int32),
        ("kv_len", c_int32),
        ("blocks", c_void_p),
    )


class Step(Struct):
    _fields_ = (
        ("num_rows", c_int64),
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("sequences", c_void_p),
        ("num_sequences", c_int64),
        ("places", c_void_p),
        ("num_places", c_int64),
    )


class Layout(Struct):
    _fields_ = (
        ("num_sequences", c_int64),
        ("num_rows", c_int64),
        ("plan", c_void_p),
        ("tables", c_void_p),
        ("num_tables", c_int64),
        ("table_width", c_int64),
        ("num_blocks", c_int64),
        ("num_positions", c_int64),
        ("block_size", c_int32),
        ("reserved", c_int32),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("sequences", c_void_p),
    )


class Op(Struct):
    _fields_ = (("kind", c_int32), ("at_places", c_int32), ("what", c_void_p))


class Embed(Struct):
    KIND = OpKind.EMBED
    _fields_ = (
        ("table", c_void_p),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("first_id", c_int64),
        ("of_positions", c_int32),
        ("reserved", c_int32),
    )


class Gather(Struct):
    KIND = OpKind.GATHER
    _fields_ = (
        ("x", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
    )


class Norm(Struct):
    KIND = OpKind.NORM
    _fields_ = (
        ("x", c_void_p),
        ("y", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
        ("eps", c_float),
        ("is_layer_norm", c_int32),
    )


class Add(Struct):
    KIND = OpKind.ADD
    _fields_ = (
        ("x", c_void_p),
        ("other", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("other_stride", c_int64),
        ("y_stride", c_int64),
        ("width", c_int64),
    )


class Elementwise(Struct):
    KIND = OpKind.ELEMENTWISE
    _fields_ = (*Gather._fields_, ("function", c_int32), ("parameter", c_float))


class Linear(Struct):
    KIND = OpKind.LINEAR
    _fields_ = (
        ("weight", c_void_p),
        ("x", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("epilogue", c_int32),
        ("gate", c_int32),
        ("integers", c_void_p),
        ("row_scales", c_void_p),
        ("row_norms", c_void_p),
        ("column_norms", c_void_p),
    )


class RopeAndStore(Struct):
    KIND = OpKind.ROPE_AND_STORE
    _fields_ = (
        ("qkv", c_void_p),
        ("qkv_stride", c_int64),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cos_sin", c_void_p),
        ("cache", c_void_p),
        ("num_heads", c_int32),
        ("rotary_dim", c_int32),
        ("eps", c_float),
        ("interleaved", c_int32),
    )


class Attention(Struct):
    KIND = OpKind.ATTENTION
    _fields_ = (
        ("q", c_void_p),
        ("y", c_void_p),
        ("q_stride", c_int64),
        ("y_stride", c_int64),
        ("cache", c_void_p),
        ("num_heads", c_int32),
        ("scale", c_float),
        ("window", c_int32),
        ("softcap", c_float),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
        ("scratch", c_void_p),
        ("scratch_bytes", c_int64),
    )


class Experts(Struct):
    KIND = OpKind.EXPERTS
    _fields_ = (
        ("x", c_void_p),
        ("logits", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("logits_stride", c_int64),
        ("y_stride", c_int64),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("num_experts", c_int32),
        ("top_k", c_int32),
        ("gate", c_int32),
        ("renormalise", c_int32),
        ("choices", c_void_p),
        ("shares", c_void_p),
        ("inputs", c_void_p),
        ("middle", c_void_p),
        ("parts", c_void_p),
        ("integers", c_void_p),
        ("row_scales", c_void_p),
    )


class Truncate(Struct):
    KIND = OpKind.TRUNCATE
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab_size", c_int64),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("thresholds", c_void_p),
        ("last_ids", c_void_p),
        ("scratch", c_void_p),
    )


class Choose(Struct):
    KIND = OpKind.CHOOSE
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab_size", c_int64),
        ("temperature", c_void_p),
        ("thresholds", c_void_p),
        ("last_ids", c_void_p),
        ("seeds", c_void_p),
        ("positions", c_void_p),
        ("tokens", c_void_p),
        ("finite", c_void_p),
    )


class Logprobs(Struct):
    KIND = OpKind.LOGPROBS
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab_size", c_int64),
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("counts", c_void_p),
        ("logprobs", c_void_p),
        ("top_tokens", c_void_p),
        ("top_logprobs", c_void_p),
        ("top_stride", c_int64),
        ("scratch", c_void_p),
    )


class GreedyHead(Struct):
    KIND = OpKind.GREEDY_HEAD
    _fields_ = (
        ("x", c_void_p),
        ("y", c_void_p),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("exact", c_void_p),
        ("screen", c_void_p),
        ("column_norms", c_void_p),
        ("first_column", c_int64),
        ("max_rows", c_int64),
        ("softcap", c_float),
        ("largest_share", c_float),
        ("pause", c_void_p),
        ("integers", c_void_p),
        ("row_scales", c_void_p),
        ("row_norms", c_void_p),
        ("bounds", c_void_p),
        ("products", c_void_p),
    )


SECONDS = c_double * len(OpKind)
"""Array in which `lmi_run` adds up the seconds of each kind of operation."""
