"""Environment variables that set options, with LMI's order of precedence.

The names of `OPTION_*` and `SERVING_*` variables are derived from the options table. `ENV_NAMES` lists variables with
other names. The environment is always passed as an argument; this module never reads `os.environ`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from lmi_server.config import holds_model
from lmi_server.properties.model_folder import nested_folder
from lmi_server.properties.problems import Problem, Source
from lmi_server.values.show import masked


class Rank(IntEnum):
    """Precedence of a setting if one option is set in several places. The lowest rank wins."""

    SAGEMAKER = 0
    FILE = 1
    OPTION = 2
    OPTION_ALIAS = 3
    """TGI's names and `HF_*`. They are used if the `OPTION_*` variable is not set."""
    PLAIN = 4
    PLAIN_ALIAS = 5
    SERVING = 6
    SERVING_ALIAS = 7


@dataclass(frozen=True, slots=True)
class RawSetting:
    """The unparsed value of a key, from a file or from the environment."""

    key: str
    text: str
    source: Source
    rank: Rank
    original: str = ""
    """Text of the environment variable, from which `text` was converted. Empty if it was not."""
    accepted: str = ""
    """Accepted values of `original`, if they are not those of the option."""

    @property
    def written(self) -> str:
        """Text as the user wrote it."""
        return self.original or self.text


@dataclass(frozen=True, slots=True)
class EnvName:
    """An environment variable that sets a key with a different name."""

    variable: str
    key: str
    rank: Rank
    convert: Callable[[str], str] = str
    """Converts the variable's text to the key's text. An empty result means unset; invalid text is not changed."""
    accepted: str = ""
    """Accepted values of the variable, if they are not those of the key."""


_MAX_DIGITS = 19
"""Longer numbers are not converted: they exceed every limit, and Python refuses more than 4300 digits."""


def _megabytes(text: str) -> str:
    is_size = text.strip().isdecimal() and len(text) <= _MAX_DIGITS
    return str(int(text) * 1024 * 1024) if is_size else text


def _negated(text: str) -> str:
    return {"true": "false", "false": "true", "1": "false", "0": "true"}.get(text.strip().lower(), text)


def _unless_zero(text: str) -> str:
    return "" if text.strip() == "0" else text


# Among entries of equal rank, the first wins.
ENV_NAMES: tuple[EnvName, ...] = (
    EnvName("SAGEMAKER_MAX_REQUEST_SIZE", "max_request_size", Rank.SAGEMAKER),
    EnvName(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        "max_request_size",
        Rank.SAGEMAKER,
        _megabytes,
        accepted="an integer from 1 to 1024 (MiB)",
    ),
    EnvName("SAGEMAKER_NUM_MODEL_WORKERS", "minWorkers", Rank.SAGEMAKER),
    EnvName("SAGEMAKER_NUM_MODEL_WORKERS", "maxWorkers", Rank.SAGEMAKER),
    EnvName("SAGEMAKER_STARTUP_TIMEOUT", "option.model_loading_timeout", Rank.SAGEMAKER),
    EnvName("SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS", "option.predict_timeout", Rank.SAGEMAKER),
    EnvName("HF_MODEL_ID", "option.model_id", Rank.OPTION_ALIAS),
    EnvName("HF_REVISION", "option.revision", Rank.OPTION_ALIAS),
    EnvName("HF_TASK", "option.task", Rank.OPTION_ALIAS),
    EnvName("HF_MODEL_QUANTIZE", "option.quantize", Rank.OPTION_ALIAS),
    EnvName("HF_MODEL_TRUST_REMOTE_CODE", "option.trust_remote_code", Rank.OPTION_ALIAS),
    EnvName("MAX_BATCH_PREFILL_TOKENS", "option.max_rolling_batch_prefill_tokens", Rank.OPTION_ALIAS),
    EnvName("MAX_BATCH_SIZE", "option.max_rolling_batch_size", Rank.OPTION_ALIAS),
    EnvName("CUDA_MEMORY_FRACTION", "option.gpu_memory_utilization", Rank.OPTION_ALIAS),
    EnvName("ENABLE_CUDA_GRAPHS", "option.enforce_eager", Rank.OPTION_ALIAS, _negated),
    EnvName("TENSOR_PARALLEL_DEGREE", "option.tensor_parallel_degree", Rank.PLAIN),
    EnvName("PIPELINE_PARALLEL_DEGREE", "option.pipeline_parallel_degree", Rank.PLAIN),
    EnvName("PREDICT_TIMEOUT", "option.predict_timeout", Rank.PLAIN),
    EnvName("MODEL_LOADING_TIMEOUT", "option.model_loading_timeout", Rank.PLAIN),
    EnvName("DJL_ENTRY_POINT", "option.entryPoint", Rank.PLAIN),
    EnvName("SM_NUM_GPUS", "option.tensor_parallel_degree", Rank.PLAIN_ALIAS, _unless_zero),
    EnvName("SERVING_MIN_WORKERS", "minWorkers", Rank.SERVING),
    EnvName("SERVING_MAX_WORKERS", "maxWorkers", Rank.SERVING),
    EnvName("MAX_CONCURRENT_REQUESTS", "job_queue_size", Rank.SERVING_ALIAS),
)

