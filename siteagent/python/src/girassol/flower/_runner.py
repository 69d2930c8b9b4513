"""Rounds of a federation as calls of a ClientApp.

It owns what a task is to the app and what a reply is to the round, when a call
begins and how long it is waited for. It must not import flwr.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import safetensors
from ..errors import GirassolError, RefusedError
from ..round import Action, Round
from ..session import Session
from . import _project
from ._errors import FlowerError
from ._worker import Limit, Worker

__all__ = ["Options", "Runner"]

log = logging.getLogger("girassol.flower")

_REPORT_EVERY = 1.0
_PAUSE, _MAX_PAUSE = 0.5, 30.0
_TTL = 3600.0
_LATE_BY_ITSELF = 1e6
_INITIAL = "initial.safetensors"


class Options(NamedTuple):
    """What the command line says."""

    project: _project.Project
    """With its run-config, overrides applied."""
    node_config: _project.Config
    train_config: _project.Config
    evaluate_config: _project.Config
    initial: str
    """First weights: module:attribute, or a file's absolute path."""
    use_server_app: bool
    state_folder: str
    damaged_state: str
    weighted_by: str
    loss: str
    fresh: bool
    late_seconds: float
    drain_seconds: float
    start_seconds: float


class _Cut(Exception):
    """The call was ended, and nobody is to blame."""


