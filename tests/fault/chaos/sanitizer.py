"""Builds with AddressSanitizer and UndefinedBehaviorSanitizer: whatever they report, of whichever process, is a failure of the trial."""

import functools
import glob
import os


SUPPRESSIONS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "lsan.supp")
REPORT = "sanitizer-report"
SHOWN_LINES = 12


@functools.cache
def on(build):
    with open(os.path.join(build, "elastic-run"), "rb") as f:
        return any(b"__asan_init" in block or b"libubsan.so" in block for block in iter(lambda: f.read(1 << 20), b""))


def prepare(build, folder):
    """Everything that this process starts from now on reports into the folder. The shim is preloaded, and so comes before the sanitizer's library, which it
    calls: that is as it should be. SIGSEGV is the suite's own; one that nobody sent ends its process all the same, which a trial does not overlook."""
    if not on(build):
        return
    common = f"log_path={os.path.join(folder, REPORT)}:log_exe_name=1"
    os.environ.update(ASAN_OPTIONS=f"{common}:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:intercept_tls_get_addr=0:handle_segv=0:verify_asan_link_order=0",
                      UBSAN_OPTIONS=f"{common}:print_stacktrace=1:halt_on_error=1", LSAN_OPTIONS=f"suppressions={SUPPRESSIONS}:print_suppressions=0")


def found(folder):
    """What was reported: the first lines of each report."""
    said = []
    for path in sorted(glob.glob(os.path.join(folder, REPORT + "*"))):
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = [line.strip() for line in f if line.strip() and set(line.strip()) != {"="}]
        said += [f"{os.path.basename(path)}: " + " / ".join(lines[:SHOWN_LINES])] if lines else []
    return said
