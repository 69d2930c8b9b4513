from __future__ import annotations

import math
import os
import signal
import threading
import time
import unittest
from unittest import mock

from .rig import PATIENCE, AgentCase, Case, add, model

import girassol
from girassol import Action, LayoutError, NonFiniteError, RefusedError, Tensor, UsageError, safetensors
from girassol._client import deadline, unix_seconds
from girassol._pace import Pace


def trained(round: girassol.Round, amount: float = 0.01) -> dict[str, Tensor]:
    return add(round.state_dict(framework="buffers"), amount)


class Rounds(AgentCase):
    def test_two_rounds_and_an_end(self) -> None:
        tasks = [self.task(maxSteps=3, committedSamples=70, config={"lr": "0.1"}), self.task(maxSteps=2)]
        self.agent.give(tasks[0])
        seen = []
        with self.session() as session:
            for round in session:
                seen.append((round.number, round.max_steps, round.committed_samples, round.config))
                for _ in round.batches([1, 2]):
                    if round.step(loss=2.0, samples=4):
                        break
                self.assertIs(round.action, Action.FINISH)
                self.assertTrue(round.submit(trained(round), metrics={"accuracy": 0.5, "bad": math.nan}))
                if len(seen) == 1:
                    self.agent.give(tasks[1])
                else:
                    session.stop()
        self.assertEqual(seen, [(1, 3, 70, {"lr": "0.1"}), (2, 2, 0, {})])
        for task, steps in zip(tasks, (3, 2)):
            assert task.result is not None
            self.assertEqual((task.result["steps"], task.result["samples"], task.result["loss"]), (steps, 4 * steps, 2.0))
            self.assertEqual(set(task.result["metrics"]), {"accuracy", "step_seconds", "samples_per_second"})
            got = safetensors.load(task.result["path"], framework="buffers")
            self.assertAlmostEqual(got["scale"].values()[0], 2.01, 5)
            self.assertEqual(got["bn.num_batches_tracked"].values(), [(1 << 62) + 1])
        self.assertEqual(self.agent.refusals, [])

    def test_how_the_trainer_works_is_told(self) -> None:
        task = self.give(maxSteps=1)
        self.run_one(lambda r: (r.step(1.0), r.submit(trained(r))), trainer={"precision": "bf16", "batchSize": 32})
        self.assertEqual(task.progress[0]["trainer"], {"precision": "bf16", "batchSize": "32"})
        for bad in ({"x": "y" * 65}, {str(i): i for i in range(17)}):
            with self.assertRaisesRegex(UsageError, "at most 16 texts"):
                self.session(trainer=bad)

    def test_loss_is_weighted_by_samples(self) -> None:
        task = self.give(maxSteps=2)

        def body(round: girassol.Round) -> None:
            round.step(1.0, samples=1)
            round.step(4.0, samples=2)
            round.submit(trained(round))

        self.run_one(body)
        assert task.result is not None
        self.assertEqual(task.result["loss"], 3.0)

    def test_the_agent_says_finish(self) -> None:
        task = self.task()
        task.finish_after = 2
        self.agent.give(task)

        def body(round: girassol.Round) -> None:
            while not round.step(1.0, samples=1):
                time.sleep(0.01)
            self.assertEqual(round.reason, "so ordered")
            round.submit(trained(round))

        self.run_one(body)
        assert task.result is not None
        self.assertGreater(task.result["steps"], 1)
        self.assertEqual(len(task.progress), 2)

    def test_an_aborted_round_is_dropped_without_an_error(self) -> None:
        task = self.give()

        def body(round: girassol.Round) -> None:
            round.step(1.0, samples=1)
            self.agent.drop(task)
            while not round.step(1.0, samples=1):
                time.sleep(0.01)
            self.assertTrue(round.aborted)
            self.assertFalse(round.submit(trained(round)))

        self.run_one(body)
        self.assertIsNone(task.result)

    def test_a_result_for_a_round_that_is_over_is_no_error(self) -> None:
        task = self.give(maxSteps=1)

        def body(round: girassol.Round) -> None:
            round.step(1.0, samples=1)
            self.agent.drop(task, order="lost")
            self.assertFalse(round.submit(trained(round)))

        self.run_one(body)

    def test_no_step_runs_past_the_stop_time(self) -> None:
        task = self.give(seconds=60)

        def body(round: girassol.Round) -> None:
            while not round.step(1.0, samples=1):
                clock.now += 1
            self.assertGreaterEqual(round.seconds_left, 0)
            self.assertLess(round.seconds_left, 2.5)
            round.submit(trained(round))

        with mock.patch("girassol.round.time", Clock()) as clock:
            self.run_one(body)
        assert task.result is not None
        self.assertGreater(task.result["steps"], 50)

    def test_the_stop_time_holds_while_the_agent_is_away(self) -> None:
        self.give(seconds=60)
        steps = 0
        with mock.patch("girassol.round.time", Clock()) as clock, self.assertRaises(girassol.AgentError), self.session() as session:
            round = next(session)
            self.agent.__exit__()
            with mock.patch("girassol._result._TRIES", 2), self.assertLogs("girassol", "WARNING"):
                while not round.step(1.0, samples=1):
                    steps += 1
                    clock.now += 1
                self.assertGreater(steps, 50)
                self.assertGreaterEqual(round.seconds_left, 0)
                round.submit(trained(round))
        self.agent.__enter__()

    def test_a_round_without_time_for_a_step_is_over_at_once_and_learns(self) -> None:
        task = self.give(seconds=0.3)

        def body(round: girassol.Round) -> None:
            self.assertTrue(round.over)
            self.assertEqual(list(round.batches([1])), [])
            self.assertTrue(round.submit(round.state_dict(framework="buffers")))

        with self.session() as session:
            session._pace.took(1.0)
            body(next(session))
            session.stop()
            self.assertTrue(session._pace.fits(0.6, first=True))
        self.assertEqual(task.result, {"steps": 0, "samples": 0})

    def test_wider_floats_are_taken(self) -> None:
        task = self.give(maxSteps=1)

        def body(round: girassol.Round) -> None:
            round.step(None, samples=1)
            state = trained(round)
            state["half"] = Tensor.of("F32", (2,), [1.5, 4.0])
            self.assertTrue(round.submit(state))

        self.run_one(body)
        assert task.result is not None
        self.assertNotIn("loss", task.result)

    def test_a_sign_of_life_counts_no_step(self) -> None:
        task = self.give(maxSteps=1)

        def body(round: girassol.Round) -> None:
            self.assertFalse(round.alive())
            self.assertTrue(round.step(1.0))
            round.submit(trained(round))

        self.run_one(body)
        self.assertEqual(task.progress[0], {"steps": 0, "samples": 0})
        assert task.result is not None
        self.assertEqual(task.result["steps"], 1)

    def test_a_long_step_that_heard_finish_in_its_midst_counts(self) -> None:
        task = self.task()
        task.finish_after = 1
        self.agent.give(task)

        def body(round: girassol.Round) -> None:
            self.assertTrue(round.alive())
            time.sleep(0.02)  # longer than the session's patience: a step is not cut in two
            self.assertTrue(round.step(1.0, samples=1))
            round.submit(trained(round))

        self.run_one(body, late_seconds=0.001)
        assert task.result is not None, task.failure
        self.assertEqual(task.result["steps"], 1)

    def test_ranks_give_signs_of_life_without_each_other(self) -> None:
        class Pair:
            rank, size = 0, 2
            codes: list[int] = []

            def share(self, value: object) -> object:
                return value

            def agree(self, code: int) -> int:
                self.codes.append(code)
                return code

            def total(self, values: list[float]) -> list[float]:
                return list(values)

        task = self.task()
        task.finish_after = 1
        self.agent.give(task)
        pair = Pair()

        def body(round: girassol.Round) -> None:
            pair.codes.clear()
            self.assertFalse(round.alive() or round.over or pair.codes)
            self.assertEqual(len(task.progress), 1)
            self.assertTrue(round.step(1.0, samples=1))
            self.assertEqual((pair.codes, round.reason), ([1], "so ordered"))
            round.submit(trained(round))

        with mock.patch("girassol._ranks.find", return_value=pair):
            self.run_one(body)
        self.assertIsNotNone(task.result)

    def test_a_restarted_trainer_gets_its_task_again(self) -> None:
        task = self.give(maxSteps=1)
        session = self.session()
        with session:
            next(session)
            session._round = None  # it was killed: nobody says anything

        def body(round: girassol.Round) -> None:
            round.step(1.0)
            round.submit(trained(round))

        self.run_one(body)
        self.assertEqual(task.takes, 2)
        self.assertIsNotNone(task.result)


