"""`lmi bench` beside other load clients, on the same servers under the same load.

    python -m tests.verify.other_clients [--rounds N]

The paced server, which gives every token by the clock, decides: clients that see equal times must report equal figures.
The real one does not take equal times twice, so what is seen there is printed without a verdict. A server has one core
and the client another, so that a client's own work does not make the server slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from container.measure.compare.interval import ratio_of_rounds
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.verify.lab import Lab, Report, run_alone
from tests.verify.load_clients import INPUT_TOKENS, OURS, Figures, Run, installed

NUMBER = 40
TITLE = (
    "lmi bench agrees within 5 % with guidellm and vllm bench serve on a paced server; a real one beside it"
)

CLOSED: dict[str, Any] = {"users": 8, "requests": 64}
"""Decides the throughput. On this server all answers end together, and which of the next prompts share a step depends
on milliseconds: times to the first token of two runs of one client differ by a half."""
OPEN: dict[str, Any] = {"rate": 1.5, "requests": 48}
"""Decides the time to the first token."""
FIRST_SECONDS, GAP_SECONDS = (0.1, 0.2, 0.4), 0.02
"""Of the paced server: to the first token, in turn by request, and to each other one."""
PACED_ROUNDS = 2
OPTIONS: dict[str, object] = {
    "max_rolling_batch_size": 8,
    "kv_cache_gb": 0.2,
    "enable_prefix_caching": False,
}
MOST_APART = 0.05
MEASURES: Mapping[str, Callable[[Figures], float]] = {
    "tokens/s": lambda figures: figures.tokens_per_second,
    "median TTFT": lambda figures: figures.ttft,
}

Round = dict[str, Figures]
"""By client."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the clients take turns."""

    rounds: int = 5

    def verify(self, lab: Lab, report: Report) -> None:
        clients = installed(report.figure)
        others = [name for name in clients if name != OURS]
        report.require(bool(others), f"installed besides: {', '.join(others) or 'none'}")
        servers, loads = sorted(os.sched_getaffinity(0))[:1], sorted(os.sched_getaffinity(0))[-1:]

        def turns(url: str, seed: int, load: Mapping[str, Any]) -> Round:
            order = list(clients) if seed % 2 else list(clients)[::-1]
            with _on(loads):
                found = {name: clients[name](Run(url, lab.model, lab.folder, seed, **load)) for name in order}
            for name, one in found.items():
                report.figure(f"{name}: {one.tokens_per_second:.1f} tokens/s, median TTFT {one.ttft:.3f} s")
            return found

        report.figure(f"a paced server, {CLOSED['users']} users:")
        with _on(servers), ScriptedServer(_paced) as paced:
            rounds = [turns(paced.url, seed, CLOSED) for seed in range(PACED_ROUNDS)]
        for name in others:
            for words, of in MEASURES.items():
                ratio = statistics.fmean(of(one[OURS]) / of(one[name]) for one in rounds)
                report.require(
                    abs(ratio - 1) <= MOST_APART, f"paced: {words}: {ratio:.3f} of what {name} reports"
                )

        with _on(servers):
            server = lab.ready("other-clients", **OPTIONS)
        with server:
            report.figure(f"this server, {CLOSED['users']} users:")
            closed = [turns(server.base_url, seed, CLOSED) for seed in range(self.rounds)]
            report.figure(f"this server, {OPEN['rate']} requests/s:")
            opened = [turns(server.base_url, seed, OPEN) for seed in range(self.rounds)]
        for name in others:
            for (words, of), found in zip(MEASURES.items(), (closed, opened), strict=True):
                seen = ratio_of_rounds((of(one[OURS]) / of(one[name]) for one in found), 1)
                assert seen is not None
                report.figure(
                    f"{words}: {seen.value:.3f} of what {name} reports (95 % interval {seen.low:.3f} to"
                    f" {seen.high:.3f})"
                )


def _paced(number: int, body: Mapping[str, Any]) -> Script:
    return Script(
        first_seconds=FIRST_SECONDS[number % len(FIRST_SECONDS)],
        gap_seconds=GAP_SECONDS,
        prompt_tokens=INPUT_TOKENS,
    )


@contextmanager
def _on(cores: list[int]) -> Iterator[None]:
    """What is started meanwhile has these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


verify = Agreement().verify

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--rounds", type=int, default=Agreement().rounds)
    run_alone(NUMBER, TITLE, Agreement(parser.parse_args().rounds).verify)
