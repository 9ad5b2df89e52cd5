"""Load and unload models, each in its own server, within the available memory."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.explain.prediction.memory import gigabytes
from container.multi_model.config import MEMORY_LIMIT
from container.multi_model.errors import AlreadyLoaded, BadModel, ModelNotFound, NoMemory
from container.multi_model.memory import MemoryAccount, Room
from container.multi_model.served_model import MemoryNeed, ModelState, ServedModel
from container.run.local_server import CHECK_INTERVAL, LocalServer, NotHealthy, stop_all
from engines.errors import Unavailable
from lmi_server.http.client_gone import ClientDisconnected
from lmi_server.values.nearest import nearest
from lmi_server.values.show import as_json

MAX_MODELS = 1000
NOTHING_LOADED = "no model is loaded: POST /models loads one"
_MOST_NAMES = 10
"""Names of models that an error lists."""
_DRAIN_SECONDS = 25.0
"""Time for requests in flight to finish when a client unloads a model, before the server's own drain of 25 s."""
_SHUTDOWN_SECONDS = 28.0
"""Time between SIGTERM and SIGKILL for all servers. The platform allows 30 s."""
_POLL_SECONDS = 1.0
_OUT_OF_MEMORY = re.compile(
    r"out of memory|MemoryError|cannot allocate memory|GiB are free|free memory|no memory is left",
    re.IGNORECASE,
)
_NOT_IN_LMI_NAMES = re.compile(r"\W", re.ASCII)
"""Characters of a folder's name that LMI replaces by `_`."""
_logger = logging.getLogger(__name__)

Predict = Callable[[Path, Room], MemoryNeed]
"""Predicts the memory of the model in a folder, given the available room. Raises BadModel."""
Start = Callable[[str, Path, MemoryNeed], LocalServer]
"""Starts the server of the model with a name and a folder, without waiting until it is ready."""


@dataclass(slots=True)
class ModelLease:
    """Permission to send a request to a model. Unloading waits for `release`."""

    server: LocalServer
    _manager: ModelManager
    _model: ServedModel | None

    def release(self) -> None:
        """End the lease. Idempotent."""
        model, self._model = self._model, None
        if model is not None:
            self._manager.end_lease(model)


