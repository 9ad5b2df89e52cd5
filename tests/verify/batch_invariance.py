"""A request's logits have the same bits however its steps are put together, on a CPU in fp32.

Native products over many row counts, beside torch's own for comparison; then the bundled model's logits in 12
ways. Run this check first on another processor.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
import torch.nn.functional as F

from engines.config import CacheConfig, ModelSettings
from engines.models.architectures import read_config
from engines.mpi.runner.loading import LoadedModel
from lmi_kernels import linear, pack
from lmi_kernels.cpu.team import set_num_threads
from tests.support.plans import PlanMaker, load, run_plan
from tests.support.seeds import fresh_generator, integers
from tests.verify.lab import Lab, Report, run_alone

_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Output and input features of SmolLM2's layers."""
_BLOCK_SIZE = 16
_PROMPT_TOKENS, _NEW_TOKENS = 1100, 6
"""The context is longer than two of the parts into which attention is split."""
_MAX_TOKENS = 1536


def verify(lab: Lab, report: Report) -> None:
    seen: dict[str, torch.Tensor] = {}
    for threads in (1, 2):
        set_num_threads(threads)
        _check_products(report, threads)
        _check_model(report, f"SmolLM2, {threads} threads", lab.model, seen)


@torch.inference_mode()
def _check_products(report: Report, threads: int) -> None:
    generator = fresh_generator()
    cases = ours = torchs = 0
    for shape in _SHAPES:
        weight = torch.randn(shape, generator=generator) * 0.05
        native = pack(weight)
        x = torch.randn(96, shape[1], generator=generator)
        expected, expected_of_torch = linear(x, native), F.linear(x, weight)
        for num_rows in (*range(1, 70), 127, 128, 129, 255, 256, 257):
            rows = torch.tensor(integers(generator, 0, 96, num_rows))
            cases += 1
            ours += not torch.equal(linear(x[rows], native), expected[rows])
            torchs += not torch.equal(F.linear(x[rows], weight), expected_of_torch[rows])
    report.require(
        ours == 0,
        f"products, {threads} threads: of {cases} row counts, {torchs} differ with torch, {ours} with native kernels",
    )


def _check_model(report: Report, name: str, folder: Path, seen: dict[str, torch.Tensor]) -> None:
    """Compare the logits of the prompt's last token and of some more tokens, computed in several ways.

    seen: logits of other ways, which are compared too and added to.
    """
    vocab_size = read_config(folder).vocab_size
    rng = random.Random(_PROMPT_TOKENS)
    tokens = [rng.randrange(vocab_size) for _ in range(_PROMPT_TOKENS + _NEW_TOKENS)]
    for paged in (True, False):
        cache = CacheConfig(
            _BLOCK_SIZE, paged, 8 * _MAX_TOKENS * read_config(folder).kv_bytes_per_token("fp32", 1)
        )
        runner = load(ModelSettings(str(folder), "verified", "bf16", _MAX_TOKENS), cache, _MAX_TOKENS)
        for sizes in ([_PROMPT_TOKENS], [64, 37, 1], [170, *[1] * 30]):
            for neighbors in (0, 7):
                way = f"{name}, {'paged' if paged else 'contiguous'}, chunks of {sizes[:3]}, {neighbors} neighbors"
                seen[way] = _logits(runner, tokens, sizes, neighbors, paged, rng)
    first = next(iter(seen.values()))
    differing = [way for way, logits in seen.items() if not torch.equal(logits, first)]
    report.require(
        not differing,
        f"{name}: logits of {_NEW_TOKENS + 1} positions equal in {len(seen)} ways to compute them",
    )
    for way in differing:
        report.figure(f"  {way}: differs by {(seen[way] - first).abs().max().item():.2g}")


def _logits(
    runner: LoadedModel, tokens: list[int], sizes: list[int], neighbors: int, paged: bool, rng: random.Random
) -> torch.Tensor:
    """Compute the prompt in chunks of these sizes, then token by token: [_NEW_TOKENS + 1, vocab_size]."""
    maker = PlanMaker(_BLOCK_SIZE)
    blocks_per_row = -(-(len(tokens) + 1) // _BLOCK_SIZE)
    blocks = list(range(blocks_per_row * (neighbors + 1)))
    if paged:
        rng.shuffle(blocks)
    for row in range(neighbors + 1):
        maker.begin(row, blocks[row * blocks_per_row : (row + 1) * blocks_per_row])
    found = []
    step = 0
    while maker.computed[0] < len(tokens):
        done = maker.computed[0]
        until = _PROMPT_TOKENS if done < _PROMPT_TOKENS else done + 1
        chunks = {0: tokens[done : min(until, done + sizes[step % len(sizes)])]}
        for row in range(1, neighbors + 1):
            # Some rows decode, some prefill, some start. Rows that are complete are left out.
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


if __name__ == "__main__":
    run_alone(verify)
