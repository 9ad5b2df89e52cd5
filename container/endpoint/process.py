"""Containers of variants as local processes."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from container.endpoint.model_data import ModelData
from container.run.local_server import Command, LocalServer, serve_command
from lmi_server.config import MODEL_MOUNT
from lmi_server.properties.environment import ENV_NAMES

_OURS = (
    *("OPTION_", "SERVING_", "SAGEMAKER_", "ARGS_"),
    *(name.variable for name in ENV_NAMES),
    *("LMI_ADMIN_TOKEN", "LMI_ALLOW_REMOTE_CODE", "LMI_LENIENT", "LMI_MODEL_DIR", "LMI_MODELS_"),
)
"""Prefixes of environment variables that containers do not get, because they would change their configuration.

Variables that describe the machine are inherited: LMI_CACHE_DIR, LMI_CPU_KERNELS, credentials and proxies.
"""

_LOAD_MODELS = "SERVING_LOAD_MODELS"


class Launcher:
    """Starts containers, with their logs in `folder`.

    command: returns the command for a model folder; tests start a smaller server.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], data: ModelData, command: Command = serve_command
    ) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if not name.startswith(_OURS)}
        self._data = data
        self._command = command
        self._numbers = itertools.count(1)

    def launch(self, name: str, container: Mapping[str, Any]) -> LocalServer:
        """Start a container, defined as in `create_model`. Raises NoModelData."""
        folder = self._data.folder_of(container)
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._new_log(name)
        environ = {**self._environ, **_in_place(container.get("Environment", {}), folder)}
        return LocalServer.start("the container", self._command(folder), environ, log)

    def _new_log(self, name: str) -> IO[bytes]:
        """Create a log file with the next number, and keep those of earlier processes. Raises OSError."""
        while True:
            with contextlib.suppress(FileExistsError):
                return (self._folder / f"{name}-{next(self._numbers)}.log").open("xb", buffering=0)


def _in_place(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return a container's variables with its model folder in place of /opt/ml/model, where the platform mounts it."""

    def replaced(name: str, value: str) -> str:
        before = "(?:^|=)" if name == _LOAD_MODELS else "^"
        path = rf"({before}(?:file:(?://)?)?){MODEL_MOUNT}(?=/|$)"
        return re.sub(path, lambda match: f"{match[1]}{folder}", value)

    return {name: replaced(name, value) for name, value in environment.items()}
