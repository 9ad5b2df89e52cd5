"""`results.jsonl`: the results of the GPU check, one record per line. The file is valid after every line. Concurrent
parts append to the same file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "results.jsonl"
Run = dict[str, Any]
"""All records of one part: its head, `entries`, `seconds`, `finished`, and `stopped`, the reason if it was stopped."""


class Records:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / FILE

    def write(self, part: str, kind: str, **values: Any) -> None:
        """Append a record.

        kind: `begin`, `entry` or `end`. The process that starts the part writes `launch` before it starts it, `stopped`
            if it crashed or had to be stopped, and `skipped` if it was not started.
        """
        line = json.dumps({"part": part, "kind": kind, "at": time.time(), **values}) + "\n"
        # A single write to a file opened with O_APPEND: lines of several processes are not interleaved.
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def read(files: Iterable[Path]) -> list[Run]:
    """Return the last run of each part. The files must be in chronological order. Truncated lines are ignored."""
    runs: dict[str, Run] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue
            part, kind = values.pop("part"), values.pop("kind")
            at = values.pop("at")
            if kind in ("launch", "begin") or part not in runs:
                head = values if kind == "begin" else {}
                runs[part] = {"part": part, "smoke": False, "device": {}, "versions": {}, "date": ""} | head
                runs[part] |= {"entries": [], "seconds": 0.0, "finished": False, "stopped": "", "began": at}
            elif kind == "skipped":
                continue
            run = runs[part]
            run["seconds"] = at - run["began"]
            if kind == "entry":
                run["entries"].append(values)
            elif kind == "end":
                run["finished"] = True
            elif kind in ("stopped", "skipped"):
                run["stopped"] = values["why"]
    return list(runs.values())
