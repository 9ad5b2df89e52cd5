"""Request parameters that have no effect: `UNSUPPORTED`, from `unsupported.toml`, and `LABELS`."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from lmi_server.apis.parameters.row import Parameter, everywhere
from lmi_server.values.lists import AnyJson, Object
from lmi_server.values.scalars import Bool, Int, Text


def _unsupported() -> tuple[Parameter, ...]:
    text = (files(__package__) / "unsupported.toml").read_text(encoding="utf-8")
    return tuple(
        everywhere(name, type=AnyJson(), neutral=tuple(values), reason=reason)
        for reason, names in tomllib.loads(text).items()
        for name, values in names.items()
    )


_LABEL = Text("a string")
_TOKEN_ID = Int(-1, 2**31 - 1)
_NO_NUMBER = "completions take the number from logprobs"
_TOP_LEVEL = "chats and completions take them at the top level of the body"

UNSUPPORTED: tuple[Parameter, ...] = (
    *_unsupported(),
    Parameter(
        "chat_template_kwargs",
        AnyJson(),
        lmi=("chat_template_kwargs",),
        completions=("chat_template_kwargs",),
        neutral=({},),
        reason="only chats use the chat template",
    ),
    Parameter(
        "return_token_ids",
        Bool(),
        lmi=("return_token_ids",),
        neutral=(False,),
        reason="the tokens of a stream and of details have their ids",
    ),
    Parameter("echo", Bool(), chat=("echo",), neutral=(False,), reason="only completions support echo"),
    Parameter("top_logprobs", Int(0), completions=("top_logprobs",), neutral=(0,), reason=_NO_NUMBER),
    Parameter("parameters", AnyJson(), openai=("parameters",), neutral=({},), reason=_TOP_LEVEL),
)
"""Unsupported parameters. Only values that change nothing are accepted."""

LABELS: tuple[Parameter, ...] = (
    *(
        Parameter(name, _LABEL, openai=(name,))
        for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id")
    ),
    *(Parameter(name, Object(), openai=(name,)) for name in ("prompt_cache_options", "metadata")),
    # Settings of LiteLLM's own, which it repeats in the body.
    *(Parameter(name, _LABEL, lmi=(name,)) for name in ("model_id", "sagemaker_base_url")),
    Parameter("aws_sagemaker_allow_zero_temp", Bool(), lmi=("aws_sagemaker_allow_zero_temp",)),
    # Parameters of transformers. The server decides how to pad and compute.
    *(everywhere(name, type=_TOKEN_ID) for name in ("pad_token_id", "bos_token_id")),
    *(everywhere(name, type=Bool()) for name in ("use_cache", "return_dict_in_generate")),
)
"""Parameters that are accepted because no answer depends on them."""
