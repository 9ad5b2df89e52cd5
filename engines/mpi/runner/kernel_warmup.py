"""Warm-up steps of every kind before the first request, so that no kernel is compiled while a request waits.

Triton compiles a kernel, which takes seconds, at its first launch with a given set of constants. The constants of a
step depend on its number of tokens, on how they are distributed over sequences, and on whether the device or the host
samples.
"""

from __future__ import annotations

from collections.abc import Iterator

from engines.core import SamplingParams
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.step_runner import StepRunner
from engines.mpi.scheduler.step_plan import WANT_LOGITS, StepPlan
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler

_SHORT = 2
_ON_DEVICE = SamplingParams(max_new_tokens=1)
_ON_HOST = SamplingParams(max_new_tokens=1, temperature=0.7, top_p=0.9, top_logprobs=1)
"""Parameters that only the host samples, and that do not change the logits first. Changed logits are in fp32; the
largest step has compiled their kernels."""


def warm_up_kernels(largest: LargestStep, steps: StepRunner, block_size: int) -> None:
    """Compute steps up to the largest, on an empty cache, and sample on the device and on the host."""
    for query_lens in _shapes(largest):
        _run_step(query_lens, _ON_DEVICE, steps, block_size)
    _run_step([1], _ON_HOST, steps, block_size)


def _run_step(query_lens: list[int], params: SamplingParams, steps: StepRunner, block_size: int) -> None:
    # The first tokens of sequences. All are written to block 0, since the results are not used.
    tables = [[0] * -(-length // block_size) for length in query_lens]
    plan = StepPlan.of_rows(query_lens, query_lens, [WANT_LOGITS] * len(query_lens), tables)
    steps.update(plan)
    rows = [SamplingRow(f"rehearsal {i}", params, [0], 1) for i in range(len(query_lens))]
    result = steps.compute(steps.prepare(plan), rows=rows)
    if result.pending_tokens is not None:
        result.pending_tokens.wait()
    if result.logits is not None:
        Sampler(result.logits.shape[1], result.logits.device).sample(result.logits, rows)


def _shapes(largest: LargestStep) -> Iterator[list[int]]:
    """Yield query lengths. For token counts that double: as few chunks as possible; half of the tokens in one chunk and
    the rest in short ones; and one chunk longer than the count with a short one, since launch parameters change just
    above powers of two."""
    longest = max(1, largest.max_model_len - 1)
    sizes = [2**i for i in range(largest.num_tokens.bit_length()) if 2**i < largest.num_tokens]
    for tokens in (*sizes, largest.num_tokens):
        yield _split_tokens(tokens, longest, longest, largest.num_seqs)
        yield _split_tokens(tokens, min(max(1, tokens // 2), longest), _SHORT, largest.num_seqs)
        above = min(tokens + 1 + _SHORT, largest.num_tokens)
        yield _split_tokens(above, min(tokens + 1, longest), _SHORT, largest.num_seqs)


def _split_tokens(tokens: int, first: int, others: int, num_seqs: int) -> list[int]:
    lens = [min(first, tokens)]
    while sum(lens) < tokens and len(lens) < num_seqs:
        lens.append(min(others, tokens - sum(lens)))
    return lens
