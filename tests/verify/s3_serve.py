"""A folder with only a serving.properties that names an S3 URI serves, again without fetching.

A proxy counts the bytes of objects: the size of the model for the first start, none for the second.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.seaweed import credentials, running
from tests.support.server import Server
from tests.verify.lab import Lab, Report, run_alone

_PROPERTIES = "engine=MPI\noption.model_id=s3://models/smollm2/\n"
_QUESTION = "What is the capital of France?"


def verify(lab: Lab, report: Report) -> None:
    with running(lab.folder / "seaweed-serve") as seaweed, faulty_proxy(seaweed.url) as proxy:
        seaweed.upload(lab.model, "models", "smollm2/")
        cache = lab.folder / "s3-serve-cache"
        size = sum(path.stat().st_size for path in lab.model.iterdir())
        first = _serve(lab, proxy, cache, "first", report)
        report.require(first == size, f"the first start fetched {first} bytes; the model has {size}")
        again = _serve(lab, proxy, cache, "again", report)
        report.require(again == 0, f"the second start fetched {again} bytes of objects")
        published = [path for path in (cache / "models").iterdir() if not path.name.startswith(".")]
        equal = len(published) == 1 and all(
            (published[0] / path.name).read_bytes() == path.read_bytes() for path in lab.model.iterdir()
        )
        report.require(equal, f"the cache has the originals, in {', '.join(path.name for path in published)}")


def _serve(lab: Lab, proxy: FaultyProxy, cache: Path, name: str, report: Report) -> int:
    """Start a server in its own folder, send a question, stop it. Returns the object bytes that were fetched."""
    proxy.heal()
    folder = lab.folder / name
    environment = {**credentials(proxy.url), "LMI_CACHE_DIR": str(cache)}
    with Server(folder, _PROPERTIES, environment=environment) as server:
        seconds = server.wait_ready()
        body = {"messages": [{"role": "user", "content": _QUESTION}], "temperature": 0, "max_tokens": 16}
        reply = server.client.post("/v1/chat/completions", body)
        report.figure(f"{name}: ready after {seconds:.1f} s")
        text = reply.body
        report.require(reply.status == 200 and "Paris" in text, f"{name}: {reply.status}, {text[:160]}")
    return proxy.object_bytes


if __name__ == "__main__":
    run_alone(verify)
