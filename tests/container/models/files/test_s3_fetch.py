"""Models from a real S3 server, through a proxy that injects faults."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from lmi_server.text.template_files import read_templates
from tests.container.models.files.s3_lab import NEEDED, TINY, WITHOUT_WEIGHTS, S3Lab, same
from tests.support.faulty_proxy import answer, every_object
from tests.support.model_files import content
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.seaweed import credentials


def size_of(folder: Path, names: set[str] = NEEDED) -> int:
    return sum((folder / name).stat().st_size for name in names)


@pytest.mark.parametrize("prefix", ["mine", "mine//"])
def test_only_the_files_needed_for_serving_are_fetched(prefix: str, s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    s3.upload(tiny_model, "mine/nested/")
    s3.upload(tiny_model, "mine-too/")
    folder, log = s3.obtain(prefix)
    assert same(folder, tiny_model, TINY)
    assert s3.proxy.object_bytes == size_of(tiny_model, TINY)
    assert "100 %" in log
    assert s3.leftover_files() == []
    assert s3.locate() == folder


def test_weights_are_not_fetched_for_random_ones_and_the_copy_is_not_used_as_a_full_one(
    s3_tiny: S3Lab, tiny_model: Path
) -> None:
    assert s3_tiny.locate(load_format="dummy") is None
    folder, log = s3_tiny.obtain(load_format="dummy")
    assert same(folder, tiny_model, WITHOUT_WEIGHTS)
    assert s3_tiny.proxy.object_bytes == size_of(tiny_model, WITHOUT_WEIGHTS)
    assert "(without weights), 3 files" in log
    assert s3_tiny.locate(load_format="dummy") == folder
    assert s3_tiny.locate() is None

    whole, _ = s3_tiny.obtain()
    assert whole != folder
    assert any(whole.glob("*.safetensors"))
    assert s3_tiny.locate(load_format="dummy") == folder
    s3_tiny.proxy.heal()
    assert s3_tiny.obtain(load_format="dummy")[0] == folder
    assert s3_tiny.proxy.object_bytes == 0


def test_only_a_config_is_required_for_random_weights(s3: S3Lab) -> None:
    s3.put("mine/config.json", b"{}")
    folder, _ = s3.obtain(load_format="dummy")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    s3.put("other/tokenizer.json", b"{}")
    assert "is not a model: it has no config.json" in s3.refused("other", load_format="dummy")


def test_named_chat_templates_are_fetched(s3: S3Lab, tiny_model: Path) -> None:
    s3.upload(tiny_model)
    s3.put("mine/chat_template.jinja", b"plain")
    templates = {"tool_use.jinja": b"with tools", "": b"", "deeper/x.jinja": b"not a template"}
    for name, template in templates.items():
        s3.put(f"mine/additional_chat_templates/{name}", template)
    for load_format in ("auto", "stream"):
        folder, _ = s3.obtain(load_format=load_format)
        assert read_templates(folder) == {"default": "plain", "tool_use": "with tools"}
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    assert file.stat().st_mode & 0o777 == 0o644
    file.unlink()
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
    for name, body in (others | {"1_Pooling/": b"", "1_Pooling/deep/": b""}).items():
        s3.put(f"mine/{name}", body)
    s3.put("mine-too/x.bin", b"another model's")
    served, _ = s3.obtain()
    for prefix in ("mine", "mine/"):
        folder, _ = s3.obtain(prefix, fetch_all_files=True)
        assert folder == s3.locate(prefix, fetch_all_files=True) != served
        assert content(folder) == content(tiny_model) | others
    assert s3.locate() == served


def test_a_handler_gets_only_the_selected_gguf_file(s3: S3Lab) -> None:
    for name in ("x-Q4_0.gguf", "x-Q8_0.gguf", "config.json"):
        s3.put(f"mine/{name}", name.encode())
    folder, _ = s3.obtain("mine/x-Q4_0.gguf", fetch_all_files=True)
    assert folder == s3.locate("mine/x-Q4_0.gguf", fetch_all_files=True)
    assert {path.name for path in folder.iterdir()} == {"x-Q4_0.gguf", "config.json"}


def test_a_prefix_must_be_a_whole_folder_name(s3: S3Lab) -> None:
    s3.put("falcon-40b/config.json", b"{}")
    assert f"{s3.address('falcon')}/: no object under this prefix" in s3.refused("falcon")
    assert "there are folders ('falcon-40b/')" in s3.refused("")


def test_the_model_may_be_at_the_root_of_a_bucket(s3: S3Lab, tiny_model: Path) -> None:
    whole = dataclasses.replace(s3, root="", bucket="whole")
    whole.upload(tiny_model, "")
    assert same(whole.obtain("")[0], tiny_model, TINY)


def test_cut_connections_lose_only_the_bytes_in_flight(s3_small: S3Lab, small_model: Path) -> None:
    proxy, size = s3_small.proxy, size_of(small_model)
    generator = random.Random(20)
    proxy.cut_at([generator.randrange(size) for _ in range(20)])
    folder, _ = s3_small.obtain()
    assert proxy.cuts_left == 0
    assert same(folder, small_model)
    in_flight = 256 << 10  # the block that a cut may lose
    assert size <= proxy.object_bytes <= size + 20 * in_flight


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (400, "ExpiredToken"), (403, "AccessDenied")]
)
def test_an_interrupted_fetch_resumes(status: int, code: str, s3_small: S3Lab, small_model: Path) -> None:
    """The server fails after the first 12 MiB. The fetch gives up, and a later one resumes it."""
    proxy = s3_small.proxy

    def block() -> None:
        proxy.fault(every_object, answer(status, code))
        proxy.cut_at([1 << 10, 2 << 10, 3 << 10])

    proxy.when_sent(12 << 20, block)
    assert "model.safetensors" in s3_small.refused()
    check_resumed(s3_small, small_model)


def check_resumed(s3: S3Lab, model: Path) -> None:
    """Fetch again. Only the bytes that were not written before are requested."""
    written = s3.written_bytes()
    assert written > 1 << 20
    s3.proxy.heal()
    folder, log = s3.obtain()
    assert "resuming an interrupted fetch" in log
    assert same(folder, model)
    assert s3.leftover_files() == []
    assert s3.proxy.object_bytes == size_of(model) - written


def test_a_killed_fetch_is_never_served_and_is_resumed(s3_small: S3Lab, small_model: Path) -> None:
    reached = threading.Event()
    ended = threading.Event()

    def hold() -> None:
        reached.set()
        ended.wait()

    s3_small.proxy.when_sent(16 << 20, hold)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.patient_lmi", "prepare", s3_small.address()],
        stderr=subprocess.DEVNULL,
        cwd=REPO_ROOT,
        env=child_environment({**credentials(s3_small.proxy.url), "LMI_CACHE_DIR": str(s3_small.cache)}),
    )
    try:
        assert reached.wait(200)
        # Megabytes of sent data may still be in socket buffers. Only the bytes that the process wrote count.
        while s3_small.written_bytes() < 12 << 20:
            assert process.poll() is None
            ended.wait(0.01)
    finally:
        process.kill()
        process.wait()
        ended.set()
    assert s3_small.published() == []
    assert s3_small.locate() is None
    check_resumed(s3_small, small_model)


def test_only_the_cache_needs_to_be_writable(s3_tiny: S3Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount namespace")
    s3_tiny.cache.mkdir()
    script = (
        "set -e; mount --bind $0 $0; mount -o remount,ro,bind /; cd /; exec $1 -B -m container prepare $2"
    )
    extra = {**credentials(s3_tiny.proxy.url), "LMI_CACHE_DIR": str(s3_tiny.cache), "HOME": "/nowhere"}
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(s3_tiny.cache), sys.executable, s3_tiny.address()],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(extra),
    )
    if "unshare" in result.stderr or "mount" in result.stderr:
        pytest.skip(f"cannot mount: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    assert len(s3_tiny.published()) == 1


def test_a_copy_from_s3_that_is_damaged_on_disk_is_repaired(
    s3_small: S3Lab, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = s3_small.obtain()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(12_000_000)
        file.write(b"damage")
    s3_small.proxy.heal()
    monkeypatch.setenv("LMI_CACHE_DIR", str(s3_small.cache))
    result = CliRunner().invoke(main, ["prepare", s3_small.address(), "--verify", "--prune"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{folder}\n"
    assert same(folder, small_model)
    assert "model.safetensors: the file differs from the object in S3 (CRC32 differs)" in result.stderr
    assert "config.json" in result.stderr
    assert "verified by CRC32" in result.stderr
    assert s3_small.proxy.object_bytes == (small_model / "model.safetensors").stat().st_size
