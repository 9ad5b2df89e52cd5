"""One rank of engine=MPI, run by `engines.start`. Rank 0 schedules steps; the others run the plans that it sends.

Started by the supervisor, under mpirun when there are several ranks. Exits with 0 after a drain, otherwise with the
cause on stderr and on the status board.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.config import MpiEngineConfig
from engines.core import EngineInfo, Request, SamplingParams
from engines.engine_socket import EngineSocket
from engines.errors import RequestFailed, describe
from engines.health import EngineState, StatusBoard
from engines.metrics import EngineMetrics
from engines.mpi.cache.block_manager import make_block_manager
from engines.mpi.engine_core import EngineCore
from engines.mpi.leader import Leader
from engines.mpi.runner.executor import StepExecutor
from engines.mpi.runner.loading import LoadedModel, load_model
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.trace import StepTrace
from engines.parallel import Communicator, make_communicator
from engines.process import engine_arguments, process_age
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import set_num_threads, shared_team

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rank:
    """The parts of every rank."""

    config: MpiEngineConfig
    device: torch.device
    comm: Communicator
    model: LoadedModel
    executor: StepExecutor
    stopwatch: Stopwatch
    seconds: dict[str, float]
    """Seconds of the start-up, by part."""


def main(argv: list[str] | None = None) -> int:
    """Run one rank to its end; return the exit code."""
    arguments = engine_arguments(__doc__, argv)
    board = StatusBoard.open(arguments.status)
    try:
        config = MpiEngineConfig.from_json(arguments.config.read_text(encoding="utf-8"))
        rank = _start(config, board, arguments.status.parent)
        if rank.comm.rank == 0:
            _serve(rank, board, arguments.address)
        else:
            while rank.executor.run_next_plan():
                pass
        # CUDA graphs hold the group's communicator, whose destruction waits for them.
        rank.model.close()
        rank.comm.close()
    except Exception as error:  # edge of the process: the cause must be on the board before the exit
        logger.exception("the engine failed")
        board.set_state(EngineState.FAILED, describe(error))
        sys.stderr.flush()
        # Not `return`: finalizing MPI would wait for ranks that wait for this one.
        os._exit(1)
    return 0


def _start(config: MpiEngineConfig, board: StatusBoard, runtime: Path) -> _Rank:
    imported = process_age()
    # A single rank is started without mpirun, so the variable would belong to a job around the server.
    number = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")) if config.parallel.tp_size > 1 else 0
    who = f"copy {config.parallel.copy} rank {number}" if config.parallel.copy else f"engine rank {number}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {who} %(levelname)s %(message)s")
    set_num_threads(config.parallel.threads_per_rank, native=config.parallel.device == "cpu")
    device = torch.device("cpu")
    if config.parallel.device == "cuda":
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    comm = make_communicator(config.parallel.tp_size, device, runtime)
    ready = process_age()
    if device.type == "cpu" and (team := shared_team()) is not None:
        team.show_alive_at(board.heartbeat_view(comm.rank))
    stopwatch = Stopwatch(time.perf_counter, show_alive=lambda: board.beat(comm.rank))
    model = load_model(config, comm, device, stopwatch)
    report = model.report
    logger.info(
        "weights: rank %d owns %d bytes, read %d bytes in %.1f s, %.2f GB/s",
        comm.rank,
        report.owned_bytes,
        report.bytes_read,
        report.seconds["weights"],
        report.bytes_read / 1e9 / max(report.seconds["weights"], 1e-9),
    )
    logger.info("rank %d: memory in bytes: %s", comm.rank, report.memory)
    executor = StepExecutor(model.steps, comm, board, stopwatch)
    seconds = {"imports": imported, "ranks": ready - imported, **report.seconds}
    return _Rank(config, device, comm, model, executor, stopwatch, seconds)


def _serve(rank: _Rank, board: StatusBoard, address: str) -> None:
    config, cache = rank.config, rank.model.cache
    blocks = make_block_manager(
        cache.num_blocks,
        cache.block_size,
        config.cache.paged,
        config.cache.prefix_caching,
        rank.model.window,
    )
    vocab_size = rank.model.config.vocab_size
    scheduler = Scheduler(config.scheduler, blocks, config.model.max_model_len, vocab_size)
    sampler = Sampler(vocab_size, rank.device)
    trace = StepTrace(config.scheduler.step_trace)
    largest = rank.model.largest_step
    core = EngineCore(scheduler, blocks, rank.executor, sampler, rank.stopwatch, trace, largest)
    before = process_age()
    warm_up(core, _warm_up_request(config.model.max_model_len, vocab_size))
    seconds = {**rank.seconds, "warm-up": process_age() - before}
    # Loaded objects stay alive. Without the freeze, the garbage collector would scan them repeatedly while steps wait.
    gc.collect()
    gc.freeze()
    socket = EngineSocket(address)
    board.set_state(EngineState.READY)
    logger.info("ready; seconds by part: %s", {part: round(value, 1) for part, value in seconds.items()})
    Leader(core, _info(rank, seconds), socket, board, rank.stopwatch).serve()
    board.set_state(EngineState.STOPPED)


def warm_up(core: EngineCore, request: Request) -> None:
    """Run one request to its end, so that 'ready' means that the loaded model has computed.

    Raises:
        RequestFailed: the request failed.
    """
    core.add(request)
    while core.has_work:
        for output in core.step():
            if output.error_kind:
                raise RequestFailed(f"the warm-up failed: {output.error_message}")
    core.metrics = EngineMetrics()


def _warm_up_request(max_model_len: int, vocab_size: int) -> Request:
    new_tokens = min(2, max_model_len - 1)
    prompt = tuple(range(min(8, max_model_len - new_tokens, vocab_size)))
    return Request("warm-up", prompt, SamplingParams(max_new_tokens=new_tokens), time.monotonic())


def _info(rank: _Rank, seconds: dict[str, float]) -> EngineInfo:
    config, cache = rank.config, rank.model.cache
    capacity = cache.num_blocks * cache.block_size
    name = torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else "cpu"
    return EngineInfo(
        model=config.model.name,
        engine=config.engine,
        world_size=rank.comm.world_size,
        device=name,
        dtype=config.model.dtype,
        kv_capacity_tokens=capacity,
        kv_capacity_bytes=capacity * rank.model.kv_bytes_per_token,
        block_size=cache.block_size,
        max_num_seqs=config.scheduler.settings.max_num_seqs,
        max_model_len=config.model.max_model_len,
        paged_attention=config.cache.paged,
        load_seconds=seconds,
    )
