"""Clients of before the Message API."""

from __future__ import annotations

from typing import Any

from .app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from .clientapp import ClientApp as ClientApp


class Client:
    """Only what NumPyClient.to_client makes."""

    def __init__(self, inner: NumPyClient) -> None:
        self.inner = inner


class NumPyClient:
    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        return []

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        raise NotImplementedError

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        raise NotImplementedError

    def to_client(self) -> Client:
        return Client(self)


def handle(client_fn: Any, message: Message, context: Context) -> Message:
    client = client_fn(context)
    inner = client.inner if isinstance(client, Client) else client
    kind, content = message.metadata.message_type, message.content
    if kind == "get_parameters" and type(inner).get_parameters is NumPyClient.get_parameters:
        out = _result("getparametersres", {"parameters": _arrays([])}, 2, "Client does not implement `get_parameters`")
    elif kind == "get_parameters":
        out = _result("getparametersres", {"parameters": _arrays(inner.get_parameters({}))})
    elif kind == "train":
        given = content.array_records["fitins.parameters"].to_numpy_ndarrays()
        arrays, n, metrics = inner.fit(given, dict(content.config_records["fitins.config"]))
        count = MetricRecord({"num_examples": n})
        out = _result("fitres", {"parameters": _arrays(arrays), "num_examples": count, "metrics": ConfigRecord(metrics)})
    elif kind == "evaluate":
        given = content.array_records["evaluateins.parameters"].to_numpy_ndarrays()
        loss, n, metrics = inner.evaluate(given, dict(content.config_records["evaluateins.config"]))
        out = _result(
            "evaluateres",
            {"loss": MetricRecord({"loss": loss}), "num_examples": MetricRecord({"num_examples": n}), "metrics": ConfigRecord(metrics)},
        )
    else:
        raise ValueError(f"Invalid message type: {kind}")
    return Message(content=out, reply_to=message)


def _result(prefix: str, records: dict[str, Any], code: int = 0, message: str = "Success") -> RecordDict:
    records["status"] = ConfigRecord({"code": code, "message": message})
    return RecordDict({f"{prefix}.{name}": record for name, record in records.items()})


def _arrays(arrays: list[Any]) -> ArrayRecord:
    import numpy as np

    out = {str(i): Array(dtype="", shape=(), stype="numpy.ndarray", data=Array(np.asarray(a)).data) for i, a in enumerate(arrays)}
    return ArrayRecord(out or {"_empty": Array(dtype="", shape=(), stype="numpy.ndarray", data=b"")})
