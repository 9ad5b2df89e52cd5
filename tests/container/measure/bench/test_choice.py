"""Presets, their scale, and options that override them."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from container.measure.bench.arrivals import Arrivals, Burst, OpenLoop, Users
from container.measure.bench.choice import LoadChoice
from container.measure.bench.lengths import Exponential, Fixed, Normal, ShortAndLong, Uniform
from container.measure.bench.prefixes import SharedPrefixes
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.bench.workload import BenchError, Workload, make_requests
from container.measure.compare.compare_command import DEFAULT_LOAD

DEFAULT = Scenario("", Workload(Fixed(32), Fixed(128), 128), Users(32))
TOKENS = {
    "aws-1": "32 tokens in, 128 out",
    "aws-2": "256 tokens in, 32 out",
    "summarize": "500 tokens in, 100 out (normal, standard deviation 20)",
    "code": "15 tokens in, 500 out",
    "anyscale": "512 tokens in, 1 to 1536 out (exponential, mean 128)",
    "anyscale-32": "512 tokens in, 1 to 32 out (exponential, mean 16)",
    "anyscale-128": "512 tokens in, 1 to 128 out (exponential, mean 54)",
    "anyscale-512": "512 tokens in, 1 to 512 out (exponential, mean 119)",
    "databricks": "512 tokens in (normal, standard deviation 128), 128 out",
    "shared-prefix": "1280 tokens in, 64 out, 8 shared prefixes of 1024 tokens",
    "long-and-short": "64 tokens in (10 % of them 2048), 32 out (10 % of them 512)",
}


def choose(**options: object) -> Scenario:
    return LoadChoice(**options).scenario(DEFAULT)  # type: ignore[arg-type]


def test_presets_and_spread_lengths_have_the_documented_token_counts() -> None:
    assert {name: one.workload.describe() for name, one in PRESETS.items()} == TOKENS
    spread = choose(lengths="spread", input_tokens=16, output_tokens=20).workload
    assert spread.describe() == "8 to 24 tokens in (uniform), 1 to 80 out (exponential, mean 20)"
    assert PRESETS["databricks"].arrivals == Users(32, ramp=1.0)
    assert PRESETS["anyscale"].arrivals == Burst()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_scaled_down(name: str, tiny_tokenizer: Tokenizer) -> None:
    small = choose(preset=name, scale=0.05)
    requests = make_requests(small.workload, tiny_tokenizer, 0)
    assert len(requests) == small.workload.num_requests <= 50
    assert all(one.prompt_tokens <= 103 and one.output_tokens <= 77 for one in requests)
    assert len({one.prompt for one in requests}) == len(requests)
    sessions = small.arrivals.sessions(requests, 0)
    assert sum(len(session.requests) for session in sessions) == len(requests)


def test_scale_applies_to_users_and_token_counts() -> None:
    assert choose(preset="databricks", scale=0.1) == Scenario(
        "databricks", Workload(Normal(51, 12.8), Fixed(13), 26), Users(3, ramp=0.1)
    )
    assert choose(preset="shared-prefix", scale=0.5).workload == Workload(
        Fixed(640), Fixed(32), 64, SharedPrefixes(8, 512)
    )
    assert choose(scale=0.25) == Scenario("8 tokens in, 32 out", Workload(Fixed(8), Fixed(32), 32), Users(8))


@pytest.mark.parametrize(
    ("options", "workload"),
    [
        ({}, Workload(Fixed(32), Fixed(128), 128)),
        ({"input_tokens": 7, "requests": 5}, Workload(Fixed(7), Fixed(128), 5)),
        ({"users": 8}, Workload(Fixed(32), Fixed(128), 32)),
        ({"users": 8, "requests": 9}, Workload(Fixed(32), Fixed(128), 9)),
        ({"lengths": "spread", "input_tokens": 40}, Workload(Uniform(20, 60), Exponential(128, 512), 128)),
        (
            {"preset": "long-and-short", "lengths": "fixed", "requests": 3},
            Workload(Fixed(262), Fixed(80), 3),
        ),
        (
            {"preset": "anyscale", "output_tokens": 32, "requests": 3},
            Workload(Fixed(512), Exponential(32, 384), 3),
        ),
        (
            {"preset": "aws-1", "scale": 0.1, "output_tokens": 50, "requests": 9},
            Workload(Fixed(3), Fixed(50), 9),
        ),
    ],
)
def test_size_options_override_the_preset(options: dict[str, object], workload: Workload) -> None:
    assert choose(**options).workload == workload


@pytest.mark.parametrize("options", [{}, {"lengths": "spread"}, {"scale": 0.1}])
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "long-and-short"])
@pytest.mark.parametrize("tokens", [1, 3, 64, 200])
def test_the_mean_of_the_drawn_lengths_is_the_given_one(
    name: str, tokens: int, options: dict[str, object]
) -> None:
    workload = choose(preset=name, input_tokens=tokens, output_tokens=tokens, **options).workload
    for lengths in (workload.prompts, workload.outputs):
        drawn = lengths.draw(5000, random.Random(0))
        assert statistics.fmean(drawn) == pytest.approx(tokens, rel=0.03)
    assert workload.title.startswith(f"{tokens} tokens in, {tokens} out")


def test_prompts_of_the_default_comparison_have_the_given_mean() -> None:
    for tokens in (3, 5, 100):
        lengths = LoadChoice(input_tokens=tokens).scenario(DEFAULT_LOAD).workload.prompts
        assert statistics.fmean(lengths.draw(5000, random.Random(0))) == pytest.approx(tokens, rel=0.03)


def test_fixed_lengths_are_the_mean_of_the_preset() -> None:
    assert choose(preset="anyscale-32", lengths="fixed").workload.outputs == Fixed(16)


def test_shared_prefixes_keep_their_share_of_shorter_prompts(tiny_tokenizer: Tokenizer) -> None:
    short = choose(preset="shared-prefix", input_tokens=160, requests=16).workload
    assert (short.prompts, short.prefixes) == (Fixed(160), SharedPrefixes(8, 128))
    prompts = [one.prompt.split() for one in make_requests(short, tiny_tokenizer, 0)]
    assert len({tuple(words[:20]) for words in prompts}) <= 8


@pytest.mark.parametrize(
    ("options", "arrivals"),
    [
        ({"users": 4}, Users(4)),
        ({"ramp": 2.0}, Users(32, 2.0)),
        ({"preset": "databricks", "users": 4}, Users(4, 1.0)),
        ({"preset": "anyscale", "users": 4}, Users(4)),
        ({"rate": 3.0}, OpenLoop(3.0)),
        ({"rate": 3.0, "arrivals": "constant"}, OpenLoop(3.0, math.inf)),
        ({"rate": 3.0, "arrivals": "gamma", "burstiness": 0.5}, OpenLoop(3.0, 0.5)),
        ({"rate": 3.0, "burstiness": 0.5}, OpenLoop(3.0, 0.5)),
        ({"preset": "long-and-short", "arrivals": "constant"}, OpenLoop(4.0, math.inf)),
        ({"burst": True}, Burst()),
    ],
)
def test_arrival_options_override_the_preset(options: dict[str, object], arrivals: Arrivals) -> None:
    assert choose(**options).arrivals == arrivals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"users": 4, "rate": 2.0}, "--users, --rate: mutually exclusive"),
        ({"ramp": 4.0, "burst": True}, "--ramp, --burst: mutually exclusive"),
        ({"preset": "anyscale", "ramp": 4.0}, "--ramp: requires --users with this load"),
        ({"arrivals": "constant"}, "--arrivals: requires --rate with this load"),
        ({"rate": 1.0, "arrivals": "gamma"}, "--arrivals gamma: requires --burstiness"),
        (
            {"rate": 1.0, "arrivals": "poisson", "burstiness": 2.0},
            "--burstiness: not supported with --arrivals poisson",
        ),
        ({"preset": "aws-1", "trace": Path("t")}, "--preset, --trace: mutually exclusive"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        choose(**options)


def test_the_given_share_of_requests_is_long() -> None:
    drawn = Counter(ShortAndLong(2, 9, 0.1).draw(5000, random.Random(0)))
    assert drawn.keys() == {2, 9}
    assert drawn[9] / 5000 == pytest.approx(0.1, abs=0.02)


def test_a_warm_up_has_the_same_prompt_length_but_few_short_requests() -> None:
    warm_up = PRESETS["aws-2"].warm_up()
    assert warm_up.workload == Workload(Fixed(256), Fixed(16), 8)
    assert warm_up.arrivals == Users(8)
    tiny = choose(users=1, requests=2, output_tokens=4).warm_up()
    assert (tiny.workload, tiny.arrivals) == (Workload(Fixed(32), Fixed(4), 1), Users(1))
    assert choose(users=2).warm_up(6).arrivals == Users(2)
