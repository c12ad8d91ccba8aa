"""Launches: refusals, wording of errors, observers, and robustness against any text."""

import random
import re

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.instructions import instruction, opcodes
from gemmgen.emulator.program import SHARED_GAP, link

from .helpers import compile_ptx, run_cuda, wrap_ptx

ADD = r"""extern "C" __global__ void add(float* out, const float* in, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] + by;
}
extern "C" __global__ void __launch_bounds__(64) other(int* out) { __shared__ int s[64]; s[threadIdx.x] = 1; out[0] = s[0]; }
"""
ARGS = [np.zeros(4, np.float32), np.zeros(4, np.float32), 4, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "nothing"}, "no entry 'nothing' in the module; it has: add, other"),
        ({"entry": None}, "2 entries"),
        ({"block": 1025}, "1025 threads"),
        ({"block": (1, 1, 65)}, "64 along z"),
        ({"block": 0}, "at least 1"),
        ({"grid": (1, 65536)}, "beyond the limits"),
        ({"grid": (1, 2, 3, 4)}, "one to three integers"),
        ({"grid": "x"}, "one to three integers"),
        ({"shared_bytes": 300_000}, "the limit is 232448"),
        ({"shared_bytes": -1}, "shared_bytes is -1"),
        ({"args": ARGS[:3]}, "takes 4 arguments, got 3"),
        ({"args": [*ARGS[:2], 1.5, 1.0]}, "add_param_2 is .u32, got the float 1.5"),
        ({"args": [*ARGS[:2], 1 << 40, 1.0]}, "does not fit"),
        ({"args": [*ARGS[:2], np.int64(4), 1.0]}, "add_param_2 is .u32, got int64"),
        ({"args": [*ARGS[:3], np.float64(1)]}, "add_param_3 is .f32, got float64"),
        ({"args": [*ARGS[:2], np.zeros(1), 1.0]}, "no pointer"),
        ({"args": [*ARGS[:2], None, 1.0]}, "no pointer"),
        ({"args": [*ARGS[:2], "four", 1.0]}, "got str"),
        ({"args": [*ARGS[:2], b"abc", 1.0]}, "takes 4 bytes, got 3"),
        ({"args": [np.zeros((4, 4))[:, 1], *ARGS[1:]]}, "not contiguous"),
        ({"args": [np.array([object()]), *ARGS[1:]]}, "Python objects"),
        ({"args": [emulator.Buffer(ARGS[0], alignment=24), *ARGS[1:]]}, "no power of two"),
        ({"entry": "other", "block": 128, "args": [ARGS[0]]}, "at most 64 threads"),
    ],
)
def test_bad_launches(change, message):
    arguments = {"entry": "add", "grid": 1, "block": 32, "args": ARGS, **change}
    with pytest.raises(emulator.BadLaunch, match=re.escape(message)):
        emulator.launch(compile_ptx(ADD), **arguments)


def test_required_block_and_clusters():
    body = ".reqntid 32, 2, 1 { ret; }"
    ptx = f".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {body}"
    emulator.launch(ptx, grid=1, block=(32, 2))
    with pytest.raises(emulator.BadLaunch, match="requires blocks of"):
        emulator.launch(ptx, grid=1, block=64)
    clustered = ptx.replace(".reqntid 32, 2, 1", ".reqnctapercluster 2, 1, 1")
    emulator.launch(clustered, grid=4, block=32)
    with pytest.raises(emulator.BadLaunch, match="no multiple of the cluster"):
        emulator.launch(clustered, grid=3, block=32)
    with pytest.raises(emulator.BadLaunch, match="requires clusters of"):
        emulator.launch(clustered, grid=4, block=32, cluster=4)
    with pytest.raises(emulator.BadLaunch, match="have 32 blocks"):
        emulator.launch(ptx, grid=32, block=(32, 2), cluster=32)


def test_the_result_tells_what_was_executed():
    result = emulator.launch(compile_ptx(ADD), "add", grid=(2, 3), block=64, args=[np.zeros(128, np.float32)] * 2 + [128, 1.0])
    assert (result.entry, result.grid, result.block) == ("add", (2, 3, 1), (64, 1, 1))
    assert result.instructions["ret"] == 2 * 3 * 64
    assert result.instructions["setp"] == 2 * 3 * 64


