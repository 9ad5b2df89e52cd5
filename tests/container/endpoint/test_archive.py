"""Models in a model.tar.gz, from S3 or from this machine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from container.endpoint import archive
from container.endpoint.model_data import ModelData, NoModelData
from tests.container.endpoint.fake_s3 import FakeS3

URI = "s3://bucket/models/model.tar.gz"
AS_SOURCE = {
    "ModelDataSource": {"S3DataSource": {"S3Uri": URI, "S3DataType": "S3Object", "CompressionType": "Gzip"}}
}


def tar_of(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize("container", [{"ModelDataUrl": URI}, AS_SOURCE], ids=["ModelDataUrl", "Gzip"])
def test_an_archive_in_s3_is_extracted_once_and_read_only(
    container: dict[str, Any], s3: FakeS3, tmp_path: Path
) -> None:
    s3.objects["bucket/models/model.tar.gz"] = tar_of({"m/serving.properties": b"engine=MPI\n", "m/a": b"1"})
    data = ModelData(tmp_path, lambda: s3.client)
    folder = data.folder_of(container)
    assert data.folder_of(container) == folder
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert files["m/serving.properties"].read_bytes() == b"engine=MPI\n"
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o444}
    s3.objects["bucket/models/model.tar.gz"] = tar_of({"m/a": b"2"})
    assert (data.folder_of(container) / "m" / "a").read_bytes() == b"2"
    assert files["m/a"].read_bytes() == b"1"
    data.close()
    assert list(tmp_path.iterdir()) == []


def test_an_archive_may_be_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "model.tar.gz"
    path.write_bytes(tar_of({"serving.properties": b"engine=MPI\n"}))
    data = ModelData(tmp_path / "models", lambda: None)
    folder = data.folder_of({"ModelDataUrl": f"file://{path}"})
    assert [one.name for one in folder.iterdir()] == ["serving.properties"]
    data.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not an archive", "not a valid gzip-compressed tar archive"),
        (tar_of({"a": b"1"}, "w"), "not a valid gzip-compressed tar archive"),
        (tar_of({"a": bytes(range(256)) * 999})[:-40], "not a valid gzip-compressed tar archive"),
        (tar_of({"../escaped": b"1"}), "outside the destination"),
        (tar_of({"a": b"1", "b": b"2", "c": b"3"}), "too large; allowed: at most 2 files and 500000 bytes"),
        (tar_of({"a": bytes(500_001)}), "too large; allowed: at most 2 files and 500000 bytes"),
        (tar_of({"a" * 9000: b"1"}), "headers too large; allowed: at most 2048 bytes in total"),
        (tar_of({"a" * 150: b"1", "b" * 150: b"2"}), "headers too large"),
        (None, "Not Found"),
    ],
    ids=[
        *("not gzip", "not compressed", "cut off", "leads outside", "many files", "large"),
        *("long header", "long headers", "missing"),
    ],
)
def test_an_archive_that_cannot_be_extracted_is_rejected(
    content: bytes | None, words: str, s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MAX_FILES", 2)
    monkeypatch.setattr(archive, "_MAX_BYTES", 500_000)
    monkeypatch.setattr(archive, "_MAX_HEADER_BYTES", 2048)
    if content is not None:
        s3.objects["bucket/models/model.tar.gz"] = content
    with pytest.raises(NoModelData, match=words) as caught:
        ModelData(tmp_path / "models", lambda: s3.client).folder_of({"ModelDataUrl": URI})
    assert str(caught.value).startswith(URI)
    assert list(tmp_path.rglob("*escaped*")) == []
    assert list((tmp_path / "models").iterdir()) == []
