"""Naive twin of how blocks share the rows of a level: tile by tile."""

from __future__ import annotations


def owners(tiles: list[int], n_groups: int, least_tiles: int, most_blocks: int) -> dict[tuple[int, int], set[int]]:
    """The blocks that add rows of each (segment, group); `tiles` : of each segment behind its lead."""
    every = [
        place for group in range(n_groups) for segment, n in enumerate(tiles) if n
        for place in (*[None] * least_tiles, *[(segment, group)] * n)
    ]  # fmt: skip
    n_blocks = min(len(every) // least_tiles + len(tiles) * n_groups, most_blocks)
    found: dict[tuple[int, int], set[int]] = {(s, g): set() for g in range(n_groups) for s in range(len(tiles))}
    for block in range(n_blocks):
        for place in every[len(every) * block // n_blocks : len(every) * (block + 1) // n_blocks]:
            if place is not None:
                found[place].add(block)
    return found