_SPECIAL_SUFFIX = {"ENTRYPOINT": "option.entryPoint", "ENTRY_POINT": "option.entryPoint", "ENGINE": "engine"}
_NOT_KEYS = {
    "SERVING_FEATURES": "this server has a single engine",
    "SERVING_HEALTH_CHECK_OVERRIDE": "/ping depends on the engine's progress",
    "SERVING_PROMETHEUS": "/metrics is always available",
    "SERVING_OPTS": "this server does not use a Java virtual machine",
    "SERVING_DOWNLOAD_DIR": "models are downloaded to LMI_CACHE_DIR",
    **dict.fromkeys(
        (
            *("SERVING_CACHE_BATCH", "SERVING_CACHE_MULTITENANT"),
            *("SERVING_DDB_CACHE", "SERVING_DDB_TABLE_NAME"),
            *("SERVING_S3_CACHE", "SERVING_S3_CACHE_AUTOCREATE"),
            *("SERVING_S3_CACHE_BUCKET", "SERVING_S3_CACHE_KEY_PREFIX", "SERVING_MEMORY_CACHE_CAPACITY"),
        ),
        "responses are not stored and paged; clients get them in parts with stream: true",
    ),
}
# Variables that Kubernetes injects for a service named `serving` or `serving-*`.
_KUBERNETES = re.compile(r"SERVING_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\w+)?)\Z")
_FILE_URL = re.compile(r"\Afile:(?:/{2})?/")
_LOAD_MODELS = re.compile(r"(?:\[?(?P<labels>[^\]=]*)\]?=)?(?P<url>[^=]+)\Z")


@dataclass(slots=True)
class Environment:
    """Settings, problems and notes from an environment, collected by `read`."""

    settings: list[RawSetting] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(environ: Mapping[str, str], folder: Path) -> Environment:
    """Read all settings. Empty values count as unset.

    `folder` is the served folder. A model in it overrides `SERVING_LOAD_MODELS`. Variables with unknown names after
    `OPTION_` or `SERVING_` become settings too, so that they are rejected like unknown keys.
    """
    found = Environment()
    named = {name.variable for name in ENV_NAMES}
    for name in ENV_NAMES:
        original = environ.get(name.variable, "")
        text = name.convert(original)
        if text.strip():
            source, converted_from = Source(variable=name.variable), original if text != original else ""
            setting = RawSetting(name.key, text, source, name.rank, converted_from, name.accepted)
            found.settings.append(setting)
    for variable, text in sorted(environ.items()):
        if not text.strip() or variable in named:
            continue
        source = Source(variable=variable)
        if variable == "SERVING_LOAD_MODELS":
            _read_load_models(text, folder, found)
        elif variable == "SERVING_PORT" and "://" not in text:
            reason = "not an LMI variable; set the port with `lmi serve --port` or SAGEMAKER_BIND_TO_PORT"
            found.problems.append(Problem(source, variable, text, reason))
        elif variable in _NOT_KEYS:
            found.notes.append(f"{source}: not used; {_NOT_KEYS[variable]}")
        elif variable.startswith("OPTION_"):
            found.settings.append(RawSetting(_option_key(variable), text, source, Rank.OPTION))
        elif variable.startswith("SERVING_") and not _KUBERNETES.match(variable):
            key = variable.removeprefix("SERVING_").lower()
            found.settings.append(RawSetting(key, text, source, Rank.SERVING))
    return found


