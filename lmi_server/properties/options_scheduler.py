"""The options table: who runs when, and where keys and values are kept. All of engine=MPI."""

from __future__ import annotations

from functools import partial

from lmi_server.properties.kinds import Bool, Choice, Float, Int, Place
from lmi_server.properties.option import Option

_option = partial(Option, engine="MPI")
_STEPS = Int(0, 1_000_000)

SCHEDULER_OPTIONS: tuple[Option, ...] = (
    _option(
        "option.max_rolling_batch_size",
        Int(1, 4096),
        "Sequences running at once.",
        target="options.max_rolling_batch_size",
        example="32",
    ),
    _option(
        "option.max_rolling_batch_prefill_tokens",
        Int(1, 1_048_576),
        "Prompt tokens in one step, over all sequences; without it as many as option.max_num_batched_tokens.",
        target="options.max_rolling_batch_prefill_tokens",
        example="1024",
    ),
    _option(
        "option.max_num_batched_tokens",
        Int(1, 1_048_576),
        "All tokens in one step; without it as many as option.max_rolling_batch_prefill_tokens, and without either 256"
        " on a CPU, 2048 on a GPU.",
        target="options.max_num_batched_tokens",
        example="1024",
    ),
    _option(
        "option.batch_scheduler_policy",
        Choice(("max_utilization", "guaranteed_no_evict", "static_batch")),
        "max_utilization (without it, when paged) admits while blocks are free, and when they run out the last in order"
        " gives way and is computed again; guaranteed_no_evict (without it, when not paged) admits a request once what"
        " it may need at worst is free; static_batch takes what waits and runs it to its end, to compare with.",
        target="options.batch_scheduler_policy",
        example="max_utilization",
    ),
    _option(
        "option.scheduling_policy",
        Choice(("fcfs", "priority", "fair")),
        "Who is next: first come, first served; the request with the smallest priority; or the tenant (API key or"
        " X-Tenant-Id header) that was served the fewest tokens.",
        target="options.scheduling_policy",
        example="fair",
    ),
    _option(
        "option.enable_chunked_prefill",
        Bool(),
        "true: chunks of prompts ride with decodes; false: decodes wait while whole prompts run.",
        target="options.enable_chunked_prefill",
        example="false",
    ),
    _option(
        "option.waiting_served_ratio",
        Float(0, 1000, includes_low=True),
        "Without chunked prefill: decodes pause once so many requests wait, as a share of the running ones.",
        target="options.waiting_served_ratio",
        example="0.3",
    ),
    _option(
        "option.max_waiting_tokens",
        _STEPS,
        "Without chunked prefill: after so many steps of decodes they pause for any waiting request.",
        target="options.max_waiting_tokens",
        example="20",
    ),
    _option(
        "option.waiting_steps",
        _STEPS,
        "Without chunked prefill: decodes run at least so many steps between two pauses.",
        target="options.waiting_steps",
        example="0",
    ),
    _option(
        "option.max_queued_tokens",
        Int(1, 2**31 - 1),
        "Prompt tokens of the requests that wait for a place, together; a request that goes beyond is refused at once."
        " Without it no bound.",
        target="options.max_queued_tokens",
        example="100000",
    ),
    _option(
        "option.step_trace",
        Place("a path that ends in .jsonl"),
        "File to which every step is written as a line of JSON: arrivals, plan, durations.",
        target="options.step_trace",
        example="steps.jsonl",
    ),
    _option(
        "option.kv_cache_dtype",
        Choice(
            ("auto", "fp32", "bf16", "fp16", "int8"),
            synonyms={"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
            refused=dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "an fp8 cache is not built yet"),
        ),
        "What keys and values are stored as. auto: fp32 on a CPU, the weights' type on a GPU. The others are for CPUs"
        " with native kernels: bf16 and fp16 hold twice as many tokens in the same memory, int8, with a scale for each"
        " head and token, nearly four times as many; attention over long contexts is faster, and answers differ a"
        " little.",
        target="options.kv_cache_dtype",
        example="bf16",
    ),
    _option(
        "option.batch_invariant",
        Bool(),
        "Has no effect. With native CPU kernels a request's logits are always bit-identical in any batch, however its"
        " prompt is chunked, recomputed or found in the prefix cache. Where torch serves instead, they are not.",
        target="options.batch_invariant",
        example="true",
    ),
    _option(
        "option.enforce_eager",
        Bool(),
        "true launches the kernels of a decode one by one; without it decodes are replayed as CUDA graphs. On a CPU"
        " there are none.",
        target="options.enforce_eager",
        example="true",
    ),
    _option(
        "option.paged_attention",
        Bool(),
        "true hands KV blocks out as tokens come; false takes one consecutive run at admission.",
        target="options.paged_attention",
        example="true",
    ),
    _option(
        "option.enable_prefix_caching",
        Bool(),
        "Keep full KV blocks for prompts that begin alike; on without it where attention is paged.",
        target="options.enable_prefix_caching",
        example="false",
    ),
    _option(
        "option.block_size",
        Int(1, 1024, power_of_two=True),
        "Tokens in a KV block; 16 without it.",
        target="options.block_size",
        example="16",
    ),
    _option(
        "option.gpu_memory_utilization",
        Float(0, 1),
        "Share of each GPU's memory for weights, activations and KV cache.",
        target="options.gpu_memory_utilization",
        example="0.85",
    ),
    _option(
        "option.kv_cache_gb",
        Float(0, 65536, unit="GiB"),
        "Size of the KV cache over all ranks; else, on a CPU, the smaller of 4 and a quarter of free memory.",
        target="options.kv_cache_gb",
        example="2",
    ),
)
