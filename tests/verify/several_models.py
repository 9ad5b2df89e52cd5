"""Six models, memory for three: 300 random invocations are answered by the right model; 409 and 507.

The models are Llamas with different random weights. Each requires 1 GB by `required_memory_mb`;
`LMI_MODELS_MEMORY_MB` leaves room for three. An answer is right if its eight greedy tokens equal those that the
model gave alone; no two models give the same tokens. Four invocations run at once.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.support.several_models import generate_tokens, load, multi_model_server, save_models
from tests.verify.lab import Lab, Report, run_alone

NAMES = "abcdef"
MAX_LOADED = 3
_INVOCATIONS = 300
_CONCURRENCY = 4


def verify(lab: Lab, report: Report) -> None:
    folders = save_models(lab.folder / "several", NAMES)
    root = folders["a"].parent
    names = random.Random(17).choices(NAMES, k=_INVOCATIONS)
    with multi_model_server(lab.folder / "several-log", root, MAX_LOADED) as server:
        answers = {name: generate_tokens(server.client, f"/predictions/{name}") for name in NAMES}
        distinct = len({tuple(tokens) for tokens in answers.values()})
        report.require(distinct == len(NAMES), f"{distinct} of {len(NAMES)} models answer differently")

        def is_right(item: tuple[int, str]) -> bool:
            number, name = item
            body = {"stream": number % 2 == 0}
            return generate_tokens(server.client, f"/predictions/{name}", body) == answers[name]

        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            right = sum(pool.map(is_right, enumerate(names)))
        report.require(right == _INVOCATIONS, f"folder: {right} of {_INVOCATIONS} answers are right")
        unloads = server.log().count(" to free memory for ")
        report.require(unloads > 0, f"folder: {unloads} models were unloaded to free memory")
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODELS_DIR": str(root)}
    with multi_model_server(
        lab.folder / "platform-log", lab.folder / "none", MAX_LOADED, environment
    ) as server:
        client, statuses, right = server.client, Counter[int](), 0
        loaded: list[str] = []
        for name in names[: _INVOCATIONS // 3]:
            if client.post(f"/models/{name}/invoke", {"inputs": "x"}).status == 404:
                while (status := load(client, name, folders[name])) == 507:
                    statuses[status] += 1
                    with client.call("DELETE", f"/models/{loaded.pop(0)}") as call:
                        call.read()
                loaded.append(name)
            statuses[load(client, name, folders[name])] += 1
            right += generate_tokens(client, f"/models/{name}/invoke") == answers[name]
        total = _INVOCATIONS // 3
        report.require(right == total, f"multi-model API: {right} of {total} answers are right")
        report.require(statuses[409] == total, f"{statuses[409]} of {total} second loads get a 409")
        report.require(
            statuses[507] > 0 and len(loaded) == MAX_LOADED,
            f"{statuses[507]} loads got a 507, {len(loaded)} models stay",
        )


if __name__ == "__main__":
    run_alone(verify)
