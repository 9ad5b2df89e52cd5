"""Advice on weights in pickled files (`pytorch_model.bin`, `.pt`, `.pth`), which the server never loads.

A pickle can run code when it is loaded. The advice is a command that converts the files. It loads tensors only, in a
process that users start themselves.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_USUAL = "pytorch_model"
_OTHER_STATE = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""Name prefixes of training files that are not weights."""
_PROGRAM = (
    "import sys, torch; from safetensors.torch import save_file; "
    "save_file({n: t.contiguous().clone() for f in sys.argv[2:] for n, t in "
    "torch.load(f, map_location='cpu', weights_only=True).items()}, sys.argv[1], {'format': 'pt'})"
)


def advice(folder: str, paths: Iterable[str]) -> str:
    """Return how to convert a folder's pickled weights, a phrase with a shell command; empty if there are none.

    folder: an absolute path on this machine, or a remote's name; paths: the names of its files.
    """
    found = sorted(path for path in paths if path.endswith(SUFFIXES) and not path.startswith(_OTHER_STATE))
    weights = [path for path in found if path.startswith(_USUAL)] or found
    if not weights:
        return ""
    # `./` keeps a name that begins with a dash from being an option.
    names = [shlex.quote(f"./{path}") for path in weights]
    command = f'{shlex.quote(sys.executable)} -P -c "{_PROGRAM}" model.safetensors {" ".join(names)}'
    if folder.startswith("/"):
        return f"convert them once: cd {shlex.quote(folder)} && {command}"
    return f"download the folder, convert them in it, and upload model.safetensors: {command}"
