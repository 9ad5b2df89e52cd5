"""Optional features of each engine. The web process refuses requests that need any other, and names the feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of one engine. A new engine lists only those that it has."""

    beam_search: bool = False
    prompt_logprobs: bool = False
    """Report the log-probabilities of a prompt's tokens."""
    generate_params: bool = False
    """Apply `SamplingParams.generate`, the parameters of transformers' `generate`."""
    prompt_lists: bool = False
    """`inputs` of `/invocations` may be a list, and the answer is one."""
    enforces_timeout: bool = False
    """Stop a request after `option.predict_timeout` in the engine itself, because the time counts from the start of
    a batch."""


CAPABILITIES: Mapping[str, Capabilities] = MappingProxyType(
    {
        "MPI": Capabilities(beam_search=True, prompt_logprobs=True),
        "Python": Capabilities(generate_params=True, prompt_lists=True, enforces_timeout=True),
    }
)
"""Capabilities by the name of the engine, as in `engine` of serving.properties."""


def engines_with(capability: str) -> str:
    """Name the engines that have a capability, for an error text."""
    return " or ".join(f"engine={name}" for name, one in CAPABILITIES.items() if getattr(one, capability))
