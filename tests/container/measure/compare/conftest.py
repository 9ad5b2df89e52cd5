"""Fixtures for tests that read from servers."""

from __future__ import annotations

import urllib.request

import pytest


@pytest.fixture
def unreachable_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a proxy that refuses connections. Requests to this machine must not use it."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # an earlier test may have read the proxies
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
