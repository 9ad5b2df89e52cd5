"""The sampling operations, natively: rows of logits where they lie, and columns of numbers, one a row."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import Choose, Step, Struct, Truncate
from lmi_kernels.cpu.team import Program, Team

_SLACK = 64
"""`kSlack` of `native.h`."""


def logit_thresholds_native(
    team: Team,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `logit_thresholds`; sums are of whole numbers, in units of 2**-40 of the likeliest token's probability."""
    num_rows, vocab_size = logits.shape
    thresholds, last_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int32)
    _run(
        team,
        Truncate,
        logits,
        penalized,
        penalizes,
        vocab_size=vocab_size,
        temperature=temperature.to(torch.float32).contiguous(),
        top_k=top_k.to(torch.int64).contiguous(),
        top_p=top_p.to(torch.float64).contiguous(),
        min_p=min_p.to(torch.float64).contiguous(),
        thresholds=thresholds,
        last_ids=last_ids,
        scratch=_scratch(team, vocab_size),
    )
    return thresholds, last_ids


def choose_tokens_native(
    team: Team,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `choose_tokens`: the same tokens."""
    num_rows, vocab_size = logits.shape
    tokens, finite = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.bool)
    _run(
        team,
        Choose,
        logits,
        penalized,
        penalizes,
        vocab_size=vocab_size,
        temperature=temperature.to(torch.float32).contiguous(),
        thresholds=thresholds.contiguous(),
        last_ids=last_ids.contiguous(),
        seeds=seeds.contiguous(),
        positions=positions.contiguous(),
        tokens=tokens,
        finite=finite,
    )
    return tokens, finite


def _run(
    team: Team,
    kind: type[Struct],
    logits: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
    **fields: torch.Tensor | int,
) -> None:
    """An operation over rows of the logits, or of `penalized` where `penalizes`."""
    x = logits.to(torch.float32)
    rows = _addresses(x)
    if penalizes.any():
        rows = _addresses(penalized).where(penalizes != 0, rows)
    operation = kind(
        rows=rows.data_ptr(),
        **{
            name: value.data_ptr() if isinstance(value, torch.Tensor) else value
            for name, value in fields.items()
        },
    )
    team.run(Program([operation]), Step(num_rows=len(logits)))


def _addresses(rows: torch.Tensor) -> torch.Tensor:
    """Where each row begins: [num_rows], int64. rows: fp32, each contiguous."""
    each = rows.stride(0) * rows.element_size()
    return torch.arange(len(rows)).mul_(each).add_(rows.data_ptr())


def _scratch(team: Team, vocab_size: int) -> torch.Tensor:
    return team.scratch(2 * (vocab_size + _SLACK))
