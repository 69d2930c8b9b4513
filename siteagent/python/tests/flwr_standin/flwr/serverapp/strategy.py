"""A strategy that sends rounds and merges nothing."""

from __future__ import annotations

from typing import Any

from ..app import ArrayRecord, ConfigRecord, Message, RecordDict
from . import Grid


class Strategy:
    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None, evaluate_fn: Any = None,
    ) -> None:  # fmt: skip
        if evaluate_fn is not None:
            evaluate_fn(0, initial_arrays)
        for number in range(1, num_rounds + 1):
            for configure, config in ((self.configure_train, train_config), (self.configure_evaluate, evaluate_config)):
                grid.send_and_receive(configure(number, initial_arrays, config or ConfigRecord({}), grid), timeout=timeout)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        raise NotImplementedError

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        raise NotImplementedError


class FedAvg(Strategy):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        return self._messages("train", server_round, arrays, config, grid)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        return self._messages("evaluate", server_round, arrays, config, grid)

    def _messages(self, kind: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        config["server-round"] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content=content, dst_node_id=node, message_type=kind) for node in grid.get_node_ids()]
