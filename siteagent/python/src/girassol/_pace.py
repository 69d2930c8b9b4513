"""Whether another step ends before the stop time."""

from __future__ import annotations

from collections import deque

_RESERVE = 1.2
"""How many typical step times must be left for a step to begin."""


class Pace:
    """Learns from recent steps, over the rounds of a session."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=16)
        self._doubted = False

    @property
    def known(self) -> bool:
        return bool(self._recent)

    def took(self, seconds: float) -> None:
        if self._doubted:
            self._recent.clear()
            self._doubted = False
        self._recent.append(seconds)

    def fits(self, left: float, first: bool = False) -> bool:
        """A round's first step is worth a risk: without it the round is lost.

        For others the upper quartile counts: one step that stalled, because the
        machine did, says nothing about the next.
        """
        if left <= 0:
            return False
        if not self._recent:
            return True
        ordered = sorted(self._recent)
        if first:
            return left >= ordered[0]
        return left >= _RESERVE * ordered[(len(ordered) - 1) * 3 // 4]

    def doubt(self) -> None:
        """No step fitted into a round: believe in half, or nothing is ever learnt."""
        self._doubted = True
        self._recent = deque((s / 2 for s in self._recent), maxlen=16)
