"""Resolve the options of engine=Python: any architecture of transformers, on a CPU or split over GPUs by layers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from container.explain.resolve import weights
from container.explain.resolve.decisions import CannotServe, Decisions, batching
from container.explain.resolve.length import context_origin
from container.machine import Machine
from engines.config import ModelSettings, ParallelConfig, PythonEngineConfig
from engines.models.config.attention import default_sequence, longest_sequence
from engines.models.config.fields import Fields, UnsupportedModel, class_name
from engines.models.config.library import type_defaults
from engines.models.config.selection import with_architecture
from engines.models.gguf_index import read_index
from engines.models.transformers_backend.sources import (
    audio_architectures,
    generates,
    generating_architectures,
    model_types,
)
from lmi_server.config import EngineOptions, LmiConfig

_CONTEXT_NAMES = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"),
    "max_encoder_position_embeddings",
)
"""Keys in config.json that hold the context length."""
_UNKNOWN_CONTEXT = 2048
_MIN_SIMILARITY = 0.9
"""Similarity of names from which one may be a misspelling of the other. Most architectures end alike."""


def obstacles(options: EngineOptions, machine: Machine) -> Iterator[str]:
    """Yield the reasons why `machine` cannot serve these options, without looking at the model's files."""
    degree = options.tensor_parallel_degree
    if isinstance(degree, int) and degree > max(1, machine.gpu_count):
        has = f"{machine.name} has {machine.gpu_count or 'none'}"
        yield f"option.tensor_parallel_degree={degree} needs {degree} GPUs under engine=Python; {has}"


def resolve(
    config: LmiConfig, model_path: Path, machine: Machine, decisions: Decisions, allow_remote_code: bool
) -> PythonEngineConfig:
    """Return the engine's configuration. Raises CannotServe."""
    data = weights.read_config_json(model_path)
    remote_code = _remote_code(config, data, allow_remote_code, decisions)
    if config.source.load_format != "dummy":
        weights.require_safetensors(model_path)
    if read_index(model_path) is not None:
        raise CannotServe("the weights are in a GGUF file, which engine=Python does not read; set engine=MPI")
    options = config.options
    device = "cuda" if machine.gpu_count else "cpu"
    checkpoint = weights.checkpoint_dtype(model_path, data)
    if device == "cpu":
        weights.require_free(4 * weights.count_parameters(model_path), machine)
    return PythonEngineConfig(
        model=ModelSettings(
            path=str(model_path),
            name=config.source.model_id or str(model_path),
            dtype=weights.dtype(options.dtype, checkpoint, device, decisions),
            max_model_len=_max_model_len(options, data, decisions),
        ),
        parallel=ParallelConfig(
            tp_size=_degree(options, machine, decisions), device=device, threads_per_rank=machine.threads(1)
        ),
        batching=batching(config),
        trust_remote_code=remote_code,
    )


def _remote_code(config: LmiConfig, data: dict[str, Any], allowed: bool, decisions: Decisions) -> bool:
    """Return whether the model's own code runs. Only if transformers has none, and file and operator allow it."""
    requested = config.source.trust_remote_code
    names = with_architecture(data).get("architectures")
    architecture = class_name(str(names[0])) if isinstance(names, list) and names else ""
    if not generating_architectures() or generates(architecture, data):
        if requested:
            decisions.notes.append(
                f"option.trust_remote_code=true: transformers implements {architecture or 'the model'}, so"
                " remote code is not used"
            )
        return False
    if not architecture:
        raise CannotServe("config.json does not name an architecture (architectures)")
    if not data.get("auto_map"):
        raise CannotServe(_unknown(architecture, data))
    if not requested:
        raise CannotServe(
            f"transformers has no {architecture}{_type_of_known(architecture, data)}; to run the code that comes with"
            " the model, set option.trust_remote_code=true"
        )
    if not allowed:
        raise CannotServe(
            f"{architecture} needs the code that comes with the model; in addition to option.trust_remote_code=true,"
            " start the server with lmi serve --allow-remote-code or LMI_ALLOW_REMOTE_CODE=true"
        )
    decisions.notes.append(f"{architecture} runs the code that comes with the model")
    return True


