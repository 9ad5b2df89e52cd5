"""Small weights and caches: perplexity within 1 % of fp32's with int8, within 0.1 % with a bf16 cache.

The text is 'Coriolanus' (`tests/verify/texts`), cut into windows of 512 tokens. The engines run one after the other
in one process, without a server, on native CPU kernels.
"""

from __future__ import annotations

import math
from pathlib import Path

from tokenizers import Tokenizer

from engines.config import CacheConfig, ModelSettings, ParallelConfig
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.scheduler.step_plan import WANT_PROMPT_LOGPROBS
from lmi_kernels.cpu.team import set_num_threads
from tests.support.plans import PlanMaker, load, run_plan
from tests.verify.lab import Lab, Report, run_alone

TEXT = Path(__file__).parent / "texts" / "coriolanus.txt"
WINDOW = 512
"""Tokens in a window. Each token is scored given the preceding tokens of its window."""
MIN_TOKENS = 20_000
BLOCK_SIZE = 16
_CACHE_BYTES = 1 << 28
LIMITS = {("int8", "auto"): 0.01, ("none", "bf16"): 0.001, ("none", "fp16"): 0.001, ("none", "int8"): 0.01}
"""Maximum relative change of the perplexity, by `option.quantize` and `option.kv_cache_dtype`."""


def verify(lab: Lab, report: Report) -> None:
    set_num_threads(2)
    tokenizer = Tokenizer.from_file(str(lab.model / "tokenizer.json"))
    tokens = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids
    windows = [tokens[start : start + WINDOW] for start in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    scored = len(windows) * (WINDOW - 1)
    report.require(scored >= MIN_TOKENS, f"{scored:,} tokens are scored, at least {MIN_TOKENS:,}")
    exact = _perplexity(lab.model, windows, "none", "auto")
    report.figure(f"fp32 arithmetic, weights as they are stored, fp32 cache: perplexity {exact:.4f}")
    for (quantize, kv_cache), limit in LIMITS.items():
        found = _perplexity(lab.model, windows, quantize, kv_cache)
        change = found / exact - 1
        report.require(
            0 < abs(change) <= limit,
            f"option.quantize={quantize}, option.kv_cache_dtype={kv_cache}: {found:.4f}, {change:+.3%},"
            f" not 0 and at most {limit:.1%}",
        )


def _perplexity(model: Path, windows: list[list[int]], quantize: str, kv_cache: str) -> float:
    settings = ModelSettings(str(model), "bundled", "fp32", WINDOW, quantize=quantize)
    cache = CacheConfig(BLOCK_SIZE, True, _CACHE_BYTES, dtype=kv_cache)
    runner = load(settings, cache, WINDOW, max_num_seqs=1, parallel=ParallelConfig(threads_per_rank=2))
    if runner.cache.num_bytes > _CACHE_BYTES:
        raise AssertionError(f"the KV cache takes {runner.cache.num_bytes} bytes")
    logprobs: list[float] = []
    for window in windows:
        maker = PlanMaker(BLOCK_SIZE)
        maker.begin(0, range(-(-WINDOW // BLOCK_SIZE)))
        plan = maker.plan({0: window}, wants={0: WANT_PROMPT_LOGPROBS})
        result = run_plan(runner, plan, [PromptTargets(tuple(window[1:]), num_top=0)])
        logprobs += [score.logprob for score in result.prompt_logprobs[0]]
    return math.exp(-sum(logprobs) / len(logprobs))


if __name__ == "__main__":
    run_alone(verify)
