"""transformers' `generate` with static batches, as in a simple server. A batch has up to `batch` waiting requests, the
oldest first, and all of them are answered when the longest is done."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from loop import ClosedLoop, Request, serve


class Clock(transformers.StoppingCriteria):
    """Record the time of each step. Never stops the generation."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class StaticBatches:
    """One model, with padding on the left."""

    def __init__(self, model: str, batch: int) -> None:
        self._batch = batch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self._pad = self._tokenizer.pad_token_id or 0
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}

    def run(self, loop: ClosedLoop) -> None:
        waiting: list[Request] = []
        while True:
            waiting += loop.due()
            if not waiting:
                return
            batch, waiting = waiting[: self._batch], waiting[self._batch :]
            self._answer(batch, loop)

    @torch.inference_mode()
    def _answer(self, batch: list[Request], loop: ClosedLoop) -> None:
        ids = [self._tokenizer(request.prompt).input_ids for request in batch]
        width, longest = max(map(len, ids)), max(request.wanted for request in batch)
        clock = Clock()
        output = self._model.generate(
            torch.tensor([[self._pad] * (width - len(one)) + one for one in ids]),
            attention_mask=torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in ids]),
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=self._pad,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )
        times = [loop.since_start(at) for at in clock.times]
        ended = loop.now()
        for request, prompt, row in zip(batch, ids, output[:, width:].tolist(), strict=True):
            request.prompt_tokens = len(prompt)
            request.token_ids = row[: request.wanted]
            request.token_times = times[: request.wanted]
            loop.answered(request, ended)


if __name__ == "__main__":
    serve(StaticBatches)
