"""Prices of instances with dates and sources, from prices.json in this folder or the user's own file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from container.measure.numbers import format_number
from container.measure.simulate.server import CannotSimulateError
from container.measure.simulate.simulation import Simulation

_OWN_FILE = Path(__file__).with_name("prices.json")
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """On-demand price of an instance."""

    instance: str
    """Name, such as `ml.g5.48xlarge` on SageMaker, `g5.48xlarge` on EC2."""
    per_hour: float
    """USD per hour."""
    region: str = ""
    date: str = ""
    """Date on which the price was read, such as 2026-01-21."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run's tokens, if the instance does nothing else."""

    price: Price
    per_million_output_tokens: float
    """USD; NaN without tokens."""
    per_million_tokens: float
    """USD for prompt and output tokens together."""

    def describe(self) -> str:
        price = self.price
        origin = f"{price.instance}, {price.region}, {price.date}" if price.date else price.instance
        return (
            f"{format_number(self.per_million_output_tokens)} USD per million output tokens,"
            f" {format_number(self.per_million_tokens)} USD per million tokens in and out,"
            f" at {price.per_hour:g} USD an hour ({origin})"
        )


def read_prices(path: Path | None, instance: str) -> list[Price]:
    """Return the prices of an instance on SageMaker and EC2. path: defaults to this package's file.

    Raises CannotSimulateError if the file cannot be read or has another form.
    """
    file = path or _OWN_FILE
    try:
        prices = msgspec.json.decode(file.read_bytes(), type=list[Price])
    except OSError as error:
        raise CannotSimulateError(f"--prices: cannot read {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CannotSimulateError(
            f"--prices: {file} is not a list of prices: {error}; allowed: the format of {_OWN_FILE}"
        ) from error
    return [price for price in prices if price.instance in (instance, instance.removeprefix("ml."))]


def cost(price: Price, simulation: Simulation, copies: int = 1) -> Cost:
    """Return the cost of successful requests. copies: of the model on the machine, of which one was simulated."""
    micro = _MILLION * price.per_hour / copies * simulation.metrics.wall_seconds / 3600
    outputs = simulation.metrics.output_tokens
    if not outputs:
        return Cost(price, math.nan, math.nan)
    return Cost(price, micro / outputs, micro / (outputs + simulation.prompt_tokens))
