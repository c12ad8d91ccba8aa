"""Instructions in their own spelling, as PTX has them, that other tests reach through CUDA only."""

from itertools import product

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator import Texture
from gemmgen.emulator.instructions import registry

from .helpers import wrap_ptx

T = np.arange(32, dtype=np.uint32)
REGISTERS = ".reg .b64 %o, %a, %b; .reg .b32 %t, %u, %v, %w<16>; .reg .f32 %f<24>; .reg .pred %p, %q; mov.u32 %t, %tid.x;"
STORE = "ld.param.u64 %o, [out]; mad.wide.u32 %o, %t, 4, %o; st.global.u32 [%o], %v; ret;"


def run(body: str, *more, parameters: str = "", declarations: str = "", block: int = 32, **options) -> np.ndarray:
    """Values that the threads left in `%v`; the arguments after the result are `parameters`."""
    out = np.zeros(block, np.uint32)
    text = wrap_ptx(f"{REGISTERS}\n{body}\n{STORE}", ".param .u64 out" + parameters, declarations=declarations)
    emulator.launch(text, grid=1, block=block, args=[out, *more], **options)
    return out


@pytest.mark.parametrize("block", [32, 20])
def test_activemask(block):
    np.testing.assert_array_equal(run("activemask.b32 %v;", block=block), [2**block - 1] * block)


def test_activemask_of_a_branch():
    got = run("mov.u32 %v, 0; setp.lt.u32 %p, %t, 10; @!%p bra DONE; activemask.b32 %v; DONE:")
    np.testing.assert_array_equal(got, np.where(T < 10, 0x3FF, 0))


@pytest.mark.parametrize(
    "hint",
    [
        "applypriority.global.L2::evict_normal [%a], 128;",
        "prefetchu.L1 [%a];",
        "nanosleep.u32 20;",
        "pmevent 3;",
        "pmevent.mask 5;",
        "brkpt;",
    ],
)
def test_hints_change_nothing(hint):
    data = T * 7
    body = f"ld.param.u64 %a, [x]; {hint} mad.wide.u32 %b, %t, 4, %a; ld.global.u32 %v, [%b];"
    np.testing.assert_array_equal(run(body, data, parameters=", .param .u64 x"), T * 7)
    np.testing.assert_array_equal(data, T * 7)


@pytest.mark.parametrize("statement", ["discard.global.L2 [%a], 128;", "frame.push f;", "frame.copy out, out;", "frame;"])
def test_what_is_not_implemented_is_refused(statement):
    with pytest.raises(emulator.EmulatorError):
        run(f"ld.param.u64 %a, [x]; {statement} mov.u32 %v, 0;", np.zeros(64, np.uint32), parameters=", .param .u64 x")


def test_ldu():
    data = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    body = "ld.param.u64 %a, [x]; mad.wide.u32 %a, %t, 8, %a; ldu.global.v2.u32 {%u, %w0}, [%a]; xor.b32 %v, %u, %w0;"
    np.testing.assert_array_equal(run(body, data, parameters=", .param .u64 x"), data[::2] ^ data[1::2])


SPACES = {
    "shared": "mov.u64 %a, s; cvta.shared.u64 %a, %a;",
    "local": "mov.u64 %a, l; cvta.local.u64 %a, %a;",
    "global": "mov.u64 %a, g; cvta.global.u64 %a, %a;",
    "const": "mov.u64 %a, c; cvta.const.u64 %a, %a;",
}
VARIABLES = ".shared .align 4 .u32 s[32]; .global .align 4 .u32 g[32]; .const .align 4 .u32 c[4] = {1, 2, 3, 4};"


@pytest.mark.parametrize(("of", "asked"), [pair for pair in product(SPACES, SPACES) if pair != ("const", "global")])
def test_isspacep_of_generic_addresses(of, asked):
    body = f".local .align 4 .u32 l[1]; {SPACES[of]} isspacep.{asked} %p, %a; selp.u32 %v, 1, 0, %p;"
    np.testing.assert_array_equal(run(body, declarations=VARIABLES), np.full(32, of == asked))


