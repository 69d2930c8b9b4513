"""Errors of this package."""

from __future__ import annotations

from ..errors import GirassolError

__all__ = ["FlowerError"]


class FlowerError(GirassolError):
    """The Flower app cannot be run as it is; the message says what to change."""
