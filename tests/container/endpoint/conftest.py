"""A platform whose containers are small in-process HTTP servers, and an S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from container.endpoint.runtime import TimeLimits
from tests.container.endpoint.fake_containers import FakeLab, fake_lab
from tests.container.endpoint.fake_s3 import FakeS3


@pytest.fixture
def platform() -> Iterator[FakeLab]:
    with fake_lab(limits=TimeLimits(200.0, 200.0)) as running:
        yield running


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with FakeS3() as server:
        yield server
