"""Processes of engine=MPI with a tiny random Llama, driven through their socket and status board."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import zmq

from engines.client import ClientStream, EngineClient
from engines.config import (
    CacheConfig,
    EngineConfig,
    ModelSettings,
    MpiEngineConfig,
    ParallelConfig,
    SchedulerConfig,
)
from engines.core import EngineStats, Request, RequestOutput, SamplingParams, SchedulerSettings
from engines.health import Health, StatusBoard
from engines.wire import Drain, encode
from tests.support import processes
from tests.support.paths import REPO_ROOT, child_environment

MAX_MODEL_LEN = 128
VOCAB_SIZE = 160
_WAIT_SECONDS = 200.0


def save_tiny_llama(folder: Path) -> None:
    """Save a random Llama with 6 heads and 3 KV heads. Its greedy output does not repeat itself too soon."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=MAX_MODEL_LEN,
        initializer_range=0.4,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).save_pretrained(folder)


def make_config(model: Path, degree: int = 1, paged: bool = True, *, num_blocks: int = 40) -> MpiEngineConfig:
    """A configuration so small that prompts are chunked and requests wait: 40 blocks of 8 tokens."""
    bytes_per_token = 2 * 2 * 3 * 8 * 4  # keys and values, layers, kv heads, head dimension, fp32
    return MpiEngineConfig(
        model=ModelSettings(str(model), "tiny", "fp32", MAX_MODEL_LEN),
        parallel=ParallelConfig(degree, "cpu", 1),
        cache=CacheConfig(block_size=8, paged=paged, kv_cache_bytes=num_blocks * 8 * bytes_per_token),
        scheduler=SchedulerConfig(SchedulerSettings(8, 16, 1000, max_waiting=100), "guaranteed_no_evict"),
    )


class EngineProcess:
    """An engine with its ranks and files. Call `wait_ready` before use, and `destroy` in any case."""

    module = "engines.mpi.worker"
    num_heartbeats = 1
    """For each rank."""

    def __init__(self, config: EngineConfig) -> None:
        # A separate folder with a short name: the path of a UNIX socket is limited to 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="lmi-engine-"))
        self._address = f"ipc://{self.folder}/engine.sock"
        ranks = config.parallel.tp_size
        self._board = StatusBoard.create(self.folder / "status", ranks * self.num_heartbeats)
        (self.folder / "engine.json").write_text(config.to_json(), encoding="utf-8")
        self._log = (self.folder / "log").open("wb")
        self._popen = subprocess.Popen(
            self._command(ranks),
            cwd=REPO_ROOT,
            env=child_environment({"OMP_NUM_THREADS": "1", "PRTE_MCA_prte_tmpdir_base": str(self.folder)}),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.client = EngineClient(self._address, self.folder / "status")

    def _command(self, ranks: int) -> list[str]:
        command = [sys.executable, "-m", "engines.start", self.module]
        command += ["--config", str(self.folder / "engine.json"), "--status", str(self.folder / "status")]
        command += ["--address", self._address]
        if ranks == 1:
            return command
        mpirun = [str(Path(sys.executable).parent / "mpirun"), "-n", str(ranks), "--allow-run-as-root"]
        return [*mpirun, "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,sm", *command]

    @property
    def health(self) -> Health:
        return self._board.read()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def ranks(self) -> dict[int, psutil.Process]:
        """The running ranks by number."""
        if self._popen.poll() is not None:
            return {}
        found = processes.descendants(self._popen.pid) | {psutil.Process(self._popen.pid)}
        return processes.engine_ranks(found)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self.health.ready:
            if self._popen.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine is not ready: {self.health.describe()}\n{self.log}")
            time.sleep(0.02)

    def wait_exit(self, timeout: float) -> int:
        """Return the exit code. Raises `subprocess.TimeoutExpired`."""
        return self._popen.wait(timeout)

    def submit(
        self, name: str, prompt: Sequence[int], max_new_tokens: int, stop: Sequence[int] = (), **more: Any
    ) -> ClientStream:
        """more: fields of `SamplingParams`."""
        sampling = SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=tuple(stop), **more)
        return self.client.submit(Request(name, tuple(prompt), sampling, time.monotonic()))

    def stats(self) -> EngineStats:
        stats = self.client.stats(_WAIT_SECONDS)
        if stats is None:
            raise RuntimeError(f"no stats: {self.health.describe()}\n{self.log}")
        return stats

    def drain(self, seconds: float) -> None:
        """Tell the engine to drain, over a separate connection as the supervisor does."""
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.connect(self._address)
        socket.send(encode(Drain(seconds)))
        socket.close(linger=60_000)
        context.term()

    def destroy(self) -> None:
        """Kill all remaining processes and remove the folder. Idempotent."""
        if not self.folder.exists():
            return
        leftover = processes.descendants(self._popen.pid)
        if self._popen.poll() is None:
            processes.kill([*leftover, psutil.Process(self._popen.pid)])
            self._popen.wait(60)
        processes.kill(leftover)
        self.client.close()
        self._board.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def next_output(stream: ClientStream) -> RequestOutput:
    """Return the next output. Raises TimeoutError if there is none in time."""
    output = stream.next(_WAIT_SECONDS)
    if output is None:
        raise TimeoutError("no output from the engine")
    return output


def collect(stream: ClientStream) -> list[RequestOutput]:
    """Return all outputs of a request."""
    outputs = [next_output(stream)]
    while not outputs[-1].finished:
        outputs.append(next_output(stream))
    return outputs


def tokens_of(outputs: Sequence[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
