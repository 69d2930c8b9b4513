"""The ClientApp."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

from .app import Context, Message


class ClientApp:
    def __init__(self, client_fn: Callable[[Context], Any] | None = None, mods: list[Any] | None = None) -> None:
        self._mods = mods or []
        self._functions: dict[str, Any] = {}
        self._lifespan: Any = lambda _: nullcontext()
        self._call: Any = None
        if client_fn is not None:
            from .client import handle

            self._call = _wrapped(lambda message, context: handle(client_fn, message, context), self._mods)

    def __call__(self, message: Message, context: Context) -> Message:
        with self._lifespan(context):
            if self._call is not None:
                return self._call(message, context)
            kind, _, action = message.metadata.message_type.partition(".")
            function = self._functions.get(f"{kind}.{action or 'default'}")
            if function is None:
                raise ValueError(f"No {kind} function registered with name '{action or 'default'}'")
            return function(message, context)

    def _register(self, kind: str, action: str, mods: list[Any] | None) -> Any:
        def register(function: Any) -> Any:
            self._functions[f"{kind}.{action}"] = _wrapped(function, self._mods + (mods or []))
            return function

        return register

    def train(self, action: str = "default", *, mods: list[Any] | None = None) -> Any:
        return self._register("train", action, mods)

    def evaluate(self, action: str = "default", *, mods: list[Any] | None = None) -> Any:
        return self._register("evaluate", action, mods)

    def query(self, action: str = "default", *, mods: list[Any] | None = None) -> Any:
        return self._register("query", action, mods)

    def lifespan(self) -> Any:
        def register(function: Any) -> Any:
            self._lifespan = contextmanager(function)
            return function

        return register


def _wrapped(function: Any, mods: list[Any]) -> Any:
    for mod in reversed(mods):
        function = (lambda mod, inner: lambda message, context: mod(message, context, inner))(mod, function)
    return function
