"""Parts `engine-...`: compare whole models with transformers on the same weights. In fp32 the tokens must be the same,
however steps are composed. In bf16 the logits must be about as close to those in fp32 as transformers' own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engines.core import Request, SamplingParams
from engines.mpi.runner.loading import DTYPES
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from tests.gpu import oracle
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, Outcome, free, greedy, random_prompts, run_requests
from tests.gpu.logits import last_logits
from tests.gpu.shapes import reduced

_DRAWN = (20, 2)
"""Tokens to sample: in a real run, and in a smoke run."""


def run(context: Context, *kinds: str) -> None:
    for kind in kinds:
        folder = context.folder / kind
        with context.results.guard(kind):
            check_model(context, kind, folder)
        free(context.device)


def check_model(context: Context, kind: str, folder: Path) -> None:
    config = reduced(kind, context.smoke)
    oracle.save(config, folder, context.device)
    lengths = context.size((3, 300, 1, 47, 130, 64, 16, 700), (3, 18))
    prompts = random_prompts(config["vocab_size"], lengths, seed=1)
    counts = context.size((24, 9, 30, 17, 24, 1, 40, 12), (2, 2))
    model = oracle.load(folder, torch.float32, context.device)
    expected = [oracle.generate(model, prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    limits = _limits(context, prompts, counts)
    _check_fp32(context, kind, folder, limits, prompts, expected, model)
    wide = [oracle.logits(model, prompt) for prompt in prompts]
    del model
    free(context.device)
    _check_logits(context, kind, folder, limits, prompts, wide)


def _limits(context: Context, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Limits:
    most = max(*counts, context.size(*_DRAWN))
    longest = max(map(len, prompts)) + most
    tokens = sum(-(-(len(prompt) + most) // 16) * 16 for prompt in prompts)
    return Limits(len(prompts), longest, context.size(256, 20), tokens)


def _check_fp32(
    context: Context,
    kind: str,
    folder: Path,
    limits: Limits,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    model: Any,
) -> None:
    device, results = context.device, context.results
    requests = [greedy(f"{kind} {i}", prompt, len(expected[i])) for i, prompt in enumerate(prompts)]
    wanted = {request.id: list(tokens) for request, tokens in zip(requests, expected, strict=True)}

    def compare(name: str, outcome: Outcome) -> None:
        differing = [
            request_id for request_id, tokens in wanted.items() if outcome.tokens[request_id] != tokens
        ]
        note = f"{outcome.num_tokens} tokens in {outcome.steps} steps"
        if differing:
            note += f"; {len(differing)} requests differ"
        results.check(f"{kind}, fp32: {name}", not differing, note)
        for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            if request.id in differing:
                report_gap(
                    context, f"{request.id}, {name}", model, prompt, outcome.tokens[request.id], expected[i]
                )

    engine = Engine(folder, device, limits, dtype="fp32", load_format="auto")
    compare("paged, all at once", run_requests(engine.start(), requests, device))
    compare("chunks of 16", run_requests(engine.start(max_step_tokens=16), requests, device))
    with engine.eagerly():
        compare("without graphs", run_requests(engine.start(), requests, device))
    _check_preemption(context, kind, engine, model)
    _check_seeds(context, kind, engine, prompts)
    _check_sampling(context, kind, engine, prompts, model)
    del engine
    free(device)
    engine = Engine(folder, device, limits, dtype="fp32", paged=False, load_format="auto")
    compare("contiguous", run_requests(engine.start("guaranteed_no_evict"), requests, device))


def report_gap(
    context: Context, name: str, model: Any, prompt: Sequence[int], found: Sequence[int], right: Sequence[int]
) -> None:
    """Report the gap between transformers' two largest logits where our token differs: the rounding error it takes."""
    at = first_difference(found, right)
    if at >= len(right):
        context.results.figure(f"{name}: more tokens than asked for", len(found), "tokens")
        return
    logits = oracle.logits(model, [*prompt, *right[:at]]).double()
    likeliest, ids = logits.topk(2)
    second = at < len(found) and found[at] == int(ids[1])
    context.results.figure(
        f"{name}: gap between the two likeliest logits where a token differs",
        float(likeliest[0] - likeliest[1]),
        "",
        f"token {at}; logits' standard deviation {float(logits.std()):.3g}; ours is the second: {second}",
    )


def first_difference(found: Sequence[int], right: Sequence[int]) -> int:
    """Return the index of the first difference, or the shorter length if one is a prefix of the other."""
    pairs = enumerate(zip(found, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(found), len(right)))


