"""Each sampling step, and all steps together, against transformers' logits processors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from tests.support.examples import examples
from tests.support.sampling_oracle import (
    ALL_STEPS,
    apply,
    apply_temperature,
    call,
    deviation,
    is_unambiguous,
    keep_typical,
    processed,
    stages,
    truncate,
)
from tests.support.seeds import generator_from, integers

SEEDS = st.integers(0, 2**31 - 1)
VOCAB_SIZES = st.sampled_from([50, 53, 257, 1000, 5000])
CLOSE = 1e-5

OFF = SamplingParams(1, temperature=1.0)
PENALTIES = st.sampled_from([-2.0, -0.3, 0.1, 0.5, 1.7])
CHANGES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "repetition_penalty": st.fixed_dictionaries({"repetition_penalty": st.floats(0.1, 10)}),
    "presence_penalty": st.fixed_dictionaries({"presence_penalty": PENALTIES}),
    "frequency_penalty": st.fixed_dictionaries({"frequency_penalty": PENALTIES}),
    "logit_bias": st.dictionaries(st.integers(0, 49), st.floats(-100, 100), min_size=1, max_size=9).map(
        lambda biases: {"logit_bias": tuple(biases.items())}
    ),
    # Few ids, so that sequences often end with the beginning of a bad word.
    "bad_words": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=1).map(
        lambda words: {"bad_words": tuple(words)}
    ),
    "min_new_tokens": st.fixed_dictionaries({"min_new_tokens": st.integers(1, 12)}),
    "temperature": st.fixed_dictionaries({"temperature": st.floats(0.01, 100)}),
    "top_k": st.fixed_dictionaries({"top_k": st.integers(1, 60) | st.sampled_from([300, 4999, 5000, 9999])}),
    "top_p": st.fixed_dictionaries({"top_p": st.floats(1e-9, 0.9999) | st.sampled_from([0.5, 0.9])}),
    "min_p": st.fixed_dictionaries({"min_p": st.floats(1e-6, 1.0) | st.just(1.0)}),
    "typical_p": st.fixed_dictionaries({"typical_p": st.floats(0.01, 0.9999)}),
}


def _logits(num_rows: int, vocab_size: int, seed: int, kind: str) -> torch.Tensor:
    """kind: `smooth`, `ties` (many equal logits) or `holes` (half of them -inf)."""
    generator = generator_from(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    if kind == "ties":
        return logits.round()
    if kind == "holes":
        logits[torch.rand(num_rows, vocab_size, generator=generator) < 0.5] = -math.inf
        logits[:, 4] = 1.0
    return logits


def _row(name: str, params: SamplingParams, seed: int) -> SamplingRow:
    """Make a sequence that repeats few token ids, some of them only in the prompt."""
    generator = generator_from(seed)
    length, num_prompt = integers(generator, 1, 30, 1)[0], integers(generator, 1, 12, 1)[0]
    tokens = integers(generator, 0, 50 if seed % 2 else 4, length + num_prompt)
    return SamplingRow(name, replace(params, stop_token_ids=(0, 7)), tokens, num_prompt)


@st.composite
def _draw_rows(draw: st.DrawFn, names: list[str], one_in: int) -> list[SamplingRow]:
    """Draw rows. About one in `one_in` of them uses each of the steps `names`."""
    rows = []
    for i in range(draw(st.integers(1, 6))):
        changes: dict[str, Any] = {"temperature": draw(st.sampled_from([0.0, 1.0]))}
        for name in names:
            if draw(st.integers(1, one_in)) == 1:
                changes |= draw(CHANGES[name])
        rows.append(_row(f"r{i}", replace(OFF, **changes), draw(SEEDS)))
    return rows


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "temperature"])
@pytest.mark.parametrize("kind", ["smooth", "ties", "holes"])
@examples(8)
@given(st.data(), VOCAB_SIZES, SEEDS)
def test_a_step_equals_transformers_processor(
    name: str, kind: str, data: st.DataObject, vocab_size: int, seed: int
) -> None:
    rows = data.draw(_draw_rows([name], 2))
    logits = _logits(len(rows), vocab_size, seed, kind)
    (step,) = {stage.step for row in rows for stage in stages(row)} or {truncate}
    assert step is not None
    ours = apply([step], logits, rows)
    for i, row in enumerate(rows):
        row_stages = list(stages(row))
        if not row_stages:
            assert torch.equal(ours[i], logits[i])
            continue
        (stage,) = row_stages
        theirs = call(stage.processor, logits[i], row.token_ids)
        assert deviation(ours[i], theirs, stage.edge(logits[i])) <= CLOSE


@examples(50)
@given(_draw_rows(list(CHANGES), 3), VOCAB_SIZES, SEEDS, st.sampled_from(["smooth", "holes"]))
def test_all_steps_together_equal_transformers_processors(
    rows: list[SamplingRow], vocab_size: int, seed: int, kind: str
) -> None:
    logits = _logits(len(rows), vocab_size, seed, kind)
    clear = [i for i, row in enumerate(rows) if is_unambiguous(logits[i], row)]
    assume(clear)
    ours = apply_temperature(apply(ALL_STEPS, logits, rows), rows)
    for i in clear:
        no_edge = torch.zeros(vocab_size, dtype=torch.bool)
        assert deviation(ours[i], processed(logits[i], rows[i]), no_edge) <= CLOSE


@examples(50)
@given(_draw_rows(list(CHANGES), 3), VOCAB_SIZES, SEEDS)
def test_sampled_tokens_are_allowed_by_transformers(
    rows: list[SamplingRow], vocab_size: int, seed: int
) -> None:
    logits = _logits(len(rows), vocab_size, seed, "smooth")
    sampled = Sampler(vocab_size, torch.device("cpu")).sample(logits, rows)
    for own, row, token in zip(logits, rows, sampled, strict=True):
        scores = processed(own, row)
        assert token.finite
        if not row.params.sampled:
            assert token.token_id == int(scores.argmax())
        elif is_unambiguous(own, row):
            assert float(scores[token.token_id]) > -math.inf


@examples(40)
@given(_draw_rows(list(CHANGES), 2), VOCAB_SIZES, SEEDS, st.sampled_from(["smooth", "ties", "holes"]))
def test_a_row_has_the_same_bits_alone_and_in_a_batch(
    rows: list[SamplingRow], vocab_size: int, seed: int, kind: str
) -> None:
    logits = _logits(len(rows), vocab_size, seed, kind)
    together = apply(ALL_STEPS, logits, rows)
    for i, row in enumerate(rows):
        assert torch.equal(together[i], apply(ALL_STEPS, logits[i : i + 1], [row])[0])


def test_greedy_rows_and_beams_are_not_truncated() -> None:
    odd = replace(OFF, top_k=2, top_p=0.1, min_p=0.9, typical_p=0.1)
    rows = [_row("greedy", replace(odd, temperature=0.0), 0), _row("beams", replace(odd, num_beams=2), 1)]
    logits = _logits(2, 53, 0, "smooth")
    assert torch.equal(apply(ALL_STEPS, logits, rows), logits)


def test_presence_and_frequency_penalties_count_only_output_tokens() -> None:
    params = replace(OFF, presence_penalty=0.5, frequency_penalty=0.25)
    rows = [SamplingRow("r", params, [3, 3, 4, 5, 5, 5], num_prompt_tokens=2)]
    out = apply(ALL_STEPS, torch.zeros(1, 8), rows)[0]
    assert out.tolist() == [0.0, 0.0, 0.0, 0.0, -0.75, -1.25, 0.0, 0.0]


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    params = replace(
        OFF,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logit_bias=((99, 5.0), (1, 1.0)),
        bad_words=((99,), (3, 99)),
        min_new_tokens=9,
        stop_token_ids=(99,),
    )
    rows = [SamplingRow("r", params, [99, 2, 99, 3], num_prompt_tokens=2)]
    out = apply(ALL_STEPS, torch.ones(1, 5), rows)[0]
    assert out.tolist() == [1.0, 2.0, 0.5, -0.5, 1.0]


@pytest.mark.parametrize("p", [1e-300, 1e-46, 1e-9])
def test_a_tiny_top_p_selects_the_greedy_token(p: float) -> None:
    for kind in ("smooth", "ties"):
        logits = _logits(1, 500, 0, kind)
        out = apply([truncate], logits, [_row("r", replace(OFF, top_p=p), 0)])[0]
        assert (out > -math.inf).nonzero().tolist() == [[int(logits.argmax())]]


@examples(40)
@given(st.floats(0.01, 0.99), VOCAB_SIZES, SEEDS)
def test_top_p_with_ties_keeps_the_smallest_sufficient_set(p: float, vocab_size: int, seed: int) -> None:
    logits = _logits(1, vocab_size, seed, "ties")
    out = apply([truncate], logits, [_row("r", replace(OFF, top_p=p), 0)])[0]
    probabilities, kept = logits[0].double().softmax(-1), out > -math.inf
    mass, least = float(probabilities[kept].sum()), float(probabilities[kept].min())
    assert mass >= p - CLOSE
    assert mass - least < p + CLOSE
    assert least >= float(probabilities[~kept].max()) - 1e-9
    # Among equal logits, those with the lowest ids are kept.
    equal = (logits[0] == out[kept].min()).nonzero()[:, 0]
    assert kept[equal].tolist() == sorted(kept[equal].tolist(), reverse=True)


@pytest.mark.parametrize("name", ["top_k", "top_p", "typical_p"])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 1.0, 20.0])
def test_truncation_keeps_sets_of_any_size(name: str, spread: float) -> None:
    """One batch has sets within and beyond the likeliest tokens, which are sorted first."""
    vocab_size, size = 5000, 0.97
    logits = torch.randn(4, vocab_size, generator=generator_from(1)) * spread
    logits[1] *= 30
    params = {"top_k": int(size * vocab_size)} if name == "top_k" else {name: size}
    rows = [_row(f"r{i}", replace(OFF, **params), i) for i in range(4)]
    ours = apply([keep_typical if name == "typical_p" else truncate], logits, rows)
    for i, row in enumerate(rows):
        (stage,) = stages(row)
        theirs = call(stage.processor, logits[i], row.token_ids)
        assert deviation(ours[i], theirs, stage.edge(logits[i])) == 0.0


@pytest.mark.parametrize("changes", [{"top_k": 3}, {"min_p": 1.0}, {"typical_p": 0.2}])
@pytest.mark.parametrize("vocab_size", [5, 1000])
def test_equal_logits_are_kept_or_removed_together(changes: dict[str, Any], vocab_size: int) -> None:
    """As in transformers. Only top_p distinguishes between equal logits."""
    logits = torch.full((2, vocab_size), 1.5)
    logits[1, 4] = -50.0
    rows = [_row("a", replace(OFF, **changes), 0), _row("b", replace(OFF, **changes), 1)]
    out = apply(ALL_STEPS, logits, rows)
    assert torch.equal(out[0], logits[0])
    assert (out[1] == -math.inf).nonzero().tolist() == [[4]]
    for own, row, result in zip(logits, rows, out, strict=True):
        assert torch.equal(processed(own, row), result)
