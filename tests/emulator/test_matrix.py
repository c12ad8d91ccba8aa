"""ldmatrix, stmatrix, movmatrix against the layouts of the PTX ISA, written out element by element."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.program import SHARED_GAP

from .helpers import run_cuda, wrap_ptx

WARPS, BLOCKS = 3, 2


def _registers(count: int) -> str:
    return ", ".join(f"%{i}" for i in range(count))


def _kernel(count: int, trans: str, space: str = ".shared") -> str:
    """Each warp has eight matrices' worth of memory; the host chooses each row's place."""
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    address = "(unsigned)__cvta_generic_to_shared(row)" if space else "row"
    constraint = "r" if space else "l"
    return f"""extern "C" __global__ void kernel(const int4* in, const int* rows, unsigned* out) {{
        __shared__ int4 tile[{WARPS}][64];
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = blockIdx.x * {32 * WARPS} + threadIdx.x;
        for (int i = lane; i < 64; i += 32) tile[warp][i] = in[(blockIdx.x * {WARPS} + warp) * 64 + i];
        __syncwarp();
        const int4* row = &tile[warp][rows[all]];
        unsigned r[{count}];
        asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}{space}.b16 {{{_registers(count)}}}, [%{count}];"
            : {outputs} : "{constraint}"({address}));
        for (int i = 0; i < {count}; ++i) out[all * {count} + i] = r[i];
    }}"""


def _inputs(seed: int):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 1 << 16, (BLOCKS * WARPS, 64, 8)).astype(np.uint16)
    rows = rng.integers(0, 64, (BLOCKS * WARPS, 32)).astype(np.int32)
    return data, rows


@pytest.mark.parametrize("architecture", ["compute_75", "compute_90"])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans, architecture):
    data, rows = _inputs(count)
    out = np.zeros((BLOCKS * WARPS, 32, count, 2), np.uint16)
    run_cuda(_kernel(count, trans), "kernel", BLOCKS, 32 * WARPS, [data, rows, out], architecture)
    want = np.zeros_like(out)
    for warp in range(BLOCKS * WARPS):
        for lane in range(32):
            for matrix in range(count):
                for half in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + half
                    if trans:
                        row, column = column, row
                    want[warp, lane, matrix, half] = data[warp, rows[warp, 8 * matrix + row], column]
    np.testing.assert_array_equal(out, want)


def test_ldmatrix_through_a_generic_address():
    data, rows = _inputs(7)
    out = np.zeros((2, BLOCKS * WARPS, 32, 4), np.uint32)
    run_cuda(_kernel(4, ""), "kernel", BLOCKS, 32 * WARPS, [data, rows, out[0]])
    run_cuda(_kernel(4, "", ""), "kernel", BLOCKS, 32 * WARPS, [data, rows, out[1]])
    np.testing.assert_array_equal(out[0], out[1])


@pytest.mark.parametrize("seed", range(2))
def test_ldmatrix_of_warps_one_by_one(seed):
    data, rows = _inputs(seed)
    out = np.zeros((2, BLOCKS * WARPS, 32, 2), np.uint32)
    run_cuda(_kernel(2, ".trans"), "kernel", BLOCKS, 32 * WARPS, [data, rows, out[0]])
    run_cuda(_kernel(2, ".trans"), "kernel", BLOCKS, 32 * WARPS, [data, rows, out[1]], schedule=emulator.RandomWarps(seed))
    np.testing.assert_array_equal(out[0], out[1])


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count, trans):
    inputs = ", ".join(f'"r"(in[all * {count} + {i}])' for i in range(count))
    names = ", ".join(f"%{i + 1}" for i in range(count))
    source = f"""extern "C" __global__ void kernel(const unsigned* in, const int* rows, int4* out) {{
        __shared__ int4 tile[{WARPS}][32];
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = blockIdx.x * {32 * WARPS} + threadIdx.x;
        tile[warp][lane] = make_int4(0, 0, 0, 0);
        __syncwarp();
        asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{names}}};"
            :: "r"((unsigned)__cvta_generic_to_shared(&tile[warp][rows[all]])), {inputs} : "memory");
        __syncwarp();
        out[all] = tile[warp][lane];
    }}"""
    rng = np.random.default_rng(count)
    data = rng.integers(0, 1 << 16, (BLOCKS * WARPS, 32, count, 2)).astype(np.uint16)
    rows = np.array([rng.permutation(32) for _ in range(BLOCKS * WARPS)], np.int32)
    out = np.zeros((BLOCKS * WARPS, 32, 8), np.uint16)
    run_cuda(source, "kernel", BLOCKS, 32 * WARPS, [data, rows, out], "compute_90")
    want = np.zeros_like(out)
    for warp in range(BLOCKS * WARPS):
        for lane in range(32):
            for matrix in range(count):
                for half in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + half
                    if trans:
                        row, column = column, row
                    want[warp, rows[warp, 8 * matrix + row], column] = data[warp, lane, matrix, half]
    np.testing.assert_array_equal(out, want)


def test_movmatrix_transposes():
    source = """extern "C" __global__ void kernel(unsigned* data) {
        unsigned r;
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(data[threadIdx.x]));
        data[threadIdx.x] = r; }"""
    data = np.random.default_rng(3).integers(0, 1 << 16, (2, 8, 8)).astype(np.uint16)
    want = data.swapaxes(1, 2).copy()
    run_cuda(source, "kernel", 1, 64, [data])
    np.testing.assert_array_equal(data, want)


# -- errors and observers ----------------------------------------------------------------------------------------

LOAD = """extern "C" __global__ void kernel(unsigned* out, int limit, int step) {
    __shared__ int4 tile[32];
    int lane = threadIdx.x;
    tile[lane % 32] = make_int4(lane, lane, lane, lane);
    __syncthreads();
    EXIT
    unsigned r = 0;
    PREDICATE asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r)
        : "r"((unsigned)__cvta_generic_to_shared(tile) + lane * step));
    out[lane] = r;
}"""


def _load(exit_="", predicate="", threads=64, limit=0, step=0, observers=()):
    source = LOAD.replace("EXIT", exit_).replace("PREDICATE", predicate)
    return run_cuda(source, "kernel", 1, threads, [np.zeros(64, np.uint32), limit, step], observers=observers)


def test_a_part_of_a_warp_cannot_load_a_matrix():
    for arguments in ({"predicate": "if (lane < limit)"}, {"exit_": "if (lane >= limit) return;"}):
        _load(**arguments, limit=32)
        with pytest.raises(emulator.DivergentWarp):
            _load(**arguments, limit=40)
    with pytest.raises(emulator.DivergentWarp, match="16 have exited"):
        _load(threads=48)


def test_rows_are_checked():
    with pytest.raises(emulator.Misaligned, match="read of 16 bytes"):
        _load(threads=32, step=8)
    with pytest.raises(emulator.OutOfBounds):
        _load(threads=32, step=128)
    # Only the first eight lanes give addresses for one matrix.
    _load(threads=32, step=64)


def test_observers_see_the_rows():
    class Rows(emulator.Observer):
        def __init__(self):
            self.seen = []

        def accessed(self, space, access, lanes, addresses):
            if access.instruction.opcode == "ldmatrix":
                self.seen.append((space.name, access.kind, access.width, lanes.tolist(), addresses.tolist()))

    rows = Rows()
    _load(threads=64, step=0, observers=[rows])
    lanes = [*range(8), *range(32, 40)]
    assert rows.seen == [("shared", "load", 16, lanes, [SHARED_GAP] * 16)]


@pytest.mark.parametrize(
    "text",
    [
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%a}, [%a];",
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%a, %b}, [%a];",
        "ldmatrix.sync.m8n8.x1.shared.b16 {%a}, [%a];",
        "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%a}, [%a];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%a], {%b};",
        "movmatrix.sync.aligned.m8n8.b16 %a, %b;",
        "ldmatrix.sync.aligned.m8n8.x1.shared::cluster.b16 {%a}, [%a];",
    ],
)
def test_other_forms_are_refused(text):
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(f".reg .b32 %a, %b; mov.b32 %a, 0; {text} ret;"), grid=1, block=32)


def _bytes_kernel(form: str, registers: int) -> str:
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(registers))
    return f"""extern "C" __global__ void kernel(const int4* in, const int* rows, unsigned* out) {{
        __shared__ int4 tile[{WARPS}][64];
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = blockIdx.x * {32 * WARPS} + threadIdx.x;
        for (int i = lane; i < 64; i += 32) tile[warp][i] = in[(blockIdx.x * {WARPS} + warp) * 64 + i];
        __syncwarp();
        unsigned r[{registers}];
        asm volatile("ldmatrix.sync.aligned.{form} {{{_registers(registers)}}}, [%{registers}];"
            : {outputs} : "r"((unsigned)__cvta_generic_to_shared(&tile[warp][rows[all]])));
        for (int i = 0; i < {registers}; ++i) out[all * {registers} + i] = r[i];
    }}"""


def _element(row: np.ndarray, column: int, bits: int) -> int:
    """An element of a row of 16 bytes, the first of which are in its lowest bits."""
    return int.from_bytes(row.tobytes(), "little") >> (bits * column) & ((1 << bits) - 1)


@pytest.mark.parametrize("bits", [8, 6, 4])
@pytest.mark.parametrize("count", [1, 2])
def test_ldmatrix_of_sixteen_rows_of_bytes(count, bits):
    kind = {8: "b8", 6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}[bits]
    data, rows = _inputs(count)
    out = np.zeros((BLOCKS * WARPS, 32, 2 * count, 4), np.uint8)
    source = _bytes_kernel(f"m16n16.x{count}.trans.shared.{kind}", 2 * count)
    run_cuda(source, "kernel", BLOCKS, 32 * WARPS, [data, rows, out], "compute_120a")
    want = np.zeros_like(out)
    for warp, lane, register, byte in np.ndindex(out.shape):
        row, column = 16 * (register // 2) + 4 * (lane % 4) + byte, lane // 4 + 8 * (register % 2)
        want[warp, lane, register, byte] = _element(data[warp, rows[warp, row]], column, bits)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("bits", [6, 4])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_widens_rows(count, bits):
    kind = {6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}[bits]
    data, rows = _inputs(count)
    out = np.zeros((BLOCKS * WARPS, 32, count, 4), np.uint8)
    run_cuda(_bytes_kernel(f"m8n16.x{count}.shared.{kind}", count), "kernel", BLOCKS, 32 * WARPS, [data, rows, out], "compute_120a")
    want = np.zeros_like(out)
    for warp, lane, matrix, byte in np.ndindex(out.shape):
        want[warp, lane, matrix, byte] = _element(data[warp, rows[warp, 8 * matrix + lane // 4]], 4 * (lane % 4) + byte, bits)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes_transposes_sums(count):
    inputs = ", ".join(f'"r"(in[all * {count} + {i}])' for i in range(count))
    names = ", ".join(f"%{i + 1}" for i in range(count))
    source = f"""extern "C" __global__ void kernel(const unsigned* in, int4* out) {{
        __shared__ int4 tile[{WARPS}][32];
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = blockIdx.x * {32 * WARPS} + threadIdx.x;
        asm volatile("stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%0], {{{names}}};"
            :: "r"((unsigned)__cvta_generic_to_shared(&tile[warp][lane])), {inputs} : "memory");
        __syncwarp();
        if (lane < {8 * count}) out[all] = tile[warp][lane];
    }}"""
    data = np.random.default_rng(count).integers(0, 256, (BLOCKS * WARPS, 32, count, 4)).astype(np.uint8)
    out = np.zeros((BLOCKS * WARPS, 32, 16), np.uint8)
    run_cuda(source, "kernel", BLOCKS, 32 * WARPS, [data, out], "compute_120a")
    want = np.zeros_like(out)
    for warp, lane, matrix, byte in np.ndindex(data.shape):
        row, column = lane // 4 + 8 * (byte // 2), 2 * (lane % 4) + byte % 2
        want[warp, 8 * matrix + column, row] = data[warp, lane, matrix, byte]
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    "form",
    [
        "m16n16.x4.trans.shared.b8",
        "m16n16.x1.shared.b8",
        "m8n16.x1.trans.shared.b8x16.b4x16_p64",
        "m8n16.x1.shared.b8",
        "m16n16.x1.trans.shared.b16",
    ],
)
def test_other_forms_of_bytes_are_refused(form):
    body = f".shared .align 16 .b8 tile[512]; .reg .b32 %r<8>; ldmatrix.sync.aligned.{form} {{%r0, %r1}}, [tile]; ret;"
    with pytest.raises(emulator.UnknownInstruction):
        emulator.launch(wrap_ptx(body), grid=1, block=32)
