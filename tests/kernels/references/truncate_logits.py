"""Reference for `logit_thresholds`, which sorts in fp64, and the inputs of its check."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lmi_kernels import Penalties
from lmi_kernels.sampling.penalties import penalize
from lmi_kernels.sampling.truncate_logits import logit_thresholds
from lmi_kernels.sampling.truncate_logits_cpu import NO_LAST_ID
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results
from tests.kernels.references.penalties import example_penalties, production_penalties


def logit_thresholds_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    penalties: Penalties | None = None,
) -> Results:
    """Find the same thresholds as `logit_thresholds`."""
    parameters = (column.tolist() for column in (temperature, top_k, top_p, min_p))
    rows = zip(penalize(logits, penalties).double(), *parameters, strict=True)
    thresholds, last_ids = zip(*(_threshold(*row) for row in rows), strict=True)
    return torch.tensor(thresholds, dtype=torch.float32), torch.tensor(last_ids, dtype=torch.int32)


def _threshold(
    row: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[float, int]:
    largest = float(row.amax())
    if temperature == 0.0 or not math.isfinite(largest):
        return -math.inf, NO_LAST_ID
    edge, last_id = -math.inf, NO_LAST_ID
    if 0 < top_k < len(row):
        edge = float(row.topk(top_k).values[-1])
    if top_p < 1.0:
        ids, cumulative = _nucleus(row, temperature, edge)
        last = int((cumulative < top_p).sum().clamp(max=len(ids) - 1))
        edge = float(row[ids[last]])
        equal = (row == edge).nonzero()[:, 0]
        if edge > -math.inf and int(ids[last]) != int(equal[-1]):
            last_id = int(ids[last])
    relative = largest + temperature * math.log(min_p) if min_p > 0.0 else -math.inf
    return (relative, NO_LAST_ID) if relative > edge else (edge, last_id)


def _nucleus(row: torch.Tensor, temperature: float, edge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids, likeliest first (of equal ones the lowest first), and their cumulative probabilities. Logits
    below `edge` have probability 0."""
    values, ids = row.where(row >= edge, -math.inf).sort(descending=True, stable=True)
    return ids, (values / max(temperature, 1e-30)).softmax(-1).cumsum(-1)


def _clear_top_p(row: torch.Tensor, temperature: float, top_k: int, top_p: float) -> float:
    """Return a p nearby, in the middle of a token's probability, so that rounding does not change the nucleus."""
    row = row.double()
    edge = float(row.topk(top_k).values[-1]) if 0 < top_k < len(row) else -math.inf
    _, cumulative = _nucleus(row, temperature, edge)
    last = int((cumulative < top_p).sum().clamp(max=len(row) - 1))
    before = float(cumulative[last - 1]) if last else 0.0
    middle = (before + float(cumulative[last])) / 2.0
    # Near 1 a token adds less than the rounding error.
    return middle if float(cumulative[last]) - before > 2e-5 else 0.5 * float(cumulative[0])


_PARAMETERS = (
    # temperature, top_k, top_p, min_p
    (0.0, 5, 0.5, 0.1),
    (0.7, 0, 1.0, 0.0),
    (1.3, 20, 1.0, 0.0),
    (1.0, 40, 0.8, 0.0),
    (2.0, 0, 0.97, 0.0),
    (1.0, 4000, 0.9, 0.0),
    (0.6, 0, 1e-4, 0.0),
    (0.9, 0, 1.0, 0.05),
    (0.9, 30, 0.95, 0.2),
    (1.0, 5, 0.9, 0.1),
    (1.0, 5, 0.9, 0.1),
)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield ordinary and nearly flat rows of tensors wider than the vocabulary, with and without equal logits and
    penalties. They cover each truncation alone and combined, greedy rows, rows without truncation, and rows that are
    not finite."""
    for vocab, spare, spread, parameters in (
        (1, 0, 1.0, _PARAMETERS[3:5]),
        (97, 3, 2.0, _PARAMETERS),
        (5000, 8, 2.5, _PARAMETERS[2:7]),
        (5000, 0, 0.02, _PARAMETERS[4:5]),
    ):
        logits = torch.randn(len(parameters), vocab + spare, generator=generator).mul_(spread)
        if vocab == 97:
            logits = logits.mul_(2.0).round_().div_(2.0)
        logits = logits.to(dtype)
        if vocab > 1:
            logits[::3, ::5] = -torch.inf
        logits[:, vocab:] = 1000.0
        padded, logits = logits, logits[:, :vocab]
        if parameters is _PARAMETERS:
            logits[-1, vocab // 2] = torch.nan
            logits[-2] = -torch.inf
        temperature, top_k, top_p, min_p = (list(column) for column in zip(*parameters, strict=True))
        penalties = example_penalties(generator, len(parameters), vocab)
        penalized = penalize(logits, penalties).float()
        for i, p in enumerate(top_p):
            if p < 1.0 and penalized[i].amax().isfinite():
                top_p[i] = _clear_top_p(penalized[i], temperature[i], int(top_k[i]), p)
        yield {
            "padded": padded,
            "vocab": vocab,
            "temperature": torch.tensor(temperature, dtype=torch.float64),
            "top_k": torch.tensor(top_k, dtype=torch.int64),
            "top_p": torch.tensor(top_p, dtype=torch.float64),
            "min_p": torch.tensor(min_p, dtype=torch.float64),
            "penalties": penalties,
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The vocabulary size is not a constexpr, and all real ones are divisible by 16.
    numbers = torch.empty(32, dtype=torch.float64, device="meta")
    inputs = {
        "padded": torch.empty(32, 128256, dtype=dtype, device="meta"),
        "vocab": 128256,
        "temperature": numbers,
        "top_k": numbers.long(),
        "top_p": numbers,
        "min_p": numbers,
    }
    yield inputs | {"penalties": production_penalties(32, 128256)}
    yield inputs


CHECKS = (
    OpCheck(
        "truncate_logits",
        lambda padded, vocab, **inputs: logit_thresholds(padded[:, :vocab], **inputs),
        lambda padded, vocab, **inputs: logit_thresholds_reference(padded[:, :vocab], **inputs),
        _examples,
        _production,
        dict.fromkeys(ROUNDING, 1e-6),
    ),
)
