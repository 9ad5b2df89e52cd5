"""Recorded loads: Mooncake's JSON lines and Azure's CSV files.

Mooncake: `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of blocks of 512 tokens. Azure:
`TIMESTAMP` as a date with time, `ContextTokens`, `GeneratedTokens`. Requests without generated tokens get one token.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from container.measure.bench.arrivals import RecordedArrivals
from container.measure.bench.lengths import RecordedLengths
from container.measure.bench.prefixes import RecordedPrefixes
from container.measure.bench.scenario import Scenario
from container.measure.bench.workload import BenchError, Workload

_MAX_REQUESTS = 100_000
_MAX_LINE_BYTES = 1 << 20
_MAX_TOKENS = 10_000_000
_BLOCK_TOKENS = 512
_SHORTEST_PROMPT = 8
"""Minimum tokens of a prompt. Shorter prompts could not all differ."""
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKENS)]


class _Recorded(msgspec.Struct):
    """One recorded request. The fields have Mooncake's names."""

    timestamp: float
    """Milliseconds since an arbitrary time."""
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    read: Callable[[bytes], _Recorded]
    """Parses a line without its line end. Raises ValueError."""


def read_trace(path: Path) -> Scenario:
    """Read the load of a trace file, at most 100,000 requests. Raises BenchError."""
    try:
        with path.open("rb") as file:
            lines = enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1)
            found = list(islice(_requests(path, lines), _MAX_REQUESTS))
    except OSError as error:
        raise BenchError(f"--trace: cannot read {path}: {error.strerror}") from error
    if not found:
        raise BenchError(f"--trace: {path} has no requests")
    return _scenario(path.name, sorted(found, key=lambda request: request.timestamp))


def _requests(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[_Recorded]:
    """Parse the requests of a trace. Raises BenchError."""
    file_format: _Format | None = None
    for number, line in lines:
        if not line.strip():
            continue
        try:
            if file_format is None:
                if not line.lstrip().startswith(b"{"):
                    file_format = _azure(line)
                    continue
                file_format = _MOONCAKE
            yield file_format.read(line.strip())
        except (ValueError, csv.Error) as error:  # msgspec's errors are ValueErrors too
            kind = f" of {file_format.name}" if file_format else ""
            raise BenchError(
                f"--trace: {path}, line {number}: not a request{kind}: {error}; allowed: JSON lines of Mooncake, and"
                f" CSV with the header {','.join(_AZURE)}"
            ) from error


_MOONCAKE = _Format("Mooncake's traces", msgspec.json.Decoder(_Recorded).decode)


def _azure(header: bytes) -> _Format:
    """Return the format of a CSV file with this header. Raises ValueError."""
    names = [name.strip() for name in _cells(header)]
    missing = [name for name in _AZURE if name not in names]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    places = [names.index(name) for name in _AZURE]

    def read(line: bytes) -> _Recorded:
        cells = _cells(line)
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells, but the header has {len(names)}")
        when, prompt, output = (cells[place].strip() for place in places)
        stamp = datetime.datetime.fromisoformat(when)
        if stamp.tzinfo is None:
            stamp = stamp.replace(tzinfo=datetime.UTC)
        values = {"timestamp": 1000 * stamp.timestamp(), "input_length": prompt, "output_length": output}
        return msgspec.convert(values, _Recorded, strict=False)

    return _Format("Azure's traces", read)


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8-sig").strip()]), [])


def _scenario(name: str, requests: Sequence[_Recorded]) -> Scenario:
    first = requests[0].timestamp
    prefixes = RecordedPrefixes(tuple(request.hash_ids for request in requests), _BLOCK_TOKENS)
    workload = Workload(
        RecordedLengths(tuple(request.input_length for request in requests), _SHORTEST_PROMPT),
        RecordedLengths(tuple(request.output_length for request in requests)),
        len(requests),
        prefixes if any(prefixes.block_ids) else None,
    )
    return Scenario(
        name, workload, RecordedArrivals(tuple((request.timestamp - first) / 1000 for request in requests))
    )
