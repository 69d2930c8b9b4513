"""Import time, and time and memory of a round with a large state dict.

    python3 benchmarks/memory.py [MEGABYTES]

Memory is what the process has for itself alone (RssAnon): pages of mapped files
go when the machine needs them. The state dict of the model counts once.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
sys.path.insert(0, SRC)


def anonymous() -> float:
    """This process's own memory, in bytes."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))


class Peak:
    """The most that a block had above its beginning, and its seconds."""

    def __enter__(self) -> Peak:
        self.start = self.most = anonymous()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, anonymous())

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.most = max(self.most, anonymous())
        self._over.set()
        self._thread.join()

    @property
    def extra(self) -> float:
        return self.most - self.start


def model_of(megabytes: int, framework: str) -> dict[str, Any]:
    """16 F32 tensors."""
    n = megabytes * (1 << 20) // 4 // 16
    if framework == "torch":
        import torch

        return {f"layer.{i}": torch.randn(n) for i in range(16)}
    from array import array

    return {f"layer.{i}": array("f", [0.5 + i]) * n for i in range(16)}


def measure(megabytes: int, framework: str) -> dict[str, tuple[float, float]]:
    """Seconds and extra memory, in state dicts, of the parts of a round."""
    from girassol import Session, safetensors, standin

    size = megabytes * (1 << 20)
    out = {}
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        work = os.path.join(folder, "w")
        os.mkdir(work)
        path = os.path.join(work, "m.safetensors")
        state = model_of(megabytes, framework)  # the script's own
        safetensors.save(path, state)
        with standin.Agent(os.path.join(folder, "s"), work) as agent:
            agent.give(standin.Task("t", "train", 1, path, 600, resultPath=os.path.join(work, "r")))
            with Session(socket_path=agent.socket_path, work_dir=work) as session:
                round = next(session)
                with Peak() as whole:
                    with Peak() as p:
                        got = round.state_dict(framework=framework if framework == "torch" else "buffers")
                        for name, t in state.items():  # as load_state_dict does
                            if framework == "torch":
                                t.copy_(got[name])
                            else:
                                memoryview(t).cast("B")[:] = got[name].data
                        del got
                    out["load"] = p.seconds, p.extra / size
                    round.step(1.0, samples=1)
                    with Peak() as p:
                        round.submit(state)
                    out["submit"] = p.seconds, p.extra / size
                out["round"] = whole.seconds, whole.extra / size
                session.stop()
    return out


def import_seconds() -> float:
    """Least of five, above an empty interpreter's."""

    def run(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": SRC})
        return time.perf_counter() - began

    return max(0.0, min(run("import girassol") for _ in range(5)) - min(run("") for _ in range(5)))


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print(f"import girassol: {import_seconds() * 1e3:.0f} ms")
    for framework in ("torch", "standard library"):
        if framework == "torch" and importlib.util.find_spec("torch") is None:
            print("torch: not installed, skipped")
            continue
        for what, (seconds, copies) in measure(megabytes, framework).items():
            print(f"{framework}, {megabytes} MB, {what}: {seconds:.2f} s, {copies:.3f} extra copies")


if __name__ == "__main__":
    main()
