"""Keys of vLLM and LMI are used, noted as without effect, or refused with a reason. None is an unknown key."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.apis.parameters.table import MAX_TOP_LOGPROBS
from lmi_server.properties.options import by_name
from tests.lmi_server.properties.loading import load_text, single_problem

ENGINE_ARGUMENTS = """
additional_config all2all_backend allowed_local_media_path allowed_media_domains async_scheduling block_size
calculate_kv_scales code_revision collect_detailed_traces compilation_config config_format convert
cpu_offload_gb cuda_graph_sizes cudagraph_capture_sizes data_parallel_address data_parallel_backend
data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank data_parallel_rpc_port data_parallel_size
data_parallel_size_local data_parallel_start_rank dbo_decode_token_threshold dbo_prefill_token_threshold
decode_context_parallel_size device disable_async_output_proc disable_cascade_attn disable_chunked_mm_input
disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_log_requests disable_log_stats
disable_mm_preprocessor_cache disable_sliding_window distributed_executor_backend download_dir dtype
enable_auto_tool_choice enable_chunked_prefill enable_dbo enable_eplb enable_expert_parallel
enable_log_requests enable_lora enable_lora_bias enable_prefix_caching enable_prompt_adapter
enable_prompt_embeds enable_reasoning enable_sleep_mode enforce_eager eplb_config eplb_log_balancedness
eplb_step_interval eplb_window_size expert_placement_strategy fully_sharded_loras generation_config
gpu_memory_utilization guided_decoding_backend guided_decoding_disable_additional_properties
guided_decoding_disable_any_whitespace guided_decoding_disable_fallback hf_config_path hf_overrides hf_token
ignore_patterns interleave_mm_strings io_processor_plugin kv_cache_dtype kv_cache_memory_bytes
kv_events_config kv_sharing_fast_prefill kv_transfer_config limit_mm_per_prompt load_format
logits_processor_pattern logits_processors logprobs_mode long_lora_scaling_factors
long_prefill_token_threshold lora_dtype lora_extra_vocab_size max_context_len_to_capture max_cpu_loras
max_cudagraph_capture_size max_logprobs max_long_partial_prefills max_lora_rank max_loras max_model_len
max_num_batched_tokens max_num_partial_prefills max_num_seqs max_parallel_loading_workers
max_prompt_adapter_token max_prompt_adapters max_seq_len_to_capture media_io_kwargs mm_encoder_tp_mode
mm_processor_cache_gb mm_processor_cache_type mm_processor_kwargs model_impl model_loader_extra_config
multi_step_stream_outputs ngram_prompt_lookup_max ngram_prompt_lookup_min num_gpu_blocks_override
num_lookahead_slots num_redundant_experts num_scheduler_steps num_speculative_tokens otlp_traces_endpoint
override_attention_dtype override_generation_config override_neuron_config override_pooler_config
pipeline_parallel_size pooler_config preemption_mode prefix_caching_hash_algo pt_load_map_location
qlora_adapter_name_or_path quantization quantization_param_path ray_workers_use_nsight reasoning_parser
revision rope_scaling rope_theta runner safetensors_load_strategy scheduler_cls scheduler_delay_factor
scheduling_policy seed served_model_name show_hidden_metrics_for_version skip_mm_profiling skip_tokenizer_init
speculative_config speculative_disable_by_batch_size speculative_draft_tensor_parallel_size
speculative_max_model_len speculative_model structured_outputs_config swap_space task tensor_parallel_size
tokenizer tokenizer_mode tokenizer_pool_extra_config tokenizer_pool_size tokenizer_pool_type
tokenizer_revision tool_call_parser tool_parser_plugin trust_remote_code use_tqdm_on_load use_v2_block_manager
video_pruning_rate worker_cls worker_extension_cls worker_use_ray
"""
"""Engine arguments of vLLM 0.5 to 0.11."""
LATER_ENGINE_ARGUMENTS = """
aggregate_engine_logging allow_deprecated_quantization attention_backend attention_config
cp_kv_cache_interleave_size cpu_offload_params cudagraph_metrics dcp_comm_backend dcp_kv_cache_interleave_size
default_mm_loras disable_nccl_for_dp_synchronization distributed_timeout_seconds ec_transfer_config
enable_elastic_ep enable_ep_weight_filter enable_flashinfer_autotune enable_layerwise_nvtx_tracing
enable_logging_iteration_details enable_mamba_cache_stochastic_rounding enable_mfu_metrics enable_mm_embeds
enable_mm_processor_stats enable_return_routed_experts enable_tower_connector_lora fail_on_environ_validation
gdn_prefill_backend ir_op_priority kernel_config kv_cache_dtype_skip_layers kv_cache_metrics
kv_cache_metrics_sample kv_offloading_backend kv_offloading_size language_model_only lora_target_modules
mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds mamba_config
mamba_ssm_cache_dtype master_addr master_port mm_encoder_attn_backend mm_encoder_attn_dtype
mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path mm_encoder_only
mm_shm_cache_max_object_size_mb mm_tensor_ipc model_weights moe_backend nnodes node_rank numa_bind
numa_bind_cpus numa_bind_nodes offload_backend offload_group_size offload_num_in_group offload_params
offload_prefetch_step optimization_level performance_mode prefill_context_parallel_size profiler_config
quantization_config reasoning_config reasoning_parser_plugin renderer_num_workers scheduler_reserve_full_isl
shutdown_timeout specialize_active_lora stream_interval tokens_only ubatch_size weight_transfer_config
"""
"""Engine arguments that vLLM has added since, until May 2026."""
OPTIONS_OF_LMI = """
adapters awq_block_size awq_calib_size awq_format baichuan_model_version batch_size calib_batch_size calib_size
chatglm_model_version data_type draft_model_compiled_path enable_mixed_precision_accumulation enable_saturate_infinity
gpt_model_version group_query_attention lmcache_auto_config lmcache_config_file load_by_shard logits_dtype
max_new_tokens max_output_size multi_query_mode num_checkpoint_workers num_engine_workers q_format rotary_base
rotary_dim rotary_scaling_factor rotary_scaling_type smoothquant_alpha smoothquant_per_channel smoothquant_per_token
trtllm_checkpoint_path use_fp8_context_fmha

