"""Where a model's files are: one class per kind of location, each registered in `SCHEMES`. Imports no torch.

Every scheme answers two questions: `locate` (is the model on this disk already? no work, no connection) and
`obtain` (make it so).
"""

from __future__ import annotations

from pathlib import Path

from container.models import prepare
from container.models.files import pruning
from container.models.files.base import ModelNotAvailable, RemoteScheme, Scheme
from container.models.files.bundled import BundledModel
from container.models.files.copies import in_use
from container.models.files.folder import LocalFolder
from container.models.files.hub.source import HubModel, id_of_address
from container.models.files.s3.source import S3Models
from container.progress import ProgressView
from container.run.launch import cache_dir, environment
from lmi_server.config import ModelSource

__all__ = [
    "SCHEMES",
    "ModelNotAvailable",
    "Scheme",
    "in_use",
    "is_fetched",
    "locate",
    "obtain",
    "prune",
    "refusal",
    "verify",
]

_LOCAL: dict[str, Scheme] = {"bundled": BundledModel(), "folder": LocalFolder()}
_REMOTE: dict[str, RemoteScheme] = {"s3": S3Models(), "hub": HubModel()}
SCHEMES: dict[str, Scheme] = {**_LOCAL, **_REMOTE}
"""In the order in which they are asked."""


def _remote_scheme(source: ModelSource) -> RemoteScheme | None:
    """The scheme that would fetch this source; None where it is on this machine, or nobody's."""
    if any(scheme.owns(source) for scheme in _LOCAL.values()):
        return None
    return next((scheme for scheme in _REMOTE.values() if scheme.owns(source)), None)


def is_fetched(source: ModelSource) -> bool:
    """Whether the model comes from elsewhere, over a network, as far as its address tells."""
    return _remote_scheme(source) is not None and refusal(source) is None


def refusal(source: ModelSource) -> str | None:
    """Why no scheme takes this source: one sentence; None when one does. Opens no connection."""
    if remote := _remote_scheme(source):
        return remote.refusal(source)
    if any(scheme.owns(source) for scheme in _LOCAL.values()):
        return None
    model_id = source.model_id or ""
    if hub_id := id_of_address(model_id):
        return f"option.model_id={model_id}: a model of the hub is named by its id; write {hub_id}"
    return f"option.model_id={model_id}: '{model_id.split('://')[0]}://' is not a known kind of location"


def _scheme(source: ModelSource) -> Scheme:
    for scheme in SCHEMES.values():
        if scheme.owns(source):
            return scheme
    raise ModelNotAvailable(refusal(source))


def locate(source: ModelSource, cache: Path | None = None) -> Path | None:
    """The model's folder if it is ready on this disk, else None. No work, no connection, no torch."""
    try:
        scheme = _scheme(source)
    except ModelNotAvailable:
        return None
    return scheme.locate(source, cache or cache_dir(environment()))


def obtain(source: ModelSource, view: ProgressView, cache: Path | None = None) -> Path:
    """The model's folder, prepared if need be. Raises `ModelNotAvailable`."""
    return _scheme(source).obtain(source, cache or cache_dir(environment()), view)


def verify(source: ModelSource, view: ProgressView, cache: Path | None = None) -> Path:
    """As `obtain`; but every file of a copy that is there already is compared with what its remote has, and damaged
    ones are fetched again. Raises `ModelNotAvailable`.
    """
    return _fetched(source).verify(source, cache or cache_dir(environment()), view)


def prune(view: ProgressView, source: ModelSource | None = None, cache: Path | None = None) -> int:
    """Remove copies of earlier versions and what broken fetches left: of `source`, or of all models in the cache.

    Copies that a server uses stay. Returns the bytes that became free. Raises `ModelNotAvailable`.
    """
    cache = cache or cache_dir(environment())
    try:
        if source is None:
            freed = prepare.prune_bundled(cache, view) + pruning.prune(cache, view)
        else:
            freed = pruning.prune(cache, view, _fetched(source).name(source))
    except OSError as error:
        raise ModelNotAvailable(f"cannot remove from the cache {cache}: {error}") from error
    view.say(f"{freed} bytes were freed in {cache}")
    return freed


def _fetched(source: ModelSource) -> RemoteScheme:
    """The scheme that fetches the source. Raises `ModelNotAvailable` where it is not fetched."""
    if reason := refusal(source):
        raise ModelNotAvailable(reason)
    if remote := _remote_scheme(source):
        return remote
    raise ModelNotAvailable(
        f"{source.model_id} is on this machine: only what was fetched from S3 or a hub has a source"
    )
