"""Tensor operations. Each operation has one file with its contract, its Triton kernel and its CPU implementation."""

from lmi_kernels._triton import cdiv, runs_triton
from lmi_kernels.attention.decode import decode_attention
from lmi_kernels.attention.decode_plan import DecodePlan, plan_decode
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.attention.rope_and_store import rope_and_store
from lmi_kernels.attention.rotary import rotary_
from lmi_kernels.attention.store_kv import store_kv
from lmi_kernels.attention.torch_attention import SequenceRows, attention
from lmi_kernels.attention.varlen import varlen_attention
from lmi_kernels.cpu.logit_bounds import LogitBounds
from lmi_kernels.elementwise.activate import Activation, activate
from lmi_kernels.elementwise.activate_and_mul import activate_and_mul
from lmi_kernels.elementwise.layer_norm import add_layer_norms, layer_norms
from lmi_kernels.elementwise.rms_norm import add_rms_norm, rms_norm
from lmi_kernels.elementwise.scale import scale, softcap
from lmi_kernels.linear.embedding import embedding
from lmi_kernels.linear.experts import ExpertWeights, experts, pack_experts
from lmi_kernels.linear.greedy_head import greedy_head, make_logit_bounds
from lmi_kernels.linear.linear import (
    LinearWeight,
    gated_linear,
    linear,
    pack,
    pack_copies,
)
from lmi_kernels.sampling.choose_tokens import choose_tokens
from lmi_kernels.sampling.count_tokens import MAX_TOKEN_COUNT, count_tokens_
from lmi_kernels.sampling.likeliest import likeliest
from lmi_kernels.sampling.nucleus import nucleus_edge
from lmi_kernels.sampling.penalties import Penalties
from lmi_kernels.sampling.row_logprobs import row_logprobs
from lmi_kernels.sampling.token_logprobs import token_logprobs
from lmi_kernels.sampling.truncate_logits import logit_thresholds
from lmi_kernels.step_inputs import step_inputs
from lmi_kernels.update_block_tables import update_block_tables

__all__ = [
    "MAX_TOKEN_COUNT",
    "Activation",
    "DecodePlan",
    "ExpertWeights",
    "LinearWeight",
    "LogitBounds",
    "PagedSequences",
    "Penalties",
    "ScoreRules",
    "SequenceRows",
    "activate",
    "activate_and_mul",
    "add_layer_norms",
    "add_rms_norm",
    "attention",
    "cdiv",
    "choose_tokens",
    "count_tokens_",
    "decode_attention",
    "embedding",
    "experts",
    "gated_linear",
    "greedy_head",
    "layer_norms",
    "likeliest",
    "linear",
    "logit_thresholds",
    "make_logit_bounds",
    "nucleus_edge",
    "pack",
    "pack_copies",
    "pack_experts",
    "plan_decode",
    "rms_norm",
    "rope_and_store",
    "rotary_",
    "row_logprobs",
    "runs_triton",
    "scale",
    "softcap",
    "step_inputs",
    "store_kv",
    "token_logprobs",
    "update_block_tables",
    "varlen_attention",
]
