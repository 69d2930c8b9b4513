from __future__ import annotations

import random
import unittest

from .rig import AgentCase, add

import girassol
from girassol import Data, DataRange, RefusedError, Tensor, UsageError
from girassol.data import Sampler, body_of

try:
    import torch
    from torch.utils.data import DataLoader, Dataset
except ImportError:
    torch = None  # type: ignore[assignment]

LEASE = [{"begin": 10, "end": 20}, {"begin": 30, "end": 33}, {"begin": 0, "end": 4, "pass": 1}]
INDICES = [*range(10, 20), 30, 31, 32, *range(4)]


def trained(round: girassol.Round) -> dict[str, Tensor]:
    return add(round.state_dict(framework="buffers"), 0.01)


class Leases(unittest.TestCase):
    def lease(self, rank: int = 0, size: int = 1) -> Data:
        return Data([DataRange(10, 20), DataRange(30, 33), DataRange(0, 4, 1)], rank, size)

    def test_samples_come_in_order(self) -> None:
        data = self.lease()
        self.assertEqual((len(data), data.left, bool(data)), (17, 17, True))
        self.assertEqual([next(data), *data.take(3)], [10, 11, 12, 13])
        self.assertEqual(list(data), INDICES[4:])
        self.assertEqual((data.take(5), list(data), data.left), ([], [], 0))

    def test_without_a_ledger_there_is_nothing(self) -> None:
        data = Data([])
        self.assertFalse(data)
        self.assertEqual((list(data), list(Sampler(data, 4)), data.used_up), ([], [], False))

    def test_ranks_have_parts_of_equal_length(self) -> None:
        for size in range(1, 20):
            parts = [list(self.lease(rank, size)) for rank in range(size)]
            self.assertEqual({len(p) for p in parts}, {max(1, 17 // size)})
            for k in range(1, len(parts[0]) + 1):
                used = sorted({INDICES.index(p[j]) for p in parts for j in range(k)})
                data = self.lease(0, size)
                consumed = [i for r in data._consumed([k] * size) for i in range(r.begin, r.end)]
                self.assertEqual([INDICES[i] for i in used], consumed, (size, k))
        with self.assertRaisesRegex(UsageError, "each must draw as many"):
            self.lease(0, 2)._consumed([3, 4])

    def test_told_samples_are_judged_as_at_the_agent(self) -> None:
        data = self.lease()
        for bad, want in (
            ([(9, 12)], "not in round.data"),
            ([(19, 31)], "not in round.data"),
            ([(12, 12)], "empty"),
            ([(12, 15), (14, 16)], "upward"),
            ([(0, 4, 1), (10, 11)], "upward"),
            ([(10, 11)] * 1025, "at most 1024"),
        ):
            with self.assertRaisesRegex(UsageError, want):
                body_of(bad, data)
        self.assertEqual(body_of([(10, 20), (0, 1, 1)], data), [{"begin": 10, "end": 20, "pass": 0}, {"begin": 0, "end": 1, "pass": 1}])

    def test_batches(self) -> None:
        data = self.lease()
        sampler = Sampler(data, 5)
        self.assertEqual(len(sampler), 4)
        self.assertEqual([len(b) for b in sampler], [5, 5, 5, 2])
        with self.assertRaisesRegex(UsageError, "at least 1"):
            Sampler(data, 0)

    def test_any_way_of_drawing_counts_what_steps_used(self) -> None:
        rng = random.Random(3)
        for _ in range(200):
            data, used = self.lease(), 0
            seen: list[int] = []
            while rng.random() < 0.9:
                seen += data.take(rng.randrange(5)) if rng.random() < 0.7 else data._batch(3)
                if rng.random() < 0.6:
                    data._stepped()
                    used = len(seen)
            got = [i for r in data._consumed([data._used]) for i in range(r.begin, r.end)]
            self.assertEqual(got, INDICES[:used])


class Rounds(AgentCase):
    def test_a_round_ends_when_its_samples_are_used_up(self) -> None:
        task = self.give(data=LEASE)
        drawn: list[int] = []

        def body(round: girassol.Round) -> None:
            for batch in round.batches(round.sampler(4)):
                drawn.extend(batch)
                if round.step(1.0, samples=len(batch)):
                    break
            self.assertEqual(round.reason, "the samples of the round are used up")
            round.submit(trained(round))

        self.run_one(body)
        self.assertEqual(drawn, INDICES)
        assert task.result is not None
        self.assertEqual((task.result["steps"], task.result["samples"]), (5, 17))
        self.assertEqual(task.result["consumed"], [{"pass": 0, **r} for r in LEASE])

    def test_what_no_step_used_goes_back(self) -> None:
        task = self.give(data=LEASE, maxSteps=2)

        def body(round: girassol.Round) -> None:
            for n in (4, 7):
                self.assertEqual(len(round.data.take(n)), n)
                round.step(1.0, samples=n)
            round.data.take(3)
            round.submit(trained(round))

        self.run_one(body)
        assert task.result is not None
        self.assertEqual(task.result["consumed"], [{"begin": 10, "end": 20, "pass": 0}, {"begin": 30, "end": 31, "pass": 0}])

    def test_samples_may_be_told(self) -> None:
        task = self.give(data=LEASE, maxSteps=1)

        def body(round: girassol.Round) -> None:
            round.step(1.0)
            with self.assertRaisesRegex(UsageError, "draw them from round.data"):
                round.submit(trained(round))
            with self.assertRaisesRegex(UsageError, "not in round.data"):
                round.submit(trained(round), consumed=[(0, 1)])
            round.submit(trained(round), consumed=[(12, 14), (0, 2, 1)])

        self.run_one(body)
        assert task.result is not None
        self.assertEqual([(r["begin"], r["end"], r["pass"]) for r in task.result["consumed"]], [(12, 14, 0), (0, 2, 1)])

    def test_without_a_ledger_nothing_is_consumed(self) -> None:
        task = self.give(maxSteps=1)

        def body(round: girassol.Round) -> None:
            self.assertFalse(round.data)
            round.step(1.0)
            with self.assertRaisesRegex(UsageError, "not in round.data"):
                round.submit(trained(round), consumed=[(0, 1)])
            round.submit(trained(round))

        self.run_one(body)
        assert task.result is not None
        self.assertNotIn("consumed", task.result)

    def test_the_stand_in_refuses_what_the_agent_refuses(self) -> None:
        task = self.give(data=LEASE)
        with self.session() as session:
            for round in session:
                for consumed in ([], [{"begin": 9, "end": 11}], [{"begin": 10}], [{"begin": 12, "end": 11}], [7]):
                    with self.assertRaisesRegex(RefusedError, "consumed"):
                        session._client.result(round.id, {"steps": 1, "samples": 1, "path": "x", "consumed": consumed})
                round.data.take(1)
                round.step(1.0)
                round.submit(trained(round))
                session.stop()
        self.assertIsNotNone(task.result)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_a_data_loader_with_workers_asks_ahead_and_counts_right(self) -> None:
        class Squares(Dataset):  # type: ignore[misc, type-arg]
            def __getitem__(self, i: int) -> int:
                return i * i

        for workers in (0, 2):
            task = self.give(data=LEASE, maxSteps=2)

            def body(round: girassol.Round) -> None:
                loader = DataLoader(Squares(), batch_sampler=round.sampler(3), num_workers=workers)
                for batch in round.batches(loader):
                    self.assertEqual(batch.tolist(), [i * i for i in INDICES[3 * round.steps : 3 * round.steps + 3]])
                    if round.step(1.0, samples=len(batch)):
                        break
                round.submit(trained(round))

            self.run_one(body)
            assert task.result is not None
            self.assertEqual(task.result["consumed"], [{"begin": 10, "end": 16, "pass": 0}], f"{workers} workers")


if __name__ == "__main__":
    unittest.main()
