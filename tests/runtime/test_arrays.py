"""Views over arrays, and how they bind to a launch sequence."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_kernels import AXPBY, array, dimension, integer

from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import Constraint, LaunchSequence, ScalarArgument
from gemmgen.runtime.arrays import ArrayView, bind, describe, overlaps
from gemmgen.runtime.arrays.views import describe_dlpack, overlaps_itself

PRODUCT = LaunchSequence(
    name="product",
    dimensions=(
        dimension("m"),
        dimension("n"),
        dimension("k"),
        dimension("lda", default=Formula("k")),
        dimension("ldb", default=Formula("n")),
        dimension("ldc", default=Formula("ldb")),
    ),
    arguments=(
        *(integer(name) for name in ("m", "n", "k", "lda", "ldb", "ldc")),
        ScalarArgument("alpha", "f32", "a factor", 1.0),
        array("A", "input", ("m", "k"), ("lda", 1)),
        array("B", "input", ("k", "n"), ("ldb", 1)),
        array("C", "output", ("m", "n"), ("ldc", 1)),
    ),
    launches=(),
)


def padded(rows, columns, padding=0, dtype=np.float32):
    return np.zeros((rows, columns + padding), dtype)[:, :columns]


def problems_of(sequence, arrays, scalars=None):
    with pytest.raises(LaunchError) as caught:
        bind(sequence, arrays, scalars or {})
    return str(caught.value)


# -- views -----------------------------------------------------------------------------------------------------


def test_a_numpy_view_has_strides_in_elements():
    base = np.zeros((6, 10), np.float64)
    view = describe(base[1:5, ::2])
    assert (view.shape, view.strides, view.type, view.device) == ((4, 5), (10, 2), "f64", "cpu")
    assert view.pointer == base.ctypes.data + 10 * 8


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    steps=st.lists(st.sampled_from([1, 2, 3, -1]), min_size=4, max_size=4),
    data=st.data(),
)
def test_span_is_exactly_memory_between_first_and_last_element(shape, steps, data):
    base = np.arange(np.prod(shape, initial=1), dtype=np.int32).reshape(shape)
    view_of = base[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    view_of = view_of.transpose(data.draw(st.permutations(range(len(shape)))))
    view = describe(view_of)
    low, high = np.lib.array_utils.byte_bounds(view_of)
    if view_of.size:
        assert (view.pointer + view.span()[0], view.pointer + view.span()[1]) == (low, high)
        storage = view.host_storage(np.int32)
        assert storage.base is not None and set(storage) >= set(view_of.ravel())
    else:
        assert view.span() == (0, 0)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "f32"),
        ("float64", "f64"),
        ("float16", "f16"),
        ("int8", "s8"),
        ("uint8", "u8"),
        ("int32", "s32"),
        ("int64", "s64"),
    ],
)
def test_dlpack_and_numpy_describe_the_same_array(dtype, kind):
    values = np.zeros((3, 4, 6), dtype)[:, ::2].transpose(2, 0, 1)
    by_attributes, by_dlpack = describe(values), describe_dlpack(values, "values", 1)
    assert by_attributes == by_dlpack
    assert by_dlpack.type == kind


def test_dlpack_tells_what_is_read_only():
    values = np.zeros(3, np.float32)
    values.flags.writeable = False
    assert describe_dlpack(values, "values", 1).read_only
    assert describe(values).read_only


class OnGpu:
    """Stand-in for arrays of CuPy and Numba, without a GPU."""

    def __init__(self, pointer, shape, strides=None, typestr="<f4", ordinal=0, read_only=False, stream=None):
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (pointer, read_only),
            "stream": stream,
        }
        self.ordinal = ordinal

    def __dlpack_device__(self):
        return 2, self.ordinal


def test_cuda_array_interface_is_read_without_touching_cuda(monkeypatch):
    monkeypatch.setattr("gemmgen.runtime.cuda.driver.bindings", lambda: pytest.fail("the driver was called"))
    view = describe(OnGpu(4096, (4, 3), (32, 8), ordinal=2, read_only=True, stream=7))
    assert view.pointer == 4096
    assert (view.shape, view.strides, view.type) == ((4, 3), (8, 2), "f32")
    assert (view.device, view.read_only, view.producer_stream) == (("cuda", 2), True, 7)
    assert describe(OnGpu(4096, (4, 3, 2))).strides == (6, 2, 1)


@pytest.mark.parametrize("word", ["bool", "uint8", "int8", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64"])
def test_types_on_a_gpu_are_those_of_numpy(word):
    """CuPy's uint8 are integers, not the bits of float8."""
    values = np.zeros(3, word)
    assert describe(OnGpu(4096, (3,), typestr=values.dtype.str)).type == describe(values).type


