"""Directed graphs: the nodes that are reached, cycles, dominators, and sets that pass backwards along the edges."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Element = TypeVar("Element", bound=Hashable)


def reached(starts: Iterable[Node], after: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Yields the starts and all nodes that edges lead to from them, each once, depth first."""
    pending, seen = list(starts), set[Node]()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending += after(node)


def reversed_edges(successors: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each node, the nodes whose edges lead to it."""
    before: list[list[int]] = [[] for _ in successors]
    for node, following in enumerate(successors):
        for other in following:
            before[other].append(node)
    return before


def cycles(nodes: Iterable[Node], after: Callable[[Node], Iterable[Node]]) -> list[list[Node]]:
    """The strongly connected components with at least one edge inside (Tarjan 1972, without recursion)."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    components = []

    def enter(node: Node) -> tuple[Node, Iterator[Node]]:
        order[node] = low[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        return node, iter(after(node))

    for root in nodes:
        path = [enter(root)] if root not in order else []
        while path:
            node, following = path[-1]
            for other in following:
                if other not in order:
                    path.append(enter(other))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    place = stack.index(node)
                    component = stack[place:]
                    del stack[place:]
                    on_stack.difference_update(component)
                    if len(component) > 1 or node in after(node):
                        components.append(component)
    return components


def dominators(root: int, count: int, before: Mapping[int, Sequence[int]], order: Iterable[int]) -> dict[int, frozenset[int]]:
    """For each of ``count`` nodes, those that lie on every path from the root to it; all nodes where there is no path.

    ``before`` has the nodes whose edges lead to a node; ``order`` only decides how soon the sets are final.
    """
    sets = dict.fromkeys(range(count), frozenset(range(count)))
    sets[root] = frozenset({root})
    sequence = [node for node in order if node != root and before.get(node)]
    changed = True
    while changed:
        changed = False
        for node in sequence:
            now = frozenset.intersection(*(sets[other] for other in before[node])) | {node}
            if now != sets[node]:
                sets[node], changed = now, True
    return sets


def natural_loop(header: int, end: int, before: Callable[[int], Iterable[int]]) -> frozenset[int]:
    """The nodes from which the edge from ``end`` back to ``header`` is reached without passing the header, and the header."""
    return frozenset({header, *reached([end], lambda node: before(node) if node != header else ())})


def live_at_entry(
    successors: Sequence[Iterable[int]], reads: Sequence[Iterable[Element]], overwrites: Sequence[Iterable[Element]]
) -> list[frozenset[Element]]:
    """For each node, what is read there or later before it is overwritten; ``reads`` are those before an overwrite in the same node."""
    sets = [frozenset(names) for names in reads]
    changed = True
    while changed:
        changed = False
        for node in reversed(range(len(sets))):
            after = frozenset[Element]().union(*(sets[other] for other in successors[node]))
            now = sets[node] | after.difference(overwrites[node])
            if now != sets[node]:
                sets[node], changed = now, True
    return sets
