"""Parts `engine-...`: compare whole models with transformers on the same weights. In fp32 the tokens must be the same,
however steps are composed; only where transformers' logits are equal but for rounding may another token be chosen. In
bf16 the error of the logits must be at most 1.5 times that of transformers."""

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
from tests.gpu.engine import (
    BLOCK_SIZE,
    Engine,
    Limits,
    Outcome,
    free,
    greedy,
    random_prompts,
    run_requests,
)
from tests.gpu.logits import last_logits
from tests.gpu.shapes import reduced

_NUM_SAMPLED = (20, 2)
"""Numbers of tokens to sample in a real run and in a smoke run."""
_ROUNDING = 1e-4
"""Logits that differ by less may change places in fp32. On an H100 our log-probabilities differed from transformers' by
up to 6e-5."""


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
    reference = [oracle.logits(model, prompt) for prompt in prompts]
    del model
    free(context.device)
    _check_logits(context, kind, folder, limits, prompts, reference)


def _limits(context: Context, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> Limits:
    longest_output = max(*counts, context.size(*_NUM_SAMPLED))
    longest = max(map(len, prompts)) + longest_output
    tokens = sum(-(-(len(prompt) + longest_output) // 16) * 16 for prompt in prompts)
    return Limits(len(prompts), longest, context.size(256, 20), tokens)


def _check_fp32(
    context: Context,
    kind: str,
    folder: Path,
    limits: Limits,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[list[int]],
    model: Any,
) -> None:
    device, results = context.device, context.results
    requests = [greedy(f"{kind} {i}", prompt, len(expected[i])) for i, prompt in enumerate(prompts)]

    def compare(name: str, outcome: Outcome) -> None:
        found = [outcome.tokens[request.id] for request in requests]
        differing = [i for i, tokens in enumerate(found) if tokens != expected[i]]
        wrong = [
            i for i in differing if not greedy_but_for_rounding(model, prompts[i], found[i], len(expected[i]))
        ]
        note = f"{outcome.num_tokens} tokens in {outcome.steps} steps"
        if differing:
            note += f"; {differences(len(differing), len(wrong))}"
        results.check(f"{kind}, fp32: {name}", not wrong, note)
        for i in differing:
            report_gap(context, f"{requests[i].id}, {name}", model, prompts[i], found[i], expected[i])

    engine = Engine(folder, device, limits, dtype="fp32", load_format="auto")
    compare("paged, all requests at once", run_requests(engine.start(), requests, device))
    compare("steps of at most 16 tokens", run_requests(engine.start(max_step_tokens=16), requests, device))
    with engine.eagerly():
        compare("without graphs", run_requests(engine.start(), requests, device))
    _check_stop_tokens(context, kind, engine, prompts, expected, model)
    _check_preemption(context, kind, engine, model)
    _check_prefix_caching(context, kind, engine, model)
    _check_seeds(context, kind, engine, prompts)
    _check_sampling(context, kind, engine, prompts, model)
    del engine
    free(device)
    engine = Engine(folder, device, limits, dtype="fp32", paged=False, load_format="auto")
    compare("contiguous", run_requests(engine.start("guaranteed_no_evict"), requests, device))


def greedy_but_for_rounding(model: Any, prompt: Sequence[int], tokens: Sequence[int], count: int) -> bool:
    """Return whether greedy sampling can choose these `count` tokens. After a tie, each token is compared with
    transformers' logits after our own tokens."""
    return len(tokens) == count and oracle.largest_gap(model, prompt, tokens) <= _ROUNDING


def report_gap(
    context: Context,
    name: str,
    model: Any,
    prompt: Sequence[int],
    tokens: Sequence[int],
    expected: Sequence[int],
) -> None:
    """Report the gap between transformers' two largest logits where our token differs. A small gap means rounding."""
    index = first_difference(tokens, expected)
    if index >= len(expected):
        context.results.figure(f"{name}: more tokens than requested", len(tokens), "tokens")
        return
    logits = oracle.logits(model, [*prompt, *expected[:index]]).double()
    largest, ids = logits.topk(2)
    second = index < len(tokens) and tokens[index] == int(ids[1])
    context.results.figure(
        f"{name}: gap between the two largest logits where a token differs",
        float(largest[0] - largest[1]),
        "",
        f"token {index}; standard deviation of the logits {float(logits.std()):.3g}; our token is the second: {second}",
    )


def differences(num_differing: int, num_wrong: int) -> str:
    """Describe the requests whose tokens differ. num_wrong: those that differ by more than rounding."""
    requests = "1 request differs" if num_differing == 1 else f"{num_differing} requests differ"
    if num_wrong in (0, num_differing):
        return f"{requests}, by {'' if num_wrong else 'no '}more than rounding"
    return f"{requests}, {num_wrong} of them by more than rounding"


def first_difference(tokens: Sequence[int], expected: Sequence[int]) -> int:
    """Return the index of the first difference, or the shorter length if one is a prefix of the other."""
    pairs = enumerate(zip(tokens, expected, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(expected)))


def _check_preemption(context: Context, kind: str, engine: Engine, model: Any) -> None:
    """Run sequences with too few blocks for all of them."""
    count, length, new, blocks = context.size((5, 64, 40, 18), (2, 15, 3, 3))
    prompts = random_prompts(engine.config.vocab_size, (length,) * count, seed=2)
    requests = [greedy(f"{kind} few blocks {i}", prompt, new) for i, prompt in enumerate(prompts)]
    running = engine.start(num_blocks=blocks)
    outcome = run_requests(running, requests, context.device)
    correct = all(
        greedy_but_for_rounding(model, prompt, outcome.tokens[request.id], new)
        for request, prompt in zip(requests, prompts, strict=True)
    )
    num_preemptions = running.scheduler.num_preemptions
    passed = correct and num_preemptions > 0
    context.results.check(f"{kind}, fp32: preemption", passed, f"{num_preemptions} preemptions")


def _check_stop_tokens(
    context: Context,
    kind: str,
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[list[int]],
    model: Any,
) -> None:
    """Stop each request in the middle of its tokens. Its next step is in flight by then, and its token is dropped."""
    stops = [tokens[(len(tokens) - 1) // 2] for tokens in expected]
    requests = [
        dataclasses.replace(
            greedy(f"{kind} stop token {i}", prompts[i], 1),
            sampling=SamplingParams(len(expected[i]), stop_token_ids=(stop,)),
        )
        for i, stop in enumerate(stops)
    ]
    outcome = run_requests(engine.start(), requests, context.device)
    correct = True
    for i, stop in enumerate(stops):
        tokens = outcome.tokens[requests[i].id]
        ends = tokens[-1:] == [stop] or len(tokens) == len(expected[i])
        greedily = greedy_but_for_rounding(model, prompts[i], tokens, len(tokens))
        correct = correct and ends and stop not in tokens[:-1] and greedily
    context.results.check(f"{kind}, fp32: stop tokens", correct, f"{outcome.num_tokens} tokens")


def _check_prefix_caching(context: Context, kind: str, engine: Engine, model: Any) -> None:
    """Run sequences whose prompts share a prefix, when its blocks are in the cache."""
    count, length, new = context.size((5, 9 * BLOCK_SIZE, 20), (2, BLOCK_SIZE, 2))
    vocab_size = engine.config.vocab_size
    (prefix,) = random_prompts(vocab_size, (length,), seed=3)
    prompts = [prefix + rest for rest in random_prompts(vocab_size, [*range(1, count + 1)], seed=4)]
    requests = [greedy(f"{kind} prefix {i}", prompt, new) for i, prompt in enumerate(prompts)]
    running = engine.start(prefix_caching=True)
    correct = True
    for part in (slice(0, 1), slice(1, count)):
        outcome = run_requests(running, requests[part], context.device)
        for request, prompt in zip(requests[part], prompts[part], strict=True):
            tokens = outcome.tokens[request.id]
            correct = correct and greedy_but_for_rounding(model, prompt, tokens, new)
    num_hits = running.scheduler.num_prefix_hit_tokens
    passed = correct and num_hits >= length * (count - 1)
    context.results.check(f"{kind}, fp32: prefix caching", passed, f"{num_hits} tokens from the cache")


def _check_seeds(context: Context, kind: str, engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    """Sampled tokens depend only on the request's seed, not on the batch or on how steps are launched."""

    def sampled(name: str, index: int, seed: int) -> Request:
        # The search for thresholds is too slow in the interpreter.
        top_k, top_p = context.size((50, 0.95), (0, 1.0))
        params = SamplingParams(
            context.size(*_NUM_SAMPLED), temperature=0.9, top_k=top_k, top_p=top_p, seed=seed
        )
        return dataclasses.replace(greedy(name, prompts[index], 1), sampling=params)

    def tokens(name: str, requests: Sequence[Request]) -> list[int]:
        return run_requests(engine.start(), requests, context.device).tokens[name]

    others = [sampled(f"{kind} other {i}", i, i) for i in range(1, len(prompts))]
    alone = tokens(f"{kind} sampled", [sampled(f"{kind} sampled", 0, 7)])
    batched = tokens(f"{kind} sampled in a batch", [*others, sampled(f"{kind} sampled in a batch", 0, 7)])
    with engine.eagerly():
        eager = tokens(f"{kind} sampled eagerly", [sampled(f"{kind} sampled eagerly", 0, 7)])
    other = tokens(f"{kind} another seed", [sampled(f"{kind} another seed", 0, 8)])
    context.results.check(f"{kind}, fp32: the same seed gives the same tokens", alone == batched == eager)
    context.results.check(f"{kind}, fp32: another seed gives other tokens", alone != other)


def _check_sampling(
    context: Context, kind: str, engine: Engine, prompts: Sequence[Sequence[int]], model: Any
) -> None:
    """Penalties and log-probabilities, sampled by the device and by the host, must equal those of the host's sampler on
    transformers' logits."""
    on_device = SamplingParams(
        context.size(8, 2),
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logprobs=True,
    )
    on_host = dataclasses.replace(on_device, top_logprobs=2)
    subset = prompts[: context.size(4, 1)]
    for name, params in (("", on_device), (", sampled by the host", on_host)):
        requests = [
            dataclasses.replace(greedy(f"{kind} penalized{name} {i}", prompt, 1), sampling=params)
            for i, prompt in enumerate(subset)
        ]
        outcome = run_requests(engine.start(), requests, context.device)
        correct, error = True, 0.0
        for request, prompt in zip(requests, subset, strict=True):
            found, logprobs = outcome.tokens[request.id], outcome.logprobs.get(request.id, [])
            correct = correct and len(found) == len(logprobs) == params.max_new_tokens
            sampler, tokens = Sampler(engine.config.vocab_size, context.device), list(prompt)
            for token, logprob in zip(found, logprobs, strict=False):
                row = SamplingRow(request.id, params, tokens, len(prompt))
                (expected,) = sampler.sample(oracle.logits(model, tokens)[None], [row])
                correct = correct and token == expected.token_id
                error = max(error, abs(logprob - (expected.logprob or 0.0)))
                tokens.append(token)
        note = f"largest error of a log-probability {error:.1e}"
        passed = correct and error < 1e-3
        context.results.check(f"{kind}, fp32: penalties, log-probabilities{name}", passed, note)


def _check_logits(
    context: Context,
    kind: str,
    folder: Path,
    limits: Limits,
    prompts: Sequence[Sequence[int]],
    reference: Sequence[torch.Tensor],
) -> None:
    """Compare logits in bf16, on a CPU in fp32. reference: fp32 logits after each prompt."""
    dtype = "bf16" if context.device.type == "cuda" else "fp32"
    expected = torch.stack(list(reference)).double()
    model = oracle.load(folder, DTYPES[dtype], context.device)
    theirs = torch.stack([oracle.logits(model, prompt) for prompt in prompts]).double()
    del model
    free(context.device)
    engine = Engine(folder, context.device, limits, dtype=dtype, load_format="auto")
    ours = last_logits(engine, prompts).double()
    errors = [float((each - expected).norm() / expected.norm()) for each in (ours, theirs)]
    passed = errors[0] <= 1.5 * errors[1] + 1e-4
    note = f"relative error of logits {errors[0]:.1e}, of transformers {errors[1]:.1e}"
    context.results.check(f"{kind}, {dtype}: logits", passed, note)
