"""Batches with transformers' `generate`: tokens of each row, and attribution of failures to rows."""

from __future__ import annotations

import itertools
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engines.core import FinishReason, Request, SampledToken
from engines.python.heartbeat_hook import HeartbeatHook
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from tests.engines.python.conftest import RecordedOutputs, Runner, StepClock, break_in_step, generate, request
from tests.support.tiny_architectures import (
    ARCHITECTURES,
    CONTEXT,
    VOCAB_SIZE,
    generate_alone,
    make_model,
)

_SHAPES = [(1, 6), (2, 18), (7, 4), (12, 10), (15, 5), (3, 20)]
"""Lengths of (prompt, output). Prompt 4 plus output 5 exceeds the context, and row 4 must not fail."""

_NOT_IN_ONE_CALL = {
    "rwkv": "padding changes it",
    "mpt": "its position table is too short for padding and output",
}


def _prompts(seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(4, VOCAB_SIZE) for _ in range(length)] for length, _ in _SHAPES]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_of_a_batch_equal_unbatched_ones(architecture: str) -> None:
    model = make_model(architecture)
    prompts = _prompts()
    expected = [generate_alone(model, p, new) for p, (_, new) in zip(prompts, _SHAPES, strict=True)]
    assert len({tuple(tokens) for tokens in expected}) == len(expected)
    requests = [request(str(i), p, new) for i, (p, (_, new)) in enumerate(zip(prompts, _SHAPES, strict=True))]
    heard = Runner(model).run(requests)
    assert [heard.tokens(str(i)) for i in range(len(prompts))] == expected
    assert {heard.end(str(i)).finish_reason for i in range(len(prompts))} == {FinishReason.LENGTH}
    if architecture not in _NOT_IN_ONE_CALL:
        assert heard.num_steps == max(new for _, new in _SHAPES), "one batch for all requests"


