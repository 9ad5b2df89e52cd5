"""transformers' continuous batching (`generate_batch`), on the same shapes, weights and requests.

`generate_batch` gives all requests one output length; its manager, which it is made of, takes one for each, and is what
runs here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from engines.models.dummy_weights import DummyWeights
from tests.gpu.context import Context
from tests.gpu.timing import Deadline
from tests.gpu.traces import Trace

_CPU_PAGE = 32


@dataclass(frozen=True, slots=True)
class PeerRun:
    num_tokens: int
    seconds: float
    done: bool
    """False: time was over; tokens are those of the requests that had ended."""

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Flags:
    """What can be chosen; the best on a short run is what is compared with."""

    name: str
    attention: str
    cuda_graphs: bool | None
    asynchronous: bool | None


FLAGS = (
    Flags("as it decides itself, sdpa", "sdpa", None, None),
    Flags("sdpa, asynchronous", "sdpa", False, True),
    Flags("sdpa, CUDA graphs, asynchronous", "sdpa", True, True),
)
"""With sdpa it chooses a flash kernel itself where one is installed."""


def load(config: dict[str, Any], context: Context) -> Any:
    """The model with the random weights that the engine makes for the same names."""
    shape = {
        name: value for name, value in config.items() if name not in ("architectures", "model_type", "dtype")
    }
    # The engine turns these off for itself, which costs speed; they stand for the whole process.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    described = AutoConfig.for_model(config["model_type"], **shape)
    dtype = torch.bfloat16 if context.device.type == "cuda" else torch.float32
    with torch.device(context.device):
        model = AutoModelForCausalLM.from_config(described, dtype=dtype, attn_implementation="sdpa")
    weights = DummyWeights(config["dtype"], dtype, dtype, context.device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.whole(name, tuple(parameter.shape)))
    weights.close()
    return model.eval()


def run(model: Any, trace: Trace, flags: Flags, deadline: Deadline) -> PeerRun:
    """All requests at once, greedy, to their lengths; warm-up is not counted.

    Raises:
        RuntimeError: it stopped, or a request failed.
    """
    model.set_attn_implementation(flags.attention)
    most = max(trace.outputs)
    batching = ContinuousBatchingConfig(
        **_sizes(model, trace),
        max_requests_per_batch=len(trace.prompts),
        allow_block_sharing=False,
        use_cuda_graph=flags.cuda_graphs,
        use_async_batching=flags.asynchronous,
    )
    generation = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=-1, pad_token_id=0)
    lengths: dict[str, int] = {}
    tokens = 0
    # The context that `generate_batch` opens.
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, timeout=30, warmup=True
    ) as manager:
        started = time.perf_counter()
        for prompt, count in zip(trace.prompts, trace.outputs, strict=True):
            request_id = manager.add_request(list(prompt), max_new_tokens=count, eos_token_id=-1)
            lengths[request_id] = count
        while lengths and not deadline.passed:
            output = manager.get_result(timeout=1)
            if output is None:
                if not manager.is_running():
                    raise RuntimeError("transformers' generation thread has ended")
                continue
            if not output.is_finished():
                continue
            if output.error is not None:
                raise RuntimeError(f"transformers: {output.error}")
            wanted = lengths.pop(output.request_id)
            if len(output.generated_tokens) != wanted:
                raise RuntimeError(f"transformers gave {len(output.generated_tokens)} tokens of {wanted}")
            tokens += wanted
        seconds = time.perf_counter() - started
    return PeerRun(tokens, seconds, not lengths)


def _sizes(model: Any, trace: Trace) -> dict[str, int]:
    """On a GPU it sizes its cache and its steps itself, from what is free."""
    if model.device.type == "cuda":
        return {}
    longest = -(-trace.longest // _CPU_PAGE) + 1
    names = {each.name for each in fields(ContinuousBatchingConfig)}
    page = "page_size" if "page_size" in names else "block_size"
    return {page: _CPU_PAGE, "num_blocks": longest * len(trace.prompts), "max_batch_tokens": 512}
