from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest

from .rig import SRC

BENCHMARK = os.path.join(os.path.dirname(SRC), "benchmarks", "memory.py")


@unittest.skipUnless(os.path.exists("/proc/self/status"), "memory is read from /proc")
class Memory(unittest.TestCase):
    def test_a_round_makes_no_copy_of_the_state_dict(self) -> None:
        out = subprocess.run([sys.executable, BENCHMARK, "128"], check=True, capture_output=True, text=True).stdout
        copies = re.findall(r"(.*), round: .*, (\S+) extra copies", out)
        self.assertTrue(copies, out)
        for _, n in copies:
            self.assertLess(float(n), 0.5, out)


if __name__ == "__main__":
    unittest.main()
