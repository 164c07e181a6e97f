"""Chunks that stream to a device together, and where each lies among them: from sizes alone, so that a plan knows what
an engine will do.

A launch costs the host some 12 us whatever the rows, and a chunk's turn takes 20 to 30 of them where trees are
certified, as many for each model of several, while 32 MiB cross the bus in .6 ms: one by one, chunks came as fast as
the host launched, and those of small Dask partitions still slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GROUP_BYTES = 2**27 + 2**16
"""Most packed bytes of a group of several chunks: four of the usual size, with the words behind their symbols."""
ALIGNMENT = 256
"""Alignment of a chunk's first byte in its group."""
READS_AT_ONCE = 4
"""Files that are read at the same time."""


def places_in_group(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The first byte of each of a group's chunks, and the bytes of the group."""
    begins, end = [], 0
    for size in sizes:
        begins.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = begins[-1] + size
    return begins, end


def kept_first(place: int, on_disk: bool) -> tuple[bool, int]:
    """Sort key of a set's chunks in the order in which a GPU keeps them: first those on disk, since they would take
    longest to come again."""
    return not on_disk, place


def stream_groups(places: Sequence[int], sizes: Sequence[int], most_bytes: int) -> list[range]:
    """Divide streamed chunks into groups of neighbours, in order.

    Parameters
    ----------
    places : sequence of int
        Of the streamed chunks among all of their set, increasing.
    sizes : sequence of int
        Their packed bytes.
    most_bytes : int
        Of a group, unless one chunk alone has more; 0 for one chunk at a time.

    Returns
    -------
    list of range
        Of the numbers of chunks in `places`.
    """
    groups: list[range] = []
    end = 0
    for number, size in enumerate(sizes):
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        if number and places[number] == places[number - 1] + 1 and begin + size <= most_bytes:
            groups[-1] = range(groups[-1].start, number + 1)
            end = begin + size
        else:
            groups.append(range(number, number + 1))
            end = size
    return groups


def group_sizes(sizes: Sequence[int]) -> Iterator[int]:
    """What `most_bytes` may be for chunks of these sizes, the largest first: `GROUP_BYTES` and its halves, then what
    the largest chunk has, so that small ones beside it join, then 0."""
    largest, most = max(sizes, default=0), GROUP_BYTES
    while most > largest:
        yield most
        most //= 2
    if largest:
        yield largest
    yield 0


def n_read_rooms(n_files: Sequence[int]) -> int:
    """Pieces of page-locked memory that groups of so many files each are read to in turn: as many files as are read at
    once while another group is copied."""
    reading = [n for n in n_files if n]
    return min(READS_AT_ONCE, len(reading), 1 + -(-READS_AT_ONCE // max(reading, default=1)))
