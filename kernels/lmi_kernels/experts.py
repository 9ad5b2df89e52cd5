"""Mixture of experts (Jiang et al. 2024, arXiv:2401.04088, section 2.1): each row goes through its `top_k` best gated
MLPs, y = sum over them of p_e * down_e @ (silu(gate_e @ x) * (up_e @ x)), p being the softmax over the chosen logits.

On a CPU experts are computed one after another. Elsewhere nothing about the choice is known to the host: rows are
sorted by expert on the device (`route`), and two grouped products walk all experts at once (`grouped_matmul`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from lmi_kernels._triton import uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.cpu.recorder import NotRecorded, Rows
from lmi_kernels.grouped_matmul import down_matmul, down_reference, gate_up_matmul, gate_up_reference
from lmi_kernels.linear import LinearWeight, batch_invariant_rows, gated_linear, linear, pack
from lmi_kernels.route import example_logits, example_slots, route, route_reference
from lmi_kernels.sum_choices import sum_choices
from lmi_kernels.tuning import parameters

_ROWS_PER_EXPERT = (1, 8, 24, 48)
"""Where other tiles begin to be better, by the mean number of rows that an expert has."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A layer's experts made ready for `experts`: either one by one (CPU) or stacked."""

    single: tuple[tuple[LinearWeight, LinearWeight], ...] | None
    """Each expert's gate and up, and its down."""
    stacked: tuple[torch.Tensor, torch.Tensor] | None
    """[num_experts, 2 * intermediate, hidden] and [num_experts, hidden, intermediate]."""


