"""THE table of request parameters. Validation, defaults, error texts and suggestions all come from it.

A parameter stands under its LMI names (`parameters` of `/invocations`) and its OpenAI names (fields of `/v1/*`; some
of chats only, or of completions only). One that is known but not done here has `neutral` values: those that change
nothing are accepted, others refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """The JSON type of a value, in words for people."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    TEXT = "a string"
    TEXTS = "a string or a list of strings"
    OBJECT = "an object"
    ANY = "anything"


class Names(Enum):
    """Which column of names a body uses."""

    LMI = "lmi"
    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row. `None` (JSON null) always means 'not given'."""

    name: str
    """Key of the parsed value."""
    kind: Kind
    lmi: tuple[str, ...] = ()
    openai: tuple[str, ...] = ()
    """Both in chats and in completions."""
    chat: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """Exclusive lower bound."""
    choices: tuple[str, ...] = ()
    max_items: int | None = None
    max_bytes: int | None = None
    """Length of a text, or of each of the texts, in UTF-8."""
    neutral: tuple[Any, ...] | None = None
    """Not None: the parameter is not done here, and these values are all that is accepted."""

    def names(self, names: Names) -> tuple[str, ...]:
        if names is Names.LMI:
            return self.lmi
        return self.openai + (self.chat if names is Names.CHAT else self.completions)

    def accepted(self) -> str:
        """What is accepted, for an error text."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        text = self.kind.value
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.minimum is not None:
            low = f"at least {_figure(self.minimum)}"
        high = f"at most {_figure(self.maximum)}" if self.maximum is not None else ""
        bounds = " and ".join(part for part in (low, high) if part)
        if self.kind is Kind.TEXTS:
            bounds = f"at most {self.max_items} strings of 1 to {self.max_bytes} bytes each"
        elif self.max_bytes is not None:
            bounds = f"at most {self.max_bytes} bytes"
        return f"{text}, {bounds}" if bounds else text


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _both(name: str) -> dict[str, Any]:
    return {"name": name, "lmi": (name,), "openai": (name,)}


MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
DEFAULT_MAX_NEW_TOKENS = 30
"""LMI's."""
DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's completions."""

DONE: tuple[Parameter, ...] = (
    Parameter(
        "max_new_tokens",
        Kind.INTEGER,
        lmi=("max_new_tokens",),
        openai=("max_completion_tokens", "max_tokens"),
        minimum=1,
    ),
    Parameter(**_both("do_sample"), kind=Kind.FLAG),
    Parameter("temperature", Kind.NUMBER, lmi=("temperature",), minimum=0, maximum=100),
    Parameter("temperature", Kind.NUMBER, openai=("temperature",), minimum=0, maximum=2),
    # -1 is what vLLM calls 'all'.
    Parameter(**_both("top_k"), kind=Kind.INTEGER, default=0, minimum=-1, maximum=2**31 - 1),
    Parameter(**_both("top_p"), kind=Kind.NUMBER, default=1.0, above=0, maximum=1),
    Parameter(**_both("repetition_penalty"), kind=Kind.NUMBER, default=1.0, minimum=0.01, maximum=10),
    Parameter(**_both("seed"), kind=Kind.INTEGER, minimum=0, maximum=2**64 - 1),
    Parameter(
        "stop",
        Kind.TEXTS,
        lmi=("stop_sequences", "stop"),
        openai=("stop",),
        default=(),
        max_items=MAX_STOP_STRINGS,
        max_bytes=MAX_STOP_BYTES,
    ),
    Parameter(
        "ignore_eos",
        Kind.FLAG,
        lmi=("ignore_eos_token", "ignore_eos"),
        openai=("ignore_eos",),
        default=False,
    ),
    Parameter("details", Kind.FLAG, lmi=("details",), default=False),
    Parameter("return_full_text", Kind.FLAG, lmi=("return_full_text",), default=False),
    Parameter("output_formatter", Kind.TEXT, lmi=("output_formatter",), choices=("json", "jsonlines", "sse")),
    Parameter("echo", Kind.FLAG, completions=("echo",), default=False),
    # The engine reports the log-probability of the token that it chose, not those of other tokens.
    Parameter("logprobs", Kind.INTEGER, completions=("logprobs",), minimum=0, maximum=1),
)

