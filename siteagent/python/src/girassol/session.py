"""A session with the site's agent, and the rounds that it brings.

A session owns the conversation: polling, stop times, progress, results and
failures. It must not know what a model computes.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from . import _layout, _ranks, safetensors
from ._client import Client, deadline
from ._pace import Pace
from .errors import AgentError, GirassolError, NonFiniteError, RefusedError, UsageError

__all__ = ["Action", "Round", "Session"]

log = logging.getLogger("girassol")

ENV_SOCKET = "GIRASSOL_TRAINER_SOCKET"
ENV_WORK_DIR = "GIRASSOL_TRAINER_WORKDIR"
BUFFERS_KEY = "girassol.buffers"

_POLL = 30.0
_REPORT_EVERY = 0.2
_REPORT_TIMEOUT = 3.0
_LOOK_EVERY = 0.05
_NOT_FINITE_STEPS = 10
_RESULT_TRIES = 20
_MAX_REASON = 4000
_MAX_METRICS = 256
_MAX_METRIC_NAME = 128

T = TypeVar("T")


class Action(str, enum.Enum):
    """What a round's script does next. It is true when that is to stop."""

    CONTINUE = "continue"
    """Go on with another step."""
    FINISH = "finish"
    """Submit the steps done so far."""
    ABORT = "abort"
    """Drop the round; nobody waits for it."""

    def __bool__(self) -> bool:
        return self is not Action.CONTINUE


_CODES = [Action.CONTINUE, Action.FINISH, Action.ABORT]


