"""60 malformed or out-of-range bodies: each a 4xx naming field, value and limit; the next request works.

The bodies are in `tests/lmi_server/malformed_bodies.py`. Each body is sent to its path. The response must be a 4xx
whose text names the field, the value and the limit, as far as the case has them. After each body, a valid request
must get the same tokens as before.
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Mapping

from tests.lmi_server.malformed_bodies import BODIES, INVOCATIONS, Malformed
from tests.support.client import Answer, Client, Ending
from tests.verify.lab import Lab, Report, require_idle, run_alone

MIN_BODIES = 60
_GOOD = "Once upon a time,"


def error_text(case: Malformed, answer: Answer) -> str:
    """Return the error's text in the format of the path. Raises `ValueError` or `KeyError` for any other format."""
    error = answer.json()["error"]
    return str(error if case.path == INVOCATIONS else error["message"])


def send(client: Client, case: Malformed) -> Answer:
    headers: Mapping[str, str] = {} if case.content_type is None else {"Content-Type": case.content_type}
    return client.post(case.path, case.body, headers)


def problem(client: Client, case: Malformed) -> str:
    """Describe what is wrong with the response to a body. Returns an empty text if nothing is."""
    try:
        answer = send(client, case)
        text = error_text(case, answer)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return f"not an error in the expected format: {type(error).__name__}: {error}"
    if answer.status != case.status or not 400 <= answer.status < 500:
        return f"status {answer.status}, expected {case.status}"
    missing = [mention for mention in case.mentions if mention not in text]
    return f"the text does not name {missing}: {text[:200]}" if missing else ""


def verify(lab: Lab, report: Report) -> None:
    with lab.server("malformed") as server:
        client = server.client
        expected = client.generate(_GOOD, max_new_tokens=3)
        report.require(expected.ending is Ending.COMPLETE, f"a good request: {expected.describe()}")
        wrong, broken = [], []
        for case in BODIES:
            if found := problem(client, case):
                wrong.append(f"{case.name}: {found}")
            got = client.generate(_GOOD, max_new_tokens=3)
            if got.ending is not Ending.COMPLETE or got.token_ids != expected.token_ids:
                broken.append(f"{case.name}: {got.describe()}")
        statuses = dict(sorted(Counter(case.status for case in BODIES).items()))
        report.require(len(BODIES) >= MIN_BODIES, f"{len(BODIES)} bodies, statuses {statuses}")
        right = len(BODIES) - len(wrong)
        report.require(not wrong, f"{right} of {len(BODIES)} bodies got the expected status and error text")
        report.require(
            not broken,
            f"{len(BODIES) - len(broken)} of {len(BODIES)} subsequent good requests got the same response",
        )
        for line in wrong + broken:
            report.figure(line)
        require_idle(report, client)
        example = max(BODIES, key=lambda case: len(case.mentions))
        report.figure(f"for example {json.dumps(example.name)}: {error_text(example, send(client, example))}")


if __name__ == "__main__":
    run_alone(verify)
