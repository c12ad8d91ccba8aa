from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gemmgen.core.errors import SpecError
from gemmgen.library.listing import Listing, read_listing, takes

Relist = Callable[[str, str], Listing]


def test_patterns_give_instances_in_order_of_their_names(listing: Listing) -> None:
    assert [found.label for found in listing.instances] == sorted(
        (found.label for found in listing.instances), key={found.label: found.name for found in listing.instances}.__getitem__
    )
    assert {found.label: list(found.plans) for found in listing.instances} == {
        "gemm/small": ["sm_80", "sm_90"],
        "gemm/hopper": ["sm_90"],
        "reduction/rows": ["sm_80", "sm_90"],
    }
    assert listing.compiler == (13, 0)


def test_problems_are_sizes_of_group_or_typical_one(listing: Listing) -> None:
    problems = {found.label: found.problems() for found in listing.instances}
    assert [(problem["m"], problem["k"]) for problem in problems["gemm/small"]] == [(64, 64), (33, 31)]
    assert [(problem["outer"], problem["reduced"]) for problem in problems["reduction/rows"]] == [(64, 64)]


def test_sizes_that_an_instance_does_not_take_are_left_out(relist: Relist) -> None:
    listing = relist("gemm/small.yaml", "beta: zero -> beta: zero\nmultiple_of: {m: 16}")
    (small,) = (found for found in listing.instances if found.label == "gemm/small")
    assert [problem["m"] for problem in small.problems()] == [64]
    assert not takes(small.plan, {"m": 33, "n": 32, "k": 31, "lda": 31, "ldb": 32, "ldc": 32})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("gemm/* -> gemm/none", "'gemm/none' .* matches no spec"),
        ("reduction/rows -> gemm/small", r"gemm/small is listed twice, in 'products' and in 'sums'"),
        ("gemm/* -> ../*", r"specs\.0: got '\.\./\*'"),
        ("gemm/* -> a/../../*", "leaves the folder"),
        ("gemm/* -> a/**/b", "for nothing"),
        ("gemm/* -> /etc/*", "got '/etc/"),
        ("sm_90] -> sm_42]", "library.yaml: architectures: unknown architecture 'sm_42'"),
        ("[sm_80, sm_90] -> []", "architectures: got"),
        ('"13.0" -> 13.0', "compiler: got 13.0"),
        ("title -> heading", "heading: no such field"),
        ("[64, 64, 64] -> [64, -1, 64]", "got -1"),
        ("[64, 64, 64] -> [64, 1.5, 64]", "got 1.5"),
        ("groups: -> groups: 3\nmore:", "groups: got 3"),
    ],
)
def test_a_mistake_in_the_list_is_told(relist: Relist, change: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        relist("library.yaml", change)


def test_all_specs_that_cannot_be_used_are_told_at_once(relist: Relist) -> None:
    with pytest.raises(SpecError, match=r"gemm/small works on none of the architectures: sm_80: mainloop\.tile\.thread\.n"):
        relist("gemm/small.yaml", "m: 4, n: 4 -> m: 4, n: 5")
    with pytest.raises(SpecError, match=r"(?s)gemm/small works on none .*rows\.yaml: not a valid spec:.* operation: got 'guess'"):
        relist("reduction/rows.yaml", "operation: sum -> operation: guess")


def test_two_specs_of_one_kernel_are_told(root: Path) -> None:
    (root / "specs" / "gemm" / "again.yaml").write_bytes((root / "specs" / "gemm" / "small.yaml").read_bytes())
    with pytest.raises(SpecError, match="gemm/again and gemm/small have the same name"):
        read_listing(root / "specs" / "library.yaml")


@pytest.mark.parametrize("content", ["", "[]", "a: [", "3", "\x00"])
def test_a_file_that_is_no_list_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"list\.yaml"):
        read_listing(path)
