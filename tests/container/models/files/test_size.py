"""The size of a remote model, before and after the download."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from container.models import files as model_files
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.support.gguf_models import save_gguf
from tests.support.hub_server import HubServer


def test_only_the_selected_gguf_file_counts_before_and_after_the_download(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LMI_CACHE_DIR", str(cache))
    file, _, _ = save_gguf(tmp_path, "llama", Kind.Q4_0)
    weights, other = file.read_bytes(), bytes(1 << 20)
    files = {"tiny-Q4_0.gguf": weights, "tiny-Q8_0.gguf": other, "model.safetensors": other}
    hub.commit("owner/tiny-GGUF", {**files, "config.json": b"{}", "tokenizer.json": b"{}"})
    source = ModelSource("owner/tiny-GGUF:Q4_0")
    assert model_files.size(source) == len(weights) + len(b"{}{}")
    folder = model_files.obtain(source, LogLines(io.StringIO()))
    described = sum(path.stat().st_size for path in folder.iterdir())
    assert model_files.size(source) == len(weights) + described
