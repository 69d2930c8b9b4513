"""What the ServerApp would send: first weights, and the records around them.

The ServerApp is run with a grid that answers nothing and keeps the first
messages for train and evaluate; then this process has done its work and ends.
Strategies add entries to a message's config that their ClientApps count on.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from . import _flwr, _records, _state
from ._app import context, describe, packed
from ._errors import FlowerError

__all__ = ["ServerSide"]

_MOST_NODES = 1 << 16


class ServerSide:
    """A loaded ServerApp and what was heard of it."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = setup
        self._app, self.version = _flwr.load()
        self._call = _flwr.locate(setup["server_app"], setup["folder"], "serverapp")
        self._lock = threading.Lock()
        self._heard: dict[str, Any] = {}
        self._done = threading.Event()
        self._first: Any = None
        self._asked = 0

    def plan(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run the ServerApp until it has said what to train and to evaluate."""
        _without_central_evaluation()
        failed: list[str] = []
        _flwr.identify(self._setup["run_id"], 1)
        run = context(self._app, {**self._setup, "node_config": {}}, 1, self._app.RecordDict())

        def play() -> None:
            try:
                self._call(self._grid(), run)
            except BaseException as e:
                failed.append(describe(e))
            self._done.set()

        # It may wait for nodes for ever; it goes with the process.
        threading.Thread(target=play, daemon=True).start()
        self._done.wait()
        with self._lock:
            return self._kept(request, failed)

    def _kept(self, request: Mapping[str, Any], failed: list[str]) -> dict[str, Any]:
        if "train" not in self._heard:
            raise FlowerError("the ServerApp ended before it sent anything to train" + (f":\n{failed[0]}" if failed else ""))
        out: dict[str, Any] = {"names": [], "templates": {}, "configs": {}}
        for kind, content in self._heard.items():
            for name in content.array_records:
                if kind == "train" and not out["names"]:
                    arrays = _records.tensors(content.array_records[name])
                    if arrays:
                        _records.write(request["result"], arrays)
                    out["names"] = list(arrays)
                content[name] = self._app.ArrayRecord()
                break  # others, such as control variates, are kept as they are
            path = f"{request['result']}.{kind}"
            _state.save(path, packed(context(self._app, {**self._setup, "node_config": {}}, 1, content)))
            out["templates"][kind] = path
            out["configs"][kind] = {k: str(v)[:80] for record in content.config_records.values() for k, v in record.items()}
        return out

    def hear(self, messages: Iterable[Any]) -> list[Any]:
        """Keep the first message of each kind and answer what must be answered.
        The one that speaks when all is heard waits for the end of the process."""
        messages = list(messages)
        self._asked = 0
        with self._lock:
            for message in messages:
                kind = message.metadata.message_type
                if kind == "get_parameters":
                    return [self._no_parameters(message)]
                if kind == "train" and "train" in self._heard and messages[0] is not self._first:
                    self._done.set()  # a second round: there is no evaluation
                if kind in ("train", "evaluate") and kind not in self._heard:
                    self._heard[kind] = self._copy(message.content)
                    if kind == "train":
                        self._first = message
            if "evaluate" in self._heard:
                self._done.set()
        if self._done.is_set():
            threading.Event().wait()
        return []

    def nodes(self) -> list[int]:
        """Ids of nodes, few of them unless it is asked for more again and again."""
        self._asked += 1
        return list(range(2, 2 + min(16 << max(0, self._asked - 3), _MOST_NODES)))

    def _copy(self, content: Any) -> Any:
        """Of the records' dictionaries; strategies write to theirs later."""
        out = self._app.RecordDict()
        for name, record in content.items():
            if isinstance(record, self._app.ArrayRecord):
                out[name] = record
            else:
                out[name] = type(record)(dict(record))
        return out

    def _no_parameters(self, message: Any) -> Any:
        content = self._app.RecordDict(
            {
                "getparametersres.parameters": self._app.ArrayRecord({}),
                "getparametersres.status": self._app.ConfigRecord({"code": 0, "message": ""}),
            }
        )
        return self._app.Message(content, reply_to=message)

    def _grid(self) -> Any:
        from flwr.serverapp import Grid

        server, run_id = self, self._setup["run_id"]

        class Recorder(Grid):  # type: ignore[misc,unused-ignore]
            """A grid whose nodes are always enough and never answer."""

            run = SimpleNamespace(run_id=run_id)

            def set_run(self, run: Any) -> None:
                pass

            def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None) -> Any:
                return server._app.Message(content=content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

            def get_node_ids(self) -> list[int]:
                return server.nodes()

            def push_messages(self, messages: Iterable[Any]) -> list[str]:
                server.hear(messages)
                return []

            def pull_messages(self, message_ids: Iterable[str] = ()) -> list[Any]:
                return []

            def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
                return server.hear(messages)

        return Recorder()


def _without_central_evaluation() -> None:
    """Evaluations on the server's own data come before the first message, and a
    site may not have that data."""
    from flwr.serverapp.strategy import Strategy

    start: Callable[..., Any] = Strategy.start
    signature = inspect.signature(start)

    @functools.wraps(start)
    def started(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.pop("evaluate_fn", None)
        return start(*bound.args, **bound.kwargs)

    Strategy.start = started
    try:
        from flwr.server.strategy import FedAvg
    except ImportError:
        return
    FedAvg.evaluate = lambda *_, **__: None