class ModelManager:
    """All models by name. Thread-safe.

    Either the models are configured, loaded on demand, and unloaded when another one needs the memory, or they are
    loaded and unloaded by `load` and `unload` only.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        account: MemoryAccount,
        predict: Predict,
        start: Start,
        loading_limit: float = math.inf,
    ) -> None:
        """folders: of configured models. loading_limit: seconds that the platform waits for a model to load.

        A model's server applies `option.model_loading_timeout` itself, because a download does not count.
        """
        self._models = {name: ServedModel(name, folder) for name, folder in folders.items()}
        self._on_demand = bool(folders)
        self._account = account
        self._predict = predict
        self._start = start
        self._loading_limit = loading_limit
        self._changed = threading.Condition()
        self._admission = threading.Lock()
        """Held while memory is reserved for a model, so that two models cannot reserve the same memory.

        It is also held while requests of a model to be unloaded finish: small models must not take the memory that a
        large one waits for.
        """
        self.closing = False
        self.starting = self._on_demand
        """Whether there are configured models that `load_all` has not tried to load yet."""

    def models(self) -> list[ServedModel]:
        """Return all models, sorted by name."""
        with self._changed:
            found = sorted(self._models.values(), key=lambda model: model.name)
            for model in found:
                self._notice_death(model)
            return found

    def model(self, name: str) -> ServedModel:
        """Return the model with this name. Raises ModelNotFound."""
        with self._changed:
            model = self._find(name)
            self._notice_death(model)
            return model

    def measured(self, model: ServedModel) -> int:
        """Return the bytes of main memory that a model takes."""
        return self._account.measured(model)

    def load(self, name: str, folder: Path) -> None:
        """Load a model and wait until it is ready.

        Raises AlreadyLoaded, NoMemory, BadModel, Unavailable.
        """
        with self._changed:
            self._refuse_when_closing()
            if name in self._models:
                state = self._models[name].state.value
                raise AlreadyLoaded(f"model_name: a model {as_json(name)} already exists ({state})")
            if len(self._models) >= MAX_MODELS:
                raise NoMemory(f"cannot load more than {MAX_MODELS} models")
            model = self._models[name] = ServedModel(name, folder)
            model.mark_loading()
        try:
            self._start_server(model, leased=False)
        except BaseException:
            self._forget(model)
            raise

    def unload(self, name: str) -> None:
        """Unload a model after its requests, and wait until its memory is free. Raises ModelNotFound."""
        with self._changed:
            model = self._find(name)
            if model.state is ModelState.UNLOADING:
                raise ModelNotFound(f"the model {as_json(name)} is being unloaded")
            while model.state is ModelState.LOADING:
                model.stopping.set()
                self._changed.wait()
            if ready := model.state is ModelState.READY:
                model.state = ModelState.UNLOADING
        if ready:
            self._stop_server(model, _DRAIN_SECONDS)
        self._forget(model)

    def load_all(self) -> None:
        """Load the configured models one after another, as far as memory suffices."""
        for model in self.models():
            with self._changed:
                while model.state is ModelState.LOADING and not self.closing:
                    self._changed.wait()
                if self.closing:
                    return
                if model.state is not ModelState.DOWN:
                    continue
                model.mark_loading()
            with contextlib.suppress(Exception):  # already logged, and returned to requests for the model
                self._start_server(model, leased=False)
        self.starting = False
        states = ", ".join(f"{model.name} ({model.state.value})" for model in self.models())
        _logger.info("start-up is complete: %s", states)

    def watch(self) -> None:
        """Check the servers of loaded models until `close`, so that one that hangs is handled as one that died."""
        while not self.closing:
            for model in self.models():
                if model.state is not ModelState.LOADING and (server := model.server) is not None:
                    server.check()
            with self._changed:
                self._changed.notify_all()  # `_stop_server` may wait for the requests of a server that hangs
                self._changed.wait_for(lambda: self.closing, CHECK_INTERVAL)

    def lease(self, name: str, client_gone: Callable[[], bool] = lambda: False) -> ModelLease:
        """Lease a model for one request. Loads the model first if it is loaded on demand or its server has failed.

        client_gone: whether the client has disconnected, so that its request need not wait for a load.
        Raises ModelNotFound, Unavailable, NoMemory, ClientDisconnected.
        """
        with self._changed:
            while True:
                self._refuse_when_closing()
                model = self._find(name)
                self._notice_death(model)
                if model.state is ModelState.READY and model.server is not None:
                    model.begin_request()
                    return ModelLease(model.server, self, model)
                if model.state is ModelState.DOWN:
                    if not model.may_start:
                        raise Unavailable(f"the model {as_json(name)} has failed: {model.failure}")
                    model.mark_loading()
                    break
                if not self._on_demand:
                    kind = Unavailable if model.state is ModelState.LOADING else ModelNotFound
                    raise kind(f"the model {as_json(name)} is {model.state.value}")
                if client_gone():
                    raise ClientDisconnected
                self._changed.wait(_POLL_SECONDS)
        try:
            server = self._start_server(model, leased=True)
        except BadModel as error:  # not the client's fault
            raise Unavailable(f"the model {as_json(name)} has failed: {error}") from error
        return ModelLease(server, self, model)

    def end_lease(self, model: ServedModel) -> None:
        """End a lease of the model."""
        with self._changed:
            model.in_flight -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new requests, let all servers finish theirs, and wait until they have exited. Idempotent."""
        with self._changed:
            first, self.closing = not self.closing, True
            servers = [model.server for model in self._models.values() if model.server is not None]
            for model in self._models.values():
                model.stopping.set()
            self._changed.notify_all()
        if first:
            stop_all(servers, _SHUTDOWN_SECONDS)
        for server in servers:
            server.end(_SHUTDOWN_SECONDS)

    def _find(self, name: str) -> ServedModel:
        """Return a model by its name, or a configured one by LMI's name of its folder. Raises ModelNotFound."""
        if (model := self._models.get(name)) is not None:
            return model
        folders = self._models.values() if self._on_demand else ()
        same = [model for model in folders if _NOT_IN_LMI_NAMES.sub("_", model.name) == name]
        if len(same) == 1:
            return same[0]
        near = nearest(name, list(self._models))
        hint = f"did you mean {as_json(near)}?" if near else self._available()
        raise ModelNotFound(f"there is no model {as_json(name)}; {hint}")

    def _available(self) -> str:
        return f"available: {listed(sorted(self._models))}" if self._models else NOTHING_LOADED

    def _forget(self, model: ServedModel) -> None:
        with self._changed:
            if self._models.get(model.name) is model:
                del self._models[model.name]

    def _start_server(self, model: ServedModel, leased: bool) -> LocalServer:
        """Load a model whose state is LOADING. leased: count a request before the model can be unloaded."""
        evict = leased and self._on_demand
        try:
            try:
                return self._start_once(model, leased, self._admit(model, evict))
            except NotHealthy as error:
                out_of_memory = isinstance(self._failure(model, error), NoMemory)
                if not (evict and out_of_memory and self._others_in_memory(model)):
                    raise
                _logger.info("model %s needs more memory than predicted: %s", model.name, error)
                with self._changed:
                    model.server = model.need = None  # another model may be waiting for this memory
                    self._changed.notify_all()
                return self._start_once(model, leased, self._admit(model, evict, underestimated=True))
        except BaseException as error:
            with self._changed:
                mapped = self._failure(model, error)
                not_started = isinstance(error, NoMemory)  # a server that ran out of memory raised NotHealthy
                model.mark_down("" if not_started else str(mapped))
                self._changed.notify_all()
            level = logging.INFO if not_started else logging.WARNING
            _logger.log(level, "model %s: %s", model.name, mapped)
            if mapped is error:
                raise
            raise mapped from error

    def _start_once(self, model: ServedModel, leased: bool, need: MemoryNeed) -> LocalServer:
        """Start the server of a model, whose memory is reserved, and wait until it is ready. Raises NotHealthy."""
        with self._changed:
            self._refuse_when_stopped(model)
            server = model.server = self._start(model.name, model.folder, need)
        try:
            server.wait_healthy(self._loading_limit, model.stopping)
            with self._changed:
                self._refuse_when_stopped(model)
                model.mark_ready()
                if leased:
                    model.begin_request()
                self._changed.notify_all()
        except BaseException:
            stop_all([server])
            raise
        _logger.info("model %s is ready", model.name)
        return server

    def _failure(self, model: ServedModel, error: BaseException) -> BaseException:
        """Return the error that clients get."""
        if not isinstance(error, NotHealthy):
            return error
        if model.stopping.is_set():
            return Unavailable("the model was stopped while it was loading")
        return (NoMemory if _OUT_OF_MEMORY.search(str(error)) else BadModel)(str(error))

    def _others_in_memory(self, model: ServedModel) -> list[ServedModel]:
        return [other for other in self.models() if other is not model and other.need is not None]

    def _admit(self, model: ServedModel, evict: bool, underestimated: bool = False) -> MemoryNeed:
        """Wait until there is memory for a model, and reserve it. Raises NoMemory, BadModel.

        evict: unload other models, the least recently used first, but only if the model can fit without them.
        underestimated: the memory that was last predicted did not suffice, so unload at least one other model. The
            prediction for a model that had to be downloaded is better now.
        """
        with self._admission:
            while True:
                others = self._others_in_memory(model)
                room = self._account.room(others)
                need = self._predict(model.folder, room)
                if room.holds(need) and not (underestimated and others):
                    model.need = need
                    return need
                if evict and others:
                    alone = self._account.room_without(others)
                    if not alone.holds(need := self._predict(model.folder, alone)):
                        raise NoMemory(_no_room(need, alone, alone=True))
                with self._changed:
                    self._refuse_when_stopped(model)
                    ready = [other for other in others if other.state is ModelState.READY]
                    if not evict or not others:
                        raise NoMemory(_no_room(need, room))
                    if not ready:
                        self._changed.wait(_POLL_SECONDS)  # for models that are loading or unloading
                        continue
                    victim = min(ready, key=lambda other: other.rank_of_use)
                    victim.state = ModelState.UNLOADING
                _logger.info("unloading model %s to free memory for %s", victim.name, model.name)
                self._stop_server(victim, drain=None)
                underestimated = False

    def _stop_server(self, model: ServedModel, drain: float | None) -> None:
        """Stop the server of a model whose state is UNLOADING.

        drain: seconds to wait for requests in flight before the server is stopped; None waits until all are answered.
        """
        with self._changed:
            server = model.server
            self._changed.wait_for(lambda: not (model.in_flight and server and server.death() is None), drain)
        if server is not None:
            stop_all([server])
        with self._changed:
            model.mark_down()
            self._changed.notify_all()

    def _notice_death(self, model: ServedModel) -> None:
        """Check whether the server of a ready model has died or hangs, and record it."""
        server = model.server
        if self.closing or model.state is not ModelState.READY or server is None:
            return
        if (cause := server.death()) is not None:
            server.end(0.0)
            model.mark_down(cause)
            self._changed.notify_all()
            _logger.warning("model %s: %s", model.name, cause)

    def _refuse_when_closing(self) -> None:
        if self.closing:
            raise Unavailable("the server is shutting down")

    def _refuse_when_stopped(self, model: ServedModel) -> None:
        if self.closing or model.stopping.is_set():
            raise Unavailable("the model was stopped while it was loading")


def _no_room(need: MemoryNeed, room: Room, alone: bool = False) -> str:
    """Say how much memory a model lacks. alone: `room` is without the other models."""
    when = "would be free without the other models" if alone else "are free"
    host, free = gigabytes(need.host), gigabytes(room.machine.memory_available_bytes)
    if need.gpu > room.gpu:
        lack = f"{gigabytes(need.gpu)} of each GPU, but only {gigabytes(room.gpu)} {when}"
    elif room.is_limited:
        others = " without the other models" if alone else ""
        lack = f"{host} of memory, but {MEMORY_LIMIT} leaves only {free}{others}"
    else:
        lack = f"{host} of memory, but only {free} {when}"
    return f"no room: the model needs {lack}"


def listed(names: Sequence[str]) -> str:
    """List names for a message, the first few of many."""
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