def test_a_second_launch_starts_afresh():
    source = r"""__device__ int state = 5; extern "C" __global__ void count(int* out) { out[0] = atomicAdd(&state, 1); }"""
    for _ in range(2):
        out = np.zeros(1, np.int32)
        run_cuda(source, "count", 1, 1, [out])
        assert out[0] == 5


def test_inlined_functions_are_named_with_their_call():
    source = """__device__ __forceinline__ float pick(const float* p, int i) {
    return p[i];
}
extern "C" __global__ void outer(float* out, const float* in, int i) {
    out[0] = pick(in, i);
}"""
    with pytest.raises(emulator.OutOfBounds) as caught:
        run_cuda(source, "outer", 1, 1, [np.zeros(1, np.float32), np.zeros(4, np.float32), 9])
    text = str(caught.value)
    assert "kernel.cu:2 in" in text and "pick" in text
    assert re.search(r"inlined at \S*kernel.cu:5", text)
    assert "return p[i];" in text


def test_only_an_unknown_instruction_that_is_reached_is_an_error():
    body = ".reg .pred %p; setp.eq.u32 %p, 1, {value}; @%p bra END; unheard.of; END: ret;"
    emulator.launch(wrap_ptx(body.format(value=1)), grid=1, block=32)
    with pytest.raises(emulator.UnknownInstruction, match=r"unheard\.of is not implemented") as caught:
        emulator.launch(wrap_ptx(body.format(value=2)), grid=1, block=32)
    assert "PTX   line" in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "add.f99 %r0, %r0, %r0;",
        "ld.global.b32 %r0, %r1;",
        "add.s32 %r0, %r0;",
        "cvt.u32.u32.u32.u32 %r0, %r0;",
        "mov.b64 %r0, %r1;",
        "shfl.b32 %r0, %r0, 1, 31;",
        "call unknown_function;",
        "vprintf %r0;",
        "mov.u32 %r0, nowhere;",
        "setp.wrong.s32 %p, %r0, %r1;",
        "ld.global.v4.b32 {%r0, %r1}, [%r2];",
        "bra nowhere;",
        "mov.u32 %r0, %tid.w;",
        "atom.global.frob.b32 %r0, [%r1], %r2;",
        "selp;",
        "add.cc.u16 %r0, %r0, %r1;",
        "mul.wide.s32 %r0, %r0, %r1;",
        "@%p st.shared::cluster.b32 [%r0], %r1;",
    ],
)
def test_instructions_that_make_no_sense(statement):
    with pytest.raises(emulator.EmulatorError) as caught:
        emulator.launch(wrap_ptx(f".reg .pred %p; .reg .b32 %r<4>;\nsetp.eq.u32 %p, 1, 1;\n{statement}\nret;"), grid=1, block=32)
    assert caught.value.ptx_line == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no .version"),
        ("hello", "unexpected 'hello'"),
        (".version 8.0\n.target sm_80\n.entry k() { add.s32 %r1, %r2, %r3; }", "register %r1 is not declared"),
        (".version 8.0\n.target sm_80\n.entry k() { .reg .b32 %r<2>; mov.b32 %r1, %r2; }", "register %r2 is not declared"),
        (".version 8.0\n.target sm_80\n.entry k() { @%p ret; }", "no declared predicate"),
        (".version 8.0\n.target sm_80\n.entry k() { ret;", "in the middle"),
        (".version 8.0\n.target sm_80\n.address_size 32", "64-bit"),
        (".version 8.0\n\x01", "unexpected character"),
    ],
)
def test_parse_errors(text, message):
    with pytest.raises(emulator.ParseError, match=message) as caught:
        link(text, None)
    assert caught.value.ptx_line is not None


