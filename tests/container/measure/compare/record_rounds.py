"""Record the rounds of `aa_rounds.json`: two equal configurations, real servers, whatever noise the machine has.

    python -m tests.container.measure.compare.record_rounds rolling|dynamic [COMPARISONS]

Each comparison has ten rounds by the real runner, in its order. Its servers stay up for all of them, to save time.
Under `dynamic` most of the time of a round is the delay of a batch, so the same machine makes less noise in it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from container.measure.bench.lengths import Lengths
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan, Scenario
from container.measure.compare.run import ComparisonRunner
from container.measure.compare.server_process import ReadyServer, ServerProcess
from container.measure.compare.summary import MEASURES
from container.progress import LogLines
from tests.container.measure.compare.made_up import make_configuration
from tests.container.measure.compare.simulated import NAMES, ROUNDS_FILE, Pair
from tests.lmi_server.fakes import MAX_MODEL_LEN, build_model_folder
from tests.support.paths import child_environment

_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class _Load:
    """A serving.properties without its model, and the scenario."""

    options: str
    scenario: Scenario


_LOADS = {
    "rolling": _Load(
        "engine=MPI\noption.kv_cache_gb=0.05\n", Scenario("rolling", 24, 16, 64, 8, Lengths.SPREAD)
    ),
    "dynamic": _Load(
        "engine=Python\nbatch_size=8\nmax_batch_delay=1000\n",
        Scenario("dynamic", 24, 4, 20, 4, Lengths.SPREAD),
    ),
}


@dataclass(slots=True)
class _KeptServers:
    """Starts one server for each configuration and gives out the same again."""

    running: dict[str, ServerProcess] = field(default_factory=dict)

    def __call__(self, config: Configuration, log: Path) -> ReadyServer:
        if config.name not in self.running:
            self.running[config.name] = ServerProcess.start(config, log, child_environment())
        return _Kept(self.running[config.name])

    def kill(self) -> None:
        for server in self.running.values():
            server.kill()


class _Kept:
    """A server that outlives its rounds."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
        self.start_up_seconds = server.start_up_seconds

    def peak_memory(self) -> int | None:
        return None

    def stop(self) -> None:
        """It serves the next rounds too."""

    def kill(self) -> None:
        """As `stop`."""


def _save_model(folder: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    build_model_folder(folder)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=2,
    )
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _record(
    configs: tuple[Configuration, ...], model: Path, scenario: Scenario, seed: int, folder: Path
) -> list[Pair]:
    """Figures by round, configuration and measure."""
    servers = _KeptServers()
    plan = Plan((scenario,), _ROUNDS, seed)
    try:
        made = ComparisonRunner(
            configs, plan, dict.fromkeys(NAMES, model), servers, folder, LogLines(sys.stderr)
        ).run()
    finally:
        servers.kill()
    assert not made.num_failed
    rounds = zip(*(made.of(name, scenario.name) for name in NAMES), strict=True)
    return [
        [{one.key: float(f"{one.of(result.figures):.4g}") for one in MEASURES} for result in pair]
        for pair in rounds
    ]


def _write(rounds: dict[str, list[Pair]]) -> None:
    """A line for each round."""
    lists = (
        f"{json.dumps(kind)}: [\n" + ",\n".join(json.dumps(pair) for pair in pairs) + "\n]"
        for kind, pairs in rounds.items()
    )
    ROUNDS_FILE.write_text("{" + ",\n".join(lists) + "}\n")


def main() -> None:
    kind = sys.argv[1]
    num_comparisons = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    load = _LOADS[kind]
    others = json.loads(ROUNDS_FILE.read_text()) if ROUNDS_FILE.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        model = _save_model(Path(made) / "model")
        configs = []
        for name in NAMES:
            folder = Path(made) / name
            folder.mkdir()
            (folder / "serving.properties").write_text(f"{load.options}option.model_id={model}\n")
            configs.append(
                replace(make_configuration(name), path=folder, model_folder=model, loading_timeout=120.0)
            )
        rounds: list[Pair] = []
        for number in range(num_comparisons):
            rounds += _record(tuple(configs), model, load.scenario, number * _ROUNDS, Path(made))
            _write({**others, kind: rounds})
            print(f"{len(rounds)} rounds, load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
