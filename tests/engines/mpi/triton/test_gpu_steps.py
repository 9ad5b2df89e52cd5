"""The whole GPU path in the Triton interpreter: kernels, tables on the device, tokens selected and fed back there, and
steps planned before the tokens of the previous step are known. Oracle: transformers on the same weights."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from engines.core import Request, RequestOutput, SampledToken, SamplingParams
from engines.mpi.runner import gpu_steps, loading
from engines.mpi.scheduler.step_plan import UNKNOWN_TOKEN, WANT_LOGITS, WANT_NOTHING
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from lmi_kernels._triton import INTERPRETED
from tests.support.core_lab import CoreLab, Mode, Running
from tests.support.plans import PlanMaker, plans_in_chunks
from tests.support.recorded_graphs import EagerGraphs
from tests.support.representatives import representatives
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import (
    SHAPES,
    VOCAB_SIZE,
    load_oracle,
    make_runner,
    oracle_logits,
    save_llama,
    save_model,
)

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

_SHAPE: dict[str, Any] = {
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Heads are at least as wide as a matrix instruction. Everything else is small, because the interpreter takes
milliseconds for each program of a kernel."""
_ONE_LAYER = {"num_hidden_layers": 1}
_FALCON: dict[str, Any] = {"hidden_size": 64, "ffn_hidden_size": 40, "num_attention_heads": 4}
_OTHERS: dict[str, dict[str, Any]] = {
    "llama": _SHAPE | _ONE_LAYER,
    "mixtral": _SHAPE | _ONE_LAYER,
    "mistral": _SHAPE | {"sliding_window": 5},
    "falcon-rw": _FALCON | _ONE_LAYER,
    "falcon-7b": _FALCON,
    "falcon-40b": _FALCON,
    "qwen3_moe": _SHAPE | {"moe_intermediate_size": 24},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_inner": 40},
    "gpt_neox": {"hidden_size": 64, "intermediate_size": 40, "num_attention_heads": 4},
    "opt": {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 40, "num_attention_heads": 4},
    "mpt": {"d_model": 64, "n_heads": 4},
    "bloom": {"hidden_size": 64, "n_head": 4},
}
_IN_KERNELS_CHECK = ["llama", "mixtral", "falcon-rw", "gemma2"]
_HOST = SamplingParams(max_new_tokens=1, top_logprobs=1)
"""Parameters with which the host selects tokens, so that logits are returned."""


@pytest.mark.parametrize("kind", representatives(SHAPES, _IN_KERNELS_CHECK))
def test_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    save_model(tmp_path, kind, **_OTHERS.get(kind, _SHAPE))
    oracle = load_oracle(tmp_path, "fp32")
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (14, 6, 3)]
    tables = [[9, 2, 31, 4, 17], [63, 7], [50]]
    runner = make_runner(tmp_path)
    compared = 0
    # Chunks, single tokens, both in one step, and a first chunk of one token.
    for plan, places in plans_in_chunks(prompts, tables, [[8, 4], [2, 1, 1], [1, 1]]):
        runner.steps.update(plan)
        rows = [SamplingRow(f"r{i}", _HOST, [0], 1) for i, _ in places]
        result = runner.steps.compute(runner.steps.prepare(plan), rows=rows)
        assert result.pending_tokens is not None
        assert list(result.pending_tokens.host_rows) == list(range(len(places)))
        tokens = result.pending_tokens.wait()
        assert result.logits is not None
        for (i, position), logits, token in zip(places, result.logits, tokens, strict=True):
            expected = oracle_logits(oracle, prompts[i])[position]
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
            assert token.token_id == int(expected.argmax())
            compared += 1
    assert compared > 6


def test_enforce_eager_feeds_back_tokens_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, **_SHAPE, **_ONE_LAYER)
    graphs = EagerGraphs()
    monkeypatch.setattr(gpu_steps, "graph_recorder", lambda device: graphs)
    prompt = integers(fresh_generator(), 0, VOCAB_SIZE, 6)
    row = SamplingRow("a", SamplingParams(max_new_tokens=9), [0], 1)
    runner, maker = make_runner(tmp_path, enforce_eager=True), PlanMaker()
    maker.begin(3, [5, 1, 9, 30, 2])
    tokens = []
    for chunk in (prompt, *[[UNKNOWN_TOKEN]] * 5):
        plan = maker.plan({3: chunk})
        runner.steps.update(plan)
        pending = runner.steps.compute(runner.steps.prepare(plan), rows=[row]).pending_tokens
        assert pending is not None
        tokens += [token.token_id for token in pending.wait()]
    assert tokens == _greedy(load_oracle(tmp_path, "fp32"), prompt, 6)
    assert graphs.num_replays == 0