def test_damaged_ptx_never_ends_in_a_traceback():
    """Tokens removed, doubled or swapped: the result is an EmulatorError or a run, never another exception."""
    chance = random.Random(3)
    tokens = re.findall(r"\s+|[\w.$%]+|.", compile_ptx(ADD.replace("out[i] =", "out[i] += __shfl_xor_sync(-1, i, 1) +")))
    for _ in range(400):
        damaged = list(tokens)
        for _ in range(chance.randint(1, 3)):
            position, other = chance.randrange(len(damaged)), chance.randrange(len(damaged))
            match chance.randrange(3):
                case 0:
                    del damaged[position]
                case 1:
                    damaged.insert(position, damaged[other])
                case 2:
                    damaged[position], damaged[other] = damaged[other], damaged[position]
        args = [np.zeros(64, np.float32), np.zeros(64, np.float32), 64, 1.0]
        try:
            emulator.launch("".join(damaged), "add", grid=1, block=64, args=args, step_limit=1000)
        except emulator.EmulatorError as error:
            assert str(error)


class Recorder(emulator.Observer):
    def __init__(self):
        self.accesses, self.barriers, self.waves = [], [], 0

    def wave_started(self, geometry, spaces):
        self.waves += 1

    def accessed(self, space, access, lanes, addresses):
        location = access.instruction.location
        self.accesses.append((space.name, access.kind, access.width, location.line, None if lanes is None else len(lanes), addresses))

    def block_barrier(self, instruction, lanes):
        self.barriers.append(None if lanes is None else len(lanes))


def test_observers_see_accesses_and_barriers():
    source = """extern "C" __global__ void watch(float* out) {
        __shared__ float s[64];
        s[threadIdx.x] = 1;
        __syncthreads();
        if (threadIdx.x < 40) out[threadIdx.x] = s[threadIdx.x + 1];
    }"""
    recorder = Recorder()
    run_cuda(source, "watch", 2, 64, [np.zeros(40, np.float32)], observers=[recorder], lanes_per_wave=64)
    assert recorder.waves == 2
    assert recorder.barriers == [None, None]
    shared = [(kind, line, lanes) for name, kind, _, line, lanes, _ in recorder.accesses if name == "shared"]
    assert shared == [("store", 3, None), ("load", 5, 40)] * 2
    load = next(entry for entry in recorder.accesses if entry[:2] == ("shared", "load"))
    np.testing.assert_array_equal(load[5], SHARED_GAP + 4 * np.arange(1, 41))


def test_a_new_instruction_is_one_handler():
    @instruction("triple")
    def triple(inst, binder):
        target = binder.target(inst, inst.operands[0], inst.type)
        return binder.gathered([target], lambda a: a * target.dtype.type(3), [binder.source(inst, inst.operands[1], inst.type)])

    assert "triple" in opcodes()
    body = """.reg .b64 %o; .reg .b32 %t; ld.param.u64 %o, [p]; mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o; triple.u32 %t, %t;
    st.global.u32 [%o], %t; ret;"""
    out = np.zeros(32, np.uint32)
    emulator.launch(wrap_ptx(body, ".param .u64 p"), grid=1, block=32, args=[out])
    np.testing.assert_array_equal(out, 3 * np.arange(32))


@pytest.mark.parametrize(
    "text",
    [
        "{" * 5000,
        "(" * 5000,
        "add.s32 " + "[" * 5000,
        "mov.b32 %r0, " + "9" * 5000 + ";",
        ".reg .b32 %x<99999999999>;",
    ],
)
def test_absurd_nesting_and_numbers(text):
    with pytest.raises(emulator.EmulatorError):
        emulator.launch(wrap_ptx(".reg .b32 %r<4>;" + text), grid=1, block=32, args=[1])


def test_an_error_leaves_no_trace_in_the_next_launch():
    ptx = compile_ptx(ADD)
    x = np.zeros(64, np.float32)
    with pytest.raises(emulator.OutOfBounds):
        emulator.launch(ptx, "add", grid=1, block=64, args=[x, x[:32].copy(), 64, 1.0])
    result = emulator.launch(ptx, "add", grid=1, block=64, args=[x, x.copy(), 64, 1.0])
    assert result.instructions["ret"] == 64
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize("strings", ["$L: .b8 08, 0 }", "$L: .b8 107", "$L", "", "}"])
def test_damaged_names_for_messages_do_not_matter(strings):
    text = wrap_ptx("ret;")
    try:
        emulator.launch(f"{text}\n.section .debug_str {{ {strings}", grid=1, block=1)
    except emulator.ParseError as error:
        assert "line" in str(error)