def test_strides_of_broken_elements_are_refused():
    with pytest.raises(LaunchError, match=r"A has strides of \(6,\) bytes"):
        describe(np.ndarray((2,), np.float32, bytes(16), strides=(6,)), "A")


@pytest.mark.parametrize("value", [[1.0], 3.0, None, "A", object()])
def test_what_is_no_array_is_refused_by_its_type(value):
    with pytest.raises(LaunchError, match=type(value).__name__):
        describe(value, "A")


def test_interleaved_arrays_do_not_overlap():
    base = np.zeros((8, 10), np.float32)
    left, right, middle = (describe(part) for part in (base[:, :5], base[:, 5:], base[:, 3:7]))
    assert not overlaps(left, right)
    assert overlaps(left, middle) and overlaps(middle, right)
    assert overlaps(left, left)


def test_addresses_on_different_devices_do_not_overlap():
    one = ArrayView(4096, (8,), (1,), "f32", ("cuda", 0))
    assert overlaps(one, one)
    assert not overlaps(one, dataclasses.replace(one, device=("cuda", 1)))
    assert not overlaps(one, dataclasses.replace(one, pointer=4096 + 32))


@given(
    first=st.tuples(st.integers(0, 40), st.integers(0, 4), st.integers(1, 4), st.integers(1, 12), st.integers(1, 3)),
    second=st.tuples(st.integers(0, 40), st.integers(0, 4), st.integers(1, 4), st.integers(1, 12), st.integers(1, 3)),
)
def test_overlap_is_that_of_the_sets_of_elements(first, second):
    def view(at, rows, columns, row_stride, column_stride):
        return ArrayView(4096 + 4 * at, (rows, columns), (row_stride, column_stride), "f32", "cpu")

    def elements(at, rows, columns, row_stride, column_stride):
        return [at + i * row_stride + j * column_stride for i in range(rows) for j in range(columns)]

    assert overlaps(view(*first), view(*second)) == bool(set(elements(*first)) & set(elements(*second)))
    own = elements(*first)
    if len(set(own)) < len(own):
        assert overlaps_itself(view(*first))


