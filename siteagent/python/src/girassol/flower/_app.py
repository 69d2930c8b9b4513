"""Calls of the ClientApp: message in, reply out, and the context between them.

It lives in the child. An exception here ends the call, never the child's loop.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from .. import safetensors
from ..safetensors import File
from . import _flwr, _records, _state
from ._errors import FlowerError

__all__ = ["AppError", "ClientSide", "context", "describe", "packed", "unpacked"]

_MAX_TEXT = 3500
_HERE = os.path.dirname(os.path.abspath(__file__))
# Names under which apps are told the round; the last is always given.
_ROUND_KEYS = ("server_round", "current_round", "current-round", "server-round")


class AppError(Exception):
    """The app's own code failed; the text is the end of its traceback."""


def describe(error: BaseException) -> str:
    """An exception with the app's part of its traceback, its end at least."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).strip()
    return text if len(text) <= _MAX_TEXT else "... " + text[-_MAX_TEXT:]


def context(app: Any, setup: Mapping[str, Any], node_id: int, state: Any) -> Any:
    """A Context of this site's run."""
    return app.Context(
        run_id=setup["run_id"], node_id=node_id, node_config=dict(setup["node_config"]), state=state, run_config=dict(setup["run_config"])
    )


def packed(context: Any) -> bytes:
    """A Context as bytes."""
    from flwr.common.serde import context_to_proto

    data: bytes = context_to_proto(context).SerializeToString()
    return data


