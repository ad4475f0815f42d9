"""Holds what tests came to against the lists, and against the reference broker's result of the same run."""

from collections import namedtuple

# outcome: "passed", "failed" or "skipped"; tries: 1, or 2 when it was run once more, alone; seconds of the last try.
Result = namedtuple("Result", "outcome tries seconds")

# What each word of a list allows. A test may see for itself that what it wants is not there, and skip.
OUTCOMES = {"pass": ("passed",), "fail": ("failed", "skipped"), "skip": ("skipped",)}


def verdict(test, ours, reference=None):
    """None when all is as it should be, or what is wrong. A listed failure that passes is wrong until it is moved."""
    if ours is None:
        return "did not run"
    if test.expect == "wait":
        return None
    if ours.outcome in OUTCOMES[test.expect]:
        return None
    if test.expect == "pass":
        if reference is not None and reference.outcome == ours.outcome:
            return None  # The bar is what the reference passes in the same run.
        return f"{ours.outcome}, and expected.list says that it passes"
    if ours.outcome == "passed":
        return f"passed, and is listed as one that does not ({test.expect}): move it"
    return f"{ours.outcome}, and is listed as {test.expect}"


def words(result):
    """A cell of the table."""
    if result is None:
        return "-"
    return f"{result.outcome}{' at the second try' if result.tries == 2 and result.outcome == 'passed' else ''} {result.seconds} s"


def table(tests, sides):
    """Lines of a table with a column for each side; `sides` maps names to results by test."""
    rows = [["test", *sides, "listed as"]]
    for test in tests:
        rows.append([test.name, *(words(results.get(test.name)) for results in sides.values()), test.expect])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def counts(results):
    """One line: passes at the first try and at the second apart, for an intermittent fault looks like a busy machine."""
    all_of = list(results.values())
    first = sum(r.outcome == "passed" and r.tries == 1 for r in all_of)
    second = sum(r.outcome == "passed" and r.tries == 2 for r in all_of)
    failed = sum(r.outcome == "failed" for r in all_of)
    skipped = sum(r.outcome == "skipped" for r in all_of)
    return f"{first} passed at the first try, {second} at the second, {failed} failed, {skipped} skipped"


def wrongs(tests, ours, reference=None):
    """Lines that fail the run."""
    found = []
    for test in tests:
        wrong = verdict(test, ours.get(test.name), (reference or {}).get(test.name))
        if wrong:
            found.append(f"{test.name}: {wrong}")
    return found
