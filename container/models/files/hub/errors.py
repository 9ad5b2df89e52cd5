"""Errors of the hub as one sentence for users. Imports huggingface_hub."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import errors
from huggingface_hub.utils import parse_ratelimit_headers

from container.models.errors import AccessRefused, ModelNotAvailable, RemoteUnreachable, shorten
from container.models.files.retry import Throttled, retry_after_seconds
from lmi_server.values.show import without_secrets

_TRY_LATER = (408, 429, 500, 502, 503, 504)
_THROTTLED = (429, 503)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A model on a hub."""

    repo_id: str
    revision: str
    endpoint: str
    folder: Path | None = None
    """The local folder of that name, which the user may have meant."""

    @property
    def name(self) -> str:
        return f"{self.repo_id}@{self.revision}"

    @property
    def shown(self) -> str:
        """The endpoint for messages, without a user name and password."""
        return without_secrets(self.endpoint)


def unavailable(error: Exception, address: HubAddress, file: str = "") -> ModelNotAvailable:
    """Return RemoteUnreachable if trying later may help, AccessRefused if another token may, else ModelNotAvailable.

    The former is Throttled if the hub says how much later.

    file: the path in the repository that was being read.
    """
    what = f"{address.name}: {file}" if file else address.name
    if isinstance(error, errors.OfflineModeIsEnabled):
        return RemoteUnreachable(
            f"{address.name}: downloads from the Hub are disabled (HF_HUB_OFFLINE is set)"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _status_error(error, address, file, what)
    if isinstance(error, httpx2.HTTPError):
        return RemoteUnreachable(f"{what}: {_no_answer(error, address.shown)}")
    if isinstance(error, OSError | ImportError):
        settings = "SSL_CERT_FILE, SSL_CERT_DIR, HTTPS_PROXY, ALL_PROXY"
        return ModelNotAvailable(
            f"{what}: cannot connect to {address.shown}: {shorten(error)}; check {settings}"
        )
    why = shorten(error).replace(address.endpoint, address.shown)
    return ModelNotAvailable(f"{what}: {address.shown} did not respond like a model hub ({why})")


def _status_error(
    error: errors.HfHubHTTPError, address: HubAddress, file: str, what: str
) -> ModelNotAvailable:
    """Return the error for an error status of the hub."""
    status = error.response.status_code
    kind = AccessRefused if status in (401, 403) else ModelNotAvailable
    with_token = _with_token(error)
    caller = "the account of HF_TOKEN" if with_token else "a client without HF_TOKEN"
    if status in _TRY_LATER:
        return _try_later(error, address.shown, what)
    if isinstance(error, errors.GatedRepoError):
        sentence = f"{address.repo_id} is gated, and {caller} has no access"
        then = " with that account, then try again" if with_token else ", then set HF_TOKEN"
        return kind(f"{sentence}; request access at {address.shown}/{address.repo_id}{then}")
    if isinstance(error, errors.RevisionNotFoundError):
        taken = "set option.revision (lmi prepare: --revision) to an existing branch, tag or commit"
        return ModelNotAvailable(f"{address.repo_id} has no revision '{address.revision}'; {taken}")
    if isinstance(error, errors.RemoteEntryNotFoundError) or (file and status == 404):
        return ModelNotAvailable(f"{what}: the Hub lists this file but does not have it")
    if error.response.headers.get("X-Error-Message") == "Invalid credentials in Authorization header":
        return kind(f"{address.name}: {address.shown} rejected the token (HF_TOKEN)")
    if status == 403 or isinstance(error, errors.DisabledRepoError):
        return kind(f"{what}: {address.shown} denied access to {caller} ({status})")
    if status in (401, 404):
        # The hub answers the same in both cases, to keep private models secret.
        beside = f"; the folder {address.folder} does not exist either" if address.folder else ""
        who = f"it is private and {caller} has no access"
        advice = "use the token of an account with access"
        if not with_token:
            advice = "set HF_TOKEN to a token that can read it"
        missing = f"{address.shown} has no model '{address.repo_id}', or {who}{beside}"
        return kind(f"{missing}; check the spelling, or {advice}")
    return ModelNotAvailable(f"{what}: {address.shown} returned status {status}")


def _try_later(error: errors.HfHubHTTPError, endpoint: str, what: str) -> RemoteUnreachable:
    status, seconds = error.response.status_code, _seconds_to_wait(error)
    wait = f"; retry after {seconds:.0f} s" if seconds else ""
    if status == 429:
        hint = "" if _with_token(error) else "; set HF_TOKEN for a higher limit"
        why = f"rate limit of {endpoint} exceeded (status 429){wait}{hint}"
    elif seconds:
        why = f"{endpoint} is not available now (status {status}){wait}"
    else:
        why = f"{endpoint} keeps returning status {status}"
    return Throttled(f"{what}: {why}", seconds) if seconds else RemoteUnreachable(f"{what}: {why}")


def _seconds_to_wait(error: errors.HfHubHTTPError) -> float:
    """Return how long the hub refuses requests, if it says so; else 0."""
    status, headers = error.response.status_code, error.response.headers
    if status not in _THROTTLED:
        return 0.0
    limit = parse_ratelimit_headers(headers)
    if status == 429 and limit and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return retry_after_seconds(headers)


def _with_token(error: errors.HfHubHTTPError) -> bool:
    answers = (*error.response.history, error.response)
    return any("authorization" in answer.request.headers for answer in answers)


def _no_answer(error: httpx2.HTTPError, endpoint: str) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    try:
        url = error.request.url  # files may be on another host than the hub itself
        host = f"{url.scheme}://{url.netloc.decode()}"
    except RuntimeError:  # the error has no request
        host = endpoint
    if cause is not None:
        return f"cannot resolve the host name of {host}; check the network"
    if isinstance(error, httpx2.TimeoutException):
        return f"{host} did not respond in time"
    if isinstance(error, httpx2.ConnectError):
        return f"cannot connect to {host} ({shorten(error)})"
    return f"lost the connection to {host} ({shorten(error)})"
