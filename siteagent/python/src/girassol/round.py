"""A round: weights to start from, a stop time, and a place for the result.

It owns the count of steps, the decision to stop and what a result must be. The
conversation that it is part of is the session's.
"""

from __future__ import annotations

import enum
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from . import _result, safetensors
from ._loss import Losses
from .data import Data, Sampler, body_of, ranges_of
from .errors import AgentError, GirassolError, RefusedError, UsageError

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Action", "Round"]

log = logging.getLogger("girassol")

_REPORT_EVERY = 0.2
_REPORT_TIMEOUT = 3.0

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
        self.data = Data(ranges_of(task.get("data")), session._ranks.rank, session._ranks.size)
        """Samples of the shared corpus that the round may use; empty without one."""
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
        self._reported = -math.inf
        self._losses = Losses()
        self._ended = False
        self._stalled = ""
        self._heard = Action.CONTINUE  # by alive, for all ranks' next step
        self._told_at: float | None = None  # when step first said stop
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
        when they run out (``repeat``, and not where they are samples of
        :attr:`data`)."""
        while not self.over:
            empty = True
            for batch in source:
                if self.over:
                    return
                empty = False
                self.data._seen += 1
                yield batch
            if not repeat or self.data:
                return
            if empty:
                raise UsageError("round.batches: the source is empty, or an iterator that is used up: give a DataLoader or a list")

    def sampler(self, batch_size: int) -> Sampler:
        """Batches of sample numbers from :attr:`data`, for a loop or a loader::

            loader = DataLoader(dataset, batch_sampler=round.sampler(32))
            for x, y in round.batches(loader):
                ...

        With workers the loader asks ahead: let :meth:`batches` count what came out.
        The last batch is smaller where the samples do not divide.
        """
        return Sampler(self.data, batch_size)

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
        self.data._stepped()
        now = time.monotonic()
        where = f"step {self.steps} of round {self.number}"
        self._losses.note(loss, int(samples), now, where, look=0 < self.max_steps <= self.steps)
        session = self._session
        now = time.monotonic()  # a GPU may have been waited for
        if self.steps > 1 or not session._pace.known:
            session._pace.took(now - self._last)
        self._last = now
        action = self._next_action(now)
        if action and self._told_at is None:
            self._told_at = time.monotonic()
        return action

    def alive(self) -> Action:
        """Give a sign of life inside a long step, without counting one. Under torchrun
        any rank may call it at any time, and what rank 0 hears shows after the step."""
        ranks, now = self._session._ranks, time.monotonic()
        if ranks.size == 1:
            return self._next_action(now)
        if ranks.rank == 0 and not self.action and not self._heard and now - self._reported >= _REPORT_EVERY:
            self._report(now)
            self._heard, self.action = self.action, Action.CONTINUE
        return self.action

    def _next_action(self, now: float) -> Action:
        session = self._session
        if self._heard:
            self.action, self._heard = self._heard, Action.CONTINUE
        if session._ranks.rank == 0 and not self.action:
            if now - self._reported >= _REPORT_EVERY:
                self._report(now)
            if self.action:
                pass
            elif session.stopping:
                self._told(Action.FINISH, "the process was told to end")
            elif 0 < self.max_steps <= self.steps:
                self._told(Action.FINISH, "the step budget is used up")
            elif self.data.used_up:
                self._told(Action.FINISH, "the samples of the round are used up")
            elif not session._pace.fits(self._stop - time.monotonic()):
                self._told(Action.FINISH, "another step would not end before the stop time")
        self.action = _CODES[session._ranks.agree(_CODES.index(self.action))]
        return self.action

    def _told(self, action: Action, reason: str) -> None:
        self.action, self.reason = action, reason

    def _report(self, now: float) -> None:
        self._reported = now
        body: dict[str, Any] = {"steps": self.steps, "samples": self.samples * self._session._ranks.size}
        if self._losses.last is not None and math.isfinite(self._losses.last):
            body["loss"] = self._losses.last
        if self._session._facts:
            body["trainer"] = self._session._facts
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

    # The end.

    def submit(
        self,
        state_dict: Mapping[str, Any] | safetensors.File | None = None,
        *,
        loss: float | None = None,
        samples: int | None = None,
        steps: int | None = None,
        metrics: Mapping[str, float] | None = None,
        consumed: Iterable[Sequence[int]] | None = None,
    ) -> bool:
        """End the round with the trained weights; False when nobody waits for
        them any more, which is no error.

        The weights keep the names and shapes of :meth:`state_dict`; floats may
        be of another width. A :class:`girassol.safetensors.File` in the work
        folder, written and checked by another process, goes on as it is. Under
        torchrun all ranks call it, rank 0's weights count. Evaluations submit
        ``loss`` and ``metrics`` only. ``loss``, ``samples`` and ``steps``
        override what :meth:`step` has counted, ``consumed`` which samples of
        :attr:`data` the steps used: ``(begin, end)`` or ``(begin, end, pass)`` each.
        """
        if self._stalled:
            raise UsageError(self._stalled)
        if self._ended:
            raise UsageError(f"round {self.number} has ended already")
        self._disarm()
        session = self._session
        mine = [float(self._losses.sum), self._losses.samples, samples if samples is not None else self.samples]
        loss_sum, loss_samples, all_samples = session._ranks.total(mine)
        if steps is not None:
            self.steps = int(steps)
        used = self._used(consumed)
        answer: tuple[bool, BaseException | None]
        if session._ranks.rank == 0:
            try:
                if loss is None and loss_samples:
                    loss = loss_sum / loss_samples
                answer = self._submit(state_dict, loss, int(all_samples), metrics, used), None
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
        self, state_dict: Mapping[str, Any] | safetensors.File | None, loss: float | None, samples: int, metrics: Mapping[str, float] | None,
        used: list[Sequence[int]],
    ) -> bool:
        body: dict[str, Any] = {"steps": self.steps, "samples": samples}
        if self.aborted:
            self._ended = True
            return False
        if self.evaluating:
            if state_dict is not None:
                raise UsageError("an evaluation changes no weights: submit loss=... and metrics=... only")
            if loss is None:
                raise UsageError("the evaluation has no loss: submit(loss=...) or step(loss, samples) give it")
            if not math.isfinite(loss):
                # A result all the same: it says that the model is broken, which the federation's gate must hear.
                log.warning("round %d: the evaluation's loss is %s: it is handed in without one", self.number, loss)
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
            if consumed := self._consumed(used):
                body["consumed"] = consumed
            body["path"] = _result.written(state_dict, self.model_path, self.result_path)
        if loss is not None and math.isfinite(loss):
            body["loss"] = float(loss)
        given = _result.metrics_of(self._own_metrics(), metrics)
        if given:
            body["metrics"] = given
        problem = _result.deliver(self._session._client, self.id, body, self._session._stopping)
        if problem is not None:
            log.warning("round %d: %s", self.number, problem)
            self._told(Action.ABORT, problem)
        self._ended = True
        return problem is None

    def _used(self, consumed: Iterable[Sequence[int]] | None) -> list[Sequence[int]]:
        """Samples of the data that the steps have used, of all ranks."""
        if consumed is not None:
            return list(consumed)
        if not self.data:
            return []
        ranks = self._session._ranks
        return list(self.data._consumed(ranks.total([self.data._used if r == ranks.rank else 0 for r in range(ranks.size)])))

    def _consumed(self, used: Iterable[Sequence[int]]) -> list[dict[str, int]]:
        body = body_of(used, self.data)
        if self.data and not body:
            raise UsageError(
                "the federation counts samples (spec.data) and the steps used none of them: draw them from round.data or "
                "round.sampler(batch_size), or tell them: submit(..., consumed=[(begin, end)])"
            )
        return body

    def _own_metrics(self) -> dict[str, float]:
        seconds = self._last - self._began
        if not self.steps or seconds <= 0 or self.evaluating:
            return {}
        return {"step_seconds": seconds / self.steps, "samples_per_second": self.samples * self._session._ranks.size / seconds}

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
