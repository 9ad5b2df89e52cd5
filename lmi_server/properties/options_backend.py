"""The options table: `option.*` keys of LMI's back ends (vLLM, lmi-dist, TensorRT-LLM) that no field here takes."""

from __future__ import annotations

from lmi_server.properties.option import Option, ignored, refused
from lmi_server.values.scalars import Bool, Choice, Float, Int, Text

_COUNT = Int(0, 2**31 - 1)
_SHARE = Float(0, 1, above=True)
_TEXT = Text()
_LORA = "adapters are not built yet"
_NO_LORA = "it only matters with option.enable_lora=true, which is refused"
_SPEC = "speculative decoding is not built yet"
_TOOLS = "tool calls and reasoning parsers are not built yet"
_TRT = "a TensorRT-LLM setting"
_NEURON = "an AWS Neuron setting"
_GIB = Float(0, 1e6, unit="GiB")

BACKEND_KNOWN: tuple[Option, ...] = (
    refused("option.tokenizer", _TEXT, "the model's own tokenizer is used", help="Another tokenizer."),
    refused(
        "option.tokenizer_mode",
        _TEXT,
        "the model's tokenizer.json is used",
        "auto",
        help="Kind of tokenizer.",
        lmi_default="auto",
    ),
    ignored(
        "option.swap_space",
        _GIB,
        "a preempted sequence is computed again, not swapped out",
        help="Swap space, GiB.",
    ),
    ignored(
        "option.disable_sliding_window",
        Bool(),
        "engine=MPI serves sequences up to the model's sliding window, where both are the same; transformers, under"
        " engine=Python, follows the model's configuration",
        help="Full attention, and no sequence longer than the sliding window.",
    ),
    refused(
        "option.cpu_offload_gb_per_gpu",
        _GIB,
        "weights are not kept outside the GPU",
        0.0,
        help="Weights kept in main memory, GiB.",
        aliases=("option.cpu_offload_gb",),
        lmi_default="0",
    ),
    refused(
        "option.decoding_strategy",
        Choice(("greedy", "sample", "contrastive")),
        "requests say how to decode (parameters.do_sample, temperature)",
        "greedy",
        help="Decoding for all requests.",
        lmi_default="greedy",
    ),
    refused("option.enable_lora", Bool(), _LORA, False, help="LoRA adapters.", lmi_default="false"),
    *(
        ignored(f"option.{name}", kind, _NO_LORA, help=what, lmi_default=default)
        for name, kind, what, default in (
            ("max_loras", _COUNT, "Adapters in a batch.", "4"),
            ("max_lora_rank", _COUNT, "Largest rank.", "16"),
            ("max_cpu_loras", _COUNT, "Adapters in main memory.", ""),
            ("lora_extra_vocab_size", _COUNT, "Added tokens.", "256"),
            ("fully_sharded_loras", Bool(), "Shard adapters.", "false"),
            ("long_lora_scaling_factors", _TEXT, "Scaling factors.", ""),
            ("lora_dtype", _TEXT, "Adapter precision.", "auto"),
            ("enable_lora_bias", Bool(), "Adapters with biases.", "false"),
        )
    ),
    refused("option.speculative_draft_model", _TEXT, _SPEC, help="Draft model."),
    refused("option.speculative_config", _TEXT, _SPEC, help="Speculative decoding, JSON."),
    *(
        ignored(
            f"option.{name}",
            kind,
            "it only matters with option.speculative_draft_model, which is refused",
            help=what,
            lmi_default=default,
        )
        for name, kind, what, default in (
            ("speculative_length", _COUNT, "Drafted tokens.", "5"),
            ("draft_model_tp_size", _COUNT, "Ranks of the draft model.", "1"),
            ("record_acceptance_rate", Bool(), "Log the acceptance rate.", "false"),
        )
    ),
    refused("option.enable_auto_tool_choice", Bool(), _TOOLS, False, help="Tool calls.", lmi_default="false"),
    refused("option.tool_call_parser", _TEXT, _TOOLS, help="Tool-call parser."),
    refused("option.enable_reasoning", Bool(), _TOOLS, False, help="Reasoning text.", lmi_default="false"),
    refused("option.tool_parser_plugin", _TEXT, _TOOLS, help="File with a tool-call parser."),
    refused("option.reasoning_parser", _TEXT, _TOOLS, help="Reasoning parser."),
    refused(
        "option.chat_template", _TEXT, "the model's own chat template is used", help="Another chat template."
    ),
    refused(
        "option.chat_template_content_format",
        Choice(("auto", "string", "openai")),
        "contents are given to the template as strings",
        "auto",
        "string",
        help="Form of message contents.",
        lmi_default="auto",
    ),
    ignored(
        "option.served_model_name",
        _TEXT,
        "requests may use any name and get it back; /v1/models lists lmi",
        help="Model name in replies.",
        lmi_default="lmi",
    ),
    refused("option.max_input_len", _COUNT, f"{_TRT}; use option.max_model_len", help="Longest prompt."),
    refused("option.max_output_len", _COUNT, f"{_TRT}; use option.max_model_len", help="Longest output."),
    refused(
        "option.max_num_tokens",
        _COUNT,
        f"{_TRT}; use option.max_num_batched_tokens",
        help="Tokens a step.",
        lmi_default="16384",
    ),
    refused(
        "option.kv_cache_free_gpu_mem_fraction",
        _SHARE,
        f"{_TRT}; use option.gpu_memory_utilization",
        help="Share of memory for KV.",
    ),
    refused(
        "option.enable_kv_cache_reuse",
        Bool(),
        f"{_TRT}; use option.enable_prefix_caching",
        False,
        help="Prefix caching.",
        lmi_default="false",
    ),
    refused(
        "option.tokens_per_block", _COUNT, f"{_TRT}; use option.block_size", help="Tokens in a KV block."
    ),
    refused(
        "option.max_num_sequences",
        _COUNT,
        f"{_TRT}; use option.max_rolling_batch_size",
        help="Sequences running at once.",
    ),
    *(
        ignored(f"option.{name}", _TEXT, f"{_TRT} of speed alone", help=what)
        for name, what in (
            ("enable_trt_overlap", "Overlap steps."),
            ("multi_block_mode", "Attention kernel."),
            ("use_custom_all_reduce", "All-reduce kernel."),
            ("use_fused_mlp", "MLP kernel."),
        )
    ),
    refused("option.n_positions", _COUNT, f"{_NEURON}; use option.max_model_len", help="Longest sequence."),
    *(
        ignored(f"option.{name}", _TEXT, _NEURON, help=what)
        for name, what in (
            ("amp", "Precision."),
            ("unroll", "Compilation."),
            ("neuron_optimize_level", "Compilation."),
            ("context_length_estimate", "Compiled lengths."),
            ("compiled_graph_path", "Folder of compiled graphs."),
            ("load_split_model", "Split weights."),
        )
    ),
)
