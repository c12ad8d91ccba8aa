"""Benchmarks: on a fake driver everywhere, and on a GPU where there is one."""

import dataclasses
import json
import types

import numpy as np
import pytest
from fake_driver import LAUNCH_SECONDS, array_at, fake_driver
from sample_kernels import needs_gpu

import gemmgen.perf.benchmark as benchmarking
from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.core.errors import EnvironmentMissing, LaunchError, VerificationError
from gemmgen.perf import benchmark as benchmarks
from gemmgen.perf import contestants
from gemmgen.perf.benchmark import Candidate, Timing, benchmark, compare, first_difference, flushed
from gemmgen.perf.clocks import ClockReader
from gemmgen.runtime.cuda import gpu_available
from gemmgen.toolchain.compilation import compile_plan

__all__ = ["fake_driver"]

GEMM = {"kind": "gemm", "mainloop": {"strategy": "naive", "threadblock": {"m": 16, "n": 16}}}
SIZES = (64, 48, 32)


def timing(name, kind, median, spread=0.0):
    return Timing(name, kind, median, median - spread / 2, median + spread / 2, 1.0, 1.0, "")


@pytest.mark.parametrize(
    ("mine", "peers", "spread", "verdict"),
    [
        (10.0, 20.0, 1.0, "faster"),
        (20.0, 10.0, 1.0, "slower"),
        (10.0, 10.9, 1.0, "tie"),
        (10.9, 10.0, 1.0, "tie"),
        (10.0, 11.1, 1.0, "faster"),
    ],
)
def test_differences_within_the_spread_are_ties(mine, peers, spread, verdict):
    (comparison,) = compare([timing("mine", "candidate", mine, spread), timing("peer", "peer", peers)])
    assert (comparison.verdict, comparison.speedup) == (verdict, peers / mine)
    (comparison,) = compare([timing("mine", "candidate", mine), timing("peer", "peer", peers, spread)])
    assert comparison.verdict == verdict


def test_every_candidate_meets_the_peer_and_later_ones_the_first():
    contestants = [timing("a", "candidate", 1.0), timing("b", "candidate", 2.0), timing("p", "peer", 3.0)]
    assert [(c.name, c.other) for c in compare(contestants)] == [("a", "p"), ("b", "p"), ("b", "a")]
    assert compare(contestants[:1]) == ()


def test_the_first_difference_is_named_and_nan_always_differs():
    got = np.zeros((2, 3))
    assert first_difference("C", got, np.zeros((2, 3))) == ""
    got[1, 2] = 5
    assert first_difference("C", got, np.zeros((2, 3))) == "C[1, 2] is 5.0, expected 0.0; 1 of 6 elements differ"
    assert first_difference("C", np.full(2, np.nan), np.full(2, np.nan)).startswith("C[0] is nan")


def test_bfloat16_is_rounded_to_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, np.inf], np.float32)
    assert to_numbers("bf16", to_elements("bf16", values)).tolist() == [1.0, 1.0, 1.015625, -2.5, np.inf]


def test_clocks_that_cannot_be_read_are_unknown(monkeypatch):
    monkeypatch.setattr("gemmgen.perf.clocks._open_nvml", lambda bus: (None, None))
    monkeypatch.setattr("shutil.which", lambda name: None)
    reader = ClockReader("0000:00:00.0")
    reader.sample()
    assert reader.summary().source == "unknown"
    assert reader.driver_version == "unknown"


def test_clocks_are_read_from_nvidia_smi(monkeypatch):
    monkeypatch.setattr("gemmgen.perf.clocks._open_nvml", lambda bus: (None, None))
    monkeypatch.setattr("shutil.which", lambda name: name)
    answers = iter(["580.1\n", "1980, 3201\n", "1000, 3201\n", "[N/A], [N/A]\n"])
    monkeypatch.setattr("subprocess.run", lambda *a, **k: types.SimpleNamespace(returncode=0, stdout=next(answers)))
    reader = ClockReader("0000:00:00.0")
    assert reader.driver_version == "580.1"
    for _ in range(3):
        reader.sample()
    summary = reader.summary()
    assert (summary.source, summary.samples, summary.sm_lowest, summary.sm_highest) == ("nvidia-smi", 2, 1000, 1980)
    assert (summary.sm_median, summary.memory_median) == (1490, 3201)


