"""Records, messages and contexts."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DEFAULT_TTL = 43200.0


class MessageType:
    TRAIN, EVALUATE, QUERY = "train", "evaluate", "query"


class Array:
    """A serialized array: of a numpy array, or of dtype, shape, stype and data."""

    def __init__(self, *args: Any, dtype: Any = None, shape: Any = None, stype: Any = None, data: Any = None) -> None:
        if len(args) == 1 and isinstance(args[0], np.ndarray):
            buffer = io.BytesIO()
            np.save(buffer, args[0], allow_pickle=False)
            self.dtype, self.shape = str(args[0].dtype), tuple(args[0].shape)
            self.stype, self.data = "numpy.ndarray", buffer.getvalue()
        elif not args and isinstance(data, bytes):
            self.dtype, self.shape, self.stype, self.data = dtype, shape, stype, data
        else:
            raise TypeError("Invalid arguments for Array")

    def numpy(self) -> Any:
        if self.stype != "numpy.ndarray":
            raise TypeError(f"Unsupported serialization type for numpy conversion: {self.stype!r}")
        return np.load(io.BytesIO(self.data), allow_pickle=False)


class _Record(MutableMapping):  # type: ignore[type-arg]
    def __init__(self, values: Any = None) -> None:
        self._values: dict[str, Any] = {}
        for key, value in (values or {}).items():
            self[key] = value

    def check(self, value: Any) -> None:
        raise NotImplementedError

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError("Key must be of type `str`")
        self.check(value)
        self._values[key] = value

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class ArrayRecord(_Record):
    def __init__(self, values: Any = None) -> None:
        if isinstance(values, list):
            values = {str(i): Array(a) for i, a in enumerate(values)}
        super().__init__(values)

    def check(self, value: Any) -> None:
        if not isinstance(value, Array):
            raise TypeError("Value must be an Array")

    def to_numpy_ndarrays(self) -> list[Any]:
        return [a.numpy() for a in self.values()]


def _scalar(value: Any, kinds: tuple[type, ...]) -> None:
    values = value if isinstance(value, list) else [value]
    if any(type(v) not in kinds and not (isinstance(v, kinds) and not isinstance(v, bool)) for v in values):
        raise TypeError(f"Not all values are of valid type: {value!r}")


class MetricRecord(_Record):
    def check(self, value: Any) -> None:
        _scalar(value, (int, float))


class ConfigRecord(_Record):
    def check(self, value: Any) -> None:
        _scalar(value, (int, float, str, bytes, bool))


class _View(MutableMapping):  # type: ignore[type-arg]
    """The records of one kind in a RecordDict."""

    def __init__(self, records: RecordDict, kind: type) -> None:
        self._records, self._kind = records, kind

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._records[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._records[key] = value

    def __delitem__(self, key: str) -> None:
        del self._records[key]

    def __contains__(self, key: object) -> bool:
        return key in self._records and isinstance(self._records[key], self._kind)  # type: ignore[index]

    def __iter__(self) -> Iterator[str]:
        return (k for k, v in self._records.items() if isinstance(v, self._kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RecordDict(_Record):
    def check(self, value: Any) -> None:
        if not isinstance(value, (ArrayRecord, MetricRecord, ConfigRecord)):
            raise TypeError("Value must be a record")

    @property
    def array_records(self) -> Any:
        return _View(self, ArrayRecord)

    @property
    def metric_records(self) -> Any:
        return _View(self, MetricRecord)

    @property
    def config_records(self) -> Any:
        return _View(self, ConfigRecord)


@dataclass
class Context:
    run_id: int
    node_id: int
    node_config: dict[str, Any]
    state: RecordDict
    run_config: dict[str, Any]
    series_id: int = 0


@dataclass
class Error:
    code: int
    reason: str | None = None


@dataclass
class Metadata:
    _dst_node_id: int
    _message_type: str
    _group_id: str = ""
    _ttl: float = DEFAULT_TTL
    _run_id: int = 0
    _src_node_id: int = 0
    _message_id: str = ""
    _reply_to_message_id: str = ""
    _created_at: float = field(default_factory=time.time)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_" + name]
        except KeyError:
            raise AttributeError(name) from None


class Message:
    def __init__(
        self, content: Any = None, dst_node_id: int | None = None, message_type: str | None = None, *,
        error: Error | None = None, ttl: float | None = None, group_id: str | None = None, reply_to: Message | None = None,
    ) -> None:  # fmt: skip
        if isinstance(content, Error):
            content, error = None, content
        if content is not None and not isinstance(content, RecordDict):
            raise TypeError("Invalid arguments for Message")
        self._content, self._error = content, error
        if reply_to is not None:
            to = reply_to.metadata
            self.metadata = Metadata(to.src_node_id, to.message_type, to.group_id, to.ttl, to.run_id, to.dst_node_id, "", to.message_id)
        elif dst_node_id is not None and message_type is not None:
            self.metadata = Metadata(dst_node_id, message_type, group_id or "", ttl or DEFAULT_TTL)
        else:
            raise TypeError("Invalid arguments for Message")

    @property
    def content(self) -> RecordDict:
        if self._content is None:
            raise ValueError("Message content is None")
        return self._content

    @property
    def error(self) -> Error:
        assert self._error is not None
        return self._error

    def has_content(self) -> bool:
        return self._content is not None

    def has_error(self) -> bool:
        return self._error is not None
