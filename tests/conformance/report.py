# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A pytest plugin that counts outcomes by class and lists every skipped test under its reason."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    """What became of one test: its class and name, "passed", "skipped" or "failed", and why it was skipped."""

    group: str
    test: str
    status: str
    reason: str = ""


def count_table(outcomes: Iterable[Outcome]) -> str:
    """One line a class: how many tests passed, were skipped, failed."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.group][outcome.status] += 1
    columns = ("passed", "skipped", "failed")
    width = max(map(len, counts), default=0)
    rows = [("", columns), *((group, [count[name] for name in columns]) for group, count in counts.items())]
    return "\n".join(f"{group:<{width}}" + "".join(f"{cell:>9}" for cell in cells) for group, cells in rows)


def skip_table(outcomes: Iterable[Outcome]) -> str:
    """Every reason with the tests skipped for it; a test that several classes skip is named once."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        if outcome.status == "skipped":
            reasons[outcome.reason][outcome.test] += 1
    lines = []
    for reason, tests in sorted(reasons.items(), key=lambda item: (-item[1].total(), item[0])):
        names = ", ".join(name + (f" ({count}x)" if count > 1 else "") for name, count in sorted(tests.items()))
        lines += [f"{tests.total():>4}  {reason}", f"      {names}"]
    return "\n".join(lines)


class ConformanceReport:
    """Collects the outcomes of a run; a failed subtest fails its test."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}

    @property
    def outcomes(self) -> list[Outcome]:
        """One entry a test, in the order they ran."""
        return list(self._outcomes.values())

    def pytest_configure(self, config: pytest.Config) -> None:
        # transformers registers its marks in its own conftest.py, which is not in the source distribution.
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnknownMarkWarning")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._outcomes.get(report.nodeid)
        if (known is not None and known.status == "failed") or (report.when != "call" and report.passed):
            return
        if report.passed and isinstance(report, pytest.SubtestReport):
            return
        group, _, test = report.nodeid.partition("::")[2].rpartition("::")
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        self._outcomes[report.nodeid] = Outcome(group, test, report.outcome, simplify_reason(reason, group))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("skipped, by reason")
        terminalreporter.write_line(skip_table(self.outcomes))
        terminalreporter.section("transformers' common tests")
        terminalreporter.write_line(count_table(self.outcomes))


def simplify_reason(reason: str, group: str) -> str:
    """A reason without what differs between classes; `group` is a class name followed by "Test" and maybe more."""
    name = group.partition("Test")[0]
    reason = re.sub(rf"<class '[\w.]*{name}'>|\b{name}\b", "the class", reason.removeprefix("Skipped: "))
    return " ".join(reason.split())
