"""Objects that were uploaded in parts, as boto3 does above 8 MiB: their ETag is no MD5, their checksum one of parts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from container.models.files.checksums import ALGORITHMS
from tests.container.models.files.s3_lab import S3Lab, same
from tests.support.faulty_proxy import (
    Answer,
    Asked,
    corrupt,
    everything,
    head_of_part,
    object_named,
    without_headers,
)

WEIGHTS = object_named("model.safetensors")
Upload = Callable[[S3Lab, Path], None]


def as_boto3_does(lab: S3Lab, file: Path, **extra: str) -> None:
    key = f"{lab.root}mine/{file.name}"
    config = TransferConfig(use_threads=False)
    lab.seaweed.client().upload_file(str(file), lab.bucket, key, Config=config, ExtraArgs=extra)


def in_uneven_parts(lab: S3Lab, file: Path) -> None:
    client, at = lab.seaweed.client(), {"Bucket": lab.bucket, "Key": f"{lab.root}mine/{file.name}"}
    upload = {**at, "UploadId": client.create_multipart_upload(**at)["UploadId"]}
    parts: list[dict[str, Any]] = []
    with file.open("rb") as content:
        for number, size in enumerate((6 << 20, 5 << 20, 1 << 30), start=1):
            done = client.upload_part(**upload, PartNumber=number, Body=content.read(size))
            parts.append({"PartNumber": number, "ETag": done["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


@pytest.fixture
def uploaded(s3: S3Lab, small_model: Path) -> Callable[[Upload], None]:
    def upload(how: Upload) -> None:
        s3.upload(small_model)
        how(s3, small_model / "model.safetensors")

    return upload


@pytest.mark.parametrize(
    ("how", "by", "heads"),
    [
        # The first and the last part tell the sizes of all; uneven ones are asked for one by one.
        (as_boto3_does, "CRC32 by part", 2),
        (partial(as_boto3_does, ChecksumAlgorithm="SHA256"), "SHA256 by part", 2),
        (partial(as_boto3_does, ChecksumAlgorithm="CRC64NVME"), "CRC64NVME", 0),
        (in_uneven_parts, "MD5 by part", 2 + 3),
    ],
    ids=["boto3", "SHA256", "CRC64NVME", "uneven"],
)
def test_it_is_verified_and_said_by_what(
    how: Upload, by: str, heads: int, s3: S3Lab, small_model: Path, uploaded: Callable[[Upload], None]
) -> None:
    uploaded(how)
    folder, said = s3.obtain()
    assert same(folder, small_model)
    assert f"model.safetensors: verified by {by}\n" in said
    assert "NOT VERIFIED" not in said
    assert sum(map(head_of_part, s3.proxy.requests)) == heads


@pytest.mark.parametrize(
    ("how", "headers"),
    [(in_uneven_parts, "x-amz-checksum"), (as_boto3_does, "x-nothing")],
    ids=["uneven, by ETag", "boto3, by checksum"],
)
def test_a_corrupted_byte_is_found(
    how: Upload, headers: str, s3: S3Lab, small_model: Path, uploaded: Callable[[Upload], None]
) -> None:
    uploaded(how)
    s3.proxy.fault(everything, without_headers(headers))
    s3.proxy.fault(WEIGHTS, corrupt(9_999_999))
    sentence = s3.refused()
    assert f"{s3.address()}/model.safetensors: " in sentence
    assert "of its 3 parts differs" in sentence
    assert s3.left_over() == []
    s3.proxy.heal()
    assert same(s3.obtain()[0], small_model)


def test_a_part_that_s3_has_a_checksum_of_is_named(
    s3: S3Lab, small_model: Path, uploaded: Callable[[Upload], None]
) -> None:
    """As S3 answers HeadObject for a part; SeaweedFS gives sizes only."""
    uploaded(as_boto3_does)
    content = (small_model / "model.safetensors").read_bytes()
    crc32 = next(algorithm for algorithm in ALGORITHMS if algorithm.name == "CRC32")

    def add_checksum(asked: Asked, given: Answer) -> Answer:
        number = int(asked.query.partition("=")[2].partition("&")[0]) - 1
        digest = crc32.of(content[number << 23 : (number + 1) << 23])
        given.headers["x-amz-checksum-crc32"] = base64.b64encode(digest).decode()
        return given

    s3.proxy.fault(head_of_part, add_checksum)
    s3.proxy.fault(WEIGHTS, corrupt(9_999_999))
    assert "CRC32 of part 2 of 3 differs" in s3.refused()


def test_where_the_parts_are_unknown_it_is_said_that_nothing_was_verified(
    s3: S3Lab, small_model: Path, uploaded: Callable[[Upload], None]
) -> None:
    uploaded(as_boto3_does)
    s3.proxy.fault(everything, without_headers("x-amz-mp-parts-count"))
    folder, said = s3.obtain()
    assert same(folder, small_model)
    assert "warning: " in said
    assert "model.safetensors: NOT VERIFIED: S3 has CRC32 of the parts only" in said
