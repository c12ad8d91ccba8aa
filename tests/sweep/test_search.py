"""Guided search: samplers find a known best, each point is evaluated once, and nothing about a point is told wrongly."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.sweep.objectives import Objective, combined, parse_objective
from gemmgen.sweep.proposals import SAMPLERS, Proposals
from gemmgen.sweep.records import PointResult, Status, SweepError
from gemmgen.sweep.search import Request, SearchResult, Trial, guided, ranked
from gemmgen.sweep.search_space import SearchAxis, SearchSpace
from sweep.samples import sample

AXES: dict[str, list[Any]] = {
    "tile": [8, 16, 32, 64, 128, 256],
    "stages": [1, 2, 3, 4],
    "copies": ["registers", "cp_async", "tma"],
    "swizzle": [False, True],
    "depth": [4, 8, 16, 32],
}
BEST = {"tile": 64, "stages": 3, "copies": "cp_async", "swizzle": True, "depth": 16}
SPACE = SearchSpace.of(AXES)
US = Objective("median_us")


def time_of(axes: dict[str, Any]) -> float:
    """A valley with its bottom at ``BEST``."""
    return 10.0 + sum(3.0 * abs(values.index(axes[name]) - values.index(BEST[name])) for name, values in AXES.items())


class Engine:
    """Evaluates points by formula, and remembers its requests."""

    def __init__(self, rejects: Any = lambda axes: False, stop_after: int | None = None) -> None:
        self.asked: list[Request] = []
        self.results: list[PointResult] = []
        self.rejects = rejects
        self.stop_after = stop_after

    def __call__(self, requests: Sequence[Request]) -> list[PointResult | None]:
        answers: list[PointResult | None] = []
        for request in requests:
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                answers.append(None)
                continue
            self.asked.append(request)
            answers.append(self.result(request))
            self.results.append(answers[-1])  # type: ignore[arg-type]
        return answers

    def result(self, request: Request) -> PointResult:
        number = len(self.asked)
        problem = dict(zip("mnk", request.sizes, strict=False))
        if self.rejects(request.axes):
            return sample(number, Status.CONSTRAINTS, axes=request.axes, problem=problem, reason="too large")
        time = time_of(request.axes) * (sum(request.sizes) or 1)
        registers = 200.0 - 40 * AXES["stages"].index(request.axes["stages"])
        metrics = {"median_us": time, "operations_per_second": 1e6 / time, "registers": registers, "spill_bytes": 0.0}
        return sample(number, axes=request.axes, problem=problem, metrics=metrics, instance=str(sorted(request.axes.items())))


def settings_of(result: SearchResult) -> list[dict[str, Any]]:
    return [trial.axes for trial in result.trials]


@pytest.mark.parametrize("seed", range(3))
def test_tpe_finds_the_best_with_a_fifth_of_the_points(seed):
    assert SPACE.size == 576
    found = guided(SPACE, Engine(), trials=115, seed=seed)
    assert found.ranking[0].values[0] <= 13.0  # at most one step from the bottom


def test_tpe_is_better_than_chance():
    def mean(sampler: Any) -> float:
        return sum(guided(SPACE, Engine(), sampler=sampler, trials=60, seed=seed).ranking[0].values[0] for seed in range(6)) / 6

    assert mean("tpe") < mean("random")


def test_nsga2_finds_points_that_trade_time_against_registers():
    goals = (US, Objective("registers"))
    front = guided(SPACE, Engine(), sampler="nsga2", trials=200, objectives=goals).front
    registers = [trial.values[1] for trial in front]
    assert len(front) >= 2 and min(registers) == 80.0
    assert [trial.values[0] for trial in front] == sorted(trial.values[0] for trial in front)
    assert registers == sorted(registers, reverse=True)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("parallel", [1, 7])
def test_each_point_is_evaluated_once(sampler, parallel):
    engine = Engine()
    found = guided(SPACE, engine, sampler=sampler, trials=90, parallel=parallel)
    asked = [tuple(request.axes.values()) for request in engine.asked]
    assert len(asked) == len(set(asked)) == len(found.trials) == 90


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_exhausted(sampler):
    engine = Engine()
    space = SearchSpace.of({**AXES, "tile": [32, 64], "depth": [16], "copies": ["cp_async"]})
    found = guided(space, engine, sampler=sampler, trials=1000, parallel=5)
    assert found.exhausted and len(engine.asked) == space.size == 16
    assert found.ranking[0].axes == BEST


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_same_seed_makes_the_same_search(sampler):
    runs = [settings_of(guided(SPACE, Engine(), sampler=sampler, trials=40, seed=5, parallel=3)) for _ in range(2)]
    other = settings_of(guided(SPACE, Engine(), sampler=sampler, trials=40, seed=6, parallel=3))
    assert runs[0] == runs[1] != other


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rejected_points_are_infeasible_and_say_why(sampler):
    found = guided(SPACE, Engine(rejects=lambda axes: axes["tile"] > 32), sampler=sampler, trials=80)
    rejected = [trial for trial in found.trials if trial.axes["tile"] > 32]
    assert rejected and all((trial.state, trial.note, trial.values) == ("infeasible", "constraints: too large", ()) for trial in rejected)
    assert all(trial.axes["tile"] <= 32 for trial in found.ranking)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_sampler_learns_what_is_rejected(sampler):
    def tried(number_rejected: Any) -> int:
        found = guided(SPACE, Engine(rejects=number_rejected), sampler=sampler, trials=150, seed=1)
        return sum(trial.state == "infeasible" for trial in found.trials[75:])

    rejects = lambda axes: axes["copies"] != "tma"  # noqa: E731  two thirds of the space
    assert tried(rejects) < 35  # by chance 50 of 75


def test_a_space_where_nothing_works_ends_without_a_best():
    found = guided(SPACE, Engine(rejects=lambda axes: True), trials=30)
    assert found.ranking == () == found.front and found.count("infeasible") == 30


PROBLEMS = [(1, 1, 1), (2, 2, 2), (4, 4, 4)]


def test_point_that_is_slow_on_problem_is_not_run_on_next():
    engine = Engine()
    found = guided(SearchSpace.of(AXES, PROBLEMS), engine, trials=60, slow=1.3)
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert pruned and len(engine.asked) == sum(len(trial.results) for trial in found.trials) < 3 * 60
    for trial in pruned:
        assert len(trial.results) == 1 and trial.results[0].status is Status.CORRECT and trial.values == ()
        assert trial.note.endswith("times worse than the best on 1,1,1: not run on 2 more")
    best = min(trial.results[0].metrics["median_us"] for trial in found.trials)
    assert all(trial.results[0].metrics["median_us"] > 1.3 * best for trial in pruned)


def test_a_point_with_a_low_rate_is_not_run_on_the_next_problem():
    goals = [Objective("operations_per_second", "maximise")]
    found = guided(SearchSpace.of(AXES, PROBLEMS), Engine(), trials=60, slow=1.3, objectives=goals)
    best = max(trial.results[0].metrics["operations_per_second"] for trial in found.trials)
    pruned = [trial.results[0].metrics["operations_per_second"] for trial in found.trials if trial.state == "pruned"]
    assert pruned and max(pruned) < best / 1.3 and found.count("complete") > 3


def test_no_point_is_pruned_for_a_metric_without_ratios():
    found = guided(SearchSpace.of(AXES, PROBLEMS), Engine(), trials=30, slow=1.0, objectives=[Objective("registers")])
    assert found.count("complete") == 30


def test_no_point_is_pruned_with_two_objectives():
    goals = (US, Objective("registers"))
    found = guided(SearchSpace.of(AXES, PROBLEMS), Engine(), sampler="nsga2", trials=30, slow=1.0, objectives=goals)
    assert found.count("complete") == 30


def test_several_problems_count_by_their_geometric_mean():
    found = guided(SearchSpace.of(AXES, PROBLEMS), Engine(), trials=20, slow=100)
    for trial in found.trials:
        times = [result.metrics["median_us"] for result in trial.results]
        assert trial.values[0] == pytest.approx((times[0] * times[1] * times[2]) ** (1 / 3))


def test_a_rate_is_made_large():
    found = guided(SPACE, Engine(), trials=115, objectives=[parse_objective("operations_per_second")])
    assert found.ranking[0].values[0] == max(trial.values[0] for trial in found.trials) >= 1e6 / 13


def test_what_is_known_is_not_asked_for_again():
    first = Engine()
    guided(SPACE, first, trials=40)
    second = Engine()
    found = guided(SPACE, second, trials=60, known=first.results)
    assert len(second.asked) == 20 and len(found.trials) == 60
    assert [trial.replayed for trial in found.trials] == [True] * 40 + [False] * 20
    known = {tuple(request.axes.values()) for request in first.asked}
    assert not known & {tuple(request.axes.values()) for request in second.asked}


def test_a_sampler_learns_from_what_is_known():
    def mean_of_new(known: list[PointResult]) -> float:
        new = [trial for trial in guided(SPACE, Engine(), trials=len(known) + 15, known=known).trials if not trial.replayed]
        return sum(trial.values[0] for trial in new) / len(new)

    engine = Engine()
    engine([Request(SPACE.fields(choice), ()) for choice in list(SPACE.points())[::5]])
    assert mean_of_new(engine.results) < 0.75 * mean_of_new([])


@pytest.mark.parametrize("objectives", [1, 2])
def test_the_sampler_is_told_which_points_are_infeasible(objectives):
    proposals = Proposals(SPACE, "tpe" if objectives == 1 else "nsga2", 0, objectives)
    good, bad = proposals.propose(2)
    proposals.tell(good, "complete", [1.0] * objectives)
    proposals.tell(bad, "infeasible", [])
    told = [getattr(trial, "constraints", None) or trial.system_attrs.get("constraints") for trial in proposals._study.trials]
    violations = [list(one.values() if isinstance(one, dict) else one) for one in told]
    assert violations == [[0.0], [1.0]]


def test_a_search_whose_trials_are_all_known_asks_for_nothing():
    first, second = Engine(), Engine()
    best = guided(SPACE, first, trials=40).ranking[0]
    found = guided(SPACE, second, trials=40, known=first.results)
    assert second.asked == [] and found.ranking[0].axes == best.axes


def test_a_point_known_on_some_problems_is_finished_first():
    space = SearchSpace.of(AXES, PROBLEMS)
    engine = Engine()
    known = [engine.result(Request(BEST, PROBLEMS[0]))]
    found = guided(space, engine, trials=5, known=known)
    assert [request.axes for request in engine.asked[:2]] == [BEST, BEST]
    assert [request.sizes for request in engine.asked[:2]] == PROBLEMS[1:]
    assert found.trials[0].axes == BEST and found.trials[0].state == "complete"


def test_results_from_outside_the_space_are_left_aside():
    strangers = [sample(1, axes={"tile": 7}), sample(2, axes={**BEST, "more": 1}), sample(3, axes={**BEST, "tile": "64"})]
    strangers += [sample(4, axes=BEST, problem={"m": 9, "n": 9, "k": 9})]
    assert not any(trial.replayed for trial in guided(SPACE, Engine(), trials=3, known=strangers).trials)


def test_engine_that_was_stopped_ends_search_with_what_there_is():
    found = guided(SPACE, Engine(stop_after=10), trials=100, parallel=4)
    assert found.interrupted and len(found.trials) == 10 and found.ranking


def test_ctrl_c_ends_the_search_with_what_there_is():
    engine = Engine()

    def evaluate(requests: Sequence[Request]) -> list[PointResult | None]:
        if len(engine.asked) >= 12:
            raise KeyboardInterrupt
        return engine(requests)

    found = guided(SPACE, evaluate, trials=100)
    assert found.interrupted and len(found.trials) == 12


def test_an_objective_that_no_result_has_says_which_there_are():
    with pytest.raises(SweepError, match=r"objective worst_ratio: .* its metrics are median_us, operations_per_second, registers"):
        guided(SPACE, Engine(), objectives=[Objective("worst_ratio")])


def test_a_point_whose_objective_is_not_a_number_is_infeasible():
    def evaluate(requests: Sequence[Request]) -> list[PointResult | None]:
        return [sample(0, axes=request.axes, metrics={"median_us": float("nan")}) for request in requests]

    (trial,) = guided(SPACE, evaluate, trials=1).trials
    assert (trial.state, trial.note) == ("infeasible", "median_us is not a number")


@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": 0},
        {"parallel": 0},
        {"slow": 0.5},
        {"slow": float("nan")},
        {"objectives": []},
        {"objectives": [US, US]},
        {"sampler": "grid"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SweepError):
        guided(SPACE, Engine(), **wrong)


def test_without_optuna_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(EnvironmentMissing, match="pip install 'optuna"):
        guided(SPACE, Engine())


def test_importing_the_search_does_not_import_optuna():
    import subprocess

    code = "import sys, gemmgen.sweep.search, gemmgen.sweep.tuning; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_sweep_without_search_is_ranked_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    engine = Engine()
    engine([Request(SPACE.fields(choice), ()) for choice in list(SPACE.points())[:50]])
    found = ranked(SPACE, engine.results, [US])
    times = [trial.values[0] for trial in found.ranking]
    assert len(times) == 50 and times == sorted(times) and not found.exhausted


def test_axes_that_set_several_fields_are_one_axis():
    pairs = SearchAxis("warp", ({"warp.m": 32, "warp.n": 64}, {"warp.m": 64, "warp.n": 32}))
    space = SearchSpace((pairs, SearchAxis("stages", ({"stages": 1}, {"stages": 2}))))
    assert space.size == 4
    assert space.fields((1, 0)) == {"warp.m": 64, "warp.n": 32, "stages": 1}
    assert space.choice_of({"warp.m": 64, "warp.n": 32, "stages": 2}) == (1, 1)
    assert space.choice_of({"warp.m": 64, "warp.n": 64, "stages": 2}) is None


def test_growing_numbers_are_an_ordered_axis():
    kinds = {"grows": [8, 16, 64], "falls": [3, 2], "names": ["a", "b"], "flags": [False, True], "mixed": [1, "a"]}
    ordered = {axis.name: axis.ordered for axis in SearchSpace.of(kinds).axes}
    assert ordered == {"grows": True, "falls": False, "names": False, "flags": False, "mixed": False}


def test_values_are_found_again_after_they_were_kept_as_json():
    space = SearchSpace.of({"epilogue": [[], [{"op": "relu"}]], "scale": [1.5, 2]})
    assert space.choice_of({"scale": 2, "epilogue": [{"op": "relu"}]}) == (1, 1)


def test_true_and_one_are_different_values():
    assert SearchSpace.of({"a": [True, 1, "1"]}).choice_of({"a": 1}) == (1,)


def test_a_space_of_one_point_is_searched():
    space = SearchSpace.of({name: [value] for name, value in BEST.items()})
    found = guided(space, Engine(), trials=5)
    assert found.exhausted and found.trials[0].axes == BEST


def test_a_huge_space_is_not_listed():
    space = SearchSpace.of({f"axis{number}": list(range(1000)) for number in range(12)})
    proposals = Proposals(space, "random", 0, 1)
    assert len(set(proposals.propose(20))) == 20


@pytest.mark.parametrize(
    ("text", "metric", "direction"),
    [
        ("median_us", "median_us", "minimise"),
        ("blocks_per_sm", "blocks_per_sm", "maximise"),
        ("max:registers", "registers", "maximise"),
        ("min:bytes_per_second", "bytes_per_second", "minimise"),
        ("bytes_per_second", "bytes_per_second", "maximise"),
    ],
)
def test_an_objective_in_words(text, metric, direction):
    assert parse_objective(text) == Objective(metric, direction)


@pytest.mark.parametrize("text", ["", ":", "min:", "least:registers", "a b", "min:max:a", "__import__('os')"])
def test_an_objective_that_is_none_is_refused(text):
    with pytest.raises(SweepError, match="--objective"):
        parse_objective(text)


def test_counts_are_averaged_and_may_be_zero():
    assert combined(Objective("spill_bytes"), [0.0, 8.0]) == 4.0


def test_the_front_leaves_out_what_another_beats():
    def trial(number: int, *values: float) -> Trial:
        return Trial(number, {}, (), "complete", values)

    goals = (US, Objective("blocks_per_sm", "maximise"))
    found = SearchResult(goals, (trial(0, 5, 4), trial(1, 3, 2), trial(2, 4, 1), trial(3, 3, 2), trial(4, 9, 8)))
    assert [one.number for one in found.front] == [1, 3, 0, 4]
