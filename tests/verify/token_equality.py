"""Greedy tokens of 32 prompts equal transformers' in fp32; each rank reads only its own weights.

The prompts are in `tests/support/prompts.py`: 16 chats, rendered with the model's chat template, and 16 plain
texts, 5 to 600 tokens long. transformers' `generate` continues each of them alone in fp32, greedily, for 64 tokens,
past EOS (`tests/support/oracle_generate.py`). The result is cached under a hash of model files, prompt and library
versions. Requests ignore EOS too; `tests/e2e` compares some answers up to EOS. For each tensor-parallel degree and
both kinds of attention, one server answers all 32 prompts one by one, then all 32 at seeded random moments, half of
them streamed.

"n of m tokens equal" counts leading equal tokens. The check passes only when all tokens, the finish reason and
the text are equal for every prompt. The "nearest tie" is the smallest distance between the two best logits in
transformers, which is the margin for rounding errors.

Each rank counts the bytes that it reads while it loads its weights and logs them beside the bytes of the parameters
that it owns. The ratio of the two must be at most 1.1. All ranks together must own at least 99 % of the bytes on
disk, so that no weight is left unread. As an external check, the files are dropped from the page cache before the
server starts, and the bytes that all ranks read from the disk by the kernel's count must be 0.9 to 1.1 times the
size of the files.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.client import Client, Outcome
from tests.support.equality import Comparison, compare
from tests.support.oracle import MAX_NEW_TOKENS, Answer, oracle
from tests.support.prompts import ALL
from tests.support.server import Server
from tests.verify.lab import Lab, Report, run_alone

ARRIVAL_SECONDS = 6.0
"""All 32 prompts arrive at random moments within this time."""
_PARAMETERS = {"max_new_tokens": MAX_NEW_TOKENS, "ignore_eos_token": True}
"""All tokens of every prompt are compared. `tests/e2e` checks that EOS ends a response."""
MAX_READ_RATIO = 1.1
_WEIGHTS = re.compile(r"weights: rank (\d+) owns (\d+) bytes, read (\d+) bytes")


def ask_alone(client: Client, answers: Sequence[Answer]) -> list[Outcome]:
    """Send one request at a time."""
    return [client.generate(answer.text, **_PARAMETERS) for answer in answers]


def send_at_random(client: Client, answers: Sequence[Answer], seed: int) -> list[Outcome]:
    """Send all prompts, in random order and at random moments, every other one streamed."""
    rng = random.Random(seed)
    moments = [rng.uniform(0.0, ARRIVAL_SECONDS) for _ in answers]
    never = threading.Event()

    def arrive(number: int) -> Outcome:
        never.wait(moments[number])
        ask = client.stream if number % 2 else client.generate
        return ask(answers[number].text, **_PARAMETERS)

    with ThreadPoolExecutor(len(answers)) as pool:
        return list(pool.map(arrive, range(len(answers))))


def judge(report: Report, name: str, answers: Sequence[Answer], outcomes: Sequence[Outcome]) -> None:
    compared: list[Comparison] = [compare(*pair) for pair in zip(answers, outcomes, strict=True)]
    wrong = [
        (prompt.name, one.difference) for prompt, one in zip(ALL, compared, strict=True) if one.difference
    ]
    equal = sum(one.num_equal for one in compared)
    expected = sum(one.num_expected for one in compared)
    same = len(compared) - len(wrong)
    report.require(
        not wrong, f"{name}: {equal} of {expected} tokens equal, {same} of {len(compared)} prompts"
    )
    for prompt, difference in wrong:
        report.figure(f"  {prompt}: {difference[:300]}")


def weight_files(lab: Lab) -> list[Path]:
    return sorted(lab.model.glob("*.safetensors"))


def drop_from_page_cache(paths: Iterable[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def judge_reading(report: Report, lab: Lab, server: Server, degree: int) -> None:
    """Compare the bytes that each rank read with those that it owns, and what all read from the disk with the files.

    The files were not in the page cache when the server started.
    """
    reported = {int(rank): (int(owned), int(read)) for rank, owned, read in _WEIGHTS.findall(server.log())}
    report.require(
        sorted(reported) == list(range(degree)),
        f"degree {degree}: weights reported by ranks {sorted(reported)}",
    )
    for rank, (owned, read) in sorted(reported.items()):
        ratio = read / owned
        report.require(
            ratio <= MAX_READ_RATIO, f"degree {degree} rank {rank}: read {read} / owned {owned} = {ratio:.3f}"
        )
    on_disk = sum(path.stat().st_size for path in weight_files(lab))
    together = sum(owned for owned, _ in reported.values())
    report.require(
        together >= 0.99 * on_disk, f"degree {degree}: together own {together} of {on_disk} bytes on disk"
    )
    from_disk = sum(process.io_counters().read_bytes for process in server.ranks().values())
    report.require(
        0.9 * on_disk <= from_disk <= MAX_READ_RATIO * on_disk,
        f"degree {degree}: together read {from_disk} bytes from the disk, by the kernel's count",
    )


def verify(lab: Lab, report: Report) -> None:
    answers = [answer.ignoring_eos() for answer in oracle(lab.model, ALL)]
    lengths = sorted(len(answer.prompt_ids) for answer in answers)
    gap, nearest = min(
        (answer.smallest_gap, prompt.name) for prompt, answer in zip(ALL, answers, strict=True)
    )
    report.figure(f"{len(answers)} prompts of {lengths[0]} to {lengths[-1]} tokens")
    report.figure(f"nearest tie between the best two logits: {gap:.2g} ({nearest})")
    report.require(len(answers) == 32, f"{len(answers)} prompts")
    for degree in (1, 2, 3):
        for paged in (True, False):
            name = f"degree {degree}, {'paged' if paged else 'contiguous'}"
            options = {"tensor_parallel_degree": degree, "paged_attention": paged}
            drop_from_page_cache(weight_files(lab))
            with lab.server(f"equality-{degree}-{paged}", **options) as server:
                if paged:
                    judge_reading(report, lab, server, degree)
                judge(report, f"{name}, alone", answers, ask_alone(server.client, answers))
                seed = 10 * degree + paged
                judge(
                    report, f"{name}, random arrivals", answers, send_at_random(server.client, answers, seed)
                )


if __name__ == "__main__":
    run_alone(verify)
