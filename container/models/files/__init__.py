"""Locations of model files: one class for each kind of location, registered in `SCHEMES`. Imports no torch.

Every scheme has `locate`, which finds a model that is complete on this disk and opens no connection, and `obtain`,
which prepares the model if needed.
"""

from __future__ import annotations

from pathlib import Path

from container.models.errors import ModelNotAvailable
from container.models.files import choice, pruning
from container.models.files.base import RemoteScheme, Scheme, selection
from container.models.files.bundled import BUNDLED_MODEL, PACKAGE, BundledModel, bundled_folder, prune_bundled
from container.models.files.copies import in_use
from container.models.files.folder import LocalFolder
from container.models.files.gguf import GgufModels
from container.models.files.hub.source import HubModels, id_of_address
from container.models.files.remote import Snapshot
from container.models.files.s3.source import S3Models
from container.progress import ProgressView
from container.run.launch import cache_dir, environment
from engines.models.gguf_index import read_index
from lmi_server.config import ModelSource
from lmi_server.values.show import without_secrets

__all__ = [
    "SCHEMES",
    "ModelNotAvailable",
    "Scheme",
    "hub_id",
    "in_use",
    "is_described",
    "is_fetched",
    "locate",
    "obtain",
    "prune",
    "refusal",
    "size",
    "verify",
]

SCHEMES: tuple[Scheme, ...] = (BundledModel(), GgufModels(), LocalFolder(), S3Models(), HubModels())
"""Schemes in the order in which `owns` is called."""


def _scheme(source: ModelSource) -> Scheme | None:
    return next((scheme for scheme in SCHEMES if scheme.owns(source)), None)


def is_fetched(source: ModelSource) -> bool:
    """Return whether the model comes over a network, judged by its address."""
    return isinstance(_scheme(source), RemoteScheme) and refusal(source) is None


def hub_id(source: ModelSource) -> str:
    """Return `option.model_id` if it names a model on a hub, also if its files are bundled; else an empty string."""
    on_hub = isinstance(_scheme(source), HubModels | BundledModel) and refusal(source) is None
    return source.model_id or "" if on_hub else ""


def is_described(source: ModelSource) -> bool:
    """Return whether the model is a GGUF file, which gets a description before it is served."""
    return isinstance(_scheme(source), GgufModels) and refusal(source) is None


def refusal(source: ModelSource) -> str | None:
    """Return in one sentence why no scheme can provide this source; else None. Opens no connection."""
    scheme = _scheme(source)
    if scheme is not None:
        return scheme.refusal(source)
    model_id = source.model_id or ""
    if hub_id := id_of_address(model_id):
        return f"option.model_id={model_id}: use the id of the Hub model instead of its URL; did you mean {hub_id}?"
    scheme_name = f"{model_id.split('://')[0]}://"
    return (
        f"option.model_id={without_secrets(model_id)}: '{scheme_name}' is not supported; allowed: a local folder or "
        "GGUF file, a Hub id, s3://bucket/prefix"
    )


def locate(source: ModelSource, cache: Path | None = None) -> Path | None:
    """Return the model's folder if it is complete on this disk, else None. Prepares nothing, opens no connection."""
    scheme = _scheme(source)
    return scheme.locate(source, cache or cache_dir(environment())) if scheme else None


def obtain(source: ModelSource, view: ProgressView, cache: Path | None = None) -> Path:
    """Return the model's folder, prepared if needed. Raises ModelNotAvailable."""
    scheme = _scheme(source)
    if scheme is None:
        raise ModelNotAvailable(refusal(source))
    return scheme.obtain(source, cache or cache_dir(environment()), view)


def size(source: ModelSource) -> int:
    """Return the bytes of a model's files, on this disk or else in the remote's listing. Raises ModelNotAvailable."""
    if (folder := locate(source)) is not None:
        gguf = read_index(folder)
        weights = sum(gguf.sizes.values()) if gguf else 0
        return weights + sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    scheme = _scheme(source)
    if not isinstance(scheme, RemoteScheme):
        raise ModelNotAvailable(f"{source.model_id}: the model's files are not on this disk")
    remote = scheme.remote(source)
    return choice.choose(Snapshot(remote.name, remote.list_files(), selection(source))).size


def verify(source: ModelSource, view: ProgressView, cache: Path | None = None) -> Path:
    """Like `obtain`, but compare all fetched files with the remote, and fetch damaged ones again.

    Raises: ModelNotAvailable.
    """
    return _remote_scheme(source).verify(source, cache or cache_dir(environment()), view)


def prune(view: ProgressView, source: ModelSource | None = None, cache: Path | None = None) -> int:
    """Remove copies of earlier versions and unfinished fetches, of `source` or of all models in the cache.

    Copies in use by a server are kept. Returns the bytes freed. Raises ModelNotAvailable.
    """
    cache = cache or cache_dir(environment())
    try:
        if source is None:
            freed = prune_bundled(cache, view) + pruning.prune(cache, view)
        else:
            freed = pruning.prune(cache, view, _remote_scheme(source).copy_name(source))
    except OSError as error:
        raise ModelNotAvailable(f"cannot remove from the cache {cache}: {error}") from error
    view.say(f"freed {freed} bytes in {cache}")
    return freed


def _remote_scheme(source: ModelSource) -> RemoteScheme:
    """Return the scheme that fetches the source. Raises ModelNotAvailable if the source is not fetched."""
    if reason := refusal(source):
        raise ModelNotAvailable(reason)
    scheme = _scheme(source)
    if isinstance(scheme, RemoteScheme):
        return scheme
    if isinstance(scheme, BundledModel):
        raise ModelNotAvailable(
            f"{BUNDLED_MODEL} is bundled (package {PACKAGE}); only models from S3 or the Hub can be verified or pruned;"
            f" to convert it again, remove {bundled_folder(cache_dir(environment()))}"
        )
    raise ModelNotAvailable(
        f"{source.local_path} is a local model; only models from S3 or the Hub can be verified or pruned"
    )
