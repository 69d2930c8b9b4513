from __future__ import annotations

import os
import random
import struct
import unittest
from array import array

from .rig import Case, contents, model, raw

from girassol import FormatError, Tensor, safetensors
from girassol._tensor import SIZES
from girassol.safetensors import File


class RoundTrip(Case):
    def test_all_types_come_back_bit_for_bit(self) -> None:
        rng = random.Random(1)
        tensors = {}
        for i, (dtype, size) in enumerate(SIZES.items()):
            for shape in ((), (0,), (3, 0, 2), (5,), (2, 3)):
                spec = safetensors.Spec(dtype, shape)
                data = bytes(rng.randrange(2) for _ in range(spec.nbytes)) if dtype == "BOOL" else rng.randbytes(spec.elements * size)
                tensors[f"{i}.{shape}"] = Tensor(dtype, shape, data)
        path = self.path("m")
        safetensors.save(path, tensors, {"k": "värde"})
        with File(path) as f:
            self.assertEqual(f.metadata, {"k": "värde"})
            self.assertEqual(set(f), set(tensors))
            for name, want in tensors.items():
                got = f.tensor(name)
                self.assertEqual((got.spec, bytes(got.data)), (want.spec, bytes(want.data)), name)
            for name, at in f._offsets.items():
                self.assertEqual(at % SIZES[f.specs[name].dtype], 0, name)

    def test_bf16_zero_d_and_int64_are_exact(self) -> None:
        path = self.write_model()
        got = safetensors.load(path, framework="buffers")
        self.assertEqual(got["half"].values(), [1.0, 3.0])
        self.assertEqual((got["scale"].shape, got["scale"].values()), ((), [2.0]))
        self.assertEqual((got["bn.num_batches_tracked"].shape, got["bn.num_batches_tracked"].values()), ((), [(1 << 62) + 1]))

    def test_the_mean_of_bf16_weights_is_exact(self) -> None:
        a, b = Tensor.of("BF16", (2,), [1, 3]), Tensor.of("BF16", (2,), [2, 5])
        mean = Tensor.of("BF16", (2,), [(x + y) / 2 for x, y in zip(a.values(), b.values())])
        safetensors.save(self.path("m"), {"w": mean})
        self.assertEqual(safetensors.load(self.path("m"), framework="buffers")["w"].values(), [1.5, 4.0])

    def test_bf16_rounds_to_nearest_even(self) -> None:
        for value, want in ((1 + 2**-8, 1.0), (1 + 3 * 2**-8, 1 + 2**-6), (1e39, float("inf")), (-1e39, float("-inf"))):
            self.assertEqual(Tensor.of("BF16", (1,), [value]).values(), [want])
        self.assertNotEqual(*2 * Tensor.of("BF16", (1,), [float("nan")]).values())

    def test_buffers_of_the_standard_library_are_tensors(self) -> None:
        safetensors.save(self.path("m"), {"f": array("f", [1, 2]), "q": array("q", [-1]), "b": b"\x01\x02"})
        got = safetensors.load(self.path("m"), framework="buffers")
        self.assertEqual([str(got[n].spec) for n in "fqb"], ["F32 [2]", "I64 [1]", "U8 [2]"])
        self.assertEqual(got["f"].values(), [1.0, 2.0])

    def test_a_view_is_private_and_outlives_file_and_replacement(self) -> None:
        path = self.write_model()
        with File(path) as f:
            view = f.tensor("layer.bias")
        view.data[:4] = struct.pack("<f", 9.0)
        self.assertEqual(safetensors.load(path, framework="buffers")["layer.bias"].values()[0], 0.5)
        safetensors.save(path, {"other": array("f", [0])})
        self.assertEqual(view.values()[0], 9.0)

    def test_a_failed_write_leaves_nothing_and_the_old_file(self) -> None:
        path = self.write_model()
        before = contents(path)
        for bad in ({"x": 3}, {"": array("f", [1])}, {"__metadata__": array("f", [1])}, {"n" * 1025: array("f", [1])}):
            with self.assertRaises(FormatError):
                safetensors.save(path, bad)
        self.assertEqual(contents(path), before)
        self.assertEqual(os.listdir(self.work), ["model.safetensors"])

    def test_an_empty_state_dict_is_a_file(self) -> None:
        safetensors.save(self.path("m"), {})
        with File(self.path("m")) as f:
            self.assertEqual(len(f), 0)