def _unknown(architecture: str, data: dict[str, Any]) -> str:
    """Return why transformers cannot load a model that comes without code."""
    known, model_type = generating_architectures(), data.get("model_type")
    if architecture in known:
        lack = f"transformers has no {architecture}{_type_of_known(architecture, data)}"
        types = " or ".join(map(repr, model_types(architecture)))
        return f"{lack if model_type else 'config.json has no model_type'}; {architecture} has {types}"
    takes_more = any(data.get(name) for name in ("vision_config", "audio_config"))
    if takes_more or architecture in audio_architectures():
        return f"transformers has no text generation model {architecture}: it takes images or audio"
    nearest = difflib.get_close_matches(architecture, known, 1, _MIN_SIMILARITY)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"transformers has no text generation model {architecture}{hint}"


def _type_of_known(architecture: str, data: dict[str, Any]) -> str:
    """Name the model type, if transformers has an architecture of this name, but not for this type."""
    return f" of model type {data.get('model_type')!r}" if architecture in generating_architectures() else ""


def _max_model_len(options: EngineOptions, data: dict[str, Any], decisions: Decisions) -> int:
    name, requested = "option.max_model_len", options.max_model_len
    parts = list(_text_parts(data))
    found = [(context, part) for part in parts if (context := _context(part))]
    if not found:
        return requested or decisions.record(name, *_default_without_limit(parts))
    context = min(context for context, _ in found)
    lengths = [_default_and_longest(part, context) for context, part in found]
    default, longest = (min(each[place] for each in lengths) for place in range(2))
    if requested is None:
        return decisions.record(name, default, context_origin(default, context))
    if requested > longest:
        raise CannotServe(f"{name}={requested} exceeds the model's context length of {longest} tokens")
    return requested


def _text_parts(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configurations that limit the length of a text: the model's, or those of its encoder and decoder."""
    has_length = any(data.get(name) for name in _CONTEXT_NAMES)
    nested = [] if has_length else [data.get("text_config")]
    if not has_length and data.get("encoder"):
        nested = [data["encoder"], data.get("decoder")]
    parts = [part for part in nested if isinstance(part, dict)]
    if not parts:
        yield data
    for part in parts:
        yield from _text_parts(part)


def _defaults(data: dict[str, Any]) -> Mapping[str, Any]:
    """Return the values of the fields that a config.json may omit."""
    return type_defaults(str(data.get("model_type") or ""))


def _context(data: dict[str, Any]) -> int | None:
    """Return the context length. None if there is none, or if the model's class in transformers does not use it."""
    defaults = _defaults(data)
    used = {*defaults, *(defaults.get("attribute_map") or {})}
    return _first_length(_with_defaults(data), [name for name in _CONTEXT_NAMES if name in used or not used])


def _default_without_limit(parts: list[dict[str, Any]]) -> tuple[int, str]:
    """Return a length, and its origin, for a model whose positions do not limit it."""
    trained = [length for part in parts if (length := _first_length(part, _CONTEXT_NAMES))]
    if trained:
        return min(trained), "the length in config.json; the model's positions allow more"
    return _UNKNOWN_CONTEXT, "config.json has no context length"


def _first_length(data: dict[str, Any], names: Sequence[str]) -> int | None:
    return next((data[name] for name in names if isinstance(data.get(name), int) and data[name] > 0), None)


def _with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    return {**_defaults(data), **{name: value for name, value in data.items() if value is not None}}


def _default_and_longest(data: dict[str, Any], context: int) -> tuple[int, int]:
    """Return the default and the largest length with the file's rotary scaling; the context if it is unknown here."""
    data = _with_defaults(data)
    fields = Fields(data)
    rotates = any(map(fields.is_set, ("rope_theta", "rope_scaling", "rope_parameters")))
    trained = fields.model_max_length if rotates else 0
    try:
        head_dim = fields.count("hidden_size") // fields.count("num_attention_heads")
        scalings = fields.rope_scalings(fields.count("head_dim", head_dim))
    except (UnsupportedModel, KeyError):
        scalings = []
    if len(scalings) == 1 and isinstance(data.get("default_theta"), dict):
        scalings.append(None)  # layers with a sliding window, as in Gemma 3, are not scaled
    lengths = default_sequence(context, scalings), longest_sequence(context, scalings)
    return max(trained, lengths[0]), max(trained, lengths[1])


def _degree(options: EngineOptions, machine: Machine, decisions: Decisions) -> int:
    name, requested = "option.tensor_parallel_degree", options.tensor_parallel_degree
    if isinstance(requested, int):
        return requested
    return decisions.record(
        name, max(1, machine.gpu_count), "all GPUs" if machine.gpu_count else "there is no GPU"
    )
