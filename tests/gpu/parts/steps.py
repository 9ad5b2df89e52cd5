"""Parts `steps` and `steps-large`: decode steps of real shapes with random weights as shares of their floors, the
host's time per step, and how long the GPU waits for the host."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engines.core import SamplingParams
from engines.mpi.scheduler.step_plan import WANT_NOTHING, StepPlan
from engines.sampling.batch import SamplingRow
from tests.gpu import ceilings
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, free, random_prompts
from tests.gpu.floors import Ceilings, decode_work, mixed_work, prefill_work
from tests.gpu.generating import decoding_batch
from tests.gpu.shapes import memory_bytes, real, write
from tests.gpu.timing import Call, time_calls
from tests.support.plans import PlanMaker

_GREEDY = SamplingParams(max_new_tokens=1)
_NUCLEUS = SamplingParams(max_new_tokens=1, temperature=0.8, top_p=0.9, seed=1)


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    batches: dict[int, str]
    """Targets of a decode step by number of sequences; empty: no target."""
    idle_target: str = ""
    """Target for the GPU's idle time with the largest batch."""


MODELS = {
    "small": (
        Model("llama-3-8b", {1: "llama-1", 32: "llama-32", 256: "llama-256"}, "idle-llama"),
        Model("qwen3-0.6b", {1: "", 32: "", 256: ""}, "idle-qwen"),
    ),
    "large": (
        Model("falcon-40b", {1: "", 32: "falcon-32"}),
        Model("mixtral-8x7b", {1: "", 32: "mixtral-32"}),
    ),
}


def run(context: Context, models: str) -> None:
    limits = ceilings.measure(context)
    free(context.device)
    for model in context.size(MODELS[models], MODELS["small"][:1]):
        folder = write(real(model.name, context.smoke), context.folder / model.name)
        if context.has_memory_for(memory_bytes(folder), model.name):
            with context.results.guard(model.name):
                _measure(context, limits, model)
        free(context.device)


def _measure(context: Context, ceilings_: Ceilings, model: Model) -> None:
    keys = context.size(1024, 20)
    batches = context.size(model.batches, {2: model.batches[1]})
    largest, longest = max(batches), context.size(2048, 64)
    started = time.perf_counter()
    engine = load(context, model.name, largest, longest)
    engine.fill_cache()
    context.results.figure(f"{model.name}: loading and graph capture", time.perf_counter() - started, "s")
    for batch, target in batches.items():
        _decode(context, ceilings_, engine, model.name, decode_plan(engine, batch, keys), target)
    for batch in (min(batches), largest):
        with context.results.guard(f"{model.name}, decode of {batch} with top-p"):
            _nucleus(context, engine, model.name, decode_plan(engine, batch, keys))
    if model.name == "qwen3-0.6b" or context.smoke:
        _graphs(context, engine, model.name, decode_plan(engine, 1, keys))
    if model.name == "llama-3-8b":
        _prefill(context, ceilings_, engine, model.name, context.size(2048, 16))
    with context.results.guard(f"{model.name}, mixed step"):
        _mixed(context, ceilings_, engine, model.name, largest, keys)
    with context.results.guard(f"{model.name}: launched without synchronization"):
        _check_no_synchronization(context, engine, model.name, decode_plan(engine, min(batches), keys))
    if context.has_time_for(20.0, f"{model.name}: the step loop"):
        _host(context, engine, model, largest, keys)


