//! `rangeway demo` as a started process: it holds, and says so to people and programs.

use super::process::{rangeway, text};
use serde_json::Value;
use std::process::Command;

#[test]
fn the_demo_splits_and_merges_under_load_and_everything_holds() {
    let done = rangeway(&["demo", "--seconds", "3", "--rate", "800", "--ranges", "4", "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
    assert_eq!(text(&done.stderr), "");
    let outcome: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&outcome["held"], &outcome["fault_count"]), (&Value::from(true), &Value::from(0)));
    assert_eq!(outcome["produced"], outcome["consumed"], "{outcome}");
    for (key, least) in [("produced", 256), ("splits", 1), ("merges", 1), ("most_ranges", 4)] {
        assert!(outcome[key].as_u64().is_some_and(|n| n >= least), "{key} of {outcome}");
    }
}

#[test]
fn the_demo_keeps_its_data_when_told_where_and_prints_lines_where_no_terminal_is() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("kept");
    let arguments =
        ["demo", "--seconds", "1", "--rate", "300", "--ranges", "2", "--data", data.to_str().unwrap()];
    for topic in ["demo", "demo-2"] {
        let done = rangeway(&arguments);
        let said = text(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{said}{}", text(&done.stderr));
        assert!(said.starts_with("page   http://127.0.0.1:"), "{said}");
        assert!(said.contains(&format!("topic {topic},")), "what was there is left alone: {said}");
        for part in ["split 0 at partition 8: no appends for ", "merge 1 and 2: no appends for ", "\nheld: "]
        {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains('\x1b'), "no control characters: {said:?}");
    }
    assert!(data.join("control.redb").is_file());
}

#[test]
fn a_kcat_that_is_missing_is_named() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_rangeway"));
    let done =
        demo.args(["demo", "--client", "kcat", "--seconds", "1"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(1), ""));
    assert!(text(&done.stderr).contains("hint: install it (Debian: apt-get install kcat)"), "{done:?}");
    assert_eq!(rangeway(&["demo", "--ranges", "1"]).status.code(), Some(2));
}
