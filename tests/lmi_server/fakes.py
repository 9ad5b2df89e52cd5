"""A fake engine that plays scripts, and a small real tokenizer, for tests of the web process."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gevent
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from werkzeug.test import TestResponse

from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    FinishReason,
    HistogramData,
    PromptLogprob,
    Request,
    RequestOutput,
    SamplingParams,
    SchedulerReply,
    SchedulerSettings,
    SettingValue,
)
from engines.errors import EngineError
from engines.health import EngineState, Health
from lmi_server.admin_token import token_digest
from lmi_server.config import ServerConfig, WebConfig

Script = Callable[[Request], Iterable[RequestOutput | threading.Event]]
"""Returns the outputs of a request. The stream waits for an event before it continues with the next output."""

MAX_MODEL_LEN = 256
ADMIN_TOKEN = "kR3+/x=.~"
"""Any visible characters are allowed."""

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' + message['role']) }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_SENTENCES = [
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "What is the capital of France? The answer stands below.",
    "Grüße aus Köln, 你好，世界！ 😀 naïve café — done.",
    "one two three four five six seven eight nine ten 0123456789",
    'def main():\n    print("hello", end="\\n")\n',
]


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer


def encode(text: str) -> tuple[int, ...]:
    """Return the tokens of a text, for the tokenizer of `build_model_folder`."""
    return tuple(_tokenizer().encode(text).ids)


def build_model_folder(folder: Path) -> Path:
    """Write a model folder with a byte-level BPE tokenizer, special tokens, a chat template and EOS ids."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|im_end|>", "special": True, "__type": "AddedToken"},
        "model_max_length": MAX_MODEL_LEN,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return folder


def web_config(
    folder: Path, server: ServerConfig | None = None, engine: str = "MPI", admin_token: str = ADMIN_TOKEN
) -> WebConfig:
    return WebConfig(
        server=server or ServerConfig(),
        engine=engine,
        model_path=str(folder),
        max_model_len=MAX_MODEL_LEN,
        engines=(("ipc:///nowhere", "/nowhere"),),
        admin_token_digest=token_digest(admin_token) if admin_token else "",
    )


class FakeStream:
    """Plays the scripts of requests that were submitted together, one item of each in turn.

    Any thread or greenlet may call `next`. While one script waits for its event, the others continue. Scripts of
    aborted requests continue too: outputs in flight still reach the web process.
    """

    def __init__(self, scripts: Iterable[Iterator[RequestOutput | threading.Event]]) -> None:
        self._turns = deque(scripts)
        self._events: dict[int, threading.Event] = {}

    def next(self, timeout: float) -> RequestOutput | None:
        for _ in range(len(self._turns)):
            output = self._play(self._turns[0])
            self._turns.rotate(-1)
            if output is not None:
                return output
        self._turns = deque(turn for turn in self._turns if id(turn) in self._events)
        assert self._turns, "the scripts have no more outputs"
        if not self._events[id(self._turns[0])].wait(timeout):
            return None
        return self.next(timeout)

    def _play(self, script: Iterator[RequestOutput | threading.Event]) -> RequestOutput | None:
        """Return the next output, or None if the script waits for an event or has ended."""
        event = self._events.get(id(script))
        if event is not None and not event.is_set():
            return None
        self._events.pop(id(script), None)
        item = next(script, None)
        if isinstance(item, threading.Event):
            self._events[id(script)] = item
            return self._play(script)
        return item


class FakeEngine:
    """Plays `script` for every request, and records all calls."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.submissions: list[int] = []
        """Number of requests of each call of `submit`."""
        self.aborted: list[str] = []
        self.abort_reasons: list[AbortReason] = []
        """Reasons for the aborts in `aborted`, in the same order."""
        self.submit_seen = threading.Event()
        self.abort_seen = threading.Event()
        self.state = Health(EngineState.READY, "", 0.0)
        self.engine_stats: EngineStats | None = make_stats()
        self.settings: SchedulerSettings | None = SchedulerSettings(32, 256, 256, 1000)
        self.refused: dict[str, str] = {}
        """Fields that `configure_scheduler` refuses, with the reasons."""
        self.answers = True
        """Whether `configure_scheduler` answers."""

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of the last request."""
        return self.requests[-1].sampling

    def submit(self, *requests: Request) -> FakeStream:
        self.requests += requests
        self.submissions.append(len(requests))
        self.submit_seen.set()
        return FakeStream([iter(self.script(request)) for request in requests])

    def abort(self, request_id: str, reason: AbortReason) -> None:
        self.aborted.append(request_id)
        self.abort_reasons.append(reason)
        self.abort_seen.set()

    def health(self) -> Health:
        return self.state

    def stats(self, timeout: float) -> EngineStats | None:
        return self.engine_stats

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerReply | None:
        if not self.answers:
            return None
        refused = {field: reason for field, reason in self.refused.items() if field in changes}
        if self.settings is not None and not refused:
            self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return SchedulerReply(self.settings, refused)


