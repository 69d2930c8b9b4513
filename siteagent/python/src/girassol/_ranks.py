"""One process, or the ranks of a torchrun: rank 0 speaks with the agent, and
what it hears reaches all."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from .errors import UsageError


class Ranks(Protocol):
    rank: int
    size: int

    def share(self, value: Any) -> Any:
        """Rank 0's value, at every rank. All ranks call it, at the same place."""

    def agree(self, code: int) -> int:
        """Rank 0's small number, at every rank; cheap enough for each step."""

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks."""


class Alone:
    """A program of one process."""

    rank = 0
    size = 1

    def share(self, value: Any) -> Any:
        return value

    def agree(self, code: int) -> int:
        return code

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)


class Group:
    """The ranks of torch.distributed, on a gloo group of our own: whatever the
    GPUs are busy with, words between the processes do not wait for them."""

    def __init__(self, distributed: Any) -> None:
        self._dist = distributed
        self.rank = int(distributed.get_rank())
        self.size = int(distributed.get_world_size())
        # Between rounds the other ranks wait for rank 0, for days if need be.
        self._group = distributed.new_group(backend="gloo", timeout=timedelta(days=365))

    def share(self, value: Any) -> Any:
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def agree(self, code: int) -> int:
        import torch

        t = torch.tensor([code], dtype=torch.int64)
        self._dist.broadcast(t, src=0, group=self._group)
        return int(t.item())

    def total(self, values: Sequence[float]) -> list[float]:
        import torch

        t = torch.tensor(list(values), dtype=torch.float64)
        self._dist.all_reduce(t, group=self._group)
        return [float(v) for v in t.tolist()]


def find() -> Ranks:
    """The ranks of this program. torch is looked at only if it is in use."""
    if "torch" in sys.modules:
        import torch.distributed as distributed

        if distributed.is_available() and distributed.is_initialized():
            return Group(distributed) if distributed.get_world_size() > 1 else Alone()
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ:
        raise UsageError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']} but the ranks do not know each other: "
            "call torch.distributed.init_process_group() before girassol.Session()"
        )
    return Alone()
