"""WSGI entry point for gunicorn: `gunicorn "lmi_server.wsgi:make_app('/path/web.json')"`."""

from __future__ import annotations

import logging
from pathlib import Path

from flask import Flask

from engines.base import Engine
from engines.client import EngineClient
from engines.copies.known_prefixes import MAX_BLOCKS, KnownPrefixes
from engines.copies.replica_set import ReplicaSet
from lmi_server.app import create_app
from lmi_server.config import WebConfig
from lmi_server.generation.formatter import Formatter
from lmi_server.text.tokenizer import TextModel


def make_app(config_path: str) -> Flask:
    """Create the application of one worker. Call it in the worker, which needs its own connection to the engine.

    `config_path`: JSON file with the output of `WebConfig.to_json`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = WebConfig.from_json(Path(config_path).read_text(encoding="utf-8"))
    text = None
    if config.engine != "Handler":
        text = TextModel.from_folder(
            Path(config.model_path), Path(config.tokenizer_path or config.model_path)
        )
    engine = _engine(config)
    formatter = None
    if config.formatter_address:
        client = EngineClient(config.formatter_address, Path(config.formatter_status))
        formatter = Formatter(client, config.formatter_roles)
    return create_app(config, engine, text, formatter)


def _engine(config: WebConfig) -> Engine:
    clients = [EngineClient(address, Path(status)) for address, status in config.engines]
    if len(clients) == 1:
        return clients[0]
    max_blocks = MAX_BLOCKS if config.prefix_caching else 0
    prefixes = KnownPrefixes(len(clients), max_blocks=max_blocks)
    return ReplicaSet(clients, prefixes, config.places_per_copy, Path(config.settings_lock))