def test_graphs_do_not_count_tokens_of_recomputed_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted sequence recomputes its tokens one at a time as decodes. The graph selects tokens for it as well."""
    save_llama(tmp_path, **_SHAPE, **_ONE_LAYER)
    oracle = load_oracle(tmp_path, "fp32")
    graphs = EagerGraphs()
    monkeypatch.setattr(gpu_steps, "graph_recorder", lambda device: graphs)
    monkeypatch.setattr(loading, "batch_sizes", lambda largest: [1])
    runner = make_runner(tmp_path)
    params = SamplingParams(max_new_tokens=3, presence_penalty=5.0, frequency_penalty=5.0)
    prompt = [77, 85, 89, 20]  # its next tokens are among those that the graph selects
    expected = [token.token_id for token in _sampled(oracle, prompt, params)]
    row = SamplingRow("a", params, list(prompt), len(prompt))
    maker = PlanMaker()

    def step(chunk: list[int], want: int) -> list[int]:
        plan = maker.plan({1: chunk}, {1: want})
        runner.steps.update(plan)
        pending = runner.steps.compute(
            runner.steps.prepare(plan), rows=[row] * plan.num_sampled
        ).pending_tokens
        return [] if pending is None else [token.token_id for token in pending.wait()]

    maker.begin(1, [3, 4])
    tokens = step(prompt, WANT_LOGITS)
    row.token_ids.append(tokens[0])  # type: ignore[attr-defined]
    maker.begin(1, [5, 6])
    for token in prompt:
        assert step([token], WANT_NOTHING) == []
    assert graphs.num_replays == len(prompt)
    tokens += step(tokens, WANT_LOGITS)
    row.token_ids.append(UNKNOWN_TOKEN)  # type: ignore[attr-defined]
    tokens += step([UNKNOWN_TOKEN], WANT_LOGITS)
    assert tokens == expected


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CoreLab, Any]]:
    """An engine whose decodes are recorded and replayed, as on a GPU, and the oracle."""
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, **_SHAPE, **_ONE_LAYER)
    lab = CoreLab(
        folder,
        tmp_path_factory.mktemp("board"),
        block_size=16,
        num_blocks=14,
        max_model_len=60,
        max_step_tokens=24,
        max_step_seqs=4,
    )
    graphs = EagerGraphs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_steps, "graph_recorder", lambda device: graphs)
        yield lab, load_oracle(folder, "fp32")
    assert graphs.num_replays


@pytest.mark.parametrize("policy", ["max_utilization", "guaranteed_no_evict"])
def test_tokens_equal_those_of_transformers(lab: tuple[CoreLab, Any], policy: str) -> None:
    engine, oracle = lab
    rng = random.Random(0)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(16)]
    requests, expected = [], {}
    for number in range(6):
        prompt = [
            *(shared if number % 2 else []),
            *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 12))),
        ]
        tokens = _greedy(oracle, prompt, rng.randint(1, 6))
        # Some end with a stop token, which the step loop sees one step late.
        stop = tokens[len(tokens) // 2] if number % 3 == 0 else None
        if stop is not None:
            tokens = tokens[: tokens.index(stop) + 1]
        params = SamplingParams(
            9 if stop is not None else len(tokens), stop_token_ids=() if stop is None else (stop,)
        )
        # The host selects the tokens of some requests, the device those of the others.
        params = replace(params, top_logprobs=int(number == 4), logprobs=number in (2, 4))
        requests.append(Request(f"r{number}", tuple(prompt), params, 0.0))
        expected[f"r{number}"] = tokens
    running = engine.start(
        Mode(policy=policy, max_num_seqs=4, max_prefill_tokens=20, max_num_batched_tokens=24)
    )
    got = _run(running, requests, gap=1)
    assert {
        name: [t for output in outputs for t in output.token_ids] for name, outputs in got.items()
    } == expected
    for name in got:
        with_logprobs = name in ("r2", "r4")
        assert all(len(output.logprobs) == with_logprobs for output in got[name])


def test_sampled_tokens_do_not_depend_on_the_batch(lab: tuple[CoreLab, Any]) -> None:
    engine, _ = lab
    params = SamplingParams(4, temperature=1.3, top_k=20, top_p=0.9, seed=7)
    request = Request("drawn", (1, 2, 3, 4, 5), params, 0.0)
    others = [
        Request(f"o{i}", tuple(range(i + 1)), SamplingParams(3, temperature=0.8, seed=i), 0.0)
        for i in range(2)
    ]
    mode = Mode(max_num_seqs=4)
    alone = _run(engine.start(mode), [request])["drawn"]
    in_batch = _run(engine.start(mode), [*others, request])["drawn"]
    assert [output.token_ids for output in alone] == [output.token_ids for output in in_batch]
    other_seed = replace(request, sampling=replace(params, seed=8))
    assert [output.token_ids for output in _run(engine.start(mode), [other_seed])["drawn"]] != [
        output.token_ids for output in alone
    ]


def test_penalties_and_log_probabilities_do_not_wait_for_the_host(
    lab: tuple[CoreLab, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences are preempted, rows are reused, some steps have a row of the host, and one step is computed again
    after its tokens were selected and counted."""
    engine, oracle = lab
    all_params = (
        SamplingParams(6, repetition_penalty=1.8),
        SamplingParams(7, presence_penalty=2.0, frequency_penalty=1.5, logprobs=True),
        SamplingParams(6, repetition_penalty=1.3, frequency_penalty=2.0),
        SamplingParams(3, logprobs=True, top_logprobs=1),
        SamplingParams(5, frequency_penalty=3.0, logprobs=True),
    )
    rng = random.Random(1)
    requests, expected = [], {}
    for number, params in enumerate(all_params):
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range((11, 13, 12, 3, 14)[number])]
        requests.append(Request(f"r{number}", tuple(prompt), params, 0.0))
        expected[f"r{number}"] = _sampled(oracle, prompt, params)
        if params.repetition_penalty != 1.0 and not params.frequency_penalty:
            tokens = [token.token_id for token in expected[f"r{number}"]]
            assert tokens == _generated(oracle, prompt, repetition_penalty=params.repetition_penalty)
            assert tokens != _greedy(oracle, prompt, len(tokens))
    running = engine.start(Mode(max_num_seqs=3, max_prefill_tokens=24, num_blocks=4, prefix_caching=False))
    compute, steps_of_three = gpu_steps.GpuSteps.compute, itertools.count(1)
    failed = []

    def failing_once(steps: Any, batch: Any, targets: Any = (), rows: Any = ()) -> Any:
        result = compute(steps, batch, targets, rows)
        if len(rows) == 3 and next(steps_of_three) == 2:
            failed.append([row.id for row in rows])
            raise RuntimeError("after all is done")
        return result

    monkeypatch.setattr(gpu_steps.GpuSteps, "compute", failing_once)
    got = _run(running, requests)
    assert failed
    assert running.scheduler.num_preemptions, "no sequence was preempted"
    for name, tokens in expected.items():
        assert [output.token_ids for output in got[name]] == [(token.token_id,) for token in tokens]
        logprobs = [output.logprobs for output in got[name]]
        assert logprobs == [
            () if t.logprob is None else (pytest.approx(t.logprob, abs=1e-4),) for t in tokens
        ]


