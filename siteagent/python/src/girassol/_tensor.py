"""What a tensor is here: types, shapes and bytes, of torch, of numpy and of
programs that have neither. It must not know how files lay them out."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import FormatError

MAX_RANK = 16
MAX_ELEMENTS = 1 << 40

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_FORMATS = {
    "F64": "d", "F32": "f", "F16": "e",
    "I64": "q", "I32": "i", "I16": "h", "I8": "b",
    "U64": "Q", "U32": "I", "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# What torch calls them; unsigned types wider than a byte came late.
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_FROM_TORCH = {v: k for k, v in TORCH.items()}
NUMPY = {k: v for k, v in TORCH.items() if k != "BF16"}
_FROM_NUMPY = {v: k for k, v in NUMPY.items()} | {"bfloat16": "BF16"}  # ml_dtypes


class Spec(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    """Name as in safetensors: F64 F32 F16 BF16 I64 ... U8 BOOL."""
    shape: tuple[int, ...]
    """Empty for a 0-d tensor."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * SIZES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Tensor:
    """A tensor of a program that has neither torch nor numpy.

    ``data`` is its bytes, little endian, in C order.
    """

    __slots__ = ("data", "spec")

    def __init__(self, dtype: str, shape: Sequence[int], data: Any) -> None:
        self.spec = checked(dtype, tuple(shape))
        self.data = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        if self.data.nbytes != self.spec.nbytes:
            raise FormatError(f"{self.data.nbytes} bytes, {self.spec} has {self.spec.nbytes}")

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int], values: Sequence[float]) -> Tensor:
        """Make a tensor of numbers; floats are rounded to nearest even."""
        spec = checked(dtype, tuple(shape))
        if len(values) != spec.elements:
            raise FormatError(f"{len(values)} values, {spec} has {spec.elements}")
        if dtype == "BF16":
            return cls(dtype, shape, array("H", (_to_bf16(v) for v in values)))
        return cls(dtype, shape, struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values))

    def values(self) -> list[Any]:
        """All elements as Python numbers, in C order."""
        return decode(self.dtype, self.data)

    def __repr__(self) -> str:
        return f"Tensor({self.spec})"


def decode(dtype: str, data: memoryview) -> list[Any]:
    """Elements of ``data`` as Python numbers."""
    n = data.nbytes // SIZES[dtype]
    if dtype == "BF16":
        return list(struct.unpack(f"<{n}f", b"".join(b"\0\0" + bytes(data[i : i + 2]) for i in range(0, 2 * n, 2))))
    return list(struct.unpack(f"<{n}{_FORMATS[dtype]}", data))


def _to_bf16(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    try:
        bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def checked(dtype: Any, shape: tuple[Any, ...]) -> Spec:
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise FormatError(f"unknown dtype {str(dtype)[:40]!r}")
    if len(shape) > MAX_RANK:
        raise FormatError(f"rank {len(shape)}, at most {MAX_RANK}")
    if any(type(d) is not int or d < 0 or d >= 1 << 63 for d in shape):
        raise FormatError(f"impossible shape {str(list(shape))[:80]}")
    spec = Spec(dtype, shape)
    if spec.elements > MAX_ELEMENTS:
        raise FormatError(f"{spec.elements} elements, at most {MAX_ELEMENTS}")
    return spec


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def spec_of(value: Any) -> Spec:
    """Type and shape of a torch tensor, numpy array, :class:`Tensor` or buffer."""
    if isinstance(value, Tensor):
        return value.spec
    if is_torch(value):
        name = str(value.dtype).removeprefix("torch.")
        if hasattr(value, "full_tensor"):
            raise FormatError("is sharded: gather it with .full_tensor(), or a full state dict, first")
        if value.is_sparse or value.layout is not sys.modules["torch"].strided:
            raise FormatError("is sparse: make it dense first")
        if value.device.type == "meta":
            raise FormatError("has no values (device meta)")
        if name not in _FROM_TORCH:
            raise FormatError(f"has dtype {name}, which safetensors of Girassol do not hold: convert it")
        return checked(_FROM_TORCH[name], tuple(int(d) for d in value.shape))
    if is_numpy(value):
        if value.dtype.name not in _FROM_NUMPY or not value.dtype.isnative:
            raise FormatError(f"has dtype {value.dtype}, which safetensors of Girassol do not hold: convert it")
        return checked(_FROM_NUMPY[value.dtype.name], tuple(int(d) for d in value.shape))
    try:
        view = memoryview(value)
    except TypeError:
        raise FormatError(f"is a {type(value).__name__}, no tensor: leave it out, or make a tensor of it") from None
    kind, size = view.format.lstrip("@=<"), view.itemsize
    if kind in "dfe":
        dtype = f"F{8 * size}"
    elif kind in "bhilqn":
        dtype = f"I{8 * size}"
    elif kind in "BHILQN":
        dtype = f"U{8 * size}"
    elif kind == "?":
        dtype = "BOOL"
    else:
        raise FormatError(f"is a buffer of format {view.format!r}, which safetensors do not hold")
    return checked(dtype, tuple(view.shape or ()))


def bytes_of(value: Any) -> tuple[memoryview, Any]:
    """Bytes of a tensor, without a copy where it lies dense in host memory, and
    the object that must live as long as they are used."""
    if isinstance(value, Tensor):
        return value.data, value
    if is_torch(value):
        import ctypes

        t = value.detach().cpu().contiguous()
        n = t.numel() * t.element_size()
        if n == 0:
            return memoryview(b""), t
        return memoryview((ctypes.c_char * n).from_address(t.data_ptr())).cast("B"), t
    if is_numpy(value):
        import numpy

        a = numpy.ascontiguousarray(value)
        return (memoryview(a.reshape(-1).view(numpy.uint8).data) if a.size else memoryview(b"")), a
    view = memoryview(value)
    if view.nbytes == 0:
        return memoryview(b""), view
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    return view.cast("B"), view