def _check_preemption(context: Context, kind: str, engine: Engine, model: Any) -> None:
    """Run more sequences than there are blocks for."""
    count, length, new, blocks = context.size((5, 64, 40, 18), (2, 15, 3, 3))
    prompts = random_prompts(engine.config.vocab_size, (length,) * count, seed=2)
    requests = [greedy(f"{kind} squeezed {i}", prompt, new) for i, prompt in enumerate(prompts)]
    running = engine.start(num_blocks=blocks)
    outcome = run_requests(running, requests, context.device)
    right = all(
        outcome.tokens[request.id] == oracle.generate(model, prompt, new)
        for request, prompt in zip(requests, prompts, strict=True)
    )
    times = running.scheduler.num_preemptions
    passed = right and times > 0
    context.results.check(f"{kind}, fp32: few blocks", passed, f"sequences were preempted {times} times")


def _check_seeds(context: Context, kind: str, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    """Sampled tokens depend only on the request's seed, not on the batch or on how steps are launched."""

    def drawn(name: str, at: int, seed: int) -> Request:
        # The search for thresholds is too slow in the interpreter.
        top_k, top_p = context.size((50, 0.95), (0, 1.0))
        params = SamplingParams(context.size(*_DRAWN), temperature=0.9, top_k=top_k, top_p=top_p, seed=seed)
        return dataclasses.replace(greedy(name, prompts[at], 1), sampling=params)

    def tokens(name: str, requests: Sequence[Request]) -> list[int]:
        return run_requests(engine.start(), requests, context.device).tokens[name]

    others = [drawn(f"{kind} other {i}", i, i) for i in range(1, len(prompts))]
    alone = tokens(f"{kind} drawn", [drawn(f"{kind} drawn", 0, 7)])
    among = tokens(f"{kind} drawn again", [*others, drawn(f"{kind} drawn again", 0, 7)])
    with engine.eagerly():
        eager = tokens(f"{kind} drawn eagerly", [drawn(f"{kind} drawn eagerly", 0, 7)])
    other = tokens(f"{kind} drawn otherwise", [drawn(f"{kind} drawn otherwise", 0, 8)])
    context.results.check(f"{kind}, fp32: a seed repeats", alone == among == eager)
    context.results.check(f"{kind}, fp32: another seed draws others", alone != other)


def _check_sampling(
    context: Context, kind: str, engine: Engine, prompts: Sequence[Sequence[int]], model: Any
) -> None:
    """Penalties and log-probabilities on the device must equal those of the host's sampler on transformers' logits."""
    params = SamplingParams(
        context.size(8, 2),
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logprobs=True,
    )
    chosen = prompts[: context.size(4, 1)]
    requests = [
        dataclasses.replace(greedy(f"{kind} penalised {i}", prompt, 1), sampling=params)
        for i, prompt in enumerate(chosen)
    ]
    outcome = run_requests(engine.start(), requests, context.device)
    right, error = True, 0.0
    for request, prompt in zip(requests, chosen, strict=True):
        sampler, tokens = Sampler(engine.config.vocab_size, context.device), list(prompt)
        for found, logprob in zip(outcome.tokens[request.id], outcome.logprobs[request.id], strict=True):
            row = SamplingRow(request.id, params, tokens, len(prompt))
            (wanted,) = sampler.sample(oracle.logits(model, tokens)[None], [row])
            right = right and found == wanted.token_id
            error = max(error, abs(logprob - (wanted.logprob or 0.0)))
            tokens.append(found)
    note = f"largest error of a log-probability {error:.1e}"
    context.results.check(f"{kind}, fp32: penalties, log-probabilities", right and error < 1e-3, note)


def _check_logits(
    context: Context,
    kind: str,
    folder: Path,
    limits: Limits,
    prompts: Sequence[Sequence[int]],
    wide: Sequence[torch.Tensor],
) -> None:
    """Compare logits in bf16, on a CPU in fp32. wide: logits after each prompt in fp32."""
    dtype = "bf16" if context.device.type == "cuda" else "fp32"
    expected = torch.stack(list(wide)).double()
    model = oracle.load(folder, DTYPES[dtype], context.device)
    theirs = torch.stack([oracle.logits(model, prompt) for prompt in prompts]).double()
    del model
    free(context.device)
    engine = Engine(folder, context.device, limits, dtype=dtype, load_format="auto")
    ours = last_logits(engine, prompts).double()
    errors = [float((found - expected).norm() / expected.norm()) for found in (ours, theirs)]
    passed = errors[0] <= 1.5 * errors[1] + 1e-4
    note = f"relative error of logits {errors[0]:.1e}, transformers' own {errors[1]:.1e}"
    context.results.check(f"{kind}, {dtype}: logits", passed, note)
