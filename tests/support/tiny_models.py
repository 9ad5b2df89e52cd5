"""Small Llama checkpoints with random weights, and our model runner and transformers' model on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engines.config import CacheConfig, ModelSettings, MpiEngineConfig, ParallelConfig, SchedulerConfig
from engines.core import SchedulerSettings
from engines.models.config import ModelConfig
from engines.mpi.model_runner import DTYPES, ModelRunner
from engines.parallel import Communicator, SingleProcess
from engines.stopwatch import Stopwatch

VOCAB_SIZE = 97
"""Odd, so that it never divides by the number of ranks."""

BLOCK_SIZE = 4

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def save_llama(
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "fp32",
    exact_in_fp16: bool = False,
    max_shard_size: str | None = None,
    **changes: Any,
) -> None:
    """Save a checkpoint of SmolLM2's proportions, 9 heads over 3 KV heads, but for `changes` to its config.

    Every parameter is random, norms and biases too, and large enough that logits differ clearly.
    `exact_in_fp16`: weights have few bits, as those of a quantised model, and survive fp16 and bf16.
    """
    model = LlamaForCausalLM(LlamaConfig(**{**_SHAPE, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.3
            if "norm" in name:
                values = 1 + values / 3
            parameter.copy_((values * 64).round() / 64 if exact_in_fp16 else values)
    model.to(DTYPES[dtype])
    model.save_pretrained(folder, **({} if max_shard_size is None else {"max_shard_size": max_shard_size}))


def load_oracle(folder: Path, dtype: str) -> LlamaForCausalLM:
    """transformers' model, its weights rounded to `dtype`, computing in fp32."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="eager")
    return model.float().eval()


@torch.inference_mode()
def oracle_logits(model: LlamaForCausalLM, token_ids: Sequence[int]) -> torch.Tensor:
    """[len(token_ids), vocab_size], fp32: of every position."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def make_runner(
    folder: Path,
    comm: Communicator | None = None,
    *,
    dtype: str = "fp32",
    paged: bool = True,
    num_blocks: int = 64,
    max_model_len: int = 64,
    device: str = "cpu",
) -> ModelRunner:
    """A runner with `num_blocks` blocks of `BLOCK_SIZE` tokens."""
    comm = comm or SingleProcess()
    itemsize = torch.float32.itemsize if device == "cpu" else DTYPES[dtype].itemsize
    token_bytes = ModelConfig.from_folder(folder).kv_elements_per_token * itemsize
    config = MpiEngineConfig(
        model=ModelSettings(str(folder), "tiny", dtype, max_model_len),
        parallel=ParallelConfig(tp_size=comm.world_size, device=device),
        cache=CacheConfig(BLOCK_SIZE, paged, num_blocks * BLOCK_SIZE * token_bytes),
        scheduler=SchedulerConfig(
            SchedulerSettings(max_num_seqs=8, max_prefill_tokens=64, max_num_batched_tokens=64, max_waiting=8)
        ),
    )
    return ModelRunner(config, comm, torch.device(device), Stopwatch(lambda: 0.0))
