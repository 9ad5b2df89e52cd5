"""Greedy continuations by Hugging Face transformers in fp32, each prompt alone. Run as a program:

    python -m tests.support.oracle_generate MODEL_DIR MAX_NEW_TOKENS < prompts.json > answers.json

A separate process, because it imports torch, which neither the tests nor the web process may.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def render(tokenizer: Any, prompt: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the text of a prompt and its token ids. Chats are rendered with the model's template."""
    if not prompt["messages"]:
        return prompt["text"], tokenizer(prompt["text"])["input_ids"]
    text = tokenizer.apply_chat_template(prompt["messages"], tokenize=False, add_generation_prompt=True)
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]


def smallest_gap(logits: tuple[torch.Tensor, ...]) -> float:
    """The smallest difference between the two best logits of any step, which shows how close the closest tie is."""
    best = torch.stack([row[0] for row in logits]).float().topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def answer(
    model: Any, tokenizer: Any, prompt: dict[str, Any], max_new_tokens: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Continue a prompt greedily for `max_new_tokens`, past EOS. Tokens up to the first EOS do not depend on that."""
    text, prompt_ids = render(tokenizer, prompt)
    ids = torch.tensor([prompt_ids])
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        return_dict_in_generate=True,
        output_logits=True,
    )
    token_ids = result.sequences[0, len(prompt_ids) :].tolist()
    kept = list(itertools.takewhile(lambda token_id: token_id not in eos_ids, token_ids))

    def decode(ids: list[int]) -> str:
        output: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return output

    return {
        "text": text,
        "prompt_ids": prompt_ids,
        "token_ids": kept,
        "ended": len(kept) < len(token_ids),
        "output": decode(kept),
        "token_ids_ignoring_eos": token_ids,
        "output_ignoring_eos": decode(token_ids),
        "smallest_gap": smallest_gap(result.logits),
    }


def main() -> None:
    logging.disable_progress_bar()
    model_dir, max_new_tokens = sys.argv[1], int(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    eos = model.generation_config.eos_token_id
    eos_ids = eos if isinstance(eos, list) else [eos]
    model.generation_config.eos_token_id = None  # generate max_new_tokens in any case
    answers = []
    with torch.inference_mode():
        for number, prompt in enumerate(prompts := json.load(sys.stdin), start=1):
            answers.append(answer(model, tokenizer, prompt, max_new_tokens, eos_ids))
            print(f"oracle: prompt {number} of {len(prompts)}", file=sys.stderr, flush=True)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
