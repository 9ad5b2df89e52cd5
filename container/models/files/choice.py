"""Choose the listed files that serving needs, and reject names that lead out of the model's folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from container.models import pickled
from container.models.errors import ModelNotAvailable
from container.models.files.remote import RemoteFile, Snapshot
from container.models.gguf_names import SUFFIX, has_quantization, is_first, parts_of
from engines.models import gguf_index
from lmi_server.values.show import few

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates/"
"""The folder of named chat templates."""
_WEIGHTS = ".safetensors"
_SINGLE = "model.safetensors"
_SUFFIXES = (_WEIGHTS, ".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Suffixes of weights, configurations, chat templates, vocabularies and merges, tokenizers that are not JSON, and code
(run only with option.trust_remote_code, but always fetched, so that there is one copy of a model)."""
_OTHER_FORMATS = (*pickled.SUFFIXES, SUFFIX, ".h5", ".msgpack", ".onnx")
WEIGHTS_FORMATS = (_WEIGHTS, *_OTHER_FORMATS)

_ALWAYS_NEEDED = re.compile(
    r"(.*\.index|config|generation_config|tokenizer.*|vocab.*|merges.*|special_tokens_map|added_tokens|chat_template.*)"
    r"\.(json|txt)|.*\.(model|tiktoken|jinja|py)"
)
"""Files that serving reads. Other files, such as training data, are left out if they are large."""
MAX_FILES = 4096
MAX_SMALL_BYTES = 256 << 20
"""Maximum size of a file other than weights. The largest tokenizers have about 30 MiB."""
MAX_TOTAL_BYTES = 8 << 40
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024


def is_weights(path: str) -> bool:
    return path.endswith((_WEIGHTS, SUFFIX))


def is_safetensors(path: str) -> bool:
    return path.endswith(_WEIGHTS)


def safe_join(folder: Path, path: str) -> Path:
    """Return `folder / path` for an untrusted relative path. Raises ModelNotAvailable, which names the path."""
    if problem := _name_problem(path):
        raise ModelNotAvailable(problem)
    return folder.joinpath(*path.split("/"))


def safe_repr(path: str) -> str:
    """Return an untrusted name for a message: short, without control characters."""
    return repr(path if len(path) <= 120 else f"{path[:120]}...")


def _name_problem(path: str) -> str:
    """Return a sentence that says why the name is not a safe path; empty if it is safe."""
    why = _unsafe(path)
    return why and f"file name not allowed (got {safe_repr(path)}): {why}"


def _unsafe(path: str) -> str:
    """Return why the name is not a safe path; empty if it is safe."""
    if not path.isprintable():
        return "it contains control characters"
    if "\\" in path:
        return "it contains a backslash"
    if path.startswith("/"):
        return "it is an absolute path"
    if len(path.encode()) > _MAX_PATH_BYTES:
        return f"it is longer than {_MAX_PATH_BYTES} bytes"
    for name in path.split("/"):
        if name in ("", ".", ".."):
            return f"it contains {name!r}"
        if len(name.encode()) > _MAX_NAME_BYTES:
            return f"a part of it is longer than {_MAX_NAME_BYTES} bytes"
    return ""


def choose(snapshot: Snapshot) -> Snapshot:
    """Reduce a snapshot to the files that serving needs: top-level files and those beside the model's GGUF files, by
    their suffixes, and chat templates.

    A selection of everything keeps all files.

    Raises: ModelNotAvailable: an unsafe name, no config.json, no weights although needed, too many files or bytes.
    """
    for file in snapshot.files:
        if problem := _name_problem(file.path):
            raise ModelNotAvailable(f"{snapshot.name}: {problem}")
    if snapshot.selection.everything:
        _check_limits(snapshot.name, snapshot.files, MAX_TOTAL_BYTES)
        return snapshot
    top = {file.path: file for file in snapshot.files if "/" not in file.path}
    gguf = _gguf_files(snapshot)
    if not gguf:
        _require_model(snapshot, top)
    folders = {"", *(path.rpartition("/")[0] for path in gguf)}
    files = [file for file in snapshot.files if file.path.rpartition("/")[0] in folders]
    selected = {file.path: file for file in files if file.path.endswith(_SUFFIXES)}
    # An index of GGUF files names files to read, so only this program may write one.
    selected = {path: file for path, file in selected.items() if path.rpartition("/")[2] != gguf_index.NAME}
    selected = {path: file for path, file in selected.items() if not _is_unrelated(file)}
    selected |= {file.path: file for file in snapshot.files if _is_template(file.path)}
    if gguf or not snapshot.selection.with_weights:
        selected = {path: file for path, file in selected.items() if not is_weights(path) and path != INDEX}
    selected |= {file.path: file for file in snapshot.files if file.path in gguf}
    if _SINGLE in selected:
        # As in transformers, this one file is the model; others are adapters or copies of the same weights.
        weights = {path for path in selected if is_weights(path)}
        selected = {path: file for path, file in selected.items() if path == _SINGLE or path not in weights}
        selected.pop(INDEX, None)
    chosen = tuple(selected[path] for path in sorted(selected))
    _check_limits(snapshot.name, chosen)
    return dataclasses.replace(snapshot, files=chosen)


