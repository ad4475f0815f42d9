"""librdkafka's own tests, unmodified and in full mode, against rangeway, and against the reference broker in the same run.

Which tests and what each is held to is said by expected.list (must pass), failing.list (must fail, argued in why.md) and waiting.list (not
run unless asked for). Without an address a broker of this workspace is started for each scenario. Start from an empty broker: some tests
count topics and groups. A test that fails is tried once more, alone, and counted apart: on a busy machine the tests' own clocks run out.
"""

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys

import brokers
import judge
import lists
import runner

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
SCENARIOS = ("default", "noautocreate")


def arguments():
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    parser = argparse.ArgumentParser(prog="librdkafka.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="HOST:PORT | NUMBER", help="a running broker, empty; single test numbers, of any list")
    parser.add_argument("--reference", action="store_true", help="run the same tests on three brokers of Apache Kafka beside (install reference)")
    parser.add_argument("--only-reference", action="store_true", help="run them there alone")
    parser.add_argument("--docker", action="store_true", help="build the broker's image and run it in containers")
    parser.add_argument("--reshard", action="store_true", help="all ranges of rangeway split and merge without rest meanwhile, its own topics' too")
    parser.add_argument("--http", metavar="HOST:PORT", help="with --reshard and a running broker: its HTTP door")
    parser.add_argument("--scenario", choices=SCENARIOS, default=os.environ.get("SCENARIO"), help="of a running broker (default: default); else only that one")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", 2)), help="test processes at a time (2)")
    parser.add_argument("--limit", type=int, default=int(os.environ.get("LIMIT", 180)), help="seconds until a test is given up, where its list does not say more (180)")
    parser.add_argument("--pause-ms", type=int, default=50, help="between two splits or merges at most (50)")
    parser.add_argument("--out", default=os.environ.get("OUT", "librdkafka-out"), help="where logs go (librdkafka-out)")
    parser.add_argument("--target", default=target, help=argparse.SUPPRESS)
    parser.add_argument("--home", default=os.environ.get("RANGEWAY_COMPAT_HOME") or os.path.join(target, "compat"), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    parsed.address = next((what for what in parsed.what if ":" in what), None)
    parsed.numbers = tuple(what for what in parsed.what if ":" not in what)
    parsed.out, parsed.home = os.path.abspath(parsed.out), os.path.abspath(parsed.home)
    if parsed.address and parsed.reshard and not parsed.http:
        parser.error("--reshard of a running broker wants its --http")
    return parsed


def program(target, name, variable=None):
    """A built program, release first."""
    paths = [os.path.join(target, profile, name) for profile in ("release", "debug")]
    if variable and os.environ.get(variable):
        paths = [os.environ[variable]]
    for path in paths:
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    sys.exit(f"librdkafka.sh: no {name}; build: cargo build --release --workspace --bins")


class Given:
    """A broker that somebody else started."""

    name = "rangeway"

    def __init__(self, bootstrap, http):
        self.bootstrap, self.http = bootstrap, http

    def stop(self):
        pass


class Storm:
    """Splits and merges until it is stopped; what they came to is in its log."""

    def __init__(self, command, http, pause_ms, log):
        self.log = log
        with open(log, "wb") as f:
            line = [command, "--http", http, "--pause-ms", str(pause_ms), "--", "cat"]
            self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=f, stderr=f)

    def stop(self):
        """Errors: when the broker answered a split or merge as it should not."""
        self.process.stdin.close()
        status = self.process.wait()
        with open(self.log, errors="replace") as f:
            print(f.read().strip())
        return status == 0


def start(args, scenario):
    """The brokers of a scenario, rangeway first."""
    folder = os.path.join(args.out, f"brokers-{scenario}")
    started = []
    try:
        if args.address:
            started.append(Given(args.address, args.http))
        elif not args.only_reference:
            at = os.path.join(folder, "rangeway")
            if args.docker:
                started.append(brokers.Container(args.image, at, scenario))
            else:
                started.append(brokers.Rangeway(program(args.target, "rangeway", "RANGEWAY_BIN"), at, scenario))
        if args.reference or args.only_reference:
            started.append(brokers.Reference(os.path.join(args.home, "reference/libs"), os.path.join(folder, "reference"), scenario))
    except BaseException:
        for broker in started:
            broker.stop()
        raise
    return started


def run(args, tests, started, scenario, libs):
    """Runs the tests on each broker in turns; answers results by side and test."""
    by_number = {}
    for test in tests:
        by_number.setdefault((lists.number(test.name), lists.part(test.name)), []).append(test)
    limit = {n: sum(t.limit or args.limit for t in group) for n, group in by_number.items()}
    tools = os.environ.get("KAFKA_PATH") or (runner.kafka_tools(os.path.join(args.out, "kafka"), libs) if os.path.isdir(libs) else None)
    suites = {b.name: runner.Suite(args.tests, b.bootstrap, scenario, os.path.join(args.out, b.name), tools) for b in started}
    results = {name: {} for name in suites}

    def take(side, number, attempt):
        for name, result in suites[side].run(*number, by_number[number], limit[number], attempt).items():
            if attempt == 1 or results[side][name].outcome == "failed":
                results[side][name] = result
                print(f"{side}\t{name}\t{result.outcome}\t{result.seconds} s{' (second try)' if attempt == 2 else ''}", flush=True)

    # The longest first, so that none of them is left alone at the end.
    order = sorted(by_number, key=lambda n: (-limit[n], n[0], n[1] or ""))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(take, side, number, 1) for number in order for side in suites]:
            done.result()
    for side, of_side in results.items():
        for number in order:
            # What is listed as a failure has nothing to win by a second try on rangeway; on the reference it has.
            if any(of_side[t.name].outcome == "failed" and (t.expect == "pass" or side == "reference") for t in by_number[number]):
                take(side, number, 2)
    return results


