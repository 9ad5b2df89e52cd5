"""Run the end-to-end tests of the real clients against a live server: openai, boto3's sagemaker-runtime and curl."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import REPO_ROOT, child_environment
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 11
TITLE = "openai, boto3 (both calls) and curl, unchanged, against a live server"

CLIENTS = {
    "openai": ("tests/e2e/test_openai_client.py", "tests/e2e/test_openai_completions.py"),
    "boto3": ("tests/e2e/test_sagemaker_client.py",),
    "curl": ("tests/docs/test_commands.py",),
}
"""Test files by client. The tests with curl run the commands of the documentation."""
TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Results of one client's tests."""

    passed: int
    failed: tuple[str, ...]
    """Names of tests that failed or raised an error."""
    skipped: int


def read_counts(report: Path) -> dict[str, Counts]:
    """Read the results by client from pytest's JUnit report."""
    by_client = {}
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # noqa: S314 - written by our own child
    for client, files in CLIENTS.items():
        modules = {name.removesuffix(".py").replace("/", ".") for name in files}
        own = [case for case in cases if case.get("classname") in modules]
        failed = [case for case in own if case.find("failure") is not None or case.find("error") is not None]
        skipped = sum(case.find("skipped") is not None for case in own)
        names = tuple(str(case.get("name")) for case in failed)
        by_client[client] = Counts(len(own) - len(failed) - skipped, names, skipped)
    return by_client


def verify(lab: Lab, report: Report) -> None:
    results, log = lab.folder / "clients.xml", lab.folder / "clients.log"
    paths = [name for files in CLIENTS.values() for name in files]
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junit-xml={results}", *paths],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=REPO_ROOT,
            env=child_environment({"LMI_TEST_MODEL": str(lab.model)}),
            timeout=TIMEOUT_SECONDS,
            check=False,
        ).returncode
    for client, counts in read_counts(results).items():
        report.require(
            counts.passed > 0 and not counts.failed and not counts.skipped,
            f"{client}: {counts.passed} tests passed, {len(counts.failed)} failed, {counts.skipped} skipped",
        )
        for name in counts.failed:
            report.figure(f"failed: {name}")
    report.require(code == 0, f"pytest's exit code {code}, log {log}")


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
