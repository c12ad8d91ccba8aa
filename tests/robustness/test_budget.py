"""Reading takes time in proportion to a text, whatever is in it: two seconds for a megabyte of YAML, for a fifth of one of code.

Each text repeats one piece, which is where a reader that looks from every place to the end gives itself away. A few pairs of readers
and pieces are tried in every run, all of them with ``GEMMGEN_ALL_CASES=1``.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gemmgen.core.errors import CompileError, GemmgenError
from gemmgen.emulator import ParseError
from gemmgen.emulator.ptx import parse
from gemmgen.kernels.spec_files import load_spec, parse_yaml
from gemmgen.sanitizer import comments, headers, host_code, source
from gemmgen.sweep.expression import Expression
from gemmgen.sweep.file import load_sweep

SECONDS = 2.0
"""Of processor time; a reader that is not linear takes minutes."""
YAML_BYTES, CODE_BYTES = 990_000, 200_000
SAMPLE = 24

PIECES = (
    *("/*", "//", "//\n", 'R"(', 'R"a(', '"', "'", '"\\', "#", "#\n", "\n#", "# \\\n", "(", ")", "{", "}", "[", "]", "<", ">", "<<<"),
    *(
        "a;",
        "a b;",
        "int f(){}",
        "int f(){}\n",
        "template<",
        "template<class T> ",
        "template<a>__global__ void k(",
        "struct a{",
        "typedef ",
    ),
    *("template <int>struct a{};\n", "__global__ void k(", "__global__ void k(int*p){}\n", "alignas(", "[[", "__launch_bounds__(", "a="),
    *("namespace a{", 'extern "C"', "#define a __global__\n", "#if\n", "#include <thrust/a>\n", "\t", "  \n", "std::", "std::vector "),
    *("a(", "a,", "a[", "a[1]", "class a:", "public:", "k<", "*", "@", "\\", "\\\n", ".a", ".loc 1 1 1\n", ".reg .b32 %r<1>;\n", "%r1,"),
    *("mov.u32 %r1, %r2;\n", "$L:\n", ".entry k(){}", ".visible .entry k(.param .b32 a){ret;}\n", "0x", "1_", "1:", "é", "\0", "x()", "- "),
    *("? ", "! ", "&a ", "a: ", "{a: ", "- a\n", "---\n", "1", "not ", "a if b else ", "a.b", "-", "1,"),
)


def read_cuda(text: str) -> None:
    for head in ("", "int main(){k<<<1,1>>>();\n"):
        comments.without_comments(head + text)
        host_code.has_host_code(head + text)
        host_code.device_macros([head + text])


def read_declarations(text: str) -> None:
    source._declared_parameters(f"template<{text}> __global__ void k({text}", "k", "k<1>")
    source._kernel_templates(f"template<{text}__global__ {text}(")
    headers.host_algorithms(text)
    headers.host_libraries(text)


def read_ptx(text: str) -> None:
    parse(f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n.param .u64 a)\n{{\n{text}")


def read_yaml(text: str) -> None:
    for head in ("", "a: ", "a: [", "a: {b: ", 'a: "'):
        with suppressed():
            parse_yaml((head + text)[:YAML_BYTES], "text")


READERS: dict[str, tuple[Callable[[str], object], int]] = {
    "cuda": (read_cuda, CODE_BYTES),
    "declarations": (read_declarations, CODE_BYTES),
    "ptx": (read_ptx, CODE_BYTES),
    "where": (lambda text: Expression("--where", text), YAML_BYTES),
    "yaml": (read_yaml, YAML_BYTES),
}


@contextmanager
def suppressed() -> Iterator[None]:
    """Hostile text should end in a message."""
    with suppress(GemmgenError, ParseError):
        yield


@contextmanager
def budget(seconds: float = SECONDS) -> Iterator[Callable[[], float]]:
    """Fails as soon as the processor time is spent; gives the time so far."""
    started = time.process_time()

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield lambda: time.process_time() - started
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


PAIRS = list(itertools.product(READERS, PIECES))
CHOSEN = PAIRS if os.environ.get("GEMMGEN_ALL_CASES") else sorted(random.Random(46).sample(PAIRS, SAMPLE))


@pytest.mark.parametrize(("reader", "piece"), CHOSEN)
def test_a_text_of_one_piece_is_read_in_time(reader: str, piece: str) -> None:
    read, size = READERS[reader]
    with suppressed(), budget() as spent:
        read(piece * (size // len(piece.encode())))
    assert spent() < SECONDS


@pytest.mark.parametrize("size", [40_000, 900_000])
def test_text_that_is_no_cuda_is_given_up_in_time(size: int) -> None:
    text = "int main(){k<<<1,1>>>();\n" + "%r1," * (size // 4)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(CompileError, match=r"took more than 1\.5 s of processor time"), budget():
        host_code.device_parts({"a.cu": text}, ["__global__"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


HEAD = "kind: gemm\nmainloop: {strategy: tiled}\n"
SPECS = {
    "unknown fields": "".join(f"a{i}: 1\n" for i in range(2000)),
    "as many as there may be": "".join(f"a{i}: 1\n" for i in range(19_990)),
    "too many fields": "".join(f"a{i}: 1\n" for i in range(95_000)),
    "wrong operations": f"epilogue: [{'{op: x},' * 9_000}]\n",
    "wrong fields of operations": f"epilogue: [{'{op: relu, a: 1},' * 6_000}]\n",
    "numbers for operations": f"epilogue: [{'1,' * 19_000}]\n",
    "a key of a megabyte": f"? {'a' * 900_000}\n: 1\n",
    "a value of a megabyte": f"alpha: {'on' * 450_000}\n",
    "underscores": f"alpha: 1{'_' * 900_000}x\n",
    "colons": f"alpha: 1{':1' * 450_000}x\n",
    "unknown fields in a part": f"tile: {{{''.join(f'a{i}: {{}}, ' for i in range(19_000))}}}\n",
}


@pytest.mark.parametrize("name", SPECS)
def test_many_mistakes_are_reported_in_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + SPECS[name])
    with suppressed():
        load_spec({"kind": "gemm"})  # imports its modules
    with pytest.raises(GemmgenError) as raised, budget():
        load_spec(path)
    assert len(str(raised.value)) < 20_000


def test_the_first_twenty_mistakes_and_their_number_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + SPECS["unknown fields"])
    with pytest.raises(GemmgenError) as raised:
        load_spec(path)
    lines = str(raised.value).splitlines()
    assert sum(line.startswith("  - ") for line in lines) == 20
    assert lines[-1] == "  and 1,981 more, 2,001 in all"


def test_a_formula_of_many_names_is_refused_in_time() -> None:
    let = {"t0": "acc"} | {f"t{number}": f"t{number - 1} * t{number - 1}" for number in range(1, 10_000)}
    with pytest.raises(GemmgenError, match="10,000 names under inputs, let and outputs, need at most 256"), budget():
        load_spec({"kind": "elementwise", "operations": {"let": let, "outputs": {"value": "t9999"}}})


@pytest.mark.parametrize("text", ["x()" * 330_000, "[" * 900_000, "a" * 900_000, "not " * 200_000], ids=lambda text: text[:4])
def test_a_long_constraint_of_a_sweep_is_a_short_message(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"name: a\nbase: gemm/v0_naive\naxes: {{}}\nconstraints: {{c: '{text}'}}\n")
    with pytest.raises(GemmgenError) as raised, budget():
        from gemmgen.sweep.records import Stage
        from gemmgen.sweep.space import Space

        _ = Space(load_sweep(str(path))[0], Stage.CHECK).constraints
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("inner", ["", ".f", ".f.g"])
def test_thousands_of_axes_of_a_sweep_are_read_in_time(inner: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"name: a\nbase: gemm/v0_naive\naxes: {{{', '.join(f'x{number}{inner}: [1]' for number in range(9000))}}}\n")
    with budget(6):
        assert len(load_sweep(str(path))[0].axes) == 9000


def test_parameters_of_a_kernel_take_the_prover_no_time(tmp_path: Path) -> None:
    pytest.importorskip("z3")
    from click.testing import CliRunner

    from gemmgen.cli import cli

    parameters = ", ".join(f".param .u32 q{number}" for number in range(300))
    path = tmp_path / "many.ptx"
    path.write_text(f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f({parameters}) {{ ret; }}\n")
    with budget(8):
        result = CliRunner().invoke(cli, ["prove", str(path), "--block", "32", "--grid", "q7", "--seconds", "2"])
    assert result.exit_code == 0 and "memory" in result.output


STRAIGHT = "add.s32 %r2, %r1, 17;\nxor.b32 %r1, %r2, 5;\nst.global.u32 [%p], %r1;\n"
BRANCHES = "setp.eq.s32 %q, %r1, 7;\n@%q bra L{number};\nadd.s32 %r1, %r1, 1;\nL{number}:\n"
STORED = "st.shared.u32 [%r1 + 4], %r2;\nld.shared.u32 %r2, [%r1];\nbar.sync 0;\n"


@pytest.mark.parametrize(
    ("piece", "count", "expected"),
    [
        (STRAIGHT, 5_500, "the time is used up: 1 s"),
        (BRANCHES, 450, "p: no store was found"),
        (BRANCHES, 5_000, "basic blocks, more than"),
        (STORED, 5_000, "the time is used up: 1 s"),
        (STRAIGHT, 30_000, "2.0 MB of PTX need --seconds 6 or more, got 1"),
    ],
    ids=["straight", "branches", "blocks", "stored", "read"],
)
def test_a_long_kernel_is_proved_within_its_seconds(piece: str, count: int, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("z3")
    from click.testing import CliRunner

    from gemmgen.cli import cli

    path = tmp_path / "long.ptx"
    body = "".join(piece.replace("{number}", str(number)) for number in range(count))
    start = ".shared .b32 x[64]; .reg .b32 %r<4>; .reg .b64 %p; .reg .pred %q; ld.param.u64 %p, [p]; mov.u32 %r1, %tid.x; mov.u32 %r2, x;"
    path.write_text(f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 p) {{\n{start}\n{body}ret;\n}}\n")
    with budget(4):
        result = CliRunner().invoke(cli, ["prove", str(path), "--block", "32", "--grid", "1", "--array", "p=out u32[1]", "--seconds", "1"])
    assert expected in result.output
