"""The program that measures counters: its order, and the results it takes from a run that ended early."""

import json
from pathlib import Path

import numpy as np
import pytest
from sampling import ALL

from gemmgen import emulator
from gemmgen.toolchain.nvrtc import compile_source
from measurements.copy_predicates import KINDS, compare
from measurements.copy_sites import CopySites
from measurements.counters import in_order, read_journal
from measurements.counters_report import TWO_COUNTERS_APART, rule_of

COMMITTED = json.loads((Path(__file__).resolve().parents[3] / "measurements" / "counters.json").read_text())

TWO_LANES_ASTRIDE = {("rows / one from 16 of 1", 1)}
"""The only pattern whose sectors are not those of the rule: of two lanes side by side, each in another sector, the GPU shows one."""

ROWS = [
    {"spec": "specs/gemm/a.yaml", "ptx": "1", "dimensions": {"m": 64, "n": 64}},
    {"spec": "specs/gemm/b.yaml", "ptx": "2", "dimensions": {"m": 8, "n": 8}},
    {"spec": "specs/gemm/c.yaml", "ptx": "3", "dimensions": {"m": 8, "n": 16}},
    {"spec": "specs/conv2d/d.yaml", "ptx": "4", "dimensions": {"n": 999}},
    {"spec": "specs/conv2d/e.yaml", "ptx": "5", "dimensions": {"n": 1}, "measured": {}},
    {"spec": "specs/conv2d/f.yaml", "error": "no such thing"},
]


def test_cheap_cases_of_every_folder_come_first():
    assert [spec[-6] for spec in in_order(ROWS)] == ["d", "b", "c", "a"]


def test_a_journal_counts_for_the_same_code_only(tmp_path):
    journal = tmp_path / "counters.journal"
    entries = [{"spec": "specs/gemm/a.yaml", "ptx": ptx, "profiles": [{"metric": value}]} for ptx, value in (("1", 7.0), ("old", 8.0))]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + '{"spec": "specs/gemm/b.ya')
    assert read_journal(journal, ROWS) == {"specs/gemm/a.yaml": [{"metric": 7.0}]}


def test_without_a_journal_nothing_is_known(tmp_path):
    assert read_journal(tmp_path / "none", ROWS) == {}


def differences() -> list[tuple[dict, str, int, int]]:
    """Rows, quantities, predicted and measured numbers of the committed table that are not equal."""
    rows = [row for row in COMMITTED["specs"] if "measured" in row]
    pairs = [(row, name, row["predicted"][name], row["measured"].get(name)) for row in rows for name in COMMITTED["must_agree"]]
    return [pair for pair in pairs if pair[3] not in (None, pair[2])]


def test_the_committed_table_has_no_unexplained_number():
    rules = {rule_of(row, name) for row, name, _, _ in differences()}
    assert rules == {"code", "arbitration", "profiler", "two counters"}


def test_arbitration_adds_less_than_the_accesses_themselves():
    added = [
        (measured - predicted) / row["predicted"][name.replace("conflicts", "wavefronts")]
        for row, name, predicted, measured in differences()
        if rule_of(row, name) == "arbitration"
    ]
    assert added and min(added) > 0 and max(added) < 0.56


def test_code_is_blamed_only_where_other_code_was_executed():
    for row, name, _, _ in differences():
        if rule_of(row, name) == "code":
            pairs = [(row["predicted"][kind], count) for kind, count in row["measured"].items() if kind.endswith("instructions")]
            assert any(measured not in (None, predicted) for predicted, measured in pairs), (row["spec"], name)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"measured": 110}, "open"),
        ({"measured": 110, "profiled": 110}, "profiler"),
        ({"measured": 109, "profiled": 110}, "open"),
        ({"measured": 110, "copies": 9}, "code"),
    ],
)
def test_a_number_of_copies_is_open_unless_its_own_rule_gives_it(change, rule):
    row = {
        "predicted": {"copy wavefronts": 100, "copy instructions": 8},
        "measured": {"copy wavefronts": change["measured"], "copy instructions": change.get("copies", 8)},
        "profiled": {"copy wavefronts": change["profiled"]} if "profiled" in change else {},
    }
    assert rule_of(row, "copy wavefronts") == rule


@pytest.mark.parametrize(("measured", "rule"), [(1000 * (1 + TWO_COUNTERS_APART), "two counters"), (1020, "open")])
def test_two_counters_of_one_thing_differ_by_little(measured, rule):
    row = {
        "predicted": {"copy sectors": 1000, "global load sectors": 1500, "copy instructions": 8},
        "measured": {"copy sectors": measured, "global load sectors": 1500, "copy instructions": 8},
    }
    assert rule_of(row, "copy sectors") == rule


SINGLE_COPIES = json.loads((Path(__file__).resolve().parents[3] / "measurements" / "copy_predicates_h200.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_single_copies_cost_what_the_gpu_shows(kind):
    different = compare(SINGLE_COPIES, kind, 1 if ALL else 35)
    assert {name for _, name, *_ in different} <= {"global load sectors"}
    assert {(launch.name.partition(" lanes and ")[0], said - shown) for launch, _, _, said, shown in different} <= TWO_LANES_ASTRIDE


COPY = """
extern "C" __global__ void copy(const char* in, char* out, int bytes)
{
    __shared__ __align__(128) char staged[512];
    unsigned at = (unsigned)__cvta_generic_to_shared(staged) + threadIdx.x * 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(in + threadIdx.x * 32), "r"(bytes) : "memory");
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    ((int4*)out)[threadIdx.x] = ((int4*)staged)[threadIdx.x];
}
"""


@pytest.mark.parametrize(("size", "wavefronts", "profiled"), [(0, 4, {"copy wavefronts": 40}), (16, 40, {}), (8, 40, {})])
def test_the_profiler_takes_a_condition_in_p0_for_none(size, wavefronts, profiled):
    """Lanes 32 bytes apart: two of eight meet in a bank of the source, and each of them brings a sector of its own."""
    binary = compile_source(COPY, architecture="sm_90a", name="copy.cu")
    sites = CopySites()
    arrays = np.zeros(1024, np.uint8), np.zeros(512, np.uint8)
    emulator.launch(binary.ptx, "copy", grid=1, block=32, args=[*arrays, size], observers=[sites])
    total = sites.counters().total
    sectors = total.global_memory["cp.async"].sectors if "cp.async" in total.global_memory else 0
    assert total.shared_memory["cp.async"].wavefronts == wavefronts
    assert sites.profiled(binary, {"copy wavefronts": wavefronts, "copy sectors": sectors}) == profiled
