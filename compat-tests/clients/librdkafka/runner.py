"""Runs librdkafka's test runner, one process a test number: a test that fails takes its whole process with it."""

import os
import re
import shutil
import subprocess
import time

from judge import Result

# What the tests look for where they run, and one level up.
BESIDE = ("java", "fixtures", "interceptor_test", "plugin_test", "Makefile")
ABOVE = ("src", "mklove", "Makefile.config")
TOOLS = {
    "kafka-run-class.sh": "",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}


def link(target, path):
    if os.path.exists(target) and not os.path.lexists(path):
        try:
            os.symlink(target, path)
        except FileExistsError:
            pass  # Another number was faster.


def kafka_tools(folder, libs):
    """A folder like Kafka's distribution, with the tools that the tests start; libs: where its jars are."""
    os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
    for name, tool in TOOLS.items():
        path = os.path.join(folder, "bin", name)
        with open(path, "w") as f:
            f.write(f'#!/bin/sh\nexec java -Xmx256m -Dlog4j2.level=warn -cp "$CLASSPATH:{libs}/*" {tool} "$@"\n')
        os.chmod(path, 0o755)
    link(libs, os.path.join(folder, "libs"))
    return folder


class Suite:
    """The built suite, and one broker that it runs against; logs and working folders go to `out`."""

    def __init__(self, tests, bootstrap, scenario, out, kafka_path=None):
        self.tests, self.bootstrap, self.scenario, self.out, self.kafka_path = tests, bootstrap, scenario, out, kafka_path
        os.makedirs(os.path.join(out, "run"), exist_ok=True)
        self.conf = os.path.join(out, f"{scenario}.conf")
        lines = ("test.timeout.multiplier=2", f"bootstrap.servers={bootstrap}", "broker.address.family=v4", "security.protocol=PLAINTEXT")
        with open(self.conf, "w") as f:
            f.write("\n".join(lines) + "\n")

    def environment(self, number, part):
        lib = os.path.join(self.tests, "..")
        env = dict(os.environ, RDKAFKA_TEST_CONF=self.conf, TEST_SCENARIO=self.scenario, TESTS=number, TEST_KAFKA_VERSION="4.3.0")
        env.update(BROKERS=self.bootstrap, RDKAFKA_GITVER="suite", LD_LIBRARY_PATH=f"{lib}/src:{lib}/src-cpp")
        if part:
            env["SUBTESTS"] = part
        env.pop("CI", None)
        env.pop("KAFKA_PATH", None)
        if self.kafka_path:
            env["KAFKA_PATH"] = self.kafka_path
        return env

    def run(self, number, part, tests, limit, attempt=1):
        """Runs the tests of a number, or one part of its test, at most `limit` seconds; answers each one's result by name."""
        called = f"{self.scenario}-{number}" + (f"-{part}" if part else "")
        work = os.path.join(self.out, "run", called)
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(work)
        for name in BESIDE:
            link(os.path.join(self.tests, name), os.path.join(work, name))
        for name in ABOVE:
            link(os.path.join(self.tests, "..", name), os.path.join(self.out, "run", name))
        log = os.path.join(self.out, f"{called}.{attempt}.log")
        began = time.monotonic()
        with open(log, "wb") as f:
            command = ["timeout", "--signal=KILL", str(limit), os.path.join(self.tests, "test-runner"), "-p1", "-L"]
            subprocess.run(command, cwd=work, env=self.environment(number, part), stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        seconds = round(time.monotonic() - began)
        with open(log, errors="replace") as f:
            said = f.read()
        return {test.name: Result(outcome(said, test.name), attempt, seconds) for test in tests}


def outcome(said, name):
    """What the runner's output says of a test: its row of the summary or, when the process ended before, its last line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    name, _, part = name.partition(":")
    # A part that there is not would pass as well: nothing of the test is run then.
    if part and not re.search(rf"\[ \w*{re.escape(part)}:.*: PASS ", plain):
        return "failed"
    rows = re.findall(rf"^\| {re.escape(name)} +\| +([A-Z]+) \|", plain, re.MULTILINE)
    if rows:
        return {"PASSED": "passed", "SKIPPED": "skipped"}.get(rows[-1], "failed")
    if f" Test {name} PASSED " in plain:
        return "passed"
    return "failed"
