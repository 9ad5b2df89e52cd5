"""Parameters of transformers' `generate`: each row of a batch gets what `generate` gives it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engines.core import FinishReason, GenerateParams
from tests.engines.python.conftest import Runner, request
from tests.support.tiny_architectures import make_model

_PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [9, 4, 9], [7], [39, 11, 67, 46, 6, 56, 2, 14, 54, 92, 45, 47, 50]]
_NEW_TOKENS = 8
_SETS: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_repetition_penalty": 4.0},
    {"begin_suppress_tokens": list(range(4, 60))},
    {"forced_eos_token_id": [3]},
    {"forced_bos_token_id": 11, "begin_suppress_tokens": list(range(20, 50))},
    {"sequence_bias": [[[10], 80.0], [[10, 12], 90.0], [[10, 12, 13], -9.0]]},
    {"no_repeat_ngram_size": 2, "encoder_repetition_penalty": 0.5, "sequence_bias": [[[30], 60.0]]},
]


def _params(given: dict[str, Any]) -> GenerateParams:
    """The same as the web process makes of a body."""
    own = dict(given)
    for name in ("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"):
        if name in own:
            own[name] = tuple(own[name]) if isinstance(own[name], list) else (own[name],)
    if "sequence_bias" in own:
        own["sequence_bias"] = tuple((tuple(ids), bias) for ids, bias in own["sequence_bias"])
    return GenerateParams(**own)


def _alone(model: Any, prompt: list[int], given: dict[str, Any]) -> list[int]:
    """transformers' own answer."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=_NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        **given,
    )[0].tolist()
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    return list(output[start:])


@pytest.mark.parametrize("architecture", ["llama", "t5"])
def test_each_row_gets_what_generate_gives_it_alone(architecture: str) -> None:
    model = make_model(architecture)
    cases = [(prompt, given) for given in _SETS for prompt in _PROMPTS]
    expected = [_alone(model, prompt, given) for prompt, given in cases]
    plain = [_alone(model, prompt, {}) for prompt in _PROMPTS]
    for index in range(len(_SETS)):
        own = slice(index * len(_PROMPTS), (index + 1) * len(_PROMPTS))
        assert expected[own] != plain, f"{_SETS[index]} changes nothing, so it shows nothing"
    requests = [
        request(str(i), prompt, _NEW_TOKENS, generate=_params(given))
        for i, (prompt, given) in enumerate(cases)
    ]
    heard = Runner(model).run([*requests, request("plain", _PROMPTS[0], _NEW_TOKENS)])
    assert [heard.tokens(str(i)) for i in range(len(cases))] == expected
    assert heard.tokens("plain") == plain[0]
    assert {heard.end(str(i)).finish_reason for i in range(len(cases))} == {FinishReason.LENGTH}
    assert heard.num_steps == _NEW_TOKENS, "one call for all"


def test_log_probabilities_are_still_the_models_own(runner: Runner) -> None:
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


def test_a_row_that_samples_draws_from_what_is_left(runner: Runner) -> None:
    ban = GenerateParams(begin_suppress_tokens=tuple(range(10, 60)))
    heard = runner.run(
        [request(str(seed), [5, 6], 1, temperature=5.0, seed=seed, generate=ban) for seed in range(8)]
    )
    drawn = {heard.tokens(str(seed))[0] for seed in range(8)}
    assert len(drawn) > 1
    assert all(token < 10 or token >= 60 for token in drawn)
