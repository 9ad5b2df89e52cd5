"""Names and addresses of GGUF files."""

from __future__ import annotations

import pytest

from container.models.gguf_names import is_first, parts_of, split_address


def test_each_part_of_a_split_file_gives_the_names_of_all_parts() -> None:
    parts = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
    assert all(parts_of(part) == parts for part in parts)
    assert [is_first(part) for part in parts] == [True, False, False]
    assert not is_first("m-00000-of-00003.gguf")
    assert parts_of("m-Q4_0.gguf") == ["m-Q4_0.gguf"]
    assert is_first("m.gguf")
    assert not is_first("mmproj-m.gguf")
    assert not is_first("folder/mmproj-m.gguf")
    assert not is_first("m.safetensors")


def test_a_number_of_parts_that_is_zero_is_part_of_an_ordinary_name() -> None:
    assert parts_of("m-00001-of-00000.gguf") == ["m-00001-of-00000.gguf"]
    assert is_first("m-00001-of-00000.gguf")


@pytest.mark.parametrize(
    ("address", "location", "gguf"),
    [
        ("owner/name", "owner/name", ""),
        ("owner/name:Q4_K_M", "owner/name", "Q4_K_M"),
        ("owner/name:UD-IQ2_XXS", "owner/name", "UD-IQ2_XXS"),
        ("owner/name:bf16", "owner/name", "bf16"),
        ("owner/name:NVFP4", "owner/name", "NVFP4"),
        ("owner/name:main", "owner/name:main", ""),
        ("owner/name/x.gguf", "owner/name", "x.gguf"),
        ("owner/name/sub/x-00001-of-00002.gguf", "owner/name", "sub/x-00001-of-00002.gguf"),
        ("owner/name/sub", "owner/name/sub", ""),
        ("s3://bucket/a/b/x.gguf", "s3://bucket/a/b", "x.gguf"),
        ("s3://bucket/x.gguf", "s3://bucket", "x.gguf"),
        ("s3://bucket.gguf", "s3://bucket.gguf", ""),
        ("s3://bucket/a/b:Q4_0", "s3://bucket/a/b:Q4_0", ""),
    ],
)
def test_an_address_is_split_into_location_and_file(address: str, location: str, gguf: str) -> None:
    assert split_address(address) == (location, gguf)
