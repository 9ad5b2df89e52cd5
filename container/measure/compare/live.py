"""Share one server among configurations that differ in live settings only, and change its settings between rounds.

`PATCH /admin/scheduler` refuses settings that allow larger steps than memory was measured for at start-up. The server
therefore starts with the configuration that has the largest steps. On a GPU the KV cache is what these steps leave,
unless its size is set, so only configurations with equal steps share a server.

All configurations send the same prompts, so each uses a tenant of its own: no prompt may be found in the prefix cache
because another configuration or an earlier comparison sent it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from container.measure.bench.connection import error_message
from container.measure.compare import derive
from container.measure.compare.configurations import Configuration
from container.measure.compare.scrape import open_url
from container.measure.compare.server_process import ServerFailed
from lmi_server.apis.admin import FIELDS
from lmi_server.properties.options import by_name
from lmi_server.values.base import Scalar

_TIMEOUT_SECONDS = 60.0
"""Longer than a server needs to change all copies of its engine and then to roll the change back."""
_MAX_SEQUENCES = "option.max_rolling_batch_size"
_MAX_TOKENS = "option.max_num_batched_tokens"
_CHUNKED = "option.enable_chunked_prefill"
_KV_CACHE = "option.kv_cache_gb"


@dataclass(frozen=True, slots=True)
class SharedServer:
    """Configurations that one server can serve in turn; usually a single one."""

    started_as: Configuration
    members: tuple[Configuration, ...]
    """All configurations of the server, `started_as` included, in the order of the comparison."""

    @property
    def switches(self) -> bool:
        return len(self.members) > 1

    def settings(self, name: str) -> dict[str, Scalar | None]:
        """Return the body of the `PATCH` that switches the server to configuration `name`."""
        (config,) = (one for one in self.members if one.name == name)
        keys = [key for key in FIELDS if len({one.values.get(key) for one in self.members}) > 1]
        return {key.removeprefix("option."): _typed(key, config.set_value(key)) for key in keys}


def shared_servers(configs: Iterable[Configuration]) -> tuple[SharedServer, ...]:
    """Divide the configurations among servers.

    Equal configurations do not share a server, because they are compared to see how much servers vary.
    """
    alike: dict[object, list[Configuration]] = {}
    for config in configs:
        rest = frozenset((key, value) for key, value in config.values.items() if key not in FIELDS)
        alone = config.name if config.url or config.engine != "MPI" else ""
        alike.setdefault((alone, config.model_folder, rest, _code(config)), []).append(config)
    found: list[SharedServer] = []
    for others in alike.values():
        while others:
            largest = max(map(_step_size, others))
            members: list[Configuration] = []
            for one in others:
                if _fits(one, largest) and all(one.values != other.values for other in members):
                    members.append(one)
            others = [one for one in others if one not in members]
            found.append(SharedServer(max(members, key=_step_size), tuple(members)))
    return tuple(found)


def _code(config: Configuration) -> frozenset[tuple[str, bytes | str]]:
    """Return the user's code beside the file, such as formatters, and all other files that it may read.

    Pairs of path and content, or of path and place if it is no code; empty without code.
    """
    if config.path is None:
        return frozenset()
    file = derive.file_of(config.path)
    if not derive.has_code(file):
        return frozenset()
    return frozenset(
        (
            str(path.relative_to(file.parent)),
            path.read_bytes() if derive.is_code(path) else str(path.resolve()),
        )
        for path in derive.files_beside(file, runs_code=True)
    )


def _step_size(config: Configuration) -> tuple[bool, int, int]:
    return (
        config.values.get(_CHUNKED) == "false",
        _number(config, _MAX_SEQUENCES),
        _number(config, _MAX_TOKENS),
    )


def _fits(config: Configuration, largest: tuple[bool, int, int]) -> bool:
    """Return whether a server that starts with the largest steps has the KV cache that `config` would have alone."""
    size = _step_size(config)
    if config.set_value(_KV_CACHE) is None:
        return size == largest
    return all(one <= other for one, other in zip(size, largest, strict=True))


def _number(config: Configuration, key: str) -> int:
    text = config.values.get(key, "")
    return int(text) if text.isdecimal() else 0


def _typed(key: str, text: str | None) -> Scalar | None:
    """Convert an option's value to JSON."""
    return by_name()[key].type.from_text(text) if text else None


def change_settings(name: str, url: str, token: str, settings: Mapping[str, Scalar | None]) -> None:
    """Switch the running server at `url` to configuration `name`. Raises ServerFailed."""
    request = urllib.request.Request(  # noqa: S310
        f"{url}/admin/scheduler",
        json.dumps(settings).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="PATCH",
    )
    try:
        with open_url(request, timeout=_TIMEOUT_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        raise ServerFailed(
            f"{name}: the server refused the settings: {error_message(error.read())}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerFailed(f"{name}: cannot change the settings: {error}") from error


def tenant_headers(configs: Sequence[Configuration], name: str, run_id: str) -> dict[str, str]:
    """Return the headers for requests of configuration `name`. run_id: unique to the comparison."""
    return {"X-Tenant-Id": f"compare-{run_id}-{[config.name for config in configs].index(name)}"}
