//! `rangeway demo` with a foreign client: kcat produces and consumes while ranges are split and merged.

use std::process::Command;

use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::skip;
use rangeway_compat_tests::suite::on_path;
use serde_json::Value;

#[test]
fn the_demo_holds_with_kcat() {
    if !on_path("kcat") {
        return skip::announce("demo", "no kcat on the path", "compat-tests/install kcat");
    }
    // Names the program; the demo starts a node of its own.
    let broker = Broker::prepare(Kind::Rangeway, &[]).unwrap();
    let mut demo = Command::new(broker.program());
    demo.args(["demo", "--client", "kcat", "--seconds", "4", "--rate", "1000", "--ranges", "4", "--json"]);
    let done = demo.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let outcome: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(outcome["held"], true, "{outcome}");
    assert!(outcome["splits"].as_u64() > Some(0) && outcome["merges"].as_u64() > Some(0), "{outcome}");
}
