"""transformers' own continuous batching, which `generate_batch` uses."""

from __future__ import annotations

import torch
import transformers
from loop import ClosedLoop, Request, serve

_RESULT_SECONDS = 600
_NO_TOKEN = -1


class ContinuousBatching:
    """One model with its batching manager."""

    def __init__(self, model: str, batch: int, page: int, blocks: int, step_tokens: int) -> None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self._manager = loaded.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                max_new_tokens=256,
                do_sample=False,
                eos_token_id=_NO_TOKEN,
                pad_token_id=self._tokenizer.pad_token_id,
            ),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=page,
                num_blocks=blocks,
                max_batch_tokens=step_tokens,
                max_requests_per_batch=batch,
                allow_block_sharing=False,
            ),
        )
        self._manager.start()
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def run(self, loop: ClosedLoop) -> None:
        live: dict[str, Request] = {}
        while True:
            for request in loop.due():
                ids = self._tokenizer(request.prompt).input_ids
                request.prompt_tokens = len(ids)
                live[
                    self._manager.add_request(
                        ids, max_new_tokens=request.wanted, record_timestamps=True, eos_token_id=_NO_TOKEN
                    )
                ] = request
            if not live:
                return
            result = self._manager.get_result(timeout=_RESULT_SECONDS)
            if result is None:
                raise TimeoutError(f"no result for {_RESULT_SECONDS} s")
            if result.error:
                raise RuntimeError(result.error)
            request = live.pop(result.request_id)
            request.token_ids = list(result.generated_tokens)
            request.token_times = [loop.since_start(at) for at in result.timestamps]
            loop.answered(request, loop.now())


if __name__ == "__main__":
    serve(ContinuousBatching)