def test_a_model_without_attention_mask_batches_prompts_of_equal_length(llama: Any) -> None:
    runner = Runner(make_model("llama"), takes_mask=False)
    prompts = [[5, 6], [7, 8, 9], [10, 11]]
    heard = runner.run([request(str(i), prompt) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert heard.tokens(str(i)) == generate_alone(llama, prompt, 8)
    assert heard.num_steps == 16
    assert heard.waste is not None
    assert heard.waste.prompt_padding == 0


def test_each_step_outputs_one_token_per_row_and_waste_is_counted(runner: Runner) -> None:
    heard = runner.run([request("a", [5], 3), request("b", [6, 7, 8], 5)])
    assert [len(output.token_ids) for output in heard.outputs["a"]] == [1] * 3
    assert heard.num_steps == 5
    assert heard.waste is not None
    assert (heard.waste.prompt_padding, heard.waste.ended_row_tokens) == (2, 2)


def test_a_stop_token_ends_its_row_and_is_part_of_the_output(runner: Runner, llama: Any) -> None:
    prompt = [5, 6, 7]
    tokens = generate_alone(llama, prompt, 12)
    stop = tokens[4]
    heard = runner.run([request("a", prompt, 12, stop_token_ids=(stop,)), request("b", prompt, 12)])
    assert heard.tokens("a") == tokens[: tokens.index(stop) + 1]
    assert heard.end("a").finish_reason is FinishReason.EOS_TOKEN
    assert heard.tokens("b") == tokens, "stop tokens of other rows do not matter"


def test_the_generation_config_of_the_model_is_ignored() -> None:
    model = make_model("llama")
    expected = generate_alone(model, [5, 6], 10)
    defaults = {"do_sample": True, "temperature": 5.0, "top_k": 3, "repetition_penalty": 3.0, "max_length": 4}
    for name, value in {**defaults, "eos_token_id": expected[2], "no_repeat_ngram_size": 1}.items():
        setattr(model.generation_config, name, value)
    heard = Runner(model).run([request("a", [5, 6], 10)])
    assert heard.tokens("a") == expected


# Sampling parameters


def _sampled_alone(model: Any, request: Request) -> list[SampledToken]:
    """Sample without a batch: logits for the whole text at each step, and the sampler of engine=MPI."""
    text: list[int] = list(request.prompt_token_ids)
    tokens: list[SampledToken] = []
    sampler = Sampler(VOCAB_SIZE, torch.device("cpu"))
    for _ in range(request.sampling.max_new_tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([text])).logits[:, -1]
        row = SamplingRow("a", request.sampling, text, len(request.prompt_token_ids))
        tokens += sampler.sample(logits, [row])
        text.append(tokens[-1].token_id)
        if tokens[-1].token_id in request.sampling.stop_token_ids:
            break
    return tokens


def _different_requests() -> list[Request]:
    prompts = itertools.cycle(_prompts(2)[:5])
    return [
        request("greedy", next(prompts), 9),
        request("greedy with logprobs", next(prompts), 5, logprobs=True),
        request("hot", next(prompts), 12, temperature=1.5, seed=1),
        request("hot, another seed", next(prompts), 12, temperature=1.5, seed=2**64 - 1, logprobs=True),
        request("top k", next(prompts), 7, temperature=1.0, top_k=5, seed=3),
        request(
            "top p", next(prompts), 3, temperature=0.7, top_p=0.8, seed=4, stop_token_ids=(1, 2, 3, 4, 5)
        ),
        request("penalty", next(prompts), 16, repetition_penalty=1.8),
        request(
            "all", next(prompts), 10, temperature=2.0, top_k=9, top_p=0.9, repetition_penalty=1.2, seed=5
        ),
        request("outputs", next(prompts), 12, presence_penalty=0.5, frequency_penalty=0.7, top_logprobs=3),
        request("biased", next(prompts), 6, temperature=1.0, logit_bias=((7, 3.0), (8, -4.0)), seed=6),
        request("no ends", next(prompts), 6, min_new_tokens=4, stop_token_ids=tuple(range(60))),
        request("no words", next(prompts), 6, bad_words=((5,), (6, 7)), typical_p=0.9, temperature=1.0),
    ]


def test_rows_with_different_parameters_share_a_batch_and_equal_unbatched_ones(
    runner: Runner, llama: Any
) -> None:
    requests = _different_requests()
    heard = runner.run(requests)
    assert heard.num_steps == 16, "one batch for all requests"
    for each in requests:
        expected, params = _sampled_alone(llama, each), each.sampling
        assert heard.tokens(each.id) == [token.token_id for token in expected], each.id
        logprobs = [value for output in heard.outputs[each.id] for value in output.logprobs]
        expected_logprobs = [token.logprob for token in expected] if params.logprobs else []
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4)
        tops = [top for output in heard.outputs[each.id] for top in output.top_logprobs]
        if params.top_logprobs:
            assert [[i for i, _ in top] for top in tops] == [[i for i, _ in t.top] for t in expected]
            values = [value for token in expected for _, value in token.top]
            assert [value for top in tops for _, value in top] == pytest.approx(values, abs=1e-4)
        else:
            assert tops == []


def test_repetition_penalty_of_an_encoder_decoder_ignores_the_prompt() -> None:
    """As in transformers, the prompt is only in the encoder."""
    model = make_model("t5")
    prompt = [5, 6, 7, 8]
    expected = generate(model, prompt, 12, repetition_penalty=2.5, eos_token_id=None)
    heard = Runner(model).run([request("a", prompt, 12, repetition_penalty=2.5), request("b", [9] * 9, 12)])
    assert heard.tokens("a") == expected
    assert heard.tokens("b") == generate_alone(make_model("t5"), [9] * 9, 12)


# Failures

_POISON = 4


def _break_on_poison(model: Any) -> None:
    def check(module: Any, arguments: Any, named: dict[str, Any]) -> None:
        if (named["input_ids"] == _POISON).any():
            raise ZeroDivisionError("poison")

    model.register_forward_pre_hook(check, with_kwargs=True)


@pytest.mark.parametrize("position", [0, 2])
def test_a_row_that_breaks_its_batch_is_found_and_only_it_fails(
    runner: Runner, llama: Any, position: int
) -> None:
    _break_on_poison(runner.model)
    good = [request(f"good {i}", range(10, 11 + i), 6 + i) for i in range(3)]
    heard = runner.run([*good[:position], request("poison", [9, _POISON, 8]), *good[position:]])
    (end,) = heard.outputs["poison"]
    assert (end.error_kind, end.token_ids) == ("request_failed", ())
    assert "division" not in end.error_message, "internal details belong in the log"
    for each in good:
        _check_greedy(heard, llama, each)


def _check_greedy(heard: RecordedOutputs, llama: Any, request: Request) -> None:
    expected = generate_alone(llama, list(request.prompt_token_ids), request.sampling.max_new_tokens)
    assert heard.tokens(request.id) == expected, request.id
    assert heard.end(request.id).finish_reason is FinishReason.LENGTH


def test_tokens_sent_before_a_failure_are_not_sent_twice(runner: Runner, llama: Any) -> None:
    """The batch fails in its fifth step, when `a` has ended. The other rows continue and get the same tokens."""
    break_in_step(runner, 5)
    requests = [request("a", [10, 11], 3), request("b", [12], 9), *_different_requests()[2:5]]
    heard = runner.run(requests)
    for each in requests:
        assert heard.tokens(each.id) == [token.token_id for token in _sampled_alone(llama, each)]
        assert heard.end(each.id).finish_reason is not None


def _disturb(model: Any, place: int) -> None:
    """Change the logits of the n-th forward pass that succeeds."""
    calls = itertools.count(1)

    def disturb(module: Any, arguments: Any, output: Any) -> None:
        if next(calls) == place:
            output.logits[..., 1] += 1000.0

    model.register_forward_hook(disturb)


def test_a_rerun_continues_after_the_tokens_that_were_sent(runner: Runner, llama: Any) -> None:
    """On a GPU, a batch of another size may give other tokens."""
    break_in_step(runner, 5)
    _disturb(runner.model, 5)
    rows = [request("a", [10, 11], 9), request("b", [12, 13], 9)]
    heard = runner.run(rows)
    assert heard.end("a").finish_reason is FinishReason.LENGTH
    assert heard.tokens("a")[:5] == [*generate_alone(llama, [10, 11], 4), 1]
    assert len(heard.tokens("a")) == 9
    _check_greedy(heard, llama, rows[1])


def test_a_row_of_an_encoder_decoder_whose_rerun_differs_fails() -> None:
    model = make_model("t5")
    runner = Runner(make_model("t5"))
    break_in_step(runner, 5)
    _disturb(runner.model, 6)  # four passes with both rows, then the second one with the first row alone
    rows = [request("a", [10, 11], 9), request("b", [12, 13], 9)]
    heard = runner.run(rows)
    assert heard.end("a").error_kind == "request_failed"
    assert "generated different tokens than already sent" in heard.end("a").error_message
    _check_greedy(heard, model, rows[1])


@pytest.mark.parametrize("parameters", [{}, {"temperature": 1.0}, {"logprobs": True}])
def test_non_finite_logits_fail_only_their_row(
    runner: Runner, llama: Any, parameters: dict[str, Any]
) -> None:
    with torch.no_grad():
        runner.model.get_input_embeddings().weight[_POISON] = torch.nan
    good = request("good", range(10, 16), 6)
    heard = runner.run([request("bad", [9, _POISON], 6, **parameters), good])
    (end,) = heard.outputs["bad"]
    assert end.error_kind == "request_failed"
    assert "not finite" in end.error_message
    _check_greedy(heard, llama, good)


def test_logits_of_minus_infinity_are_not_a_failure(runner: Runner) -> None:
    def mask_tokens(module: Any, arguments: Any, output: Any) -> None:
        output.logits[..., :50] = -torch.inf

    runner.model.register_forward_hook(mask_tokens)
    heard = runner.run([request("greedy", [5]), request("hot", [6], temperature=1.0)])
    assert all(token >= 50 for token in heard.tokens("greedy") + heard.tokens("hot"))
    assert len(heard.tokens("hot")) == 8


@pytest.mark.parametrize("token_id", [VOCAB_SIZE, -1])
def test_a_token_outside_the_vocabulary_is_rejected_before_computation(
    runner: Runner, llama: Any, token_id: int
) -> None:
    good = request("good", [10, 11], 6)
    heard = runner.run([request("bad", [5, token_id]), good])
    (end,) = heard.outputs["bad"]
    assert end.error_kind == "invalid_request"
    assert f"token id {token_id} at position 1 is not in the model's vocabulary" in end.error_message
    assert f"vocabulary of {VOCAB_SIZE} tokens; allowed: 0 to {VOCAB_SIZE - 1}" in end.error_message
    _check_greedy(heard, llama, good)
    assert heard.num_steps == 7


def test_a_request_for_more_tokens_than_the_decoder_has_positions_is_rejected() -> None:
    """As with LED, whose encoder has a longer position table than its decoder."""
    model = make_model("bart")
    model.config.max_decoder_position_embeddings = 6
    heard = Runner(model).run([request("bad", [5], 7), request("good", range(5, 17), 6)])
    (end,) = heard.outputs["bad"]
    assert end.error_kind == "invalid_request"
    assert (
        end.error_message
        == "max_new_tokens: given 7; accepted: at most 6, the positions of the model's decoder"
    )
    assert len(heard.tokens("good")) == 6


# Aborts and timeouts


def test_an_aborted_row_gets_no_more_tokens_and_does_not_delay_the_batch(runner: Runner, llama: Any) -> None:
    staying = request("staying", [10, 11], 6)
    heard = runner.run([request("leaving", [5], 40), staying], RecordedOutputs(leave={"leaving": 2}))
    assert len(heard.tokens("leaving")) == 2
    assert heard.num_steps == 6
    _check_greedy(heard, llama, staying)


def test_an_abort_while_another_part_of_a_failed_batch_runs_is_kept(runner: Runner) -> None:
    break_in_step(runner, 1)
    heard = runner.run(
        [request("a", [5], 6), request("leaving", [6], 40)], RecordedOutputs(leave={"leaving": 0})
    )
    assert heard.tokens("leaving") == []
    assert heard.num_steps == 6


def test_a_timeout_error_reports_the_number_of_tokens(llama: Any) -> None:
    runner = Runner(make_model("llama"), StepClock(), seconds=20.0)
    short, long = request("short", [10, 11], 2), request("long", [12], 40)
    heard = runner.run([short, long])
    _check_greedy(heard, llama, short)
    end = heard.end("long")
    count = len(heard.tokens("long"))
    assert 2 < count < 10
    assert end.error_kind == "deadline_exceeded"
    assert end.error_message == (
        f"the batch took longer than 20 s (option.predict_timeout); {count} tokens were generated"
    )
    assert heard.tokens("long") == generate_alone(llama, [12], 40)[:count]


def test_the_timeout_is_checked_during_a_step() -> None:
    heard = Runner(make_model("llama"), StepClock(), seconds=2.0).run([request("a", [5])])
    assert heard.tokens("a") == []
    assert heard.end("a").error_kind == "deadline_exceeded"


def test_every_step_and_each_of_its_layers_send_a_heartbeat(runner: Runner) -> None:
    before = runner.num_beats
    runner.run([request("a", [5], 4)])
    assert runner.num_beats - before == 1 + 4 * (1 + 2), "one at the start; four steps of two layers"


def test_on_a_gpu_a_heartbeat_waits_for_the_previous_layer_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: events.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Identity()])
    assert HeartbeatHook(lambda: events.append("beat"), time.monotonic).attach(model) == 1
    with FakeTensorMode():  # without a GPU
        prompt, token = (torch.empty(1, length, 8, device="cuda") for length in (5, 1))
    model.layers[0](prompt)
    model.layers[0](token)
    assert events == ["wait", "beat", "beat"]


def test_positions_of_ended_rows_stay_inside_the_position_table() -> None:
    """GPT-2 has a position table. An ended row must neither index past its end nor be rerun."""
    runner = Runner(make_model("gpt2"))
    heard = runner.run([request("long prompt", range(10, 28), 2), request("long output", [5], CONTEXT - 1)])
    assert heard.num_steps == CONTEXT - 1
    assert len(heard.tokens("long output")) == CONTEXT - 1