checkpoint deepspeed_config_path ds_config enable_cuda_graph low_cpu_mem_usage max_tokens return_tuple
save_mp_checkpoint_path training_mp_size triangular_masking

decoding_strategy max_sparsity max_splits
"""
"""Options of LMI for TensorRT-LLM, AWS Neuron, LMCache and adapters, DeepSpeed, and option.rolling_batch=scheduler."""


@pytest.mark.parametrize("names", [ENGINE_ARGUMENTS, LATER_ENGINE_ARGUMENTS, OPTIONS_OF_LMI])
def test_every_option_of_vllm_and_lmi_is_known(names: str) -> None:
    known = by_name()
    assert [name for name in names.split() if f"option.{name}" not in known] == []


@pytest.mark.parametrize(
    "line",
    [
        "option.low_cpu_mem_usage=true",
        "option.task=text2text-generation",
        "option.pipeline_parallel_degree=1",
        "option.attention_backend=FLASH_ATTN",
        "option.enable_streaming=true",
        "option.nnodes=1",
        "option.batch_size=1",
        "option.swap_space=0",
        "option.cpu_offload_gb=0",
        "option.seed=42",
        "option.served_model_name=my-model",
        "option.max_logprobs=20",
        'option.limit_mm_per_prompt={"image": 0}',
        "option.enable_expert_parallel=true",
        "option.max_seq_len_to_capture=8192",
        "option.disable_log_stats=true",
        "option.guided_decoding_backend=xgrammar",
        "option.num_scheduler_steps=8",
        "option.distributed_executor_backend=mp",
        "option.disable_sliding_window=true",
        "option.compilation_config=3",
        "option.device=auto",
        "option.hf_overrides={}",
        "option.data_parallel_backend=mp",
        "option.enable_sleep_mode=false",
        "option.sessions_path=/dev/shm/sessions",
        "option.use_custom_all_reduce=true",
        "option.num_engine_workers=4",
        "option.enable_cuda_graph=true",
        "option.triangular_masking=true",
        "option.max_sparsity=0.33",
        "chunked_read_timeout=60",
        "chunked_read_timeout=0.5",
    ],
)
def test_keys_without_effect_are_noted(tmp_path: Path, line: str) -> None:
    loaded = load_text(tmp_path, f"{line}\n")
    [note] = loaded.notes
    assert line in note
    assert "accepted without effect: " in note
    assert loaded.config == load_text(tmp_path, "engine=MPI\n").config


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('option.hf_overrides={"rope_theta": 1}', "change it there"),
        ("option.rope_theta=1000000", "read from the model's config.json"),
        ("option.num_gpu_blocks_override=100", "option.kv_cache_gb"),
        ("option.logprobs_mode=processed_logprobs", "as the model computes them"),
        ("option.worker_cls=a.B", "cannot be loaded into this server"),
        ("option.hf_token=hunter2", "set HF_TOKEN"),
        ("cpu.maxWorkers=2", "use maxWorkers"),
        ("option.batch_size=4", "use batch_size for dynamic batching"),
        ("option.max_new_tokens=64", "each request sets its own"),
        ("option.nnodes=2", "all ranks run on this machine"),
        ("option.pipeline_parallel_degree=2", "use option.tensor_parallel_degree"),
        ("option.speculative_draft_model=x", "speculative decoding"),
        ("option.max_tokens=2048", "use option.max_model_len"),
        ("option.triangular_masking=false", "the model's architecture"),
        ("option.deepspeed_config_path=ds.json", "does not include DeepSpeed"),
        ("translator=com.example.X", "Java engines"),
    ],
)
def test_unsupported_keys_are_refused_with_the_reason(tmp_path: Path, line: str, reason: str) -> None:
    problem = single_problem(tmp_path, f"{line}\n")
    assert problem.reason.startswith("known to LMI but not supported: ")
    assert reason in problem.reason
    assert problem.nearest == ""


@pytest.mark.parametrize("value", [str(MAX_TOP_LOGPROBS + 1), "-1"])
def test_max_logprobs_cannot_exceed_the_limit_of_a_request(tmp_path: Path, value: str) -> None:
    problem = single_problem(tmp_path, f"option.max_logprobs={value}\n")
    assert f"accepted: an integer from 0 to {MAX_TOP_LOGPROBS}" in str(problem)


def test_cuda_graphs_can_be_disabled_as_in_tgi(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "engine=MPI\n", {"ENABLE_CUDA_GRAPHS": "false"})
    assert loaded.config.options.enforce_eager is True


@pytest.mark.parametrize(
    ("vllm_name", "expected"), [("half", "fp16"), ("float", "fp32"), ("bfloat16", "bf16")]
)
def test_vllm_dtype_names_are_supported(tmp_path: Path, vllm_name: str, expected: str) -> None:
    assert load_text(tmp_path, f"option.dtype={vllm_name}\n").config.options.dtype == expected
