"""gemmgen tune: the timed kernels, the files and the output; the model replaces the GPU."""

import json
import types
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gemmgen.cli import cli
from gemmgen.core.errors import LaunchError, SpecError, VerificationError
from gemmgen.dispatch import tuning
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose_by
from gemmgen.dispatch.table import load_table, read_table
from gemmgen.hardware.target import device
from gemmgen.runtime.cuda import gpu_available
from gemmgen.runtime.cuda.driver import GpuDevice

GPU = GpuDevice(0, "NVIDIA H200", (9, 0), 132, 1 << 37, 60 << 20, 227 << 10, (13, 0), "0000:00:00.0")
PROBLEMS = ["gemm:512,512,512", "gemm:64,64,64,nt", "reduction:1,65536,1"]


@pytest.fixture
def timed(monkeypatch):
    """The problems that were timed; each instance takes as long as its name is."""
    found = []

    def benchmark(candidates, problem, rounds):
        found.append(dict(problem))
        timings = [types.SimpleNamespace(name=c.plan.name, kind="candidate", median_us=float(len(c.plan.name))) for c in candidates]
        timings.append(types.SimpleNamespace(name="peer", kind="peer", median_us=50.0))
        clocks = types.SimpleNamespace(sm_median=1980.0)
        return types.SimpleNamespace(timings=timings, device="GPU", driver="1", cuda=(13, 0), clocks=clocks, date="2026-01-01")

    monkeypatch.setattr("gemmgen.runtime.cuda.driver.gpu", lambda ordinal=0: GPU)
    monkeypatch.setattr("gemmgen.perf.benchmark.benchmark", benchmark)
    monkeypatch.setattr("gemmgen.toolchain.compilation.compile_plan", lambda plan: None)
    return found


def tuner(path, texts=PROBLEMS, **options):
    return tuning.Tuner([parse_problem(text) for text in texts], path, **options)


def test_every_problem_is_timed_and_written(tmp_path, timed):
    path = tmp_path / "h200.json"
    table, outcome = tuner(path).run()
    assert (outcome.timed, outcome.known, outcome.skipped) == (3, 0, {})
    assert [row.problem for row in table.rows] == ["512,512,512", "64,64,64,nt", "1,65536,1"]
    assert read_table(path).rows == table.rows
    assert all(len(row.times) >= 12 and row.models.keys() == row.times.keys() for row in table.rows[:1])
    assert table.current


def test_started_again_it_goes_on_where_it_was(tmp_path, timed):
    path = tmp_path / "h200.json"
    tuner(path, PROBLEMS[:2]).run()
    timed.clear()
    _, outcome = tuner(path).run()
    assert (outcome.timed, outcome.known) == (1, 2)
    assert timed and all(65536 in problem.values() for problem in timed)


def test_what_was_timed_before_a_fault_is_kept(tmp_path, timed, monkeypatch):
    path = tmp_path / "h200.json"
    inner = tuning.Tuner._time

    def fails(request, *rest):
        if request.kind == "reduction":
            raise VerificationError("y[0] is 1, expected 2")
        if "nt" in request.text:
            raise LaunchError("no memory")
        return inner(request, *rest)

    monkeypatch.setattr(tuning.Tuner, "_time", staticmethod(fails))
    table, outcome = tuner(path).run()
    assert [row.problem for row in table.rows] == ["512,512,512"]
    assert outcome.skipped == {"gemm:64,64,64,nt": "no memory"}
    assert list(outcome.wrong) == ["reduction:1,65536,1"]


def test_no_problem_is_begun_after_the_time_is_up(tmp_path, timed):
    _, outcome = tuner(tmp_path / "h200.json", seconds=0.0).run()
    assert (outcome.timed, outcome.left) == (0, 3)


def test_the_table_of_another_device_is_left_alone(tmp_path, timed):
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"schema_version": 1, "device": "T4", "problems": []}))
    with pytest.raises(SpecError, match="is the table of T4"):
        tuner(path).run()


def test_models_of_an_older_table_are_brought_up_to_date(tmp_path, timed):
    path = tmp_path / "h200.json"
    tuner(path, PROBLEMS[:1]).run()
    data = json.loads(path.read_text())
    right = data["problems"][0]["models"]
    data["model"] = "old"
    data["problems"][0]["models"] = dict.fromkeys(right, 1.0)
    path.write_text(json.dumps(data))
    from gemmgen.hardware.target import device

    assert tuning.remodelled(read_table(path), device("H200")).rows[0].models == right


def test_a_grid_is_large_enough_to_be_useful():
    problems = tuning.grid(["gemm", "reduction", "conv2d"], fine=False)
    assert len(problems) >= 150
    assert len(tuning.grid(["gemm", "reduction", "conv2d"], fine=True)) > 1.5 * len(problems)


def test_the_regrets_of_a_table_are_printed(tmp_path, timed):
    path = tmp_path / "h200.json"
    tuner(path).run()
    result = CliRunner().invoke(cli, ["tune", "--evaluate", str(path)])
    assert result.exit_code == 0
    assert "gemm" in result.output
    assert "reduction" in result.output
    result = CliRunner().invoke(cli, ["tune", "--evaluate", str(path), "--json", "--kind", "reduction"])
    assert [entry["problem"] for entry in json.loads(result.stdout)] == ["1,65536,1"]


