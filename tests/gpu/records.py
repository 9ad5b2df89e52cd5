"""`results.jsonl`: what parts of the GPU check have seen, a line each, whole after every line. Parts that run at once
write the same file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "results.jsonl"
Run = dict[str, Any]
"""One part's lines together: its head, `entries`, `seconds`, `finished`, and `stopped`, the reason if it was."""


class Records:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / FILE

    def write(self, part: str, kind: str, **values: Any) -> None:
        """kind: `begin`, `entry`, `end`, or `stopped` by somebody else."""
        line = json.dumps({"part": part, "kind": kind, "at": time.time(), **values}) + "\n"
        # One write to a file that is opened to append to: lines of several processes do not mix.
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def read(files: Iterable[Path]) -> list[Run]:
    """The last run of each part, files being in order of time. A line that was cut short is left out."""
    runs: dict[str, Run] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue
            part, kind = values.pop("part"), values.pop("kind")
            at = values.pop("at")
            if kind == "begin" or part not in runs:
                head = values if kind == "begin" else {}
                runs[part] = {"part": part, "smoke": False, "device": {}, "versions": {}, "date": ""} | head
                runs[part] |= {"entries": [], "seconds": 0.0, "finished": False, "stopped": "", "began": at}
            run = runs[part]
            run["seconds"] = at - run["began"]
            if kind == "entry":
                run["entries"].append(values)
            elif kind == "end":
                run["finished"] = True
            elif kind == "stopped":
                run["stopped"] = values["why"]
    return list(runs.values())
