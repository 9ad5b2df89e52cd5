"""The kernel level: one file an operation, each with its contract and a torch implementation. Imports torch only."""

from lmi_kernels.attention import Workspace, attention
from lmi_kernels.linear import LinearWeight, batch_invariant_rows, linear, pack
from lmi_kernels.rms_norm import rms_norm
from lmi_kernels.rotary import rotary_
from lmi_kernels.silu_and_mul import silu_and_mul
from lmi_kernels.store_kv import store_kv

__all__ = [
    "LinearWeight",
    "Workspace",
    "attention",
    "batch_invariant_rows",
    "linear",
    "pack",
    "rms_norm",
    "rotary_",
    "silu_and_mul",
    "store_kv",
]