def test_a_tuned_problem_is_explained_by_its_measurement(tmp_path, timed, monkeypatch):
    path = tmp_path / "h200.json"
    table, _ = tuner(path, PROBLEMS[:1]).run()
    monkeypatch.setattr("gemmgen.dispatch.table.table_paths", lambda name: [path])
    load_table.cache_clear()
    result = CliRunner().invoke(cli, ["explain", "--problem", "gemm:512,512,512", "--json"])
    load_table.cache_clear()
    chosen = json.loads(result.stdout)["chosen"]
    assert chosen["estimate"] == "measured"
    assert chosen["seconds"] == pytest.approx(min(table.rows[0].times.values()) * 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "sort"], "no such kind"),
        (["--problems", "/nowhere/file"], "cannot be read"),
        (["--problems", "/"], "cannot be read"),
        (["--evaluate", "/nowhere/file"], "cannot be read"),
        (["--evaluate", "/"], "cannot be read"),
        (["--minutes", "nan"], ""),
        (["--grid", "huge"], "huge"),
    ],
)
def test_mistakes_end_in_one_message(arguments, message):
    if arguments == ["--minutes", "nan"] and gpu_available():
        pytest.skip("would time")
    result = CliRunner().invoke(cli, ["tune", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema_version": 1}',
        '{"schema_version": 1, "device": "H200", "problems": [{}]}',
        '{"schema_version": 1, "device": "Z80", "problems": []}',
        '{"schema_version": 1, "device": "H200", "problems": [{"kind": "gemm", "problem": "1,2", "times": {}}]}',
        '{"schema_version": 1, "device": "H200", "problems": [{"kind": "gemm", "problem": "1,2,3", "times": {"x": -1}}]}',
    ],
)
def test_a_damaged_table_ends_in_one_message(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    result = CliRunner().invoke(cli, ["tune", "--evaluate", str(path)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_problems_come_from_a_file_with_comments(tmp_path):
    path = tmp_path / "problems.txt"
    path.write_text("# mine\ngemm:8,8,8  # small\n\nreduction:1,9,1\n")
    assert [request.kind for request in tuning.read_problems(path, ["gemm", "reduction"])] == ["gemm", "reduction"]
    path.write_text("# nothing\n")
    with pytest.raises(SpecError, match="lists no problem"):
        tuning.read_problems(path, ["gemm"])
    path.write_text("gemm:8,8,8\ngemm:0,8,8\n")
    with pytest.raises(SpecError, match=r"problems.txt, line 2: gemm:0,8,8 has an empty result"):
        tuning.read_problems(path, ["gemm"])
    path.write_text("gemm:8,8,8\n\ngemm:8,8,8,bf17  # no type\n")
    with pytest.raises(SpecError, match=r"problems.txt, line 3: a GEMM problem has no option 'bf17'"):
        tuning.read_problems(path, ["gemm"])


POINT_PROBLEM = "gemm:192,2560,9216,nt,bf16"


def test_points_are_timed_and_rows_hold_their_numbers(tmp_path, timed):
    path = tmp_path / "h200.json"
    table, _ = tuner(path, [POINT_PROBLEM]).run()
    (row,) = read_table(path).rows
    assert row == table.rows[0]
    assert tuning.POINT_CHOICES / 2 <= len(row.points) <= tuning.POINT_CHOICES
    assert row.points.keys() <= row.times.keys()
    assert [name for name, _ in row.fastest_points] == sorted(row.points, key=lambda name: row.times[name])
    _, again = tuner(path, [POINT_PROBLEM]).run()
    assert (again.timed, again.known) == (0, 1)


@pytest.mark.parametrize(("problem", "source"), [(POINT_PROBLEM, "measured"), ("gemm:184,2560,9216,nt,bf16", "interpolated")])
def test_a_timed_point_is_taken_for_its_problem_and_those_near(tmp_path, timed, problem, source):
    table, _ = tuner(tmp_path / "h200.json", [POINT_PROBLEM]).run()
    (row,) = table.rows
    # A point that the model does not expect to be the fastest has been, by a time that its tiles allow.
    fastest = sorted(row.points, key=lambda name: row.models[name])[1]
    least = min(row.models.values())
    rows = (replace(row, times={**row.models, fastest: 0.5 * least}),)
    choice = choose_by(replace(table, rows=rows), parse_problem(problem), device("H200"))
    assert choice.chosen.source == source
    assert choice.chosen.candidate.spec == dict(row.fastest_points)[fastest]


def test_a_row_whose_point_is_no_spec_is_refused(tmp_path, timed):
    path = tmp_path / "h200.json"
    tuner(path, [POINT_PROBLEM]).run()
    data = json.loads(path.read_text())
    name = next(iter(data["problems"][0]["points"]))
    data["problems"][0]["points"][name]["mainloop"]["stages"] = "many"
    path.write_text(json.dumps(data))
    with pytest.raises(SpecError, match="stages"):
        read_table(path)
