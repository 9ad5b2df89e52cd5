"""Configurations that share a server, and the live settings that switch between them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from container.measure.compare.configurations import Configuration
from container.measure.compare.derive import derive
from container.measure.compare.live import SharedServer, change_settings, shared_servers, tenant_headers
from container.measure.compare.server_process import ServerFailed
from lmi_server.properties.reference import COMPUTED
from tests.container.measure.compare.made_up import make_configuration
from tests.support.loopback import LoopbackServer, QuietHandler


def config(
    name: str, size: int = 8, tokens: int = 256, chunked: bool = True, kv_cache_gb: str = "4", **values: str
) -> Configuration:
    return make_configuration(
        name,
        kv_cache_gb=kv_cache_gb,
        max_rolling_batch_size=str(size),
        max_num_batched_tokens=str(tokens),
        enable_chunked_prefill=str(chunked).lower(),
        **values,
    )


def names(servers: tuple[SharedServer, ...]) -> list[tuple[str, list[str]]]:
    return [(server.started_as.name, [one.name for one in server.members]) for server in servers]


def test_configurations_that_differ_in_live_settings_share_the_largest_ones_server() -> None:
    found = shared_servers([config("a", 4), config("b", 32), config("c", 16, scheduling_policy="fair")])
    assert names(found) == [("b", ["a", "b", "c"])]
    assert found[0].settings("a") == {"max_rolling_batch_size": 4, "scheduling_policy": None}
    assert found[0].settings("c") == {"max_rolling_batch_size": 16, "scheduling_policy": "fair"}


def test_other_options_need_a_separate_server() -> None:
    found = shared_servers([config("a"), config("b", 16, kv_cache_dtype="bf16"), config("c", 32)])
    assert names(found) == [("c", ["a", "c"]), ("b", ["b"])]
    assert [server.switches for server in found] == [True, False]


def test_a_server_that_profiled_smaller_steps_is_not_shared() -> None:
    found = shared_servers([config("wide", 32, 256), config("long", 8, 1024), config("small", 8, 256)])
    assert names(found) == [("wide", ["wide", "small"]), ("long", ["long"])]
    whole = shared_servers([config("a", 16), config("b", 8, chunked=False)])
    assert [started for started, _ in names(whole)] == ["b", "a"]


def test_an_open_kv_cache_is_shared_by_equal_steps_only() -> None:
    """On a GPU, the KV cache of a shared server would be what the largest steps leave."""
    opened = {"kv_cache_gb": f"({COMPUTED})"}
    found = shared_servers(
        [
            config("a", 4, **opened),
            config("b", 32, **opened),
            config("c", 32, scheduling_policy="fair", **opened),
        ]
    )
    assert names(found) == [("b", ["b", "c"]), ("a", ["a"])]
    unchunked = shared_servers([config("a", **opened), config("b", chunked=False, **opened)])
    assert [started for started, _ in names(unchunked)] == ["b", "a"]


def test_equal_dynamic_and_running_configurations_do_not_share_servers() -> None:
    assert names(shared_servers([config("a"), config("again")])) == [("a", ["a"]), ("again", ["again"])]
    running = [dataclasses.replace(config(name, size), url="http://x") for name, size in (("a", 4), ("b", 8))]
    assert len(shared_servers(running)) == 2
    dynamic = [make_configuration(name, engine="Python", job_queue_size=name) for name in "12"]
    assert len(shared_servers(dynamic)) == 2


def test_configurations_with_different_code_do_not_share_servers(tmp_path: Path) -> None:
    configs = []
    for name, code in (("plain", ""), ("one", "x = 1"), ("copy", "x = 1"), ("other", "x = 2")):
        folder = tmp_path / name
        folder.mkdir()
        if code:
            (folder / "model.py").write_text(code)
        configs.append(dataclasses.replace(config(name, size=4 + len(configs)), path=folder))
    assert names(shared_servers(configs)) == [
        ("plain", ["plain"]),
        ("copy", ["one", "copy"]),
        ("other", ["other"]),
    ]


def test_code_in_a_folder_and_the_files_that_it_may_read_count_too(tmp_path: Path, copies: Path) -> None:
    configs = []
    for name, code, prompt in (("a", "x = 1", "p"), ("b", "x = 2", "p"), ("c", "x = 1", "q")):
        folder = tmp_path / name
        (folder / "src").mkdir(parents=True)
        (folder / "serving.properties").write_text("option.entryPoint=src/format.py\n")
        (folder / "src" / "format.py").write_text(code)
        (folder / "src" / "prompt.txt").write_text(prompt)
        configs.append(dataclasses.replace(config(name, size=4 + len(configs)), path=folder))
    derived = derive("derived", tmp_path / "a", copies, {"option.max_rolling_batch_size": "9"})
    configs.append(dataclasses.replace(config("derived", size=9), path=derived.path))
    assert names(shared_servers(configs)) == [("derived", ["a", "derived"]), ("b", ["b"]), ("c", ["c"])]


def test_settings_are_sent_in_their_json_types_and_unset_values_as_null() -> None:
    (server,) = shared_servers(
        [
            config("a", max_queued_tokens="(no bound)", waiting_served_ratio="0.3"),
            config("b", max_queued_tokens="500", waiting_served_ratio="1.5", chunked=False),
        ]
    )
    assert server.settings("a") == {
        "max_queued_tokens": None,
        "waiting_served_ratio": 0.3,
        "enable_chunked_prefill": True,
    }
    assert server.settings("b")["max_queued_tokens"] == 500


def test_each_configuration_is_a_tenant_so_that_prefix_caches_are_separate() -> None:
    configs = [config("a b"), config("c")]
    headers = [tenant_headers(configs, one.name, "1f") for one in configs]
    assert headers == [{"X-Tenant-Id": "compare-1f-0"}, {"X-Tenant-Id": "compare-1f-1"}]


class _Admin(QuietHandler):
    """Accepts all settings except a batch size of 99."""

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = (self.path, self.headers["Authorization"]) == ("/admin/scheduler", "Bearer secret")
        if known and body["max_rolling_batch_size"] != 99:
            self.respond(200, b"{}", {})
        else:
            self.respond(400, b'{"error": "at most 32; nothing was changed", "code": 400}', {})


@pytest.mark.usefixtures("unreachable_proxy")
def test_settings_are_sent_without_the_proxy_and_failures_raise_the_reason() -> None:
    with LoopbackServer(_Admin) as server:
        change_settings("a", server.url, "secret", {"max_rolling_batch_size": 8})
        with pytest.raises(
            ServerFailed, match=r"a: the server refused the settings: at most 32; nothing"
        ) as caught:
            change_settings("a", server.url, "secret", {"max_rolling_batch_size": 99})
    assert "secret" not in str(caught.value)
    with pytest.raises(ServerFailed, match="a: cannot change the settings"):
        change_settings("a", server.url, "secret", {"max_rolling_batch_size": 8})
