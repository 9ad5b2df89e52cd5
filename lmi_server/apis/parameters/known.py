"""Request parameters that other servers know and this one does not act on.

`NOT_SUPPORTED`: values that change nothing are accepted, others are refused by name, in every dialect: a constraint
that is dropped in silence gives a wrong answer. `LABELS`: accepted, because no answer depends on them.
"""

from __future__ import annotations

from typing import Any

from lmi_server.apis.parameters.row import Parameter, everywhere, unsupported
from lmi_server.values.lists import Object
from lmi_server.values.scalars import Bool, Int, Text

_OFF = (False,)
_LABEL = Text("a string")
_TOKEN_ID = Int(-1, 2**31 - 1)
_EMPTY: tuple[Any, ...] = ("", [], {})

NOT_SUPPORTED: tuple[Parameter, ...] = (
    *unsupported(
        "constrained (guided) decoding is not supported",
        grammar=_EMPTY,
        guided_json=(),
        guided_regex=(),
        guided_choice=(),
        guided_grammar=(),
        guided_decoding_backend=(),
        guided_whitespace_pattern=(),
        structured_outputs=(),
        structural_tag=(),
        response_format=({"type": "text"},),
        regex=(),
        ebnf=(),
        json_schema=(),
        allowed_token_ids=(),
        constraints=([],),
        force_words_ids=([],),
        logits_processors=([],),
        logits_processor=([],),
        prefix_allowed_tokens_fn=(),
    ),
    *unsupported(
        "tool calls are not supported",
        tools=([],),
        tool_choice=("none", "auto"),
        functions=([],),
        function_call=("none", "auto"),
        parallel_tool_calls=(True, False),
        tool_prompt=("",),
        web_search_options=(),
    ),
    *unsupported(
        "num_beams is how beam search is asked for here",
        use_beam_search=_OFF,
        beam_width=(1,),
        num_beam_groups=(1,),
        diversity_penalty=(0.0,),
    ),
    *unsupported(
        "LoRA adapters are not supported",
        adapter_id=("",),
        lora_path=("",),
        lora_request=(),
    ),
    *unsupported(
        "only the model's own chat template is used, as it is",
        chat_template=(),
        chat_template_kwargs=({},),
        add_generation_prompt=(True,),
        continue_final_message=_OFF,
        documents=([],),
        guideline=("",),
    ),
    *unsupported(
        "only text comes in and goes out",
        modalities=(["text"],),
        audio=(),
        prompt_embeds=(),
        mm_processor_kwargs=({},),
        media_io_kwargs=({},),
    ),
    *unsupported(
        "reasoning is not told from the rest of an answer",
        reasoning_effort=("none",),
        include_reasoning=(True, False),
        thinking_token_budget=(),
    ),
    *unsupported("timeout, in seconds, is how a request's time is limited here", max_time=()),
    *unsupported("the header X-Tenant-Id keeps tenants' cached prompts apart", cache_salt=("",)),
    *unsupported(
        "answers have this in one form only",
        return_tokens_as_token_ids=_OFF,
        return_token_ids=_OFF,
        detokenize=(True,),
        spaces_between_special_tokens=(True,),
        clean_up_tokenization_spaces=_OFF,
        no_stop_trim=_OFF,
        output_scores=_OFF,
        output_logits=_OFF,
        output_attentions=_OFF,
        output_hidden_states=_OFF,
    ),
    *unsupported(
        "this way of choosing tokens is not supported",
        watermark=_OFF,
        watermarking_config=(),
        penalty_alpha=(0.0,),
        dola_layers=(),
        guidance_scale=(1.0,),
        epsilon_cutoff=(0.0,),
        eta_cutoff=(0.0,),
        top_h=(),
        exponential_decay_length_penalty=(),
        token_healing=_OFF,
        remove_invalid_values=_OFF,
        decoder_start_token_id=(),
    ),
    *unsupported(
        "this is not supported",
        suffix=("",),
        prediction=(),
        verbosity=("medium",),
        service_tier=("auto", "default"),
        store=_OFF,
        moderation=(),
        kv_transfer_params=({},),
        vllm_xargs=({},),
    ),
    Parameter("echo", Bool(), chat=("echo",), neutral=_OFF, reason="echo belongs to completions"),
    Parameter(
        "top_logprobs",
        Int(0),
        completions=("top_logprobs",),
        neutral=(0,),
        reason="in completions the number stands in logprobs",
    ),
)

LABELS: tuple[Parameter, ...] = (
    Parameter("user", _LABEL, openai=("user",)),
    Parameter("safety_identifier", _LABEL, openai=("safety_identifier",)),
    Parameter("prompt_cache_key", _LABEL, openai=("prompt_cache_key",)),
    Parameter("prompt_cache_retention", _LABEL, openai=("prompt_cache_retention",)),
    Parameter("prompt_cache_options", Object(), openai=("prompt_cache_options",)),
    Parameter("metadata", Object(), openai=("metadata",)),
    Parameter("request_id", _LABEL, openai=("request_id",)),
    # Of transformers: how to pad and compute is the server's decision.
    everywhere("pad_token_id", type=_TOKEN_ID),
    everywhere("bos_token_id", type=_TOKEN_ID),
    everywhere("use_cache", type=Bool()),
    everywhere("renormalize_logits", type=Bool()),
    everywhere("return_dict_in_generate", type=Bool()),
)
