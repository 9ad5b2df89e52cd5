"""Route rows to experts. The routing weights are the softmax over all router logits of a row, or over its `top_k`
largest ones. All choices are sorted by expert, and those of each expert are padded to whole blocks. One launch computes
the routing, without synchronizing with the host.

Choice c = row * top_k + rank is a row's rank-th best expert, here and in `grouped_matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels._triton import jit, next_power_of_2, tl

_FEW_ROWS, _MANY_ROWS = 128, 512
"""Rows that a program loads at a time: all rows of a decode step, or a part of a prompt."""
_MAX_LOGITS = 4096
"""Maximum logits that a program loads at a time. With more registers spill."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Choices sorted by expert. All tensors are on the device."""

    sorted_choices: torch.Tensor
    """[num_blocks * block_m], int32: each expert's choices by row, padded with `num_choices` to whole blocks. Not
    written beyond the last expert's last block."""
    block_ends: torch.Tensor
    """[num_experts], int32: expert e has the blocks [block_ends[e - 1], block_ends[e])."""
    choice_weights: torch.Tensor
    """[num_choices], fp32: routing weight of each choice in its row's sum."""
    block_m: int

    @property
    def num_choices(self) -> int:
        return self.choice_weights.shape[0]

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the worst case. The host knows this without the routing itself."""
        return self.sorted_choices.shape[0] // self.block_m


def max_blocks(num_choices: int, num_experts: int, block_m: int) -> int:
    """Return the number of blocks in the worst case: each expert with a choice wastes up to block_m - 1 places."""
    return (num_choices + min(num_experts, num_choices) * (block_m - 1)) // block_m


@jit
def _choose(
    logits_ptr,
    slots_ptr,
    rows,
    num_rows,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
):
    """Return each expert's rank for each row (TOP_K: not chosen) and its routing weight, both [rows, EXPERTS]."""
    experts = tl.arange(0, EXPERTS)[None, :]
    inside = (rows < num_rows)[:, None]
    offsets = rows.to(tl.int64)[:, None] * NUM_EXPERTS + experts
    logits = tl.load(logits_ptr + offsets, mask=inside & (experts < NUM_EXPERTS), other=0.0).to(tl.float32)
    # Replace NaN and limit the range, so that always TOP_K existing experts are chosen. Others would be out of bounds.
    logits = tl.where(logits == logits, tl.minimum(tl.maximum(logits, -3e38), 3e38), -3e38)
    left = tl.where(experts < NUM_EXPERTS, logits, float("-inf"))
    highest = tl.max(left, axis=1)
    ranks = tl.full(left.shape, TOP_K, tl.int32)
    for rank in tl.static_range(TOP_K):
        is_best = experts == tl.argmax(left, axis=1)[:, None]  # the first one of equal logits
        ranks = tl.where(is_best, rank, ranks)
        left = tl.where(is_best, float("-inf"), left)
    weighed = ranks < TOP_K if RENORMALIZE else experts < NUM_EXPERTS
    exponentials = tl.exp(tl.where(weighed, logits - highest[:, None], float("-inf")))
    shares = exponentials / tl.sum(exponentials, axis=1)[:, None]
    if HAS_SLOTS:
        # Loading slots this late saves registers.
        inside = (tl.load(slots_ptr + rows, mask=rows < num_rows, other=-1) >= 0)[:, None]
    return tl.where(inside, ranks, TOP_K), shares


@jit(do_not_specialize=("num_rows",))
def _route_kernel(
    logits_ptr,
    slots_ptr,
    sorted_ptr,
    ends_ptr,
    shares_ptr,
    num_rows,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Sort the choices of one expert. Each program counts all choices, which is cheaper than waiting for others."""
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)
        ranks, shares = _choose(
            logits_ptr, slots_ptr, rows, num_rows, NUM_EXPERTS, EXPERTS, TOP_K, RENORMALIZE, HAS_SLOTS
        )
        counts += tl.sum((ranks < TOP_K).to(tl.int32), axis=0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    end = tl.sum(tl.where(experts <= expert, blocks, 0))
    first = (end - tl.sum(tl.where(experts == expert, blocks, 0))) * BLOCK_M
    tl.store(ends_ptr + expert, end)

    place = first
    for start in range(0, num_rows, BLOCK_ROWS):
        rows = start + tl.arange(0, BLOCK_ROWS)
        ranks, shares = _choose(
            logits_ptr, slots_ptr, rows, num_rows, NUM_EXPERTS, EXPERTS, TOP_K, RENORMALIZE, HAS_SLOTS
        )
        mine = experts[None, :] == expert
        rank = tl.sum(tl.where(mine, ranks, 0), axis=1)
        share = tl.sum(tl.where(mine, shares, 0.0), axis=1)
        chosen = (rank < TOP_K).to(tl.int32)
        choices = rows * TOP_K + rank
        places = place + tl.cumsum(chosen, axis=0) - chosen
        tl.store(sorted_ptr + places, choices, mask=chosen != 0)
        tl.store(shares_ptr + choices, share, mask=chosen != 0)
        place += tl.sum(chosen)
    padding = place + tl.arange(0, BLOCK_M)
    tl.store(
        sorted_ptr + padding, tl.zeros([BLOCK_M], tl.int32) + num_rows * TOP_K, mask=padding < end * BLOCK_M
    )


def route(
    router_logits: torch.Tensor,
    top_k: int,
    block_m: int,
    slots: torch.Tensor | None = None,
    renormalize: bool = True,
) -> Routing:
    """Choose experts and sort the choices.

    Args:
        router_logits: [num_rows, num_experts]. If logits are equal, the expert with the lower index comes first.
        top_k: experts per row, at most num_experts.
        block_m: rows in a block of the grouped matmuls.
        slots: [num_rows], int64: rows with -1 are padding and are routed to no expert. None: no row is padding.
        renormalize: shares are the softmax over the chosen experts' logits; otherwise over all logits.
    """
    num_rows, num_experts = router_logits.shape
    num_choices = num_rows * top_k
    places = max_blocks(num_choices, num_experts, block_m) * block_m
    padded_experts = next_power_of_2(num_experts)
    block_rows = _FEW_ROWS if num_rows <= _FEW_ROWS else _MANY_ROWS
    sorted_choices = router_logits.new_empty(places, dtype=torch.int32)
    block_ends = router_logits.new_empty(num_experts, dtype=torch.int32)
    shares = router_logits.new_empty(num_choices, dtype=torch.float32)
    _route_kernel[(num_experts,)](
        router_logits,
        slots,
        sorted_choices,
        block_ends,
        shares,
        num_rows,
        NUM_EXPERTS=num_experts,
        EXPERTS=padded_experts,
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        HAS_SLOTS=slots is not None,
        BLOCK_M=block_m,
        BLOCK_ROWS=min(block_rows, max(1, _MAX_LOGITS // padded_experts)),
        num_warps=4 if block_rows == _FEW_ROWS else 8,
    )
    return Routing(sorted_choices, block_ends, shares, block_m)