_NOT_DONE: tuple[Parameter, ...] = (
    Parameter("decoder_input_details", Kind.FLAG, lmi=("decoder_input_details",), neutral=(False,)),
    Parameter(**_both("typical_p"), kind=Kind.NUMBER, neutral=(1.0,)),
    Parameter(**_both("min_p"), kind=Kind.NUMBER, neutral=(0.0,)),
    Parameter(**_both("presence_penalty"), kind=Kind.NUMBER, neutral=(0.0,)),
    Parameter(**_both("frequency_penalty"), kind=Kind.NUMBER, neutral=(0.0,)),
    Parameter(**_both("length_penalty"), kind=Kind.NUMBER, neutral=(1.0,)),
    Parameter(**_both("early_stopping"), kind=Kind.FLAG, neutral=(False,)),
    Parameter(**_both("n"), kind=Kind.INTEGER, neutral=(1,)),
    Parameter(**_both("best_of"), kind=Kind.INTEGER, neutral=(1,)),
    Parameter(**_both("num_beams"), kind=Kind.INTEGER, neutral=(1,)),
    Parameter("top_n_tokens", Kind.INTEGER, lmi=("top_n_tokens",), neutral=(0,)),
    Parameter(**_both("truncate"), kind=Kind.INTEGER, neutral=()),
    Parameter(**_both("min_length"), kind=Kind.INTEGER, neutral=(0, 1)),
    Parameter(**_both("min_tokens"), kind=Kind.INTEGER, neutral=(0,)),
    Parameter("watermark", Kind.FLAG, lmi=("watermark",), neutral=(False,)),
    Parameter("grammar", Kind.OBJECT, lmi=("grammar",), neutral=()),
    Parameter("adapter_id", Kind.TEXT, lmi=("adapter_id",), neutral=("",)),
    Parameter("bad_sequences", Kind.ANY, lmi=("bad_sequences",), neutral=([],)),
    Parameter(**_both("stop_token_ids"), kind=Kind.ANY, neutral=([],)),
    Parameter(**_both("include_stop_str_in_output"), kind=Kind.FLAG, neutral=(False,)),
    Parameter(**_both("skip_special_tokens"), kind=Kind.FLAG, neutral=(True,)),
    Parameter(**_both("spaces_between_special_tokens"), kind=Kind.FLAG, neutral=(True,)),
    Parameter("logprobs", Kind.ANY, lmi=("logprobs",), neutral=(False, 0)),
    Parameter("logprobs", Kind.FLAG, chat=("logprobs",), neutral=(False,)),
    Parameter(**_both("prompt_logprobs"), kind=Kind.INTEGER, neutral=(0,)),
    Parameter("top_logprobs", Kind.INTEGER, openai=("top_logprobs",), neutral=(0,)),
    Parameter("suffix", Kind.TEXT, completions=("suffix",), neutral=("",)),
    Parameter("logit_bias", Kind.OBJECT, openai=("logit_bias",), neutral=({},)),
    Parameter("tools", Kind.ANY, openai=("tools",), neutral=([],)),
    Parameter("tool_choice", Kind.ANY, openai=("tool_choice",), neutral=("none", "auto")),
    Parameter("functions", Kind.ANY, openai=("functions",), neutral=([],)),
    Parameter("function_call", Kind.ANY, openai=("function_call",), neutral=("none", "auto")),
    Parameter("parallel_tool_calls", Kind.FLAG, openai=("parallel_tool_calls",), neutral=(True, False)),
    Parameter("response_format", Kind.OBJECT, openai=("response_format",), neutral=({"type": "text"},)),
    Parameter("modalities", Kind.ANY, openai=("modalities",), neutral=(["text"],)),
    Parameter("audio", Kind.OBJECT, openai=("audio",), neutral=()),
    Parameter("prediction", Kind.OBJECT, openai=("prediction",), neutral=()),
    Parameter("reasoning_effort", Kind.TEXT, openai=("reasoning_effort",), neutral=("none",)),
    Parameter("verbosity", Kind.TEXT, openai=("verbosity",), neutral=("medium",)),
    Parameter("service_tier", Kind.TEXT, openai=("service_tier",), neutral=("auto", "default")),
    Parameter("store", Kind.FLAG, openai=("store",), neutral=(False,)),
    Parameter("moderation", Kind.OBJECT, chat=("moderation",), neutral=()),
    Parameter("web_search_options", Kind.OBJECT, openai=("web_search_options",), neutral=()),
    Parameter("chat_template", Kind.TEXT, openai=("chat_template",), neutral=()),
    Parameter("chat_template_kwargs", Kind.OBJECT, openai=("chat_template_kwargs",), neutral=({},)),
    Parameter("add_generation_prompt", Kind.FLAG, openai=("add_generation_prompt",), neutral=(True,)),
    Parameter("continue_final_message", Kind.FLAG, openai=("continue_final_message",), neutral=(False,)),
    Parameter("documents", Kind.ANY, openai=("documents",), neutral=([],)),
    Parameter("guided_json", Kind.ANY, openai=("guided_json",), neutral=()),
    Parameter("guided_regex", Kind.ANY, openai=("guided_regex",), neutral=()),
    Parameter("structured_outputs", Kind.ANY, openai=("structured_outputs",), neutral=()),
)

# Labels for a service's own bookkeeping: no answer depends on them.
_LABELS: tuple[Parameter, ...] = (
    Parameter("user", Kind.TEXT, openai=("user",)),
    Parameter("safety_identifier", Kind.TEXT, openai=("safety_identifier",)),
    Parameter("prompt_cache_key", Kind.TEXT, openai=("prompt_cache_key",)),
    Parameter("prompt_cache_retention", Kind.TEXT, openai=("prompt_cache_retention",)),
    Parameter("prompt_cache_options", Kind.OBJECT, openai=("prompt_cache_options",)),
    Parameter("metadata", Kind.OBJECT, openai=("metadata",)),
)

PARAMETERS: tuple[Parameter, ...] = DONE + _NOT_DONE + _LABELS


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a body said, checked, with the defaults of what it did not say."""

    values: Mapping[str, Any]
    given: Mapping[str, str]
    """Name of a parameter -> the name under which the body gave it."""
    unknown: tuple[str, ...] = field(default=())
    """Names that stand in no row; only where they are to be ignored."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def rows(names: Names) -> dict[str, Parameter]:
    """Every name of a column with its row."""
    return {name: row for row in PARAMETERS for name in row.names(names)}
