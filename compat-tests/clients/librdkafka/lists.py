"""Which of librdkafka's tests there are, and what each is held to."""

import os
from collections import namedtuple

# name; scenario of the broker; limit: seconds until it is given up, or None; expect: "pass", "fail" or "wait"; consumer: what becomes of
# it with the consumer protocol ("pass", "fail", "skip"), or None where it knows no groups.
Test = namedtuple("Test", "name scenario limit expect consumer")

FILES = (("expected.list", "pass"), ("failing.list", "fail"), ("waiting.list", "wait"))


# These measure how fast a broker answers, to a few ms: amid splits and merges, whose pauses are longer, they are not judged.
TIMED = ("0055_producer_latency",)


def number(name):
    """The four digits by which the runner picks tests; several tests may share them."""
    return name[:4]


def part(name):
    """Of a test of which one part alone is run (`NAME:PART`) that part's name, or None."""
    return name.partition(":")[2] or None


def parse(text, expect):
    """The tests of one list: a line each, `NAME SCENARIO LIMIT CONSUMER` with `-` for none. Of what waits only the name counts."""
    tests = []
    for line in text.splitlines():
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        if expect == "wait":
            tests.append(Test(columns[0], "default", 1200, expect, None))
            continue
        name, scenario, limit, consumer = (*columns, "-", "-")[:4]
        tests.append(Test(name, scenario, None if limit == "-" else int(limit), expect, None if consumer == "-" else consumer))
    return tests


def read(folder):
    """All tests of the lists in a folder."""
    tests = []
    for file, expect in FILES:
        with open(os.path.join(folder, file)) as f:
            tests += parse(f.read(), expect)
    return tests


def choose(tests, scenario, numbers=(), consumer=False, storm=False):
    """Those to run against a broker of that scenario: the numbers asked for or all but what waits; with the consumer protocol only those
    that know groups, and each held to what it does then."""
    chosen = []
    for test in tests:
        if test.scenario != scenario or (numbers and number(test.name) not in numbers):
            continue
        if consumer and test.consumer is None and test.expect != "wait":
            continue
        if not numbers and test.expect == "wait":
            continue
        if consumer and test.consumer:
            test = test._replace(expect=test.consumer)
        chosen.append(test._replace(expect="wait") if storm and test.name in TIMED else test)
    return chosen
