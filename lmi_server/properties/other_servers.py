"""Variables and files that TGI and SageMaker's other containers read, and this server does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from lmi_server.config import MODEL_MOUNT
from lmi_server.properties.handler import MODEL_FILE
from lmi_server.properties.option import Status
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import Source

COUNTERPARTS = {
    "MODEL_ID": "HF_MODEL_ID",
    "REVISION": "HF_REVISION",
    "NUM_SHARD": "TENSOR_PARALLEL_DEGREE",
    "DTYPE": "OPTION_DTYPE",
    "QUANTIZE": "OPTION_QUANTIZE",
    "MAX_INPUT_TOKENS": "",
    "MAX_INPUT_LENGTH": "",
    "MAX_TOTAL_TOKENS": "OPTION_MAX_MODEL_LEN",
    "MAX_BATCH_TOTAL_TOKENS": "",
    "WAITING_SERVED_RATIO": "OPTION_WAITING_SERVED_RATIO",
    "PORT": "SAGEMAKER_BIND_TO_PORT",
    "HUGGINGFACE_HUB_CACHE": "LMI_CACHE_DIR",
    "SAGEMAKER_PROGRAM": "OPTION_ENTRYPOINT",
    "SM_VLLM_MODEL": "HF_MODEL_ID",
}
"""Variable of this server for each variable of another one; empty if there is none."""
_VLLM = "SM_VLLM_"
"""Prefix of the other variables of SageMaker's vLLM image, which are named like options."""
_OURS = ("HF_MODEL_ID", "SAGEMAKER_BIND_TO_PORT")
_SCRIPTS = ("inference.py", "code/inference.py")


def variable_notes(environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return a note on each variable of another server, unless its counterpart is set.

    Nothing shows that variables such as DTYPE are meant for a server, except on a platform or beside HF_MODEL_ID.
    `folder`: the served folder, which platforms mount.
    """
    if not folder.is_relative_to(MODEL_MOUNT) and not any(map(environ.get, _OURS)):
        return []
    unread = [name for name in sorted(environ) if name in COUNTERPARTS or name.startswith(_VLLM)]
    counterparts = {name: COUNTERPARTS.get(name, _option_variable(name)) for name in unread if environ[name]}
    return [
        f"{Source(variable=name)} is not read" + (f"; set {ours}" if ours else ", and has no counterpart")
        for name, ours in counterparts.items()
        if not environ.get(ours)
    ]


def _option_variable(name: str) -> str:
    """Return the variable of the option that a variable of the vLLM image is named like, or an empty string."""
    name = name.removeprefix(_VLLM)
    option = by_name().get(f"option.{name.lower()}")
    return f"OPTION_{name}" if option is not None and option.status is Status.WORKS else ""


def script_notes(folders: Iterable[Path]) -> list[str]:
    """Return a note on each file in which another container would look for a handler."""
    scripts = [folder / name for folder in folders for name in _SCRIPTS]
    return [
        f"{script}: not used; a handler belongs in {MODEL_FILE} beside serving.properties"
        for script in scripts
        if script.is_file()
    ]


def unread_model(environ: Mapping[str, str]) -> str:
    """Return the end of an error message if variables of other servers name the model, else an empty string."""
    names = [name for name, ours in COUNTERPARTS.items() if ours == "HF_MODEL_ID" and environ.get(name)]
    return "".join(f"; {name} is not read, set HF_MODEL_ID" for name in names)
