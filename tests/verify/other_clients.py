"""lmi bench agrees within 5 % with guidellm and vllm bench serve on a paced server; a real one beside it.

    python -m tests.verify.other_clients [--rounds N]

The clients alternate, each load with another seed. The verdict comes from a paced server, which sends every token
at a fixed time: with 8 users, clients that see equal times must report equal figures. A real server varies by more
than 5 % on a shared machine, so for it only ratios with 95 % intervals are reported. Its throughput is measured
with 8 users, its TTFT with 1.5 requests a second at equal intervals. The server has one core and the client another,
so that the client's own work does not slow down the server. The clients are installed from PyPI into `build/peers`;
clients that cannot be installed are skipped, but at least one is required.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from container.measure.compare.interval import ratio_of_rounds
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.verify.lab import Lab, Report, run_alone
from tests.verify.load_clients import INPUT_TOKENS, OURS, Figures, Run, installed

CLOSED: dict[str, Any] = {"users": 8, "requests": 64}
"""Load for the throughput. On the real server all responses end together, and milliseconds decide which of the next
prompts share a step: TTFT of two runs of one client differ by a half. Therefore TTFT has its own load."""
OPEN: dict[str, Any] = {"rate": 1.5, "requests": 48}
"""Load for TTFT on the real server."""
FIRST_SECONDS, GAP_SECONDS = (0.1, 0.2, 0.4), 0.02
"""Times of the paced server: TTFT, by turns for each request, and the time between tokens."""
PACED_ROUNDS = 2
OPTIONS: dict[str, object] = {
    "max_rolling_batch_size": 8,
    "kv_cache_gb": 0.2,
    "enable_prefix_caching": False,
}
MAX_DIFFERENCE = 0.05
MEASURES: Mapping[str, Callable[[Figures], float]] = {
    "tokens/s": lambda figures: figures.tokens_per_second,
    "median TTFT": lambda figures: figures.ttft,
}

Round = dict[str, Figures]
"""Figures by client."""


def verify(lab: Lab, report: Report, *, rounds: int = 5) -> None:
    """rounds: the number of turns of each client on the real server."""
    clients = installed(report.figure)
    others = [name for name in clients if name != OURS]
    report.require(bool(others), f"other clients: {', '.join(others) or 'none'}")
    server_cores, client_cores = sorted(os.sched_getaffinity(0))[:1], sorted(os.sched_getaffinity(0))[-1:]

    def run_clients(url: str, seed: int, load: Mapping[str, Any]) -> Round:
        order = list(clients) if seed % 2 else list(clients)[::-1]
        with _pinned_to(client_cores):
            found = {name: clients[name](Run(url, lab.model, lab.folder, seed, **load)) for name in order}
        for name, figures in found.items():
            report.figure(
                f"{name}: {figures.tokens_per_second:.1f} tokens/s, median TTFT {figures.ttft:.3f} s"
            )
        return found

    report.figure(f"a paced server, {CLOSED['users']} users:")
    with _pinned_to(server_cores), ScriptedServer(_paced) as paced:
        paced_rounds = [run_clients(paced.url, seed, CLOSED) for seed in range(PACED_ROUNDS)]
    for name in others:
        for measure, figure_of in MEASURES.items():
            ratio = statistics.fmean(figure_of(one[OURS]) / figure_of(one[name]) for one in paced_rounds)
            report.require(
                abs(ratio - 1) <= MAX_DIFFERENCE,
                f"paced: {measure}: {ratio:.3f} times the figure of {name}",
            )

    with _pinned_to(server_cores):
        server = lab.server("other-clients", **OPTIONS)
    with server:
        report.figure(f"a real server, {CLOSED['users']} users:")
        closed = [run_clients(server.base_url, seed, CLOSED) for seed in range(rounds)]
        report.figure(f"a real server, {OPEN['rate']} requests/s:")
        opened = [run_clients(server.base_url, seed, OPEN) for seed in range(rounds)]
    for name in others:
        for (measure, figure_of), runs in zip(MEASURES.items(), (closed, opened), strict=True):
            seen = ratio_of_rounds((figure_of(one[OURS]) / figure_of(one[name]) for one in runs), 1)
            assert seen is not None
            report.figure(
                f"{measure}: {seen.value:.3f} times the figure of {name} (95 % interval {seen.low:.3f} to"
                f" {seen.high:.3f})"
            )


def _paced(number: int, body: Mapping[str, Any]) -> Script:
    return Script(
        first_seconds=FIRST_SECONDS[number % len(FIRST_SECONDS)],
        gap_seconds=GAP_SECONDS,
        prompt_tokens=INPUT_TOKENS,
    )


@contextmanager
def _pinned_to(cores: list[int]) -> Iterator[None]:
    """Pin this process, and processes started during the block, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    run_alone(verify)
