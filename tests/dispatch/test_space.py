"""Points of no file: the arrays agree with their plans, and the chosen ones."""

import gc
import random
from collections import Counter
from dataclasses import replace
from math import log2

import numpy as np
import pytest

from gemmgen.api import choose as choose_kernel
from gemmgen.api import plan, verify
from gemmgen.core.cache import Cache
from gemmgen.dispatch import choice_cache, selection
from gemmgen.dispatch.candidates import Candidate, candidates
from gemmgen.dispatch.matcher import numeric_class_of
from gemmgen.dispatch.model import PARAMETERS, seconds_of_many
from gemmgen.dispatch.outlook import Outlook
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose, choose_by, fitted, set_best
from gemmgen.dispatch.space import fastest_points
from gemmgen.dispatch.table import Near, Row, Table, table_for
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm import oracle, space
from gemmgen.kernels.gemm.matcher import fit
from gemmgen.kernels.gemm.plan import epilogue_accuracy
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.wgmma import space as wgmma_space
from gemmgen.kernels.gemm.wgmma.point_model import TRAITS, point_model

H200 = device("H200")
OTHER_STRATEGIES = {"gemv", "mma_sync", "naive", "tiled"}
PROBLEMS = (
    "192,2560,9216,nt,bf16",
    "40,3000,1100,nt,bf16",
    "500,3584,4096,nn,f16",
    "777,1536,640,tt,bf16",
    "64,3584,4096,nt,e4m3_e4m3_bf16",
    "3000,7168,2560,nt,s8_s8_s32",
    "33,1000,2048,nt,bf16,residual",
    "256,4096,1024,nt,bf16,bias,gelu",
    "128,1001,2048,nt,bf16",
    "1536,1536,4040,nt,bf16",
    "300,700,900,nt,bf16_bf16_f32",
    "192,2560,4096,nt,e4m3_e4m3_bf16,scales_a=1x128,scales_b=128x128",
    "64,2560,4096,nt,e4m3_e4m3_bf16,scales_a=1x128_ue8m0_mn,scales_b=1x128",
)


@pytest.mark.parametrize("text", PROBLEMS)
def test_arrays_say_of_a_point_what_its_plan_says(text):
    request = parse_problem(f"gemm:{text}")
    rng = random.Random(text)
    groups = space.points(request, H200)
    assert sum(map(len, groups)) > 250
    for points in groups:
        seconds = seconds_of_many(points.works, H200)
        for place in rng.sample(range(len(points)), min(3, len(points))):
            spec = points.spec(place, True)
            found = fitted(Candidate("a point", spec), request, H200.architecture)
            assert not isinstance(found, str), (spec, found)
            fit, planned, dimensions = found
            # Values for each column of an epilogue take the rest.
            shared_bytes = planned.shared_bytes - planned.loop.consumers * planned.loop.column_bytes
            assert planned.copied is not None or shared_bytes == points.works.shared_bytes[place], spec
            if planned.copied is None:
                assert set_best(planned, dimensions, H200)[1] == pytest.approx(seconds[place], rel=1e-9), spec
            assert space.coordinates(fit.spec) == pytest.approx(points.features[place]), spec


@pytest.mark.parametrize("text", ["2048,8192,5120,nt,bf16", "16,1096,4096,nn,bf16", "304,264,512,tt,f16"])
def test_points_of_two_products_have_tiles_of_both(text):
    """Side by side, in as much shared memory as a tile of one product that is as wide as both."""
    request = parse_problem(f"gemm:{text},swiglu")
    rng = random.Random(text)
    groups = space.points(request, H200)
    assert sum(map(len, groups)) > 10
    for points in groups:
        for place in rng.sample(range(len(points)), min(6, len(points))):
            found = fitted(Candidate("a point", points.spec(place, True)), request, H200.architecture)
            assert not isinstance(found, str), found
            planned = found[1]
            assert planned.spec.dual and 2 * planned.loop.tile_n == round(2 ** points.features[place][1])
            assert planned.shared_bytes == points.works.shared_bytes[place]


def test_two_products_are_made_by_a_point():
    choice = choose(parse_problem("gemm:2048,8192,5120,nt,bf16,swiglu"), H200)
    assert choice.chosen.candidate.label.startswith("point/") and choice.chosen.plan.spec.dual


