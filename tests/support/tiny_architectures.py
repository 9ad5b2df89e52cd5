"""Small random models of several transformers architectures, with different kinds of positions."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

VOCAB_SIZE = 97
CONTEXT = 24
_IDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 3, "tie_word_embeddings": False}


def _llama() -> Any:
    """Rotary positions."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE, max_position_embeddings=CONTEXT, num_key_value_heads=2, **shape, **_IDS
        )
    )


def _gpt2() -> Any:
    """A table of positions, which limits the length."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB_SIZE, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, **_IDS)
    )


def _opt() -> Any:
    """A table of positions with an offset."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            **_IDS,
        )
    )


def _bloom() -> Any:
    """ALiBi, without a limit of the length."""
    return BloomForCausalLM(BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4, **_IDS))


def _mpt() -> Any:
    """ALiBi from a table, which limits the length."""
    return MptForCausalLM(
        MptConfig(
            vocab_size=VOCAB_SIZE,
            d_model=32,
            n_layers=2,
            n_heads=4,
            expansion_ratio=2,
            max_seq_len=CONTEXT,
            **_IDS,
        )
    )


def _mamba() -> Any:
    """A recurrent state instead of attention."""
    return MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, state_size=8, num_hidden_layers=2, **_IDS)
    )


def _t5() -> Any:
    """An encoder and a decoder, with relative positions in buckets."""
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    ids = {**_IDS, "decoder_start_token_id": 3}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCAB_SIZE, **shape, **ids))


def _bart() -> Any:
    """An encoder and a decoder, with tables of positions."""
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCAB_SIZE,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=CONTEXT,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **_IDS,
        )
    )


def _rwkv() -> Any:
    """A recurrent state. Padding changes it, since the mask is not used."""
    return RwkvForCausalLM(
        RwkvConfig(vocab_size=VOCAB_SIZE, context_length=CONTEXT, hidden_size=32, num_hidden_layers=2, **_IDS)
    )


ARCHITECTURES = {
    "llama": _llama,
    "gpt2": _gpt2,
    "opt": _opt,
    "bloom": _bloom,
    "mpt": _mpt,
    "mamba": _mamba,
    "rwkv": _rwkv,
    "t5": _t5,
    "bart": _bart,
}


_SCALE = {"bart": 0.1, "mpt": 0.2, "t5": 1.0}
_NOT_REPLACED = ("A_log", "dt_proj", "time_mix")


def make_model(architecture: str, seed: int = 0) -> Any:
    """A model in fp32 on the CPU. Its weights are so large that logits differ clearly and positions matter."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[architecture]()
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
