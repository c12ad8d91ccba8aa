"""Every family has the modules that stations ask it for, with the functions and parameters of their protocols."""

import inspect
from typing import Any

import pytest

from gemmgen.codegen.summary import Summary
from gemmgen.dispatch.matcher import Matcher
from gemmgen.kernels import FAMILIES, family, part
from gemmgen.ops.operators import Operator
from gemmgen.perf.cost_model import CostModel
from gemmgen.present.explanation import Explanation, Illustration
from gemmgen.verification.oracle import Oracle


def members(protocol: Any) -> list[str]:
    """Members of a protocol."""
    return sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))


PROTOCOLS = {
    "oracle": Oracle,
    "cost_model": CostModel,
    "matcher": Matcher,
    "operator": Operator,
    "explain": Explanation,
    "pictures": Illustration,
}
DEMANDS = [
    (kind, module, protocol, member)
    for kind in FAMILIES
    for module, protocol in [*PROTOCOLS.items(), ("explain", Summary)]
    for member in members(protocol)
]


@pytest.mark.parametrize(("kind", "module", "protocol", "member"), DEMANDS)
def test_a_family_has_what_a_station_asks_for(kind: str, module: str, protocol: Any, member: str) -> None:
    given = getattr(part(kind, module), member)
    if member == "NAMES":
        assert all(name.isidentifier() for name in given)
        return
    wanted = list(inspect.signature(getattr(protocol, member)).parameters)[1:]
    assert list(inspect.signature(given).parameters) == wanted


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_called_by_its_kind(kind: str) -> None:
    assert family(kind).kind == kind
