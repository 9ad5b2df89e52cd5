"""`python -m tests.gpu.peer MODEL FILE`: run transformers' continuous batching (`generate_batch`) on the same shapes,
weights and requests as our engine. It has a process of its own, so that its imports and settings do not affect our
engine. FILE is JSON (`Findings`), rewritten after each run.

`generate_batch` gives all requests the same output length. This module uses its manager, which takes one per request.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from engines.models.dummy_weights import DummyWeights
from tests.gpu.engine import free
from tests.gpu.peer_findings import REQUEST_COUNTS, Findings, PeerRun
from tests.gpu.shapes import real
from tests.gpu.timing import Deadline
from tests.gpu.traces import Trace, tiny, w6

_CPU_PAGE = 32
_PILOT_SECONDS = 20.0
_SECONDS = 75.0
"""Time limit of the run itself."""
_END_SECONDS = 35.0
"""transformers waits up to 30 s for requests that have not finished."""
_MARGIN = 2.0
"""Expected duration of the run itself over that of a short run with the same tokens per second: contexts get longer."""


@dataclass(frozen=True, slots=True)
class Flags:
    """Options of the peer. The comparison uses the options that are fastest in a short run."""

    name: str
    cuda_graphs: bool | None
    asynchronous: bool | None


FLAGS = (
    Flags("sdpa, default settings", None, None),
    Flags("sdpa, CUDA graphs, asynchronous", True, True),
)
"""With sdpa transformers uses a flash kernel if one is installed."""


def load(config: dict[str, Any], device: torch.device) -> Any:
    """Return the model with the random weights that the engine makes for the same parameter names."""
    shape = {
        name: value for name, value in config.items() if name not in ("architectures", "model_type", "dtype")
    }
    model_config = AutoConfig.for_model(config["model_type"], **shape)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(model_config, dtype=dtype, attn_implementation="sdpa")
    weights = DummyWeights(config["dtype"], dtype, dtype, device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.tensor(name, tuple(parameter.shape)))
    weights.close()
    return model.eval()


def run(model: Any, trace: Trace, flags: Flags, deadline: Deadline) -> PeerRun:
    """Run all requests at once, greedily and to their full lengths. Warm-up is not timed.

    Raises:
        RuntimeError: transformers stopped, or a request failed.
    """
    model.set_attn_implementation("sdpa")
    max_new_tokens = max(trace.outputs)
    batching = ContinuousBatchingConfig(
        **_sizes(model, trace),
        max_requests_per_batch=len(trace.prompts),
        allow_block_sharing=False,
        use_cuda_graph=flags.cuda_graphs,
        use_async_batching=flags.asynchronous,
    )
    generation = GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    lengths: dict[str, int] = {}
    tokens = 0
    # The context manager that `generate_batch` uses.
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
                    raise RuntimeError("transformers' generation thread has stopped")
                continue
            if not output.is_finished():
                continue
            if output.error is not None:
                raise RuntimeError(f"transformers: {output.error}")
            expected = lengths.pop(output.request_id)
            if len(output.generated_tokens) != expected:
                raise RuntimeError(
                    f"transformers returned {len(output.generated_tokens)} of {expected} tokens"
                )
            tokens += expected
        seconds = time.perf_counter() - started
    return PeerRun(tokens, seconds, not lengths)


def _sizes(model: Any, trace: Trace) -> dict[str, int]:
    """Return sizes for a CPU. On a GPU transformers sizes its cache and its steps by the free memory."""
    if model.device.type == "cuda":
        return {}
    longest = -(-trace.longest // _CPU_PAGE) + 1
    names = {each.name for each in fields(ContinuousBatchingConfig)}
    page = "page_size" if "page_size" in names else "block_size"
    return {page: _CPU_PAGE, "num_blocks": longest * len(trace.prompts), "max_batch_tokens": 512}


def compare(name: str, file: Path, seconds: float, smoke: bool) -> None:
    """Select the best flags by a short run of each, then run as much of the trace as time allows."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config, deadline, findings = real(name, smoke), Deadline(seconds), Findings()
    trace = tiny(config["vocab_size"]) if smoke else w6()
    findings.write(file)
    model = load(config, device)
    pilot = Trace(trace.prompts[:32], tuple(min(count, 24) for count in trace.outputs[:32]))
    best, speed = FLAGS[0], 0.0
    for flags in FLAGS[:1] if smoke else FLAGS:
        # The run itself needs most of the time.
        if findings.pilots and deadline.left < 0.6 * seconds:
            break
        try:
            tokens_per_second = run(model, pilot, flags, Deadline(_PILOT_SECONDS)).tokens_per_second
        except Exception as error:
            traceback.print_exc()
            findings.errors[flags.name] = f"{type(error).__name__}: {error}"[:200]
            findings.write(file)
            continue
        findings.pilots[flags.name] = tokens_per_second
        print(f"{flags.name}: {tokens_per_second:.0f} tokens/s in a short run", flush=True)
        if tokens_per_second > speed:
            best, speed = flags, tokens_per_second
        findings.write(file)
        free(device)
    if not findings.pilots:
        return
    left = min(_SECONDS, deadline.left - _END_SECONDS)
    counts = sorted({min(count, len(trace.outputs)) for count in REQUEST_COUNTS}, reverse=True)
    count = next(
        (n for n in counts if _MARGIN * trace.first(n).num_output_tokens <= speed * left), counts[-1]
    )
    findings.flags, findings.num_requests = best.name, count
    findings.run = run(model, trace.first(count), best, Deadline(left))
    findings.write(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    compare(arguments.model, arguments.file, arguments.seconds, arguments.smoke)
    sys.exit(0)
