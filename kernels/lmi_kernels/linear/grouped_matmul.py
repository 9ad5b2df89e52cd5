"""Grouped matmuls of a gated MLP, one launch for all experts: y_c = w_e @ a_c for every choice c of an expert e (see
`route`), accumulated in fp32. The first one is followed by activation(gate) * up (Shazeer 2020, arXiv:2002.05202). The
second one is multiplied by the choice's routing weight.
"""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, next_power_of_2, tl
from lmi_kernels.elementwise.activate import Activation, activated
from lmi_kernels.linear.route import Routing
from lmi_kernels.tuning import Parameters


@jit(do_not_specialize=("num_choices", "num_blocks"))
def _grouped_matmul_kernel(
    a_ptr,
    weight_ptr,
    shares_ptr,
    sorted_ptr,
    ends_ptr,
    out_ptr,
    num_choices,
    num_blocks,
    N: tl.constexpr,
    K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOICES_PER_ROW: tl.constexpr,
    GATE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Multiply one block of choices by BLOCK_N rows of its expert's weight. If GATE is an `Activation`, these are
    gates, and the same number of ups follows.

    Programs compute GROUP_M blocks of choices before the next columns. So programs that share weights or rows run at
    the same time and find them in the L2 cache.
    """
    program = tl.program_id(0)
    a_group: tl.constexpr = GROUP_M * ((N + BLOCK_N - 1) // BLOCK_N)
    first_block = program // a_group * GROUP_M
    group_size = tl.minimum(num_blocks - first_block, GROUP_M)
    block = first_block + program % a_group % group_size
    column = program % a_group // group_size

    experts = tl.arange(0, EXPERTS)
    ends = tl.load(ends_ptr + experts, mask=experts < NUM_EXPERTS, other=num_blocks + 1)
    expert = tl.sum((ends <= block).to(tl.int32))
    if expert == NUM_EXPERTS:
        return  # the grid is for the worst case

    choices = tl.load(sorted_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    real = choices < num_choices
    ks = tl.arange(0, BLOCK_K)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    # Columns beyond the last one read other weights and are not stored, so the loop needs no mask.
    weight_rows = tl.where(columns < N, columns, 0).to(tl.int64)
    a_ptrs = a_ptr + (choices // CHOICES_PER_ROW).to(tl.int64)[:, None] * K + ks[None, :]
    weight_ptr += expert.to(tl.int64) * ((1 if GATE is None else 2) * N * K)
    w_ptrs = weight_ptr + weight_rows[None, :] * K + ks[:, None]
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    ups = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=NUM_STAGES):
        # Padding is not stored, but it is masked because loading it would cost as much as loading real rows.
        if K % BLOCK_K == 0:
            a = tl.load(a_ptrs, mask=real[:, None], other=0.0)
            w = tl.load(w_ptrs)
        else:
            a = tl.load(a_ptrs, mask=real[:, None] & (ks < K - k)[None, :], other=0.0)
            w = tl.load(w_ptrs, mask=(ks < K - k)[:, None], other=0.0)
        sums = tl.dot(a, w, sums, input_precision="ieee")
        if GATE is not None:
            if K % BLOCK_K == 0:
                w_up = tl.load(w_ptrs + N * K)
            else:
                w_up = tl.load(w_ptrs + N * K, mask=(ks < K - k)[:, None], other=0.0)
            ups = tl.dot(a, w_up, ups, input_precision="ieee")
        a_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    if GATE is not None:
        sums = activated(sums, GATE) * ups
    else:
        sums *= tl.load(shares_ptr + choices, mask=real, other=0.0)[:, None]
    out_ptrs = out_ptr + choices.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_ptrs, sums.to(out_ptr.dtype.element_ty), mask=real[:, None] & (columns < N)[None, :])


def gate_up_matmul(
    x: torch.Tensor, weight: torch.Tensor, routing: Routing, tiles: Parameters, gate: Activation
) -> torch.Tensor:
    """Return activation(gate_e @ x) * (up_e @ x) for every choice.

    Args:
        x: [num_rows, hidden].
        weight: [num_experts, 2 * intermediate, hidden], gates in the first half.
        routing: result of `route` for these rows.
        tiles: block_n (number of gates, and of ups), block_k, group_m, num_warps, num_stages.
        gate: activation of the gates.

    Returns: [num_choices, intermediate] in x's dtype.
    """
    out = x.new_empty(routing.num_choices, weight.shape[1] // 2)
    _launch(x, weight, routing, out, tiles, gate)
    return out


def down_matmul(a: torch.Tensor, weight: torch.Tensor, routing: Routing, tiles: Parameters) -> torch.Tensor:
    """Return share_c * down_e @ a for every choice.

    Args:
        a: [num_choices, intermediate].
        weight: [num_experts, hidden, intermediate].
        routing, tiles: see `gate_up_matmul`.

    Returns: [num_choices, hidden] in a's dtype.
    """
    out = a.new_empty(routing.num_choices, weight.shape[1])
    _launch(a, weight, routing, out, tiles, None)
    return out


def _launch(
    a: torch.Tensor,
    weight: torch.Tensor,
    routing: Routing,
    out: torch.Tensor,
    tiles: Parameters,
    gate: Activation | None,
) -> None:
    num_experts, n = weight.shape[0], out.shape[1]
    grid = (routing.num_blocks * cdiv(n, tiles["block_n"]),)
    _grouped_matmul_kernel[grid](
        a,
        weight,
        routing.choice_weights,
        routing.sorted_choices,
        routing.block_ends,
        out,
        routing.num_choices,
        routing.num_blocks,
        N=n,
        K=a.shape[1],
        NUM_EXPERTS=num_experts,
        EXPERTS=next_power_of_2(num_experts),
        CHOICES_PER_ROW=routing.num_choices // a.shape[0],
        GATE=gate,
        BLOCK_M=routing.block_m,
        BLOCK_N=tiles["block_n"],
        # Tiles are tuned for 2-byte dtypes. fp32, which only tests use, gets tiles of half the size.
        BLOCK_K=tiles["block_k"] * 2 // a.element_size(),
        GROUP_M=tiles["group_m"],
        NUM_STAGES=tiles["num_stages"],
        num_warps=tiles["num_warps"],
    )
