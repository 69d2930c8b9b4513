"""The file that keeps a ClientApp's memory (ctx.state) over restarts.

A line with format and checksum, then the bytes that flwr makes of a context. It
is replaced as a whole, so it is the state after one call or after another.
"""

from __future__ import annotations

import hashlib
import os

from ._errors import FlowerError

__all__ = ["load", "save", "set_aside"]

_FORMAT = "girassol-flower-state-1"
_MAX_HEAD = 128


def save(path: str, data: bytes) -> None:
    """Replace the file, durably."""
    part = f"{path}.part"
    with open(part, "wb") as f:
        f.write(f"{_FORMAT} {hashlib.sha256(data).hexdigest()}\n".encode())
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: str) -> bytes | None:
    """What was saved; None where there is no file, FlowerError where it is damaged."""
    try:
        with open(path, "rb") as f:
            head, data = f.readline(_MAX_HEAD), f.read()
    except FileNotFoundError:
        return None
    words = head.decode("ascii", "replace").split()
    if len(words) != 2 or words[0] != _FORMAT or hashlib.sha256(data).hexdigest() != words[1]:
        raise FlowerError(
            f"{path} is damaged ({len(head) + len(data)} bytes, its checksum does not fit): it held the ClientApp's memory "
            "(ctx.state). Put it back from a copy, or begin with an empty memory: --damaged-state anew"
        )
    return data


def set_aside(path: str) -> str:
    """Rename a file to a free name beside it, which is returned."""
    n = 1
    while os.path.exists(f"{path}.damaged-{n}"):
        n += 1
    os.rename(path, f"{path}.damaged-{n}")
    return f"{path}.damaged-{n}"
