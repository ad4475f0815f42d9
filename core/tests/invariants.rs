//! `docs/invariants.md` against the sources: every number that a module's head gives stands in the table, and every
//! place that the table names is there. What the places do is for readers to judge.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("core lies in the workspace").to_owned()
}

fn table() -> String {
    std::fs::read_to_string(top().join("docs/invariants.md")).expect("the table can be read")
}

/// `INV-NAME-1` in a text, in any place.
fn numbers(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("INV-") {
        let name: String = text[at..]
            .chars()
            .take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '-')
            .collect();
        if name.ends_with(|c: char| c.is_ascii_digit()) {
            found.insert(name);
        }
    }
    found
}

/// The places of a row, as (file, name).
fn places(row: &str) -> Vec<(String, String)> {
    let quoted = row.split('`').skip(1).step_by(2);
    quoted.filter_map(|q| q.split_once("::").map(|(file, name)| (file.to_owned(), name.to_owned()))).collect()
}

fn is_there(file: &str, name: &str) -> bool {
    let files = ["core/src", "gateway/src"].map(|src| top().join(src).join(file));
    let text: String = files.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    ["fn ", "struct ", "enum "].iter().any(|kind| {
        text.match_indices(&format!("{kind}{name}")).any(|(at, found)| {
            let after = text[at + found.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    })
}

#[test]
fn every_place_that_the_table_names_is_there() {
    let table = table();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| INV-")).collect();
    assert!(rows.len() > 30, "the table was found");
    let missing: Vec<String> = rows
        .iter()
        .flat_map(|row| places(row))
        .filter(|(file, name)| !is_there(file, name))
        .map(|(file, name)| format!("{file}::{name}"))
        .collect();
    assert!(missing.is_empty(), "docs/invariants.md names what is not there: {missing:#?}");
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert_eq!(cells.len(), 4, "{row}");
        assert!(!places(cells[2]).is_empty() && !places(cells[3]).is_empty(), "asserted and tested: {row}");
    }
}

#[test]
fn every_number_of_a_module_is_in_the_table_once() {
    let table = table();
    let rows: Vec<&str> =
        table.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    let known: BTreeSet<String> =
        rows.iter().filter(|id| id.starts_with("INV-")).map(|id| (*id).to_owned()).collect();
    assert_eq!(known.len(), rows.iter().filter(|id| id.starts_with("INV-")).count(), "a number stands twice");
    let mut used = BTreeSet::new();
    for src in ["core/src", "gateway/src"] {
        visit(&top().join(src), &mut |text| used.extend(numbers(text)));
    }
    assert!(!used.is_empty(), "the sources were found");
    let unknown: Vec<&String> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "not in docs/invariants.md: {unknown:?}");
}

#[test]
fn a_number_and_a_place_are_read_from_a_text() {
    assert_eq!(
        numbers("//! INV-A-1 this · INV-LONG-23 that, not INV-"),
        ["INV-A-1".to_owned(), "INV-LONG-23".to_owned()].into()
    );
    assert_eq!(places("| INV-A-1 | x | `a/b.rs::f` | `c.rs::g`, `word` |").len(), 2);
    assert!(is_there("loglet/sequencer.rs", "reserve"));
    assert!(!is_there("loglet/sequencer.rs", "reserv") && !is_there("nowhere.rs", "reserve"));
}

fn visit(dir: &Path, take: &mut impl FnMut(&str)) {
    for item in std::fs::read_dir(dir).expect("a folder can be read") {
        let path = item.expect("an entry can be read").path();
        if path.is_dir() {
            visit(&path, take);
        } else if path.extension().is_some_and(|e| e == "rs") {
            take(&std::fs::read_to_string(&path).expect("a source can be read"));
        }
    }
}
