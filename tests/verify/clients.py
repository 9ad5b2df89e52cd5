"""openai, boto3 (both calls) and curl, unchanged, against a live server.

The end-to-end tests of each client are run and counted; a skipped test counts as failed. curl runs the commands of
the documentation, which cover every route. boto3's `sagemaker-runtime` uses `lmi endpoint` in place of the platform:
it maps paths and headers and frames streams as events, some of which end in the middle of a line.
"""

from __future__ import annotations

from tests.verify.commands import run_tests
from tests.verify.lab import Lab, Report, run_alone

CLIENTS = {
    "openai": ("tests/e2e/test_openai_client.py", "tests/e2e/test_openai_completions.py"),
    "boto3": ("tests/e2e/test_sagemaker_client.py",),
    "curl": ("tests/docs/test_commands.py",),
}
"""Test files by client. The tests with curl run the commands of the documentation."""


def verify(lab: Lab, report: Report) -> None:
    for client, files in CLIENTS.items():
        printed = run_tests(report, client, *files, environment={"LMI_TEST_MODEL": str(lab.model)})
        skipped = printed.count(" SKIPPED ")
        report.require(skipped == 0, f"{client}: {skipped} tests skipped")


if __name__ == "__main__":
    run_alone(verify)
