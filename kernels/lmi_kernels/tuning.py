"""Tuned launch parameters by operation and key, from `tuned/<device name>.json`.

A file holds {operation: {key: {parameter: number}}}. Entries missing in a device's file (`NVIDIA_H200`) are taken from
the file of its compute capability (`sm_90`), then from `default`, which fits every GPU from sm_80 on (99 KiB of shared
memory). Nothing is tuned at run time.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch

Parameters = dict[str, int]

_FOLDER = Path(__file__).parent / "tuned"
DEFAULT = "default"


def parameters(operation: str, key: str, device: torch.device) -> Parameters:
    """Return the launch parameters of one kernel, such as {"block_n": 64, "num_warps": 4, "num_stages": 2}.

    Raises:
        KeyError: none of the device's files has the operation and the key.
    """
    for name in tables(device):
        found = _table(name).get(operation, {}).get(key)
        if found is not None:
            return found
    raise KeyError(f"no launch parameters for {operation}, {key}")


@functools.cache
def tables(device: torch.device) -> tuple[str, ...]:
    """Return the names of the files for a device, most specific first."""
    if device.type != "cuda":
        return (DEFAULT,)
    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device).replace(" ", "_"), f"sm_{major}{minor}", DEFAULT


@functools.cache
def _table(name: str) -> dict[str, dict[str, Parameters]]:
    file = _FOLDER / f"{name}.json"
    if not file.is_file():
        return {}
    table: dict[str, dict[str, Parameters]] = json.loads(file.read_text(encoding="utf-8"))
    return table


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU. For other devices it is small, so that tests split work."""
    if device.type != "cuda":
        return 4
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
