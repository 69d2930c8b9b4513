"""A session with the site's agent.

It owns the conversation: polling, first weights, failures, signals and the end.
It must not know what a model computes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _layout, _ranks, safetensors
from ._client import Client, deadline
from ._pace import Pace
from .errors import AgentError, RefusedError, UsageError
from .round import Action, Round

__all__ = ["Session"]

log = logging.getLogger("girassol")

ENV_SOCKET = "GIRASSOL_TRAINER_SOCKET"
ENV_WORK_DIR = "GIRASSOL_TRAINER_WORKDIR"
BUFFERS_KEY = "girassol.buffers"

_POLL = 30.0
_MAX_REASON = 4000
_MAX_FACTS = 16
_MAX_FACT = 64


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
    :param trainer: how this script works, for the federation's status, such as
        ``{"precision": "bf16", "batchSize": 64}``; at most 16 short texts.
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
        trainer: Mapping[str, Any] | None = None,
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
        self._facts = _facts(trainer or {})
        self._late_seconds = late_seconds
        self._client = Client(self._socket_path)
        self._pace = Pace()
        self._round: Round | None = None
        self._ranks: _ranks.Ranks = _ranks.Alone()
        self._entered = False
        self._stopping = threading.Event()
        self._wake = (-1, -1)
        # While it is held the pipe is neither closed nor its number another file's;
        # a signal handler may take it again.
        self._pipe = threading.RLock()
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
            with self._pipe:
                fds, self._wake = self._wake, (-1, -1)
                for fd in fds:
                    os.close(fd)
            self._forget_seed()

    def stop(self) -> None:
        """End the session: the round in hand finishes after its step, and the
        loop ends. May be called from signal handlers and other threads."""
        self._stopping.set()
        with self._pipe:
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


def _facts(trainer: Mapping[str, Any]) -> dict[str, str]:
    facts = {str(name): str(value) for name, value in trainer.items()}
    long = [name for name, value in facts.items() if max(len(name.encode()), len(value.encode())) > _MAX_FACT]
    if len(facts) > _MAX_FACTS or long:
        raise UsageError(f"trainer={str(long or list(facts))[:200]}: at most {_MAX_FACTS} texts of at most {_MAX_FACT} bytes each")
    return facts


def _describe(error: BaseException, ranks: _ranks.Ranks) -> str:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
    return f"rank {ranks.rank}:\n{text}" if ranks.size > 1 else text
