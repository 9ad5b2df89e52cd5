"""Part `aws`: the AWS post's two scenarios with Falcon-40B shapes on one GPU. Compares static batches of 4 and of 32 on
our own kernels, rolling batches with contiguous blocks per sequence, and rolling batches with pages."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, Outcome, free, run_requests, trace_requests
from tests.gpu.shapes import memory_bytes, real, write
from tests.gpu.traces import uniform

MODEL = "falcon-40b"
USERS = 32
REQUESTS = 64
"""Per scenario: each user sends its next request when the previous one is complete."""


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of the post for one configuration, in scenarios 1 and 2."""

    tokens_per_second: tuple[float, float]
    latency_p90: tuple[float, float]
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Configuration:
    name: str
    policy: str
    max_num_seqs: int
    paged: bool
    published: Published | None = None


SCENARIOS = ((32, 128), (256, 32))
"""Input and output tokens."""
CONFIGURATIONS = (
    Configuration("static 4", "static_batch", 4, True, Published((5.53, 19.96), (58.34, 59.31))),
    Configuration("static 32", "static_batch", 32, True),
    Configuration("rolling paged", "max_utilization", 32, True, Published((59.18, 44.75), (4.76, 2.67))),
    Configuration("rolling", "guaranteed_no_evict", 32, False, Published((56.04, 46.69), (4.74, 3.88))),
)
"""The post's own static configuration was another engine, transformers with batches of 4, and its model ran on 8 GPUs.
Only ratios within a table are comparable."""


def run(context: Context) -> None:
    ceilings.measure(context)
    free(context.device)
    folder = write(real(MODEL, context.smoke), context.folder / MODEL)
    if not context.has_memory_for(memory_bytes(folder), "AWS post"):
        return
    baselines: dict[int, Outcome] = {}
    for paged in (True, False):
        with context.results.guard(f"AWS post, {'paged' if paged else 'contiguous'}"):
            engine = Engine(folder, context.device, _limits(context), dtype="fp16", paged=paged)
            for configuration in CONFIGURATIONS:
                if configuration.paged is paged:
                    _measure(context, engine, configuration, baselines)
            del engine
        free(context.device)


def _limits(context: Context) -> Limits:
    longest = max(sum(shape) for shape in _scenarios(context))
    seqs = context.size(USERS, 2)
    return Limits(seqs, longest, context.size(1024, 4) + seqs, seqs * (longest + 16))


def _scenarios(context: Context) -> tuple[tuple[int, int], ...]:
    return context.size(SCENARIOS, ((2, 2),))


def _measure(
    context: Context, engine: Engine, configuration: Configuration, baselines: dict[int, Outcome]
) -> None:
    for scenario, (input_tokens, output_tokens) in enumerate(_scenarios(context)):
        trace = uniform(context.size(REQUESTS, 2), input_tokens, output_tokens, engine.config.vocab_size)
        requests = trace_requests(f"{configuration.name} {scenario}", trace)
        running = engine.start(configuration.policy, max_num_seqs=context.size(configuration.max_num_seqs, 2))
        outcome = run_requests(running, requests, context.device, users=USERS)
        assert outcome.num_tokens == trace.num_output_tokens
        baseline = baselines.setdefault(scenario, outcome)
        title = f"AWS post, scenario {scenario + 1} ({input_tokens} in, {output_tokens} out), {configuration.name}"
        context.results.share(
            title,
            outcome.tokens_per_second,
            "tokens/s",
            outcome.tokens_per_second / baseline.tokens_per_second,
            "the speed of static 4",
            note=_note(outcome, configuration, scenario),
        )


def _note(outcome: Outcome, configuration: Configuration, scenario: int) -> str:
    p90 = statistics.quantiles(outcome.latencies, n=10)[-1]
    note = f"p90 latency {p90:.2f} s"
    published = configuration.published
    if published is None:
        return f"{note}; not in the post"
    static = CONFIGURATIONS[0].published
    assert static is not None
    speedup = published.tokens_per_second[scenario] / static.tokens_per_second[scenario]
    return (
        f"{note}; the post: {published.tokens_per_second[scenario]} tokens/s, {speedup:.1f} times its static 4, p90 "
        f"{published.latency_p90[scenario]} s"
    )
