"""A row has the same bits whatever shares its step, on a CPU in fp32: each operation, then the whole model.

Beside each operation stands the same as torch does it by itself: how often its bits depend on the company, and what
the cure costs. On another processor or matmul library this is the check to run first.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings
from engines.models.config import ModelConfig
from engines.mpi.runner.model_runner import ModelRunner
from engines.parallel import SingleProcess
from engines.stopwatch import Stopwatch
from lmi_kernels import (
    LinearWeight,
    Workspace,
    attention,
    batch_invariant_rows,
    dense_rows_are_bit_equal,
    linear,
    pack,
)
from lmi_kernels.attention.grouped_cpu import cuts_long_sums
from lmi_kernels.attention.grouped_plan import GroupLimits, decode_order, plan_chunk, plan_decodes
from tests.support.plans import PlanMaker, run_plan
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import save_llama
from tests.verify.commands import last_line, run_python
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 21
TITLE = "A request's logits have the same bits however its steps are put together, on a CPU in fp32"

CPU = torch.device("cpu")
_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Out and in features of SmolLM2's layers."""
_KV_HEADS, _SHARE, _HEAD_DIM, _BLOCK_SIZE = 3, 3, 64, 16
_LENGTH = 420
_PROMPT_TOKENS, _NEW_TOKENS = 200, 6

Call = Callable[[], object]


def verify(lab: Lab, report: Report) -> None:
    report.figure(f"the matmul library cuts long sums where the tiles end: {cuts_long_sums()}")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                _check_packed_linear(report, threads)
                _check_attention(report, threads)
            _check_model(report, f"SmolLM2, {threads} threads", lab.model, "bf16")
        torch.set_num_threads(1)
        _time(report)
        _check_dense_rows(report, strict=False)
        _check_dense_rows(report, strict=True)
        if dense_rows_are_bit_equal():
            with tempfile.TemporaryDirectory() as folder:
                shape = {"hidden_size": 144, "head_dim": 16, "intermediate_size": 256}
                save_llama(Path(folder), seed=1, max_position_embeddings=512, **shape)
                _check_model(report, "a model whose weights fp16 does not hold", Path(folder), "fp32")
    finally:
        torch.set_num_threads(before)


def _check_packed_linear(report: Report, threads: int) -> None:
    generator = fresh_generator()
    alone = padded = cases = 0
    for shape in _SHAPES:
        weight = _weight(shape, False, generator)
        x = torch.randn(96, shape[1], generator=generator)
        expected = linear(x, weight)
        for num_rows in (*range(1, 70), 127, 128, 129, 255, 256, 257):
            counts = num_rows, batch_invariant_rows(num_rows)
            rows = torch.tensor(integers(generator, 0, 96, counts[1]))
            differ = [not torch.equal(linear(x[rows[:n]], weight), expected[rows[:n]]) for n in counts]
            cases, alone, padded = cases + 1, alone + differ[0], padded + differ[1]
    report.require(
        padded == 0,
        f"packed products, {threads} threads: {alone} of {cases} row counts differ as they are, {padded} padded",
    )


def _check_dense_rows(report: Report, strict: bool) -> None:
    """As `option.batch_invariant` starts the ranks (`strict`), or not."""
    mode = "AUTO,STRICT" if strict else "AUTO"
    found = json.loads(
        last_line(run_python("-m", "tests.support.dense_rows", environment={"MKL_CBWR": mode}))
    )
    text = (
        f"dense products, MKL_CBWR={mode}: promised {found['promised']}, {len(found['unequal'])} cases differ"
    )
    report.require(not (found["promised"] and found["unequal"]), text)