@pytest.mark.parametrize("space", ["shared", "local", "global"])
def test_cvta_and_back(space):
    body = f""".local .align 4 .u32 l[32]; {SPACES[space]} mul.lo.u32 %u, %t, 3; mad.wide.u32 %b, %t, 4, %a; st.u32 [%b], %u;
    cvta.to.{space}.u64 %b, %b; ld.{space}.u32 %v, [%b];"""
    np.testing.assert_array_equal(run(body, declarations=VARIABLES), T * 3)


MESSAGE = """.reg .b64 %x, %f; .reg .b32 %t, %v; .reg .pred %p;
ld.param.u64 %x, [x]; ld.param.u64 %f, [flag]; mov.u32 %t, %ctaid.x; setp.ne.u32 %p, %t, 0; @%p bra READ;
st.global.u32 [%x], 42; membar.gl; st.volatile.global.u32 [%f], 1; ret;
READ: ld.volatile.global.u32 %v, [%f]; setp.eq.u32 %p, %v, 0; @%p bra READ;
membar.gl; ld.global.u32 %v, [%x]; st.global.u32 [%x + 4], %v; ret;"""


@pytest.mark.parametrize(("lacking", "races"), [(None, False), ("membar.gl; st.volatile", True), ("membar.gl; ld.global", True)])
def test_membar_orders_a_message(lacking, races):
    x, flag = np.zeros(2, np.uint32), np.zeros(1, np.uint32)
    text = MESSAGE.replace(lacking, lacking.removeprefix("membar.gl; ")) if lacking else MESSAGE
    launched = {"grid": 2, "block": 1, "args": [x, flag], "hazards": True}
    ptx = wrap_ptx(text, ".param .u64 x, .param .u64 flag")
    if races:
        with pytest.raises(emulator.GlobalRace):
            emulator.launch(ptx, **launched)
    else:
        emulator.launch(ptx, **launched)
        assert x.tolist() == [42, 42]


@pytest.mark.parametrize(
    ("vote", "expected"),
    [
        ("vote.sync.ballot.b32 %v, %p, 0xffffffff;", 0x1FF),
        ("vote.sync.ballot.b32 %v, !%p, 0xffffffff;", 0xFFFFFE00),
        ("vote.sync.any.pred %q, %p, 0xffffffff; selp.u32 %v, 1, 0, %q;", 1),
        ("vote.sync.all.pred %q, %p, 0xffffffff; selp.u32 %v, 1, 0, %q;", 0),
        ("vote.sync.uni.pred %q, %p, 0xffffffff; selp.u32 %v, 1, 0, %q;", 0),
    ],
)
def test_vote(vote, expected):
    np.testing.assert_array_equal(run(f"setp.lt.u32 %p, %t, 9; {vote}"), np.full(32, expected))


def test_tex():
    image = np.random.default_rng(2).standard_normal((3, 32)).astype(np.float32)
    body = """ld.param.u64 %a, [image]; cvt.rn.f32.u32 %f0, %t; add.f32 %f0, %f0, 0f3F000000; mov.f32 %f1, 0f3FC00000;
    tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%a, {%f0, %f1}]; mov.b32 %v, %f2;"""
    got = run(body, Texture(image), parameters=", .param .u64 image")
    np.testing.assert_array_equal(got.view(np.float32), image[1])


def _list(first: int) -> str:
    return "{" + ", ".join(f"%f{first + each}" for each in range(8)) + "}"


def test_wmma_stores_what_it_loads():
    matrix, out = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32), np.zeros((16, 16), np.float32)
    text = wrap_ptx(
        f"""{REGISTERS} ld.param.u64 %a, [x]; ld.param.u64 %o, [out];
        wmma.load.c.sync.aligned.m16n16k16.row.global.f32 {_list(0)}, [%a], 16;
        wmma.store.d.sync.aligned.m16n16k16.col.global.f32 [%o], {_list(0)}, 16; ret;""",
        ".param .u64 x, .param .u64 out",
    )
    emulator.launch(text, grid=1, block=32, args=[matrix, out])
    np.testing.assert_array_equal(out, matrix.T)


@pytest.mark.parametrize("opcode", registry.LATER)
def test_opcodes_imported_late_have_all_their_handlers(opcode):
    """A handler in another file would be asked first or last depending on what ran before."""
    files = {handler.__module__.rpartition(".")[2] for handler in registry.handlers(opcode)}
    assert files == set(registry.LATER[opcode])
