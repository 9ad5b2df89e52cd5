"""Weights streamed from S3 instead of fetched: headers, and range reads through a proxy that injects faults."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from container.cli import main
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.models.files.s3.manifest import MANIFEST
from container.models.files.s3.ranges import S3Ranges
from container.progress import LogLines
from engines.models.safetensors_files import SafetensorsFiles
from lmi_server.config import ModelSource
from tests.container.explain.questions import LLAMA_3_8B
from tests.container.models.files.conftest import MODEL_BYTES
from tests.container.models.files.s3_lab import NEEDED, S3Lab
from tests.support.faulty_proxy import answer, every_object, object_named, truncate
from tests.support.model_folders import write_model
from tests.support.seaweed import ACCESS_KEY, SECRET_KEY

WEIGHTS = "model.safetensors"


def test_only_headers_are_fetched_into_sparse_files(s3_small: S3Lab, small_model: Path) -> None:
    folder, log = s3_small.obtain(load_format="stream")
    assert {path.name for path in folder.iterdir()} == {*NEEDED, MANIFEST}
    assert s3_small.proxy.object_bytes < 10_000
    weights = folder / WEIGHTS
    assert weights.stat().st_size == (small_model / WEIGHTS).stat().st_size
    assert weights.stat().st_blocks * 512 < 100_000
    assert SafetensorsFiles(folder).shape("a") == SafetensorsFiles(small_model).shape("a")
    assert f"{WEIGHTS}: NOT VERIFIED: weights stay in S3; each range is checked only by its length" in log
    assert all(secret not in (folder / MANIFEST).read_text() for secret in (ACCESS_KEY, SECRET_KEY))
    s3_small.proxy.heal()
    assert s3_small.obtain(load_format="stream")[0] == folder
    assert s3_small.proxy.object_bytes == 0


def test_streaming_needs_no_disk_space_for_the_weights(
    s3_small: S3Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=MODEL_BYTES + (60 << 20)))
    assert "MiB free" in s3_small.refused()
    s3_small.obtain(load_format="stream")


def test_only_the_shards_in_the_index_are_used(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    s3.put("mine/consolidated.safetensors", b"not needed")
    folder, _ = s3.obtain(load_format="stream")
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_a_copy_of_headers_is_never_used_as_weights(s3_small: S3Lab, small_model: Path) -> None:
    headers, _ = s3_small.obtain(load_format="stream")
    local = ModelSource(model_id=str(headers))
    assert model_files.locate(local) is None
    with pytest.raises(ModelNotAvailable, match="has only the headers of the weights"):
        model_files.obtain(local, LogLines(io.StringIO()), s3_small.cache)
    whole, _ = s3_small.obtain()
    assert whole != headers
    assert (whole / WEIGHTS).read_bytes() == (small_model / WEIGHTS).read_bytes()


def test_a_file_that_is_not_safetensors_is_rejected(s3: S3Lab) -> None:
    s3.put("mine/config.json", b"{}")
    s3.put(f"mine/{WEIGHTS}", b"\xff" * 5000)
    assert "is not a complete safetensors file" in s3.refused(load_format="stream")


def test_range_reads_are_correct_despite_network_faults(s3_small: S3Lab, small_model: Path) -> None:
    folder, _ = s3_small.obtain(load_format="stream")
    ranges, content = S3Ranges(folder), (small_model / WEIGHTS).read_bytes()
    generator = random.Random(5)
    s3_small.proxy.cut_at([generator.randrange(4 << 20) for _ in range(5)])
    s3_small.proxy.fault(every_object, answer(503, "SlowDown"), times=3)
    for size in (1, 4 << 20, len(content) - 1000):
        start = generator.randrange(len(content) - size + 1)
        out = bytearray(size)
        ranges.read(WEIGHTS, start, memoryview(out))
        assert out == content[start : start + size]
    assert s3_small.proxy.cuts_left == 0
    ranges.close()


@pytest.mark.usefixtures("impatient")
def test_failed_range_reads_raise_one_line_errors(s3: S3Lab, tmp_path: Path) -> None:
    s3.upload(write_model(tmp_path / "model", 10_000))
    folder, _ = s3.obtain(load_format="stream")
    ranges, out = S3Ranges(folder), memoryview(bytearray(100))
    s3.proxy.fault(object_named(WEIGHTS), answer(503, "SlowDown"))
    with pytest.raises(ModelNotAvailable, match="keeps throttling"):
        ranges.read(WEIGHTS, 0, out)
    s3.proxy.heal()
    s3.proxy.fault(object_named(WEIGHTS), truncate(50))
    with pytest.raises(ModelNotAvailable, match="shorter than listed"):
        ranges.read(WEIGHTS, 0, out)
    s3.proxy.heal()
    s3.upload(write_model(tmp_path / "other", 10_000, seed=1))
    with pytest.raises(ModelNotAvailable, match="changed while it was read") as caught:
        ranges.read(WEIGHTS, 0, out)
    assert "\n" not in str(caught.value)
    ranges.close()


def test_check_predicts_from_headers_alone(
    s3: S3Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", 1_000_000)
    s3.upload(model)
    s3.put("mine/config.json", json.dumps(LLAMA_3_8B).encode())
    (tmp_path / "serving.properties").write_text(f"option.model_id={s3.address()}\n")
    monkeypatch.setenv("LMI_CACHE_DIR", str(s3.cache))
    command = ["check", str(tmp_path), "--device", "L4", "--json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 3
    assert s3.proxy.object_bytes == 0
    for arguments in (["--remote"], []):
        result = CliRunner().invoke(main, [*command, *arguments])
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["memory"]["weights"] == pytest.approx(16.06e9, rel=0.01)
        assert report["start"]["file_bytes"] == (model / WEIGHTS).stat().st_size
        assert "not on this disk" in report["model"]
        assert "config.json describes 8,029,995,008: they may belong to" in report["warnings"][0]
    assert s3.proxy.object_bytes < 10_000
