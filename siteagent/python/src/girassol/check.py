"""Runs a script against a stand-in agent and says what would go wrong.

It gives the script two rounds, an evaluation and an end in mid-round, and looks
at what comes back as agent and coordinator would.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from . import _layout, safetensors, standin
from .errors import GirassolError
from .safetensors import File, Tensor

_GRACE = 30.0
"""Seconds after the stop time until a result is lost, as at the agent."""
_RESERVED = "girassol."


class _Stop(Exception):
    """No point in going on."""


class Check:
    """One run. ``problems`` are what would go wrong in a federation."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        model: str | None = None,
        steps: int = 4,
        seconds: float = 60.0,
        start_seconds: float = 180.0,
        data: int = 0,
        out: TextIO = sys.stdout,
    ) -> None:
        self._command = list(command)
        self._given_model = model
        self._steps, self._seconds, self._start_seconds = steps, seconds, start_seconds
        self._data = data
        self._out = out
        self.problems: list[str] = []
        self._process: subprocess.Popen[bytes]
        self._agent: standin.Agent
        self._work = ""

    def run(self) -> bool:
        """Whether nothing would go wrong."""
        folder = tempfile.mkdtemp(prefix="girassol-check-")
        try:
            self._work = os.path.join(folder, "work")
            os.mkdir(self._work)
            with standin.Agent(os.path.join(folder, "s"), self._work) as self._agent:
                self._agent.want_seed(self._given_model is None)
                self._process = self._start()
                try:
                    self._rounds()
                except _Stop:
                    pass
                finally:
                    if self._process.poll() is None:
                        self._process.kill()
                    self._process.wait()
            for refusal in self._agent.refusals:
                # Offering a path that is not there yet is how weights are made on demand.
                if not (refusal.startswith("PUT ") and refusal.endswith("is no regular file")):
                    self._bad("request", f"the agent refuses {refusal}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        n = len(self.problems)
        self._say("", "this script is ready for a federation" if n == 0 else f"{n} problem{'s' * (n > 1)}: see above")
        return n == 0

    # The script's day.

    def _rounds(self) -> None:
        start = self._first_weights()
        with File(start) as f:
            if not any(s.is_float and s.elements for s in f.specs.values()):
                self._bad("weights", "there is no float tensor to train")
                raise _Stop
        first = self._train("round 1", start, 1, maxSteps=self._steps)
        # As if others had pulled the weights elsewhere.
        merged = os.path.join(self._work, "merged.safetensors")
        _halve(first, merged)
        second = self._train("round 2", merged, 2, finish=True)
        if _closer(second, first, merged):
            self._bad(
                "round 2",
                "did not begin with the weights that it was given: call model.load_state_dict(round.state_dict()) in each round",
            )
        self._evaluate(second)
        self._drain(second)

    def _first_weights(self) -> str:
        agent, gone = self._agent, self._gone
        if self._given_model is not None:
            path = os.path.join(self._work, "model.safetensors")
            shutil.copyfile(self._given_model, path)
        else:
            self._await(lambda: bool(agent.seeds) or agent.polls > 0 or gone(), self._start_seconds)
            if not agent.seeds:
                if gone():
                    self._bad("start", f"the script ended with status {self._process.returncode} before it asked for work: its output says why. {_LOOP}")
                elif agent.polls:
                    self._bad(
                        "weights",
                        "the script gives no first weights, which a new federation needs from one site: "
                        "girassol.Session(seed=model). To check a script for the other sites: --model FILE",
                    )
                else:
                    self._bad("start", f"the script did not ask for work within {self._start_seconds:.0f} s. {_LOOP}")
                raise _Stop
            # It may go once a task is there.
            path = os.path.join(self._work, "model.safetensors")
            shutil.copyfile(agent.seeds[0], path)
        try:
            with File(path) as f:
                reserved = [n for n in f if n.startswith(_RESERVED)]
                if reserved:
                    raise GirassolError(f"names may not begin with {_RESERVED!r}: {', '.join(reserved[:4])}")
                _layout.check_finite({n: f.tensor(n) for n in f})
                size = sum(s.nbytes for s in f.specs.values())
                types = sorted({s.dtype for s in f.specs.values()})
                self._good("weights", f"{len(f)} tensors, {size / 1e6:.3g} MB, {' '.join(types)}")
        except GirassolError as e:
            self._bad("weights", str(e))
            raise _Stop from None
        return path

    def _train(self, what: str, start: str, number: int, finish: bool = False, **more: Any) -> str:
        result = os.path.join(self._work, f"result-{number}.safetensors")
        task = self._task("train", start, number, resultPath=result, **more, **self._lease(number))
        if finish:
            task.finish_after = 2
        self._finish(what, task)
        body = task.result or {}
        most = task.body.get("maxSteps")
        if not body.get("steps"):
            self._bad(what, f"no step was done in {self._seconds:.0f} s: call round.step after each, or give it more --seconds")
            raise _Stop
        if most and body["steps"] > most:
            self._bad(what, f"{body['steps']} steps, {most} were granted: leave the loop when round.step(...) is true")
        if task.ended_at > task.stop:
            self._bad(
                what,
                f"the result came {task.ended_at - task.stop:.1f} s after the stop time. An agent waits {_GRACE:.0f} s, "
                "but no step may run then: make steps shorter, or the rounds longer (spec.rounds.trainSeconds)",
            )
        self._look_at(what, start, body["path"])
        loss = body.get("loss")
        seconds = task.ended_at - task.taken_at
        if self._data:
            used = sum(r["end"] - r["begin"] for r in body["consumed"])
            self._good(what, f"{used} of {self._data} samples of the corpus were used")
        self._good(what, f"{body['steps']} steps, {body['samples']} samples, {seconds / body['steps']:.2g} s a step, " + (
            "no loss" if loss is None else f"loss {loss:.4g}"
        ))
        if loss is None:
            self._note(what, "no loss is reported, so nobody sees how training goes: round.step(loss, samples=...)")
        return str(body["path"])

    def _look_at(self, what: str, start: str, path: str) -> None:
        """As agent and coordinator do."""
        try:
            with File(start) as began, File(path) as ended:
                _layout.check_layout(ended.specs, began.specs)
                tensors = {n: ended.tensor(n) for n in ended}
                _layout.check_finite(tensors)
                _layout.check_swapped(tensors, began)
                same = all(ended.tensor(n).data == began.tensor(n).data for n in began if began.specs[n].is_float)
        except GirassolError as e:
            self._bad(what, str(e))
            raise _Stop from None
        if same:
            self._bad(what, "the weights that came back are those that were given: submit the state_dict of the model that trains")

    def _evaluate(self, model: str) -> None:
        task = self._task("evaluate", model, 3)
        self._finish("evaluation", task, must=False)
        if task.failure is not None and "evaluate=" not in task.failure:
            self._await(self._gone, 2.0)  # an exception ends the script a moment later
        if task.result is not None:
            loss = task.result.get("loss")
            if loss is None or not task.result["samples"]:
                self._bad("evaluation", "its result has no loss, or no samples behind it: return them, or round.submit(loss=..., samples=...)")
            else:
                self._good("evaluation", f"loss {loss:.4g}")
        elif self._gone():
            self._bad("evaluation", f"the script ended: {_end(task.failure)}")
            raise _Stop
        else:
            self._note("evaluation", f"{_end(task.failure)}")

    def _drain(self, model: str) -> None:
        """The end of a pod, in mid-round: what was done counts."""
        task = self._task("train", model, 4, resultPath=os.path.join(self._work, "result-4.safetensors"), **self._lease(4))
        self._await(lambda: bool(task.progress) or task.done.is_set() or self._gone(), self._seconds)
        began = time.monotonic()
        self._process.terminate()
        self._await(self._gone, _GRACE)
        seconds = time.monotonic() - began
        if not self._gone():
            self._bad("SIGTERM", f"the script did not end within {_GRACE:.0f} s. {_LOOP}")
        elif task.result is None:
            self._bad("SIGTERM", f"the round in hand was lost: {_end(task.failure) or 'let girassol.Session handle the signal'}")
        else:
            self._good("SIGTERM", f"{task.result['steps']} steps were handed in, the script ended after {seconds:.1f} s")

    # Small parts.

    def _start(self) -> subprocess.Popen[bytes]:
        source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH")) if p)
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "GIRASSOL_TRAINER_SOCKET": self._agent.socket_path,
            "GIRASSOL_TRAINER_WORKDIR": self._agent.work_dir,
        }
        return subprocess.Popen(self._command, env=env)

    def _lease(self, number: int) -> dict[str, Any]:
        """The whole corpus of --data in a pass of the round's own."""
        return {"data": [{"begin": 0, "end": self._data, "pass": number - 1}]} if self._data else {}

    def _task(self, kind: str, model: str, number: int, **more: Any) -> standin.Task:
        return self._agent.give(standin.Task(f"check-{number}", kind, number, model, self._seconds, **more))

    def _finish(self, what: str, task: standin.Task, must: bool = True) -> None:
        """Wait for a task's end; without a result there is nothing to go on with."""
        self._await(lambda: task.done.is_set() or self._gone(), self._seconds + _GRACE)
        if self._gone():
            task.done.wait(1)
        if task.result is not None or (task.failure is not None and not must):
            return
        if task.failure is not None:
            self._bad(what, f"the script failed: {_end(task.failure)}")
        elif self._gone():
            self._bad(what, f"the script ended with status {self._process.returncode} in mid-round")
        elif task.takes == 0:
            self._bad(what, f"the script did not ask for it. {_LOOP}")
        elif task.progress:
            self._bad(what, f"no result {_GRACE:.0f} s after the stop time: leave the loop when round.step(...) is true, then submit")
        else:
            self._bad(what, f"no result {_GRACE:.0f} s after the stop time, and no sign of life: call round.step(...) after each step")
        raise _Stop

    def _gone(self) -> bool:
        return self._process.poll() is not None

    def _await(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            self._agent.wait(lambda _: condition(), 0.1)

    def _good(self, what: str, text: str) -> None:
        self._say("ok", f"{what}: {text}")

    def _note(self, what: str, text: str) -> None:
        self._say("note", f"{what}: {text}")

    def _bad(self, what: str, text: str) -> None:
        self.problems.append(f"{what}: {text}")
        self._say("BAD", f"{what}: {text}")

    def _say(self, mark: str, text: str) -> None:
        print(f"{mark:<5}{text}" if mark else text, file=self._out, flush=True)


_LOOP = "A trainer lives on between rounds, in with girassol.Session(...) as session: for round in session: ..."


def _end(failure: str | None) -> str:
    """The last line of a traceback, which has the error."""
    return (failure or "").strip().splitlines()[-1] if failure and failure.strip() else ""


def _halve(path: str, out: str) -> None:
    """All floats times a half."""
    with File(path) as f:
        tensors = {}
        for name, spec in f.specs.items():
            t = f.tensor(name)
            if spec.is_float and spec.elements:
                t = _scaled(t, 0.5)
            tensors[name] = t
        safetensors.save(out, tensors, f.metadata)


def _scaled(t: Tensor, factor: float) -> Tensor:
    import ctypes

    if t.dtype in ("F32", "F64"):
        view = t.data.cast("f") if t.dtype == "F32" else t.data.cast("d")
        kind = ctypes.c_float if t.dtype == "F32" else ctypes.c_double
        return Tensor(t.dtype, t.shape, (kind * len(view))(*(v * factor for v in view)))
    return Tensor.of(t.dtype, t.shape, [v * factor for v in t.values()])


def _closer(path: str, here: str, there: str) -> bool:
    """Whether weights are much closer to those in ``here`` than to ``there``."""
    near = far = 0.0
    with File(path) as f, File(here) as a, File(there) as b:
        for name, spec in f.specs.items():
            if spec.is_float and spec.elements and not name.endswith(("running_mean", "running_var")):
                now = _layout._sample(f.tensor(name))
                near += _layout._distance(now, _layout._sample(a.tensor(name))) ** 2
                far += _layout._distance(now, _layout._sample(b.tensor(name))) ** 2
    return math.sqrt(near) < 0.5 * math.sqrt(far)
