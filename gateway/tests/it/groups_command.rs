//! `rangeway groups` as a started process: what it shows, what it changes, what it refuses.

use crate::process::{Node, rangeway, text};
use crate::support::{Batch, Topic, produce_request, topic_name};
use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, GroupId};
use kafka_protocol::protocol::StrBytes;
use serde_json::{Value, json};
use std::process::Output;

/// A node with topic `t`: three partitions with 2, 4 and 1 records, a second, a third… after 1970.
struct Started {
    node: Node,
    _dir: tempfile::TempDir,
}

impl Started {
    fn new() -> Started {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(dir.path(), &[]);
        let made = node.admin(&["topics", "create", "t", "--partitions", "3"]);
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        let topic = Topic { name: "t".to_owned(), id: uuid::Uuid::nil() };
        let batch = |times: &[i64]| Some(Batch::at(times.to_vec()).bytes());
        let rows =
            [(0, batch(&[1_000, 2_000])), (1, batch(&[1_000, 2_000, 3_000, 4_000])), (2, batch(&[1_000]))];
        let answer = node.kafka().call(&produce_request(&topic, -1, &rows), 9).unwrap();
        assert!(answer.responses[0].partition_responses.iter().all(|row| row.error_code == 0));
        Started { node, _dir: dir }
    }

    fn groups(&self, words: &[&str]) -> Output {
        rangeway(&[&["groups", "--bootstrap", &self.node.kafka], words].concat())
    }

    /// Exit code, standard output, standard error.
    fn said(&self, words: &[&str]) -> (i32, String, String) {
        let done = self.groups(words);
        let code = done.status.code().unwrap();
        (code, text(&done.stdout).to_owned(), text(&done.stderr).to_owned())
    }

    fn json(&self, words: &[&str]) -> Value {
        let done = self.groups(&[words, &["--json"]].concat());
        assert_eq!(done.status.code(), Some(0), "{words:?}: {}", text(&done.stderr));
        serde_json::from_slice(&done.stdout).unwrap()
    }

    /// The code of a failure as programs get it.
    fn failure(&self, words: &[&str]) -> String {
        let done = self.groups(&[words, &["--json"]].concat());
        assert_eq!(done.status.code(), Some(1), "{words:?}: {}", text(&done.stdout));
        let error: Value = serde_json::from_slice(&done.stderr).unwrap();
        error["error"]["code"].as_str().unwrap().to_owned()
    }

    /// Partition, from, to of each row.
    fn reset(&self, words: &[&str]) -> Vec<(i64, Option<i64>, i64)> {
        let done = self.json(&[&["reset-offsets", "g"], words].concat());
        assert_eq!(done["executed"], words.contains(&"--execute"));
        let row = |row: &Value| {
            (row["partition"].as_i64().unwrap(), row["from"].as_i64(), row["to"].as_i64().unwrap())
        };
        done["offsets"].as_array().unwrap().iter().map(row).collect()
    }

    /// A heartbeat of member `m` of group `g`; the epoch that it has then.
    fn beat(&self, epoch: i32) -> i32 {
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(StrBytes::from_static_str("g")))
            .with_member_id(StrBytes::from_static_str("m"))
            .with_member_epoch(epoch)
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(vec![topic_name("t")]))
            .with_topic_partitions(Some(vec![]));
        let answer = self.node.kafka().call(&request, 1).unwrap();
        assert_eq!(answer.error_code, 0, "{answer:?}");
        answer.member_epoch
    }
}

