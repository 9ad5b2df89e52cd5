"""Results of a part of the GPU check. Every entry is written immediately."""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata

import torch

from tests.gpu.records import Records
from tests.gpu.targets import TARGETS
from tests.gpu.timing import Timing

_PACKAGES = ("torch", "triton", "transformers", "numpy", "safetensors", "mpi4py")


@dataclass(frozen=True, slots=True)
class Entry:
    """One result."""

    name: str
    passed: bool | None
    """None: there is no requirement."""
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    """`low` and `high`: range over the repeats, in the same unit."""
    share: float | None = None
    """Ratio to the quantity that `of` names. It is compared with the target."""
    of: str = ""
    target: str = ""
    """A key of `TARGETS`."""
    note: str = ""


class Results:
    """Entries of a part. Prints and writes each of them."""

    def __init__(self, part: str, device: torch.device, smoke: bool, records: Records | None = None) -> None:
        self.smoke = smoke
        self.entries: list[Entry] = []
        self._part = part
        self._records = records
        self._write(
            "begin",
            smoke=smoke,
            device=describe_device(device),
            versions=versions(),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
        )

    @property
    def failed(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.passed is False]

    def check(self, name: str, passed: bool, note: str = "") -> None:
        """Add a check that passed or failed."""
        self._add(Entry(name, passed, note=note))

    def missing(self, name: str, why: str) -> None:
        """Add a note that something could not be measured. This is not a failure."""
        self._add(Entry(name, None, note=why))

    def figure(self, name: str, value: float, unit: str, note: str = "") -> None:
        """Add a number without a requirement."""
        self._add(Entry(name, None, value, unit, note=note))

    def time(
        self,
        name: str,
        timing: Timing,
        *,
        share: float | None = None,
        of: str = "",
        target: str = "",
        note: str = "",
    ) -> None:
        """Add a time in milliseconds, and its share of a ceiling or floor."""
        median, low, high = (1e3 * seconds for seconds in (timing.median, timing.low, timing.high))
        self._add(Entry(name, self._passed(share, target), median, "ms", low, high, share, of, target, note))

    def share(
        self, name: str, value: float, unit: str, share: float, of: str, target: str = "", note: str = ""
    ) -> None:
        """Add a number and its ratio to a ceiling, floor or peer."""
        self._add(
            Entry(
                name, self._passed(share, target), value, unit, share=share, of=of, target=target, note=note
            )
        )

    @contextmanager
    def guard(self, name: str, ours: bool = True) -> Iterator[None]:
        """Record an exception as a failed entry, or as a missing one if `ours` is false. The rest of the part still
        runs."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            lines = (str(error).strip() or repr(error)).splitlines()
            note = f"{type(error).__name__}: {' '.join(lines)[:300]}"
            self._add(Entry(name, False if ours else None, note=note))

    def finish(self) -> None:
        """Record that the part finished."""
        self._write("end")

    def _passed(self, share: float | None, target: str) -> bool | None:
        """Compare with the target. Figures of a smoke run have no requirements."""
        if not target or share is None or self.smoke:
            return None
        return TARGETS[target].met_by(share)

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        print(_line(entry), flush=True)
        self._write("entry", **asdict(entry))

    def _write(self, kind: str, **values: object) -> None:
        if self._records is not None:
            self._records.write(self._part, kind, **values)


def describe_device(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),
        "memory": f"{properties.total_memory / 1e9:.1f} GB",
        "l2": f"{getattr(properties, 'L2_cache_size', 0) / 1e6:.0f} MB",
    }


def versions() -> dict[str, str]:
    result = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            result[name] = "not installed"
    if torch.version.cuda:
        result["cuda"] = torch.version.cuda
    return result


def _line(entry: Entry) -> str:
    parts = [{True: "ok    ", False: "FAIL  ", None: "      "}[entry.passed] + entry.name]
    if entry.value is not None:
        parts.append(f"{entry.value:.4g} {entry.unit}")
    if entry.low is not None and entry.high is not None:
        parts.append(f"({entry.low:.4g} to {entry.high:.4g})")
    if entry.share is not None:
        parts.append(f"{entry.share:.3g} of {entry.of}")
    if entry.target:
        parts.append(f"[{entry.target}: {TARGETS[entry.target].requirement}]")
    if entry.note:
        parts.append(entry.note)
    return "  ".join(parts)
