#!/usr/bin/env python3
"""docs/conformance.md names tests that are there, and has a row for every option of torchrun, exit code and event."""

import re

import tree

PAGE = "docs/conformance.md"
NAMED = re.compile(r"`(\w+):(\w+)`")


def tests():
    """Every case as file:case, with the file's name without its suffix."""
    for name in tree.files():
        if not name.startswith("tests/") or not name.endswith((".c", ".py")):
            continue
        base = name.rsplit("/", 1)[1].rsplit(".", 1)[0]
        for case in re.findall(r'\{"(\w+)",|\bCASE\((\w+)\)|^Test\(\w+, (\w+)\)|^@case\ndef (\w+)', spread(tree.read(name)), re.M):
            yield f"{base}:{''.join(case)}"


def spread(text):
    """A row of a table on one line."""
    return re.sub(r"\{\s+\"", '{"', text)


def rows(page):
    return re.findall(r"^\| (.*?) \|", page, re.M)


def wanted():
    """What must have a row of its own, by the source that has it."""
    # Those with a PET_ variable, and the few of torchrun's that have none.
    table = tree.read("agent/keys.c")
    for name, rest in re.findall(r'^    O\("([a-z-]+)", (.*?)\n(?=    O\(|#undef)', table, re.M | re.S):
        if ".env = " in rest or name in ("logs-specs", "numa-binding", "print-completion"):
            yield f"`--{name}`"
    for number in re.findall(r"^    X\((\d+), ", tree.read("base/exit_codes.h"), re.M):
        yield number
    for event in re.findall(r'^    \{"([a-z_]+)", "[a-z_]+:', tree.read("tests/lib/event_schema.c"), re.M):
        yield event


page = tree.read(PAGE)
there, named, have = set(tests()), NAMED.findall(page), set(rows(page))
problems = [f"{PAGE}: no test {file}:{case}" for file, case in named if f"{file}:{case}" not in there]
problems += [f"{PAGE}: no row for {what}" for what in wanted() if what not in have]
if len(named) < 100:
    problems.append(f"{PAGE}: only {len(named)} tests were found in it")
for line in page.splitlines():
    if line.startswith("| ") and "`" not in line.split("|")[2] and "*later*" not in line and line.split("|")[2].strip() != "test":
        problems.append(f"{PAGE}: a row without a test: {line}")
tree.report("conformance", problems)