class Runner:
    """One site's trainer."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: Session
        self._worker: Worker
        self._names: list[str] | None = None
        self._templates: dict[str, str] = {}
        self._initial = ""
        self._legacy = False
        self._facts: dict[str, str] = {}
        self._failures = 0

    def run(self) -> None:
        """Train until told to end. FlowerError: the app cannot be run."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_locked(self._options.state_folder))
            self._load(stack)
            seed = _Seed(self) if self._initial or self._legacy else None
            if seed is None:
                log.warning("no first weights from this site: it waits for another, or give --initial package.module:Net")
            # This loop has its own watch over calls that do not return.
            self._session = stack.enter_context(Session(seed=seed, evaluate=True, trainer=self._facts, late_seconds=_LATE_BY_ITSELF))
            for round in self._session:
                self._round(round)

    # The start.

    def _load(self, stack: contextlib.ExitStack) -> None:
        options = self._options
        setup = {**self._setup(), "role": "client", "trace": self._path("client.trace")}
        self._worker = Worker(setup, options.start_seconds, self._path("flwr"))
        stack.callback(self._worker.end)
        self._worker.start()
        server = None
        if options.use_server_app and options.project.server_app:
            setup = {**setup, "role": "server", "trace": self._path("server.trace")}
            server = Worker(setup, options.start_seconds, self._path("flwr"))
            stack.callback(server.end)
            server.start()
        about = self._worker.open()
        self._legacy = bool(about["legacy"])
        self._facts = {"flwr": str(about["flwr"])[:32], "app": options.project.client_app[-64:]}
        kind = "client_fn" if self._legacy else "message"
        log.info("%s: %s API, flwr %s", options.project.client_app, kind, about["flwr"])
        if server is not None:
            self._plan(server)
        if options.initial:
            given = self._worker.call(
                {"op": "initial", "source": options.initial, "result": self._path(_INITIAL), "round": 0, "ttl": _TTL},
                Limit("making the first weights", options.start_seconds),
            )
            self._names, self._initial = given["names"], self._path(_INITIAL)
        if not options.node_config:
            log.info("ctx.node_config is empty: apps that share a data set want partition-id and num-partitions (--node-config)")

    def _plan(self, server: Worker) -> None:
        """Hear from the ServerApp what it would send. Sites can do without."""
        path = self._path(f"server-{_INITIAL}")
        try:
            server.open()
            plan = server.call({"op": "plan", "result": path}, Limit("the ServerApp's start", self._options.start_seconds))
        except FlowerError as e:
            log.warning("the ServerApp is not heard, so its config is not sent (give it with --train-config, or --no-serverapp): %s", e)
            return
        finally:
            server.end()
        self._templates = plan["templates"]
        for kind, config in plan["configs"].items():
            log.info("the ServerApp's %s config: %s", kind, ", ".join(f"{k}={v}" for k, v in config.items()))
        if plan["names"]:
            self._names, self._initial = plan["names"], path

    def _setup(self) -> dict[str, Any]:
        project = self._options.project
        return {
            "folder": project.folder, "client_app": project.client_app, "server_app": project.server_app,
            "run_config": project.run_config, "node_config": self._options.node_config,
            "state": self._path("state"), "damaged_state": self._options.damaged_state, **self._identity(),
        }  # fmt: skip

    def _identity(self) -> dict[str, int]:
        """Flower's ids of run and node, which stay what they are."""
        path = self._path("identity.json")
        try:
            with open(path) as f:
                kept = json.load(f)
            return {"run_id": int(kept["run_id"]), "node_id": int(kept["node_id"])}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as e:
            raise FlowerError(f"{path} is damaged ({e}): remove it, and this site gets a new node_id") from None
        made = {"run_id": secrets.randbits(62) + 2, "node_id": secrets.randbits(62) + 2}
        with open(path + ".part", "w") as f:
            json.dump(made, f)
        os.replace(path + ".part", path)
        return made

    def _path(self, name: str) -> str:
        return os.path.join(self._options.state_folder, name)

    # Rounds.

    def _round(self, round: Round) -> None:
        if round.over:  # from the start
            log.warning(
                "round %d: not begun, %s (%.1f s are left). Raise spec.rounds.trainSeconds, or train less at a time (such as "
                "--run-config local-epochs=1)", round.number, round.reason, max(0.0, round.seconds_left),
            )  # fmt: skip
            round.submit()
            return
        try:
            self._evaluate(round) if round.evaluating else self._train(round)
            self._failures = 0
            if self._options.fresh:
                self._worker.end()
        except _Cut as e:
            log.warning("round %d: %s", round.number, e)
            if round.evaluating:
                self._session._fail(round, str(e))
            else:
                if not round.aborted:
                    round._told(Action.FINISH, str(e))
                round.submit()
        except GirassolError as e:
            self._failed(round, str(e))

    def _train(self, round: Round) -> None:
        if round.data:
            raise FlowerError(
                "the federation counts the samples of a shared corpus (spec.data), and a ClientApp does not say which it has used: "
                "leave spec.data out for Flower apps, which have data of their own, or write the trainer with girassol.Session"
            )
        began = time.monotonic()
        result = round.result_path
        reply = self._call(round, {"op": "train", "result": result, "template": self._templates.get("train")}, self._options.train_config)
        self._session._pace.took(time.monotonic() - began)
        round.step(reply["loss"], samples=reply["samples"])
        with safetensors.File(result) as arrays:
            round.submit(arrays, metrics=reply["metrics"])

    def _evaluate(self, round: Round) -> None:
        reply = self._call(round, {"op": "evaluate", "template": self._templates.get("evaluate")}, self._options.evaluate_config)
        round.submit(loss=reply["loss"], samples=reply["samples"], metrics=reply["metrics"])

    def _call(self, round: Round, request: dict[str, Any], config: _project.Config) -> dict[str, Any]:
        request.update(
            model=round.model_path, round=round.number, ttl=max(0.0, round.seconds_left) + _TTL, order=self._names,
            config={**config, **_values(round.config)}, weighted_by=self._options.weighted_by, loss=self._options.loss,
        )  # fmt: skip
        watch = _Watch(round, self._session, self._options)
        try:
            if not self._worker.running:
                self._worker.start()
                self._worker.open(watch)
            return self._worker.call(request, watch)
        except FlowerError:
            if watch.cut:
                raise _Cut(watch.cut) from None
            raise

    def _failed(self, round: Round, reason: str) -> None:
        """The app's process may be in any state now: the next call gets a new one."""
        log.error("round %d: %s", round.number, reason)
        self._session._fail(round, reason)
        round._ended = True
        self._worker.end()
        pause = min(_PAUSE * 2**self._failures, _MAX_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self._session._stopping.wait(pause)

    # First weights.

    def first_weights(self) -> tuple[str, list[str]]:
        """A file, and the names of buffers that it tells."""
        if not self._initial:
            if not self._worker.running:
                self._worker.start()
                self._worker.open()
            path = self._path(_INITIAL)
            limit = Limit("get_parameters", self._options.start_seconds)
            try:
                self._worker.call({"op": "initial", "source": "", "result": path, "round": 0, "ttl": _TTL}, limit)
            except FlowerError as e:
                log.error(
                    "no first weights from this site, it waits for another. Implement the client's get_parameters, or give "
                    "--initial package.module:Net. get_parameters: %s", e,
                )  # fmt: skip
                self._session._seed = None
                raise RefusedError(409, "no first weights") from None  # which the session takes calmly
            self._initial = path
        with safetensors.File(self._initial) as f:
            return self._initial, [b for b in f.metadata.get("girassol.buffers", "").split(",") if b]


class _Seed:
    """First weights for the session, made when they are wanted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def named_buffers(self) -> list[tuple[str, None]]:
        return [(name, None) for name in self._runner.first_weights()[1]]

    def state_dict(self) -> dict[str, Any]:
        return safetensors.load(self._runner.first_weights()[0], framework="buffers")


class _Watch:
    """Signs of life during a call, and when it is not waited for any longer."""

    def __init__(self, round: Round, session: Session, options: Options) -> None:
        self._round, self._session, self._options = round, session, options
        self._reported = self._told = self._drained = -1.0
        self.cut = ""
        """Why the call was ended where that is nobody's fault."""

    def __call__(self) -> str | None:
        now, round = time.monotonic(), self._round
        if not round.aborted and (self._reported < 0 or now - self._reported >= _REPORT_EVERY):
            self._reported = now
            round._report(now)
        if round.aborted:
            self.cut = f"ended, nobody waits for it any more ({round.reason})"
            return self.cut
        if self._session.stopping:
            self._drained = now if self._drained < 0 else self._drained
            if now - self._drained > self._options.drain_seconds:
                self.cut = "the process was told to end, and a ClientApp cannot be asked to stop in mid-call: this round's work is lost"
                return self.cut
        if round.over:
            self._told = now if self._told < 0 else self._told
        late = self._options.late_seconds
        if round.seconds_left < -late:
            return (
                f"the ClientApp did not return {late:.0f} s after the stop time. A ClientApp cannot be asked to stop in mid-call: raise "
                "spec.rounds.trainSeconds, or train less at a time (such as --run-config local-epochs=1)"
            )
        if self._told >= 0 and now - self._told > late and round.seconds_left > -late / 2:
            self.cut = f"the agent asked to finish ({round.reason}), and the call did not return within {late:.0f} s"
            return self.cut
        return None


def _values(config: dict[str, str]) -> _project.Config:
    """The federation's texts, as the values that TOML sees in them."""
    out: _project.Config = {}
    for name, text in config.items():
        try:
            out[name] = _project.parse_value(text)
        except ValueError:
            out[name] = text
    return out


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FlowerError(
                f"{folder} is used by another process: each site and federation has a state folder of its own (--state)"
            ) from None
        yield
    finally:
        os.close(fd)
