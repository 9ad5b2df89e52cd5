"""The scheme of models of the Hugging Face hub.

huggingface_hub is imported only when a model is fetched, or looked for in the library's own cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from container.models.errors import ModelNotAvailable
from container.models.files.base import RemoteScheme, folder_or_description, selection
from container.models.files.bundled import BUNDLED_MODEL
from container.models.files.fetch import OtherCache
from container.models.files.hub.settings import COMMIT, hub_endpoint, is_offline, time_limits
from container.models.files.remote import Remote
from container.models.gguf_names import split_address
from container.progress import ProgressView
from container.run import launch
from lmi_server.config import ModelSource

DEFAULT_REVISION = "main"
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_MAX_ID = 96
_NOT_IN_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{")
"""Characters and sequences that git forbids in a revision."""
_WEB_ADDRESS = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/(?:models/)?([^/?#]+/[^/?#]+).*"
)


def id_of_address(text: str) -> str | None:
    """Return `owner/name` of a web or `hf://` address, which users may mistake for the id; else None."""
    found = _WEB_ADDRESS.fullmatch(text)
    return found[1].partition("@")[0] if found and _is_id(found[1].partition("@")[0]) else None


def _is_id(text: str) -> bool:
    wrong = "--" in text or ".." in text or text.endswith(".git") or len(text) > _MAX_ID
    return not wrong and _ID.fullmatch(text) is not None


def _id_problem(model_id: str, model_dir: str) -> str | None:
    """Return why `model_id` is not a Hub id; None if it is one."""
    if _is_id(model_id):
        return None
    stated = f"option.model_id={model_id}: "
    bare, _, revision = model_id.partition("@") if "@" in model_id else model_id.rpartition(":")
    if revision and _is_id(bare):
        named = (
            f"set option.model_id={bare} and option.revision={revision} (lmi prepare: --revision {revision})"
        )
        return f"{stated}a Hub id cannot include a revision; {named}"
    if _is_id(model_id.strip("/")) and model_id.count("/") == 2:
        return f"{stated}neither a folder nor a Hub id; did you mean {model_id.strip('/')}?"
    if model_id.endswith(".git") and _is_id(model_id.removesuffix(".git")):
        return f"{stated}a Hub id does not end in .git; did you mean {model_id.removesuffix('.git')}?"
    if model_id.count("/") > 1 or "\\" in model_id:
        return f"{stated}this looks like a path, but there is no folder {Path(model_dir, model_id)}"
    return (
        f"{stated}no such folder, and not a Hub id; a Hub id is name or owner/name, with letters, digits, '-', '_' "
        f"and single '.', at most {_MAX_ID} characters"
    )


def _repository(source: ModelSource) -> str:
    return split_address(source.model_id or "")[0]


def _revision(source: ModelSource) -> str:
    return source.revision or DEFAULT_REVISION


class HubModels(RemoteScheme):
    """Models of a Hugging Face hub: `option.model_id` is the id, `option.revision` a branch, tag or commit."""

    def owns(self, source: ModelSource) -> bool:
        return bool(source.model_id) and "://" not in (source.model_id or "")

    def refusal(self, source: ModelSource) -> str | None:
        if sentence := _id_problem(_repository(source), source.model_dir):
            return sentence
        revision = _revision(source)
        wrong = _NOT_IN_REVISION.search(revision) or revision[0] in "-/" or revision[-1] in "./"
        if wrong or len(revision) > 255:
            return f"option.revision={revision}: not a revision; allowed: a branch, a tag or a commit"
        return None

    def name(self, source: ModelSource) -> str:
        return f"{_repository(source)}@{_revision(source)}"

    def is_pinned(self, source: ModelSource) -> bool:
        """Return True for a commit, which never changes."""
        return COMMIT.fullmatch(_revision(source)) is not None

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        """Also look in the Hugging Face cache if connections are disabled, as `obtain` does."""
        found = super().locate(source, cache)
        if found is not None or self.refusal(source) or not is_offline(launch.environment()):
            return found
        try:
            return folder_or_description(self.other_cache(source).find(), cache)
        except ModelNotAvailable:
            return None

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        if source.model_id == BUNDLED_MODEL:
            view.say(
                f"note: option.revision={source.revision}: the bundled model has no other revisions;"
                " downloading from the Hub"
            )
        return super().obtain(source, cache, view)

    def remote(self, source: ModelSource) -> Remote:
        environ = launch.environment()
        endpoint, limits = hub_endpoint(environ), time_limits(environ)
        with _library_settings():
            # Imported here because `lmi check` and the other schemes do not need it.
            from container.models.files.hub.errors import HubAddress
            from container.models.files.hub.remote import HubRemote
        repo_id = _repository(source)
        folder = Path(source.model_dir, repo_id) if "/" in repo_id else None
        address = HubAddress(repo_id, _revision(source), endpoint, folder)
        return HubRemote(address, selection(source), limits)

    def other_cache(self, source: ModelSource) -> OtherCache:
        """Return the Hugging Face cache, which other programs fill. Raises ModelNotAvailable."""
        with _library_settings():
            from container.models.files.hub.cached import cache_folder, find_model
        find = partial(find_model, _repository(source), _revision(source), selection(source))
        return OtherCache("the Hugging Face cache", cache_folder(), find)


@contextmanager
def _library_settings() -> Iterator[None]:
    """Turn the errors of huggingface_hub, which reads its variables when it is imported, into ModelNotAvailable."""
    try:
        yield
    except ValueError as error:
        raise ModelNotAvailable(f"an HF_... environment variable has an invalid value: {error}") from error
