"""OpenVINO GenAI's ContinuousBatchingPipeline."""

from __future__ import annotations

from typing import Any

import openvino_genai
from loop import ClosedLoop, Request, serve


class Pipeline:
    """One pipeline. Its plug-in settings (`properties`) set the precisions."""

    def __init__(self, model: str, max_sequences: int, cache_gb: int, properties: dict[str, str]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.max_num_seqs = max_sequences
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties, {})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._num_requests = 0
        self.versions = {"openvino-genai": openvino_genai.__version__}

    def run(self, loop: ClosedLoop) -> None:
        live: list[tuple[Any, Request]] = []
        while True:
            live += [(self._add(request), request) for request in loop.due()]
            if not live:
                return
            self._pipeline.step()
            now = loop.now()
            live = [
                (handle, request) for handle, request in live if not self._read(handle, request, loop, now)
            ]

    def _add(self, request: Request) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.wanted
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = self._tokenizer.encode(request.prompt).input_ids
        request.prompt_tokens = ids.shape[1]
        self._num_requests += 1
        return self._pipeline.add_request(self._num_requests, ids, config)

    def _read(self, handle: Any, request: Request, loop: ClosedLoop, now: float) -> bool:
        """Read the new tokens. Returns True if the response is complete."""
        while handle.can_read():
            for output in handle.read().values():
                request.token_ids += output.generated_ids
                request.token_times += [now] * len(output.generated_ids)
        if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
            return False
        loop.answered(request, now)
        return True


if __name__ == "__main__":
    serve(Pipeline)
