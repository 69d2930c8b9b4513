"""The trainer API's calls over a Unix socket: one method each, no policy."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import time
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from .errors import AgentError, RefusedError

_MAX_ANSWER = 4 << 20
_TIMEOUT = 10.0


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("agent", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Calls the agent. Each call has a connection of its own, so several
    threads may call at once."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path

    def next_task(self, wait: float, wake: int | None = None) -> dict[str, Any] | None:
        """Ask for a task and wait up to ``wait`` seconds; None: nothing to do.

        When the file descriptor ``wake`` gets readable the question is taken
        back. A task may come all the same, and is then in flight.
        """
        return self._call("GET", f"/v1/task?wait={quote(f'{wait:.3f}s')}", None, wait + _TIMEOUT, wake)

    def progress(self, task: str, body: dict[str, Any], timeout: float = _TIMEOUT) -> dict[str, Any]:
        answer = self._call("POST", _task(task, "progress"), body, timeout)
        if answer is None:
            raise AgentError("the answer to a progress has no directive")
        return answer

    def result(self, task: str, body: dict[str, Any]) -> None:
        self._call("POST", _task(task, "result"), body, _TIMEOUT)

    def failure(self, task: str, reason: str) -> None:
        self._call("POST", _task(task, "failure"), {"reason": reason}, _TIMEOUT)

    def seed(self, path: str) -> None:
        """Offer first weights; refused with status 409 when none are wanted."""
        self._call("PUT", "/v1/model", {"path": path}, _TIMEOUT)

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None, timeout: float, wake: int | None = None
    ) -> dict[str, Any] | None:
        connection = _Connection(self.socket_path, timeout)
        try:
            headers = {"Connection": "close"}
            data = None
            if body is not None:
                headers["Content-Type"] = "application/json"
                data = json.dumps(body, allow_nan=False).encode()
            connection.request(method, path, data, headers)
            if wake is not None:
                readable, _, _ = select.select([connection.sock, wake], [], [], timeout)
                if wake in readable:
                    # Half closed, the agent answers at once, and we hear
                    # whether it has handed a task out after all.
                    connection.sock.shutdown(socket.SHUT_WR)
                    connection.sock.settimeout(2.0)
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER)
        except (OSError, http.client.HTTPException) as e:
            raise AgentError(f"agent on {self.socket_path}: {method} {path}: {e or type(e).__name__}") from e
        finally:
            connection.close()
        if response.status == 204:
            return None
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        if response.status != 200:
            problem = value.get("error") if isinstance(value, dict) else None
            raise RefusedError(response.status, str(problem or "(no problem body)"))
        if not isinstance(value, dict):
            raise AgentError(f"agent on {self.socket_path}: {method} {path}: the answer is no object")
        return value


def _task(task: str, what: str) -> str:
    return f"/v1/tasks/{quote(task, safe='')}/{what}"


_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?(?:[Zz]|([+-])(\d\d):(\d\d))")


def unix_seconds(text: str) -> float:
    """An RFC 3339 time, of any precision, as seconds since 1970."""
    m = _RFC3339.fullmatch(text)
    if m is None:
        raise ValueError(f"{text[:40]!r} is no RFC 3339 time")
    day, clock, fraction, sign, hours, minutes = m.groups()
    seconds = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=timezone.utc).timestamp()
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    return seconds + float(fraction or 0) - offset


def deadline(task: dict[str, Any]) -> float:
    """A task's stop time on this process's monotonic clock: a step of the wall
    clock can bring it nearer before the task, and cannot move it after."""
    span = min(float(task["stopInSeconds"]), unix_seconds(task["stopAt"]) - time.time())
    return time.monotonic() + span
