"""Loads and unloads models: each is a server of its own, and all of them fit into the memory that there is."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from container.multi_model.errors import AlreadyLoaded, BadModel, ModelNotFound, NoMemory
from container.multi_model.memory import MemoryAccount, MemoryNeed, Room
from container.multi_model.served_model import ModelState, ServedModel
from container.run.local_server import STOP_SECONDS, LocalServer, NotHealthy, stop_all
from engines.errors import EngineError, Unavailable
from lmi_server.values.nearest import nearest
from lmi_server.values.show import as_json

MAX_MODELS = 1000
_DRAIN_SECONDS = 25.0
"""For requests in flight when a model is unloaded."""
_SHUTDOWN_SECONDS = 28.0
"""Between SIGTERM and SIGKILL of all servers; the platform allows 30 s."""
_POLL_SECONDS = 1.0
_OUT_OF_MEMORY = re.compile(
    r"out of memory|MemoryError|cannot allocate memory|GiB are free|free memory", re.IGNORECASE
)
_logger = logging.getLogger(__name__)

Predict = Callable[[Path, Room], MemoryNeed]
"""What a model's folder needs, given the room that there is. Raises BadModel."""
Start = Callable[[Path, MemoryNeed], LocalServer]
"""Starts the server of a model's folder, without waiting for it."""


@dataclass(slots=True)
class ModelLease:
    """The right to send a request to a model, which is not unloaded before `release`."""

    server: LocalServer
    _manager: ModelManager
    _model: ServedModel | None

    def release(self) -> None:
        """Idempotent."""
        model, self._model = self._model, None
        if model is not None:
            self._manager.give_back(model)


