"""Which chunks come together, and where they lie: by sizes alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskboost.devices.budget import set_size as groups
from daskboost.devices.budget.set_size import ChunkSize, DenseSet

CHUNKS = st.lists(st.tuples(st.integers(0, 2_000), st.booleans()), max_size=12)


@given(chunks=CHUNKS, most=st.integers(0, 6_000))
def test_groups_are_neighbours_as_many_as_fit(chunks: Sequence[tuple[int, bool]], most: int) -> None:
    """`chunks` : bytes, and whether a chunk that is not streamed stands before."""
    places, sizes, place = [], [], 0
    for size, gap in chunks:
        place += 1 + gap
        places.append(place)
        sizes.append(size)
    found = groups.stream_groups(places, sizes, most)
    assert [number for group in found for number in group] == list(range(len(sizes)))
    for group, following in zip(found, [*found[1:], None], strict=False):
        begins, n_bytes = groups.places_in_group([sizes[i] for i in group])
        assert all(begin % groups.ALIGNMENT == 0 for begin in begins)
        assert all(begin + sizes[i] <= end for i, begin, end in zip(group, begins, [*begins[1:], n_bytes], strict=True))
        assert len(group) == 1 or (n_bytes <= most and places[group[-1]] - places[group[0]] == len(group) - 1)
        if following is not None and places[following[0]] == places[group[-1]] + 1:
            more = [sizes[i] for i in (*group, following[0])]
            assert groups.places_in_group(more)[1] > most, "else it had joined"


def test_four_chunks_of_the_usual_size_come_together() -> None:
    assert groups.stream_groups(range(9), [2**25 + 8] * 9, groups.GROUP_BYTES) == [range(4), range(4, 8), range(8, 9)]


def test_sizes_to_try() -> None:
    assert list(groups.group_sizes([2**25, 2**24]))[1:] == [2**26 + 2**15, 2**25 + 2**14, 2**25, 0]
    assert list(groups.group_sizes([2**28])) == [2**28, 0]
    assert list(groups.group_sizes([0]))[-1] == 0


@pytest.mark.parametrize(("n_files", "rooms"), [
    ([], 0), ([0, 0], 0), ([1] * 9, 4), ([1, 0, 1], 2), ([4] * 9, 2), ([2] * 9, 3), ([50, 9], 2), ([7], 1),
])  # fmt: skip
def test_as_many_files_are_read_at_once_as_there_are_readers(n_files: list[int], rooms: int) -> None:
    assert groups.n_read_rooms(n_files) == rooms


def test_a_plan_has_the_groups_of_the_engine() -> None:
    """Chunks on disk between others in memory are neighbours once these are streamed as well."""
    ram = tuple(ChunkSize(10, 0, 400, False, place) for place in (0, 1, 3))
    disk = (ChunkSize(6, 0, 300, True, 2), ChunkSize(10, 0, 400, True, 4))
    rows = DenseSet(46, 3, streamed_rows=16, chunks=ram, streamed=disk, stream_bytes=1_500)
    assert [group.n_rows for group in rows.groups] == [6, 10]
    kept = rows.keeping(1)
    assert [tuple(group) for group in kept.groups] == [(26, 0, 512 + 512 + 400, 1, 300), (10, 0, 400, 1, 400)]
    assert kept.streamed_rows == 36
