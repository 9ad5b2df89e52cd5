"""Models from a real S3 server, through a proxy that injects faults."""

from __future__ import annotations

import dataclasses
import io
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from container.models import files as model_files
from container.progress import LogLines
from lmi_server.config import ModelSource
from lmi_server.text.template_files import read_templates
from tests.container.models.files.s3_lab import NEEDED, S3Lab, same
from tests.support.faulty_proxy import answer, every_object
from tests.support.paths import child_environment
from tests.support.seaweed import credentials

_IN_FLIGHT = 256 << 10
"""Bytes that one cut may lose: the block in flight."""


def size_of(folder: Path, names: set[str] = NEEDED) -> int:
    return sum((folder / name).stat().st_size for name in names)


@pytest.mark.parametrize("prefix", ["mine", "mine/", "mine//"])
def test_only_the_files_needed_for_serving_are_fetched(prefix: str, s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    s3.upload(small_model, "mine/nested/")
    s3.upload(small_model, "mine-too/")
    folder, log = s3.obtain(prefix)
    assert same(folder, small_model)
    assert s3.proxy.object_bytes == size_of(small_model)
    assert "100 %" in log
    assert s3.leftover_processes() == []
    assert model_files.locate(ModelSource(model_id=s3.address()), s3.cache) == folder


def test_named_chat_templates_are_fetched(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    s3.put("mine/chat_template.jinja", b"plain")
    for name, content in (
        ("tool_use.jinja", b"with tools"),
        ("", b""),
        ("deeper/x.jinja", b"not a template"),
    ):
        s3.put(f"mine/additional_chat_templates/{name}", content)
    for load_format in ("auto", "stream"):
        folder, _ = s3.obtain(load_format=load_format)
        assert read_templates(folder) == {"default": "plain", "tool_use": "with tools"}
    template = folder / "additional_chat_templates" / "tool_use.jinja"
    assert template.stat().st_mode & 0o777 == 0o644
    template.unlink()
    assert s3.obtain(load_format="stream")[0] == folder
    assert read_templates(folder)["tool_use"] == "with tools"


def test_a_handler_gets_the_whole_prefix(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    others = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "1_Pooling/deep/x.bin": b"pickle",
        "x.gguf": b"no",
    }
    for name, content in (others | {"1_Pooling/": b"", "1_Pooling/deep/": b""}).items():
        s3.put(f"mine/{name}", content)
    s3.put("mine-too/x.bin", b"another model's")
    served, _ = s3.obtain()
    for source in (
        ModelSource(s3.address(), fetch_all_files=True),
        ModelSource(s3.address("mine/"), fetch_all_files=True),
    ):
        folder = model_files.obtain(source, LogLines(io.StringIO()), s3.cache)
        assert folder == model_files.locate(source, s3.cache) != served
        files = {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        assert files == {path.name: path.read_bytes() for path in tiny_model.iterdir()} | others
    assert model_files.locate(ModelSource(s3.address()), s3.cache) == served


def test_a_handler_gets_only_the_selected_gguf_file(s3: S3Lab) -> None:
    for name in ("x-Q4_0.gguf", "x-Q8_0.gguf", "config.json"):
        s3.put(f"mine/{name}", name.encode())
    source = ModelSource(s3.address("mine/x-Q4_0.gguf"), fetch_all_files=True)
    folder = model_files.obtain(source, LogLines(io.StringIO()), s3.cache)
    assert folder == model_files.locate(source, s3.cache)
    assert {path.name for path in folder.iterdir()} == {"x-Q4_0.gguf", "config.json"}


def test_a_prefix_must_be_a_whole_folder_name(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model, "falcon-40b/")
    assert "no object under this prefix" in s3.refused("falcon")
    assert "there are folders ('falcon-40b/')" in s3.refused("")


def test_the_model_may_be_at_the_root_of_a_bucket(s3: S3Lab, small_model: Path) -> None:
    whole = dataclasses.replace(s3, root="", bucket="whole")
    whole.upload(small_model, "")
    folder, _ = whole.obtain("")
    assert same(folder, small_model)


def test_cut_connections_lose_only_the_bytes_in_flight(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    size = size_of(small_model)
    generator = random.Random(20)
    s3.proxy.cut_at([generator.randrange(size) for _ in range(20)])
    folder, _ = s3.obtain()
    assert s3.proxy.cuts_left == 0
    assert same(folder, small_model)
    assert size <= s3.proxy.object_bytes <= size + 20 * _IN_FLIGHT


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (400, "ExpiredToken"), (403, "AccessDenied")]
)
def test_an_interrupted_fetch_resumes(status: int, code: str, s3: S3Lab, small_model: Path) -> None:
    """The server fails after the first 12 MiB. The fetch gives up, and a later one resumes it."""
    s3.upload(small_model)
    blocked = threading.Event()

    def block() -> None:
        blocked.set()
        s3.proxy.fault(every_object, answer(status, code))
        s3.proxy.cut_at([1 << 10, 2 << 10, 3 << 10])

    s3.proxy.when_sent(12 << 20, block)
    message = s3.refused()
    assert blocked.is_set()
    assert "model.safetensors" in message
    written = s3.written_bytes()
    assert written > 1 << 20
    s3.proxy.heal()
    folder, log = s3.obtain()
    assert "resuming an interrupted fetch" in log
    assert same(folder, small_model)
    assert s3.leftover_processes() == []
    assert s3.proxy.object_bytes == size_of(small_model) - written


def test_a_killed_fetch_is_never_served_and_is_resumed(s3: S3Lab, small_model: Path) -> None:
    s3.upload(small_model)
    reached = threading.Event()
    ended = threading.Event()

    def hold() -> None:
        reached.set()
        ended.wait()

    s3.proxy.when_sent(16 << 20, hold)
    process = s3.start()
    try:
        assert reached.wait(200)
        # Megabytes of sent data may still be in socket buffers. Only the bytes that the process wrote count.
        while s3.written_bytes() < 12 << 20:
            assert process.poll() is None
            ended.wait(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ended.set()
    assert s3.published() == []
    assert model_files.locate(ModelSource(model_id=s3.address()), s3.cache) is None
    written = s3.written_bytes()
    s3.proxy.heal()
    folder, log = s3.obtain()
    assert "resuming an interrupted fetch" in log
    assert same(folder, small_model)
    assert s3.proxy.object_bytes == size_of(small_model) - written


def test_only_the_cache_needs_to_be_writable(s3: S3Lab, tiny_model: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace")
    s3.upload(tiny_model)
    s3.cache.mkdir()
    script = (
        "set -e; mount --bind $0 $0; mount -o remount,ro,bind /; cd /; exec $1 -B -m container prepare $2"
    )
    extra = {**credentials(s3.proxy.url), "LMI_CACHE_DIR": str(s3.cache), "HOME": "/nowhere"}
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(s3.cache), sys.executable, s3.address()],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(extra),
    )
    if "unshare" in result.stderr or "mount" in result.stderr:
        pytest.skip(f"cannot mount: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    assert len(s3.published()) == 1
