"""Run a load on a simulated server, and return the outcomes of all requests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from container.measure.bench.figures import Figures, failure, figures
from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.scenario import Scenario
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchRequest
from container.measure.simulate.clients import VirtualSocket
from container.measure.simulate.clock import VirtualClock
from container.measure.simulate.prompts import virtual_requests
from container.measure.simulate.server import SimulatedServer
from container.measure.simulate.step_times import StepTimes
from engines.config import MpiEngineConfig
from engines.core import EngineStats


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of one run in virtual time."""

    metrics: Figures
    run: LoadRun
    requests: tuple[BenchRequest, ...]
    stats: EngineStats
    """The engine's counters at the end."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of successful requests."""
        pairs = zip(self.run.outcomes, self.requests, strict=True)
        return sum(request.prompt_tokens for outcome, request in pairs if not failure(outcome, request))


def simulate(
    server: SimulatedServer,
    times: StepTimes,
    scenario: Scenario,
    *,
    seed: int = 0,
    timeout: float = 600.0,
    slo: Slo | None = None,
    on_done: Callable[[RequestOutcome], None] = lambda outcome: None,
    step_trace: str = "",
) -> Simulation:
    """Run a load on a server in virtual time. The same arguments give the same result.

    times: such as `Roofline(server, target)`.
    timeout: seconds after which a client disconnects and its request counts as failed.
    on_done: called after each request.
    step_trace: as `option.step_trace`, with virtual times; engine=MPI only.
    """
    clock = VirtualClock()
    requests, prompt = virtual_requests(scenario.workload, seed, server.model.vocab_size)
    sessions = scenario.arrivals.sessions(requests, seed)
    socket = VirtualSocket(clock, sessions, prompt, timeout, server.predict_timeout, on_done)
    engine = server.engine
    with tempfile.TemporaryDirectory(prefix="lmi-simulate-") as folder:
        if isinstance(engine, MpiEngineConfig):
            from container.measure.simulate import rolling  # imports torch

            rolling.serve(server, engine, times, clock, socket, Path(folder), step_trace)
        else:
            from container.measure.simulate import dynamic

            dynamic.serve(server, engine, times, clock, socket, Path(folder))
    run = socket.run()
    if socket.stats is None:
        raise RuntimeError("the engine ended without its counters")
    return Simulation(figures(run, requests, slo), run, requests, socket.stats)
