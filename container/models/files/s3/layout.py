"""Sizes and checksums of the parts in which an object was uploaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from container.models.files.retry import RetryBudget
from container.models.files.s3.checksums import ALGORITHMS
from container.models.files.s3.content import ObjectPart, decode_digest
from container.models.files.s3.errors import FAILURES, attempt, is_temporary
from container.models.files.s3.parts import THREADS, S3Object

_MAX_PARTS = 10_000
"""S3's own limit of parts per object."""


def layouts(source: S3Object, num_parts: int) -> Iterator[tuple[ObjectPart, ...]]:
    """Yield every layout that the object may have, the cheapest to request first; none if S3 reports no parts.

    HeadObject reports the sizes of the first and the last part, from which the others nearly always follow. If they do
    not, HeadObject is sent for each part. Raises: RemoteUnreachable.
    """
    if num_parts > _MAX_PARTS:
        return
    budget = source.new_budget()
    ends = _parts(source, sorted({1, num_parts}), budget)
    if min(part.size for part in ends) < 0:
        return  # the server does not support parts
    even = (ends[0].size,) * (num_parts - 1) + (ends[-1].size,)
    if sum(even) == source.file.size:
        yield tuple(ObjectPart(size, {}) for size in even)
    parts = _parts(source, range(1, num_parts + 1), budget)
    if sum(part.size for part in parts) == source.file.size:
        yield tuple(parts)


def _parts(source: S3Object, numbers: Sequence[int], budget: RetryBudget) -> list[ObjectPart]:
    """Request parts with HeadObject. Their size is -1 if the server refuses or does not support the request."""

    def once(number: int) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = source.client.head_object(
                Bucket=source.bucket, Key=source.key, PartNumber=number, ChecksumMode="ENABLED"
            )
        except FAILURES as error:
            if is_temporary(error):
                raise
            return {}
        return answer

    def part(number: int) -> ObjectPart:
        answer = attempt(lambda: once(number), budget, source.where)
        digests = {
            one.name: decode_digest(one, str(answer.get(f"Checksum{one.name}", ""))) for one in ALGORITHMS
        }
        # A server without support for PartNumber answers for the whole object.
        size = answer["ContentLength"] if "PartsCount" in answer else -1
        return ObjectPart(size, {name: digest for name, digest in digests.items() if digest})

    with ThreadPoolExecutor(THREADS, thread_name_prefix="s3") as pool:
        return list(pool.map(part, numbers))
