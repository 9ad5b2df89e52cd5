"""Conversions of models in child processes, which free their memory afterwards and end with this process."""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

from container.run.cause import cause_of_death
from container.run.processes import bound
from lmi_server.values.show import one_line

_SILENCE_SECONDS = 300.0
"""Time without a line of output after which a child is killed."""
_MAX_ERROR_CHARS = 2000


class ConversionFailed(Exception):
    """A conversion failed. The message is the reason, in one line."""


def convert(
    module: str,
    source: Path,
    folder: Path,
    env: Mapping[str, str] | None = None,
    report: Callable[[bytes], None] = lambda line: None,
) -> None:
    """Run `python -m module source folder`, which writes to `folder`. Its last line on stderr is the error.

    report: gets each line of its stdout. Raises: ConversionFailed; OSError.
    """
    command = bound([sys.executable, "-P", "-m", module, str(source), str(folder)])
    with (
        tempfile.TemporaryFile("w+", errors="replace", dir=folder) as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=env
        ) as child,
    ):
        output = cast(IO[bytes], child.stdout)
        try:
            while select.select([output], [], [], _SILENCE_SECONDS)[0]:
                if not (line := output.readline()):
                    break
                report(line)
            else:
                raise ConversionFailed(f"timed out after {_SILENCE_SECONDS:.0f} s without progress")
        except BaseException:
            child.kill()
            raise
        if (code := child.wait()) != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            known = lines[-1] if code == 1 and lines else cause_of_death("the conversion", code, lines)
            raise ConversionFailed(one_line(known, _MAX_ERROR_CHARS))
