"""The kernel level: one file an operation, each with its contract and its implementations. Imports torch and triton."""

from lmi_kernels._triton import cdiv, runs_triton
from lmi_kernels.attention import Workspace, attention
from lmi_kernels.choose_tokens import choose_tokens
from lmi_kernels.count_tokens import count_tokens_
from lmi_kernels.decode_attention import decode_attention
from lmi_kernels.decode_plan import DecodePlan, plan_decode
from lmi_kernels.embedding import embedding
from lmi_kernels.experts import ExpertWeights, experts, pack_experts
from lmi_kernels.gelu import gelu
from lmi_kernels.gelu_and_mul import gelu_and_mul
from lmi_kernels.layer_norm import add_layer_norms, layer_norms
from lmi_kernels.likeliest import likeliest
from lmi_kernels.linear import (
    LinearWeight,
    batch_invariant_rows,
    dense_rows_are_bit_equal,
    gated_linear,
    linear,
    pack,
)
from lmi_kernels.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.penalties import penalize
from lmi_kernels.prefill_attention import prefill_attention
from lmi_kernels.rms_norm import add_rms_norm, rms_norm
from lmi_kernels.rope_and_store import rope_and_store
from lmi_kernels.rotary import rotary_
from lmi_kernels.row_logprobs import row_logprobs
from lmi_kernels.silu_and_mul import silu_and_mul
from lmi_kernels.step_inputs import step_inputs
from lmi_kernels.store_kv import store_kv
from lmi_kernels.token_logprobs import token_logprobs
from lmi_kernels.truncate_logits import logit_thresholds
from lmi_kernels.update_block_tables import update_block_tables
from lmi_kernels.varlen_attention import varlen_attention

__all__ = [
    "DecodePlan",
    "ExpertWeights",
    "LinearWeight",
    "PagedSequences",
    "ScoreRules",
    "Workspace",
    "add_layer_norms",
    "add_rms_norm",
    "attention",
    "batch_invariant_rows",
    "cdiv",
    "choose_tokens",
    "count_tokens_",
    "decode_attention",
    "dense_rows_are_bit_equal",
    "embedding",
    "experts",
    "gated_linear",
    "gelu",
    "gelu_and_mul",
    "layer_norms",
    "likeliest",
    "linear",
    "logit_thresholds",
    "pack",
    "pack_experts",
    "penalize",
    "plan_decode",
    "prefill_attention",
    "rms_norm",
    "rope_and_store",
    "rotary_",
    "row_logprobs",
    "runs_triton",
    "silu_and_mul",
    "step_inputs",
    "store_kv",
    "token_logprobs",
    "update_block_tables",
    "varlen_attention",
]
