"""Safetensors files, read through a memory map and written from buffers.

Only the standard library is needed. Where the program has imported torch or
numpy, tensors come and go as theirs without a copy: a tensor that was read is a
view of a private map of the file (writing to it changes neither the file nor
what others read), and one that is written is written from its own memory. Tensors
on a GPU are copied to the host one at a time.

A file is an 8-byte little-endian header length, a JSON header and the tensors'
bytes without gaps. Headers of strangers are checked before anything is believed.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ._tensor import NUMPY, SIZES, TORCH, Spec, Tensor, bytes_of, checked, spec_of
from .errors import FormatError

__all__ = ["File", "Spec", "Tensor", "load", "save", "spec_of"]

MAX_HEADER = 100_000_000
"""Largest header in bytes, as in the format's reference implementation."""
MAX_TENSORS = 1 << 17
MAX_NAME = 1024


class File:
    """An open safetensors file; a context manager.

    Tensors that it gave stay valid after :meth:`close` and after the file is
    replaced by another one.
    """

    metadata: dict[str, str]
    specs: dict[str, Spec]
    """Of every tensor, in the order of the data."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if sys.byteorder != "little":
            raise FormatError("only little-endian machines are served")
        self.path = os.fspath(path)
        try:
            with open(self.path, "rb") as f:
                size = os.fstat(f.fileno()).st_size
                if size < 8:
                    raise FormatError(f"{size} bytes are no safetensors file")
                (n,) = struct.unpack("<Q", f.read(8))
                if n > MAX_HEADER:
                    raise FormatError(f"header claims {n} bytes, at most {MAX_HEADER}")
                if n > size - 8:
                    raise FormatError(f"header claims {n} bytes, the file has {size - 8} behind its length")
                self.metadata, spans = _parse(f.read(n))
                self._start = 8 + n
                self._place(spans, size - self._start)
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
        except FormatError as e:
            raise FormatError(f"{self.path}: {e}") from None

    def _place(self, spans: dict[str, tuple[Spec, int, int]], size: int) -> None:
        self.specs, self._offsets = {}, {}
        at = 0
        for name, (spec, begin, end) in sorted(spans.items(), key=lambda s: (s[1][1], s[1][2], s[0])):
            if begin != at:
                raise FormatError(f"{name[:80]!r} begins at byte {begin} of the data, want {at} (no gaps, no overlaps)")
            self.specs[name], self._offsets[name] = spec, self._start + begin
            at = end
        if at != size:
            raise FormatError(f"tensors end at byte {at} of the data, the file at {size}")

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map; it goes with the last tensor that lives on it.

        It is not unmapped by force: torch does not say that it looks at it.
        """
        del self._map

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def buffer(self, name: str) -> memoryview:
        """Bytes of a tensor, writable, private to this process."""
        at = self._offsets[name]
        return memoryview(self._map)[at : at + self.specs[name].nbytes]

    def tensor(self, name: str) -> Tensor:
        spec = self.specs[name]
        return Tensor(spec.dtype, spec.shape, self.buffer(name))

    def numpy(self, name: str) -> Any:
        """A numpy array. BF16 needs the package ml_dtypes, or torch."""
        import numpy

        spec = self.specs[name]
        if spec.dtype == "BF16":
            try:
                from ml_dtypes import bfloat16 as dtype  # type: ignore[import-not-found,unused-ignore]
            except ImportError:
                raise FormatError(
                    f"{name!r} is BF16, which numpy does not know: use torch, install ml_dtypes, "
                    "or take girassol's own tensors with framework='buffers'"
                ) from None
        else:
            dtype = NUMPY[spec.dtype]
        return numpy.frombuffer(self.buffer(name), dtype=dtype).reshape(spec.shape)

    def torch(self, name: str, device: Any = None) -> Any:
        """A torch tensor, on ``device`` if that is given."""
        import torch

        spec = self.specs[name]
        dtype = getattr(torch, TORCH[spec.dtype], None)
        if dtype is None:
            raise FormatError(f"{name!r} is {spec.dtype}, which torch {torch.__version__} does not know: use a newer one")
        if spec.elements == 0:
            t = torch.empty(spec.shape, dtype=dtype)
        elif self._offsets[name] % SIZES[spec.dtype]:  # kernels may want them aligned
            t = torch.frombuffer(bytearray(self.buffer(name)), dtype=dtype).reshape(spec.shape)
        else:
            t = torch.frombuffer(self._map, dtype=dtype, count=spec.elements, offset=self._offsets[name])
            t = t.reshape(spec.shape)
        return t if device is None else t.to(device)

    def load(self, device: Any = None, framework: str | None = None) -> dict[str, Any]:
        """All tensors by name.

        ``framework`` is torch, numpy or buffers; without it, the first of them
        that the program has imported.
        """
        framework = framework or ("torch" if "torch" in sys.modules else "numpy" if "numpy" in sys.modules else "buffers")
        if framework == "torch":
            return {name: self.torch(name, device) for name in self.specs}
        if device is not None:
            raise FormatError(f"device={device!r} needs torch: import it before, or leave the device out")
        if framework == "numpy":
            return {name: self.numpy(name) for name in self.specs}
        if framework == "buffers":
            return {name: self.tensor(name) for name in self.specs}
        raise FormatError(f"unknown framework {framework!r}: torch, numpy or buffers")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise FormatError("header names something twice")
    return out