def _is_unrelated(file: RemoteFile) -> bool:
    """Return True for a large file, such as training data, that no part of serving reads."""
    name = file.path.rpartition("/")[2]
    return file.size > MAX_SMALL_BYTES and not is_weights(name) and not _ALWAYS_NEEDED.fullmatch(name)


def _gguf_files(snapshot: Snapshot) -> list[str]:
    """Return the GGUF files of the model: the named ones, or the only ones if there are no safetensors.

    Raises: ModelNotAvailable.
    """
    name, wanted, paths = snapshot.name, snapshot.selection.gguf, [file.path for file in snapshot.files]
    listed = [path for path in paths if is_first(path)]
    if wanted:
        first = parts_of(wanted)[0]
        found = [path for path in listed if path == first or has_quantization(path, wanted)]
    elif not snapshot.selection.with_weights or any(map(is_safetensors, paths)):
        return []
    else:
        found = [path for path in listed if "/" not in path]
    if not wanted and not found:
        return []
    if len(found) != 1:
        what = "several GGUF files" if found else f"no GGUF file {wanted}"
        raise ModelNotAvailable(
            f"{name} has {what}; set option.model_id to one of: {short_list(found or listed) or '(none found)'}"
        )
    if snapshot.selection.streamed or not snapshot.selection.with_weights:
        raise ModelNotAvailable(
            f"{name}: GGUF files can only be downloaded whole; set option.load_format=auto"
        )
    parts = parts_of(found[0])
    if missing := set(parts).difference(paths):
        raise ModelNotAvailable(f"{name} is incomplete: missing {short_list(missing)}")
    return parts


def _is_template(path: str) -> bool:
    name = path.removeprefix(TEMPLATES)
    return name != path and "/" not in name and name.endswith(".jinja")


def _require_model(snapshot: Snapshot, top: dict[str, RemoteFile]) -> None:
    name = snapshot.name
    if CONFIG not in top:
        found = short_list(top) or "no files"
        raise ModelNotAvailable(f"{name} is not a model: it has no {CONFIG}; found: {found}")
    if not snapshot.selection.with_weights or any(map(is_safetensors, top)):
        return
    others = [path for path in top if path.endswith(_OTHER_FORMATS)]
    if others:
        advice = pickled.advice(name, others) or "save the model as safetensors (save_pretrained does)"
        raise ModelNotAvailable(
            f"{name} has no {_WEIGHTS} file, only {short_list(others)}; weights must be safetensors: {advice}"
        )
    raise ModelNotAvailable(f"{name} has no {_WEIGHTS} file; found: {short_list(top)}")


def _check_limits(name: str, files: tuple[RemoteFile, ...], max_small_bytes: int = MAX_SMALL_BYTES) -> None:
    if len(files) > MAX_FILES:
        raise ModelNotAvailable(f"{name} has too many files (got {len(files)}); allowed: at most {MAX_FILES}")
    for file in files:
        if file.size < 0 or (file.size > max_small_bytes and not is_weights(file.path)):
            raise ModelNotAvailable(
                f"{name}: {file.path} is too large (got {file.size} bytes); allowed: at most {max_small_bytes}"
            )
    if sum(file.size for file in files) > MAX_TOTAL_BYTES:
        raise ModelNotAvailable(f"{name} is too large; allowed: at most {MAX_TOTAL_BYTES} bytes")


def keep_shards(snapshot: Snapshot, index: Path) -> Snapshot:
    """Return the snapshot without the weights that are missing in the index, which has been fetched.

    Raises: ModelNotAvailable: the index cannot be read, or names a file that was not listed.
    """
    where = snapshot.where(INDEX)
    shards = _shards(where, index)
    listed = {file.path for file in snapshot.files}
    if missing := sorted(shards - listed):
        raise ModelNotAvailable(
            f"{where} lists {len(shards)} weight files, but {len(missing)} of them are missing: "
            f"{short_list(missing)}; upload them, or upload the whole model again"
        )
    files = tuple(file for file in snapshot.files if not is_weights(file.path) or file.path in shards)
    return dataclasses.replace(snapshot, files=files)


def _shards(where: str, index: Path) -> set[str]:
    try:
        content: Any = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelNotAvailable(f"{where} is not JSON ({safe_repr(str(error))}); upload it again") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelNotAvailable(f"{where} has no 'weight_map'; it must map each tensor to its file")
    shards = set()
    for shard in weight_map.values():
        if not isinstance(shard, str) or _unsafe(shard) or "/" in shard or not is_safetensors(shard):
            raise ModelNotAvailable(
                f"{where} names {safe_repr(str(shard))}, which is not a {_WEIGHTS} file of this model"
            )
        shards.add(shard)
    return shards


def short_list(paths: Iterable[str]) -> str:
    """Return at most three of the names, and the number of the others."""
    return few(
        sorted(paths), 3, lambda name: name if name.isprintable() and len(name) < 120 else safe_repr(name)
    )
