"""The model of time, held against 25 shapes of SGEMM that were measured on an H200."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from sampling import sampled

from gemmgen.api import load_spec
from gemmgen.core.resources import resource_directory
from gemmgen.dispatch.candidates import candidates
from gemmgen.dispatch.evaluation import mean, regrets, row_regret
from gemmgen.dispatch.matcher import matcher_of
from gemmgen.dispatch.model import PARAMETERS, memory_bandwidth, model_seconds, operation_rate
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import base_name, choose_by, fitted
from gemmgen.dispatch.table import Row, Table, load_table, read_table
from gemmgen.hardware.target import DEVICES, architecture, device
from gemmgen.kernels import GPU_KINDS, family
from gemmgen.perf.cost_model import cost_model_of

H200 = device("H200")


@cache
def measured():
    """The table, made from the specs that were timed."""
    data = json.loads((Path(__file__).parent / "h200_sgemm.json").read_text())
    found = family("gemm")
    plans = []
    for indices in data["specs"]:
        spec = {}
        for field, index in zip(data["fields"], indices, strict=True):
            value = field["values"][index]
            *path, last = field["name"].split(".")
            here = spec
            if value is not None:
                for part in path:
                    here = here.setdefault(part, {})
                here[last] = value
        plans.append(found.plan(load_spec(spec), architecture("sm_90")))
    rows = []
    for problem in data["problems"]:
        text = parse_problem(f"gemm:{','.join(map(str, problem['size']))}").text
        models = {name: _model_us(plans[int(name)], problem["size"]) for name in problem["times"]}
        rows.append(Row(text, "gemm", problem["times"], models, problem["peer"]))
    return Table("H200", tuple(rows), {"model": PARAMETERS.digest})


def _model_us(plan, size):
    found = family("gemm")
    return model_seconds(cost_model_of("gemm").work(plan, found.problem(plan, size)), H200) * 1e6


def no_model(row, instance):
    return None


def regret(row, seconds):
    """Excess of the time of the instance with the least of ``seconds`` over the best; of several, the slowest."""
    least = min(seconds.values())
    return max(row.times[name] for name in seconds if seconds[name] == least) / min(row.times.values()) - 1


def test_models_pick_is_within_10_percent_of_best_on_average():
    regrets = [regret(row, row.models) for row in measured().rows]
    assert len(regrets) == 25
    assert mean(regrets) < 0.10


def test_interpolation_is_within_10_percent_on_average():
    regrets = []
    for row in measured().rows:
        near = measured().near(row.request, without=row)
        regrets.append(regret(row, {name: measured().estimate(near, name, row.models[name] * 1e-6, no_model)[0] for name in row.times}))
    assert mean(regrets) < 0.10


def test_the_model_says_how_long_good_instances_take():
    """Of the products in the tuned table, whose instances are those of the library."""
    errors = []
    for row in load_table("H200").rows:
        best = min(row.times, key=lambda name: row.times[name])
        if row.kind == "gemm" and best in row.models:
            errors.append(abs(math.log(row.models[best] / row.times[best])))
    assert len(errors) > 800
    assert mean(errors) < 0.15


def test_a_problem_in_the_table_gets_the_best_that_was_measured():
    table = measured()
    row = table.rows[5]
    near = table.near(row.request)
    estimates = {name: table.estimate(near, name, 1.0, no_model) for name in row.times}
    assert {source for _, source in estimates.values()} == {"measured"}
    assert min(estimates, key=lambda name: estimates[name]) == min(row.times, key=lambda name: row.times[name])


def test_rows_that_lie_closer_count_more():
    far, close = (
        replace(measured().rows[0], problem=text, times={"x": us, "y": 10.0}, models={"x": 10.0, "y": 10.0})
        for text, us in (("8192,8192,8192", 40.0), ("1024,1024,1000", 5.0))
    )
    table = Table("H200", (far, close), {"model": PARAMETERS.digest})
    near = table.near(parse_problem("gemm:1024,1024,1024"))
    assert table.estimate(near, "x", 1e-5, no_model)[0] < table.estimate(near, "y", 1e-5, no_model)[0]


@pytest.mark.parametrize("kind", GPU_KINDS)
def test_work_holds_what_the_problem_costs_at_least(kind):
    for text in matcher_of(kind).problem_grid(fine=False)[::9]:
        request = parse_problem(f"{kind}:{text}")
        for candidate in candidates(kind)[::7]:
            option = fitted(candidate, request, architecture("sm_90"))
            if isinstance(option, str):
                continue
            _, plan, problem = option
            works, cost = cost_model_of(kind).work(plan, problem), cost_model_of(kind).cost(plan, problem)
            assert sum(work.blocks * work.steps * work.operations for work in works) >= 0.99 * cost.operations
            assert sum(work.memory_bytes for work in works) >= 0.5 * cost.bytes
            assert model_seconds(works, H200) > 0


@pytest.mark.parametrize("name", DEVICES)
def test_no_instance_beats_the_roofs_of_a_device(name):
    chip, found = device(name), cost_model_of("gemm")
    request = parse_problem("gemm:4096,4096,4096")
    options = [fitted(candidate, request, chip.architecture) for candidate in candidates("gemm")]
    times = {
        plan: model_seconds(found.work(plan, problem), chip)
        for _, plan, problem in (option for option in options if not isinstance(option, str))
    }
    multiply_adds = [seconds for plan, seconds in times.items() if plan.spec.mainloop.strategy not in ("wgmma", "mma_sync", "tcgen05")]
    cost = 2 * 4096**3
    assert min(multiply_adds) > cost / operation_rate(chip, "fp32").value
    assert min(times.values()) > 3 * 4 * 4096**2 / memory_bandwidth(chip)


@pytest.mark.parametrize("kind", ["gemm", "reduction", "conv2d"])
def test_choices_without_the_table_are_within_10_percent(kind):
    shipped = read_table(resource_directory("generated") / "tuned" / "h200.json")
    rows = [row for row in shipped.rows if row.kind == kind]
    rows = sampled(rows, 1 + len(rows) // 30, lambda row: row.problem, lambda row: None)
    found = regrets(replace(shipped, rows=tuple(rows)), H200)
    assert len(found) > 20
    assert mean([one.model for one in found]) < 0.10


def test_evaluation_does_not_settle_ties_of_model():
    problem = "16,128,28,28,512,1,1,1,0"
    request = parse_problem(f"conv2d:{problem}")
    choice = choose_by(None, request, H200)
    names = [base_name(option.candidate.spec, H200.architecture) for option in choice.options]
    chosen = base_name(choice.chosen.candidate.spec, H200.architecture)
    for fastest in names:
        times = {name: 1.0 if name == fastest else 2.0 for name in sorted(names, key=lambda name: name != fastest)}
        row = Row(problem, "conv2d", times)
        found = row_regret(Table("H200", (row,)), row, H200)
        assert found.model_pick == chosen
        assert found.model == (0 if fastest == chosen else 1)
