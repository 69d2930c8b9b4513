"""The child process: one Flower app, requests on one pipe, replies on another.

``python -m girassol.flower._child IN OUT LIFE`` with three inherited file
descriptors. A request is a line of JSON with an ``op``, the first one ``open``.
When LIFE closes, the parent is gone and this process ends with all it started.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
from typing import Any

from ..errors import GirassolError
from ._app import AppError, ClientSide, describe
from ._plan import ServerSide

_PR_SET_PDEATHSIG = 1


def main() -> None:
    requests, replies, life = map(int, sys.argv[1:4])
    del sys.argv[1:]
    for fd in (requests, replies, life):
        os.set_inheritable(fd, False)
    _end_with_parent(life)
    side: ClientSide | ServerSide | None = None
    with os.fdopen(requests, "r", encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                if request["op"] == "open":
                    side, answer = _open(request)
                else:
                    answer = getattr(side, request["op"])(request)
            except (AppError, GirassolError) as e:
                answer = {"error": str(e)}
            except BaseException as e:
                answer = {"error": describe(e)}
            _write(replies, (json.dumps(answer) + "\n").encode())
    sys.stdout.flush()
    os._exit(0)  # threads of the app are not waited for


def _open(setup: dict[str, Any]) -> tuple[ClientSide | ServerSide, dict[str, Any]]:
    # Where it stands when it hangs (SIGUSR1) or crashes, for its parent to read.
    trace = open(setup["trace"], "w")  # noqa: SIM115
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
    if setup["role"] == "server":
        server = ServerSide(setup)
        return server, {"flwr": server.version}
    client = ClientSide(setup)
    return client, {"flwr": client.version, "legacy": client.legacy}


def _end_with_parent(life: int) -> None:
    """Two ways, for a thread does not run while C code holds the interpreter."""

    def watch() -> None:
        while os.read(life, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=watch, daemon=True).start()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    main()
