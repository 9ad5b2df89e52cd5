"""Load a model with transformers: its class, its precision and its devices."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.quantizers import AutoHfQuantizer

from engines.config import PythonEngineConfig
from engines.python.rotary import unscaled_length

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MEMORY_SHARE = 0.9
"""Share of a GPU's free memory that weights may take; batches need the rest."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model, and the facts that a call of `generate` needs."""

    module: Any
    """A `PreTrainedModel` with `generate`."""
    device: torch.device
    """Device for the model's inputs."""
    num_embeddings: int
    """Size of the embedding table. Token ids must be smaller."""
    pad_token_id: int
    takes_mask: bool
    """Whether `forward` takes an attention mask."""
    is_encoder_decoder: bool
    max_decoder_positions: int | None = None
    """Size of the decoder's position table, if the encoder has another one, as in LED."""
    unscaled_length: int | None = None
    """Length up to which a row's output cannot depend on the length of other rows; None: it never depends on it."""


def load_model(config: PythonEngineConfig) -> LoadedModel:
    """Load the model's local folder. Nothing is downloaded, and the model's own code runs only if the config allows it.

    On a CPU, weights are rounded to the configured dtype, and the model computes in fp32.

    Raises: `FileNotFoundError` if there is no config.json; `ValueError` if the model does not fit on the GPUs, if
        tensors are missing, or if they are quantized in a way that transformers would ignore; any error of
        transformers.
    """
    path = config.model.path
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError("no config.json")
    common = {"local_files_only": True, "trust_remote_code": config.trust_remote_code}
    hf_config = AutoConfig.from_pretrained(path, **common)
    auto = AutoModelForSeq2SeqLM if hf_config.is_encoder_decoder else AutoModelForCausalLM
    storage = _DTYPES[config.model.dtype]
    on_gpu = config.parallel.device == "cuda"
    quantization = getattr(hf_config, "quantization_config", None)
    if quantization and not AutoHfQuantizer.supports_quant_method(quantization):
        raise ValueError(
            f"transformers does not support the checkpoint's quantization ({quantization.get('quant_method')})"
        )
    module, loaded = auto.from_pretrained(
        path,
        output_loading_info=True,
        config=hf_config,
        use_safetensors=True,
        dtype=storage if on_gpu else torch.float32,
        **(placement(config.parallel.tp_size) if on_gpu else {}),
        **common,
    )
    if missing := sorted(loaded["missing_keys"]):
        raise ValueError(f"the checkpoint lacks {len(missing)} of the model's tensors, such as {missing[0]}")
    if on_gpu:
        _require_gpus_only(module)
    else:
        _round_weights(module, storage)
    module.eval()
    return describe(module)


def describe(module: Any) -> LoadedModel:
    """Describe a model, and remove its own sampling defaults and processors: each request sets its own.

    module: a `PreTrainedModel`; its `generation_config` is replaced.
    """
    embeddings = module.get_input_embeddings().weight.shape[0]
    defaults = module.generation_config
    pad = defaults.pad_token_id
    pad_token_id = pad if isinstance(pad, int) and 0 <= pad < embeddings else 0
    module.generation_config = GenerationConfig(
        bos_token_id=defaults.bos_token_id,
        decoder_start_token_id=defaults.decoder_start_token_id,
        pad_token_id=pad_token_id,
    )
    return LoadedModel(
        module=module,
        device=module.device,
        num_embeddings=embeddings,
        pad_token_id=pad_token_id,
        takes_mask="attention_mask" in inspect.signature(module.forward).parameters,
        is_encoder_decoder=module.config.is_encoder_decoder,
        max_decoder_positions=getattr(module.config, "max_decoder_position_embeddings", None),
        unscaled_length=unscaled_length(module.config.get_text_config(decoder=True)),
    )


def placement(degree: int) -> dict[str, Any]:
    """Return arguments of `from_pretrained` that place all layers on one GPU, or evenly on the first `degree` GPUs.

    degree: the tensor-parallel degree, here the number of GPUs. Other GPUs are not touched, and no layer goes to the
    CPU or the disk.
    """
    if degree == 1:
        return {"device_map": {"": 0}}
    memory = {gpu: int(torch.cuda.mem_get_info(gpu)[0] * _MEMORY_SHARE) for gpu in range(degree)}
    return {"device_map": "balanced", "max_memory": memory}


def _require_gpus_only(module: Any) -> None:
    # Layers on the disk, and on the CPU next to layers on a GPU, are on the device "meta" until they are computed.
    if any(parameter.device.type != "cuda" for parameter in module.parameters()):
        raise ValueError(
            "the model does not fit on the GPUs: some layers would go to the CPU or the disk; "
            "raise option.tensor_parallel_degree, or set option.dtype=fp16 or bf16"
        )


def _round_weights(module: Any, storage: torch.dtype) -> None:
    """Round the weights to the precision of `storage`. The tensors stay fp32."""
    if storage is torch.float32:
        return
    for parameter in module.parameters():
        parameter.data = parameter.data.to(storage).float()
