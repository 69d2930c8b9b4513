"""The child process as its parent sees it: start, requests, end.

A process group of its own, ended as a whole. Whatever happens to it is an
exception here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import FlowerError

__all__ = ["Limit", "Worker", "WorkerDied"]

_TICK = 0.1
_MAX_REPLY = 4 << 20
_MAX_TRACE = 2000
_TRACE_SECONDS = 2.0
_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class WorkerDied(FlowerError):
    """The process ended in mid-request, on its own."""


class Worker:
    """One child process, started by :meth:`start` and again after :meth:`end`."""

    def __init__(self, setup: Mapping[str, Any], seconds: float, home: str) -> None:
        self._setup, self._seconds, self._home = dict(setup), seconds, home
        self._trace = str(setup["trace"])
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = self._life = -1

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Begin; :meth:`open` waits until the app is loaded."""
        inner_in, self._requests = os.pipe()
        self._replies, inner_out = os.pipe()
        inner_life, self._life = os.pipe()
        environment = {
            "FLWR_HOME": self._home,
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(p for p in (_SOURCE, os.environ.get("PYTHONPATH")) if p),
        }
        inner = (inner_in, inner_out, inner_life)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "girassol.flower._child", *map(str, inner)],
                stdin=subprocess.DEVNULL, pass_fds=inner, env=environment, start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in inner:
                os.close(fd)

    def open(self, give_up: Callable[[], str | None] | None = None) -> dict[str, Any]:
        """Load the app; what it is."""
        return self.call({"op": "open", **self._setup}, give_up or Limit("loading the app", self._seconds))

    def call(self, request: Mapping[str, Any], give_up: Callable[[], str | None]) -> dict[str, Any]:
        """Send a request and wait for its reply.

        ``give_up`` is asked ten times a second; a text from it ends the process
        and is what the FlowerError says. So does an error that the reply has.
        """
        assert self._process is not None
        data, received = (json.dumps(request) + "\n").encode(), b""
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            raise self._died(request) from None
        while not received.endswith(b"\n"):
            # Worker processes of the app may hold the pipe open after its end.
            gone = self._process.poll() is not None
            readable, _, _ = select.select([self._replies], [], [], 0 if gone else _TICK)
            part = os.read(self._replies, 1 << 16) if readable else b""
            received += part
            if len(received) > _MAX_REPLY:
                self.end()
                raise FlowerError(f"{request['op']}: the reply has more than {_MAX_REPLY} bytes; return fewer metrics")
            if not part and (gone or readable):
                raise self._died(request)
            if not part:
                reason = give_up()
                if reason is not None:
                    where = self._where()
                    self.end()
                    raise FlowerError(f"{reason}{where}")
        answer: dict[str, Any] = json.loads(received)
        if "error" in answer:
            raise FlowerError(answer["error"])
        return answer

    def end(self) -> None:
        """Kill it and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for fd in (self._requests, self._replies, self._life):
            os.close(fd)

    def _died(self, request: Mapping[str, Any]) -> WorkerDied:
        assert self._process is not None
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        trace = self._read_trace()
        self.end()
        return WorkerDied(f"the app's process ended with {how} in {request['op']}" + (f":\n{trace}" if trace else ""))

    def _where(self) -> str:
        """The place where the app is now, from the process itself."""
        assert self._process is not None
        before = self._read_trace()
        try:
            self._process.send_signal(signal.SIGUSR1)
        except ProcessLookupError:
            return ""
        until = time.monotonic() + _TRACE_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            trace = self._read_trace()
            if trace != before and trace.endswith("\n"):
                break
            time.sleep(_TICK / 10)
        trace = self._read_trace()
        return f"\nit is at\n{trace.strip()}" if trace != before else ""

    def _read_trace(self) -> str:
        try:
            with open(self._trace, "rb") as f:
                f.seek(max(0, os.fstat(f.fileno()).st_size - _MAX_TRACE))
                return f.read().decode("utf-8", "replace")
        except OSError:
            return ""


class Limit:
    """Gives up after some seconds."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds, self._until = what, seconds, time.monotonic() + seconds

    def __call__(self) -> str | None:
        if time.monotonic() < self._until:
            return None
        return f"{self._what} took longer than {self._seconds:.0f} s (--start-seconds)"
