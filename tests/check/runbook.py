#!/usr/bin/env python3
"""docs/runbook.md has a line for each event of docs/operations.md, each exit code of docs/exit-codes.md and each alert."""

import re

from tree import read, report


def rows(text):
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]


def main():
    runbook = "\n".join(rows(read("docs/runbook.md")))
    events = re.search(r"^## Events$(.*?)^## ", read("docs/operations.md"), re.S | re.M).group(1)
    wanted = {name for row in rows(events) for name in re.findall(r"`(\w+)`", row)}
    wanted |= set(re.findall(r"alert: (\w+)", read("packaging/prometheus/elastic-run.rules.yml")))
    wanted |= {code for row in rows(read("docs/exit-codes.md")) for code in re.findall(r"^ (\d+) $", row)}
    report("runbook", [f"docs/runbook.md: nothing about {name}" for name in sorted(wanted) if not re.search(rf"\b{name}\b", runbook)])


main()
