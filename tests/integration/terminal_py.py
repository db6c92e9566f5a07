#!/usr/bin/env python3
"""elastic-run on a terminal: the line at its bottom, and what comes above it."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.environ["ER_TEST_SOURCE"], "tests", "lib"))
from py_cases import BUILD, DEADLINE_S, RUN, case, environment, main, wait_for  # noqa: E402

STEPPER = os.path.join(BUILD, "tests", "integration", "stepper")
ERASE = "\r\x1b[K"
STEPS_ON = f"exec {STEPPER} 1000000000 0 go"  # till the file `go` is there
SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: (os.setpgid(0, 0), signal.signal(signal.SIGTTOU, signal.SIG_DFL)))
for word in iter(lambda: os.read(3, 2), b""):
    os.tcsetpgrp(0, job.pid if word == b"fg" else os.getpgrp())
    os.write(4, b".")
sys.exit(job.wait())
"""


class Terminal:
    """A job on a terminal of its own, and what it has written there, carriage returns of line ends left out."""

    def __init__(self, folder, command, *settings, shell=False, piece=65536, **env):
        """`piece`: so many bytes are read at a time."""
        self.folder, self.name, self.bytes, self.piece = folder, f"term-{os.getpid()}", b"", piece
        self.words, self.answers = -1, -1
        spec = os.path.join(folder, "job.yaml")
        with open(spec, "w", encoding="utf-8") as f:
            json.dump({"name": self.name, "command": command, "log": {"dir": folder}}, f)
        argv = [RUN, *(x for s in settings for x in ("--set", s)), spec]
        env = environment(folder, **{"TERM": "xterm", "NO_COLOR": "", **env})
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        if shell:
            self.agent = self.start_in_shell(argv, theirs, env)
        else:
            self.agent = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env)
        os.close(theirs)

    def start_in_shell(self, argv, theirs, env):
        """The terminal is that of a shell, which has started the job in the background."""
        heard, self.words = os.pipe()
        self.answers, answer = os.pipe()

        def take_terminal():
            for i, fd in enumerate([theirs, theirs, theirs, os.dup(heard), os.dup(answer)]):
                os.dup2(fd, i)
            os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first that a session without one opens becomes its own

        fds = (heard, answer, theirs)
        shell = subprocess.Popen([sys.executable, "-c", SHELL, *argv], cwd=self.folder, env=env, start_new_session=True, preexec_fn=take_terminal,
                                 pass_fds=(3, 4))
        for fd in fds[:2]:
            os.close(fd)
        return shell

    def say(self, word):
        """To the shell: fg or bg."""
        os.write(self.words, word)
        assert os.read(self.answers, 1) == b"."

    def text(self):
        return self.bytes.decode(errors="replace").replace("\r\n", "\n")

    def read(self, until):
        """As far as `until` says of the text; without it to the end."""
        deadline = time.monotonic() + DEADLINE_S
        while not (until and until(self.text())):
            ready = select.select([self.ours], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"not in {DEADLINE_S} s: {self.text()[-2000:]}"
            try:
                piece = os.read(self.ours, self.piece)
            except OSError:  # the other end is closed
                piece = b""
            if not piece:
                assert not until, f"it ended before: {self.text()[-2000:]}"
                return
            self.bytes += piece

    def file(self, name):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def end(self, until=None):
        """All its text. With `until` the workers wait for `go`, which they get then."""
        try:
            if until:
                self.read(until)
                self.file("go")
            if self.words >= 0:
                os.close(self.words)
            self.read(None)
            assert self.agent.wait(timeout=DEADLINE_S) == 0, self.text()[-2000:]
        finally:
            self.agent.kill()  # one that has ended already, if all is well; the guard's death ends the rest
            self.agent.wait()
            os.close(self.ours)
        return self.text()


def drawn(text, *words):
    """Has a line been drawn that has all these words?"""
    return any(all(word in line for word in words) for line in text.split(ERASE)[1:])


def screen(text):
    """The lines that are left on the screen; one that the cursor went back in is written over."""
    lines = []
    for line in text.split("\n"):
        lines.append(re.sub(r"\x1b\[[0-9;]*[mK]", "", line.split(ERASE)[-1].split("\r")[-1]))
    return lines


def check_screen(text, lines):
    left = screen(text)
    assert not [line for line in left if ": running, generation" in line], left
    assert sum(bool(re.fullmatch(r"\[default[01]\]: line \d+.*", line)) for line in left) == lines, left


@case
def line_stays_below_and_goes_at_the_end(folder):
    script = f"for i in $(seq 200); do echo line $i; echo line $i >&2; done; {STEPS_ON}"
    text = Terminal(folder, ["sh", "-c", script], "nproc_per_node=2").end(lambda t: drawn(
        t, ": running, generation 1, 1 node, 2 ranks, step ", "/1000000000", ", 3 of 3 restarts left", "\x1b[2m"))
    check_screen(text, 800)


@case
def lines_of_both_outputs_stay_whole_on_a_slow_terminal(folder):
    wide = "x" * 300
    script = f"for i in $(seq 150); do echo line $i {wide}; echo line $i {wide} >&2; done"
    text = Terminal(folder, ["sh", "-c", script], "nproc_per_node=2", piece=50).end()
    check_screen(text, 600)
    assert sum(bool(re.fullmatch(rf"\[default[01]\]: line \d+ {wide}", line)) for line in screen(text)) == 600, screen(text)


@case
def reader_that_was_slow_sees_the_line_too(folder):
    wide = "x" * 1000
    script = f"for i in $(seq 300); do echo line $i {wide}; done; {STEPS_ON}"
    terminal = Terminal(folder, ["sh", "-c", script])
    log = os.path.join(folder, terminal.name, "gen-1", "rank-0", "stdout.log")

    def all_logged():
        return os.path.exists(log) and b"line 300 " in open(log, "rb").read()

    wait_for(all_logged)  # most of it waits for a terminal that takes no more
    text = terminal.end(lambda t: "line 300 " in t and drawn(t.split("line 300 ")[1], ": running, generation 1", ", step "))
    check_screen(text, 300)


@case
def no_colour_where_it_is_not_wanted(folder):
    text = Terminal(folder, ["sh", "-c", STEPS_ON], NO_COLOR="1").end(lambda t: drawn(t, ": running, generation"))
    assert "\x1b[2m" not in text


@case
def progress_bars_are_left_alone(folder):
    script = "for i in $(seq 30); do printf '\\r%d of 30' $i; sleep 0.05; done; echo"
    text = Terminal(folder, ["sh", "-c", script]).end()
    assert "30 of 30" in [line.split("]: ")[-1] for line in screen(text)]


@case
def there_is_none_elsewhere(folder):
    assert ERASE not in Terminal(folder, [STEPPER, "100"], TERM="dumb").end()
    assert ERASE not in Terminal(folder, [STEPPER, "100"], "log.format=json").end()
    assert ERASE not in Terminal(folder, [STEPPER, "100"], "log.dir=none", "log.tee=0").end()


@case
def background_job_leaves_the_terminal_alone(folder):
    # What a worker says tells when it was said; two such lines are further apart than what is known of the terminal may be old.
    script = ("i=0; while ! [ -e go ]; do i=$((i+1)); for w in first second none; do [ -e $w ] && break; done; echo $w line $i; sleep 0.1; done")
    terminal = Terminal(folder, ["sh", "-c", script], shell=True)
    terminal.read(lambda t: "none line 15\n" in t)
    assert ERASE not in terminal.text()
    terminal.say(b"fg")
    terminal.read(lambda t: drawn(t, ": running, generation 1"))
    terminal.say(b"bg")
    terminal.file("first")
    terminal.read(lambda t: t.count("first line") > 15)
    assert ERASE not in terminal.text().split("first line", 2)[2]
    terminal.say(b"fg")
    terminal.file("second")
    assert "succeeded after" in terminal.end(lambda t: drawn(t.split("first line")[-1], ": running, generation 1"))


if __name__ == "__main__":
    main()