class ModelManager:
    """The models by name. Any thread may call it.

    Either the models are given from the start, are loaded when they are asked for, and unloaded when another one needs
    the memory; or `load` and `unload` say what is served.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        account: MemoryAccount,
        predict: Predict,
        start: Start,
        loading_limit: float | None = None,
    ) -> None:
        """folders: of the models that are given; loading_limit: seconds, besides `option.model_loading_timeout`."""
        self._models = {name: ServedModel(name, folder) for name, folder in folders.items()}
        self._on_demand = bool(folders)
        self._account = account
        self._predict = predict
        self._start = start
        self._loading_limit = loading_limit
        self._changed = threading.Condition()
        self._admission = threading.Lock()
        """Held while room is made for a model, so that two do not count on the same room."""
        self._closing = False

    @property
    def closing(self) -> bool:
        return self._closing

    def models(self) -> list[ServedModel]:
        """All models, in the order of their names."""
        with self._changed:
            found = sorted(self._models.values(), key=lambda model: model.name)
            for model in found:
                self._notice_death(model)
            return found

    def model(self, name: str) -> ServedModel:
        """Raises ModelNotFound."""
        with self._changed:
            model = self._find(name)
            self._notice_death(model)
            return model

    def measured(self, model: ServedModel) -> int:
        """Bytes of main memory that it takes."""
        return self._account.measured(model)

    def load(self, name: str, folder: Path) -> None:
        """Load a model and wait until it is ready.

        Raises AlreadyLoaded, NoMemory, BadModel, Unavailable.
        """
        with self._changed:
            self._refuse_when_closing()
            if name in self._models:
                state = self._models[name].state.value
                raise AlreadyLoaded(f"model_name: a model {as_json(name)} is there already ({state})")
            if len(self._models) >= MAX_MODELS:
                raise NoMemory(f"{MAX_MODELS} models are loaded, which is the largest number")
            model = self._models[name] = ServedModel(name, folder)
            model.begin()
        try:
            self._bring_up(model, leased=False, evict=False)
        except BaseException:
            self._forget(model)
            raise

    def unload(self, name: str) -> None:
        """Let a model finish its requests, and return when its memory is free. Raises ModelNotFound."""
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
            self._take_down(model)
        self._forget(model)

    def load_all(self) -> None:
        """Load the given models one after the other, until memory is used up."""
        for model in self.models():
            with self._changed:
                if self._closing:
                    return
                if model.state is not ModelState.DOWN:
                    continue
                model.begin()
            try:
                self._bring_up(model, leased=False, evict=False)
            except NoMemory:
                return
            except EngineError:
                continue  # it is in the log, and those who ask for the model get it

    def lease(self, name: str) -> ModelLease:
        """Start to use a model, which is loaded for it where models are loaded on demand, or if its server has failed.

        Raises ModelNotFound, Unavailable, NoMemory.
        """
        with self._changed:
            while True:
                self._refuse_when_closing()
                model = self._find(name)
                self._notice_death(model)
                if model.state is ModelState.READY and model.server is not None:
                    model.use()
                    return ModelLease(model.server, self, model)
                if model.state is ModelState.DOWN:
                    if not model.may_start:
                        raise Unavailable(f"the model {as_json(name)} has failed: {model.failure}")
                    model.begin()
                    break
                if not self._on_demand:
                    kind = Unavailable if model.state is ModelState.LOADING else ModelNotFound
                    raise kind(f"the model {as_json(name)} is {model.state.value}")
                self._changed.wait()
        try:
            server = self._bring_up(model, leased=True, evict=self._on_demand)
        except BadModel as error:  # not the fault of who asks
            raise Unavailable(f"the model {as_json(name)} has failed: {error}") from error
        return ModelLease(server, self, model)

    def give_back(self, model: ServedModel) -> None:
        """End the use that `lease` began."""
        with self._changed:
            model.in_flight -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse requests, let all servers finish theirs, and return when they have ended. Idempotent."""
        with self._changed:
            first, self._closing = not self._closing, True
            servers = [model.server for model in self._models.values() if model.server is not None]
            for model in self._models.values():
                model.stopping.set()
            self._changed.notify_all()
        if first:
            stop_all(servers, _SHUTDOWN_SECONDS)
        for server in servers:
            server.end(_SHUTDOWN_SECONDS)

    def _find(self, name: str) -> ServedModel:
        if (model := self._models.get(name)) is None:
            near = nearest(name, list(self._models))
            hint = f"; did you mean {as_json(near)}?" if near else ""
            raise ModelNotFound(f"there is no model {as_json(name)}{hint}")
        return model

    def _forget(self, model: ServedModel) -> None:
        with self._changed:
            if self._models.get(model.name) is model:
                del self._models[model.name]

    def _bring_up(self, model: ServedModel, leased: bool, evict: bool) -> LocalServer:
        """Load a model whose state is LOADING. leased: its use begins before it can be unloaded."""
        server = None
        try:
            need = self._admit(model, evict)
            with self._changed:
                self._refuse_when_stopped(model)
                server = model.server = self._start(model.folder, need)
            server.wait_healthy(
                min(need.loading_timeout, self._loading_limit or need.loading_timeout), model.stopping
            )
            with self._changed:
                self._refuse_when_stopped(model)
                model.serve()
                if leased:
                    model.use()
                self._changed.notify_all()
            _logger.info("model %s is ready", model.name)
            return server
        except BaseException as error:
            if server is not None:
                stop_all([server])
            with self._changed:
                mapped = self._failure(model, error)
                model.fall("" if isinstance(mapped, NoMemory) else str(mapped))
                self._changed.notify_all()
            level = logging.INFO if isinstance(mapped, NoMemory) else logging.WARNING
            _logger.log(level, "model %s: %s", model.name, mapped)
            if mapped is error:
                raise
            raise mapped from error

    def _failure(self, model: ServedModel, error: BaseException) -> BaseException:
        """The error that clients get."""
        if not isinstance(error, NotHealthy):
            return error
        if model.stopping.is_set():
            return Unavailable("it was stopped while it was loading")
        return (NoMemory if _OUT_OF_MEMORY.search(str(error)) else BadModel)(str(error))

    def _admit(self, model: ServedModel, evict: bool) -> MemoryNeed:
        """Wait for room for a model, and note what it needs. Raises NoMemory, BadModel.

        evict: unload others, the least recently used first; none if the model does not fit without them either.
        """
        with self._admission:
            while True:
                others = [other for other in self.models() if other is not model and other.need is not None]
                room = self._account.room(others)
                need = self._predict(model.folder, room)
                if room.holds(need):
                    model.need = need
                    return need
                if evict and others:
                    alone = self._account.room_without(others)
                    if not alone.holds(need := self._predict(model.folder, alone)):
                        raise NoMemory(_no_room(need, alone, "would be free without the other models"))
                with self._changed:
                    self._refuse_when_stopped(model)
                    ready = [other for other in others if other.state is ModelState.READY]
                    if not evict or not others:
                        raise NoMemory(_no_room(need, room))
                    if not ready:
                        self._changed.wait(_POLL_SECONDS)  # for those that are loading or unloading
                        continue
                    victim = min(ready, key=lambda other: other.rank_of_use)
                    victim.state = ModelState.UNLOADING
                _logger.info("model %s is unloaded for %s", victim.name, model.name)
                self._take_down(victim)

    def _take_down(self, model: ServedModel) -> None:
        """End the server of a model whose state is UNLOADING."""
        with self._changed:
            self._changed.wait_for(lambda: not model.in_flight, _DRAIN_SECONDS)
            server = model.server
        if server is not None:
            stop_all([server], STOP_SECONDS)
        with self._changed:
            model.fall()
            self._changed.notify_all()

    def _notice_death(self, model: ServedModel) -> None:
        """Note that the server of a ready model has ended by itself."""
        server = model.server
        if self._closing or model.state is not ModelState.READY or server is None:
            return
        if (cause := server.death()) is not None:
            server.end(0.0)
            model.fall(cause)
            self._changed.notify_all()
            _logger.warning("model %s: %s", model.name, cause)

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise Unavailable("the server is shutting down")

    def _refuse_when_stopped(self, model: ServedModel) -> None:
        if self._closing or model.stopping.is_set():
            raise Unavailable("it was stopped while it was loading")


def _no_room(need: MemoryNeed, room: Room, when: str = "are free") -> str:
    host, free = need.host / 1e9, room.machine.memory_available_bytes / 1e9
    if need.gpu > room.gpu:
        return f"no room: the model needs {need.gpu / 1e9:.3g} GB of each GPU, and {room.gpu / 1e9:.3g} GB {when}"
    return f"no room: the model needs {host:.3g} GB, and {free:.3g} GB {when}"
