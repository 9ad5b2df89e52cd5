"""A platform whose containers are small in-process HTTP servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from container.endpoint.runtime import TimeLimits
from tests.container.endpoint.fake_containers import FakeContainers
from tests.support.endpoints import EndpointLab, FakeLauncher, lab


@pytest.fixture
def containers() -> FakeContainers:
    return FakeContainers()


@pytest.fixture
def platform(containers: FakeContainers) -> Iterator[EndpointLab]:
    with lab(FakeLauncher(containers), limits=TimeLimits(200.0, 200.0)) as running:
        yield running