def _check_attention(report: Report, threads: int) -> None:
    """Chunks of one sequence, in pages and among others, against all of it at once; the same by torch's own."""
    generator, rng = fresh_generator(), random.Random(threads)
    q, pool, table = _sequence(_LENGTH, generator)
    workspace = Workspace()
    whole = _attend(q, pool, table, 0, workspace)
    keys_values = pool[:, :, table].reshape(2, _KV_HEADS, -1, _HEAD_DIM)[:, :, :_LENGTH]
    fused = _fused(q, keys_values, 0)
    cases = ours = torchs = 0
    for _ in range(150):
        size = rng.choice([1, 1, 2, 37, 64, 200])
        start = rng.randrange(_LENGTH - size + 1)
        stop = start + size
        others = [rng.randint(1, _LENGTH) for _ in range(rng.randint(0, 7))] if size == 1 else []
        cases += 1
        results = _attend(q[start:stop], pool, table, start, workspace, others)
        ours += not torch.equal(results, whole[start:stop])
        torchs += not torch.equal(_fused(q[start:stop], keys_values[:, :, :stop], start), fused[start:stop])
    text = (
        f"attention, {threads} threads: {torchs} of {cases} chunks differ with torch's own, {ours} with ours"
    )
    report.require(ours == 0, text)


def _check_model(report: Report, name: str, folder: Path, dtype: str) -> None:
    """Logits of the prompt's last token and of some more, by ways to compute them."""
    vocab_size = ModelConfig.from_folder(folder).vocab_size
    rng = random.Random(_PROMPT_TOKENS)
    tokens = [rng.randrange(vocab_size) for _ in range(_PROMPT_TOKENS + _NEW_TOKENS)]
    seen: dict[str, torch.Tensor] = {}
    for paged in (True, False):
        runner = _runner(folder, dtype, paged)
        for sizes in ([_PROMPT_TOKENS], [64, 37, 1], [170, *[1] * 30]):
            for neighbours in (0, 7):
                way = f"{'paged' if paged else 'contiguous'}, chunks of {sizes[:3]}, {neighbours} neighbours"
                seen[way] = _logits(runner, tokens, sizes, neighbours, paged, rng)
    first = next(iter(seen.values()))
    differing = [way for way, logits in seen.items() if not torch.equal(logits, first)]
    report.require(
        not differing,
        f"{name}: logits of {_NEW_TOKENS + 1} positions equal in {len(seen)} ways to compute them",
    )
    for way in differing:
        report.figure(f"  {way}: differs by {(seen[way] - first).abs().max().item():.2g}")


