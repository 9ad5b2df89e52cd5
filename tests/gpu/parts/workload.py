"""Parts `workload-0.6b` and `workload-8b`: 256 requests at once (W6), through the whole engine, as a share of
what the device allows, and against transformers' `generate_batch` in the same process."""

from __future__ import annotations

from tests.gpu import ceilings, peer
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, Outcome, free, greedy, run_requests
from tests.gpu.floors import Ceilings, trace_floor
from tests.gpu.shapes import real, write
from tests.gpu.timing import Deadline
from tests.gpu.traces import Trace, tiny, w6

MODELS = {"qwen3-0.6b": ("w6-qwen", "peer-qwen"), "llama-3-8b": ("w6-llama", "peer-llama")}
_PEER_SECONDS = 120.0
"""For the peer's run of one model."""
_PILOT_SECONDS = 30.0
_PARTS = (256, 128, 64, 32)
"""Requests of the peer's run: as many as it may be expected to end in time."""


def run(context: Context, name: str) -> None:
    limits = ceilings.measure(context)
    free(context.device)
    with context.results.guard(f"W6, {name}"):
        _compare(context, limits, name, *MODELS[name])


def _compare(context: Context, limits: Ceilings, name: str, target: str, peer_target: str) -> None:
    config = real(name, context.smoke)
    trace = tiny(config["vocab_size"]) if context.smoke else w6()
    folder = write(config, context.folder / name)
    parts = sorted({min(count, len(trace.outputs)) for count in _PARTS}, reverse=True)
    ours = _ours(context, limits, name, folder, trace, target, parts)
    free(context.device)
    with context.results.guard(f"W6, {name}: transformers' generate_batch", ours=False):
        _against_peer(context, name, config, trace, peer_target, ours)


def _ours(context, limits, name, folder, trace, target, parts):  # type: ignore[no-untyped-def]
    """Our run of each of the parts, by the number of requests."""
    engine = Engine(folder, context.device, engine_limits(context, trace))
    found: dict[int, Outcome] = {}
    # Twice: once for what is compiled and allocated at first use.
    for attempt in range(context.size(2, 1)):
        found[len(trace.outputs)] = _run(context, engine, name, trace, f"all {attempt}")
    for count in parts[1:]:
        found[count] = _run(context, engine, name, trace.part(count), f"part {count}")
    whole = found[len(trace.outputs)]
    floor = trace_floor(engine.config, [len(prompt) for prompt in trace.prompts], trace.outputs, limits)
    limit = trace.num_output_tokens / floor
    context.results.share(
        f"W6, {name}",
        whole.tokens_per_second,
        "tokens/s",
        whole.tokens_per_second / limit,
        "the limit of the trace",
        target,
        f"{trace.num_output_tokens} tokens in {whole.seconds:.2f} s, {whole.steps} steps; limit {limit:.0f} tokens/s",
    )
    return found


def engine_limits(context: Context, trace: Trace) -> Limits:
    """All of a trace's requests at once."""
    count = len(trace.outputs)
    tokens = sum(-(-(len(p) + n) // 16) * 16 for p, n in zip(trace.prompts, trace.outputs, strict=True))
    step = max(count, context.size(8192, 16))
    return Limits(min(count, 256), trace.longest, step, min(tokens, context.size(400_000, 4096)) + 16)


def _run(context: Context, engine: Engine, name: str, trace: Trace, what: str) -> Outcome:
    requests = [
        greedy(f"{name} {what} {i}", prompt, count)
        for i, (prompt, count) in enumerate(zip(trace.prompts, trace.outputs, strict=True))
    ]
    outcome = run_requests(engine.start(), requests, context.device)
    assert outcome.num_tokens == trace.num_output_tokens, (
        f"{outcome.num_tokens} of {trace.num_output_tokens} tokens"
    )
    return outcome


def _against_peer(context, name, config, trace, target, ours):  # type: ignore[no-untyped-def]
    """Flags by a short run of each; then as much of the trace as time allows. What fails in here is not ours."""
    model = peer.load(config, context)
    pilot = Trace(trace.prompts[:32], tuple(min(count, 24) for count in trace.outputs[:32]))
    flags, speed = peer.FLAGS[0], 0.0
    for each in context.size(peer.FLAGS, peer.FLAGS[:1]):
        with context.results.guard(f"W6, {name}: generate_batch, {each.name}", ours=False):
            short = peer.run(model, pilot, each, Deadline(_PILOT_SECONDS))
            context.results.figure(
                f"W6, {name}: generate_batch, {each.name}, a short run", short.tokens_per_second, "tokens/s"
            )
            if short.tokens_per_second > speed:
                flags, speed = each, short.tokens_per_second
        free(context.device)
    fitting = [n for n in ours if trace.part(n).num_output_tokens <= speed * _PEER_SECONDS]
    count = max(fitting, default=min(ours))
    theirs = peer.run(model, trace.part(count), flags, Deadline(_PEER_SECONDS))
    note = f"{flags.name}: {theirs.num_tokens} tokens in {theirs.seconds:.1f} s, {count} requests"
    if not theirs.done:
        note += "; stopped before all had ended: tokens of those that had"
    mine = ours[count].tokens_per_second
    context.results.figure(f"W6, {name}: generate_batch", theirs.tokens_per_second, "tokens/s", note)
    title = f"W6, {name}: times generate_batch"
    if not theirs.done:
        context.results.missing(title, "it did not end in time, and what was under way is not counted")
        return
    context.results.share(
        title,
        mine,
        "tokens/s",
        mine / theirs.tokens_per_second,
        "generate_batch's",
        target,
        f"on the same {count} requests",
    )
