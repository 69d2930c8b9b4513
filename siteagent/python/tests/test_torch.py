"""With a real PyTorch and numpy, where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unittest
import warnings
from typing import Any

from .rig import PATIENCE, SRC, AgentCase, Case, script

import girassol
from girassol import safetensors

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]
try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = unittest.skipIf(torch is None, "torch is not installed: pip install torch, or Debian's python3-torch")
needs_numpy = unittest.skipIf(numpy is None, "numpy is not installed")


@needs_numpy
class Numpy(Case):
    def test_arrays_come_back_bit_for_bit(self) -> None:
        rng = numpy.random.default_rng(1)
        arrays = {
            "f64": rng.normal(size=(3, 4)), "f32": rng.normal(size=5).astype("f4"), "f16": rng.normal(size=2).astype("f2"),
            "i64": numpy.array(-(1 << 62)), "u8": numpy.arange(256, dtype="u1"), "bool": numpy.array([True, False]),
            "empty": numpy.zeros((2, 0), "f4"), "slice": rng.normal(size=(6, 6)).astype("f4")[::2, 1::3], "scalar": numpy.float32(3),
        }  # fmt: skip
        safetensors.save(self.path("m"), arrays)
        got = safetensors.load(self.path("m"), framework="numpy")
        for name, want in arrays.items():
            numpy.testing.assert_array_equal(got[name], want)
            self.assertEqual((got[name].dtype, got[name].shape), (want.dtype, want.shape))

    def test_arrays_are_views_of_the_file(self) -> None:
        safetensors.save(self.path("m"), {"w": numpy.ones(4, "f4")})
        a = safetensors.load(self.path("m"), framework="numpy")["w"]
        self.assertFalse(a.flags.owndata)
        a += 1  # private: the file stays as it is
        self.assertEqual(safetensors.load(self.path("m"), framework="numpy")["w"][0], 1)

    def test_bf16_names_the_way_out(self) -> None:
        self.write_model()
        try:
            import ml_dtypes  # noqa: F401
        except ImportError:
            with self.assertRaisesRegex(girassol.FormatError, "ml_dtypes"):
                safetensors.load(self.path("model.safetensors"), framework="numpy")

    def test_other_byte_orders_and_types_are_refused(self) -> None:
        for a in (numpy.zeros(2, ">f4"), numpy.zeros(2, "c8"), numpy.array(["x"]), numpy.array([None])):
            with self.assertRaisesRegex(girassol.FormatError, "convert it"):
                safetensors.save(self.path("m"), {"w": a})


@needs_torch
class Torch(Case):
    def setUp(self) -> None:
        super().setUp()
        self.caught = warnings.catch_warnings()
        self.caught.__enter__()
        self.addCleanup(self.caught.__exit__, None, None, None)
        warnings.simplefilter("error")  # of torch too: nothing read-only is handed to it

    def test_tensors_come_back_bit_for_bit(self) -> None:
        torch.manual_seed(1)
        state = {
            "f64": torch.randn(3, 4, dtype=torch.float64), "f32": torch.randn(5), "f16": torch.randn(2).half(),
            "bf16": torch.randn(7).bfloat16(), "zero_d": torch.tensor(2.5), "bf16_zero_d": torch.tensor(1.5).bfloat16(),
            "i64": torch.tensor((1 << 62) + 1), "i32": torch.arange(3, dtype=torch.int32), "i8": torch.tensor([-1], dtype=torch.int8),
            "u8": torch.arange(5, dtype=torch.uint8), "bool": torch.tensor([True, False, True]), "empty": torch.zeros(2, 0),
            "transposed": torch.randn(3, 5).t(), "parameter": torch.nn.Parameter(torch.randn(2)),
        }  # fmt: skip
        safetensors.save(self.path("m"), state)
        got = safetensors.load(self.path("m"), framework="torch")
        for name, want in state.items():
            self.assertTrue(torch.equal(got[name], want.detach()), name)
            self.assertEqual((got[name].dtype, got[name].shape), (want.dtype, want.shape), name)

    def test_the_mean_of_bf16_weights_is_exact(self) -> None:
        safetensors.save(self.path("a"), {"w": torch.tensor([1.0, 3.0]).bfloat16()})
        safetensors.save(self.path("b"), {"w": torch.tensor([2.0, 5.0]).bfloat16()})
        a, b = (safetensors.load(self.path(n))["w"] for n in "ab")
        self.assertEqual(((a + b) / 2).tolist(), [1.5, 4.0])

    def test_tensors_are_private_views_and_outlive_the_file(self) -> None:
        safetensors.save(self.path("m"), {"w": torch.ones(1 << 20)})
        w = safetensors.load(self.path("m"))["w"]
        os.unlink(self.path("m"))
        w += 1
        self.assertEqual(float(w.sum()), 2 << 20)

    def test_files_of_others_may_be_unaligned(self) -> None:
        from .rig import raw

        with open(self.path("m"), "wb") as f:
            header = '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[],"data_offsets":[1,5]}}'
            f.write(raw(header, b"\x07\0\0\x80\x3f"))
        got = safetensors.load(self.path("m"), framework="torch")
        self.assertEqual((got["a"].item(), got["b"].item()), (7, 1.0))

    def test_a_module_with_statistics_travels(self) -> None:
        module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 2).bfloat16())
        module[1].num_batches_tracked.fill_(41)
        safetensors.save(self.path("m"), module.state_dict())
        other = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(3, 2).bfloat16())
        other.load_state_dict(safetensors.load(self.path("m")))
        for name, want in module.state_dict().items():
            self.assertTrue(torch.equal(other.state_dict()[name], want), name)
        self.assertEqual(other[1].num_batches_tracked.item(), 41)

    def test_what_does_not_travel_is_named(self) -> None:
        for value, want in (
            (torch.zeros(2, dtype=torch.complex64), "convert it"),
            (torch.zeros(2).to_sparse(), "dense"),
            (torch.empty(2, device="meta"), "no values"),
        ):
            with self.assertRaisesRegex(girassol.FormatError, want):
                safetensors.save(self.path("m"), {"w": value})

    def test_importing_this_package_imports_neither(self) -> None:
        code = "import sys, girassol; assert not {'torch', 'numpy'} & set(sys.modules), sys.modules.keys()"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": SRC})


@needs_torch
class Training(AgentCase):
    def module(self) -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))

    def rounds(self, module: Any, body: Any, n: int = 1) -> list[Any]:
        self.write_model(module.state_dict())
        tasks = [self.task(maxSteps=4) for _ in range(n)]

        def federation() -> None:
            for i, task in enumerate(tasks):
                if i:
                    task.body["modelPath"] = tasks[i - 1].result["path"]  # type: ignore[index]
                self.agent.give(task)
                task.done.wait(PATIENCE)

        thread = threading.Thread(target=federation)
        thread.start()
        try:
            with self.session() as session:
                for i, round in enumerate(session):
                    body(round)
                    if i + 1 == n:
                        session.stop()
        finally:
            for task in tasks:
                task.done.set()
            thread.join()
        return tasks

    def test_two_rounds_learn_and_keep_the_optimizer(self) -> None:
        module = self.module()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        x = torch.randn(64, 4)
        y = x.sum(1, keepdim=True)

        def body(round: girassol.Round) -> None:
            module.load_state_dict(round.state_dict("cpu"))
            while True:
                loss = torch.nn.functional.mse_loss(module(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if round.step(loss, samples=64):
                    break
            round.submit(module.state_dict())

        first, second = self.rounds(module, body, 2)
        self.assertLess(second.result["loss"], first.result["loss"])
        self.assertEqual((second.result["steps"], second.result["samples"]), (4, 256))
        got = safetensors.load(second.result["path"])
        self.assertEqual((got["1.num_batches_tracked"].item(), got["1.num_batches_tracked"].dtype), (8, torch.int64))

    def test_nan_and_swaps_are_refused(self) -> None:
        def submits(change: Any) -> Any:
            def body(round: girassol.Round) -> None:
                round.step(torch.tensor(1.0), samples=1)
                state = {n: t.clone() for n, t in round.state_dict().items()}
                change(state)
                round.submit(state)

            return body

        def swap(state: Any) -> None:
            state["a"], state["b"] = state["b"], state["a"]

        module = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.randn(9, 9)), "b": torch.nn.Parameter(torch.randn(9, 9))})
        with self.assertRaisesRegex(girassol.LayoutError, "a and b stand in each other's place"):
            self.rounds(module, submits(swap))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            with self.assertRaisesRegex(girassol.NonFiniteError, "infinite.*: b"):
                self.rounds(module.to(dtype), submits(lambda s: s["b"][3, 3].fill_(float("inf"))))

    def test_ranks_of_a_torchrun_stop_after_the_same_step(self) -> None:
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            self.skipTest("this torch has no gloo")
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(RANKS)
        self.write_model({"w": torch.zeros(3)})
        tasks = [self.task(), self.task(maxSteps=3)]
        tasks[0].finish_after = 2
        processes = self.launch(path)
        for task in tasks:
            self.agent.give(task)
            self.assertTrue(task.done.wait(PATIENCE), "no result")
        # Only rank 0 is told to end; the other one learns it.
        processes[0].terminate()
        outs = [p.communicate(timeout=PATIENCE)[0] for p in processes]
        self.assertEqual([p.returncode for p in processes], [0, 0], outs)
        steps = [[line for line in out.splitlines() if line.startswith("round")] for out in outs]
        self.assertEqual(steps[0], steps[1])
        self.assertEqual(len(steps[0]), 2)
        for task in tasks:
            assert task.result is not None, task.failure
            n = task.result["steps"]
            self.assertEqual(task.result["samples"], n * (1 + 2))  # of both ranks
            self.assertAlmostEqual(task.result["loss"], (1 * 1.0 + 2 * 4.0) / 3)
            self.assertEqual(safetensors.load(task.result["path"])["w"].tolist(), [float(n)] * 3)
        self.assertEqual(tasks[1].result["steps"], 3)  # type: ignore[index]

    def test_an_error_of_any_rank_reaches_the_agent_and_ends_the_other(self) -> None:
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(RANKS)
        self.write_model({"w": torch.zeros(3)})
        for fails in ("rank1", "submit"):
            with self.subTest(fails):
                task = self.give(maxSteps=2)
                processes = self.launch(path, fails)
                outs = [p.communicate(timeout=PATIENCE)[0] for p in processes]
                self.assertTrue(task.done.is_set())
                self.assertRegex(task.failure or "", "rank 1:[\\s\\S]*no data" if fails == "rank1" else "rank 0:[\\s\\S]*missing")
                self.assertNotIn(0, [p.returncode for p in processes], outs)

    def test_under_torchrun_sigterm_cuts_the_round_short_and_counts(self) -> None:
        if torch.__version__.startswith("1.") and sys.version_info >= (3, 11):
            self.skipTest(f"torchrun of torch {torch.__version__} fails by itself on Python {sys.version_info[0]}.{sys.version_info[1]}")
        path = self.path("script.py")
        with open(path, "w") as f:
            f.write(RANKS)
        self.write_model({"w": torch.zeros(3)})
        task = self.give()
        env = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
        env |= {"GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", path]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.agent.wait(lambda _: task.progress or process.poll() is not None, PATIENCE)
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE)
        assert task.result is not None, task.failure or out
        self.assertGreater(task.result["steps"], 0)
        self.assertEqual(task.result["samples"], 3 * task.result["steps"])
        self.assertLess(task.ended_at, task.stop - 5)  # it was not the stop time

    def launch(self, path: str, *args: str) -> list[subprocess.Popen[str]]:
        # What torchrun sets, without its supervision.
        env = {**os.environ, "PYTHONPATH": SRC, "WORLD_SIZE": "2", "STORE": f"{self.dir}/store-{self.tasks}", "OMP_NUM_THREADS": "1"}
        env |= {"GIRASSOL_TRAINER_SOCKET": self.socket, "GIRASSOL_TRAINER_WORKDIR": self.work}
        return [
            subprocess.Popen(
                [sys.executable, path, *args], env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for r in range(2)
        ]


RANKS = script("""
    import os, sys, time
    import torch, torch.distributed as dist
    import girassol

    fails = sys.argv[1] if len(sys.argv) > 1 else ""
    rank = int(os.environ["RANK"])
    where = {"init_method": "file://" + os.environ["STORE"], "rank": rank, "world_size": 2} if "STORE" in os.environ else {}
    dist.init_process_group("gloo", **where)
    with girassol.Session() as session:
        for round in session:
            w = round.state_dict()["w"].clone()
            while True:
                if fails == "rank1" and rank == 1:
                    raise RuntimeError("no data")
                time.sleep(0.01 * (1 + rank))
                w += 1
                if round.step(loss=[1.0, 4.0][rank], samples=[1, 2][rank]):
                    break
            print("round", round.number, round.steps, flush=True)
            round.submit({"x": w} if fails == "submit" else {"w": w})
    dist.destroy_process_group()
""")


if __name__ == "__main__":
    unittest.main()
