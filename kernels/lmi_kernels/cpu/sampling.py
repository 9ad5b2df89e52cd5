"""Native sampling operations on rows of logits. Their parameters are columns with one number per row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from lmi_kernels.cpu.structs import Choose, Logprobs, Step, Struct, Truncate
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.sampling.likeliest import TokenLogprobs

_SLACK = 64
"""`kSlack` of `operations.h`."""
_TRUNCATE_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "min_p": torch.float64,
}
_CHOOSE_DTYPES = {
    "temperature": torch.float32,
    "thresholds": torch.float32,
    "last_ids": torch.int32,
    "seeds": torch.int64,
    "positions": torch.int64,
}


def logit_thresholds_native(
    team: Team, logits: torch.Tensor, *columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `logit_thresholds`, with the same arguments. Sums are integers in units of 2**-40 of the likeliest
    token's probability."""
    num_rows, vocab_size = logits.shape
    thresholds, last_ids = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int32)
    _run(
        team,
        Truncate,
        num_rows,
        logits,
        **_typed(columns, _TRUNCATE_DTYPES),
        thresholds=thresholds,
        last_ids=last_ids,
        scratch=_scratch(team, vocab_size),
    )
    return thresholds, last_ids


def choose_tokens_native(
    team: Team, logits: torch.Tensor, *columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `choose_tokens`, with the same arguments and the same tokens."""
    num_rows = len(logits)
    tokens, finite = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.bool)
    _run(team, Choose, num_rows, logits, **_typed(columns, _CHOOSE_DTYPES), tokens=tokens, finite=finite)
    return tokens, finite


def row_logprobs_native(
    team: Team, logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, counts: Sequence[int]
) -> tuple[list[float], list[TokenLogprobs]]:
    """Implement `row_logprobs`."""
    max_count = max(counts)
    logprobs = torch.empty(len(rows))
    top_tokens, top_logprobs = (
        torch.empty(len(rows), max_count, dtype=torch.int64),
        torch.empty(len(rows), max_count),
    )
    _run(
        team,
        Logprobs,
        len(rows),
        logits,
        rows=_column(rows, torch.int64),
        tokens=_column(tokens, torch.int64),
        counts=_column(counts, torch.int64),
        logprobs=logprobs,
        top_tokens=top_tokens,
        top_logprobs=top_logprobs,
        top_stride=max_count,
        scratch=_scratch(team, logits.shape[1]),
    )
    tops = [
        tuple(pair for pair in zip(ids[:count], values[:count], strict=True) if pair[1] > -math.inf)
        for count, ids, values in zip(counts, top_tokens.tolist(), top_logprobs.tolist(), strict=True)
    ]
    return logprobs.tolist(), tops


def _run(
    team: Team, kind: type[Struct], num_rows: int, logits: torch.Tensor, **fields: torch.Tensor | int
) -> None:
    """Run an operation on the first `num_rows` rows. logits: any float dtype, each row contiguous."""
    x = logits.to(torch.float32)
    numbers = {
        name: value.data_ptr() if isinstance(value, torch.Tensor) else value for name, value in fields.items()
    }
    operation = kind(logits=x.data_ptr(), stride=x.stride(0), vocab_size=x.shape[1], **numbers)
    team.run(Program([operation]), Step(num_rows=num_rows))


def _typed(columns: Sequence[torch.Tensor], dtypes: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
    """Name columns in the order of `dtypes`, and convert them."""
    return {
        name: _column(values, dtype) for (name, dtype), values in zip(dtypes.items(), columns, strict=True)
    }


def _column(values: torch.Tensor | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return one value per row in the library's dtype. The library gets addresses and cannot check dtypes."""
    return torch.as_tensor(values, dtype=dtype).contiguous()


def _scratch(team: Team, vocab_size: int) -> torch.Tensor:
    return team.scratch("scratch", team.num_threads * 2 * (vocab_size + _SLACK), torch.float32)
