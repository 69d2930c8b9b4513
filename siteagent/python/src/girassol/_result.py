"""What a round hands in: weights in a file, metrics, and their way to the agent."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import _layout, safetensors
from ._client import Client
from .errors import AgentError, RefusedError, UsageError

log = logging.getLogger("girassol")

_TRIES = 20
_MAX_METRICS = 256
_MAX_METRIC_NAME = 128


def written(state_dict: Mapping[str, Any] | safetensors.File, model_path: str, result_path: str) -> str:
    """Path of the file that has the weights, which are the model of ``model_path``."""
    with safetensors.File(model_path) as start:
        if isinstance(state_dict, safetensors.File):
            _layout.check_layout(state_dict.specs, start.specs)
            return state_dict.path
        specs = _layout.specs_of(state_dict)
        _layout.check_layout(specs, start.specs)
        _layout.check_finite(state_dict)
        _layout.check_swapped(state_dict, start)
        safetensors.save(result_path, state_dict)
    return result_path


def metrics_of(own: Mapping[str, float], given: Mapping[str, float] | None) -> dict[str, float]:
    """Our own metrics and the script's, those that are finite."""
    out = dict(own)
    for name, value in (given or {}).items():
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"metric {name!r} is no number but a {type(value).__name__}") from None
        if not 0 < len(str(name).encode()) <= _MAX_METRIC_NAME:
            raise UsageError(f"metric name {str(name)[:40]!r} must have 1 to {_MAX_METRIC_NAME} bytes")
        if math.isfinite(number):
            out[str(name)] = number
        else:
            log.warning("metric %s is %s and left out", name, number)
    if len(out) > _MAX_METRICS:
        raise UsageError(f"{len(out)} metrics, at most {_MAX_METRICS}")
    return out


def deliver(client: Client, task: str, body: dict[str, Any], stopping: threading.Event) -> str | None:
    """Bring a result to the agent, which may be away for a while; None when it was
    taken, else why nobody waits for it any more."""
    pause = 0.1
    for tries in range(_TRIES):
        try:
            client.result(task, body)
            return None
        except RefusedError as e:
            if e.status in (404, 409):
                return e.problem
            if e.status < 500:
                raise
            error: AgentError = e
        except AgentError as e:
            error = e
        if tries == 0:
            log.warning("result not delivered yet: %s", error)
        if stopping.wait(pause):
            time.sleep(pause)
        pause = min(2 * pause, 5.0)
    raise error
