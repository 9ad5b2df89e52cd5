"""Parameters of transformers' `generate`: each row of a batch equals `generate` with that row alone."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engines.core import FinishReason, GenerateParams
from tests.engines.python.conftest import Runner, break_in_step, generate, request
from tests.support.tiny_architectures import make_model

_PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [9, 4, 9], [7], [39, 11, 67, 46, 6, 56, 2, 14, 54, 92, 45, 47, 50]]
_NEW_TOKENS = 8
_SETS = [
    GenerateParams(no_repeat_ngram_size=1),
    GenerateParams(encoder_no_repeat_ngram_size=1),
    GenerateParams(encoder_repetition_penalty=4.0),
    GenerateParams(begin_suppress_tokens=tuple(range(4, 60))),
    GenerateParams(forced_eos_token_id=(3,)),
    GenerateParams(forced_bos_token_id=(11,), begin_suppress_tokens=tuple(range(20, 50))),
    GenerateParams(sequence_bias=(((10,), 80.0), ((10, 12), 90.0), ((10, 12, 13), -9.0))),
    GenerateParams(no_repeat_ngram_size=2, encoder_repetition_penalty=0.5, sequence_bias=(((30,), 60.0),)),
]


def _alone(model: Any, prompt: list[int], params: GenerateParams) -> list[int]:
    """Return the tokens that transformers generates with these parameters, of which it gets lists."""
    fields = json.loads(msgspec.json.encode(params))
    given = {
        name: value
        for name, value in fields.items()
        if getattr(params, name) != getattr(GenerateParams(), name)
    }
    return generate(model, prompt, _NEW_TOKENS, do_sample=False, pad_token_id=0, **given)


@pytest.mark.parametrize("architecture", ["llama", "t5"])
def test_each_row_equals_generate_alone(architecture: str) -> None:
    model = make_model(architecture)
    cases = [(prompt, params) for params in _SETS for prompt in _PROMPTS]
    expected = [_alone(model, prompt, params) for prompt, params in cases]
    plain = [_alone(model, prompt, GenerateParams()) for prompt in _PROMPTS]
    for index in range(len(_SETS)):
        rows = slice(index * len(_PROMPTS), (index + 1) * len(_PROMPTS))
        assert expected[rows] != plain, f"{_SETS[index]} changes nothing, so the test is useless"
    requests = [
        request(str(i), prompt, _NEW_TOKENS, generate=params) for i, (prompt, params) in enumerate(cases)
    ]
    heard = Runner(model).run([*requests, request("plain", _PROMPTS[0], _NEW_TOKENS)])
    assert [heard.tokens(str(i)) for i in range(len(cases))] == expected
    assert heard.tokens("plain") == plain[0]
    assert {heard.end(str(i)).finish_reason for i in range(len(cases))} == {FinishReason.LENGTH}
    assert heard.num_steps == _NEW_TOKENS, "one batch for all requests"


def test_a_row_that_a_later_call_continues_equals_generate_alone(runner: Runner) -> None:
    params = GenerateParams(forced_eos_token_id=(3,))
    expected = _alone(make_model("llama"), _PROMPTS[0], params)
    break_in_step(runner, 3)
    heard = runner.run(
        [request("a", _PROMPTS[0], _NEW_TOKENS, generate=params), request("b", _PROMPTS[1], _NEW_TOKENS)]
    )
    assert heard.calls == [["a", "b"], ["a"], ["b"]]
    assert heard.tokens("a") == expected


def test_log_probabilities_are_those_of_the_unprocessed_logits(runner: Runner) -> None:
    bias = GenerateParams(sequence_bias=(((30,), 50.0),))
    heard = runner.run(
        [
            request("biased", [5, 6], 1, generate=bias, logprobs=True, top_logprobs=3),
            request("plain", [5, 6], 1, logprobs=True, top_logprobs=3),
        ]
    )
    biased, plain = heard.outputs["biased"][0], heard.outputs["plain"][0]
    assert biased.token_ids == (30,)
    assert biased.logprobs[0] < plain.logprobs[0]
    assert [token for token, _ in biased.top_logprobs[0]] == [token for token, _ in plain.top_logprobs[0]]


def test_a_sampling_row_draws_only_from_allowed_tokens(runner: Runner) -> None:
    ban = GenerateParams(begin_suppress_tokens=tuple(range(10, 60)))
    heard = runner.run(
        [request(str(seed), [5, 6], 1, temperature=5.0, seed=seed, generate=ban) for seed in range(8)]
    )
    sampled = {heard.tokens(str(seed))[0] for seed in range(8)}
    assert len(sampled) > 1
    assert all(token < 10 or token >= 60 for token in sampled)
