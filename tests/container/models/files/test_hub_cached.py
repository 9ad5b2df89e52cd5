"""Models in the Hugging Face cache, which are used without a connection."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from huggingface_hub import constants, snapshot_download

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.choice import INDEX
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.gguf_models import save_gguf
from tests.support.hub_server import HubServer
from tests.support.model_files import content, model, prepare, weights
from tests.support.paths import child_environment

ID = "owner/tiny"
NOWHERE = "http://no-such-host.invalid"
SHARDS = {f"model-0000{number}-of-00002.safetensors": weights(number, 4096) for number in (1, 2)}
SHARDED = {
    "config.json": b"{}",
    INDEX: json.dumps({"weight_map": dict(zip("ab", SHARDS, strict=True))}).encode(),
    **SHARDS,
}


@dataclass(frozen=True, slots=True)
class Caches:
    """A hub, the Hugging Face cache and our own."""

    hub: HubServer
    hugging_face: Path
    own: Path
    patch: pytest.MonkeyPatch
    log: io.StringIO = field(default_factory=io.StringIO)

    def download(self, **options: Any) -> Path:
        """Download the model as other programs do."""
        return Path(snapshot_download(ID, cache_dir=self.hugging_face, endpoint=self.hub.url, **options))

    def go_offline(self) -> None:
        """Disable connections. The library has read its variables when it was imported."""
        self.patch.setenv("HF_HUB_OFFLINE", "1")
        self.patch.setattr(constants, "HF_HUB_OFFLINE", True)

    def obtain(self, model_id: str = ID, **options: Any) -> Path:
        return model_files.obtain(ModelSource(model_id, **options), LogLines(self.log), self.own)

    def locate(self, model_id: str = ID, **options: Any) -> Path | None:
        return model_files.locate(ModelSource(model_id, **options), self.own)

    def refused(self, **options: Any) -> str:
        """Return the error. Nothing may be found either."""
        with pytest.raises(ModelNotAvailable) as caught:
            self.obtain(**options)
        assert self.locate(**options) is None
        return str(caught.value)


@pytest.fixture
def caches(hub: HubServer, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Caches:
    """The hub and empty caches."""
    folder = tmp_path / "hf_home" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return Caches(hub, folder, cache, monkeypatch)


@pytest.mark.parametrize("pinned", [False, True])
def test_without_a_connection_the_folder_in_the_hugging_face_cache_is_used(
    pinned: bool, caches: Caches
) -> None:
    commit = caches.hub.commit(ID, model())
    revision = commit if pinned else None
    folder = caches.download(revision=revision)
    caches.hub.seen.clear()
    caches.go_offline()
    assert caches.obtain(revision=revision) == folder
    assert content(folder) == model()
    name = f"{ID}@{revision or 'main'}"
    assert caches.log.getvalue() == (
        f"note: {name}: downloads from the Hub are disabled (HF_HUB_OFFLINE is set); using the copy of {name} in the "
        f"Hugging Face cache: {folder}\n"
    )
    assert caches.locate(revision=revision) == folder
    assert caches.hub.seen == []
    assert not caches.own.exists()


def test_the_folder_is_used_if_the_hub_cannot_be_reached(caches: Caches) -> None:
    caches.hub.commit(ID, model())
    folder = caches.download()
    caches.patch.setenv("HF_ENDPOINT", NOWHERE)
    assert caches.obtain() == folder
    assert f"cannot resolve the host name of {NOWHERE}; check the network; using the" in caches.log.getvalue()
    assert caches.locate() is None, "a connection may be possible"


def test_a_copy_of_our_own_comes_first(caches: Caches) -> None:
    caches.hub.commit(ID, model())
    own = caches.obtain()
    assert caches.download() != own
    caches.go_offline()
    assert caches.obtain() == own
    assert caches.locate() == own


def test_files_that_serving_does_not_need_may_be_missing(caches: Caches) -> None:
    caches.hub.commit(ID, {**SHARDED, "README.md": b"read", "onnx/model.onnx": b"o"})
    folder = caches.download(allow_patterns=["*.json", "*.safetensors"])
    caches.go_offline()
    assert caches.obtain() == folder


def test_gguf_files_beside_safetensors_are_not_the_model(caches: Caches) -> None:
    caches.hub.commit(ID, model(**{"a.gguf": b"other", "deep/b.gguf": b"other"}))
    folder = caches.download()
    caches.go_offline()
    for load_format in ("auto", "dummy"):
        assert caches.obtain(load_format=load_format) == folder
        assert caches.locate(load_format=load_format) == folder


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["*.json", "*1-of-*"], "lists 2 weight files, but 1 of them are missing: model-00002-of-00002"),
        (["*.json"], "has no .safetensors file"),
        (["*.safetensors"], "is not a model: it has no config.json"),
    ],
)
def test_an_incomplete_folder_is_an_error_that_names_it(
    patterns: list[str], words: str, caches: Caches
) -> None:
    caches.hub.commit(ID, SHARDED)
    folder = caches.download(allow_patterns=patterns)
    caches.go_offline()
    message = caches.refused()
    own, other = f"LMI_CACHE_DIR ({caches.own})", f"the Hugging Face cache ({caches.hugging_face})"
    searched = f"neither {own} nor {other} has a complete copy: {folder}"
    assert f"(HF_HUB_OFFLINE is set); {searched}" in message
    assert words in message


def test_random_weights_need_only_the_configuration(caches: Caches) -> None:
    caches.hub.commit(ID, SHARDED)
    folder = caches.download(allow_patterns=["config.json"])
    caches.go_offline()
    assert caches.obtain(load_format="dummy") == folder
    assert caches.locate(load_format="dummy") == folder


def test_a_handler_needs_every_file(caches: Caches) -> None:
    caches.hub.commit(ID, {"modules.json": b"[]", "1_Pooling/config.json": b"{}"})
    folder = caches.download(allow_patterns=["*/*"])
    with caches.patch.context() as patch:
        Caches(caches.hub, caches.hugging_face, caches.own, patch).go_offline()
        assert f"has a complete copy: {folder} is incomplete" in caches.refused(fetch_all_files=True)
    caches.download()
    caches.go_offline()
    assert caches.obtain(fetch_all_files=True) == folder


def test_the_named_gguf_file_is_described(caches: Caches, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    file, _, _ = save_gguf(tmp_path / "gguf", "llama", Kind.Q4_0)
    ggufs = {"tiny-Q4_0.gguf": file.read_bytes(), "tiny-Q8_0.gguf": b"another"}
    caches.hub.commit(ID, {**ggufs, "tokenizer.json": b"{}"})
    folder = caches.download()
    caches.go_offline()
    assert caches.locate(f"{ID}:Q4_0") is None
    described = caches.obtain(f"{ID}:Q4_0")
    assert json.loads((described / "gguf.json").read_text())["folder"] == str(folder)
    assert caches.locate(f"{ID}:Q4_0") == described
    assert "several GGUF files" in caches.refused()


@pytest.mark.parametrize("name", ["gguf.json", "streamed-weights.json"])
def test_a_file_that_only_this_server_may_write_is_refused(name: str, caches: Caches) -> None:
    caches.hub.commit(ID, model(**{name: b"{}"}))
    caches.download()
    caches.go_offline()
    assert f"has a {name}, which only this server may write" in caches.refused()


@pytest.mark.parametrize("commit", ["../../elsewhere", "x" * 40, ""])
def test_a_revision_must_name_a_commit(commit: str, caches: Caches) -> None:
    caches.hub.commit(ID, model())
    folder = caches.download()
    (caches.hugging_face / "elsewhere").mkdir()
    folder.rename(folder.with_name("x" * 40))
    (folder.parents[1] / "refs" / "main").write_text(commit)
    caches.go_offline()
    assert "has a complete copy" in caches.refused()


def test_a_new_process_finds_the_cache_by_its_environment(caches: Caches) -> None:
    caches.hub.commit(ID, model())
    folder = caches.download()
    home = caches.hugging_face.parent
    places = [
        {"HF_HOME": str(home)},
        {"HF_HOME": "/nowhere", "HF_HUB_CACHE": str(caches.hugging_face)},
    ]
    for place in places:
        done = prepare(ID, caches.own, NOWHERE, HF_HUB_OFFLINE="1", **place)
        assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done.stderr
    done = prepare(ID, caches.own, NOWHERE, HF_HUB_OFFLINE="1", HF_HOME="/nowhere")
    assert done.returncode == 1
    assert "nor the Hugging Face cache (/nowhere/hub) has a complete copy\n" in done.stderr


_LOCATE = """
import sys
from container.models import files
from lmi_server.config import ModelSource
print(files.locate(ModelSource(sys.argv[1])), "huggingface_hub" in sys.modules)
"""


def test_the_library_is_imported_only_to_look_into_its_cache(caches: Caches) -> None:
    caches.hub.commit(ID, model())
    folder = caches.download()
    for value, found in {"": "None False", "0": "None False", "1": f"{folder} True"}.items():
        places = {"HF_HUB_CACHE": str(caches.hugging_face), "LMI_CACHE_DIR": str(caches.own)}
        environment = child_environment({"HF_HUB_OFFLINE": value, **places})
        command = [sys.executable, "-c", _LOCATE, ID]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout == f"{found}\n"
