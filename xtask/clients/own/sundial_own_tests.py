"""A plugin of pytest that tells `cargo xtask clients --own-tests` how each test went, while it runs.

Each line of the file $SUNDIAL_OWN_TESTS is `OUTCOME<tab>TEST<tab>REASON`; `started` stands there before a test, so that of a process that
ends it is known which test ended it. Tests that stand in the file already are not run again. With $SUNDIAL_OWN_TESTS_ONE_IN set to N,
one in N tests is run, by a checksum of its name: the same ones each time.
"""

import os
import zlib
from importlib import metadata

FILE = os.environ["SUNDIAL_OWN_TESTS"]
ONE_IN = int(os.environ.get("SUNDIAL_OWN_TESTS_ONE_IN", "1"))

outcomes = {}


def line(outcome, test, reason=""):
    fields = (" ".join(field.split())[:400] for field in (outcome, test, reason))
    with open(FILE, "a", encoding="utf-8", errors="replace") as file:
        file.write("\t".join(fields) + "\n")


def before():
    """The tests that an earlier run has begun."""
    try:
        with open(FILE, encoding="utf-8", errors="replace") as file:
            return {line.split("\t")[1] for line in file}
    except FileNotFoundError:
        return set()


def pytest_sessionstart():
    if not before():
        for package in os.environ.get("SUNDIAL_OWN_TESTS_VERSIONS", "").split():
            try:
                line("version", package, metadata.version(package))
            except metadata.PackageNotFoundError:
                pass


def pytest_collection_modifyitems(config, items):
    done = before()
    chosen, left = [], []
    for item in items:
        name = " ".join(item.nodeid.split())[:400]
        sampled = zlib.crc32(name.encode("utf-8", "replace")) % ONE_IN == 0
        (chosen if sampled and name not in done else left).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)


def pytest_collectreport(report):
    if report.outcome != "passed" and " ".join(report.nodeid.split())[:400] not in before():
        line(report.outcome, report.nodeid, reason(report))


def pytest_runtest_logstart(nodeid):
    outcomes[nodeid] = ("passed", "")
    line("started", nodeid)


def pytest_runtest_logreport(report):
    if outcomes.get(report.nodeid, ("", ""))[0] == "failed":
        return
    if report.outcome != "passed":
        outcomes[report.nodeid] = (report.outcome, reason(report))


def pytest_runtest_logfinish(nodeid):
    line(outcomes[nodeid][0], nodeid, outcomes.pop(nodeid)[1])


def reason(report):
    """In one line: of a skipped test what it says, of one that failed the last line of the error, and where."""
    if getattr(report, "wasxfail", None):
        return f"expected to fail: {report.wasxfail}"
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{crash.message.strip()} ({os.path.basename(crash.path)}:{crash.lineno})"
    return str(report.longrepr or "")[-300:]
