"""Request parameters that other servers know and this one does not act on.

`NOT_DONE`: values that change nothing are accepted, others refused by name. `LABELS`: accepted, and without effect.
"""

from __future__ import annotations

from lmi_server.apis.parameter import Kind, Parameter, both

NOT_DONE: tuple[Parameter, ...] = (
    Parameter("watermark", Kind.FLAG, lmi=("watermark",), neutral=(False,)),
    Parameter("grammar", Kind.OBJECT, lmi=("grammar",), neutral=()),
    Parameter("adapter_id", Kind.TEXT, lmi=("adapter_id",), neutral=("",)),
    Parameter(**both("spaces_between_special_tokens"), kind=Kind.FLAG, neutral=(True,)),
    Parameter("top_logprobs", Kind.INTEGER, completions=("top_logprobs",), neutral=(0,)),
    Parameter("suffix", Kind.TEXT, completions=("suffix",), neutral=("",)),
    Parameter("tools", Kind.ANY, openai=("tools",), neutral=([],)),
    Parameter("tool_choice", Kind.ANY, openai=("tool_choice",), neutral=("none", "auto")),
    Parameter("functions", Kind.ANY, openai=("functions",), neutral=([],)),
    Parameter("function_call", Kind.ANY, openai=("function_call",), neutral=("none", "auto")),
    Parameter("parallel_tool_calls", Kind.FLAG, openai=("parallel_tool_calls",), neutral=(True, False)),
    Parameter("response_format", Kind.OBJECT, openai=("response_format",), neutral=({"type": "text"},)),
    Parameter("modalities", Kind.ANY, openai=("modalities",), neutral=(["text"],)),
    Parameter("audio", Kind.OBJECT, openai=("audio",), neutral=()),
    Parameter("prediction", Kind.OBJECT, openai=("prediction",), neutral=()),
    Parameter("reasoning_effort", Kind.TEXT, openai=("reasoning_effort",), neutral=("none",)),
    Parameter("verbosity", Kind.TEXT, openai=("verbosity",), neutral=("medium",)),
    Parameter("service_tier", Kind.TEXT, openai=("service_tier",), neutral=("auto", "default")),
    Parameter("store", Kind.FLAG, openai=("store",), neutral=(False,)),
    Parameter("moderation", Kind.OBJECT, chat=("moderation",), neutral=()),
    Parameter("web_search_options", Kind.OBJECT, openai=("web_search_options",), neutral=()),
    Parameter("chat_template", Kind.TEXT, openai=("chat_template",), neutral=()),
    Parameter("chat_template_kwargs", Kind.OBJECT, openai=("chat_template_kwargs",), neutral=({},)),
    Parameter("add_generation_prompt", Kind.FLAG, openai=("add_generation_prompt",), neutral=(True,)),
    Parameter("continue_final_message", Kind.FLAG, openai=("continue_final_message",), neutral=(False,)),
    Parameter("documents", Kind.ANY, openai=("documents",), neutral=([],)),
    Parameter("guided_json", Kind.ANY, openai=("guided_json",), neutral=()),
    Parameter("guided_regex", Kind.ANY, openai=("guided_regex",), neutral=()),
    Parameter("structured_outputs", Kind.ANY, openai=("structured_outputs",), neutral=()),
)

# Labels for a service's own bookkeeping: no answer depends on them.
LABELS: tuple[Parameter, ...] = (
    Parameter("user", Kind.TEXT, openai=("user",)),
    Parameter("safety_identifier", Kind.TEXT, openai=("safety_identifier",)),
    Parameter("prompt_cache_key", Kind.TEXT, openai=("prompt_cache_key",)),
    Parameter("prompt_cache_retention", Kind.TEXT, openai=("prompt_cache_retention",)),
    Parameter("prompt_cache_options", Kind.OBJECT, openai=("prompt_cache_options",)),
    Parameter("metadata", Kind.OBJECT, openai=("metadata",)),
)