@pytest.mark.parametrize(
    ("options", "late"),
    [
        ({"logprobs": True, "repetition_penalty": 1.2, "frequency_penalty": 0.5}, True),
        ({"top_logprobs": 1}, False),
    ],
    ids=["device", "host"],
)
def test_only_tokens_selected_by_the_device_come_a_step_late(
    lab: tuple[CoreLab, Any], options: dict[str, Any], late: bool
) -> None:
    """The outputs of a step that stays in flight come with the next step."""
    engine, _ = lab
    running = engine.start(Mode())
    running.core.add(Request("a", (1, 2, 3), SamplingParams(2, **options), 0.0))
    counts = []
    while running.core.has_work:
        counts.append(len(running.core.step()))
    assert counts == ([0, 1, 1] if late else [1, 1])


def _sampled(oracle: Any, prompt: Sequence[int], params: SamplingParams) -> list[SampledToken]:
    """Return the tokens that the host sampler selects from the logits of the oracle."""
    sampler, tokens = Sampler(VOCAB_SIZE, torch.device("cpu")), list(prompt)
    found = []
    for _ in range(params.max_new_tokens):
        logits = oracle_logits(oracle, tokens)[-1:]
        found += sampler.sample(logits, [SamplingRow("a", params, tokens, len(prompt))])
        tokens.append(found[-1].token_id)
    return found


def _generated(oracle: Any, prompt: Sequence[int], **options: Any) -> list[int]:
    config = GenerationConfig(
        max_new_tokens=6, do_sample=False, eos_token_id=VOCAB_SIZE, pad_token_id=0, **options
    )
    tokens = oracle.generate(torch.tensor([list(prompt)]), generation_config=config)
    return tokens[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def _greedy(oracle: Any, prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(oracle_logits(oracle, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _run(running: Running, requests: Sequence[Request], gap: int = 0) -> dict[str, list[RequestOutput]]:
    """Serve all requests. `gap`: number of steps between two arrivals."""
    got: dict[str, list[RequestOutput]] = {request.id: [] for request in requests}
    waiting, step = list(requests), 0
    while waiting or running.core.has_work:
        while waiting and (gap == 0 or step % gap == 0):
            running.core.add(waiting.pop(0))
            if gap:
                break
        for output in running.core.step():
            assert not output.error_kind, output.error_message
            got[output.id].append(output)
        step += 1
    running.blocks.check()
    assert running.blocks.num_used == 0
    return got
