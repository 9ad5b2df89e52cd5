"""Build and run the image for `image.py`, with Docker, or with buildah and Linux namespaces if there is no Docker.

buildah uses a base made by debootstrap in place of the published one, builds without its own namespaces (`--isolation
chroot`) and keeps all files in one folder. The image is then started with `unshare`, like a container: with its own
process namespace and mounts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

IMAGE = "lmi-server:image-check"
_BASE = "lmi-server-base:image-check"
_SUITE = "bookworm"
_PACKAGES = "ca-certificates,python3,python3-venv"
_USER = "1000:1000"


@dataclass(frozen=True, slots=True)
class Start:
    """Settings of a container. Its file system is read-only except /tmp, and its user is not root."""

    environment: Mapping[str, str]
    model: Path | None = None
    """Mounted at /opt/ml/model, read-only."""
    shm_mb: int = 64
    arguments: Sequence[str] = ("serve",)


def run(*arguments: str | Path, **options: object) -> str:
    """Run a command and return its output. Raises `subprocess.CalledProcessError`."""
    done = subprocess.run(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode:
        print(done.stdout[-4000:], flush=True)
        done.check_returncode()
    return str(done.stdout)


def find_engine(folder: Path) -> ImageEngine | str:
    """Return Docker if its daemon responds, else buildah, else a text that says what to install."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        return Docker()
    missing = [name for name in ("buildah", "debootstrap", "unshare", "setpriv") if not shutil.which(name)]
    if missing or os.geteuid():
        return f"needs a Docker daemon, or root, buildah and debootstrap (missing: {', '.join(missing) or 'root'})"
    return Buildah(folder)


class Docker:
    """A Docker daemon on this machine."""

    def build(self, context: Path) -> str:
        """Build the image and return the output. Raises `subprocess.CalledProcessError`, with the output."""
        return run(
            "docker", "build", "--progress", "plain", "--build-arg", "TORCH=cpu", "--tag", IMAGE, context
        )

    def size(self) -> int:
        """Return the unpacked size of the image in bytes."""
        return int(run("docker", "image", "inspect", "--format", "{{.Size}}", IMAGE))

    def start(self, start: Start, folder: Path) -> DockerContainer:
        options = ["--read-only", "--tmpfs", "/tmp:exec", "--shm-size", f"{start.shm_mb}m", "--user", _USER]
        options += [
            "--network",
            "host",
            *(f"--env={name}={value}" for name, value in start.environment.items()),
        ]
        if start.model is not None:
            options += ["--volume", f"{start.model}:/opt/ml/model:ro"]
        return DockerContainer(
            run("docker", "run", "--detach", *options, IMAGE, *start.arguments).split()[-1]
        )

    def close(self) -> None:
        """Remove everything that was created."""
        run("docker", "image", "rm", "--force", IMAGE)


@dataclass(frozen=True, slots=True)
class DockerContainer:
    id: str

    def terminate(self) -> None:
        """Send SIGTERM to process 1."""
        run("docker", "kill", "--signal", "TERM", self.id)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the container still runs after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return int(run("docker", "wait", self.id, timeout=seconds))
        return None

    def log(self) -> str:
        return run("docker", "logs", self.id)

    def execute(self, *arguments: str) -> str:
        """Run a command in the container and return its output."""
        return run("docker", "exec", self.id, *arguments)

    def remove(self) -> None:
        run("docker", "rm", "--force", self.id)