def pack_experts(
    gate_up: torch.Tensor, down: torch.Tensor, pack: Callable[..., LinearWeight] = pack
) -> ExpertWeights:
    """Make a layer's experts ready for `experts`.

    Args:
        gate_up: [num_experts, 2 * intermediate, hidden], gates in the first half; `intermediate` is this rank's share.
        down: [num_experts, hidden, intermediate].
        pack: makes each of them ready for `linear` and `gated_linear` on a CPU.

    Raises:
        ValueError: the shapes do not belong together.
    """
    num_experts, twice, hidden = gate_up.shape
    if twice % 2 or down.shape != (num_experts, hidden, twice // 2):
        raise ValueError(
            f"experts of shapes {tuple(gate_up.shape)} and {tuple(down.shape)}: expected "
            "[num_experts, 2 * intermediate, hidden] and [num_experts, hidden, intermediate]"
        )
    if uses_triton(gate_up):
        return ExpertWeights(None, (gate_up.contiguous(), down.contiguous()))
    return ExpertWeights(
        tuple((pack(g, gated=True), pack(d)) for g, d in zip(gate_up, down, strict=True)), None
    )


def experts(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    weights: ExpertWeights,
    top_k: int,
    slots: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row's weighted sum over the experts that it chooses.

    Args:
        x: [num_rows, hidden].
        router_logits: [num_rows, num_experts]; of equal ones the expert of the lower index comes first.
        weights: this rank's share of every expert.
        top_k: experts a row, at most num_experts.
        slots: [num_rows], int64: rows with -1 are padding, for which no expert's weights are read, and 0 comes out. On
            a CPU there are no such rows, and nobody looks. None: all rows are real.

    Returns: [num_rows, hidden] in x's dtype; this rank's part, to be summed over ranks. On a CPU a row's bits do not
    depend on the other rows.
    """
    if isinstance(x, Rows):
        return _recorded(x, router_logits, weights, top_k)
    if weights.single is not None:
        return _experts_torch(x, router_logits, weights.single, top_k)
    if weights.stacked is None:
        raise ValueError("ExpertWeights hold experts either one by one or stacked")
    return experts_triton(x, router_logits, *weights.stacked, top_k, slots)[0]


def _recorded(x: Rows, router_logits: torch.Tensor, weights: ExpertWeights, top_k: int) -> torch.Tensor:
    pairs = [(g.native, d.native) for g, d in weights.single or ()]
    natives = [(g, d) for g, d in pairs if g is not None and d is not None]
    if not isinstance(router_logits, Rows) or not natives or len(natives) < len(pairs):
        raise NotRecorded("experts whose weights are not native")
    return x.recorder.experts(x, router_logits, natives, top_k)


def _experts_torch(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    singles: tuple[tuple[LinearWeight, LinearWeight], ...],
    top_k: int,
) -> torch.Tensor:
    """The order of operations is that of transformers' MixtralSparseMoeBlock, choices being summed best first."""
    logits = router_logits.float()
    # Stable: torch.topk does not say which of equal ones it takes.
    chosen = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    shares = torch.softmax(logits, dim=-1).gather(1, chosen)
    shares /= shares.sum(dim=-1, keepdim=True)
    by_expert = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=len(singles)).tolist()
    parts = x.new_empty(len(x) * top_k, x.shape[1])
    for (gate_up, down), choices in zip(singles, by_expert.split(counts), strict=True):
        if len(choices):
            parts[choices] = _mlp(x, choices // top_k, gate_up, down)
    parts = parts.mul_(shares.view(-1, 1)).view(len(x), top_k, x.shape[1])
    total = parts[:, 0].clone()
    for rank in range(1, top_k):
        total += parts[:, rank]
    return total


def _mlp(x: torch.Tensor, rows: torch.Tensor, gate_up: LinearWeight, down: LinearWeight) -> torch.Tensor:
    """One expert's results for these rows of x. Rows are bit-equal in any company where `linear`'s are."""
    dense = gate_up.packed is None or down.packed is None
    padding = batch_invariant_rows(len(rows), dense) - len(rows)
    padded = torch.cat((rows, rows[:1].expand(padding)))
    return linear(gated_linear(x[padded], gate_up), down)[: len(rows)]


def experts_triton(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    top_k: int,
    slots: torch.Tensor | None = None,
) -> Results:
    """As `experts`, the weights being those of `pack_experts`; returns one tensor."""
    num_rows, num_experts = router_logits.shape
    if num_rows == 0:
        return (torch.empty_like(x),)
    # By numbers that the host knows, and a CUDA graph keeps; how rows spread over experts it does not know.
    mean = num_rows * top_k / num_experts
    key = next((str(most) for most in _ROWS_PER_EXPERT if mean <= most), "more")
    routing = route(router_logits, top_k, parameters("experts", key, x.device)["block_m"], slots)
    middle = gate_up_matmul(x, gate_up, routing, parameters("experts_gate_up", key, x.device))
    parts = down_matmul(middle, down, routing, parameters("experts_down", key, x.device))
    return (parts if top_k == 1 and slots is None else sum_choices(parts, top_k, slots),)


def experts_reference(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    top_k: int,
    slots: torch.Tensor | None = None,
) -> Results:
    """fp64, expert by expert."""
    routing = route_reference(router_logits, top_k, block_m=1, slots=slots)
    parts = down_reference(gate_up_reference(x, gate_up, routing), down, routing)
    return (parts.view(len(x), top_k, -1).sum(dim=1),)


def _inputs(generator: torch.Generator, shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> Inputs:
    rows, num_experts, top_k, hidden, intermediate = shape
    gate_up = torch.randn(num_experts, 2 * intermediate, hidden, generator=generator) / hidden**0.5
    down = torch.randn(num_experts, hidden, intermediate, generator=generator) / intermediate**0.5
    return {
        "x": torch.randn(rows, hidden, generator=generator).to(dtype),
        "router_logits": example_logits(generator, rows, num_experts, dtype),
        "gate_up": gate_up.to(dtype),
        "down": down.to(dtype),
        "top_k": top_k,
    }


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Each of the tiles once."""
    for rows, num_experts, top_k in ((1, 3, 1), (2, 8, 2), (17, 7, 3), (40, 5, 2), (60, 3, 2), (80, 3, 2)):
        yield _inputs(generator, (rows, num_experts, top_k, 36, 50), dtype)
    for rows, num_real, top_k in ((8, 3, 2), (24, 17, 1)):
        yield _inputs(generator, (rows, 8, top_k, 36, 50), dtype) | {"slots": example_slots(rows, num_real)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """Mixtral 8x7B: decodes and prompts. In fp16 only some: the tiles are those of bf16."""
    hidden, intermediate = 4096, 14336
    gate_up = torch.empty(8, 2 * intermediate, hidden, dtype=dtype, device="meta")
    down = torch.empty(8, hidden, intermediate, dtype=dtype, device="meta")
    for rows in (1, 32, 64, 128, 192, 256, 2048) if dtype == torch.bfloat16 else (32, 2048):
        x = torch.empty(rows, hidden, dtype=dtype, device="meta")
        logits = torch.empty(rows, 8, dtype=dtype, device="meta")
        slots = torch.empty(rows, dtype=torch.int64, device="meta")
        yield {"x": x, "router_logits": logits, "gate_up": gate_up, "down": down, "top_k": 2, "slots": slots}


CHECKS = (OpCheck("experts", experts_triton, experts_reference, _examples, _production, ROUNDING),)
