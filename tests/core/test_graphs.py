"""Algorithms on directed graphs, held against definitions by paths."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gemmgen.core.graphs import cycles, dominators, live_at_entry, natural_loop, reached, reversed_edges

MAX_NODES = 7
GRAPHS = st.integers(1, MAX_NODES).flatmap(
    lambda count: st.lists(st.lists(st.integers(0, count - 1), max_size=3), min_size=count, max_size=count)
)


def leads(edges: list[list[int]], start: int, end: int, without: int = -1) -> bool:
    """True if a path of at least one edge leads from one node to another and avoids a third."""
    ends = {start}
    for _ in range(len(edges)):
        ends |= {after for node in ends for after in edges[node] if after != without}
    return any(end in edges[node] for node in ends)


@given(GRAPHS)
def test_reached_nodes_are_those_that_paths_lead_to(edges):
    nodes = list(reached([0], edges.__getitem__))
    assert sorted(nodes) == [node for node in range(len(edges)) if node == 0 or leads(edges, 0, node)]


@given(GRAPHS)
def test_cycles_hold_nodes_that_lead_to_each_other(edges):
    components = cycles(range(len(edges)), edges.__getitem__)
    together = {frozenset(pair) for component in components for pair in itertools.product(component, repeat=2)}
    pairs = itertools.product(range(len(edges)), repeat=2)
    assert together == {frozenset((a, b)) for a, b in pairs if leads(edges, a, b) and leads(edges, b, a)}


@given(GRAPHS)
def test_dominators_lie_on_every_path(edges):
    sets = dominators(0, len(edges), dict(enumerate(reversed_edges(edges))), range(len(edges)))
    for node in reached([0], edges.__getitem__):
        assert sets[node] == {node, 0} | {other for other in range(1, len(edges)) if node and not leads(edges, 0, node, without=other)}


@given(GRAPHS)
def test_live_sets_hold_what_a_path_reads(edges):
    reads = [{node % 3} for node in range(len(edges))]
    overwrites = [{(node + 1) % 3} for node in range(len(edges))]
    for node, names in enumerate(live_at_entry(edges, reads, overwrites)):
        for name in range(3):
            passing = [[] if name in overwrites[at] else after for at, after in enumerate(edges)]
            assert (name in names) == any(name in reads[at] for at in reached([node], passing.__getitem__))


def test_a_natural_loop_ends_at_its_header():
    edges = [[1], [2], [1, 3], []]
    assert natural_loop(1, 2, reversed_edges(edges).__getitem__) == {1, 2}
