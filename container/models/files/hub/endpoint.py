"""The address of the hub. It may contain a user name and a password, which no message shows."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from container.models.errors import ModelNotAvailable
from lmi_server.values.show import without_secrets

_DEFAULT = "https://huggingface.co"


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """Return the hub's address. Raises ModelNotAvailable if HF_ENDPOINT is not an address."""
    endpoint = (environ.get("HF_ENDPOINT") or _DEFAULT).rstrip("/")
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