def test_one_tile_of_two_products_starts_no_loads_early():
    groups = space.points(parse_problem("gemm:16,11008,4096,nt,bf16,swiglu"), H200)
    specs = [points.spec(place, True) for points in groups for place in range(0, len(points), 9)]
    assert specs and not any(spec.early_launch for spec in specs)
    tiles = [-(-11008 // (spec.mainloop.tile.n // 2)) for spec in specs if spec.mainloop.schedule == "ping_pong"]
    assert tiles and min(tiles) > H200.sm_count


def test_an_instance_takes_as_long_as_points_of_its_tile():
    request = parse_problem("gemm:512,5120,2560,nt,bf16,bias,gelu").on(H200)
    points = fastest_points(request, H200, selection.MAX_EARLY)
    outlook = Outlook(request, points, None, Near(), H200.architecture)
    listed = {one.label: one for one in candidates("gemm")}
    narrow, wide = (listed[f"gemm/wgmma/bf16/128x{columns}"] for columns in (144, 168))
    assert (wide.spec.mainloop.tile.n, points[0].spec.mainloop.tile.n) == (168, 160)
    assert outlook.seconds(narrow) is None and (outlook.seconds(wide) or 1.0) > points[0].seconds


@pytest.mark.parametrize(("rows", "whole", "looked_at"), [(1, True, {"gemv"}), (16, True, set()), (16, False, OTHER_STRATEGIES)])
def test_points_that_copy_nothing_outrun_other_strategies(rows, whole, looked_at):
    request = parse_problem(f"gemm:{rows},544,7056,nt,bf16").on(H200)
    outlook = Outlook(request, fastest_points(request, H200, selection.MAX_EARLY), None, Near(), H200.architecture, whole)
    strategies = {candidate.spec.mainloop.strategy for candidate in outlook.promising}
    assert strategies & OTHER_STRATEGIES == looked_at


@pytest.mark.parametrize("collecting", [True, False])
def test_collections_of_garbage_wait_for_a_choice(collecting, monkeypatch):
    seen = []
    monkeypatch.setattr(selection, "_CHOICES", {})
    monkeypatch.setattr(selection, "_chosen_before", lambda *given: seen.append(gc.isenabled()) or selection.choose_by(*given))
    (gc.enable if collecting else gc.disable)()
    try:
        choose(parse_problem("gemm:392,1552,1552,nt,bf16"), H200)
        assert (seen, gc.isenabled()) == ([False], collecting)
    finally:
        gc.enable()


def test_every_number_of_columns_is_a_point():
    groups = space.points(parse_problem("gemm:4096,4096,4096,nt,bf16"), H200)
    columns = {round(2 ** row[1]) for points in groups for row in points.features}
    assert columns == set(range(8, 257, 8))


def test_deep_products_of_few_tiles_get_thirteen_stages_and_more():
    request = parse_problem("gemm:192,2560,9216,nt,bf16")
    for points in space.points(request, H200):
        for place, row in enumerate(points.features):
            if (row[0], row[1]) == (6, 6) and not row[6:11].any() and not row[5]:
                spec = points.spec(place, True)
                if spec.mainloop.tile.k == 64:
                    assert spec.mainloop.stages == 13
                    return
    pytest.fail("64 x 64 with a depth of 64 is no point")


def test_a_choice_takes_a_better_point_and_says_so():
    choice = choose(parse_problem("gemm:192,2560,9216,nt,bf16"), H200)
    listed = choose_by(table_for(H200), choice.request, H200, points=False)
    assert choice.chosen.candidate.label.startswith("point/")
    assert choice.chosen.seconds < listed.chosen.seconds
    assert isinstance(choice.chosen.plan.spec, GemmSpec)
    assert not choice.chosen.certified


def test_choices_are_deterministic():
    request = parse_problem("gemm:192,2560,9216,nt,bf16")
    first, again = (choose_by(table_for(H200), request, H200) for _ in range(2))
    assert [option.plan.name for option in first.options] == [option.plan.name for option in again.options]


@pytest.mark.parametrize("text", PROBLEMS[::3])
def test_a_quick_choice_takes_what_a_complete_one_does(text):
    request = parse_problem(f"gemm:{text}")
    quick, complete = (choose_by(table_for(H200), request, H200, complete=complete) for complete in (False, True))
    assert quick.chosen.plan.name == complete.chosen.plan.name
    assert quick.chosen.seconds == complete.chosen.seconds
    assert {option.plan.name for option in quick.options} <= {option.plan.name for option in complete.options}


def test_a_choice_is_remembered_here_and_in_the_cache(monkeypatch):
    request = parse_problem("gemm:200,2560,9216,nt,bf16")
    first = choose(request, H200)
    assert first is choose(request, H200)
    monkeypatch.setattr(selection, "_CHOICES", {})
    monkeypatch.setattr(selection, "choose_by", None)  # as in another process, which has not made the choice
    again = choose(request, H200)
    assert again is not first
    assert again.chosen.plan.name == first.chosen.plan.name
    assert (again.chosen.seconds, again.chosen.fit.margin) == (first.chosen.seconds, first.chosen.fit.margin)


def test_another_table_device_or_code_makes_another_choice(monkeypatch):
    request = parse_problem("gemm:200,2560,9216,nt,bf16")
    table = table_for(H200)
    faster = replace(table, rows=(replace(table.rows[0], times={name: 1.0 for name in table.rows[0].times}), *table.rows[1:]))
    keys = [choice_cache.choice_key(one, request, target, None) for one, target in ((table, H200), (faster, H200), (table, device("H100")))]
    monkeypatch.setattr(choice_cache, "_sources", lambda: "other files")
    keys.append(choice_cache.choice_key(table, request, H200, None))
    assert len(set(keys)) == len(keys)


def test_a_damaged_entry_is_no_choice():
    Cache().store("ab" * 32, {choice_cache.FILE: b'[{"label": "x"}]'})
    assert choice_cache.load_choice("ab" * 32) == ()


@pytest.mark.parametrize(("faster", "taken"), [(1.03, "gemm/"), (0.97, "gemm/"), (0.9, "point/")])
def test_a_timed_instance_yields_to_clearly_better_points_only(faster, taken):
    """``faster``: the point's expected time over the one that the listed instance was measured at."""
    request = parse_problem("gemm:192,2560,9216,nt,bf16")
    modelled = choose_by(None, request, H200)
    best, point = (next(one for one in modelled.options if one.candidate.label.startswith(kind)) for kind in ("gemm/", "point/"))
    measured = {best.candidate.name: point.seconds * 1e6 / faster}
    # The row says that the model is right, so that points are expected to take the model's time.
    row = Row(request.text, "gemm", measured, measured)
    choice = choose_by(Table("NVIDIA H200", (row,), {"model": PARAMETERS.digest}), request, H200)
    assert choice.chosen.candidate.label.startswith(taken)
    assert (choice.chosen.source == "measured") == (taken == "gemm/")


def test_batch_invariant_calls_take_no_point_of_another_class():
    request = replace(parse_problem("gemm:192,2560,9216,nt,bf16"), invariant="m")
    choice = choose(request, H200)
    classes = {numeric_class_of(option.plan, option.dimensions) for option in choice.options}
    assert len(classes) == 1


def test_batch_invariant_calls_compute_functions_in_one_form():
    options = []
    for rows in (64, 700, 4096):
        request = replace(parse_problem(f"gemm:{rows},11008,4096,nt,bf16,bias,gelu"), invariant="m")
        options += choose(request, H200).options
    assert any(getattr(option.plan.spec.mainloop, "schedule", "") == "ping_pong" for option in options)
    assert {epilogue_accuracy(option.plan.spec) for option in options} == {"bfloat16"}
    assert len({numeric_class_of(option.plan, option.dimensions) for option in options}) == 1


def test_large_tiles_promote_by_several_groups_in_every_batch():
    request = parse_problem("gemm:256,4096,14336,nt,e4m3_e4m3_bf16")
    spec = next(one.spec(0, False) for one in space.points(request, H200) if one.spec(0, False).mainloop.consumers == 1)
    large = spec.mainloop.tile.model_copy(update={"m": 64, "n": 128})
    spec = spec.model_copy(update={"mainloop": spec.mainloop.model_copy(update={"tile": large})})
    assert "only group of consumers" in str(fit(spec, replace(request, invariant="m")))
    assert not isinstance(fit(spec, request), str)


@pytest.mark.parametrize(("kind", "planned", "tried"), [("bf16", 12, 12), ("e4m3_e4m3_bf16", 12, 12), ("bf16,bias,gelu", 12, 12)])
def test_a_new_problem_is_chosen_for_with_few_plans(monkeypatch, kind, planned, tried):
    """A plan takes 1 to 2 ms, a spec that is made or matched about 0.2 ms; the arrays of all points take 5 ms."""
    choose_by(table_for(H200), parse_problem(f"gemm:200,2560,9216,nt,{kind}"), H200, complete=False)  # shared by all problems of a type
    counts = Counter()

    def counted(module, name):
        inner = getattr(module, name)

        def call(*arguments, **options):
            counts[name] += 1
            return inner(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    selection._plan_or_error.cache_clear()
    counted(selection, "family")
    counted(selection, "fitted")
    counted(wgmma_space, "_spec")
    problems = [f"{rows},3584,{depth},nt,{kind}" for rows, depth in ((176, 7168), (320, 2560), (1200, 4096), (24, 8192))]
    for text in problems:
        choose_by(table_for(H200), parse_problem(f"gemm:{text}"), H200, complete=False)
    assert counts["family"] <= planned * len(problems), counts
    assert counts["fitted"] <= tried * len(problems), counts
    # One for the point that is planned, and one for each kind of points with an epilogue, whose instructions are counted.
    assert counts["_spec"] <= (7 if "," in kind else 2) * len(problems), counts


@pytest.mark.parametrize(("text", "others"), [("512,4096", 4048), ("1536,1536", 4096), ("4096,4096", 4032)])
def test_pairs_share_tiles_of_rows_off_the_sectors(text, others):
    """TMA loads rows at odd multiples of 16 bytes at half of its rate: 512 x 4096 x 4040 took 41.8 us on an H200, 32.6 by pairs of blocks,
    and x 4048 28.3."""
    off, on = (choose(parse_problem(f"gemm:{text},{depth},nt,bf16"), H200).chosen for depth in (4040, others))
    assert off.plan.loop.cluster_blocks == 2 and 1.1 < off.seconds / on.seconds < 1.5
    request = parse_problem(f"gemm:{text},4040,nt,bf16")
    alone = fitted(Candidate("alone", on.candidate.spec), request, H200.architecture)
    assert not isinstance(alone, str) and set_best(alone[1], alone[2], H200)[1] > 1.3 * on.seconds


def test_no_points_without_warpgroups():
    assert space.points(parse_problem("gemm:192,2560,9216,nt,bf16"), device("A100")) == []
    assert space.points(parse_problem("gemm:192,2560,9216,nt"), H200) == []
    assert space.points(parse_problem("grouped:192,2560,9216,nt,bf16,groups=4,gathered"), H200) == []


@pytest.mark.parametrize("text", ["2048,5120,5120,nt,bf16,groups=8", "1024,3072,7168,nt,e4m3_e4m3_bf16,scale_row,scale_column,groups=8"])
def test_points_of_groups_take_as_long_as_their_plans(text):
    """Blocks draw whole tiles: 1024 x 3072 x 7168 by 22 tiles of 144 columns fills 132 SMs twice, 24 of 128 fill them three times."""
    request = parse_problem(f"grouped:{text}").on(H200)
    fastest = fastest_points(request, H200, selection.MAX_EARLY)
    assert fastest and all(point.spec.mainloop.tile.n % 16 == 0 for point in fastest)
    for point in fastest[:6]:
        found = fitted(Candidate("a point", point.spec), request, H200.architecture)
        assert not isinstance(found, str) and found[1].grid.dynamic
        assert set_best(found[1], found[2], H200)[1] == pytest.approx(point.seconds, rel=1e-9)
    assert choose(request, H200).chosen.candidate.is_point


@pytest.mark.parametrize(
    "text", ["192,2560,9216,nt,bf16", "96,2048,4096,nt,e4m3_e4m3_bf16", "96,2048,4096,nt,e4m3_e4m3_bf16,scales_a=1x128,scales_b=128x128"]
)
def test_points_verify_on_the_emulator(text):
    groups = space.points(parse_problem(f"gemm:{text}"), H200)
    rng = random.Random(text)
    points = rng.choice(groups)
    spec = points.spec(rng.randrange(len(points)), True)
    cases = rng.sample(list(oracle.cases(plan(spec))), 2)
    assert verify(spec, backend="emulator", cases=cases).passed, spec


def test_a_chosen_point_is_a_spec_like_any_other():
    chosen = choose_kernel("gemm:192,2560,9216,nt,bf16", "H200")
    assert plan(chosen.plan.spec.model_dump(mode="json")).name == chosen.plan.name
    assert np.isfinite(chosen.choice.chosen.seconds)


def test_grids_of_listed_instances_have_the_blocks_of_the_device():
    request = parse_problem("gemm:8192,8192,8192,nt,bf16")
    spec = next(one.spec for one in candidates("gemm") if one.label == "gemm/wgmma/bf16/128x256")
    for name, blocks in (("H200", 132), ("H100 PCIe", 114), ("H20", 78)):
        target = device(name)
        found = fitted(Candidate("listed", spec), request, target.architecture, target)
        assert not isinstance(found, str)
        assert found[1].sequence.launches[-1].grid_of(found[2])[0] == blocks


def test_the_fitted_process_corrects_the_model():
    model = point_model()
    for process in (model.timed, model.later):
        assert process.places.shape == (len(process.weights), len(TRAITS))
    for points in space.points(parse_problem("gemm:192,2560,9216,nt,bf16"), H200):
        assert np.abs(points.errors(points.traits(np.arange(len(points))))).max() < 1.0


def test_errors_far_from_all_timed_points_are_the_linear_part():
    model = point_model()
    far = model.centres + 100.0
    assert model.errors(far[None])[0] == pytest.approx(model.level + (far - model.centres) @ model.slopes, rel=1e-4)
    assert model.corrections(far[None])[0] == pytest.approx(model.later_level)


def test_grids_of_large_clusters_leave_multiprocessors_empty():
    request = parse_problem("gemm:4096,4096,4096,nt,bf16")
    for points in space.points(request, H200):
        for place, row in enumerate(points.features):
            if row[7] + row[8] == 2 and not row[10]:
                blocks = points.spec(place, False).mainloop.persistent_blocks
                assert blocks in (0, 120)  # an H200 holds 30 clusters of 4 blocks at a time


def test_large_factors_that_are_read_once_leave_the_l2_first():
    def hints(text):
        found = set()
        for points in space.points(parse_problem(f"gemm:{text}"), H200):
            for place in range(0, len(points), 7):
                tile, spec = 2 ** points.features[place][:2], points.spec(place, False)
                found.add(
                    (tile[0] if spec.order == "column_major" else tile[1], spec.order, spec.cache.l2_policy_a, spec.cache.l2_policy_b)
                )
        return found

    few = hints("64,8192,8192,nt,bf16")
    assert {hint[2:] for hint in few if hint[1] == "row_major"} == {("normal", "evict_first")}  # all tiles have 64 rows or more
    assert all(hint[2:] == ("normal", "normal") for hint in hints("64,2048,2048,nt,bf16"))  # small weights may be there for the next call
    assert all(hint[2:] == ("normal", "normal") for hint in hints("4096,8192,8192,nt,bf16"))


@pytest.mark.parametrize(
    ("text", "tile", "order", "expected"),
    [
        # 9 rows of tiles share each of 160 columns; 10 columns of tiles share each of 200 rows of B; 39 blocks are too many to follow.
        ("576,2048,5568,tt,bf16", (64, 160), "row_major", ("minor", 16)),
        ("2560,640,5248,nn,bf16", (64, 200), "column_major", ("major", 16)),
        ("192,1536,3072,nt,bf16", (64, 40), "row_major", ("minor", 8)),
        ("4096,4096,4096,nt,bf16", (128, 256), "row_major", ("minor", 8)),
    ],
)
def test_neighbouring_blocks_share_the_larger_tile(text, tile, order, expected):
    specs = _plain_specs(parse_problem(f"gemm:{text}"), tile, order)
    assert specs and {(spec.rasterization.along, spec.rasterization.group) for spec in specs} == {expected}


@pytest.mark.parametrize(
    ("text", "tile", "order", "starts"),
    [
        ("512,6144,3072,nn,bf16", (128, 192), "row_major", True),
        ("128,5632,5632,nt,bf16", (64, 96), "row_major", False),
        ("160,12288,5120,nt,bf16", (192, 80), "column_major", False),
    ],
)
def test_dense_grids_start_early_however_long_they_take(text, tile, order, starts):
    specs = _plain_specs(parse_problem(f"gemm:{text}"), tile, order)
    assert specs and {spec.early_launch for spec in specs} == {starts}


def _plain_specs(request, tile, order):
    """Specs of points with a tile, one block on an SM, without clusters."""
    found = []
    for points in space.points(request, H200):
        for place, row in enumerate(points.features):
            if (row[0], row[1]) == (log2(tile[0]), log2(tile[1])) and not row[7:11].any():
                spec = points.spec(place, False)
                if spec.order == order:
                    found.append(spec)
    return found


@pytest.mark.parametrize(("rows", "starts"), [(256, False), (384, True)])
def test_smaller_tiles_start_early_where_weights_are_reused(rows: int, starts: bool) -> None:
    """Single waves of which a few blocks read each tile of the weights: 384 x 5120 x 5120 took 2.8% less on an H200, 256 x 3072 x 3072
    up to 5.8% more."""
    found = set()
    for points in space.points(parse_problem(f"gemm:{rows},{1966080 // rows},5120,nt,bf16"), H200):
        for place, row in enumerate(points.features):
            if (row[0], row[1]) == (7, log2(120)) and not row[7:11].any():
                spec = points.spec(place, False)
                tile = spec.mainloop.tile
                if spec.order == "row_major" and (tile.m, tile.n) == (128, 120):
                    found.add(spec.early_launch)
    assert found == {starts}


def test_short_products_of_few_rows_divide_k():
    best = fastest_points(parse_problem("gemm:16,2048,3072,nt,bf16"), H200, 12e-6)[0]
    assert best.spec.decomposition.scheme == "split_k_cluster"
