"""The parts that an object was uploaded in: their sizes, and their checksums where S3 gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from container.models.files.checksums import ALGORITHMS
from container.models.files.patience import Patience
from container.models.files.s3.content import Part, decoded
from container.models.files.s3.errors import FAILURES, attempt, may_pass
from container.models.files.s3.parts import THREADS, S3Object

_MAX_PARTS = 10_000
"""S3's own limit."""
_PAGE = 1000


def layouts(source: S3Object, num_parts: int, patience: Patience) -> Iterator[tuple[Part, ...]]:
    """Every layout that the object may have, the cheapest to ask for first; nothing where S3 gives none.

    HeadObject gives the sizes of the first and the last part, which nearly always tell the others. Where these do not
    fit, GetObjectAttributes lists all parts, with a right that not everybody has; else HeadObject is asked for each.

    Raises: RemoteUnreachable.
    """
    if num_parts > _MAX_PARTS:
        return
    ends = _asked(source, sorted({1, num_parts}), patience)
    if min(part.size for part in ends) < 0:
        return  # does not know parts; it might even take GetObjectAttributes for a read of the whole object
    even = (ends[0],) * (num_parts - 1) + (ends[-1],)
    if _fits(even, num_parts, source.file.size):
        yield tuple(Part(part.size, {}) for part in even)
    listed = _listed(source, patience)
    if not _fits(listed, num_parts, source.file.size):
        listed = _asked(source, range(1, num_parts + 1), patience)
    if _fits(listed, num_parts, source.file.size):
        yield tuple(listed)


def _fits(parts: Sequence[Part], num_parts: int, size: int) -> bool:
    return len(parts) == num_parts and sum(part.size for part in parts) == size


def _listed(source: S3Object, patience: Patience) -> list[Part]:
    """By GetObjectAttributes; what it does not answer is no part."""
    parts: list[Part] = []
    marker = 0
    while marker < _MAX_PARTS:
        answer = _answer(
            source,
            patience,
            "get_object_attributes",
            ObjectAttributes=["ObjectParts"],
            PartNumberMarker=marker,
        )
        page: Mapping[str, Any] = answer.get("ObjectParts", {})
        parts += [_part(entry, entry.get("Size", -1)) for entry in page.get("Parts", ())]
        following = page.get("NextPartNumberMarker", 0)
        if not page.get("IsTruncated") or following <= marker:
            break
        marker = following
    return parts


def _asked(source: S3Object, numbers: Sequence[int], patience: Patience) -> list[Part]:
    """By HeadObject for each; a size of -1 where it is not answered."""

    def ask(number: int) -> Part:
        answer = _answer(source, patience, "head_object", PartNumber=number, ChecksumMode="ENABLED")
        # A server that does not know PartNumber answers for the whole object.
        return _part(answer, answer["ContentLength"] if "PartsCount" in answer else -1)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="s3") as pool:
        return list(pool.map(ask, numbers))


def _part(answer: Mapping[str, Any], size: int) -> Part:
    found = {one.name: decoded(one, str(answer.get(f"Checksum{one.name}", ""))) for one in ALGORITHMS}
    return Part(size, {name: digest for name, digest in found.items() if digest})


def _answer(source: S3Object, patience: Patience, operation: str, **asked: Any) -> Mapping[str, Any]:
    """The answer to a request about the object; empty where the server refuses or does not know it."""
    request = getattr(source.client, operation)

    def once() -> Any:
        try:
            return request(Bucket=source.bucket, Key=source.key, **asked)
        except FAILURES as error:
            if may_pass(error):
                raise
            return {}

    answer: Mapping[str, Any] = attempt(once, patience, source.where)
    return answer
