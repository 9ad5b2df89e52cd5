"""The local hub is one: what huggingface_hub fetches from it by its own ways is what was put there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.hub_server import HubServer
from tests.support.model_files import NO_PROXY, content, model
from tests.support.paths import child_environment

_SNAPSHOT = """
import sys
from huggingface_hub import HfApi, snapshot_download
print(HfApi().list_repo_refs("owner/tiny").branches[0].name)
snapshot_download("owner/tiny", revision="v1", local_dir=sys.argv[1])
"""


def test_a_snapshot_of_the_library_equals_what_was_committed(tmp_path: Path) -> None:
    files = model(**{"onnx/model.bin": b"some"})
    with HubServer() as hub:
        hub.commit("owner/tiny", files, tag="v1")
        hub.commit("owner/tiny", model(seed=2))
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _SNAPSHOT, str(tmp_path / "copy")],
            capture_output=True,
            text=True,
            check=False,
            env=child_environment({**NO_PROXY, **home}),
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "main"
    got = {name: data for name, data in content(tmp_path / "copy").items() if not name.startswith(".cache")}
    assert got == files
