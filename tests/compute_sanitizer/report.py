"""What became of tests that processes shared, and what their sanitizers said."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAID = re.compile(r"^=+ (\S.*)$", re.MULTILINE)
"""Lines of a report begin so, and details of it with more spaces."""
NOTHING = re.compile(
    r"COMPUTE-SANITIZER|ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: \d+ hazards? displayed|"
    # Processes without a launch: they found all tests taken.
    r"Error: Target application terminated before first instrumented API call|Target application returned an error"
)
"""Lines that report nothing: races have lines of their own beside the summary, and pytest tells of its failures."""

CONSEQUENCE = re.compile(r"Program hit ")
"""Lines of calls that fail once the GPU is lost, whoever is to blame."""

KINDS = ("passed", "skipped", "failed")
BEGUN = "begun"
COLLECTED = "collected.txt"
"""File of the names of all tests."""


def lines_in(folder: Path) -> Iterator[dict[str, Any]]:
    """What processes have written of tests, one process after the other."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())


def said_in(log: Path) -> list[str]:
    """What a sanitizer has reported, line by line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line for line in SAID.findall(text) if not NOTHING.match(line)]


def findings_of(log: Path) -> list[str]:
    """Of it, what tells of the process itself."""
    return [line for line in said_in(log) if not CONSEQUENCE.match(line)]


@dataclass(frozen=True)
class Report:
    """Of one tool."""

    outcomes: Mapping[str, str]
    """By test, of those that have come to an end."""
    not_run: Sequence[str]
    seconds: Mapping[str, float]
    """By test, as `outcomes`."""
    findings: Mapping[str, int]
    """How often the sanitizer said what."""
    abandoned: frozenset[str]
    """Claims of tests that have begun and not ended."""

    @classmethod
    def of(cls, folder: Path) -> Report:
        outcomes, seconds, begun = {}, {}, {}
        for line in lines_in(folder):
            test = line["test"]
            if line["outcome"] == BEGUN:
                begun[test] = line
            else:
                outcomes[test], seconds[test] = line["outcome"], line["at"] - begun[test]["at"]
        collected = folder / COLLECTED
        names = collected.read_text().splitlines() if collected.exists() else []
        said = collections.Counter(line for path in sorted(folder.glob("sanitizer-*.log")) for line in said_in(path))
        abandoned = frozenset(line["claim"] for test, line in begun.items() if test not in outcomes)
        return cls(outcomes, [name for name in names if name not in outcomes], seconds, said, abandoned)

    def dearest(self) -> list[str]:
        """Tests that came to an end, those that took longest first."""
        return sorted(self.seconds, key=lambda test: -self.seconds[test])

    def row(self) -> dict[str, Any]:
        """For the results."""
        of = {kind: [test for test, outcome in self.outcomes.items() if outcome == kind] for kind in KINDS}
        return {
            "passed": len(of["passed"]), "skipped": len(of["skipped"]), "failed": sorted(of["failed"]),
            "not_run": sorted(self.not_run), "findings": dict(self.findings),
        }  # fmt: skip
