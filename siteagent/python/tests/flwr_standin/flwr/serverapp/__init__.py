"""The ServerApp and its grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class Grid(ABC):
    @abstractmethod
    def get_node_ids(self) -> Iterable[int]: ...

    @abstractmethod
    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]: ...

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]: ...

    @abstractmethod
    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]: ...


class ServerApp:
    def __init__(self) -> None:
        self._main: Any = None

    def main(self) -> Any:
        def register(function: Any) -> Any:
            self._main = function
            return function

        return register

    def __call__(self, grid: Grid, context: Any) -> None:
        self._main(grid, context)
