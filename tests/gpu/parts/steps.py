"""Part `steps`: decode steps of real shapes with random weights as shares of their floors; what the host takes in a step,
and for how long the GPU waits for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engines.core import SamplingParams
from engines.mpi.step_plan import StepPlan
from engines.sampling.batch import SamplingRow
from tests.gpu import ceilings, timeline
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, free, greedy, random_prompts
from tests.gpu.floors import Ceilings, decode_work, prefill_work
from tests.gpu.shapes import real, write
from tests.gpu.timing import Call, time_calls
from tests.support.plans import PlanMaker

_GREEDY = SamplingParams(max_new_tokens=1)


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    batches: dict[int, str]
    """Sequences, and the target of a step of so many."""
    idle_target: str = ""
    """Of the largest batch."""


MODELS = (
    Model("llama-3-8b", {1: "llama-1", 32: "llama-32", 256: "llama-256"}, "idle-llama"),
    Model("qwen3-0.6b", {1: "", 32: "", 256: ""}, "idle-qwen"),
    Model("falcon-40b", {1: "", 32: "falcon-32"}),
    Model("mixtral-8x7b", {1: "", 32: "mixtral-32"}),
)


def run(context: Context) -> None:
    limits = ceilings.measure(context)
    free(context.device)
    for model in context.size(MODELS, MODELS[:1]):
        with context.results.guard(model.name):
            _measure(context, limits, model)
        free(context.device)


def _measure(context: Context, ceilings_: Ceilings, model: Model) -> None:
    keys = context.size(1024, 40)
    batches = context.size(model.batches, {2: model.batches[1]})
    most, longest = max(batches), context.size(2048, 64)
    started = time.perf_counter()
    engine = Engine(
        write(real(model.name, context.smoke), context.folder / model.name),
        context.device,
        Limits(most, longest, context.size(2048, 48), max(most * (keys + 160), 2 * longest)),
    )
    engine.fill_cache()
    context.results.figure(f"{model.name}: loaded and captured", time.perf_counter() - started, "s")
    replays: dict[int, float] = {}
    for batch, target in batches.items():
        plan = _decode_plan(engine, batch, keys)
        replays[batch] = _decode(context, ceilings_, engine, model.name, plan, target)
    if model.name == "qwen3-0.6b" or context.smoke:
        _graphs(context, engine, model.name, _decode_plan(engine, 1, keys))
    if model.name == "llama-3-8b":
        _prefill(context, ceilings_, engine, model.name, context.size(2048, 32))
    _host(context, engine, model, most, keys, replays[most])


def _decode_plan(engine: Engine, batch: int, keys: int) -> StepPlan:
    """The last of so many keys of each sequence, whose pages lie anywhere."""
    block_size, cache = engine.limits.block_size, engine.runner.cache
    pages = -(-keys // block_size)
    order = torch.randperm(cache.num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    maker = PlanMaker(block_size)
    for row in range(batch):
        maker.begin(row, order[row * pages : (row + 1) * pages], keys - 1)
    return maker.plan({row: [row % 97] for row in range(batch)})


def _step(engine: Engine, plan: StepPlan) -> Call:
    """What one step takes, from its plan on."""
    rows = [SamplingRow(f"step {i}", _GREEDY, [0], 1) for i in range(plan.num_sampled)]
    engine.runner.update(plan)

    def call() -> object:
        return engine.runner.compute(engine.runner.prepare(plan), rows=rows)

    return call


def _decode(
    context: Context, ceilings_: Ceilings, engine: Engine, name: str, plan: StepPlan, target: str
) -> float:
    """Seconds of the graph alone, again and again."""
    step = _step(engine, plan)
    step()
    batch = engine.runner.prepare(plan)
    title = f"{name}, decode of {plan.num_sequences} at {plan.starts[0] + 1} keys"
    replay: Call = step
    if context.device.type == "cuda":
        if not batch.bucket:
            raise AssertionError(f"no graph was captured for {plan.num_sequences} sequences")
        graphs = engine.runner._steps._graphs

        def replay() -> object:  # type: ignore[no-redef]
            with torch.inference_mode():
                return graphs.replay(batch.bucket, batch.numbers)

    timing = time_calls([replay], context.device, repeats=context.size(30, 1))
    work = decode_work(engine.config, plan.num_sequences, plan.num_sequences * (plan.starts[0] + 1))
    floor = work.floor(ceilings_)
    context.results.time(
        f"{title}, graph alone", timing, share=floor / timing.median, of="its floor", target=target,
        note=f"floor {floor * 1e3:.2f} ms, {plan.num_sequences / timing.median:.0f} tokens/s",
    )
    return timing.median


def _graphs(context: Context, engine: Engine, name: str, plan: StepPlan) -> None:
    step = _step(engine, plan)
    with_graphs = time_calls([step], context.device, repeats=context.size(30, 1))
    with engine.eagerly():
        without = time_calls([step], context.device, repeats=context.size(10, 1))
    context.results.time(f"{name}, whole step of 1 sequence, with graphs", with_graphs)
    context.results.time(
        f"{name}, whole step of 1 sequence, without graphs", without,
        share=without.median / with_graphs.median, of="the time with them", target="graphs",
    )


def _prefill(context: Context, ceilings_: Ceilings, engine: Engine, name: str, length: int) -> None:
    block_size = engine.limits.block_size
    maker = PlanMaker(block_size)
    maker.begin(0, range(-(-length // block_size)))
    prompt = random_prompts(engine.config.vocab_size, (length,), 3)[0]
    timing = time_calls([_step(engine, maker.plan({0: prompt}))], context.device, repeats=context.size(10, 1))
    rate = prefill_work(engine.config, length).operations / timing.median
    context.results.time(
        f"{name}, prefill of {length}", timing, share=rate / ceilings_.matmul, of="matmul rate",
        target="llama-prefill", note=f"{rate / 1e12:.0f} TFLOP/s, launched kernel by kernel",
    )


def _host(
    context: Context, engine: Engine, model: Model, batch: int, keys: int, replay: float
) -> None:
    """The step loop while all sequences generate: wall time a step against what the graph alone takes."""
    steps = context.size(100, 4)
    running = engine.start()
    prompts = random_prompts(engine.config.vocab_size, (keys - steps // 2 - 4,) * batch, 4)
    for i, prompt in enumerate(prompts):
        running.core.add(greedy(f"{model.name} {i}", prompt, engine.limits.max_model_len - len(prompt)))
    begun: set[str] = set()
    while len(begun) < batch:
        begun.update(_step_ids(running.core.step()))
    for _ in range(4):
        running.core.step()
    before = engine.stopwatch.totals.get("wait", 0.0)
    started = time.perf_counter()
    for _ in range(steps):
        running.core.step()
    wall = (time.perf_counter() - started) / steps
    waited = (engine.stopwatch.totals.get("wait", 0.0) - before) / steps
    title = f"{model.name}, {batch} sequences"
    context.results.figure(f"{title}: whole step", wall * 1e3, "ms")
    context.results.figure(f"{title}: host's part of it, hidden behind the GPU's", (wall - waited) * 1e3, "ms")
    idle = max(0.0, 1.0 - replay / wall)
    context.results.share(
        f"{title}: GPU idle between steps", (wall - replay) * 1e3, "ms", idle, "the step", model.idle_target,
        "whole step less the graph alone",
    )
    if context.device.type == "cuda":
        with context.results.guard(f"{title}: GPU idle, by the profiler"):
            gaps = timeline.idle_share([running.core.step] * 20)
            context.results.figure(
                f"{title}: GPU idle, by the profiler", 100 * gaps, "%", "gaps above 5 us; the profiler slows the host"
            )
    for request_id in running.core.request_ids():
        running.core.abort(request_id)
    while running.core.has_work:
        running.core.step()


def _step_ids(outputs: Sequence) -> set[str]:  # type: ignore[type-arg]
    return {output.id for output in outputs}
