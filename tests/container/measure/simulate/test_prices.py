"""Prices of instances and cost of tokens."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from container.measure.simulate import prices
from container.measure.simulate.clients import ARRIVAL_SECONDS
from container.measure.simulate.prices import Price, cost, read_prices
from container.measure.simulate.server import CannotSimulateError
from container.measure.simulate.simulation import simulate
from tests.container.measure.simulate.made_up import Times, rolling_server, scenario


def test_every_price_has_a_date_and_a_source() -> None:
    values = json.loads(Path(prices.__file__).with_name("prices.json").read_text())
    assert len({value["instance"] for value in values}) == len(values) > 40
    for value in values:
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", value["date"])
        assert value["source"].startswith("https://")
        assert value["region"]
        assert 0 < value["per_hour"] < 500


def test_an_instance_has_a_sagemaker_price_and_an_ec2_price() -> None:
    found = {price.instance: price.per_hour for price in read_prices(None, "ml.g5.48xlarge")}
    assert found == {"ml.g5.48xlarge": 20.36, "g5.48xlarge": 16.288}
    assert read_prices(None, "8 x A10G") == []


def test_prices_from_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('[{"instance": "ml.g5.48xlarge", "per_hour": 7.5}]')
    (price,) = read_prices(file, "ml.g5.48xlarge")
    assert price.per_hour == 7.5
    file.write_text('[{"instance": "ml.g5.48xlarge"}]')
    with pytest.raises(CannotSimulateError, match=r"is not a list of prices.*per_hour"):
        read_prices(file, "ml.g5.48xlarge")


def test_cost_of_a_million_tokens(llama: Path) -> None:
    """10 requests, 30 tokens in, 20 out, 1 s per step: 20 steps at 3600 USD an hour cost 20 USD for 200 tokens."""
    server = rolling_server(llama, max_num_seqs=10, max_prefill_tokens=400, max_num_batched_tokens=400)
    simulation = simulate(server, Times(1.0), scenario(10, 30, 20))
    per_token = cost(Price("one", 3600.0), simulation)
    dollars = 20 + ARRIVAL_SECONDS
    assert per_token.per_million_output_tokens == pytest.approx(dollars / 200 * 1e6)
    assert per_token.per_million_tokens == pytest.approx(dollars / 500 * 1e6)
    assert replace(per_token, per_million_output_tokens=12.0, per_million_tokens=3.0).describe() == (
        "12.0 USD per million output tokens, 3.00 USD per million tokens in and out, at 3600 USD an hour (one)"
    )
    halved = cost(Price("one", 3600.0), simulation, copies=2)
    assert halved.per_million_output_tokens == pytest.approx(dollars / 400 * 1e6)
    no_output = replace(simulation, metrics=replace(simulation.metrics, output_tokens=0))
    assert math.isnan(cost(Price("one", 3600.0), no_output).per_million_output_tokens)
