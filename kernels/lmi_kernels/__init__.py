"""The kernel level: one file an operation, each with its contract and its implementations. Imports torch and triton."""

from lmi_kernels.attention import Workspace, attention
from lmi_kernels.experts import ExpertWeights, experts, pack_experts
from lmi_kernels.linear import LinearWeight, batch_invariant_rows, linear, pack
from lmi_kernels.rms_norm import add_rms_norm, rms_norm
from lmi_kernels.rotary import rotary_
from lmi_kernels.silu_and_mul import silu_and_mul
from lmi_kernels.store_kv import store_kv

__all__ = [
    "ExpertWeights",
    "LinearWeight",
    "Workspace",
    "add_rms_norm",
    "attention",
    "batch_invariant_rows",
    "experts",
    "linear",
    "pack",
    "pack_experts",
    "rms_norm",
    "rotary_",
    "silu_and_mul",
    "store_kv",
]