# -- binding ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes=st.tuples(*[st.integers(0, 9)] * 3), pads=st.tuples(*[st.integers(0, 4)] * 3))
def test_every_packed_or_padded_problem_binds_to_its_dimensions(sizes, pads):
    m, n, k = sizes
    a, b, c = padded(m, k, pads[0]), padded(k, n, pads[1]), padded(m, n, pads[2])
    bound = bind(PRODUCT, {"A": a, "B": b, "C": c}, {"alpha": 2})
    assert {name: bound.dimensions[name] for name in "mnk"} == dict(zip("mnk", sizes, strict=True))
    for name, matrix, default in (("lda", a, k), ("ldb", b, n), ("ldc", c, bound.dimensions["ldb"])):
        shows = matrix.size and matrix.shape[0] > 1
        assert bound.dimensions[name] == (matrix.strides[0] // 4 if shows else default)
    assert bound.scalars == {"alpha": 2.0}
    assert bound.pointers == {"A": a.ctypes.data, "B": b.ctypes.data, "C": c.ctypes.data}


@given(sizes=st.tuples(*[st.integers(1, 9)] * 3), which=st.sampled_from("ABC"), axis=st.integers(0, 1))
def test_an_extent_that_disagrees_is_refused_naming_both_arrays(sizes, which, axis):
    m, n, k = sizes
    shapes = {"A": [m, k], "B": [k, n], "C": [m, n]}
    shapes[which][axis] += 1
    message = problems_of(PRODUCT, {name: padded(*shape) for name, shape in shapes.items()})
    assert f"{which}'s {('rows', 'columns')[axis]}" in message
    assert sum(f"{name}'s" in message for name in "ABC") == 2


def test_the_message_says_who_says_what():
    message = problems_of(PRODUCT, {"A": padded(4, 64), "B": padded(65, 3), "C": padded(4, 3)})
    assert message == "product cannot be launched: k is 64 by A's columns and 65 by B's rows"


def test_all_problems_come_in_one_message():
    message = problems_of(
        PRODUCT,
        {"A": padded(4, 5, dtype=np.float64), "B": padded(5, 3).T, "C": padded(5, 3)[0]},
        {"alpha": "x", "gamma": 1},
    )
    for part in (
        "A has elements f64, need f32",
        "C has 1 dimensions, need 2 (m, n)",
        "k is 5 by A's columns and 3 by B's rows",
        "B's column stride is 3, need 1",
        "alpha must be a real number, got 'x'",
        "no argument 'gamma'",
    ):
        assert part in message
    assert message.count("\n  - ") == 6


def test_missing_and_unknown_arrays_are_named():
    message = problems_of(PRODUCT, {"A": padded(4, 5), "b": padded(5, 3), "C": padded(4, 3)})
    assert "the array B (the array B) is missing" in message
    assert "no argument 'b'" in message


def test_a_dimension_may_be_given_and_must_then_agree():
    arrays = {"A": padded(1, 5), "B": padded(5, 3), "C": padded(1, 3)}
    assert bind(PRODUCT, arrays, {"lda": np.int64(8)}).dimensions["lda"] == 8
    assert "m is 2 by the argument and 1 by A's rows" in problems_of(PRODUCT, arrays, {"m": 2})
    assert "lda must be an integer, got 2.5" in problems_of(PRODUCT, arrays, {"lda": 2.5})


@pytest.mark.parametrize("alpha", [None, "1", True, 1j, [1.0], 1e39, 10**400])
def test_a_scalar_must_be_a_number_that_its_type_holds(alpha):
    arrays = {"A": padded(4, 5), "B": padded(5, 3), "C": padded(4, 3)}
    assert "alpha" in problems_of(PRODUCT, arrays, {"alpha": alpha})


@pytest.mark.parametrize("alpha", [1, 1.5, np.float32(2), np.float64(3), np.int8(4), float("nan"), float("inf")])
def test_any_real_number_is_a_scalar(alpha):
    arrays = {"A": padded(4, 5), "B": padded(5, 3), "C": padded(4, 3)}
    bound = bind(PRODUCT, arrays, {"alpha": alpha}).scalars["alpha"]
    assert type(bound) is float
    assert bound == alpha or (np.isnan(bound) and np.isnan(alpha))


def test_outputs_must_be_writable_and_apart_from_all_else():
    base = np.zeros((4, 12), np.float32)
    arrays = {"A": padded(4, 5), "B": base[:, :3].T[:3, :3], "C": base[:4, 2:5]}
    arrays["B"] = np.zeros((5, 3), np.float32)
    arrays["C"].flags.writeable = False
    assert "C is written, but the array is read-only" in problems_of(PRODUCT, arrays)
    square = np.zeros((6, 6), np.float32)
    assert "C is written, but overlaps A" in problems_of(PRODUCT, {"A": square, "B": square.copy(), "C": square})
    assert bind(PRODUCT, {"A": square, "B": square, "C": square.copy()}, {}).dimensions["m"] == 6
    same_rows = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 3), (8, 4))
    assert "its elements overlap each other" in problems_of(PRODUCT, {"A": padded(4, 5), "B": padded(5, 3), "C": same_rows})