def _logits(
    runner: ModelRunner, tokens: list[int], sizes: list[int], neighbours: int, paged: bool, rng: random.Random
) -> torch.Tensor:
    """[_NEW_TOKENS + 1, vocab_size]: the prompt in chunks of these sizes in turn, then token by token."""
    maker = PlanMaker(_BLOCK_SIZE)
    each = -(-(len(tokens) + 1) // _BLOCK_SIZE)
    blocks = list(range(each * (neighbours + 1)))
    if paged:
        rng.shuffle(blocks)
    for row in range(neighbours + 1):
        maker.begin(row, blocks[row * each : (row + 1) * each])
    found = []
    step = 0
    while maker.computed[0] < len(tokens):
        done = maker.computed[0]
        until = _PROMPT_TOKENS if done < _PROMPT_TOKENS else done + 1
        chunks = {0: tokens[done : min(until, done + sizes[step % len(sizes)])]}
        for row in range(1, neighbours + 1):
            # Some decode, some prefill, some begin anew; those that are at their end sit out.
            size = min(rng.choice([1, 1, 1, 9]), len(tokens) - maker.computed[row])
            if size > 0:
                chunks[row] = [rng.randrange(90) for _ in range(size)]
        logits = run_plan(runner, maker.plan(chunks)).logits
        if logits is None:
            raise ValueError("a step of rank 0 gave no logits")
        if maker.computed[0] >= _PROMPT_TOKENS:
            found.append(logits[0].clone())
        step += 1
    return torch.stack(found)


def _time(report: Report) -> None:
    """Ratios of the least of many short runs, taken in turns."""
    generator, workspace = fresh_generator(), Workspace()
    with torch.inference_mode():
        for dense in (False, True):
            # Several layers, so that weights come from memory as they do in a model.
            weights = [(shape[1], _weight(shape, dense, generator)) for shape in _SHAPES * 12]
            ratios = []
            for num_rows in (1, 8, 32, 256):
                padded = batch_invariant_rows(num_rows, dense)
                plain, cured = _least(_products(weights, num_rows), _products(weights, padded), 12)
                ratios.append(f"{num_rows} rows {cured / plain:.2f}")
            report.figure(
                f"{'dense' if dense else 'packed'} products, time padded / as is: {', '.join(ratios)}"
            )
        for size, start in ((256, 0), (1024, 0), (256, 1024), (1024, 1024)):
            q, pool, _ = _sequence(start + size, generator)
            table = list(range(-(-(start + size) // _BLOCK_SIZE)))
            keys_values = pool.view(2, _KV_HEADS, -1, _HEAD_DIM)[:, :, : start + size]
            fused, ours = _least(
                lambda q=q[start:], kv=keys_values, start=start: _fused(q, kv, start),
                lambda q=q[start:], pool=pool, table=table, start=start: _attend(
                    q, pool, table, start, workspace
                ),
                6,
            )
            report.figure(f"attention of {size} tokens behind {start}: time / torch's own {ours / fused:.2f}")


def _products(weights: list[tuple[int, LinearWeight]], num_rows: int) -> Call:
    inputs = {width: torch.randn(num_rows, width) for width, _ in weights}
    return lambda: [linear(inputs[width], weight) for width, weight in weights]


def _least(one: Call, other: Call, repeats: int) -> tuple[float, float]:
    seconds = [float("inf"), float("inf")]
    for _ in range(repeats):
        for i, call in enumerate((one, other)):
            started = time.perf_counter()
            call()
            seconds[i] = min(seconds[i], time.perf_counter() - started)
    return seconds[0], seconds[1]


def _weight(shape: tuple[int, int], dense: bool, generator: torch.Generator) -> LinearWeight:
    weight = (torch.randn(shape, generator=generator) * 0.05).half().float()
    if dense:
        weight[0, 0] = 1 / 3
    return pack(weight)


def _sequence(length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Queries of all positions, a pool, and the sequence's shuffled blocks in it."""
    num_blocks = -(-length // _BLOCK_SIZE)
    q = torch.randn(length, _KV_HEADS * _SHARE, _HEAD_DIM, generator=generator)
    pool = torch.randn(2, _KV_HEADS, num_blocks, _BLOCK_SIZE, _HEAD_DIM, generator=generator)
    return q, pool, torch.randperm(num_blocks, generator=generator).tolist()


def _attend(
    q: torch.Tensor,
    pool: torch.Tensor,
    table: list[int],
    start: int,
    workspace: Workspace,
    others: list[int] | None = None,
) -> torch.Tensor:
    """Of the queries from position `start` on, with others that share blocks and are so many keys long."""
    limits = GroupLimits(_BLOCK_SIZE, pool.shape[2], _KV_HEADS, 2048)
    out = torch.empty_like(q)
    if len(q) > 1:
        attention(q, pool, [plan_chunk(0, len(q), start + len(q), table, limits)], workspace, out)
        return out
    lens = [start + 1, *(others or [])]
    order = decode_order(lens, [table] * len(lens), contiguous=False)
    groups = plan_decodes([lens[i] for i in order], [table] * len(lens), limits, False)
    queries = q.expand(len(lens), -1, -1)
    results = torch.empty(queries.shape)
    attention(queries, pool, groups, workspace, results)
    place = order.index(0)
    return results[place : place + 1]


def _fused(q: torch.Tensor, keys_values: torch.Tensor, start: int) -> torch.Tensor:
    """torch's own attention: what the bits are without care."""
    length = keys_values.shape[2]
    keys, values = keys_values.repeat_interleave(_SHARE, dim=1)
    mask = torch.zeros(len(q), length).masked_fill_(
        torch.arange(length) > torch.arange(start, length)[:, None], -torch.inf
    )
    o = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask if start else None,
        is_causal=not start,
    )
    return o[0].transpose(0, 1)


def _runner(folder: Path, dtype: str, paged: bool) -> ModelRunner:
    limits = SchedulerSettings(
        max_num_seqs=8, max_prefill_tokens=512, max_num_batched_tokens=512, max_waiting=8
    )
    config = MpiEngineConfig(
        model=ModelSettings(str(folder), "verified", dtype, 512),
        parallel=ParallelConfig(batch_invariant=True),
        cache=CacheConfig(
            _BLOCK_SIZE, paged, 2048 * 4 * ModelConfig.from_folder(folder).kv_elements_per_token
        ),
        scheduler=SchedulerConfig(limits),
    )
    return ModelRunner(config, SingleProcess(), CPU, Stopwatch(lambda: 0.0))


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
