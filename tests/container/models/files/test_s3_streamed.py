"""Weights that stay in S3: what is fetched of them, and ranges of them through a proxy that breaks things."""

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
from tests.container.explain.predictions import LLAMA_3_8B
from tests.container.models.files.conftest import MODEL_BYTES
from tests.container.models.files.s3_lab import NEEDED, S3Lab
from tests.support.faulty_proxy import answer, every_object, object_named, truncate
from tests.support.model_folders import write_model
from tests.support.seaweed import ACCESS_KEY, SECRET_KEY

WEIGHTS = "model.safetensors"


def streamed(s3: S3Lab) -> tuple[Path, str]:
    return s3.obtain(load_format="stream")


def test_only_headers_are_fetched_and_take_no_room(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    folder, said = streamed(s3)
    assert {path.name for path in folder.iterdir()} == {*NEEDED, MANIFEST}
    assert s3.proxy.object_bytes < 10_000
    weights = folder / WEIGHTS
    assert weights.stat().st_size == (small_model / WEIGHTS).stat().st_size
    assert weights.stat().st_blocks * 512 < 100_000
    assert SafetensorsFiles(folder).shape("a") == SafetensorsFiles(small_model).shape("a")
    assert f"{WEIGHTS}: NOT VERIFIED: weights stay in S3; each range is checked only by its length" in said
    assert all(secret not in (folder / MANIFEST).read_text() for secret in (ACCESS_KEY, SECRET_KEY))
    s3.proxy.heal()
    assert streamed(s3)[0] == folder
    assert s3.proxy.object_bytes == 0


def test_a_disk_without_room_for_the_weights_is_enough(
    s3: S3Lab, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.upload(small_model)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=MODEL_BYTES + (60 << 20)))
    assert "MiB free" in s3.refused()
    streamed(s3)


def test_shards_that_the_index_names_and_no_others(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    s3.put("mine/consolidated.safetensors", b"not needed")
    folder, _ = streamed(s3)
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_a_copy_of_headers_is_never_taken_for_weights(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    headers, _ = streamed(s3)
    local = ModelSource(model_id=str(headers))
    assert model_files.locate(local) is None
    with pytest.raises(ModelNotAvailable, match="has only the headers of the weights"):
        model_files.obtain(local, LogLines(io.StringIO()), s3.cache)
    whole, _ = s3.obtain()
    assert whole != headers
    assert (whole / WEIGHTS).read_bytes() == (small_model / WEIGHTS).read_bytes()


def test_what_is_no_safetensors_file_is_refused(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    s3.put(f"mine/{WEIGHTS}", b"\xff" * 5000)
    with pytest.raises(ModelNotAvailable, match="is not a complete safetensors file"):
        streamed(s3)


def test_ranges_are_the_objects_bytes_whatever_the_network_does(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    folder, _ = streamed(s3)
    ranges, content = S3Ranges(folder), (small_model / WEIGHTS).read_bytes()
    generator = random.Random(5)
    s3.proxy.cut_at([generator.randrange(4 << 20) for _ in range(5)])
    s3.proxy.fault(every_object, answer(503, "SlowDown"), times=3)
    for size in (1, 4 << 20, len(content) - 1000):
        start = generator.randrange(len(content) - size + 1)
        out = bytearray(size)
        ranges.read(WEIGHTS, start, memoryview(out))
        assert out == content[start : start + size]
    assert s3.proxy.cuts_left == 0
    ranges.close()


@pytest.mark.usefixtures("impatient")
def test_ranges_that_cannot_be_had_end_with_one_sentence(
    s3: S3Lab, small_model: Path, tmp_path: Path
) -> None:
    s3.upload(small_model)
    folder, _ = streamed(s3)
    ranges, out = S3Ranges(folder), memoryview(bytearray(100))
    s3.proxy.fault(object_named(WEIGHTS), answer(503, "SlowDown"))
    with pytest.raises(ModelNotAvailable, match="keeps throttling"):
        ranges.read(WEIGHTS, 0, out)
    s3.proxy.heal()
    s3.proxy.fault(object_named(WEIGHTS), truncate(50))
    with pytest.raises(ModelNotAvailable, match="shorter than listed"):
        ranges.read(WEIGHTS, 0, out)
    s3.proxy.heal()
    s3.upload(write_model(tmp_path / "other", MODEL_BYTES, seed=1))
    with pytest.raises(ModelNotAvailable, match="changed while it was read") as caught:
        ranges.read(WEIGHTS, 0, out)
    assert "\n" not in str(caught.value)
    ranges.close()


def test_check_predicts_from_headers_alone(
    s3: S3Lab, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.upload(small_model)
    s3.put("mine/config.json", json.dumps(LLAMA_3_8B).encode())
    (tmp_path / "serving.properties").write_text(f"option.model_id={s3.address()}\n")
    monkeypatch.setenv("LMI_CACHE_DIR", str(s3.cache))
    command = ["check", str(tmp_path), "--device", "L4", "--json"]
    asked = CliRunner().invoke(main, command)
    assert asked.exit_code == 3
    assert s3.proxy.object_bytes == 0
    for arguments in (["--remote"], []):
        found = CliRunner().invoke(main, [*command, *arguments])
        assert found.exit_code == 0, found.output
        report = json.loads(found.stdout)
        assert report["memory"]["weights"] == pytest.approx(16.06e9, rel=0.01)
        assert report["start"]["file_bytes"] == (small_model / WEIGHTS).stat().st_size
        assert "not on this disk" in report["model"]
        assert "config.json describes 8,029,995,008: they may belong to" in report["warnings"][0]
    assert s3.proxy.object_bytes < 10_000
