"""Deliberate bugs: how one is written down, and how it is put into the sources.

A bug is a file of bugs/, named after what is broken:

    doc: one line, what the product does wrong with it
    test: SUITE/PROGRAM CASE            what must fail; CASE as the program prints it
    because: words                      that stand in a line of the failed run: its assertion, a signal that is expected
    file: rendezvous/plan.c
    was:
        lines of the file
    is:
        what stands there instead; may be empty

`file`, `was` and `is` may come several times. `was` must stand in the file exactly once; white space does not count, so that a change
of the indentation, or of where lines are broken, leaves the bug as it is.
"""

import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "bugs")
SINGLE = ("doc", "test", "because")


class Broken(Exception):
    """A bug that is not written down right, or does not fit the sources any more."""


class Bug:
    def __init__(self, name):
        self.name = name
        self.doc = self.test = self.because = ""
        self.edits = []  # (file, was, is)

    @property
    def suite(self):
        return self.test.split()[0].split("/")[0]

    @property
    def program(self):
        return self.test.split()[0].split("/")[1]

    @property
    def case(self):
        return self.test.split()[1]

    @property
    def files(self):
        return sorted({file for file, _, _ in self.edits})

    def fail(self, text):
        raise Broken(f"tests/mutation/bugs/{self.name}: {text}")


def fields(text):
    """(key, value) pairs; a value goes on in lines that are indented."""
    found = []
    for line in text.splitlines():
        head = re.fullmatch(r"(\w+):(?: (.*))?", line)
        if head:
            found.append([head[1], head[2] or ""])
        elif found and (line.startswith("    ") or not line.strip()):
            found[-1][1] += ("\n" if found[-1][1] else "") + line[4:]
        else:
            raise ValueError(f"'{line}' is neither a key nor indented by four")
    return found


def read(name):
    bug = Bug(name)
    file, was = "", None
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        text = f.read()
    try:
        pairs = fields(text)
    except ValueError as problem:
        bug.fail(str(problem))
    for key, value in pairs:
        if key in SINGLE:
            if getattr(bug, key) or not value or "\n" in value:
                bug.fail(f"'{key}' is one line, once")
            setattr(bug, key, value)
        elif key == "file":
            file = value
        elif key == "was" and file and value.strip():
            was = value
        elif key == "is" and was is not None:
            bug.edits.append((file, was, value.rstrip()))
            was = None
        else:
            bug.fail(f"'{key}' is out of place")
    if was is not None or not bug.edits or not all(getattr(bug, key) for key in SINGLE):
        bug.fail("wants doc, test, because, file, was and is")
    if not re.fullmatch(r"\w+/\w+ [\w:]+", bug.test):
        bug.fail(f"test '{bug.test}' is not SUITE/PROGRAM CASE")
    return bug


def read_all():
    return [read(name) for name in sorted(os.listdir(FOLDER))]


def pattern(was):
    """What finds it whatever the white space: any between two words, and none or some beside signs."""
    words = re.findall(r"\w+|[^\w\s]", was)
    text = re.escape(words[0])
    for left, right in zip(words, words[1:]):
        both = re.match(r"\w", left) and re.match(r"\w", right)
        text += (r"\s+" if both else r"\s*") + re.escape(right)
    return re.compile(text)


def mutate(bug, root):
    """{file: its text with the bug in it}. Raises Broken where it does not apply."""
    texts = {}
    for file, was, new in bug.edits:
        if file not in texts:
            try:
                with open(os.path.join(root, file), encoding="utf-8") as f:
                    texts[file] = f.read()
            except OSError as problem:
                bug.fail(f"{problem.strerror}: '{file}'")
        found = list(pattern(was).finditer(texts[file]))
        if len(found) != 1:
            bug.fail(f"'{was.strip().splitlines()[0].strip()} ...' is {len(found)} times in {file}, not once: bring the bug up to date")
        start, end = found[0].span()
        texts[file] = texts[file][:start] + new.strip() + texts[file][end:]
    return texts
