"""Multipart uploads, as boto3 does above 8 MiB. Their ETag is not an MD5, and their checksum is composite."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from container.models.files.s3.checksums import ALGORITHMS
from tests.container.models.files.s3_lab import WITHOUT_WEIGHTS, S3Lab, same
from tests.support.faulty_proxy import (
    Answer,
    ProxyRequest,
    corrupt,
    everything,
    head_of_part,
    object_named,
    without_headers,
)

WEIGHTS = object_named("model.safetensors")
Upload = Callable[[S3Lab, Path], None]


def upload_with_boto3(lab: S3Lab, file: Path, **extra: str) -> None:
    key = f"{lab.root}mine/{file.name}"
    config = TransferConfig(use_threads=False)
    lab.seaweed.client().upload_file(str(file), lab.bucket, key, Config=config, ExtraArgs=extra)


def upload_in_uneven_parts(lab: S3Lab, file: Path) -> None:
    client, at = lab.seaweed.client(), {"Bucket": lab.bucket, "Key": f"{lab.root}mine/{file.name}"}
    upload = {**at, "UploadId": client.create_multipart_upload(**at)["UploadId"]}
    parts: list[dict[str, Any]] = []
    with file.open("rb") as content:
        for number, size in enumerate((6 << 20, 5 << 20, 1 << 30), start=1):
            response = client.upload_part(**upload, PartNumber=number, Body=content.read(size))
            parts.append({"PartNumber": number, "ETag": response["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})


UPLOADS: dict[str, Upload] = {
    "boto3": upload_with_boto3,
    "SHA256": partial(upload_with_boto3, ChecksumAlgorithm="SHA256"),
    "CRC64NVME": partial(upload_with_boto3, ChecksumAlgorithm="CRC64NVME"),
    "uneven": upload_in_uneven_parts,
}


@pytest.fixture(scope="module")
def uploaded() -> set[str]:
    """The names of the uploads that the bucket has already."""
    return set()


@pytest.fixture
def lab(request: pytest.FixtureRequest, s3: S3Lab, uploaded: set[str], small_model: Path) -> S3Lab:
    """`s3` with the small model as `mine`, uploaded once in one of the ways of `UPLOADS`."""
    name = request.param
    lab = dataclasses.replace(s3, root=f"multipart {name}/")
    if name not in uploaded:
        for other in WITHOUT_WEIGHTS:
            lab.put(f"mine/{other}", (small_model / other).read_bytes())
        UPLOADS[name](lab, small_model / "model.safetensors")
        uploaded.add(name)
    return lab


@pytest.mark.parametrize(
    ("lab", "method", "num_heads"),
    [
        # The sizes of the first and last part give all sizes. Uneven parts need one request each.
        ("boto3", "CRC32 by part", 2),
        ("SHA256", "SHA256 by part", 2),
        ("CRC64NVME", "CRC64NVME", 0),
        ("uneven", "MD5 by part", 2 + 3),
    ],
    indirect=["lab"],
)
def test_the_object_is_verified_and_the_method_is_reported(
    lab: S3Lab, method: str, num_heads: int, small_model: Path
) -> None:
    folder, log = lab.obtain()
    assert same(folder, small_model)
    assert f"model.safetensors: verified by {method}\n" in log
    assert "NOT VERIFIED" not in log
    assert sum(map(head_of_part, lab.proxy.requests)) == num_heads


@pytest.mark.parametrize("lab", ["boto3"], indirect=True)
def test_a_damaged_part_with_its_own_checksum_is_named(lab: S3Lab, small_model: Path) -> None:
    """S3 returns a checksum for HeadObject of a part. SeaweedFS returns only sizes, so the proxy adds it."""
    content = (small_model / "model.safetensors").read_bytes()
    crc32 = next(algorithm for algorithm in ALGORITHMS if algorithm.name == "CRC32")

    def add_checksum(asked: ProxyRequest, response: Answer) -> Answer:
        number = int(asked.query.partition("=")[2].partition("&")[0]) - 1
        digest = crc32.of(content[number << 23 : (number + 1) << 23])
        response.headers["x-amz-checksum-crc32"] = base64.b64encode(digest).decode()
        return response

    lab.proxy.fault(head_of_part, add_checksum)
    lab.proxy.fault(WEIGHTS, corrupt(9_999_999))
    assert "CRC32 of part 2 of 3 differs" in lab.refused()


@pytest.mark.parametrize("lab", ["boto3"], indirect=True)
def test_without_part_sizes_a_warning_says_not_verified(lab: S3Lab, small_model: Path) -> None:
    lab.proxy.fault(everything, without_headers("x-amz-mp-parts-count"))
    folder, log = lab.obtain()
    assert same(folder, small_model)
    assert "warning: " in log
    assert "model.safetensors: NOT VERIFIED: S3 has CRC32 of the parts only" in log
