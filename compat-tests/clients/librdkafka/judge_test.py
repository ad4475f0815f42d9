"""python3 -m unittest judge_test"""

import unittest

import lists
import runner
from judge import Result, counts, table, verdict, wrongs

outcome = runner.outcome
LISTED = lists.parse("# head\n0001_a default\n0002_b noautocreate 180 fail\n0003_c default - pass\n", "pass")
FAILING = lists.parse("0004_d default 600\n0005_e default - skip\n", "fail")
WAITING = lists.parse("0170_s\tShareFetch\n", "wait")
ALL = LISTED + FAILING + WAITING


def result(outcome, tries=1):
    return Result(outcome, tries, 3)


class Judged(unittest.TestCase):
    def test_a_listed_pass_must_pass_at_either_try(self):
        self.assertIsNone(verdict(LISTED[0], result("passed")))
        self.assertIsNone(verdict(LISTED[0], result("passed", 2)))
        for other in ("failed", "skipped"):
            self.assertIn(other, verdict(LISTED[0], result(other, 2)))

    def test_a_listed_failure_that_passes_is_wrong_until_it_is_moved(self):
        self.assertIsNone(verdict(FAILING[0], result("failed")))
        self.assertIsNone(verdict(FAILING[0], result("skipped")))
        skips = lists.choose(ALL, "default", consumer=True)[1]
        self.assertIsNone(verdict(skips, result("skipped")))
        self.assertIn("skip", verdict(skips, result("failed")))
        self.assertIn("move it", verdict(FAILING[0], result("passed")))
        self.assertIn("move it", verdict(FAILING[0], result("passed"), result("passed")))

    def test_the_bar_is_what_the_reference_passes_in_the_same_run(self):
        self.assertIsNone(verdict(LISTED[0], result("failed", 2), result("failed", 2)))
        self.assertIsNotNone(verdict(LISTED[0], result("failed", 2), result("passed", 2)))
        self.assertIsNotNone(verdict(LISTED[0], result("skipped"), result("passed")))

    def test_what_did_not_run_is_wrong_and_what_waits_is_not_judged(self):
        self.assertEqual(verdict(LISTED[0], None), "did not run")
        self.assertIsNone(verdict(WAITING[0], result("failed", 2)))
        found = wrongs(LISTED, {"0001_a": result("passed"), "0002_b": result("failed", 2)})
        self.assertEqual([line.split(":")[0] for line in found], ["0002_b", "0003_c"])

    def test_lists_are_chosen_by_scenario_number_and_protocol(self):
        names = lambda *args, **kw: [t.name for t in lists.choose(ALL, *args, **kw)]
        self.assertEqual(names("default"), ["0001_a", "0003_c", "0004_d", "0005_e"])
        self.assertEqual(names("noautocreate"), ["0002_b"])
        self.assertEqual(names("default", ("0170", "0001")), ["0001_a", "0170_s"])
        self.assertEqual(names("default", consumer=True), ["0003_c", "0005_e"])
        with_consumer = lists.choose(ALL, "noautocreate", consumer=True)
        self.assertEqual([(t.name, t.expect, t.limit) for t in with_consumer], [("0002_b", "fail", 180)])

    def test_what_measures_time_is_not_judged_amid_a_storm(self):
        timed = lists.parse("0055_producer_latency default\n0056_x default\n", "pass")
        self.assertEqual([t.expect for t in lists.choose(timed, "default", storm=True)], ["wait", "pass"])
        self.assertEqual([t.expect for t in lists.choose(timed, "default")], ["pass", "pass"])

    def test_the_runner_says_what_became_of_a_test_and_of_a_part(self):
        row = "| 0081_admin      |     PASSED |   0.013s |\n"
        part = "[0081_admin / 0.1s] [ do_test_ListOffsets:4722: temp queue: PASS (0.05s) ]\n"
        self.assertEqual(outcome(row, "0081_admin"), "passed")
        self.assertEqual(outcome(part + row, "0081_admin:do_test_ListOffsets"), "passed")
        self.assertEqual(outcome(row, "0081_admin:do_test_ListOffsets"), "failed")
        self.assertEqual(outcome(row.replace("PASSED", "\x1b[33mSKIPPED\x1b[0m"), "0081_admin"), "skipped")
        self.assertEqual(outcome("[0001_a / 1s] ==== Test 0001_a PASSED ====\nkilled\n", "0001_a"), "passed")
        self.assertEqual(outcome("killed\n", "0001_a"), "failed")

    def test_the_table_has_a_column_for_each_side(self):
        lines = table(LISTED[:1], {"rangeway": {"0001_a": result("passed", 2)}, "reference": {}})
        self.assertEqual(lines[0].split(), ["test", "rangeway", "reference", "listed", "as"])
        self.assertEqual(lines[1].split(), ["0001_a", "passed", "at", "the", "second", "try", "3", "s", "-", "pass"])

    def test_tries_are_counted_apart(self):
        said = counts({"a": result("passed"), "b": result("passed", 2), "c": result("failed", 2), "d": result("skipped")})
        self.assertEqual(said, "1 passed at the first try, 1 at the second, 1 failed, 1 skipped")


if __name__ == "__main__":
    unittest.main()
