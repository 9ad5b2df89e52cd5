"""Output of transformers for the fixed prompts, computed once per model and library versions, then cached."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from tests.support.paths import REPO_ROOT, cache_dir, child_environment
from tests.support.prompts import Prompt, by_name

MAX_NEW_TOKENS = 64
FEW_TOKENS = 16
"""Number of tokens that `make test` compares; `make verify` compares `MAX_NEW_TOKENS`."""
FEW_PROMPTS = ("capital", "haiku", "recipe", "once", "code", "long-story")
"""Names of the prompts that `make test` uses."""
_FORMAT = 4
"""Increase this when the stored data changes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's greedy continuation."""

    text: str
    """The prompt as the model gets it: plain, or rendered with the model's chat template."""
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Tokens of the continuation, without a final EOS token."""
    ended: bool
    """Whether an EOS token ended the continuation."""
    output: str
    """`token_ids` as text."""
    token_ids_ignoring_eos: tuple[int, ...]
    """Tokens for a request that ignores EOS."""
    output_ignoring_eos: str
    smallest_gap: float
    """The smallest difference between the two best logits of any step."""

    def ignoring_eos(self) -> Answer:
        """The answer to a request that ignores EOS."""
        return replace(
            self, token_ids=self.token_ids_ignoring_eos, output=self.output_ignoring_eos, ended=False
        )


def _read(path: Path) -> Answer:
    data = json.loads(path.read_text(encoding="utf-8"))
    return Answer(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    )


@cache
def model_hash(model: Path) -> str:
    """SHA-256 of the files that determine the output of the model."""
    digest = hashlib.sha256()
    for path in sorted(model.iterdir()):
        if path.suffix in {".json", ".jinja", ".safetensors"}:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while chunk := file.read(1 << 22):
                    digest.update(chunk)
    return digest.hexdigest()


def _cache_path(model: Path, prompt: Prompt, max_new_tokens: int) -> Path:
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")]
    key = json.dumps([_FORMAT, model_hash(model), versions, max_new_tokens, asdict(prompt)])
    return cache_dir() / "oracle" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def oracle(model: Path, prompts: Sequence[Prompt], max_new_tokens: int = MAX_NEW_TOKENS) -> list[Answer]:
    """The answers to `prompts`, in order. Missing ones are computed (64 tokens: about 3 s on 2 cores)."""
    paths = [_cache_path(model, prompt, max_new_tokens) for prompt in prompts]
    missing = [(prompt, path) for prompt, path in zip(prompts, paths, strict=True) if not path.exists()]
    if missing:
        _compute(model, missing, max_new_tokens)
    return [_read(path) for path in paths]


def few_answers(model: Path, *names: str) -> list[Answer]:
    """Answers of `FEW_TOKENS` tokens to some of `FEW_PROMPTS`. The first call computes them for all of these prompts,
    since most of the time goes into starting transformers."""
    folder = cache_dir() / "oracle"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        oracle(model, by_name(*FEW_PROMPTS), FEW_TOKENS)
    return oracle(model, by_name(*names), FEW_TOKENS)


def _compute(model: Path, missing: Sequence[tuple[Prompt, Path]], max_new_tokens: int) -> None:
    requests = [{"messages": prompt.as_messages(), "text": prompt.text} for prompt, _ in missing]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.oracle_generate", str(model), str(max_new_tokens)],
        input=json.dumps(requests),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=REPO_ROOT,
        env=child_environment({"HF_HUB_OFFLINE": "1"}),
    )
    for (_, path), answer in zip(missing, json.loads(done.stdout), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(answer), encoding="utf-8")
        partial.replace(path)
