"""The installed flwr, and objects of the app that it runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from types import ModuleType
from typing import Any

from ._errors import FlowerError

__all__ = ["FLOOR", "identify", "load", "locate"]

FLOOR = (1, 21)
"""Oldest version with flwr.app and flwr.clientapp."""


def load() -> tuple[ModuleType, str]:
    """The module flwr.app and the version of flwr."""
    install = f"install it for {sys.executable}: pip install 'flwr>={FLOOR[0]}.{FLOOR[1]}'"
    try:
        import flwr
    except ImportError as e:
        raise FlowerError(f"flwr is not there ({e}): {install}") from None
    version = getattr(flwr, "__version__", "")
    if not version:
        try:
            version = importlib.metadata.version("flwr")
        except importlib.metadata.PackageNotFoundError:
            version = "0"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < FLOOR:
        raise FlowerError(f"flwr {version} is too old: {install}")
    return importlib.import_module("flwr.app"), version


def identify(run_id: int, node_id: int) -> None:
    """Tell flwr whose messages this process makes, where it wants to know (mid-2026 on)."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def locate(reference: str, folder: str, what: str) -> Any:
    """The object at module:attribute, looked for in the app's folder first."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module, _, path = reference.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is not None and (module == e.name or module.startswith(e.name + ".")):
            raise FlowerError(f"{what} {reference}: there is no module {e.name} in {folder} or installed") from None
        raise
    for name in path.split("."):
        if not hasattr(value, name):
            raise FlowerError(f"{what} {reference}: {module} has no {path}")
        value = getattr(value, name)
    return value