class Clock:
    """A round's clock, which goes on as a test says: steps that take as long as they are
    said to on any machine."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


class Seeding(AgentCase):
    def test_first_weights_are_made_when_they_are_wanted(self) -> None:
        made = []

        def seed() -> dict[str, Tensor]:
            made.append(1)
            return model()

        def federation() -> None:
            self.agent.wait(lambda a: a.polls, PATIENCE)
            polls_before.append(len(made))
            self.agent.want_seed()
            self.agent.wait(lambda a: a.seeds, PATIENCE)
            os.link(self.agent.seeds[0], self.path("kept"))
            self.give(maxSteps=1)

        polls_before: list[int] = []
        thread = threading.Thread(target=federation)
        thread.start()
        self.run_one(lambda r: (r.step(1.0), r.submit(trained(r))), seed=seed)
        thread.join()
        self.assertEqual((polls_before, made), ([0], [1]))
        self.assertEqual(safetensors.load(self.path("kept"), framework="buffers")["half"].values(), [1, 3])
        self.assertFalse([n for n in os.listdir(self.work) if n.startswith("seed")])

    def test_a_modules_buffers_are_told_apart(self) -> None:
        class Module:
            def state_dict(self) -> dict[str, Tensor]:
                return model(ema=Tensor.of("F32", (1,), [1.0]))

            def named_buffers(self) -> list[tuple[str, None]]:
                return [("ema", None), ("bn.num_batches_tracked", None), ("not.persistent", None)]

        session = self.session(seed=Module())
        session._write_seed()
        with safetensors.File(session._seed_path) as f:
            self.assertEqual(f.metadata, {"girassol.buffers": "ema"})

    def test_bad_first_weights_end_the_script(self) -> None:
        self.agent.want_seed()
        with self.assertRaisesRegex(NonFiniteError, "layer.bias"), self.session(seed=bad(model())) as session:
            next(session)


def bad(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**state, "layer.bias": Tensor.of("F32", (4,), [0, math.nan, 0, 0])}


class Evaluations(AgentCase):
    def test_a_function_gives_the_loss(self) -> None:
        task = self.give("evaluate")
        with self.session(evaluate=lambda r: 1.5) as session:
            threading.Thread(target=lambda: (task.done.wait(PATIENCE), session.stop())).start()
            self.assertEqual(list(session), [])
        assert task.result is not None
        self.assertEqual(task.result, {"steps": 0, "samples": 1, "loss": 1.5})

    def test_a_function_gives_the_loss_and_its_weight(self) -> None:
        task = self.give("evaluate")
        with self.session(evaluate=lambda r: (1.5, 640)) as session:
            threading.Thread(target=lambda: (task.done.wait(PATIENCE), session.stop())).start()
            list(session)
        self.assertEqual(task.result, {"steps": 0, "samples": 640, "loss": 1.5})

    def test_steps_and_metrics(self) -> None:
        task = self.give("evaluate")

        def evaluate(round: girassol.Round) -> None:
            round.step(1.0, samples=3)
            round.step(2.0, samples=1)
            round.submit(metrics={"accuracy": 0.25})

        with self.session(evaluate=evaluate) as session:
            threading.Thread(target=lambda: (task.done.wait(PATIENCE), session.stop())).start()
            list(session)
        self.assertEqual(task.result, {"steps": 2, "samples": 4, "loss": 1.25, "metrics": {"accuracy": 0.25}})

    def test_in_the_loop(self) -> None:
        task = self.give("evaluate")

        def body(round: girassol.Round) -> None:
            self.assertTrue(round.evaluating)
            round.submit(loss=2.0)

        self.run_one(body, evaluate=True)
        self.assertIsNotNone(task.result)

    def test_without_a_function_it_is_refused_with_the_cure_and_training_goes_on(self) -> None:
        first = self.give("evaluate")
        second = self.task(maxSteps=1)
        threading.Thread(target=lambda: (first.done.wait(PATIENCE), self.agent.give(second))).start()
        self.run_one(lambda r: (r.step(1.0), r.submit(trained(r))))
        self.assertIn("evaluate=", first.failure or "")
        self.assertIsNotNone(second.result)

    def test_a_loss_that_is_not_finite_is_a_result_without_one(self) -> None:
        task = self.give("evaluate")
        with self.assertLogs("girassol", "WARNING"):
            self.run_one(lambda r: r.submit(loss=math.inf), evaluate=True)
        assert task.result is not None
        self.assertNotIn("loss", task.result)
        self.assertGreater(task.result["samples"], 0)

    def test_weights_or_no_loss_are_refused(self) -> None:
        for body, cure in (
            (lambda r: r.submit(model()), "changes no weights"),
            (lambda r: r.submit(), "submit\\(loss="),
        ):
            task = self.give("evaluate")
            with self.assertRaisesRegex(girassol.GirassolError, cure):
                self.run_one(body, evaluate=True)
            self.assertIsNotNone(task.failure)


class BadScripts(AgentCase):
    def refused(self, kind: type[BaseException], cure: str, body: object, **options: object) -> str:
        task = self.give(maxSteps=5)
        with self.assertRaisesRegex(kind, cure):
            self.run_one(body, **options)  # type: ignore[arg-type]
        self.assertIsNone(task.result)
        self.assertRegex(task.failure or "", cure)
        return task.failure or ""

    def submits(self, change: object) -> object:
        def body(round: girassol.Round) -> None:
            round.step(1.0)
            state = round.state_dict(framework="buffers")
            round.submit(change(state) or state)  # type: ignore[operator]

        return body

    def test_nan_weights(self) -> None:
        self.refused(NonFiniteError, "layer.bias.*learning rate", self.submits(bad))

    def test_nan_in_halves(self) -> None:
        nan = Tensor.of("BF16", (2,), [1.0, math.nan])
        self.refused(NonFiniteError, "half", self.submits(lambda s: s.update(half=nan)))

    def test_nan_losses(self) -> None:
        def body(round: girassol.Round) -> None:
            round.max_steps = 0
            for _ in range(50):
                round.step(math.nan)

        self.refused(NonFiniteError, "loss is nan since 10 steps.*learning rate", body)

    def test_single_nan_losses_are_left_out(self) -> None:
        task = self.give(maxSteps=3)

        def body(round: girassol.Round) -> None:
            for loss in (1.0, math.nan, 2.0):
                round.step(loss)
            round.submit(trained(round))

        self.run_one(body)
        assert task.result is not None
        self.assertEqual(task.result["loss"], 1.5)

    def test_wrong_shape(self) -> None:
        wrong = Tensor.of("F32", (2, 2), [1, 2, 3, 4])
        self.refused(
            LayoutError, r"layer.bias: has shape \[2, 2\], want \[4\].*settings", self.submits(lambda s: s.update({"layer.bias": wrong}))
        )

    def test_a_zero_d_tensor_keeps_its_shape(self) -> None:
        wrong = Tensor.of("F32", (1,), [1])
        self.refused(LayoutError, r"scale: has shape \[1\], want \[\]", self.submits(lambda s: s.update(scale=wrong)))

    def test_wrong_integer_type(self) -> None:
        wrong = Tensor.of("F32", (), [1])
        self.refused(LayoutError, "is F32, want I64", self.submits(lambda s: s.update({"bn.num_batches_tracked": wrong})))

    def test_swapped_names_of_different_shapes(self) -> None:
        def swap(s: dict[str, Tensor]) -> None:
            s["layer.bias"], s["bn.running_mean"] = s["bn.running_mean"], s["layer.bias"]

        self.refused(LayoutError, "Are bn.running_mean and layer.bias swapped", self.submits(swap))

    def test_swapped_names_of_one_shape(self) -> None:
        self.write_model(model(other=Tensor.of("F32", (4, 8), [math.sin(i) for i in range(32)])))

        def swap(s: dict[str, Tensor]) -> dict[str, Tensor]:
            s = add(s, 0.001)
            s["other"], s["layer.weight"] = s["layer.weight"], s["other"]
            return s

        self.refused(LayoutError, "layer.weight and other stand in each other's place", self.submits(swap))

    def test_too_few_tensors(self) -> None:
        self.refused(
            LayoutError, "bn.num_batches_tracked: missing.*whole state_dict", self.submits(lambda s: {"scale": s["scale"]})
        )

    def test_names_of_a_wrapper(self) -> None:
        self.refused(LayoutError, "model.module.state_dict", self.submits(lambda s: {f"module.{n}": t for n, t in s.items()}))

    def test_renamed(self) -> None:
        def rename(s: dict[str, Tensor]) -> None:
            s["gain"] = s.pop("scale")

        self.refused(LayoutError, "renamed", self.submits(rename))

    def test_a_value_that_is_no_tensor(self) -> None:
        self.refused(LayoutError, "scale: is a float", self.submits(lambda s: s.update(scale=2.0)))

    def test_the_model_instead_of_its_state(self) -> None:
        self.refused(LayoutError, "state dict is wanted", lambda r: (r.step(1.0), r.submit([1])))

    def test_step_is_never_called(self) -> None:
        self.refused(UsageError, "call round.step", lambda r: r.submit(trained(r)))

    def test_step_is_never_called_and_the_stop_time_passes(self) -> None:
        task = self.give(seconds=0.2)

        def body(round: girassol.Round) -> None:
            task.done.wait(PATIENCE)
            round.submit(trained(round))

        with self.assertRaisesRegex(UsageError, "step.* was not called"):
            self.run_one(body, late_seconds=0.1)
        self.assertRegex(task.failure or "", r"task.done.wait[\s\S]*round.step\(\) was not called in the \d+ s")

    def test_the_answer_of_step_is_ignored(self) -> None:
        def body(round: girassol.Round) -> None:
            while True:
                round.step(1.0)
                time.sleep(0.01)

        self.refused(UsageError, "if round.step.*break", body, late_seconds=0.1)

    def test_submit_is_never_called(self) -> None:
        self.refused(UsageError, "was not submitted: call round.submit", lambda r: r.step(1.0))

    def test_leaving_in_mid_round_is_a_failure(self) -> None:
        task = self.give()
        with self.session() as session:
            for round in session:
                round.step(1.0)
                break
        self.assertIn("left its session in mid-round", task.failure or "")

    def test_an_exception_is_reported_with_the_end_of_its_traceback(self) -> None:
        def deep(n: int) -> None:
            if n == 0:
                raise ValueError("x" * 3000 + " the end")
            (deep if n % 2 else shallow)(n - 1)

        def shallow(n: int) -> None:
            deep(n)

        task = self.give()
        with self.assertRaises(ValueError):
            self.run_one(lambda r: deep(40))
        failure = task.failure or ""
        self.assertLessEqual(len(failure.encode()), 4096)
        self.assertTrue(failure.startswith("... ") and failure.endswith(" the end"))
        self.assertIn("ValueError", failure)

    def test_steps_without_samples(self) -> None:
        for samples in (0, -1, 1.5):
            self.refused(UsageError, "positive whole number", lambda r, s=samples: r.step(1.0, samples=s))

    def test_a_loss_of_many_elements(self) -> None:
        self.refused(UsageError, "loss must be a number", lambda r: r.step([1.0, 2.0]))

    def test_no_weights(self) -> None:
        self.refused(UsageError, "no weights: call round.submit", lambda r: (r.step(1.0), r.submit()))

    def test_submitting_twice(self) -> None:
        self.give(maxSteps=1)
        with self.assertRaisesRegex(UsageError, "ended already"):
            self.run_one(lambda r: (r.step(1.0), r.submit(trained(r)), r.submit(trained(r))))

    def test_a_step_after_the_end(self) -> None:
        self.give(maxSteps=1)
        with self.assertRaisesRegex(UsageError, "has ended"):
            self.run_one(lambda r: (r.step(1.0), r.submit(trained(r)), r.step(1.0)))

    def test_an_empty_source_of_batches(self) -> None:
        self.refused(UsageError, "source is empty", lambda r: list(r.batches(iter([]))))

    def test_bad_metrics(self) -> None:
        for metrics, want in (({"a": "b"}, "no number"), ({"": 1.0}, "must have 1 to"), ({str(i): 1.0 for i in range(300)}, "at most 256")):
            self.refused(UsageError, want, lambda r, m=metrics: (r.step(1.0), r.submit(trained(r), metrics=m)))

    def test_what_the_agent_refuses_is_raised_and_reported(self) -> None:
        def body(round: girassol.Round) -> None:
            round.step(1.0)
            round.result_path = "/tmp/../tmp/girassol-elsewhere"
            self.addCleanup(lambda: os.path.exists(round.result_path) and os.unlink(round.result_path))
            round.submit(trained(round))

        self.refused(RefusedError, "leads out of the work folder", body)


class Signals(AgentCase):
    def test_sigterm_cuts_the_round_short_and_its_work_counts(self) -> None:
        task = self.give()
        old = signal.getsignal(signal.SIGTERM)
        with self.session() as session:
            for round in session:
                round.step(1.0)
                os.kill(os.getpid(), signal.SIGTERM)
                self.assertTrue(round.step(1.0))
                self.assertEqual(round.reason, "the process was told to end")
                round.submit(trained(round))
        assert task.result is not None
        self.assertEqual(task.result["steps"], 2)
        self.assertIs(signal.getsignal(signal.SIGTERM), old)

    def test_sigterm_ends_a_long_poll_at_once(self) -> None:
        def end() -> None:
            self.agent.wait(lambda a: a.polls, PATIENCE)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=end).start()
        began = time.monotonic()
        with self.session() as session:
            self.assertEqual(list(session), [])
        self.assertLess(time.monotonic() - began, 20)

    def test_a_task_that_comes_with_the_signal_is_given_back(self) -> None:
        task = self.give()
        with self.session() as session:
            real = session._client.next_task

            def told_meanwhile(wait: float, wake: int | None = None) -> object:
                got = real(wait, None)
                session.stop()
                return got

            session._client.next_task = told_meanwhile  # type: ignore
            self.assertEqual(list(session), [])
        self.assertEqual(task.result, {"steps": 0, "samples": 0})


    def test_a_stop_while_the_session_closes_writes_to_no_other_file(self) -> None:
        session = self.session()
        session.__enter__()
        writing, closed = threading.Event(), threading.Event()
        met = []

        def write(fd: int, data: bytes) -> int:
            writing.set()
            met.append(closed.wait(0.05))
            return len(data)

        with mock.patch("girassol.session.os.write", write):
            stopper = threading.Thread(target=session.stop)
            stopper.start()
            self.assertTrue(writing.wait(PATIENCE))
            session.__exit__(None, None, None)
            closed.set()
            stopper.join()
        self.assertEqual(met, [False], "the pipe was closed while it was written to")
        session.stop()  # once more, when all is closed
        self.assertTrue(session.stopping)


class Surroundings(Case):
    def test_without_an_agent_the_message_names_the_ways(self) -> None:
        with mock.patch.dict(os.environ, clear=True), self.assertRaisesRegex(UsageError, "python -m girassol check"):
            girassol.Session()

    def test_outside_its_block_a_session_gives_no_rounds(self) -> None:
        session = girassol.Session(socket_path=self.socket, work_dir=self.work)
        with self.assertRaisesRegex(UsageError, "with girassol.Session"):
            next(session)

    def test_torchrun_without_a_process_group_is_named(self) -> None:
        from girassol import _ranks

        with mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "0"}), self.assertRaisesRegex(UsageError, "init_process_group"):
            _ranks.find()

    def test_an_agent_that_comes_late_is_waited_for(self) -> None:
        from girassol.standin import Agent

        session = girassol.Session(socket_path=self.socket, work_dir=self.work)
        agent = Agent(self.socket, self.work)

        def late() -> None:
            agent.__enter__()
            agent.wait(lambda a: a.polls, PATIENCE)
            session.stop()

        with session, self.assertLogs("girassol", "WARNING") as logs:
            threading.Timer(0.3, late).start()
            self.assertEqual(list(session), [])
        agent.__exit__()
        self.assertIn("trying for ever", logs.output[0])


class Clocks(unittest.TestCase):
    def test_times_of_any_precision_and_zone(self) -> None:
        for text, want in (
            ("1970-01-01T00:00:01Z", 1.0),
            ("1970-01-01T00:00:00.123456789Z", 0.123456789),
            ("1970-01-01T02:00:00+02:00", 0.0),
            ("1969-12-31T23:30:00-00:30", 0.0),
        ):
            self.assertAlmostEqual(unix_seconds(text), want, 6)
        with self.assertRaises(ValueError):
            unix_seconds("yesterday")

    def test_the_nearer_of_span_and_time_counts(self) -> None:
        with mock.patch("time.time", return_value=1000.0), mock.patch("time.monotonic", return_value=5.0):
            self.assertAlmostEqual(deadline({"stopInSeconds": 3.0, "stopAt": "1970-01-01T00:16:50Z"}), 8.0)
            self.assertAlmostEqual(deadline({"stopInSeconds": 30.0, "stopAt": "1970-01-01T00:16:50Z"}), 15.0)

    def test_a_step_that_stalled_says_nothing_about_the_next(self) -> None:
        pace = Pace()
        for seconds in (0.1, 0.1, 0.1, 0.1, 9.0):
            pace.took(seconds)
        self.assertTrue(pace.fits(0.13))
        self.assertFalse(pace.fits(0.11))
        self.assertTrue(pace.fits(0.1, first=True))
        self.assertFalse(pace.fits(0.0, first=True))


if __name__ == "__main__":
    unittest.main()