def _no_constant(text: str) -> Any:
    raise FormatError(f"header has the number {text}")


def _parse(header: bytes) -> tuple[dict[str, str], dict[str, tuple[Spec, int, int]]]:
    if header[:1] != b"{":
        raise FormatError("header must begin with {")
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=_pairs, parse_constant=_no_constant)
    except FormatError:
        raise
    except RecursionError:
        raise FormatError("header is nested too deeply") from None
    except ValueError as e:  # of UTF-8 too, and of numbers with thousands of digits
        raise FormatError(f"header: {str(e)[:200]}") from None
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise FormatError("header's metadata is no object of strings")
    if len(entries) > MAX_TENSORS:
        raise FormatError(f"{len(entries)} tensors, at most {MAX_TENSORS}")
    spans = {}
    for name, entry in entries.items():
        try:
            spans[name] = _entry(name, entry)
        except FormatError as e:
            raise FormatError(f"{name[:80]!r}: {e}") from None
    return metadata, spans


def _entry(name: str, entry: Any) -> tuple[Spec, int, int]:
    _check_name(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError("needs dtype, shape and data_offsets and nothing else")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise FormatError("shape must be a list, data_offsets two numbers")
    if any(type(o) is not int for o in offsets):
        raise FormatError("data_offsets must be whole numbers")
    spec = checked(entry["dtype"], tuple(shape))
    begin, end = offsets
    if begin < 0 or end - begin != spec.nbytes:
        raise FormatError(f"data_offsets [{begin} {end}] do not hold {spec.nbytes} bytes, which {spec} has")
    return spec, begin, end


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise FormatError(f"tensor names are text, not {type(name).__name__}")
    n = len(name.encode("utf-8", "surrogatepass"))
    if n == 0 or n > MAX_NAME:
        raise FormatError(f"name {name[:40]!r} must have 1 to {MAX_NAME} bytes")


def load(path: str | os.PathLike[str], device: Any = None, framework: str | None = None) -> dict[str, Any]:
    """Read all tensors of a file: see :meth:`File.load`."""
    with File(path) as f:
        return f.load(device, framework)


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> dict[str, Spec]:
    """Write tensors (torch, numpy, :class:`Tensor` or buffers) to a new file and
    rename that to ``path``; a reader never sees half a file."""
    if sys.byteorder != "little":
        raise FormatError("only little-endian machines are served")
    if len(tensors) > MAX_TENSORS:
        raise FormatError(f"{len(tensors)} tensors, at most {MAX_TENSORS}")
    specs = {}
    for name, value in tensors.items():
        try:
            _check_name(name)
            if name == "__metadata__":
                raise FormatError("the name is taken by the format")
            specs[name] = spec_of(value)
        except FormatError as e:
            raise FormatError(f"{str(name)[:80]!r} {e}") from None
    # Wide types first keeps all of them aligned.
    order = sorted(specs, key=lambda name: (-SIZES[specs[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        spec = specs[name]
        header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (at, at + spec.nbytes)}
        at += spec.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise FormatError(f"header of {len(text)} bytes, at most {MAX_HEADER}")
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(part, "wb", buffering=0) as f:
            _write(f.fileno(), memoryview(struct.pack("<Q", len(text)) + text))
            for name in order:
                data, owner = bytes_of(tensors[name])
                if data.nbytes != specs[name].nbytes:
                    raise FormatError(f"{name!r} changed while it was written")
                _write(f.fileno(), data)
                del data, owner
        os.replace(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass
        raise
    return specs


def _write(fd: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(fd, data[: 1 << 30]) :]
