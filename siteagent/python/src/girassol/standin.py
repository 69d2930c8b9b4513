"""A stand-in for the site agent: the trainer API on a Unix socket, for trying
scripts out without a federation.

It keeps the agent's rules for bodies, paths and task states. It has no rounds,
no merging and no other sites.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import socketserver
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Agent", "Task"]

_MAX_BODY = 1 << 20
_MAX_WAIT = 60.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Fields and whether they must be there.
_Fields = dict[str, tuple[type, bool]]
_PROGRESS: _Fields = {"steps": (int, True), "samples": (int, True), "loss": (float, False), "trainer": (dict, False)}
_RESULT: _Fields = {
    "path": (str, False),
    "steps": (int, True),
    "samples": (int, True),
    "loss": (float, False),
    "metrics": (dict, False),
    "consumed": (list, False),
}
_FAILURE: _Fields = {"reason": (str, True)}
_SEED: _Fields = {"path": (str, True)}


class Task:
    """A task and what became of it."""

    def __init__(self, id: str, kind: str, round: int, model_path: str, seconds: float, **more: Any) -> None:
        self.id, self.kind = id, kind
        self.stop = time.time() + seconds
        self.body: dict[str, Any] = {
            "id": id,
            "kind": kind,
            "round": round,
            "modelPath": model_path,
            "stopAt": datetime.fromtimestamp(self.stop, timezone.utc).isoformat().replace("+00:00", "Z"),
            "committedSamples": 0,
            **more,
        }
        self.takes = 0
        self.taken_at = self.ended_at = 0.0
        self.order = "continue"
        """Action that the next progress is answered."""
        self.finish_after: int | None = None
        """Reports after which progress is answered with finish."""
        self.progress: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self.failure: str | None = None
        self.done = threading.Event()

    def directive(self, report: dict[str, Any]) -> dict[str, str]:
        if self.finish_after is not None and len(self.progress) >= self.finish_after:
            self.order = "finish"
        most = self.body.get("maxSteps") or 0
        if self.order == "continue" and (time.time() >= self.stop or 0 < most <= report["steps"]):
            return {"action": "finish", "reason": "the stop time or the step budget is reached"}
        return {"action": self.order} if self.order == "continue" else {"action": self.order, "reason": "so ordered"}


class _Refusal(Exception):
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    agent: Agent

    def handle_error(self, *_: object) -> None:  # a client that hung up is no news
        pass


class Agent:
    """Serves one trainer; a context manager. One task at a time."""

    def __init__(self, socket_path: str, work_dir: str) -> None:
        self.socket_path, self.work_dir = socket_path, os.path.realpath(work_dir)
        self.seed_wanted = False
        self.seeds: list[str] = []
        self.refusals: list[str] = []
        """Problems that were answered, 409 excepted."""
        self.polls = 0
        self._task: Task | None = None
        self._ended: dict[str, Task] = {}
        self._stopping = False
        self._changed = threading.Condition()
        self._server: _Server | None = None

    def __enter__(self) -> Agent:
        self._server = _Server(self.socket_path, _Handler)
        self._server.agent = self
        os.chmod(self.socket_path, 0o600)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            os.unlink(self.socket_path)

    def want_seed(self, wanted: bool = True) -> None:
        with self._changed:
            self.seed_wanted = wanted
            self._changed.notify_all()

    def give(self, task: Task) -> Task:
        """Put a task in the trainer's way; wait for ``task.done``."""
        with self._changed:
            if self._task is not None:
                raise RuntimeError(f"task {self._task.id} is not over")
            self._task = task
            self._changed.notify_all()
        return task

    def drop(self, task: Task, order: str = "abort") -> None:
        """Forget a task; its trainer hears abort."""
        with self._changed:
            task.order = order
            self._end(task)

    def wait(self, condition: Any, seconds: float) -> bool:
        """Wait until ``condition(agent)``, looking at each request."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: condition(self), seconds))

    def _end(self, task: Task) -> None:
        task.ended_at = time.time()
        self._ended[task.id] = task
        if self._task is task:
            self._task = None
        task.done.set()
        self._changed.notify_all()

    # Calls, with the lock held.

    def _find(self, id: str) -> Task:
        task = self._task
        if task is not None and task.id == id and task.takes:
            return task
        if id in self._ended:
            raise _Refusal(409, f"task {id} is over")
        raise _Refusal(404, f"no task {id[:140]!r}")

    def _next(self, wait: float, gone: Any) -> dict[str, Any] | None:
        self.polls += 1
        self._changed.notify_all()
        seed_wanted, until = self.seed_wanted, time.monotonic() + wait
        while True:
            if self._stopping:
                raise _Refusal(503, "the agent is stopping")
            if gone():
                return None
            task = self._task
            if task is not None and time.time() < task.stop:
                task.takes += 1
                task.taken_at = time.time()
                return {**task.body, "stopInSeconds": task.stop - time.time()}
            left = until - time.monotonic()
            if left <= 0 or (self.seed_wanted and not seed_wanted):
                return None
            self._changed.wait(min(left, 0.05))

    def _progress(self, id: str, body: dict[str, Any]) -> dict[str, str]:
        ended = self._ended.get(id)
        if ended is not None and ended.order == "abort":
            return {"action": "abort", "reason": "the task was aborted"}
        task = self._find(id)
        task.progress.append(body)
        self._changed.notify_all()
        return task.directive(body)

    def _result(self, id: str, body: dict[str, Any]) -> None:
        ended = self._ended.get(id)
        if ended is not None and ended.result is not None:
            return
        task = self._find(id)
        metrics = body.get("metrics", {})
        if len(metrics) > 256 or any(type(v) not in (int, float) or not 0 < len(k.encode()) <= 128 for k, v in metrics.items()):
            raise _Refusal(400, "metrics: at most 256 numbers, with names of 1 to 128 bytes")
        if problem := _misused(task.body.get("data") or [], body):
            raise _Refusal(400, problem)
        if task.kind == "evaluate":
            if body.get("path"):
                raise _Refusal(400, "an evaluate task's result has no path")
        elif body["steps"] or body.get("path"):
            if body["steps"] and not body["samples"]:
                raise _Refusal(400, f"{body['steps']} steps on 0 samples: samples is the update's weight and must be positive")
            body["path"] = self._inside(body.get("path", ""))
        task.result = body
        self._end(task)

    def _failure(self, id: str, body: dict[str, Any]) -> None:
        task = self._find(id)
        task.failure = body["reason"] or "the trainer gave no reason"
        self._end(task)

    def _seed(self, body: dict[str, Any]) -> None:
        if not self.seed_wanted:
            raise _Refusal(409, "no first weights are wanted now")
        path = self._inside(body["path"])
        self.seed_wanted = False
        self.seeds.append(path)
        self._changed.notify_all()

    def _inside(self, path: str) -> str:
        resolved = os.path.realpath(os.path.join(self.work_dir, path))
        if not path or not resolved.startswith(self.work_dir + os.sep):
            raise _Refusal(400, f"path {path!r} leads out of the work folder {self.work_dir}")
        if not os.path.isfile(resolved):
            raise _Refusal(400, f"path {path!r} is no regular file")
        return resolved


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "trainer"

    def log_message(self, *_: object) -> None:
        pass

    @property
    def _agent(self) -> Agent:
        assert isinstance(self.server, _Server)
        return self.server.agent

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        try:
            answer = self._route(method)
            status = 204 if answer is None else 200
        except _Refusal as e:
            status, answer = e.status, {"error": str(e)}
            if status != 409:
                with self._agent._changed:
                    self._agent.refusals.append(f"{method} {self.path}: {e}")
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        if answer is not None:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _route(self, method: str) -> dict[str, Any] | None:
        url = urlsplit(self.path)
        parts = [unquote(p) for p in url.path.split("/")[1:]]
        agent = self._agent
        if parts == ["v1", "task"] and method == "GET":
            wait = min(_seconds(parse_qs(url.query).get("wait", ["0s"])[0]), _MAX_WAIT)
            with agent._changed:
                return agent._next(wait, self._gone)
        if parts == ["v1", "model"] and method == "PUT":
            seed = self._body(_SEED)
            with agent._changed:
                agent._seed(seed)
            return None
        if len(parts) == 4 and parts[:2] == ["v1", "tasks"] and method == "POST":
            fields = {"progress": _PROGRESS, "result": _RESULT, "failure": _FAILURE}.get(parts[3])
            if fields is not None:
                body = self._body(fields)
                with agent._changed:
                    if parts[3] == "progress":
                        return agent._progress(parts[2], body)
                    (agent._result if parts[3] == "result" else agent._failure)(parts[2], body)
                return None
        raise _Refusal(404, f"no such path {method} {url.path!r}")

    def _gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _body(self, fields: _Fields) -> dict[str, Any]:
        n = int(self.headers.get("Content-Length") or 0)
        if n > _MAX_BODY:
            raise _Refusal(413, f"the body has more than {_MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(n), parse_constant=_no_constant)
        except ValueError as e:
            raise _Refusal(400, f"the body is no JSON: {e}") from None
        if not isinstance(body, dict):
            raise _Refusal(400, "the body is no object")
        for name, value in body.items():
            if name not in fields:
                raise _Refusal(400, f"unknown field {name!r}")
            kind = fields[name][0]
            if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
                raise _Refusal(400, f"field {name!r} is no {kind.__name__}")
            if isinstance(value, int) and value < 0 and kind is int:
                raise _Refusal(400, f"field {name!r} is negative")
        for name, (_, required) in fields.items():
            if required and name not in body:
                raise _Refusal(400, f"field {name!r} is missing")
        return body


def _misused(data: list[dict[str, int]], result: dict[str, Any]) -> str:
    """What is wrong with the samples that a result has used, as the agent says it."""
    used = result.get("consumed") or []
    if not data:
        return "consumed: the task has no data, so none can be consumed" if used else ""
    if not used:
        return "consumed is missing: say which samples of the task's data the steps used: draw them from round.data" if result["steps"] else ""
    last = (0, 0)
    for r in used:
        if not isinstance(r, dict) or any(type(v) is not int or v < 0 for v in r.values()) or not {"begin", "end"} <= set(r) <= {"begin", "end", "pass"}:
            return f"consumed: {str(r)[:80]} is no range"
        number, begin, end = r.get("pass", 0), r["begin"], r["end"]
        if begin >= end or (number, begin) < last:
            return f"consumed: {r} is empty, or does not lie behind the one before"
        last = (number, end)
        for lease in data:
            if lease.get("pass", 0) == number and lease["begin"] <= begin < lease["end"]:
                begin = lease["end"]
        if begin < end:
            return f"consumed: {r} is not in the task's data: use those samples only"
    return ""


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number (numbers must be finite: leave out a loss that is not)")


def _seconds(text: str) -> float:
    parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise _Refusal(400, f"wait={text[:40]!r} is no duration such as 30s")
    return sum(float(n) * _UNITS[u] for n, u in parts)
