"""Names of GGUF files. If a model is split, each name contains the part's number and the number of parts."""

from __future__ import annotations

import re

SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(?!00000)(\d{5})\.gguf")
_QUANTIZATION = re.compile(
    r"(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|(?:MX|NV)FP4\w*|BF16|F16|F32)", re.IGNORECASE | re.ASCII
)


def parts_of(name: str) -> list[str]:
    """Return the names of all files of a model, in order, given the name of any one."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    return [f"{part[1]}-{number:05}-of-{part[3]}{SUFFIX}" for number in range(1, int(part[3]) + 1)]


def is_first(name: str) -> bool:
    """Return whether a file is a language model's only file or its first part. `mmproj` files read images."""
    is_model = name.endswith(SUFFIX) and not name.rpartition("/")[2].startswith("mmproj")
    part = _PART.fullmatch(name)
    return is_model and (part is None or part[2] == "00001")


def split_address(model_id: str) -> tuple[str, str]:
    """Split an address into a model's location in S3 or on a hub and a GGUF file or quantization, or "".

    The syntax is vLLM's: `s3://bucket/prefix/FILE.gguf`, `owner/name/FILE.gguf`, `owner/name:Q4_K_M`.
    """
    if "://" in model_id:
        place, _, file = model_id.rpartition("/")
    else:
        place, file = "/".join(model_id.split("/")[:2]), "/".join(model_id.split("/")[2:])
    if file.endswith(SUFFIX) and not place.endswith("/"):
        return place, file
    place, _, kind = model_id.rpartition(":")
    return (place, kind) if "://" not in model_id and _QUANTIZATION.fullmatch(kind) else (model_id, "")


def has_quantization(path: str, kind: str) -> bool:
    """Return whether a file's name ends in the quantization `kind`, as `split_address` returns it."""
    end = rf"(?:.*[-._/])?(?<!UD-){re.escape(kind)}(?:-\d{{5}}-of-\d{{5}})?\.gguf"
    return re.fullmatch(end, path, re.IGNORECASE) is not None
