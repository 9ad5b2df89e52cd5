"""The options table: vLLM's engine arguments, which LMI passes through as `option.*`, that no field here takes.

Accepted with a note where ignoring the value changes neither answers nor what the server holds; else refused, but for
the values that say what the server does anyway. Those of LoRA, speculation, tools and offloading stand in
`options_backend.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lmi_server.properties.option import Option, ignored, refused
from lmi_server.values.base import Scalar, ValueType
from lmi_server.values.scalars import Bool, Float, Int, Text

_BOOL = Bool()
_COUNT = Int(0, 2**31 - 1)
_NUMBER = Float(-1e12, 1e12)
_TEXT = Text()

_ONE_COPY = "it only matters with option.data_parallel_size above 1, which is refused"
_EXPERTS = "ranks of engine=MPI hold a slice of every expert, so all have the same work"
_TEXT_ONLY = "prompts are text; images, audio and video are not served"
_GRAMMAR = "requests that ask for a grammar are refused, so there is no back end to choose"
_LOADERS = "weights are read from safetensors files, by one loader"
_STEPS = "it tunes another scheduler; answers are the same without it"
_RANKS = "ranks are processes on this machine, started by mpirun and joined by MPI or NCCL"
_GRAPHS = "the server itself chooses which decodes are captured as CUDA graphs; option.enforce_eager=true does without"
_KERNELS = "kernels are chosen for the device and the step; there is nothing to switch off"
_TOKENIZERS = "texts are tokenized in the web processes"
_LOGS = "statistics are at /metrics, and a request's log line never shows its prompt"
_PREFIXES = "prefixes are found by a keyed hash, and then compared token by token"
_NEURON = "it configures AWS Neuron devices"
_TRACES = "no traces are sent; every request has its log line, and /metrics the sums"
_SPECULATION = "it only matters with option.speculative_model, which is refused"

_IGNORED: Mapping[str, tuple[tuple[str, ValueType, str], ...]] = {
    "a request without a seed is drawn anew each time; parameters.seed repeats an answer": (
        ("seed", Int(-(2**63), 2**63 - 1), "Seed of the engine's own random numbers."),
    ),
    "requests may ask for up to 20": (
        ("max_logprobs", Int(0, 20), "Log-probabilities that a request may ask for with each token."),
    ),
    _TEXT_ONLY: (
        ("limit_mm_per_prompt", _TEXT, "Images, audios, videos a prompt."),
        ("mm_processor_kwargs", _TEXT, "Settings of the image processor, JSON."),
        ("media_io_kwargs", _TEXT, "Settings for reading media, JSON."),
        ("interleave_mm_strings", _BOOL, "Images among the text."),
        ("disable_mm_preprocessor_cache", _BOOL, "Do without a cache of processed images."),
        ("mm_processor_cache_gb", _NUMBER, "Cache of processed images, GiB."),
        ("mm_processor_cache_type", _TEXT, "Kind of that cache."),
        ("mm_encoder_tp_mode", _TEXT, "How the image encoder is split."),
        ("skip_mm_profiling", _BOOL, "Do not measure the image encoder."),
        ("disable_chunked_mm_input", _BOOL, "Do not cut images."),
        ("video_pruning_rate", _NUMBER, "Share of video that is dropped."),
        ("allowed_local_media_path", _TEXT, "Folder that requests may name files of."),
        ("allowed_media_domains", _TEXT, "Hosts that requests may name files of."),
    ),
    _EXPERTS: (
        ("enable_expert_parallel", _BOOL, "Whole experts on ranks."),
        ("expert_placement_strategy", _TEXT, "Which experts on which rank."),
        ("all2all_backend", _TEXT, "How tokens reach experts."),
        ("enable_eplb", _BOOL, "Balance experts over ranks."),
        ("eplb_config", _TEXT, "Balance of experts, JSON."),
        ("eplb_window_size", _COUNT, "Balance of experts."),
        ("eplb_step_interval", _COUNT, "Balance of experts."),
        ("eplb_log_balancedness", _BOOL, "Log the balance of experts."),
        ("num_redundant_experts", _COUNT, "Copies of experts."),
    ),
    _GRAPHS: (
        ("max_seq_len_to_capture", _COUNT, "Longest sequence in a CUDA graph."),
        ("max_context_len_to_capture", _COUNT, "Old name of option.max_seq_len_to_capture."),
        ("cuda_graph_sizes", _TEXT, "Batch sizes of CUDA graphs."),
        ("cudagraph_capture_sizes", _TEXT, "Batch sizes of CUDA graphs."),
        ("max_cudagraph_capture_size", _COUNT, "Largest batch of a CUDA graph."),
        ("compilation_config", _TEXT, "torch.compile and CUDA graphs, JSON."),
    ),
    _KERNELS: (
        ("disable_cascade_attn", _BOOL, "Do without cascade attention."),
        ("disable_custom_all_reduce", _BOOL, "Do without vLLM's all-reduce kernel."),
        ("model_impl", _TEXT, "Whose implementation of the model."),
        ("kv_sharing_fast_prefill", _BOOL, "Skip layers that share keys."),
    ),
    _STEPS: (
        ("num_scheduler_steps", _COUNT, "Steps planned at once."),
        ("multi_step_stream_outputs", _BOOL, "Stream each of such steps."),
        ("disable_async_output_proc", _BOOL, "Wait for a step before the next is planned."),
        ("async_scheduling", _BOOL, "Plan a step while the last one runs."),
        ("scheduler_delay_factor", _NUMBER, "Wait before prompts are admitted."),
        ("max_num_partial_prefills", _COUNT, "Prompts cut at once."),
        ("max_long_partial_prefills", _COUNT, "Long prompts cut at once."),
        ("long_prefill_token_threshold", _NUMBER, "When a prompt is long."),
        ("preemption_mode", _TEXT, "Recompute or swap."),
        ("use_v2_block_manager", _BOOL, "Which block manager."),
        ("disable_hybrid_kv_cache_manager", _BOOL, "One cache size for all layers."),
        ("enable_dbo", _BOOL, "Two half batches at once."),
        ("dbo_decode_token_threshold", _COUNT, "From which size on."),
        ("dbo_prefill_token_threshold", _COUNT, "From which size on."),
    ),
    _PREFIXES: (("prefix_caching_hash_algo", _TEXT, "Hash of prefixes."),),
    "it only matters with an fp8 option.kv_cache_dtype, which is refused": (
        ("calculate_kv_scales", _BOOL, "Measure scales of an fp8 cache."),
    ),
    _RANKS: (
        ("distributed_executor_backend", _TEXT, "How ranks are started."),
        ("worker_use_ray", _BOOL, "Ranks under Ray."),
        ("engine_use_ray", _BOOL, "Engine under Ray."),
        ("ray_workers_use_nsight", _BOOL, "Profile ranks under Ray."),
        ("max_parallel_loading_workers", _COUNT, "Ranks that load at once."),
    ),
    _ONE_COPY: (
        ("data_parallel_rank", _COUNT, "This copy's number."),
        ("data_parallel_start_rank", _COUNT, "First copy's number."),
        ("data_parallel_size_local", _COUNT, "Copies on this machine."),
        ("data_parallel_address", _TEXT, "Where copies meet."),
        ("data_parallel_rpc_port", _COUNT, "Where copies meet."),
        ("data_parallel_backend", _TEXT, "How copies are started."),
        ("data_parallel_hybrid_lb", _BOOL, "Who spreads requests."),
        ("data_parallel_external_lb", _BOOL, "Who spreads requests."),
    ),
    _LOADERS: (
        ("model_loader_extra_config", _TEXT, "Settings of a loader, JSON."),
        ("ignore_patterns", _TEXT, "Files that are not downloaded."),
        ("safetensors_load_strategy", _TEXT, "How files are read."),
        ("pt_load_map_location", _TEXT, "Where pickles are loaded."),
        ("use_tqdm_on_load", _BOOL, "Progress bar."),
    ),
    "models are kept in LMI_CACHE_DIR": (("download_dir", _TEXT, "Folder for downloads."),),
    _TOKENIZERS: (
        ("tokenizer_pool_size", _COUNT, "Processes that tokenize."),
        ("tokenizer_pool_type", _TEXT, "Kind of such processes."),
        ("tokenizer_pool_extra_config", _TEXT, "Their settings, JSON."),
    ),
    _GRAMMAR: (
        ("guided_decoding_backend", _TEXT, "Who enforces grammars."),
        ("guided_decoding_disable_fallback", _BOOL, "No second back end."),
        ("guided_decoding_disable_any_whitespace", _BOOL, "White space in JSON."),
        ("guided_decoding_disable_additional_properties", _BOOL, "Further keys in JSON."),
        ("structured_outputs_config", _TEXT, "Who enforces grammars, JSON."),
    ),
    "requests cannot name logits processors": (
        ("logits_processor_pattern", _TEXT, "Which ones a request may name."),
    ),
    _LOGS: (
        ("disable_log_stats", _BOOL, "Do not log statistics."),
        ("disable_log_requests", _BOOL, "Do not log requests."),
        ("enable_log_requests", _BOOL, "Log requests."),
        ("max_log_len", _NUMBER, "Characters of a prompt in the log."),
        ("show_hidden_metrics_for_version", _TEXT, "Old metrics."),
    ),
    _TRACES: (
        ("otlp_traces_endpoint", _TEXT, "Where traces go."),
        ("collect_detailed_traces", _TEXT, "What is traced."),
    ),
    "it only matters with option.enable_prompt_adapter=true, which is refused": (
        ("max_prompt_adapters", _COUNT, "Prompt adapters in a batch."),
        ("max_prompt_adapter_token", _COUNT, "Their longest."),
    ),
    _NEURON: (("override_neuron_config", _TEXT, "Settings of AWS Neuron, JSON."),),
    _SPECULATION: (
        ("num_speculative_tokens", _COUNT, "Drafted tokens."),
        ("num_lookahead_slots", _COUNT, "Places for drafted tokens."),
        ("speculative_draft_tensor_parallel_size", _COUNT, "Ranks of the draft model."),
        ("speculative_max_model_len", _COUNT, "Longest sequence that is drafted for."),
        ("speculative_disable_by_batch_size", _COUNT, "Largest batch that is drafted for."),
        ("ngram_prompt_lookup_max", _COUNT, "Longest match in the prompt."),
        ("ngram_prompt_lookup_min", _COUNT, "Shortest match in the prompt."),
    ),
}

_CONFIG = "config.json of the model decides; change it there"
_CODE = "classes of vLLM's own cannot be loaded into this server"
_GENERATES = "only text generation is served"
_OWN_TOKENIZER = "the tokenizer comes with the model, in option.revision"
_COPIES = "one copy of the model is served; several copies are not built yet"
_ADAPTERS = "adapters are not built yet"
_TRANSFER = "the KV cache is not shared with other servers"
_FP8 = "keys and values are kept in the weights' type (on a CPU in fp32); an fp8 cache is not built yet"
_DEVICE = "the server uses the GPUs there are; an empty CUDA_VISIBLE_DEVICES leaves the CPU"

_REFUSED: tuple[tuple[str, ValueType, str, str, tuple[Scalar, ...]], ...] = (
    ("quantization_param_path", _TEXT, "Scales of an fp8 cache.", _FP8, ()),
    ("kv_cache_memory_bytes", _COUNT, "Size of the KV cache.", "use option.kv_cache_gb, over all ranks", ()),
    ("num_gpu_blocks_override", _COUNT, "Blocks of the KV cache.", "use option.kv_cache_gb", ()),
    ("kv_transfer_config", _TEXT, "KV cache from another server, JSON.", _TRANSFER, ("{}",)),
    ("kv_events_config", _TEXT, "Events of the KV cache, JSON.", _TRANSFER, ("{}",)),
    ("decode_context_parallel_size", _COUNT, "Ranks that share a sequence.", "it is not built yet", (1,)),
    ("data_parallel_size", _COUNT, "Copies of the model.", _COPIES, (1,)),
    ("hf_overrides", _TEXT, "Changes of config.json, JSON.", _CONFIG, ("{}",)),
    ("hf_config_path", _TEXT, "Another config.json.", _CONFIG, ()),
    ("config_format", _TEXT, "Form of the configuration.", _CONFIG, ("auto", "hf")),
    ("rope_scaling", _TEXT, "Stretched positions, JSON.", _CONFIG, ("{}", "null")),
    ("rope_theta", _NUMBER, "Base of rotary positions.", _CONFIG, ()),
    (
        "override_attention_dtype",
        _TEXT,
        "Type of attention's products.",
        "products keep the weights' type",
        (),
    ),
    (
        *("override_generation_config", _TEXT, "Defaults of sampling parameters, JSON."),
        *("requests give them, or the model's generation_config.json (option.generation_config)", ("{}",)),
    ),
    ("logprobs_mode", _TEXT, "Which values are reported.", "they are those of the model", ("raw_logprobs",)),
    ("logits_processors", _TEXT, "Classes that change logits.", _CODE, ("[]",)),
    ("enable_prompt_embeds", _BOOL, "Prompts as embeddings.", "prompts are text or token ids", (False,)),
    ("skip_tokenizer_init", _BOOL, "Do without a tokenizer.", "texts need one", (False,)),
    ("tokenizer_revision", _TEXT, "Version of the tokenizer.", _OWN_TOKENIZER, ()),
    ("code_revision", _TEXT, "Version of the model's code.", "it comes in option.revision", ()),
    ("runner", _TEXT, "Kind of model.", _GENERATES, ("auto", "generate")),
    ("convert", _TEXT, "Use as another kind of model.", _GENERATES, ("auto", "none")),
    ("pooler_config", _TEXT, "Embeddings, JSON.", _GENERATES, ("{}",)),
    ("override_pooler_config", _TEXT, "Embeddings, JSON.", _GENERATES, ("{}",)),
    ("io_processor_plugin", _TEXT, "Plug-in for inputs.", _CODE, ()),
    ("worker_cls", _TEXT, "Class of a rank.", _CODE, ("auto",)),
    ("worker_extension_cls", _TEXT, "Class added to a rank.", _CODE, ()),
    ("scheduler_cls", _TEXT, "Class of the scheduler.", _CODE, ()),
    ("additional_config", _TEXT, "Settings of a plug-in, JSON.", _CODE, ("{}",)),
    ("device", _TEXT, "Kind of device.", _DEVICE, ("auto",)),
    ("enable_sleep_mode", _BOOL, "Give memory back when asked.", "it is not built yet", (False,)),
    ("return_tokens_as_token_ids", _BOOL, "token_id:N as tokens.", "tokens are shown as text", (False,)),
    ("response_role", _TEXT, "Role of chat answers.", "it is assistant", ("assistant",)),
    ("enable_prompt_adapter", _BOOL, "Prompt adapters.", _ADAPTERS, (False,)),
    ("qlora_adapter_name_or_path", _TEXT, "QLoRA adapter.", _ADAPTERS, ()),
    ("speculative_model", _TEXT, "Draft model.", "speculative decoding is not built yet", ()),
)

VLLM_KNOWN: tuple[Option, ...] = (
    *(
        ignored(f"option.{name}", kind, reason, help=what)
        for reason, keys in _IGNORED.items()
        for name, kind, what in keys
    ),
    *(
        refused(f"option.{name}", kind, reason, *neutral, help=what)
        for name, kind, what, reason, neutral in _REFUSED
    ),
    refused(
        "option.hf_token",
        _TEXT,
        "set HF_TOKEN where the server is started",
        help="Access token of the hub.",
        secret=True,
    ),
)
