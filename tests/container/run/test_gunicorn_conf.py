"""Settings of gunicorn."""

from __future__ import annotations

from gunicorn.config import Config

from container.run import gunicorn_conf


def test_no_proxy_can_change_the_path_or_the_scheme_of_a_request() -> None:
    config = Config()
    for name in ("forwarder_headers", "forwarded_allow_ips", "secure_scheme_headers"):
        config.set(name, getattr(gunicorn_conf, name))
    assert (config.forwarder_headers, config.forwarded_allow_ips, config.secure_scheme_headers) == (
        [],
        [],
        {},
    )