def unpacked(data: bytes) -> Any:
    """A Context that :func:`packed` made bytes of."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.message_pb2 import Context as Proto

    proto = Proto()
    proto.ParseFromString(data)
    return context_from_proto(proto)


class ClientSide:
    """A loaded ClientApp and its context."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._setup = setup
        self._app, self.version = _flwr.load()
        _flwr.identify(setup["run_id"], setup["node_id"])
        from flwr.clientapp import ClientApp

        self._call = _flwr.locate(setup["client_app"], setup["folder"], "clientapp")
        if not isinstance(self._call, ClientApp):
            raise FlowerError(f"clientapp {setup['client_app']} is a {type(self._call).__name__}, no flwr.clientapp.ClientApp")
        self.legacy = getattr(self._call, "_call", None) is not None
        self._context = context(self._app, setup, setup["node_id"], self._remembered())
        self._calls = 0

    def _remembered(self) -> Any:
        path = self._setup["state"]
        try:
            data = _state.load(path)
            return self._app.RecordDict() if data is None else unpacked(data).state
        except Exception as e:
            if not isinstance(e, FlowerError):
                e = FlowerError(
                    f"{path} cannot be read by flwr {self.version} ({e}). To begin with an empty memory: --damaged-state anew"
                )
            if self._setup["damaged_state"] != "anew":
                raise e from None
        print(f"girassol flower: ctx.state begins anew; the damaged file is kept as {_state.set_aside(path)}", file=sys.stderr, flush=True)
        return self._app.RecordDict()

    # Requests.

    def train(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Train once and write the arrays to ``result``."""
        with File(request["model"]) as start:
            names = self._names(start, request)
            reply = self._ask("train", start, names, request)
            if self.legacy:
                metrics = dict(reply.config_records["fitres.metrics"])
                weight = _records.num_examples(reply.metric_records["fitres.num_examples"], "num_examples")
            else:
                metrics = dict(_sole(reply.metric_records, "MetricRecord", "train"))
                weight = _records.num_examples(metrics, request["weighted_by"])
            returned = _records.tensors(_sole(reply.array_records, "ArrayRecord", "train"))
            if self.legacy and len(returned) != len(names):
                raise FlowerError(
                    f"fit returned {len(returned)} arrays, it was given {len(names)}: return all of get_parameters(), in the same order"
                )
            arrays = {names.get(name, name): value for name, value in returned.items()}
            _records.check(arrays, start)
            safetensors.save(request["result"], arrays)
        self._remember()
        loss = _records.loss_of(metrics, request["loss"])
        return {"samples": weight, "loss": loss, "metrics": _records.numbers(metrics, request["weighted_by"])}

    def evaluate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluate once."""
        with File(request["model"]) as start:
            reply = self._ask("evaluate", start, self._names(start, request), request)
        if self.legacy:
            metrics = dict(reply.config_records["evaluateres.metrics"])
            weight = _records.num_examples(reply.metric_records["evaluateres.num_examples"], "num_examples")
            loss: float | None = float(reply.metric_records["evaluateres.loss"]["loss"])
        else:
            metrics = dict(_sole(reply.metric_records, "MetricRecord", "evaluate"))
            weight = _records.num_examples(metrics, request["weighted_by"])
            loss = _records.loss_of(metrics, request["loss"])
        if loss is None:
            raise FlowerError(
                f"evaluate's MetricRecord has no loss under a usual name; it has {', '.join(sorted(metrics)) or 'nothing'}: "
                "name it with --loss NAME"
            )
        self._remember()
        return {"samples": weight, "loss": loss, "metrics": _records.numbers(metrics, request["weighted_by"])}

    def initial(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """First weights from what the command line names, or from get_parameters."""
        buffers: list[str] = []
        if request["source"]:
            arrays, buffers = self._given(request["source"])
        else:
            content = self._app.RecordDict({"getparametersins.config": self._app.ConfigRecord({})})
            reply = self._exchange("get_parameters", content, request)
            arrays = _records.tensors(_sole(reply.array_records, "ArrayRecord", "get_parameters"))
        if not arrays:
            raise FlowerError("it gives no arrays")
        _records.write(request["result"], arrays, buffers)
        return {"names": list(arrays), "buffers": buffers}

    def _given(self, source: str) -> tuple[dict[str, Any], list[str]]:
        if source.endswith(".safetensors"):
            with File(source) as f:
                buffers = f.metadata.get("girassol.buffers", "").split(",")
                return {name: f.tensor(name) for name in f}, [b for b in buffers if b]
        if source.endswith(".npz"):
            import numpy

            with numpy.load(source, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}, []
        value = _flwr.locate(source, self._setup["folder"], "--initial")
        if callable(value) and (isinstance(value, type) or not hasattr(value, "state_dict")):
            try:
                value = value()
            except Exception as e:
                raise FlowerError(
                    f"--initial {source}: {describe(e)}\n(it is called without arguments: name a function that needs none)"
                ) from None
        buffers = [name for name, _ in value.named_buffers()] if hasattr(value, "named_buffers") else []
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if isinstance(value, self._app.ArrayRecord):
            value = _records.tensors(value)
        elif isinstance(value, (list, tuple)):
            value = {str(i): v for i, v in enumerate(value)}
        if not isinstance(value, Mapping):
            raise FlowerError(
                f"--initial {source}: gives a {type(value).__name__}; want a torch module, a dict of arrays by name, or a list of arrays"
            )
        return dict(value), buffers

    # The call.

    def _names(self, start: File, request: Mapping[str, Any]) -> dict[str, str]:
        """Names in the message, in the app's order, and those in the file."""
        order = _records.in_order(list(start), request["order"])
        if not self.legacy:
            return {name: name for name in order or start}
        if order is None:
            raise FlowerError(
                f"the federation's weights have names ({', '.join(list(start)[:3])}, ...), and an app with client_fn knows positions only: "
                "name the model whose state_dict() has their order, --initial package.module:Net"
            )
        return {str(i): name for i, name in enumerate(order)}

    def _ask(self, kind: str, start: File, names: Mapping[str, str], request: Mapping[str, Any]) -> Any:
        """Send arrays and config in records like the ServerApp's first ones."""
        content = self._app.RecordDict()
        arrays, config = ("arrays", "config") if not self.legacy else ("fitins.parameters", "fitins.config")
        if kind == "evaluate" and self.legacy:
            arrays, config = "evaluateins.parameters", "evaluateins.config"
        if request["template"]:
            data = _state.load(request["template"])
            content = unpacked(data).state if data is not None else content
            arrays = next(iter(content.array_records), arrays)
            config = next(iter(content.config_records), config)
        content[arrays] = _records.array_record(self._app, start, names)
        if config not in content:
            content[config] = self._app.ConfigRecord({})
        entries = content.config_records[config]
        entries.update(request["config"])
        for key in _ROUND_KEYS:
            if key in entries or key == _ROUND_KEYS[-1]:
                entries[key] = request["round"]
        return self._exchange(kind, content, request)

    def _exchange(self, kind: str, content: Any, request: Mapping[str, Any]) -> Any:
        self._calls += 1
        node = self._setup["node_id"]
        message = self._app.Message(
            content=content, dst_node_id=node, message_type=kind, group_id=str(request["round"]), ttl=request["ttl"]
        )
        # As Flower's own grid does; nothing in the constructor says it.
        message.metadata.__dict__.update(
            _run_id=self._setup["run_id"], _src_node_id=1, _message_id=f"girassol-{request['round']}-{kind}-{self._calls}"
        )
        try:
            reply = self._call(message, self._context)
        except BaseException as e:
            raise AppError(describe(e) + self._cure(e, kind, content)) from None
        if not isinstance(reply, self._app.Message):
            raise FlowerError(f"the ClientApp's {kind} returned a {type(reply).__name__}: return Message(content=..., reply_to=message)")
        if reply.has_error():
            raise AppError(f"the ClientApp's {kind} replied with error {reply.error.code}: {str(reply.error.reason)[-_MAX_TEXT:]}")
        answer = reply.content
        for name, record in answer.config_records.items():
            if name.endswith("res.status") and record.get("code"):
                raise AppError(f"{kind} replied with status {record['code']}: {str(record.get('message'))[-_MAX_TEXT:]}")
        return answer

    def _cure(self, error: BaseException, kind: str, content: Any) -> str:
        if isinstance(error, SystemExit):
            return f"\nThe app called sys.exit({error.code!r}): raise an exception that says what is wrong, or return"
        if isinstance(error, ValueError) and str(error).startswith(f"No {kind} function registered"):
            return f"\nThis app does not {kind}"
        if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str):
            return ""
        key = error.args[0]
        if key in ("partition-id", "num-partitions"):
            return "\nSay which part of the data is this site's: --node-config partition-id=0 --node-config num-partitions=2"
        known = sorted({k for record in content.config_records.values() for k in record})
        return (
            f"\nIf {key!r} is wanted from the message's config (it has {', '.join(known)}): --{kind}-config {json.dumps(key)[1:-1]}=VALUE; "
            "if from ctx.node_config: --node-config"
        )

    def _remember(self) -> None:
        try:
            data = packed(self._context)
        except Exception as e:
            raise AppError(f"ctx.state cannot be kept: {describe(e)}") from None
        _state.save(self._setup["state"], data)


def _sole(records: Mapping[str, Any], kind: str, call: str) -> Mapping[str, Any]:
    if len(records) != 1:
        raise FlowerError(
            f"{call} replied with {len(records)} {kind}s ({', '.join(map(str, records)) or 'none'}), want one: "
            "Message(content=RecordDict({'arrays': ArrayRecord(...), 'metrics': MetricRecord(...)}), reply_to=message)"
        )
    record: Mapping[str, Any] = next(iter(records.values()))
    return record
