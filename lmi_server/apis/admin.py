"""`GET` and `PATCH /admin/scheduler`: settings of the running scheduler. `GET /admin/copies`: the model copies.

The routes exist only if `LMI_ADMIN_TOKEN` is set in the server's environment. Requests must send the token as
`Authorization: Bearer`. A `PATCH` changes all settings in its body at one step boundary, in all model copies, or it
changes nothing. `GET` and `PATCH` return the settings in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from engines.core import SchedulerSettings, SettingValue
from engines.errors import InvalidRequest, Unavailable
from lmi_server.admin_token import token_matches
from lmi_server.apis.base import ApiContext
from lmi_server.apis.parameters.checks import check, refuse_unknown
from lmi_server.errors import NotFound, Unauthorized
from lmi_server.http.json_reply import json_response
from lmi_server.properties.options import by_name

ANSWER_SECONDS = 10.0
"""Timeout of the engine's answer. It is longer than a step, because the engine answers between two steps."""

FIELDS: Mapping[str, str] = {
    "option.max_rolling_batch_size": "max_num_seqs",
    "option.max_rolling_batch_prefill_tokens": "max_prefill_tokens",
    "option.max_num_batched_tokens": "max_num_batched_tokens",
    "option.scheduling_policy": "scheduling_policy",
    "option.enable_chunked_prefill": "chunked_prefill",
    "option.waiting_served_ratio": "waiting_served_ratio",
    "option.max_waiting_tokens": "max_waiting_tokens",
    "option.waiting_steps": "waiting_steps",
    "job_queue_size": "max_waiting",
    "option.max_queued_tokens": "max_queued_tokens",
}
"""Options that can change while the engine runs, each with its field of `SchedulerSettings`."""
_UNBOUNDED = "option.max_queued_tokens"
"""The only option that may be null, which means no bound."""


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("admin", __name__)
    digest = context.config.admin_token_digest
    if not digest:
        return blueprint

    @blueprint.before_request
    def authenticate() -> None:
        given = request.headers.get("Authorization", "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer" or not token_matches(token.strip(), digest):
            problem = "not the admin token" if given else "missing"
            accepted = '"Bearer TOKEN", where TOKEN is the value of LMI_ADMIN_TOKEN'
            raise Unauthorized(f"Authorization: {problem}; accepted: {accepted}")

    @blueprint.get("/admin/scheduler")
    def get_scheduler() -> Response:
        return _configure(context, {})

    @blueprint.patch("/admin/scheduler")
    def patch_scheduler() -> Response:
        with context.bodies.json_object(request) as body:
            return _configure(context, _parse_changes(body))

    @blueprint.get("/admin/copies")
    def get_copies() -> Response:
        health = context.engine.health()
        copies = [
            {
                "copy": number,
                "serves": copy.ready,
                "state": copy.state.name.lower(),
                "reason": copy.describe(),
            }
            for number, copy in enumerate(health.copies or (health,), 1)
        ]
        return json_response({"copies": copies})

    return blueprint


def _configure(context: ApiContext, changes: Mapping[str, SettingValue]) -> Response:
    context.require_ready()
    state = context.engine.configure_scheduler(changes, ANSWER_SECONDS)
    if state is None:
        raise Unavailable(
            f"the engine did not answer within {ANSWER_SECONDS:g} s"
            + ("; the changes may still take effect: check with GET" if changes else "")
        )
    if state.settings is None:
        raise NotFound(f"engine={context.config.engine} has no scheduler settings; use engine=MPI")
    if state.refused:
        names = {field: _short_name(option) for option, field in FIELDS.items()}
        reasons = [f"{names.get(field, field)}: {reason}" for field, reason in state.refused.items()]
        raise InvalidRequest("; ".join(reasons) + "; nothing was changed")
    return json_response(_settings_by_name(state.settings))


def _settings_by_name(settings: SchedulerSettings) -> dict[str, SettingValue]:
    return {_short_name(option): getattr(settings, field) for option, field in FIELDS.items()}


def _short_name(option: str) -> str:
    return option.removeprefix("option.")


def _parse_changes(body: Mapping[str, Any]) -> dict[str, SettingValue]:
    """Return the new values by field of `SchedulerSettings`. Raises `InvalidField`."""
    options = {_short_name(option): option for option in FIELDS}
    changes: dict[str, SettingValue] = {}
    for name, value in body.items():
        if name not in options:
            raise refuse_unknown(name, name, value, options)
        option = options[name]
        if value is None and option == _UNBOUNDED:
            changes[FIELDS[option]] = None
        else:
            no_bound = ", or null for no limit" if option == _UNBOUNDED else ""
            changes[FIELDS[option]] = check(name, value, by_name()[option].type, no_bound)
    return changes
