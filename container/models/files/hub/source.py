"""Models of the Hugging Face hub, by their ids. huggingface_hub is imported when one is fetched, not before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from container.models import prepare
from container.models.files import fetch
from container.models.files.base import ModelNotAvailable
from container.models.files.no_weights import as_wanted, copy_name
from container.models.files.remote import Remote
from container.progress import ProgressView
from container.run import launch
from lmi_server.config import ModelSource

DEFAULT_REVISION = "main"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_MAX_ID = 96
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOT_IN_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{")
"""As git has it."""
_WEB_ADDRESS = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/(?:models/)?([^/?#]+/[^/?#]+).*"
)


def id_of_address(text: str) -> str | None:
    """`owner/name` of a hub's web address or `hf://` address, which people take for the id; else None."""
    found = _WEB_ADDRESS.fullmatch(text)
    return found[1].partition("@")[0] if found and _is_id(found[1].partition("@")[0]) else None


def _is_id(text: str) -> bool:
    wrong = "--" in text or ".." in text or text.endswith(".git") or len(text) > _MAX_ID
    return not wrong and _ID.fullmatch(text) is not None


def _id_problem(model_id: str, model_dir: str) -> str | None:
    """Why `model_id` is no hub id; None when it is one."""
    if _is_id(model_id):
        return None
    stated = f"option.model_id={model_id}: "
    bare, _, revision = model_id.partition("@") if "@" in model_id else model_id.rpartition(":")
    if revision and _is_id(bare):
        return f"{stated}a hub id has no revision in it; write option.model_id={bare} and option.revision={revision}"
    if _is_id(model_id.strip("/")) and model_id.count("/") == 2:
        return f"{stated}neither a folder nor a hub id; did you mean {model_id.strip('/')}?"
    if model_id.endswith(".git") and _is_id(model_id.removesuffix(".git")):
        return f"{stated}a hub id has no .git at its end; did you mean {model_id.removesuffix('.git')}?"
    if model_id.count("/") > 1 or "\\" in model_id:
        return f"{stated}it looks like a path, and there is no folder {Path(model_dir, model_id)}"
    return (
        f"{stated}no such folder, and not a hub id either: that is name or owner/name, of letters, digits, '-', '_' "
        f"and single '.', at most {_MAX_ID} characters"
    )


def _revision(source: ModelSource) -> str:
    return source.revision or DEFAULT_REVISION


def _problem(source: ModelSource) -> str | None:
    if sentence := _id_problem(source.model_id or "", source.model_dir):
        return sentence
    revision = _revision(source)
    wrong = _NOT_IN_REVISION.search(revision) or revision[0] in "-/" or revision[-1] in "./"
    if wrong or len(revision) > 255:
        return f"option.revision={revision}: no name of a revision; accepted: a branch, a tag or a commit"
    return None


def _endpoint(environ: Mapping[str, str]) -> str:
    """Raises `ModelNotAvailable` when HF_ENDPOINT is no address."""
    endpoint = (environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
    wrong = f"HF_ENDPOINT={endpoint} is no address; https://host or http://host:port is accepted"
    try:
        parts = urlsplit(endpoint)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ModelNotAvailable(wrong) from error
    if not whole:
        raise ModelNotAvailable(wrong)
    return endpoint


class HubModel:
    """A model of a Hugging Face hub: `option.model_id` is its id, `option.revision` a branch, tag or commit."""

    def owns(self, source: ModelSource) -> bool:
        return bool(source.model_id) and "://" not in (source.model_id or "")

    def refusal(self, source: ModelSource) -> str | None:
        """Why this source cannot be had from a hub, as far as it shows without asking one; else None."""
        return _problem(source)

    def name(self, source: ModelSource) -> str:
        if sentence := _problem(source):
            raise ModelNotAvailable(sentence)
        return copy_name(f"{source.model_id}@{_revision(source)}", source)

    def locate(self, source: ModelSource, cache: Path) -> Path | None:
        return None if _problem(source) else fetch.locate(self.name(source), cache)

    def obtain(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        here = self.locate(source, cache)
        if here is not None and _COMMIT.fullmatch(_revision(source)) and not source.trust_remote_code:
            return here  # a commit does not change; where code is wanted, the copy may be one without
        return fetch.obtain(self._remote(source, view), cache, view)

    def verify(self, source: ModelSource, cache: Path, view: ProgressView) -> Path:
        return fetch.verify(self._remote(source, view), cache, view)

    def _remote(self, source: ModelSource, view: ProgressView) -> Remote:
        """Raises `ModelNotAvailable`."""
        if sentence := _problem(source):
            raise ModelNotAvailable(sentence)
        repo_id, revision = source.model_id or "", _revision(source)
        if repo_id == prepare.BUNDLED_MODEL:
            view.say(
                f"note: option.revision={revision}: the copy that comes with this installation has no revisions; "
                "the hub is asked"
            )
        endpoint = _endpoint(launch.environment())
        try:
            # Here, because `lmi check` and every other kind of location do without.
            from container.models.files.hub.errors import Asked
            from container.models.files.hub.remote import HubRemote
        except ValueError as error:
            # huggingface_hub reads its own variables when it is imported.
            raise ModelNotAvailable(f"an HF_... environment variable has a wrong value: {error}") from error
        folder = Path(source.model_dir, repo_id) if "/" in repo_id else None
        asked = Asked(repo_id, revision, endpoint, folder)
        return as_wanted(HubRemote(asked, source.trust_remote_code), source)
