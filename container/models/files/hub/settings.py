"""Variables of huggingface_hub that this program reads itself, since the library has them only once it is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from container.models.errors import ModelNotAvailable
from lmi_server.values.show import without_secrets

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A full revision of a repository, which never changes."""
LIBRARY = "lmi-server"
"""Name of this program in requests to the hub."""
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = ("1", "ON", "YES", "TRUE")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_MAX_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits that the user has set, in seconds; None: the default."""

    listing: float | None = None
    silence: float | None = None
    """Time limit of a download for connecting and between two reads."""


def time_limits(environ: Mapping[str, str]) -> TimeLimits:
    """Read HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT. Raises ModelNotAvailable if one is not a number."""
    return TimeLimits(_seconds(environ, "HF_HUB_ETAG_TIMEOUT"), _seconds(environ, "HF_HUB_DOWNLOAD_TIMEOUT"))


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    """Return a number of seconds; None if the variable is not set or 0, as for huggingface_hub."""
    text = environ.get(name) or "0"
    wrong = f"{name}: not a whole number of seconds (got {text[:40]!r}); allowed: 1 or more"
    try:
        seconds = int(text)
    except ValueError as error:
        raise ModelNotAvailable(wrong) from error
    if seconds < 0:
        raise ModelNotAvailable(wrong)
    return min(seconds, _MAX_SECONDS) or None


def is_offline(environ: Mapping[str, str]) -> bool:
    """Return whether the user has disabled connections to the hub."""
    return next(filter(None, map(environ.get, _OFFLINE)), "").upper() in _TRUE


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """Return the hub's address, which may contain a password.

    Raises ModelNotAvailable if HF_ENDPOINT is not an address.
    """
    endpoint = (environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
    wrong = (
        f"HF_ENDPOINT={without_secrets(endpoint)} is not an address; allowed: https://host, http://host:port"
    )
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ModelNotAvailable(wrong) from error
    if not whole:
        raise ModelNotAvailable(wrong)
    return endpoint
