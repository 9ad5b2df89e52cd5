"""OpenVINO GenAI's continuous batching pipeline, with explicit precisions.

By default its CPU plug-in stores keys and values as u8, and computes in bf16 on processors with bf16 instructions. The
precision of the cache is therefore always set, and that of inference for fp32.
"""

from __future__ import annotations

import functools
from pathlib import Path

from tests.bench.contender import Contender, Facts
from tests.bench.environment import Environment, called, environ, make_folder_once, torch_cpu
from tests.bench.in_process import InProcess
from tests.bench.peers.peer import KV_CACHE_GB, MAX_SEQUENCES, Peer, Site

_VERSION = "2026.4.1"
_STEPS = (
    torch_cpu("2.13.0"),
    (
        (
            "install",
            "torch==2.13.0",
            f"openvino=={_VERSION}",
            f"openvino-genai=={_VERSION}.0",
            f"openvino-tokenizers=={_VERSION}.0",
            "optimum-intel[openvino]==2.2.0",
            "transformers==5.5.4",
        ),
    ),
    # This is a CUDA build. The conversion does not need it and cannot import it.
    (("uninstall", "--yes", "torchvision"),),
)
_KV_NAMES = {"f32": "fp32", "u8": "u8"}


def _prepare(name: str, weights: str, kv_cache: str, site: Site) -> Contender:
    python = Environment(site.folder, _STEPS).make(site.say)
    model = make_folder_once(
        site.folder / f"{site.model.name}-{weights}", functools.partial(_export, python, weights, site)
    )
    int8 = weights == "int8"
    properties = {"KV_CACHE_PRECISION": kv_cache}
    if not int8:
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    return InProcess(
        name=name,
        facts=Facts(
            weights="int8 weights, activations as the plug-in chooses" if int8 else "fp32",
            kv_cache=f"{_KV_NAMES[kv_cache]}, {KV_CACHE_GB} GB",
            interface="in process",
            weight_bytes=1.0 if int8 else 4.0,
            arithmetic="int8" if int8 else "fp32",
            versions={"openvino-genai": _VERSION},
        ),
        python=python,
        runner="openvino_runner.py",
        settings={
            "model": str(model),
            "max_sequences": MAX_SEQUENCES,
            "cache_gb": KV_CACHE_GB,
            "properties": properties,
        },
        environ=environ(),
    )


def _export(python: Path, weights: str, site: Site, folder: Path) -> None:
    site.say(f"{site.folder.name}: converting {site.model} to {weights}; this takes a minute")
    command = [str(python.with_name("optimum-cli")), "export", "openvino", "-m", str(site.model)]
    command += ["--task", "text-generation-with-past", "--weight-format", weights, str(folder)]
    called(command, site.folder / f"export-{weights}.log", environ(HF_HUB_OFFLINE="1"))


def _peer(name: str, weights: str, kv_cache: str) -> Peer:
    return Peer(name, "openvino", functools.partial(_prepare, name, weights, kv_cache))


PEERS = (
    _peer("openvino-fp32", "fp32", "f32"),
    _peer("openvino-fp32-kv-u8", "fp32", "u8"),
    _peer("openvino-int8", "int8", "u8"),
    _peer("openvino-int8-kv-fp32", "int8", "f32"),
)
