"""Files fetched for a model with load_format=dummy, which needs no weights."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines
from lmi_server.config import ModelSource
from tests.container.models.files.s3_lab import S3Lab, same


def dummy_source(model_id: str) -> ModelSource:
    return ModelSource(model_id=model_id, load_format="dummy")


def test_weights_are_not_fetched_and_the_copy_is_not_used_as_a_full_one(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    source, log = dummy_source(s3.address()), io.StringIO()
    assert model_files.locate(source, s3.cache) is None
    folder = model_files.obtain(source, LogLines(log), s3.cache)
    small = {"config.json", "tokenizer.json", "model.py"}
    assert same(folder, tiny_model, small)
    assert s3.proxy.object_bytes == sum((tiny_model / name).stat().st_size for name in small)
    assert "(without weights), 3 files" in log.getvalue()
    assert model_files.locate(source, s3.cache) == folder
    assert model_files.locate(ModelSource(model_id=s3.address()), s3.cache) is None

    whole, _ = s3.obtain()
    assert whole != folder
    assert any(whole.glob("*.safetensors"))
    assert model_files.locate(source, s3.cache) == folder
    s3.proxy.heal()
    assert model_files.obtain(source, LogLines(log), s3.cache) == folder
    assert s3.proxy.object_bytes == 0


def test_only_a_config_is_required(s3: S3Lab) -> None:
    s3.put("mine/config.json", b"{}")
    source = dummy_source(s3.address())
    folder = model_files.obtain(source, LogLines(io.StringIO()), s3.cache)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    s3.put("other/tokenizer.json", b"{}")
    with pytest.raises(ModelNotAvailable, match=r"is not a model: it has no config\.json"):
        model_files.obtain(dummy_source(s3.address("other")), LogLines(io.StringIO()), s3.cache)