class Session:
    """A trainer's conversation with its site's agent; a context manager and an
    iterator over rounds::

        with girassol.Session(seed=model) as session:
            for round in session:
                model.load_state_dict(round.state_dict())
                for x, y in round.batches(loader):
                    loss = train_step(model, x, y)
                    if round.step(loss, samples=len(x)):
                        break
                round.submit(model.state_dict())

    The loop ends when the process is told to (SIGTERM): the round in hand is cut
    short, submitted, and counts. An exception that leaves the block is reported
    to the agent with the end of its traceback and goes on.

    Under torchrun every rank runs the same script; rank 0 speaks, and all stop
    after the same step. Call ``torch.distributed.init_process_group()`` first.

    :param seed: the first weights of a federation that has none: a state dict, a
        function that makes one, or a ``torch.nn.Module`` (which also tells its
        buffers from its parameters). Without it this site waits for another.
    :param evaluate: a function that gets an evaluation :class:`Round` and returns
        the mean loss, or the loss and the number of samples behind it, or None
        when it has called ``round.submit`` itself. True:
        such rounds come in the loop too, told apart by ``round.evaluating``.
        None: evaluations are refused with the reason.
    :param socket_path: the agent's socket; default ``$GIRASSOL_TRAINER_SOCKET``.
    :param work_dir: the shared folder; default ``$GIRASSOL_TRAINER_WORKDIR``.
    :param late_seconds: how long after the stop time a script that has never
        called ``step`` is given up, and one that calls it on and on.
    """

    def __init__(
        self,
        *,
        seed: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | Any = None,
        evaluate: Callable[[Round], float | tuple[float, int] | None] | bool | None = None,
        socket_path: str | None = None,
        work_dir: str | None = None,
        late_seconds: float = 15.0,
    ) -> None:
        self._socket_path = socket_path or os.environ.get(ENV_SOCKET, "")
        self._work_dir = work_dir or os.environ.get(ENV_WORK_DIR, "")
        for value, name in ((self._socket_path, ENV_SOCKET), (self._work_dir, ENV_WORK_DIR)):
            if not value:
                raise UsageError(
                    f"{name} is not set: let the agent start this script (agent ... -- python3 SCRIPT), "
                    "or try it out with python -m girassol check SCRIPT"
                )
        self._seed, self._evaluate = seed, evaluate
        self._late_seconds = late_seconds
        self._client = Client(self._socket_path)
        self._pace = Pace()
        self._round: Round | None = None
        self._ranks: _ranks.Ranks = _ranks.Alone()
        self._entered = False
        self._stopping = threading.Event()
        self._wake = (-1, -1)
        self._old_handler: Any = None
        self._handles_signal = False
        self._seed_path = os.path.join(self._work_dir, f"seed-{os.getpid()}.safetensors")

    # Life.

    def __enter__(self) -> Session:
        if self._entered:
            raise UsageError("a session is entered once: make another one")
        self._entered = True
        self._ranks = _ranks.find()
        self._wake = os.pipe()
        for fd in self._wake:
            os.set_blocking(fd, False)
        if threading.current_thread() is threading.main_thread():
            # A handler of the script's own is left alone: it may call stop().
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._old_handler = signal.signal(signal.SIGTERM, self._on_signal)
                self._handles_signal = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            round = self._round
            if round is not None:
                round._disarm()
                self._round = None
                if error is not None:
                    self._fail(round, _describe(error, self._ranks))
                elif not round._ended and self._ranks.rank == 0:
                    self._fail(round, "the script left its session in mid-round: call round.submit(...) before it does")
        finally:
            if self._handles_signal:
                self._handles_signal = False
                signal.signal(signal.SIGTERM, self._old_handler)
            fds, self._wake = self._wake, (-1, -1)
            for fd in fds:
                os.close(fd)
            self._forget_seed()

    def stop(self) -> None:
        """End the session: the round in hand finishes after its step, and the
        loop ends. May be called from signal handlers and other threads."""
        self._stopping.set()
        if self._wake[1] >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake[1], b"x")

    def _on_signal(self, *_: object) -> None:
        self.stop()
        # A second signal means now.
        signal.signal(signal.SIGTERM, self._old_handler)
        self._handles_signal = False

    @property
    def rank(self) -> int:
        """This process's rank under torchrun, else 0."""
        return self._ranks.rank

    @property
    def stopping(self) -> bool:
        """Whether the process was told to end."""
        return self._stopping.is_set()

    # Rounds.

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        if self._wake[0] < 0:
            raise UsageError("iterate inside the block: with girassol.Session() as session: ...")
        if self._round is not None and not self._round._ended:
            raise UsageError(
                f"round {self._round.number} was not submitted: call round.submit(model.state_dict()) "
                "before asking for the next one"
            )
        while True:
            self._round = None
            told = self._ranks.share(self._next_task() if self._ranks.rank == 0 else None)
            if told is None:
                raise StopIteration
            round = self._round = Round(self, told[0], told[1])
            if not round.evaluating or self._evaluate is True:
                round._arm(self._late_seconds)
                return round
            self._evaluation(round)

    def _evaluation(self, round: Round) -> None:
        if not callable(self._evaluate):
            if self._ranks.rank == 0:
                self._fail(round, "this script does not evaluate: give girassol.Session a function, evaluate=...")
            round._ended = True
            return
        loss = self._evaluate(round)
        if not round._ended:
            if isinstance(loss, tuple):
                round.submit(loss=loss[0], samples=loss[1])
            else:
                round.submit(loss=loss)

    def _next_task(self) -> tuple[dict[str, Any], float] | None:
        """A task and its stop time on the monotonic clock (which all processes
        of a machine share); None at the end."""
        pause, away = 0.1, False
        while not self._stopping.is_set():
            try:
                self._offer_seed()
                task = self._client.next_task(_POLL, self._wake[0])
            except AgentError as e:
                if not away:
                    log.warning("no agent, trying for ever: %s", e)
                away = True
                self._stopping.wait(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, 5.0)
                continue
            if away:
                log.warning("the agent is back")
            pause, away = 0.1, False
            if task is None:
                continue
            stop = deadline(task)
            self._forget_seed()
            if self._stopping.is_set():
                # It was on its way when we were told to end. Nothing is lost.
                with contextlib.suppress(AgentError):
                    self._client.result(task["id"], {"steps": 0, "samples": 0})
                return None
            return task, stop
        return None

    def _offer_seed(self) -> None:
        if self._seed is None:
            return
        try:
            try:
                # Until first weights are wanted it does not matter that there is no file.
                self._client.seed(self._seed_path)
            except RefusedError as e:
                if e.status != 400 or os.path.exists(self._seed_path):
                    raise
                self._write_seed()
                self._client.seed(self._seed_path)
            log.info("first weights given")
        except RefusedError as e:
            if e.status != 409:
                log.warning("first weights: %s", e)

    def _write_seed(self) -> None:
        seed, metadata = self._seed, {}
        if hasattr(seed, "state_dict") and hasattr(seed, "named_buffers"):
            names = [name for name, _ in seed.named_buffers()]
            if names:
                metadata[BUFFERS_KEY] = ",".join(names)
            seed = seed.state_dict()
        elif callable(seed):
            seed = seed()
        specs = _layout.specs_of(seed)
        _layout.check_finite(seed)
        if BUFFERS_KEY in metadata:
            floats = [n for n in metadata[BUFFERS_KEY].split(",") if n in specs and specs[n].is_float]
            metadata = {BUFFERS_KEY: ",".join(floats)} if floats else {}
        safetensors.save(self._seed_path, seed, metadata)

    def _forget_seed(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._seed_path)

    def _fail(self, round: Round, reason: str) -> None:
        """Tell the agent that the round has failed; once."""
        if round._ended or round.action is Action.ABORT:
            return
        round._ended = True
        # The end of the text is what matters: it has the error and its cure.
        data = reason.encode("utf-8", "replace")
        if len(data) > _MAX_REASON:
            reason = "... " + data[-_MAX_REASON:].decode("utf-8", "ignore")
        try:
            self._client.failure(round.id, reason)
        except AgentError as e:
            log.warning("failure not delivered: %s", e)