def load(context: Context, name: str, num_seqs: int, longest: int) -> Engine:
    """Load an engine for sequences somewhat longer than `longest` / 2, and for one more sequence's prompt."""
    tokens = max(num_seqs * (longest // 2 + 256), 2 * longest) + longest
    return Engine(
        write(real(name, context.smoke), context.folder / name),
        context.device,
        Limits(num_seqs + 1, longest, context.size(8192, 32), tokens),
    )


def decode_plan(engine: Engine, batch: int, keys: int) -> StepPlan:
    """Plan a decode step. Each sequence has `keys` keys, the new one included, in scattered pages."""
    block_size, cache = engine.limits.block_size, engine.runner.cache
    pages = -(-keys // block_size)
    order = torch.randperm(cache.num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    maker = PlanMaker(block_size)
    for row in range(batch):
        maker.begin(row, order[row * pages : (row + 1) * pages], keys - 1)
    return maker.plan({row: [row % 97] for row in range(batch)})


def step(engine: Engine, plan: StepPlan, params: SamplingParams = _GREEDY) -> Call:
    """Return a call that prepares and computes one step."""
    rows = [SamplingRow(f"step {i}", params, [0], 1) for i in range(plan.num_sampled)]
    engine.runner.steps.update(plan)

    def call() -> object:
        return engine.runner.steps.compute(engine.runner.steps.prepare(plan), rows=rows)

    return call


def replay(engine: Engine, plan: StepPlan, params: SamplingParams = _GREEDY) -> Call:
    """Return a call that replays the graph alone. On a CPU, which has no graphs, it runs the whole step."""
    whole = step(engine, plan, params)
    whole()
    if engine.device.type != "cuda":
        return whole
    batch, graphs = engine.runner.steps.prepare(plan), engine.runner.steps._graphs
    if not batch.bucket:
        raise AssertionError(f"no graph was captured for {len(plan.rows)} sequences")

    @torch.inference_mode()
    def replay_graph() -> object:
        return graphs.replay(batch.bucket, batch.numbers)

    return replay_graph


def _decode(
    context: Context, ceilings_: Ceilings, engine: Engine, name: str, plan: StepPlan, target: str
) -> None:
    timing = time_calls([replay(engine, plan)], context.device, repeats=context.size(30, 1))
    batch, keys = len(plan.rows), plan.starts[0] + 1
    floor = decode_work(engine.config, batch, batch * keys).floor(ceilings_)
    context.results.time(
        f"{name}, decode of {batch} at {keys} keys, graph alone",
        timing,
        share=floor / timing.median,
        of="its floor",
        target=target,
        note=f"floor {floor * 1e3:.2f} ms, {batch / timing.median:.0f} tokens/s",
    )


def _graphs(context: Context, engine: Engine, name: str, plan: StepPlan) -> None:
    whole = step(engine, plan)
    with_graphs = time_calls([whole], context.device, repeats=context.size(30, 1))
    with engine.eagerly():
        without = time_calls([whole], context.device, repeats=context.size(10, 1))
    context.results.time(f"{name}, whole step of 1 sequence, with graphs", with_graphs)
    context.results.time(
        f"{name}, whole step of 1 sequence, without graphs",
        without,
        share=without.median / with_graphs.median,
        of="the time with graphs",
        target="graphs",
    )


def _nucleus(context: Context, engine: Engine, name: str, plan: StepPlan) -> None:
    """Time top-p sampling against greedy sampling. The same graph serves both."""
    repeats, batch = context.size(30, 1), len(plan.rows)
    greedy = time_calls([replay(engine, plan)], context.device, repeats)
    nucleus = time_calls([replay(engine, plan, _NUCLEUS)], context.device, repeats)
    context.results.time(
        f"{name}, decode of {batch} with top-p {_NUCLEUS.top_p}, graph alone",
        nucleus,
        share=nucleus.median / greedy.median,
        of="the time of greedy sampling",
    )


def prefill_plan(engine: Engine, length: int) -> StepPlan:
    block_size = engine.limits.block_size
    maker = PlanMaker(block_size)
    maker.begin(0, range(-(-length // block_size)))
    return maker.plan({0: random_prompts(engine.config.vocab_size, (length,), 3)[0]})


def _prefill(context: Context, ceilings_: Ceilings, engine: Engine, name: str, length: int) -> None:
    timing = time_calls(
        [step(engine, prefill_plan(engine, length))], context.device, repeats=context.size(10, 1)
    )
    rate = prefill_work(engine.config, length).operations / timing.median
    context.results.time(
        f"{name}, prefill of {length}",
        timing,
        share=rate / ceilings_.matmul,
        of="matmul rate",
        target="llama-prefill",
        note=f"{rate / 1e12:.0f} TFLOP/s, without a graph",
    )
    repeats = context.size(400, 1)
    operations, product = ceilings.time_matmul(context, repeats)
    context.results.figure(
        f"{name}: bf16 matmul, median of {repeats} in succession",
        operations / product.median / 1e12,
        "TFLOP/s",
    )


def _mixed(context: Context, ceilings_: Ceilings, engine: Engine, name: str, batch: int, keys: int) -> None:
    """Time a step that decodes all sequences and prefills a chunk of another prompt."""
    block_size, chunk = engine.limits.block_size, context.size(512, 5)
    pages = -(-keys // block_size)
    maker = PlanMaker(block_size)
    for row in range(batch):
        maker.begin(row, range(row * pages, (row + 1) * pages), keys - 1)
    maker.begin(batch, range(batch * pages, batch * pages + -(-chunk // block_size)))
    prompt = random_prompts(engine.config.vocab_size, (chunk,), 5)[0]
    plan = maker.plan({**{row: [row % 97] for row in range(batch)}, batch: prompt}, {batch: WANT_NOTHING})
    timing = time_calls([step(engine, plan)], context.device, repeats=context.size(10, 1))
    floor = mixed_work(engine.config, batch, batch * keys, chunk).floor(ceilings_)
    context.results.time(
        f"{name}, mixed step: {batch} decodes at {keys} keys and a chunk of {chunk}",
        timing,
        share=floor / timing.median,
        of="its floor",
        note=f"floor {floor * 1e3:.2f} ms, without a graph",
    )


def _check_no_synchronization(context: Context, engine: Engine, name: str, plan: StepPlan) -> None:
    """Make CUDA calls that wait for the device raise an error, with tokens sampled by the device and by the host."""
    by_host = SamplingParams(max_new_tokens=1, top_logprobs=1)
    for params, sampler in ((_GREEDY, "device"), (by_host, "host")):
        call = step(engine, plan, params)
        call()
        if context.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            call()
            with engine.eagerly():
                call()
        finally:
            if context.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        context.results.check(
            f"{name}: launched without synchronization, tokens sampled by the {sampler}", True
        )


def _host(context: Context, engine: Engine, model: Model, batch: int, keys: int) -> None:
    """Time the step loop while all sequences are decoding: wall time per step against the graph alone."""
    steps = context.size(100, 2)
    with decoding_batch(engine, batch, keys - context.size(70, 8)) as decodes:
        for _ in range(context.size(4, 1)):
            decodes.step()
        mean = round(decodes.mean_length + steps / 2)
        before = engine.stopwatch.totals.get("wait", 0.0)
        started = time.perf_counter()
        for _ in range(steps):
            decodes.step()
        wall = (time.perf_counter() - started) / steps
        waited = (engine.stopwatch.totals.get("wait", 0.0) - before) / steps
    alone = replay(engine, decode_plan(engine, batch, mean))
    busy = time_calls([alone], context.device, repeats=context.size(30, 1)).median
    title = f"{model.name}, {batch} sequences"
    context.results.figure(f"{title}: whole step", wall * 1e3, "ms", f"at {mean} keys")
    context.results.figure(
        f"{title}: host time per step", (wall - waited) * 1e3, "ms", "overlaps with the GPU's work"
    )
    context.results.share(
        f"{title}: GPU idle time between steps",
        (wall - busy) * 1e3,
        "ms",
        max(0.0, 1.0 - busy / wall),
        "the step",
        model.idle_target,
        "whole step minus the graph alone",
    )
