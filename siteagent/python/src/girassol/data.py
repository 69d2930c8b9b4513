"""Samples of a corpus that all sites share: which of them a round may use, and
which it has used.

It owns the counting. What a sample is, and how to read one, is the script's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .errors import UsageError

__all__ = ["Data", "DataRange"]

_MAX_RANGES = 1024


class DataRange(NamedTuple):
    """The samples ``begin`` to ``end - 1`` of one pass over the corpus."""

    begin: int
    end: int
    number: int = 0
    """Of the pass, from 0."""


class Data:
    """The samples that a round may use, as an iterator over their numbers, in
    order::

        for index in round.data:
            ...

    :meth:`take` and :meth:`Round.sampler` give several at a time. A sample counts
    as used when it was handed out before a :meth:`Round.step`: it is consumed for
    all sites when the round's update is merged, and what was handed out since the
    last step goes back with the rest. Without a data ledger (``spec.data``) it is
    empty and false, and the script trains on data of its own.

    Under torchrun the ranks share the samples: each gets its part, as many as the
    others. When fewer samples than ranks are left, some ranks repeat one.
    """

    def __init__(self, ranges: Sequence[DataRange], rank: int = 0, size: int = 1) -> None:
        self.ranges = tuple(ranges)
        """All that the round may use, ascending."""
        self._rank, self._size = rank, size
        self._total = sum(r.end - r.begin for r in self.ranges)
        # As many for each rank: what is left over goes back.
        self._length = max(1, self._total // size) if self._total else 0
        self._drawn = self._used = 0  # of this rank
        self._marks: list[int] = []
        self._seen = 0  # batches that have come out of a loader
        self._range = self._before = 0  # where the last index was found

    def __len__(self) -> int:
        """Samples for this rank, used ones too."""
        return self._length

    @property
    def left(self) -> int:
        """Samples for this rank that were not handed out yet."""
        return self._length - self._drawn

    @property
    def used_up(self) -> bool:
        """Whether all samples were used by steps."""
        return self._length > 0 and self._used >= self._length

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self._drawn >= self._length:
            raise StopIteration
        self._drawn += 1
        return self._index(min((self._drawn - 1) * self._size + self._rank, self._total - 1))

    def take(self, n: int) -> list[int]:
        """The next n samples, fewer at the end."""
        return [next(self) for _ in range(min(n, self.left))]

    def _index(self, position: int) -> int:
        while True:
            r = self.ranges[self._range]
            if position < self._before + r.end - r.begin:
                return r.begin + position - self._before
            self._before += r.end - r.begin
            self._range += 1

    # What was used.

    def _batch(self, n: int) -> list[int]:
        batch = self.take(n)
        if batch:
            self._marks.append(self._drawn)
        return batch

    def _stepped(self) -> None:
        """A step has used what was handed out. A DataLoader's workers ask for
        batches ahead of it; what Round.batches has let through tells how far."""
        if self._seen and self._marks:
            self._used = max(self._used, self._marks[min(self._seen, len(self._marks)) - 1])
        else:
            self._used = self._drawn

    def _consumed(self, used: Sequence[float]) -> list[DataRange]:
        """What all ranks have used, told how many each has."""
        if len({int(n) for n in used}) != 1:
            raise UsageError(
                f"the ranks have used {[int(n) for n in used]} samples: each must draw as many per step, such as round.sampler(batch_size) does"
            )
        left = min(int(used[0]) * self._size, self._total)
        out = []
        for r in self.ranges:
            if left > 0:
                out.append(DataRange(r.begin, min(r.end, r.begin + left), r.number))
                left -= out[-1].end - out[-1].begin
        return out


class Sampler:
    """Batches of sample numbers; torch's DataLoader takes it as batch_sampler."""

    def __init__(self, data: Data, batch_size: int) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: at least 1")
        self._data, self._batch_size = data, int(batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        while batch := self._data._batch(self._batch_size):
            yield batch

    def __len__(self) -> int:
        return -(-self._data.left // self._batch_size)


def ranges_of(told: Any) -> list[DataRange]:
    """The ranges of a task's data."""
    return [DataRange(int(r["begin"]), int(r["end"]), int(r.get("pass") or 0)) for r in told or ()]


def body_of(consumed: Iterable[Sequence[int]], data: Data) -> list[dict[str, int]]:
    """Consumed samples as a result tells them, refused where the agent would."""
    ranges = [DataRange(*map(int, r)) for r in consumed]
    if len(ranges) > _MAX_RANGES:
        raise UsageError(f"consumed: {len(ranges)} ranges, at most {_MAX_RANGES}: use the samples in their order, and shuffle by how the corpus is numbered")
    last = DataRange(0, 0, -1)
    for r in ranges:
        if r.begin >= r.end:
            raise UsageError(f"consumed: {tuple(r)} is empty or backward")
        if (r.number, r.begin) < (last.number, last.end):
            raise UsageError(f"consumed: {tuple(r)} does not lie behind {tuple(last)}: ranges go upward and do not overlap")
        if not _covered(r, data.ranges):
            raise UsageError(f"consumed: {tuple(r)} is not in round.data.ranges: use those samples only")
        last = r
    return [{"begin": r.begin, "end": r.end, "pass": r.number} for r in ranges]


def _covered(r: DataRange, ranges: Sequence[DataRange]) -> bool:
    begin = r.begin
    for lease in ranges:
        if lease.number == r.number and lease.begin <= begin < lease.end:
            begin = lease.end
            if begin >= r.end:
                return True
    return False