def is_lenient(environ: Mapping[str, str]) -> bool:
    """Return True if LMI_LENIENT=true, which replaces `--lenient` on platforms that pass only the argument `serve`."""
    return environ.get("LMI_LENIENT", "").strip().lower() == "true"


def variables_of(key: str) -> tuple[str, ...]:
    """Return the environment variables that set a key, highest precedence first."""
    if key.startswith("option."):
        own = (f"OPTION_{key.removeprefix('option.').upper()}", Rank.OPTION)
    elif key == "engine":
        own = ("OPTION_ENGINE", Rank.OPTION)
    else:
        own = (f"SERVING_{key.upper()}", Rank.SERVING)
    plain = key == key.lower() or key == "option.entryPoint"
    names = [own] if plain and "." not in key.removeprefix("option.") else []
    names += [(name.variable, name.rank) for name in ENV_NAMES if name.key == key]
    return tuple(variable for variable, _ in sorted(names, key=lambda pair: pair[1]))


def _option_key(variable: str) -> str:
    suffix = variable.removeprefix("OPTION_")
    if suffix in _SPECIAL_SUFFIX:
        return _SPECIAL_SUFFIX[suffix]
    return f"option.{suffix.lower() if re.fullmatch('[A-Z_0-9]+', suffix) else suffix}"


def named_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the local folder of the only model that `SERVING_LOAD_MODELS` names; None if it names none or several."""
    named = _named_model(environ.get("SERVING_LOAD_MODELS", ""))
    return Path(named[1]) if named is not None and "://" not in named[1] else None


def _named_model(text: str) -> tuple[list[str], str] | None:
    """Return name, version, engine and devices, as far as they are given, and the location of the only model."""
    items = re.split(r"[,\s]+", text.strip())
    match = _LOAD_MODELS.match(items[0]) if len(items) == 1 and items[0] not in ("ALL", "NONE") else None
    return ((match["labels"] or "").split(":"), _FILE_URL.sub("/", match["url"])) if match else None


def _read_load_models(text: str, folder: Path, found: Environment) -> None:
    """Read engine, devices and model folder from `name:version:engine:devices=folder`."""
    source = Source(variable="SERVING_LOAD_MODELS")
    if text.strip() == "ALL":
        return
    named = _named_model(text)
    if named is None:
        reason = (
            "names several models, or none; name exactly one, or serve a folder that holds only model folders"
        )
        accepted = "name:version:engine=folder, as in test::MPI=/opt/ml/model"
        found.problems.append(Problem(source, source.variable, masked("", text.strip()), reason, accepted))
        return
    labels, url = named
    for key, label in zip(("engine", "load_on_devices"), labels[2:4], strict=False):
        if label not in ("", "*"):
            found.settings.append(RawSetting(key, label, source, Rank.SERVING))
    if nested_folder(Path(url)).resolve() == folder.resolve():
        return
    if holds_model(folder):
        found.notes.append(f"{source}: {url} is not served, because {folder} contains a model")
    else:
        found.settings.append(RawSetting("option.model_id", url, source, Rank.SERVING))