@pytest.mark.skipif(gpu_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_benchmark_says_so(candidate):
    with pytest.raises(EnvironmentMissing):
        benchmark([candidate], problem_of(candidate))


# -- on a fake driver ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def candidate():
    from gemmgen import api

    plan = api.plan(GEMM, "sm_80")
    return Candidate(plan, types.SimpleNamespace(cubin=b"cubin", architecture="sm_80"))


def problem_of(candidate, *sizes):
    from gemmgen.kernels import family_of

    return family_of(candidate.plan.spec).problem(candidate.plan, sizes or SIZES)


@pytest.fixture
def fake_gemm(fake_driver, candidate, monkeypatch):
    """The candidate's kernel in NumPy; returns the addresses of A that it was launched with."""
    launch = candidate.plan.sequence.launches[0]
    seen = []

    def gemm(_, values):
        arguments = dict(zip(launch.arguments, values, strict=True))
        m, n, k = (arguments[name] for name in "mnk")
        a, b = array_at(arguments["A"], (m, k)), array_at(arguments["B"], (k, n))
        c = array_at(arguments["C"], (m, n))
        c[:] = arguments.get("alpha", 1.0) * (a @ b) + (arguments["beta"] * c if arguments.get("beta", 0.0) != 0 else 0.0)
        seen.append(arguments["A"])

    fake_driver.kernels[launch.entry] = gemm
    monkeypatch.setattr(contestants, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(contestants, "GRAPH_SECONDS", 10 * LAUNCH_SECONDS)
    return seen


def test_candidate_is_checked_and_then_timed_on_rotating_arrays(fake_driver, fake_gemm, candidate):
    report = benchmark([candidate], problem_of(candidate), with_peer=False, rounds=4)
    (result,) = report.timings
    assert result.checked == "equal to the family's reference on small integers"
    assert result.median_us == pytest.approx(LAUNCH_SECONDS * 1e6)
    assert result.operations_per_second >= 2 * 64 * 48 * 32 / LAUNCH_SECONDS * 0.999
    # Inputs are at least 14,336 bytes; twice the fake L2 is 8192 bytes.
    assert report.buffer_sets == 1
    assert report.rounds == 4
    assert json.loads(json.dumps(report.to_json()))["timings"][0]["name"] == candidate.plan.name
    assert report.device == "Fake GPU"


def test_small_inputs_rotate_until_they_exceed_the_l2(fake_driver, fake_gemm, candidate):
    report = benchmark([candidate], problem_of(candidate, 8, 8, 8), with_peer=False, rounds=2)
    assert report.inputs == "rotated beyond the L2"
    assert report.input_bytes > 2 * report.l2_bytes - report.input_bytes // report.buffer_sets
    assert len(set(fake_gemm)) == report.buffer_sets > 8
    fake_gemm.clear()
    resident = benchmark([candidate], problem_of(candidate, 8, 8, 8), with_peer=False, rounds=2, l2_resident=True)
    assert (resident.inputs, resident.buffer_sets, len(set(fake_gemm))) == ("resident in the L2", 1, 1)


def test_a_wrong_candidate_is_not_timed(fake_driver, fake_gemm, candidate):
    entry = candidate.plan.sequence.launches[0].entry
    right = fake_driver.kernels[entry]

    def wrong(launch, values):
        right(launch, values)
        arguments = dict(zip(candidate.plan.sequence.launches[0].arguments, values, strict=True))
        array_at(arguments["C"], (64, 48))[3, 5] += 1

    fake_driver.kernels[entry] = wrong
    with pytest.raises(VerificationError, match=r"C\[3, 5\] is .* 1 of 3072 elements differ"):
        benchmark([candidate], problem_of(candidate), with_peer=False)
    assert len(fake_driver.launches) == 1


def test_an_unchecked_result_says_so(fake_driver, fake_gemm, candidate, monkeypatch):
    monkeypatch.setattr(benchmarking, "REFERENCE_OPERATIONS", 0)
    report = benchmark([candidate], problem_of(candidate), with_peer=False, rounds=1)
    assert report.timings[0].checked.startswith("not checked")
    assert any("not checked" in note for note in report.notes)


def test_two_candidates_take_turns(fake_driver, fake_gemm, candidate):
    twin = Candidate(dataclasses.replace(candidate.plan, name="twin"), candidate.binary)
    report = benchmark([candidate, twin], problem_of(candidate), with_peer=False, rounds=3)
    assert [result.name for result in report.timings] == [candidate.plan.name, "twin"]
    assert [c.verdict for c in report.comparisons] == ["tie"]


def test_problem_without_work_or_against_constraints_is_refused(fake_driver, fake_gemm, candidate):
    with pytest.raises(LaunchError, match="nothing to time"):
        benchmark([candidate], problem_of(candidate, 0, 8, 8), with_peer=False)
    with pytest.raises(LaunchError, match="no candidate"):
        benchmark([], {})
    wrong = problem_of(candidate) | {"lda": 1}
    with pytest.raises(LaunchError, match="cannot be launched"):
        benchmark([candidate], wrong, with_peer=False)


# -- on a GPU --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    from gemmgen import api
    from gemmgen.runtime.cuda import gpu

    plan = api.plan(GEMM, gpu().architecture)
    return Candidate(plan, compile_plan(plan))


@needs_gpu
@pytest.mark.parametrize("sizes", [(128, 128, 128), (1000, 1000, 1000)])
def test_gpu_benchmark_beside_cublas(compiled, sizes):
    pytest.importorskip("torch")
    report = benchmark([compiled], problem_of(compiled, *sizes), rounds=10)
    assert [result.kind for result in report.timings] == ["candidate", "peer"]
    assert report.timings[0].checked.startswith("equal to cuBLAS")
    for result in report.timings:
        assert 0 < result.p10_us <= result.median_us <= result.p90_us < 1e5
    assert report.comparisons[0].verdict in ("faster", "slower", "tie")
    assert report.clocks.source in ("NVML", "nvidia-smi")
    assert report.inputs == "rotated beyond the L2"
    print(json.dumps(report.to_json(), indent=1))


@needs_gpu
def test_gpu_benchmark_without_torch(compiled, monkeypatch):
    monkeypatch.setattr(benchmarking, "_torch", lambda: None)
    report = benchmark([compiled], problem_of(compiled, 512, 512, 512), rounds=10, l2_resident=True)
    assert [result.kind for result in report.timings] == ["candidate"]
    assert report.timings[0].checked == "equal to the family's reference on small integers"
    assert any("no peer" in note for note in report.notes)


@needs_gpu
def test_gpu_time_is_device_time_of_one_launch(compiled):
    """Twice the work takes about twice as long, whatever the graph holds."""
    one = benchmark([compiled], problem_of(compiled, 2048, 2048, 1024), rounds=10, with_peer=False)
    two = benchmark([compiled], problem_of(compiled, 2048, 2048, 2048), rounds=10, with_peer=False)
    assert 1.6 < two.timings[0].median_us / one.timings[0].median_us < 2.4
    assert benchmarks.BenchmarkReport is type(one)


def test_graphs_of_fast_and_slow_contestants_take_about_as_long(monkeypatch):
    """Seconds of a launch by name; a graph of it takes so much more."""
    seconds = {"fast": 10e-6, "slow": 5e-3}
    taken = {}

    def contestant(name):
        def capture(enqueue):
            taken[name] = 0.0
            enqueue()
            return taken[name]

        def enqueue(index):
            taken[name] += seconds[name]

        return contestants.Contestant(name, "peer", enqueue, capture)

    monkeypatch.setattr(contestants, "replay_seconds", lambda stream, graphs, rounds, meanwhile: [[graph] * rounds for graph in graphs])
    monkeypatch.setattr(contestants, "WARM_UP_SECONDS", 0.0)
    samples, launches = contestants.measure_in_turns(0, [contestant(name) for name in seconds], 3, 12)
    assert launches == [201, 3]
    assert [taken[0] / count for taken, count in zip(samples, launches, strict=True)] == pytest.approx(list(seconds.values()))


def test_a_peer_that_flushes_tiny_results_is_no_difference():
    """torch's silu(-88) is 0, for which a kernel has the exact -5e-37; anything larger beside a 0 is a difference."""
    got, peer = np.array([-5.3e-37, 1.0, 1e-30], np.float32), np.array([0.0, 1.0, 0.0], np.float32)
    assert first_difference("C", got[:2], flushed(got, peer)[:2]) == ""
    assert first_difference("C", got, flushed(got, peer)).startswith("C[2]")