#[test]
fn offsets_are_reset_as_asked_and_only_when_it_is_to_be_done() {
    let s = Started::new();
    assert_eq!(s.said(&["list"]), (0, "no groups\n".to_owned(), String::new()));
    assert_eq!(s.failure(&["describe", "g"]), "group_not_found");
    // Only shown: there is no group afterwards.
    let all = ["--topic", "t"];
    let reset = |more: &[&str]| s.reset(&[&all, more].concat());
    assert_eq!(reset(&["--to-latest"]), [(0, None, 2), (1, None, 4), (2, None, 1)]);
    assert_eq!(s.failure(&["describe", "g"]), "group_not_found");
    assert_eq!(s.failure(&["reset-offsets", "g", "--all-topics", "--to-latest"]), "no_offsets");
    assert_eq!(s.failure(&["reset-offsets", "g", "--topic", "t", "--shift-by", "1"]), "cannot_shift");

    assert_eq!(reset(&["--to-latest", "--execute"]), [(0, None, 2), (1, None, 4), (2, None, 1)]);
    assert_eq!(reset(&["--to-earliest"]), [(0, Some(2), 0), (1, Some(4), 0), (2, Some(1), 0)]);
    assert_eq!(reset(&["--to-current"]), [(0, Some(2), 2), (1, Some(4), 4), (2, Some(1), 1)]);
    assert_eq!(reset(&["--to-offset", "3"]), [(0, Some(2), 2), (1, Some(4), 3), (2, Some(1), 1)]);
    assert_eq!(reset(&["--shift-by", "-3"]), [(0, Some(2), 0), (1, Some(4), 1), (2, Some(1), 0)]);
    let time = ["--to-datetime", "1970-01-01T00:00:01.500"];
    assert_eq!(reset(&time), [(0, Some(2), 1), (1, Some(4), 1), (2, Some(1), 1)]);
    assert_eq!(s.reset(&["--topic", "t:1,0", "--to-earliest", "--execute"]).len(), 2);
    let later = s.reset(&["--all-topics", "--to-current"]);
    assert_eq!(later, [(0, Some(0), 0), (1, Some(0), 0), (2, Some(1), 1)]);
    for (words, code) in [
        (["--topic", "t:3", "--to-latest"], "unknown_partition"),
        (["--topic", "nothing", "--to-latest"], "unknown_topic"),
    ] {
        assert_eq!(s.failure(&[&["reset-offsets", "g"], &words[..]].concat()), code);
    }
    let (code, said, warned) = s.said(&["reset-offsets", "g", "--topic", "t:0", "--to-offset", "9"]);
    assert_eq!((code, warned.as_str()), (0, "warning: t 0: 9 is beyond the end: 2\n"));
    assert_eq!(
        said,
        "TOPIC  PARTITION  FROM  TO\nt              0     0   2\nnothing was changed; --execute does it\n"
    );
    assert_eq!(s.said(&["reset-offsets", "g", "--topic", "t"]).0, 2, "where to?");
}

#[test]
fn a_group_with_members_is_shown_and_left_alone() {
    let s = Started::new();
    s.reset(&["--topic", "t:0,1", "--to-offset", "1", "--execute"]);
    let epoch = s.beat(0);
    let listed = s.json(&["list"]);
    assert_eq!(
        listed,
        json!([{ "group": "g", "type": "consumer", "state": "Stable", "protocol": "consumer" }])
    );
    let described = s.json(&["describe", "g"]);
    for (key, value) in [
        ("group", json!("g")),
        ("type", json!("consumer")),
        ("state", json!("Stable")),
        ("coordinator", json!(s.node.kafka)),
        ("assignor", json!("range-scoped")),
        ("epoch", json!(epoch)),
        ("assignment_epoch", json!(epoch)),
    ] {
        assert_eq!(described[key], value, "{key} of {described}");
    }
    assert_eq!(described["members"][0]["member"], "m");
    assert_eq!(described["members"][0]["reads"], json!({ "t": [0, 1, 2] }));
    let offset = |partition: i32, committed: Option<i64>, end: i64| {
        let lag = committed.map(|committed| end - committed);
        json!({ "topic": "t", "partition": partition, "committed": committed, "end": end, "lag": lag, "member": "m" })
    };
    let offsets = json!([offset(0, Some(1), 2), offset(1, Some(1), 4), offset(2, None, 1)]);
    assert_eq!(described["offsets"], offsets);
    let (_, shown, _) = s.said(&["describe", "g"]);
    assert!(shown.contains("t:0-2") && shown.contains("epoch        1, of the assignment 1"), "{shown}");

    assert_eq!(
        s.failure(&["reset-offsets", "g", "--topic", "t", "--to-earliest", "--execute"]),
        "group_active"
    );
    assert_eq!(s.failure(&["delete-offsets", "g", "--topic", "t"]), "offsets_not_deleted");
    assert_eq!(s.failure(&["delete", "g"]), "groups_not_deleted");
    assert_eq!(s.json(&["describe", "g"])["offsets"], offsets, "nothing was changed");

    assert_eq!(s.beat(-1), -1);
    let kept: Vec<Value> = s.json(&["describe", "g"])["offsets"].as_array().unwrap().clone();
    assert_eq!(kept.len(), 2);
    let deleted = s.json(&["delete-offsets", "g", "--topic", "t:0"]);
    assert_eq!(deleted["offsets"], json!([{ "topic": "t", "partition": 0, "error": null }]));
    assert_eq!(s.json(&["describe", "g"])["offsets"].as_array().unwrap().len(), 1);
    let (code, said, _) = s.said(&["delete", "g", "nobody"]);
    assert_eq!((code, said.as_str()), (1, "deleted g\nnot deleted nobody: there is no such group\n"));
    assert_eq!(s.failure(&["describe", "g"]), "group_not_found");
    assert_eq!(s.failure(&["delete-offsets", "g", "--topic", "t"]), "group_not_found");
}

#[test]
fn nobody_there_is_said() {
    let done = rangeway(&["groups", "list", "--bootstrap", "127.0.0.1:1", "--json"]);
    assert_eq!(done.status.code(), Some(1));
    let error: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(error["error"]["code"], "no_broker");
}
