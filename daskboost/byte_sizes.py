"""Numbers of bytes for people; engines, which say them, know nothing of Dask's."""

from __future__ import annotations

UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_bytes(n_bytes: int) -> str:
    """Three significant digits and a decimal unit: 50331648 is "50.3 MB"."""
    value, unit = float(n_bytes), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {UNITS[unit]}"
