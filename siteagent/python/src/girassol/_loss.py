"""The losses of a round's steps: their mean by samples, and when they tell that the
training has gone wrong."""

from __future__ import annotations

import math
from typing import Any

from .errors import NonFiniteError, UsageError

_LOOK_EVERY = 0.05
_NOT_FINITE_STEPS = 10


class Losses:
    """What the steps have told so far."""

    def __init__(self) -> None:
        self.sum: Any = 0.0
        """Of losses times samples; a tensor while they are on a GPU."""
        self.samples = 0
        """Behind the sum."""
        self.last: float | None = None
        """The newest that was looked at."""
        self._looked = -math.inf
        self._not_finite = 0

    def note(self, loss: Any, samples: int, now: float, where: str, look: bool) -> None:
        """Take a step's loss, a number or a tensor of one element; ``look``: do not put
        off looking at it."""
        if loss is None:
            return
        if hasattr(loss, "detach"):
            loss = loss.detach()
            if getattr(loss.device, "type", "cpu") != "cpu":
                # Asking a GPU for a number waits for its queue, so that is done
                # often enough to keep the clock honest and no more.
                self.sum = self.sum + loss.double() * samples
                self.samples += samples
                if now - self._looked < _LOOK_EVERY and not look:
                    return
                self._looked = now
                self._judge(float(loss), where)
                return
        try:
            value = float(loss)
        except (TypeError, ValueError, RuntimeError) as e:
            raise UsageError(f"loss must be a number or a tensor of one element: {e}") from None
        self._judge(value, where)
        if math.isfinite(value):
            self.sum = self.sum + value * samples
            self.samples += samples

    def _judge(self, value: float, where: str) -> None:
        self.last = value
        if math.isfinite(value):
            self._not_finite = 0
            return
        self._not_finite += 1
        if self._not_finite >= _NOT_FINITE_STEPS:
            raise NonFiniteError(
                f"the loss is {value} since {self._not_finite} steps ({where}): "
                "lower the learning rate, clip gradients, or look for bad data"
            )
