//! Messages that say what to do: mistakes that people make at the command line.

use crate::process::{Node, rangeway, text};
use std::process::Output;

fn refused(output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let said = text(&output.stderr);
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} in {said}");
}

#[test]
fn verify_says_what_is_no_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let verify = |path: &std::path::Path| rangeway(&["verify", "--data", path.to_str().unwrap()]);
    refused(
        &verify(dir.path()),
        3,
        &["is no data directory: it has neither superblock nor extents", "--data"],
    );
    refused(&verify(&file), 3, &["is no data directory: it is a file"]);
    refused(&verify(&dir.path().join("gone")), 3, &["there is no such directory"]);
    drop(Node::start(&dir.path().join("data"), &[]));
    let superblock = dir.path().join("data").join("superblock");
    let mut bytes = std::fs::read(&superblock).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&superblock, bytes).unwrap();
    let said = verify(&dir.path().join("data"));
    assert!(!text(&said.stderr).contains("a damaged entry"), "{said:?}");
}

#[test]
fn the_kafka_port_is_not_taken_for_the_http_port() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    refused(&rangeway(&["topics", "list", "--server", &node.kafka]), 1, &["HTTP port", "not the Kafka port"]);
}

#[test]
fn an_unknown_config_is_not_taken_back_in_silence() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    assert_eq!(node.admin(&["topics", "create", "t"]).status.code(), Some(0));
    refused(&node.admin(&["topics", "alter", "t", "--unset", "foo"]), 1, &["foo"]);
    let known = node.admin(&["topics", "alter", "t", "--unset", "retention.ms"]);
    assert_eq!(known.status.code(), Some(0), "{known:?}");
}