ONE = '{"w":{%s}}'
GOOD = '"dtype":"U8","shape":[1],"data_offsets":[0,1]'
HOSTILE = {
    "empty file": (b"", "0 bytes"),
    "no header": (b"\x01" + 7 * b"\0", "claims 1 bytes"),
    "10 GB header": (raw("{}", length=10 << 30), "claims 10737418240"),
    "length that overflows": (raw("{}", length=(1 << 64) - 1), "at most"),
    "header beyond the file": (raw("{}", length=3), "has 2"),
    "empty header": (raw(""), "begin with {"),
    "no object": (raw("[]"), "begin with {"),
    "space before": (raw(" {}"), "begin with {"),
    "not UTF-8": (raw(b'{"\xff":{}}'), "utf-8"),
    "cut JSON": (raw('{"w":{"dtype":"F32"'), "header"),
    "bytes behind the object": (raw("{} x"), "Extra data"),
    "nested too deeply": (raw('{"w":' + "[" * 200_000), "header"),
    "NaN": (raw('{"w":NaN}'), "NaN"),
    "number of thousands of digits": (raw('{"w":' + "9" * 10_000 + "}"), "'w'|header"),
    "tensor is no object": (raw('{"w":3}'), "needs dtype"),
    "metadata is no object": (raw('{"__metadata__":[]}'), "metadata"),
    "metadata is no string": (raw('{"__metadata__":{"a":1}}'), "metadata"),
    "name twice": (raw('{"w":{%s},"w":{%s}}' % (GOOD, GOOD), b"\0"), "twice"),
    "field twice": (raw(ONE % ('"dtype":"U8",' + GOOD), b"\0"), "twice"),
    "unknown field": (raw(ONE % (GOOD + ',"x":1'), b"\0"), "nothing else"),
    "empty name": (raw('{"":{%s}}' % GOOD, b"\0"), "name"),
    "unknown type": (raw(ONE % GOOD.replace("U8", "F8"), b"\0"), "dtype"),
    "type is a list": (raw(ONE % GOOD.replace('"U8"', "[]"), b"\0"), "dtype"),
    "shape missing": (raw(ONE % '"dtype":"U8","data_offsets":[0,1]', b"\0"), "needs dtype"),
    "shape null": (raw(ONE % GOOD.replace("[1]", "null"), b"\0"), "shape must be a list"),
    "three offsets": (raw(ONE % GOOD.replace("[0,1]", "[0,1,2]"), b"\0"), "two numbers"),
    "fractional shape": (raw(ONE % GOOD.replace("[1]", "[1.5]"), b"\0"), "impossible shape"),
    "true as a size": (raw(ONE % GOOD.replace("[1]", "[true]"), b"\0"), "impossible shape"),
    "negative shape": (raw(ONE % GOOD.replace("[1]", "[-1]"), b"\0"), "impossible shape"),
    "2^41 elements": (raw(ONE % GOOD.replace("[1]", "[2199023255552]").replace("[0,1]", "[0,2199023255552]"), b"\0"), "at most"),
    "rank 17": (raw(ONE % GOOD.replace("[1]", str([1] * 17)), b"\0"), "rank 17"),
    "size against shape": (raw(ONE % GOOD.replace("[1]", "[2]"), b"\0"), "do not hold 2 bytes"),
    "offsets backwards": (raw(ONE % GOOD.replace("[0,1]", "[1,0]"), b"\0"), "do not hold"),
    "negative offset": (raw(ONE % GOOD.replace("[0,1]", "[-1,0]"), b"\0"), "do not hold"),
    "fractional offset": (raw(ONE % GOOD.replace("[0,1]", "[0.0,1.0]"), b"\0"), "whole numbers"),
    "gap at the start": (raw(ONE % GOOD.replace("[0,1]", "[1,2]"), b"\0\0"), "no gaps"),
    "trailing bytes": (raw(ONE % GOOD, b"\0\0"), "the file at 2"),
    "data cut off": (raw(ONE % GOOD), "the file at 0"),
    "overlapping tensors": (
        raw('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}', 3 * b"\0"),
        "no gaps",
    ),
}


class Hostile(Case):
    def test_headers_of_strangers_are_refused(self) -> None:
        for what, (data, want) in HOSTILE.items():
            with self.subTest(what):
                with open(self.path("m"), "wb") as f:
                    f.write(data)
                with self.assertRaisesRegex(FormatError, want):
                    File(self.path("m"))

    def test_the_good_one_of_them_is_read(self) -> None:
        with open(self.path("m"), "wb") as f:
            f.write(raw(ONE % GOOD + "   ", b"\x07"))
        self.assertEqual(File(self.path("m")).tensor("w").values(), [7])

    def test_damaged_files_raise_nothing_else(self) -> None:
        safetensors.save(self.path("good"), model(), {"a": "b"})
        good = contents(self.path("good"))
        rng = random.Random(2)
        for _ in range(2000):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(min(len(data), 700))] = rng.randrange(256)
            with open(self.path("m"), "wb") as f:
                f.write(data[: rng.choice([len(data), rng.randrange(len(data))])])
            try:
                safetensors.load(self.path("m"), framework="buffers")
            except FormatError:
                pass


if __name__ == "__main__":
    unittest.main()