def main():
    args = arguments()
    args.tests = os.path.join(args.home, "librdkafka", "tests")
    if not os.access(os.path.join(args.tests, "test-runner"), os.X_OK):
        print("SKIPPED librdkafka: the suite is not built; install: compat-tests/install librdkafka")
        return 0
    args.tests = os.path.realpath(args.tests)
    libs = os.path.join(args.home, "reference/libs")
    if (args.reference or args.only_reference) and not os.path.isdir(libs):
        print("SKIPPED reference: the reference broker is not installed; install: compat-tests/install reference")
        args.reference = False
        if args.only_reference:
            return 0
    if not os.path.isdir(libs) and not os.environ.get("KAFKA_PATH"):
        print("no Kafka tools, which some tests start and skip without; install: compat-tests/install reference")
    os.makedirs(args.out, exist_ok=True)
    if args.docker:
        args.image = subprocess.run([os.path.join(ROOT, "docker/build")], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    consumer = os.environ.get("TEST_CONSUMER_GROUP_PROTOCOL") == "consumer"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    listed, chosen, sides, calm = lists.read(HERE), [], {}, True
    for scenario in (args.scenario,) if args.scenario else ("default",) if args.address else SCENARIOS:
        tests = lists.choose(listed, scenario, args.numbers, consumer, args.reshard)
        if not tests:
            continue
        started, storm = start(args, scenario), None
        try:
            if args.reshard:
                storm = Storm(program(args.target, "reshard-storm", "RESHARD_STORM"), started[0].http, args.pause_ms, os.path.join(args.out, f"storm-{scenario}.log"))
            for side, results in run(args, tests, started, scenario, libs).items():
                sides.setdefault(side, {}).update(results)
        finally:
            if storm:
                calm &= storm.stop()
            for broker in started:
                broker.stop()
        chosen += tests
    if not chosen:
        sys.exit("librdkafka.sh: no such test")
    return report(args, sorted(chosen, key=lambda test: test.name), sides, calm)


def report(args, tests, sides, calm):
    lines = judge.table(tests, sides)
    lines += ["", *(f"{side}: {judge.counts(results)}" for side, results in sides.items())]
    wrong = [] if args.only_reference else judge.wrongs(tests, sides["rangeway"], sides.get("reference"))
    if not calm:
        wrong.append("the storm: a split or merge was answered as it should not be")
    lines += [f"WRONG {line}" for line in wrong] or ["all as listed"]
    with open(os.path.join(args.out, "table.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
