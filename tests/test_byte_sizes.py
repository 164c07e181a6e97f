"""Sizes in messages."""

from __future__ import annotations

import pytest

from daskboost.errors import format_bytes


@pytest.mark.parametrize(("n_bytes", "expected"), [
    (0, "0 bytes"), (999, "999 bytes"), (1_000, "1.00 kB"), (9_994, "9.99 kB"), (9_996, "10.0 kB"), (99_949, "99.9 kB"),
    (99_951, "100 kB"), (999_499, "999 kB"), (999_500, "1.00 MB"), (50_331_648, "50.3 MB"), (141_000_000_000, "141 GB"),
    (2 * 10**15, "2000 TB"),
])  # fmt: skip
def test_three_digits_and_a_unit(n_bytes: int, expected: str) -> None:
    assert format_bytes(n_bytes) == expected
