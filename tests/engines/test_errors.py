"""Errors keep their kind and message across processes."""

from __future__ import annotations

import pytest

from engines import errors
from engines.errors import EngineError, RequestFailed, error_from_kind

_KINDS = [
    error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, EngineError)
]


@pytest.mark.parametrize("error", [error for error in _KINDS if error is not EngineError])
def test_an_error_is_rebuilt_from_its_kind(error: type[EngineError]) -> None:
    rebuilt = error_from_kind(error.kind, "max_new_tokens is 0")
    assert type(rebuilt) is error
    assert str(rebuilt) == "max_new_tokens is 0"


def test_kinds_differ() -> None:
    assert len({error.kind for error in _KINDS}) == len(_KINDS) > 5


def test_an_unknown_kind_becomes_a_failed_request() -> None:
    rebuilt = error_from_kind("out_of_cheese", "redo from start")
    assert type(rebuilt) is RequestFailed
    assert str(rebuilt) == "redo from start"
