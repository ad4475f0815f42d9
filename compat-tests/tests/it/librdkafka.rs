//! How librdkafka's own tests are judged: the tests of the judge, and the lists against what is written about them.

use std::fs;
use std::process::Command;

use rangeway_compat_tests::{skip, suite};

#[test]
fn the_judge_of_librdkafkas_tests_sees_what_is_wrong() {
    if !suite::on_path("python3") {
        return skip::announce("librdkafka-judge", "no python3 on the path", "apt-get install python3");
    }
    let done = Command::new("python3")
        .args(["-B", "-m", "unittest", "judge_test"])
        .current_dir(suite::folder("librdkafka"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn each_listed_failure_is_argued() {
    let read = |file: &str| fs::read_to_string(suite::folder("librdkafka").join(file)).unwrap();
    let (failing, why) = (read("failing.list"), read("why.md"));
    for name in
        failing.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next())
    {
        assert!(why.contains(&format!("## {name}\n")), "why.md says nothing of {name}");
    }
}
