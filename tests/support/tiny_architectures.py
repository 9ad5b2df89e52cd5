"""Small random models of several transformers architectures, with different kinds of positions."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

VOCAB_SIZE = 97
CONTEXT = 24
_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 3, "tie_word_embeddings": False}
_HIDDEN = {"hidden_size": 32, "num_hidden_layers": 2}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Rotary positions.
    "llama": _HIDDEN
    | {
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    },
    # A table of positions, which limits the length. That of opt has an offset.
    "gpt2": {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": _HIDDEN
    | {
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
    },
    # ALiBi. That of mpt is from a table, which limits the length.
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": CONTEXT},
    # A recurrent state instead of attention. Padding changes that of rwkv, which does not use the mask.
    "mamba": _HIDDEN | {"state_size": 8},
    "rwkv": _HIDDEN | {"context_length": CONTEXT},
    # An encoder and a decoder, with relative positions in buckets, and with tables of positions.
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 3,
    },
    "bart": {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    },
}
"""Configurations by model type in transformers."""
_SCALE = {"bart": 0.1, "mpt": 0.2, "t5": 1.0}
_NOT_REPLACED = ("A_log", "dt_proj", "time_mix")


def make_model(architecture: str, seed: int = 0) -> Any:
    """A model in fp32 on the CPU. Its weights are so large that logits differ clearly and positions matter."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(architecture, vocab_size=VOCAB_SIZE, **_IDS | ARCHITECTURES[architecture])
    family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = family.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or any(kept in name for kept in _NOT_REPLACED):
                continue
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * _SCALE.get(architecture, 0.5))
    return model.eval()


@torch.inference_mode()
def generate_alone(model: Any, prompt: list[int], max_new_tokens: int) -> list[int]:
    """The greedy continuation of one prompt by transformers, past EOS."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=None,
        pad_token_id=3,
    )
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    tokens: list[int] = output[0, start:].tolist()
    return tokens
