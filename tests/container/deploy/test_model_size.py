"""The size of a remote model, before and after the download."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from gguf import GGMLQuantizationType as Kind

from container.deploy.model_size import model_bytes
from container.models import files as model_files
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.gguf_models import save_gguf
from tests.support.hub_server import HubServer
from tests.support.model_files import NO_PROXY


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub, and an empty cache."""
    with HubServer() as server:
        for name, value in {**NO_PROXY, "HF_ENDPOINT": server.url, "LMI_CACHE_DIR": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        yield server
    huggingface_hub.close_session()


def test_only_the_selected_gguf_file_counts_before_and_after_the_download(
    hub: HubServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file, _, _ = save_gguf(tmp_path_factory.mktemp("gguf"), "llama", Kind.Q4_0)
    weights, other = file.read_bytes(), bytes(1 << 20)
    files = {"tiny-Q4_0.gguf": weights, "tiny-Q8_0.gguf": other, "model.safetensors": other}
    hub.commit("owner/tiny-GGUF", {**files, "config.json": b"{}", "tokenizer.json": b"{}"})
    source = ModelSource("owner/tiny-GGUF:Q4_0")
    assert model_bytes(source) == len(weights) + len(b"{}{}")
    folder = model_files.obtain(source, LogLines(io.StringIO()))
    described = sum(path.stat().st_size for path in folder.iterdir())
    assert model_bytes(source) == len(weights) + described