class Buildah:
    """buildah, with its images in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._command = ("buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self._command += ("--storage-driver", "vfs")

    def _run(self, *arguments: str | Path) -> str:
        return run(*self._command, *arguments).strip()

    def build(self, context: Path) -> str:
        self._make_base()
        options = ["--isolation", "chroot", "--layers", "--build-arg", "TORCH=cpu", *self._pip_volumes()]
        options += ["--build-arg", f"CPU_BASE=localhost/{_BASE}", "--tag", IMAGE]
        return self._run("build", *options, context)

    def size(self) -> int:
        with self._mounted() as root:
            return int(run("du", "--summarize", "--block-size=1", "--one-file-system", root).split()[0])

    def start(self, start: Start, folder: Path) -> Namespace:
        """Start a container. `folder` is an empty folder for its files."""
        config = json.loads(self._run("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
        environment = {**dict(item.split("=", 1) for item in config["Env"]), **start.environment}
        arguments = [*config["Entrypoint"], *start.arguments]
        return Namespace(
            self._run("mount", self._container()), config["WorkingDir"], environment, arguments, start, folder
        )

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("rm", "--all")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _container(self) -> str:
        """Return the name of a container of the image. It is created again after each build."""
        name = "image-check-" + self._run("images", "--quiet", "--no-trunc", IMAGE)[-16:]
        if name not in self._run("containers", "--format", "{{.ContainerName}}").split():
            self._run("from", "--name", name, IMAGE)
        return name

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[str]:
        yield self._run("mount", self._container())

    def _make_base(self) -> None:
        if _BASE in self._run("images", "--format", "{{.Name}}:{{.Tag}}"):
            return
        root = self._folder / "base"
        run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, root)
        container = self._run("from", "scratch").splitlines()[-1]
        self._run("copy", container, root, "/")
        self._run(
            "config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container
        )
        self._run("commit", "--rm", container, _BASE)
        shutil.rmtree(root)

    def _pip_volumes(self) -> list[str]:
        """Return mounts of this pip's configuration for the build, since indexes and certificates may be local."""
        lines = run(sys.executable, "-m", "pip", "config", "list").splitlines()
        settings = {}
        for name, _, value in (line.partition("=") for line in lines):
            settings[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", "\n")
        urls = [urlsplit(url) for value in settings.values() for url in value.split()]
        # The pages of a local index link to files in neighboring folders.
        paths = {str(Path(url.path).parent) if url.scheme == "file" else url.path for url in urls}
        config = self._folder / "pip.conf"
        text = "".join(f"{name} = {' '.join(value.split())}\n" for name, value in settings.items())
        config.write_text(f"[global]\n{text}")
        local = [path for path in sorted(paths) if Path(path).is_absolute() and Path(path).exists()]
        return [f"--volume={config}:/etc/pip.conf:ro", *(f"--volume={path}:{path}:ro" for path in local)]


_SETUP = """
set -eu
root=$1 model=$2 shm=$3 user=$4 folder=$5; shift 5
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs -o "size=${shm}m,mode=1777" tmpfs "$root/dev/shm"
for device in null zero full random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
if [ -n "$model" ]; then
    mount --bind "$model" "$root/opt/ml/model"
    mount -o remount,bind,ro "$root/opt/ml/model"
fi
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" env --ignore-environment --chdir="$folder" "$@"
"""
"""Script that prepares the mounts of a container and becomes its first process."""


@dataclass(slots=True)
class Namespace:
    """A container made of Linux namespaces."""

    root: str
    working_folder: str
    environment: Mapping[str, str]
    arguments: Sequence[str]
    start: Start
    folder: Path
    _unshare: subprocess.Popen[bytes] = field(init=False)
    """The process of `unshare`, which waits for the container's first process."""

    def __post_init__(self) -> None:
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            _SETUP,
            "sh",
            self.root,
        ]
        command += [str(self.start.model or ""), str(self.start.shm_mb), _USER, self.working_folder]
        command += [*(f"{name}={value}" for name, value in self.environment.items()), *self.arguments]
        with (self.folder / "container.log").open("wb") as log:
            self._unshare = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _first_pid(self) -> int:
        """Return the process id of the container's first process on this machine."""
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        deadline = time.monotonic() + 10.0
        while not (found := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return int(found[0])

    def terminate(self) -> None:
        os.kill(self._first_pid(), signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        try:
            return self._unshare.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def log(self) -> str:
        return (self.folder / "container.log").read_text(errors="replace")

    def execute(self, *arguments: str) -> str:
        user, group = _USER.split(":")
        inside = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *arguments]
        return run(
            "nsenter", "--target", str(self._first_pid()), "--mount", "--pid", "--root", "--wd", *inside
        )

    def remove(self) -> None:
        self._unshare.kill()
        self._unshare.wait()


Container = DockerContainer | Namespace
ImageEngine = Docker | Buildah