def test_halves_of_the_same_rows_may_be_read_and_written():
    base = np.zeros((4, 10), np.float32)
    bound = bind(AXPBY, {"X": base[:, :5], "Y": base[:, 5:]}, {})
    assert (bound.dimensions["ldx"], bound.dimensions["ldy"]) == (10, 10)


def test_alignment_is_that_of_the_pointer():
    aligned = dataclasses.replace(
        PRODUCT,
        arguments=(
            *PRODUCT.arguments[:7],
            array("A", "input", ("m", "k"), ("lda", 1), alignment=16),
            *PRODUCT.arguments[8:],
        ),
    )
    views = {
        "A": ArrayView(4096 + 4, (4, 8), (8, 1), "f32", ("cuda", 0)),
        "B": ArrayView(1 << 20, (8, 4), (4, 1), "f32", ("cuda", 0)),
        "C": ArrayView(1 << 21, (4, 4), (4, 1), "f32", ("cuda", 0)),
    }
    assert "A must start at a multiple of 16 bytes, it starts 4 bytes past one" in problems_of(aligned, views)
    views["A"] = dataclasses.replace(views["A"], pointer=4096)
    assert bind(aligned, views, {}).device == ("cuda", 0)
    views["B"] = dataclasses.replace(views["B"], device=("cuda", 1))
    assert "A on cuda:0, B on cuda:1, C on cuda:0" in problems_of(aligned, views)


def test_constraints_and_limits_are_explained():
    strict = dataclasses.replace(
        PRODUCT,
        dimensions=(dataclasses.replace(PRODUCT.dimensions[0], maximum=3), *PRODUCT.dimensions[1:]),
        constraints=(Constraint(Formula("lda % 4 == 0"), "rows of A are read four elements at a time"),),
    )
    message = problems_of(strict, {"A": padded(4, 5), "B": padded(5, 3), "C": padded(4, 3)})
    assert "m must be 0 to 3 (got 4)" in message
    assert "rows of A are read four elements at a time (got lda = 5)" in message


def test_other_formulas_are_checked_once_all_is_known():
    blocked = LaunchSequence(
        "blocked",
        (
            dimension("c"),
            dimension("free"),
            dimension("twice", default=Formula("2 * thrice")),
            dimension("thrice", default=Formula("3 * c")),
        ),
        (array("X", "input", ("ceil_div(c, 32)", 32), (32, 1)), array("bias", "input", ("c",), (1,))),
        (),
    )
    x, bias = np.zeros((2, 32), np.float32), np.zeros(40, np.float32)
    assert "free (the extent free) follows from no array; pass free=" in problems_of(blocked, {"X": x, "bias": bias})
    bound = bind(blocked, {"X": x, "bias": bias}, {"free": 1})
    assert (bound.dimensions["thrice"], bound.dimensions["twice"]) == (120, 240)
    message = problems_of(blocked, {"X": x, "bias": np.zeros(65, np.float32)}, {"free": 1})
    assert message.endswith("X's rows is 2, need ceil_div(c, 32) = 3")


def test_bits_of_bfloat16_are_taken_where_numpy_has_no_such_type():
    halves = LaunchSequence("halves", (dimension("n"),), (array("X", "input", ("n",), (1,), type="bf16", alignment=2),), ())
    assert bind(halves, {"X": np.zeros(3, np.uint16)}, {}).dimensions == {"n": 3}
    assert "X has elements f16, need bf16" in problems_of(halves, {"X": np.zeros(3, np.float16)})


def test_importing_loads_no_array_library_and_no_cuda():
    modules = ", ".join(f"gemmgen.runtime.{name}" for name in ("arrays", "cuda", "kernel", "emulation"))
    code = f"import sys; import {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "torch", "cupy", "cuda.bindings", "cuda"} & set(loaded)