class Round:
    """One piece of work: weights to start from, a stop time, and a place for the
    result. A :class:`Session` makes them."""

    def __init__(self, session: Session, task: dict[str, Any], stop: float) -> None:
        self._session = session
        self._stop = stop
        self.id = str(task["id"])
        """Of the task, for logs."""
        self.number = int(task["round"])
        """Of the federation's round."""
        self.evaluating = task["kind"] == "evaluate"
        """Whether to measure the loss on held-out data and change nothing."""
        self.max_steps = int(task.get("maxSteps") or 0)
        """Most local steps; 0: until the stop time."""
        self.committed_samples = int(task.get("committedSamples") or 0)
        """Samples of all sites before this round: where schedules stand."""
        self.config: dict[str, str] = dict(task.get("config") or {})
        """What the federation's spec gives its trainers."""
        self.model_path = str(task["modelPath"])
        """Safetensors file to start from; read-only."""
        self.result_path = str(task.get("resultPath") or "")
        self.steps = 0
        """Steps so far."""
        self.samples = 0
        """Samples so far, of this rank."""
        self.action = Action.CONTINUE
        """What the last answer was."""
        self.reason = ""
        """Why it was not continue."""
        self._began = self._last = time.monotonic()
        self._reported = self._looked = -math.inf
        self._loss_sum: Any = 0.0
        self._loss_samples = 0
        self._loss: float | None = None
        self._not_finite = 0
        self._ended = False
        self._stalled = ""
        self._told_at: float | None = None
        self._timer: threading.Timer | None = None
        first = session._pace
        if not self.evaluating and session._ranks.rank == 0 and not first.fits(self.seconds_left, first=True):
            if self.seconds_left > 0:
                first.doubt()
            self._told(Action.FINISH, "no step ends before the stop time")
        self.action = _CODES[session._ranks.agree(_CODES.index(self.action))]

    @property
    def seconds_left(self) -> float:
        """Until the stop time; no step may run after it."""
        return self._stop - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether there is to be no further step. It can be so from the start."""
        return bool(self.action)

    @property
    def aborted(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.action is Action.ABORT

    def state_dict(self, device: Any = None, *, framework: str | None = None) -> dict[str, Any]:
        """The weights to start from, by name, at most one copy of them.

        torch tensors if torch is imported, else numpy arrays if that is, else
        :class:`girassol.Tensor`; ``framework`` (torch, numpy, buffers) overrides
        that. On the host they are views of the mapped file, private to this
        process: ``model.load_state_dict(...)`` makes the only copy.
        """
        with safetensors.File(self.model_path) as f:
            return f.load(device, framework)

    def batches(self, source: Iterable[T], *, repeat: bool = True) -> Iterator[T]:
        """Elements of ``source`` until the round is over, from the start again
        when they run out (``repeat``)."""
        while not self.over:
            empty = True
            for batch in source:
                if self.over:
                    return
                empty = False
                yield batch
            if not repeat:
                return
            if empty:
                raise UsageError("round.batches: the source is empty, or an iterator that is used up: give a DataLoader or a list")

    def step(self, loss: Any = None, samples: int = 1) -> Action:
        """Count a step that was just done, and hear whether to stop.

        ``samples`` is how many this rank's step was over (sequences, images or
        tokens, the same unit at every site): the update's weight in the merge.
        ``loss`` is their mean, a number or a one-element tensor; it is left out
        where it is not finite. The answer is true when there is to be no further
        step: the step budget is used up, another step would not end before the
        stop time, the agent says so, or the process was told to end.
        """
        if self._stalled:
            raise UsageError(self._stalled)
        if self._ended:
            raise UsageError(f"round {self.number} has ended: ask the session for the next one")
        if samples != int(samples) or samples <= 0:
            raise UsageError(f"samples={samples!r}: the number of samples of the step, a positive whole number")
        self._disarm()
        if self._told_at is not None and time.monotonic() - self._told_at > self._session._late_seconds:
            raise UsageError(
                f"round.step() has said stop for {self._session._late_seconds:.0f} s and is called on: "
                "leave the loop when it is true (if round.step(...): break), then submit"
            )
        self.steps += 1
        self.samples += int(samples)
        now = time.monotonic()
        self._note_loss(loss, int(samples), now)
        session = self._session
        now = time.monotonic()  # a GPU may have been waited for
        if self.steps > 1 or not session._pace.known:
            session._pace.took(now - self._last)
        self._last = now
        return self._next_action(now)

    def alive(self) -> Action:
        """Give a sign of life inside a long step, without counting one."""
        return self._next_action(time.monotonic())

    def _next_action(self, now: float) -> Action:
        session = self._session
        if session._ranks.rank == 0 and not self.action:
            if now - self._reported >= _REPORT_EVERY:
                self._report(now)
            if self.action:
                pass
            elif session.stopping:
                self._told(Action.FINISH, "the process was told to end")
            elif 0 < self.max_steps <= self.steps:
                self._told(Action.FINISH, "the step budget is used up")
            elif not session._pace.fits(self._stop - time.monotonic()):
                self._told(Action.FINISH, "another step would not end before the stop time")
        self.action = _CODES[session._ranks.agree(_CODES.index(self.action))]
        return self.action

    def _told(self, action: Action, reason: str) -> None:
        self.action, self.reason = action, reason
        if self._told_at is None:
            self._told_at = time.monotonic()

    def _report(self, now: float) -> None:
        self._reported = now
        body: dict[str, Any] = {"steps": self.steps, "samples": self.samples * self._session._ranks.size}
        if self._loss is not None and math.isfinite(self._loss):
            body["loss"] = self._loss
        try:
            answer = self._session._client.progress(self.id, body, _REPORT_TIMEOUT)
            action = Action(answer.get("action"))
        except RefusedError as e:
            if e.status in (404, 409):
                self._told(Action.ABORT, e.problem)
            else:
                log.warning("progress: %s", e)
        except (AgentError, ValueError) as e:
            # The stop time still holds. A dead agent is not asked at each step.
            self._reported = now + 10 * _REPORT_EVERY
            log.warning("progress not delivered: %s", e)
        else:
            if action:
                self._told(action, str(answer.get("reason") or ""))

    def _note_loss(self, loss: Any, samples: int, now: float) -> None:
        if loss is None:
            return
        if hasattr(loss, "detach"):
            loss = loss.detach()
            if getattr(loss.device, "type", "cpu") != "cpu":
                # Asking a GPU for a number waits for its queue, so that is done
                # often enough to keep the clock honest and no more.
                self._loss_sum = self._loss_sum + loss.double() * samples
                self._loss_samples += samples
                if now - self._looked < _LOOK_EVERY and not 0 < self.max_steps <= self.steps:
                    return
                self._looked = now
                self._judge_loss(float(loss))
                return
        try:
            value = float(loss)
        except (TypeError, ValueError, RuntimeError) as e:
            raise UsageError(f"loss must be a number or a tensor of one element: {e}") from None
        self._judge_loss(value)
        if math.isfinite(value):
            self._loss_sum = self._loss_sum + value * samples
            self._loss_samples += samples

    def _judge_loss(self, value: float) -> None:
        self._loss = value
        if math.isfinite(value):
            self._not_finite = 0
            return
        self._not_finite += 1
        if self._not_finite >= _NOT_FINITE_STEPS:
            raise NonFiniteError(
                f"the loss is {value} since {self._not_finite} steps (step {self.steps} of round {self.number}): "
                "lower the learning rate, clip gradients, or look for bad data"
            )

    # The end.

    def submit(
        self,
        state_dict: Mapping[str, Any] | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
        steps: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """End the round with the trained weights; False when nobody waits for
        them any more, which is no error.

        The weights keep the names and shapes of :meth:`state_dict`; floats may
        be of another width. Under torchrun all ranks call it, rank 0's weights
        count. Evaluations submit ``loss`` and ``metrics`` only. ``loss``,
        ``samples`` and ``steps`` override what :meth:`step` has counted.
        """
        if self._stalled:
            raise UsageError(self._stalled)
        if self._ended:
            raise UsageError(f"round {self.number} has ended already")
        self._disarm()
        session = self._session
        mine = [float(self._loss_sum), self._loss_samples, samples if samples is not None else self.samples]
        loss_sum, loss_samples, all_samples = session._ranks.total(mine)
        if steps is not None:
            self.steps = int(steps)
        answer: tuple[bool, BaseException | None]
        if session._ranks.rank == 0:
            try:
                if loss is None and loss_samples:
                    loss = loss_sum / loss_samples
                answer = self._submit(state_dict, loss, int(all_samples), metrics), None
            except Exception as e:
                if session._ranks.size == 1:
                    raise
                answer = False, e
            told = (answer[0], None if answer[1] is None else str(answer[1]))
        else:
            answer, told = (False, None), (False, None)
        taken, why = session._ranks.share(told)
        if answer[1] is not None:
            raise answer[1]
        self._ended = True
        if why is not None:
            raise GirassolError(f"rank 0: {why}")
        return bool(taken)

    def _submit(
        self, state_dict: Mapping[str, Any] | None, loss: float | None, samples: int, metrics: Mapping[str, float] | None
    ) -> bool:
        body: dict[str, Any] = {"steps": self.steps, "samples": samples}
        if self.aborted:
            self._ended = True
            return False
        if self.evaluating:
            if state_dict is not None:
                raise UsageError("an evaluation changes no weights: submit loss=... and metrics=... only")
            if loss is None or not math.isfinite(loss):
                raise NonFiniteError(f"the evaluation's loss is {loss}: submit(loss=...) or step(loss, samples) give it")
            body["samples"] = samples or self._session._ranks.size  # it is the loss's weight among sites; none would drop it
        elif self.steps == 0:
            if not self.over:
                raise UsageError(
                    "weights of no step: call round.step(loss, samples=...) after each optimizer step. It counts the "
                    "samples, which are the update's weight, and says when to stop"
                )
            body["samples"] = 0
        else:
            if state_dict is None:
                raise UsageError("no weights: call round.submit(model.state_dict())")
            if samples <= 0:
                raise UsageError(f"{self.steps} steps on {samples} samples: samples are the update's weight, give their number")
            self._write(state_dict)
            body["path"] = self.result_path
        if loss is not None and math.isfinite(loss):
            body["loss"] = float(loss)
        given = self._metrics(metrics)
        if given:
            body["metrics"] = given
        return self._deliver(body)

    def _write(self, state_dict: Mapping[str, Any]) -> None:
        specs = _layout.specs_of(state_dict)
        with safetensors.File(self.model_path) as start:
            _layout.check_layout(specs, start.specs)
            _layout.check_finite(state_dict)
            _layout.check_swapped(state_dict, start)
            safetensors.save(self.result_path, state_dict)

    def _metrics(self, metrics: Mapping[str, float] | None) -> dict[str, float]:
        out = {}
        seconds = self._last - self._began
        if self.steps and seconds > 0 and not self.evaluating:
            out["step_seconds"] = seconds / self.steps
            out["samples_per_second"] = self.samples * self._session._ranks.size / seconds
        for name, value in (metrics or {}).items():
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

    def _deliver(self, body: dict[str, Any]) -> bool:
        pause = 0.1
        for tries in range(_RESULT_TRIES):
            try:
                self._session._client.result(self.id, body)
                self._ended = True
                return True
            except RefusedError as e:
                if e.status in (404, 409):
                    log.warning("round %d: %s", self.number, e.problem)
                    self._told(Action.ABORT, e.problem)
                    self._ended = True
                    return False
                if e.status < 500:
                    raise
                error: AgentError = e
            except AgentError as e:
                error = e
            if tries == 0:
                log.warning("result not delivered yet: %s", error)
            if self._session._stopping.wait(pause):
                time.sleep(pause)
            pause = min(2 * pause, 5.0)
        raise error

    # A script that never calls step.

    def _arm(self, late: float) -> None:
        if self._session._ranks.rank == 0 and not self.evaluating and not self.over:
            self._timer = threading.Timer(max(0.0, self.seconds_left) + late, self._stall, [threading.get_ident()])
            self._timer.daemon = True
            self._timer.start()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stall(self, thread: int) -> None:
        if self.steps or self._ended:
            return
        seconds = time.monotonic() - self._began
        where = "".join(traceback.format_stack(sys._current_frames().get(thread), limit=6))
        reason = (
            f"round.step() was not called in the {seconds:.0f} s of the round: call it after each optimizer step, and stop "
            "when it says so. If one step takes as long, raise spec.rounds.trainSeconds"
        )
        self._stalled = reason
        self._session._fail(self, f"the script is at\n{where}{reason}")


def _describe(error: BaseException, ranks: _ranks.Ranks) -> str:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
    return f"rank {ranks.rank}:\n{text}" if ranks.size > 1 else text
