"""The configuration from serving.properties and the environment: frozen objects, each part for its owner only.

`LmiConfig` is what the user wrote, 'auto' and unset values still open. `container/explain/resolve` decides these and
makes an `engines.config.EngineConfig` and a `WebConfig`. All defaults of options stand here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The web process's options."""

    max_request_size: int = 64 * 1024 * 1024
    """Bytes of a request body; more is answered 413."""
    throttle_error_http_code: int = 503
    """Status of a refusal for a full queue on `/invocations`; `/v1/*` always answers 429."""
    output_formatter: str | None = None
    """`json`, `jsonlines` or `sse`; None: by the request."""
    predict_timeout: float = 240.0
    """Seconds a whole request may take; under engine=Python from the start of its batch."""
    unknown_parameters: str = "error"
    """`error` refuses an unknown request parameter, `warn` logs and drops it, as LMI does."""
    generation_config: str = "auto"
    """Defaults of sampling parameters on `/v1/*` and with `messages`: `auto`: the model's generation_config.json where
    it has them; `vllm`: the API's own."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The model's location."""

    model_id: str | None = None
    """`option.model_id`: local folder or GGUF file, hub id or s3:// address; None: the folder of
    serving.properties."""
    model_dir: str = "."
    """The folder of serving.properties."""
    revision: str | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    """`auto`: safetensors files. `dummy`: random weights, for which config.json is enough. `stream`: weights are read
    from S3 by each rank. The last two for engine=MPI only."""
    every_file: bool = False
    """Whether all files are fetched, of whatever kind and in all folders: a handler may read any of them."""

    @property
    def local_path(self) -> Path:
        """`model_id` as a path on this machine; a relative one starts at the folder of serving.properties."""
        path = Path(self.model_id or ".")
        with contextlib.suppress(RuntimeError):  # `~user` of an unknown user
            path = path.expanduser()
        return (Path(self.model_dir) / path).resolve()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's options. `container/explain/resolve` decides None and 'auto'."""

    dtype: str = "auto"
    """`auto`, `fp32`, `fp16` or `bf16`."""
    model_impl: str = "auto"
    """`auto`, `lmi` or `transformers`."""
    quantize: str = "none"
    """`none` or `int8`."""
    kv_cache_dtype: str = "auto"
    """`auto`, `fp32`, `bf16`, `fp16` or `int8`."""
    tensor_parallel_degree: int | str = "max"
    """Ranks, or `max`: all GPUs, 1 on a CPU."""
    data_parallel_size: int | None = None
    """Copies of the model; None: as many as fit on the GPUs, within the next two."""
    min_workers: int = 1
    """`minWorkers`: least number of copies."""
    max_workers: int | None = None
    """`maxWorkers`: largest number of copies."""
    rolling_batch: str = "auto"
    """`disable`: dynamic batching; every other value: rolling batching."""
    max_rolling_batch_size: int = 32
    max_rolling_batch_prefill_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    """All tokens of a step. If only one of the two limits is set, it holds for both."""
    batch_scheduler_policy: str | None = None
    scheduling_policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    waiting_steps: int = 0
    max_queued_tokens: int | None = None
    step_trace: str | None = None
    batch_invariant: bool = False
    enforce_eager: bool = False
    paged_attention: bool = True
    enable_prefix_caching: bool | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_gb: float | None = None
    job_queue_size: int = 1000
    batch_size: int = 1
    """Requests in a batch of engine=Python, at most."""
    max_batch_delay: int = 100
    """Milliseconds that a batch of engine=Python may wait to fill."""
    model_loading_timeout: float = 1200.0
    """Seconds until the engine must be ready."""


@dataclass(frozen=True, slots=True)
class UserHandler:
    """A user's own code that answers requests in place of a model's engine."""

    file: str
    """The Python file, in the folder of serving.properties."""
    function: str
    """The function to call; where the file has none of that name, its decorated or toolkit functions are used."""
    options: dict[str, str]
    """All options of the file and the environment, without `option.`; the handler receives them."""
    requirements: str
    """A requirements.txt to be installed for it; empty without one."""
    min_workers: int = 1
    max_workers: int = 1
    max_idle_seconds: int = 60


@dataclass(frozen=True, slots=True)
class LmiConfig:
    """Everything that a user wrote."""

    engine: str = "MPI"
    """`MPI` or `Python`."""
    source: ModelSource = field(default_factory=ModelSource)
    options: EngineOptions = field(default_factory=EngineOptions)
    server: ServerConfig = field(default_factory=ServerConfig)
    handler: UserHandler | None = None
    """With engine=Python: answers requests in place of the engine's own text generation."""
    formatter: UserHandler | None = None
    """Rewrites bodies and answers of text generation; has no function of its own."""
    formatter_roles: tuple[str, ...] = ()
    """`input_formatter`, `output_formatter` or both."""


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What a web process needs, passed as a JSON file."""

    server: ServerConfig
    engine: str
    """The key of `engines.capabilities.CAPABILITIES`."""
    model_name: str
    model_path: str
    """Local folder with tokenizer.json, config.json, generation_config.json, chat template."""
    max_model_len: int
    """Longest prompt plus output, tokens."""
    engines: tuple[tuple[str, str], ...]
    """ZeroMQ address and `StatusBoard` of each copy's engine."""
    prefix_caching: bool = False
    """Whether the engines keep the pages of prompts."""
    tokenizer_path: str = ""
    """Folder of tokenizer.json where that is not `model_path`."""
    formatter_address: str = ""
    """ZeroMQ address of the process that runs a user's formatters; empty without any."""
    formatter_status: str = ""
    """Its `StatusBoard`."""
    formatter_roles: tuple[str, ...] = ()
    """`input_formatter`, `output_formatter` or both."""
    admin_token_digest: str = ""
    """Of the token of `/admin`; without it there are no such routes."""
    settings_lock: str = ""
    """File of the lock under which the settings of several copies are changed."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WebConfig:
        data = json.loads(text)
        return cls(**{**data, "server": ServerConfig(**data["server"])})
