"""Exceptions of the library.

Every message names the argument, the offending value and the remedy. The types derive from the built-in
exception a scikit-learn or XGBoost user would catch.
"""

from __future__ import annotations

# Numbers of bytes for people; engines, which say them, know nothing of Dask's.

UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_bytes(n_bytes: int) -> str:
    """Three significant digits and a decimal unit: 50331648 is "50.3 MB"."""
    value, unit = float(n_bytes), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {UNITS[unit]}"


class DaskBoostError(Exception):
    """Base of every exception that daskboost raises on purpose."""


class ParameterError(DaskBoostError, ValueError):
    """An unknown, malformed or contradictory parameter."""


class DataError(DaskBoostError, ValueError):
    """Input that cannot be trained on or predicted: dtypes, shapes, infinities, labels, weights."""


class DataTypeError(DataError, TypeError):
    """Input of a type or dtype that is not supported: strings, objects, dates."""


class ModelFormatError(DaskBoostError, ValueError):
    """A model file that is truncated, corrupt, from a newer version or hostile."""


class DatasetFormatError(DaskBoostError, ValueError):
    """A saved QuantizedDataset that is truncated, corrupt or from a newer version."""


class StorageError(DaskBoostError, OSError):
    """A chunk could not be written to, or read back from, its tier."""


class WorkerLostError(DaskBoostError, RuntimeError):
    """A worker that holds part of the data died or left during a fit."""


class FitCancelledError(DaskBoostError, RuntimeError):
    """The fit was cancelled by its client."""


class SchedulerLostError(DaskBoostError, RuntimeError):
    """The scheduler died or left during a fit."""


class MissingDependencyError(DaskBoostError, ImportError):
    """An optional package is needed for what was asked; the message says how to install it."""


class DeviceError(DaskBoostError, RuntimeError):
    """A GPU was asked for that is not there, cannot be used or has too little memory; the message says what to do."""


class NoDeviceError(DeviceError):
    """There is no GPU, or no driver for it."""


class EngineError(DaskBoostError, RuntimeError):
    """An engine failed on its worker; the worker's own exception is the cause."""


LONGEST_TEXT = 600
"""Letters of a message in which a file has a say."""


def shortened(text: str) -> str:
    """A text in which a file has a say, its middle left out where it is too long for a message."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]}...{text[-half:]}"