def make_stats() -> EngineStats:
    info = EngineInfo("test-model", "MPI", 1, "cpu", "fp32", 1024, 4096, 16, 32, MAX_MODEL_LEN, True)
    return EngineStats(
        info=info,
        gauges={"lmi_requests_running": 3.0, "lmi_kv_blocks_free": 60.0},
        counters={"lmi_steps_total": 17.0, "lmi_tokens_generated_total": 90.0},
        histograms=(
            HistogramData("lmi_step_seconds", (0.1, 1.0), (2, 1, 1), 3.5, {"part": "attention"}),
            HistogramData("lmi_step_seconds", (0.1, 1.0), (4, 0, 0), 0.2, {"part": "sampling"}),
            HistogramData("lmi_batch_size", (1.0, 8.0), (5, 6, 0), 50.0),
        ),
    )


def tokens(
    request: Request,
    token_ids: Iterable[int],
    end: FinishReason | EngineError | None = FinishReason.LENGTH,
    per_step: int = 1,
    logprob: float = -0.5,
    num_cached_tokens: int = 0,
) -> list[RequestOutput]:
    """Return outputs of `per_step` tokens each. The last one has the finish reason `end`; an error follows separately.

    Log-probabilities are included if the request asks for them: `logprob` for each token. The top tokens are the token
    itself and its predecessors in the vocabulary.
    """
    ids = list(token_ids)
    steps = [tuple(ids[at : at + per_step]) for at in range(0, len(ids), per_step)]
    sampling = request.sampling
    outputs = []
    for index, step in enumerate(steps):
        finish = end if index == len(steps) - 1 and isinstance(end, FinishReason) else None
        output = RequestOutput(
            request.id,
            step,
            logprobs=tuple(logprob for _ in step) if sampling.logprobs else (),
            top_logprobs=tuple(top(token_id, sampling.top_logprobs, logprob) for token_id in step)
            if sampling.top_logprobs
            else (),
            finish_reason=finish,
        )
        if index == 0:
            output = output._replace(
                num_cached_tokens=num_cached_tokens, prompt_logprobs=prompt_logprobs(request)
            )
        outputs.append(output)
    if isinstance(end, EngineError):
        outputs.append(RequestOutput(request.id, error_kind=end.kind, error_message=str(end)))
    return outputs


def top(token_id: int, number: int, logprob: float = -0.5) -> tuple[tuple[int, float], ...]:
    """Return the top tokens that `tokens` reports for a token, with their log-probabilities."""
    return tuple((abs(token_id - rank), logprob - rank) for rank in range(number))


def prompt_logprobs(request: Request) -> tuple[PromptLogprob, ...]:
    """Return the log-probability of each prompt token from the second on: minus the position of the token."""
    number = request.sampling.prompt_logprobs
    if number is None:
        return ()
    ids = request.prompt_token_ids
    return tuple(
        PromptLogprob(float(-position), top(ids[position], number, float(-position)))
        for position in range(1, len(ids))
    )


def says(
    answer: str,
    end: FinishReason | EngineError | None = FinishReason.LENGTH,
    per_step: int = 1,
) -> Script:
    """Return a script that answers every prompt with the same text."""
    return lambda request: tokens(request, encode(answer), end, per_step)


def chunks(reply: TestResponse) -> list[dict[str, Any]]:
    """Return the records of an OpenAI stream, which must end with `[DONE]`."""
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@contextmanager
def turns_of_another_greenlet() -> Iterator[list[None]]:
    """Count, as the length of a list, how often another greenlet runs in the `with` block."""
    turns: list[None] = []

    def run() -> None:
        while True:
            turns.append(None)
            gevent.sleep(0)

    greenlet = gevent.spawn(run)
    try:
        yield turns
    finally:
        greenlet.kill()
