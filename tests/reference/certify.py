"""Naive twin of judging a tree that was grown on a sample: nodes as objects, every rule by its words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

NOISE = 1e-6
"""Least gain that tells anything, whatever `gamma`."""


@dataclass
class Node:
    """A node and what all rows say of it."""

    depth: int
    best_gain: float
    gain: float = 0.0
    """Of the split that it has."""
    is_best: bool = True
    """Whether that is the best one."""
    spent: bool = False
    children: list[Node] = field(default_factory=list)
    name: int = -1


def all_nodes(root: Node) -> Iterator[Node]:
    yield root
    for child in root.children:
        yield from all_nodes(child)


def worth(gain: float, gamma: float) -> bool:
    return gain >= NOISE and gain >= gamma


def loss(node: Node, depth_limit: int, gamma: float) -> float | None:
    """What a node's split loses, or that it has none; None where nothing better is there."""
    if node.children:
        return None if node.is_best else max(node.best_gain - node.gain, 0.0)
    return node.best_gain if node.depth < depth_limit - 1 and worth(node.best_gain, gamma) else None


def judge(root: Node, tolerance: float, depth_limit: int, gamma: float) -> tuple[set[int], set[int], float, float]:
    """Names of the nodes that are replaced and of those whose losses are accepted, the sum of these, and the gain."""
    total = math.fsum(
        node.gain if node.children else node.best_gain
        for node in all_nodes(root) if node.children or worth(node.best_gain, gamma)
    )  # fmt: skip
    losses = {node.name: lost for node in all_nodes(root) if (lost := loss(node, depth_limit, gamma)) is not None}
    by_name = {node.name: node for node in all_nodes(root)}
    accepted = {name for name in losses if by_name[name].spent}
    room, refused = tolerance * total - math.fsum(losses[name] for name in accepted), set()
    for depth in reversed(range(depth_limit)):
        level = [name for name in losses if by_name[name].depth == depth and name not in accepted]
        for name in sorted(level, key=lambda name: (losses[name], name)):
            if tolerance > 0 and losses[name] <= room:
                accepted.add(name)
                room -= losses[name]
            else:
                refused.add(name)
    replaced, kept = set(), set()

    def walk(node: Node) -> None:
        if node.name in refused:
            replaced.add(node.name)
            return  # what is below is grown again
        if node.name in accepted:
            kept.add(node.name)
        for child in node.children:
            walk(child)

    walk(root)
    return replaced, kept, math.fsum(losses[name] for name in kept), total
