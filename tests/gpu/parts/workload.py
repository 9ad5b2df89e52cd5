"""Parts `workload-0.6b` and `workload-8b`: 256 requests at once (W6) through the whole engine, as a share of the
device's limit, and compared with transformers' `generate_batch`, which runs afterwards in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, Outcome, free, run_requests, trace_requests
from tests.gpu.floors import Ceilings, trace_floor
from tests.gpu.peer_findings import REQUEST_COUNTS, Findings
from tests.gpu.shapes import real, write
from tests.gpu.traces import Trace, tiny, w6

MODELS = {"qwen3-0.6b": ("w6-qwen", "peer-qwen"), "llama-3-8b": ("w6-llama", "peer-llama")}
_PEER_SECONDS = 45.0
"""Minimum time for the peer. With less time left it is not run."""


def run(context: Context, name: str) -> None:
    limits = ceilings.measure(context)
    free(context.device)
    with context.results.guard(f"W6, {name}"):
        _compare(context, limits, name, *MODELS[name])


def _compare(context: Context, limits: Ceilings, name: str, target: str, peer_target: str) -> None:
    config = real(name, context.smoke)
    trace = tiny(config["vocab_size"]) if context.smoke else w6()
    ours = _ours(context, limits, name, write(config, context.folder / name), trace, target)
    free(context.device)
    title = f"W6, {name}: relative to generate_batch"
    if context.has_time_for(_PEER_SECONDS, title):
        with context.results.guard(title, ours=False):
            _against_peer(context, name, peer_target, ours)


def _ours(
    context: Context, limits: Ceilings, name: str, folder: Path, trace: Trace, target: str
) -> dict[int, Outcome]:
    """Run our engine with each number of requests. Return the outcomes by number of requests."""
    engine = Engine(folder, context.device, engine_limits(context, trace))
    outcomes: dict[int, Outcome] = {}
    # Twice: the first run compiles kernels and allocates memory.
    for attempt in range(context.size(2, 1)):
        outcomes[len(trace.outputs)] = _run(context, engine, name, trace, f"all {attempt}")
    whole = outcomes[len(trace.outputs)]
    floor = trace_floor(engine.config, [len(prompt) for prompt in trace.prompts], trace.outputs, limits)
    limit = trace.num_output_tokens / floor
    context.results.share(
        f"W6, {name}",
        whole.tokens_per_second,
        "tokens/s",
        whole.tokens_per_second / limit,
        "the throughput limit",
        target,
        f"{trace.num_output_tokens} tokens in {whole.seconds:.2f} s, {whole.steps} steps; limit {limit:.0f} tokens/s",
    )
    for count in REQUEST_COUNTS if not context.smoke else ():
        if count not in outcomes and context.has_time_for(
            _PEER_SECONDS + 10.0, f"W6, {name}: first {count} requests"
        ):
            outcomes[count] = _run(context, engine, name, trace.first(count), f"first {count}")
            context.results.figure(
                f"W6, {name}: first {count} requests", outcomes[count].tokens_per_second, "tokens/s"
            )
    return outcomes


def engine_limits(context: Context, trace: Trace) -> Limits:
    """Return limits for all of a trace's requests at once."""
    count = len(trace.outputs)
    tokens = sum(-(-(len(p) + n) // 16) * 16 for p, n in zip(trace.prompts, trace.outputs, strict=True))
    step = max(count, context.size(8192, 16))
    return Limits(min(count, 256), trace.longest, step, min(tokens, context.size(400_000, 4096)) + 16)


def _run(context: Context, engine: Engine, name: str, trace: Trace, label: str) -> Outcome:
    outcome = run_requests(engine.start(), trace_requests(f"{name} {label}", trace), context.device)
    assert outcome.num_tokens == trace.num_output_tokens, (
        f"{outcome.num_tokens} of {trace.num_output_tokens} tokens"
    )
    return outcome


def _against_peer(context: Context, name: str, target: str, ours: dict[int, Outcome]) -> None:
    """Run the peer and compare. The caller does not count errors in the peer as failures."""
    file = context.folder / "peer.json"
    seconds = context.deadline.left - 8.0
    command = [sys.executable, "-m", "tests.gpu.peer", name, str(file), "--seconds", f"{seconds:.0f}"]
    try:
        subprocess.run([*command, *(["--smoke"] if context.smoke else [])], timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        print("generate_batch: timed out", flush=True)
    theirs = Findings.read(file)
    title, results = f"W6, {name}: generate_batch", context.results
    for flags, speed in theirs.pilots.items():
        results.figure(f"{title}, {flags}, short run", speed, "tokens/s")
    for flags, error in theirs.errors.items():
        results.missing(f"{title}, {flags}", error)
    ratio, run = f"W6, {name}: relative to generate_batch", theirs.run
    if run is None or not run.done or theirs.num_requests not in ours:
        results.missing(ratio, f"generate_batch did not finish {theirs.num_requests or 'any'} requests")
        return
    note = f"{theirs.flags}: {run.num_tokens} tokens in {run.seconds:.1f} s, {theirs.num_requests} requests"
    results.figure(title, run.tokens_per_second, "tokens/s", note)
    mine = ours[theirs.num_requests].tokens_per_second
    results.share(
        ratio,
        mine,
        "tokens/s",
        mine / run.tokens_per_second,
        "the speed of generate_batch",
        target,
        f"on the same {theirs.num_requests} requests",
    )
