"""Tuned launch parameters, by device name, operation and key: `tuned/<device name>.json`.

A file holds {operation: {key: {parameter: number}}}. What a device's own file does not name is taken from
`tuned/default.json`, which fits every GPU from sm_80 on (99 KiB of shared memory). Nothing is tuned at run time.
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
    """Launch parameters of one kernel, such as {"block_n": 64, "num_warps": 4, "num_stages": 2}.

    Raises:
        KeyError: neither the device's file nor the default one names the operation and the key.
    """
    for name in (device_name(device), DEFAULT):
        found = _table(name).get(operation, {}).get(key)
        if found is not None:
            return found
    raise KeyError(f"no launch parameters for {operation}, {key}")


@functools.cache
def device_name(device: torch.device) -> str:
    """As the files are named: `NVIDIA_H200`; `default` for what is no GPU."""
    return torch.cuda.get_device_name(device).replace(" ", "_") if device.type == "cuda" else DEFAULT


@functools.cache
def _table(name: str) -> dict[str, dict[str, Parameters]]:
    file = _FOLDER / f"{name}.json"
    if not file.is_file():
        return {}
    table: dict[str, dict[str, Parameters]] = json.loads(file.read_text(encoding="utf-8"))
    return table


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Of a GPU; elsewhere a small number, so that work is split in tests too."""
    if device.type != "cuda":
        return 4
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
