//! Splits and merges as operators ask for them: over HTTP and on the command line, against a started process.

use super::process::{Node, text};
use serde_json::{Value, json};

const NONE: &Value = &Value::Null;

/// A node with the topic `orders` of 8 partitions in one range.
fn node(dir: &tempfile::TempDir) -> Node {
    let node = Node::start(dir.path(), &[]);
    let made = node.json("POST", "/api/v1/topics", &json!({"name": "orders", "partitions": 8}));
    assert_eq!(made.0, 201, "{made:?}");
    node
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("an error, not {answer}"))
}

/// (id, first, last, state) of every range that is shown.
fn ranges(node: &Node) -> Vec<(u64, i64, i64, String)> {
    let (status, list) = node.json("GET", "/api/v1/topics/orders/ranges", NONE);
    assert_eq!(status, 200, "{list}");
    let row = |r: &Value| {
        let number = |key: &str| r[key].as_i64().unwrap();
        (r["id"].as_u64().unwrap(), number("first"), number("last"), r["state"].as_str().unwrap().to_owned())
    };
    list.as_array().unwrap().iter().map(row).collect()
}

fn row(id: u64, first: i64, last: i64, state: &str) -> (u64, i64, i64, String) {
    (id, first, last, state.to_owned())
}

#[test]
fn ranges_are_split_and_merged_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let (status, split) =
        node.json("POST", "/api/v1/topics/orders/ranges/0/split", &json!({"at": 3, "dry_run": false}));
    assert_eq!(status, 200, "{split}");
    assert_eq!(
        (&split["state"], &split["closed"], &split["created"], &split["topic"]),
        (&json!("done"), &json!([0]), &json!([1, 2]), &json!("orders")),
        "{split}"
    );
    assert!(split["paused_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{split}");
    assert!(split["ended_at"].as_i64() >= split["started_at"].as_i64(), "{split}");
    let shown = [row(0, 0, 7, "closed"), row(1, 0, 2, "active"), row(2, 3, 7, "active")];
    assert_eq!(ranges(&node), shown);

    let halved = node.json("POST", "/api/v1/topics/orders/ranges/2/split", NONE);
    assert_eq!((halved.0, &halved.1["created"]), (200, &json!([3, 4])), "{halved:?}");
    let (status, merged) =
        node.json("POST", "/api/v1/topics/orders/ranges/merge", &json!({"ranges": [3, 1]}));
    assert_eq!(
        (status, &merged["closed"], &merged["created"]),
        (200, &json!([1, 3]), &json!([5])),
        "{merged}"
    );
    let active: Vec<_> = ranges(&node).into_iter().filter(|range| range.3 == "active").collect();
    assert_eq!(active, [row(5, 0, 4, "active"), row(4, 5, 7, "active")]);

    let (status, all) = node.json("GET", "/api/v1/operations", NONE);
    assert_eq!((status, all.as_array().map(Vec::len)), (200, Some(3)), "{all}");
    assert_eq!((&all[0], &all[2]), (&split, &merged), "oldest first");
    let one = format!("/api/v1/operations/{}", split["operation"].as_str().unwrap());
    assert_eq!(node.json("GET", &one, NONE), (200, split));
    let over = node.json("POST", &format!("{one}/abort"), NONE);
    assert_eq!((over.0, code(&over.1)), (422, "impossible"), "what is done cannot be given up");

    let (_, metrics) = node.http("GET", "/metrics", "", "");
    for line in [
        "rangeway_range_splits_total 2\n",
        "rangeway_range_merges_total 1\n",
        "rangeway_reshards_running 0\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[test]
fn a_dry_run_says_what_would_become_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let split = node.json("POST", "/api/v1/topics/orders/ranges/0/split", &json!({"dry_run": true}));
    let halves = json!([{"first": 0, "last": 3}, {"first": 4, "last": 7}]);
    assert_eq!(split, (200, json!({"dry_run": true, "closes": [0], "creates": halves})));
    assert_eq!(ranges(&node), [row(0, 0, 7, "active")]);
    assert_eq!(node.json("POST", "/api/v1/topics/orders/ranges/0/split", NONE).0, 200);
    let merge = json!({"ranges": [1, 2], "dry_run": true});
    let merge = node.json("POST", "/api/v1/topics/orders/ranges/merge", &merge);
    assert_eq!(
        merge,
        (200, json!({"dry_run": true, "closes": [1, 2], "creates": [{"first": 0, "last": 7}]}))
    );
    assert_eq!(node.json("GET", "/api/v1/operations", NONE).1.as_array().map(Vec::len), Some(1));
}

#[test]
fn what_cannot_be_split_or_merged_is_said_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let one = node.json("POST", "/api/v1/topics", &json!({"name": "one", "partitions": 1}));
    assert_eq!(one.0, 201);
    assert_eq!(node.json("POST", "/api/v1/topics/orders/ranges/0/split", &json!({"at": 2})).0, 200);
    assert_eq!(node.json("POST", "/api/v1/topics/orders/ranges/2/split", &json!({"at": 5})).0, 200);
    let orders = "/api/v1/topics/orders/ranges";
    for (path, body, status, expected) in [
        (format!("{orders}/1/split"), "{\"at\": 0}", 422, "impossible"),
        (format!("{orders}/1/split"), "{\"at\": 2}", 422, "impossible"),
        (format!("{orders}/1/split"), "{\"at\": -1}", 422, "impossible"),
        ("/api/v1/topics/one/ranges/0/split".to_owned(), "", 422, "impossible"),
        ("/api/v1/topics/one/ranges/0/split".to_owned(), "{\"dry_run\": true}", 422, "impossible"),
        (format!("{orders}/9/split"), "", 404, "unknown_range"),
        (format!("{orders}/0/split"), "", 409, "range_closed"),
        (format!("{orders}/x/split"), "", 400, "bad_request"),
        (format!("{orders}/1/split"), "{\"where\": 1}", 400, "bad_request"),
        ("/api/v1/topics/none/ranges/0/split".to_owned(), "", 404, "unknown_topic"),
        (format!("{orders}/merge"), "", 400, "bad_request"),
        (format!("{orders}/merge"), "{\"ranges\": [1]}", 400, "bad_request"),
        (format!("{orders}/merge"), "{\"ranges\": [1, 1]}", 422, "impossible"),
        (format!("{orders}/merge"), "{\"ranges\": [1, 4]}", 422, "impossible"),
        (format!("{orders}/merge"), "{\"ranges\": [1, 2]}", 409, "range_closed"),
        (format!("{orders}/merge"), "{\"ranges\": [1, 7]}", 404, "unknown_range"),
        ("/api/v1/operations/none/abort".to_owned(), "", 404, "unknown_operation"),
        (format!("/api/v1/operations/{}/abort", uuid::Uuid::nil()), "", 404, "unknown_operation"),
    ] {
        let (got, answer) = node.http("POST", &path, "", body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((got, code(&answer)), (status, expected), "{path} {body}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    }
    let closed = node.json("POST", &format!("{orders}/0/split"), NONE).1;
    assert_eq!(closed["error"]["hint"], "its partitions went on in 1 and 2");
    let unknown = node.json("GET", "/api/v1/operations/x", NONE);
    assert_eq!((unknown.0, code(&unknown.1)), (404, "unknown_operation"));
    let method = node.json("GET", &format!("{orders}/1/split"), NONE);
    assert_eq!((method.0, code(&method.1)), (405, "method_not_allowed"));
    let evil = "origin: http://evil.example\r\n";
    assert_eq!(node.http("POST", &format!("{orders}/1/split"), evil, "").0, 403);
}

#[test]
fn the_command_line_splits_merges_and_explains() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let ok = |args: &[&str]| {
        let done = node.admin(args);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {}", text(&done.stderr));
        assert_eq!(text(&done.stderr), "", "no progress where no terminal is");
        text(&done.stdout).to_owned()
    };
    let dry = ok(&["ranges", "split", "orders", "--range", "0", "--at", "6", "--dry-run"]);
    assert_eq!(dry, "possible: range 0 would be closed and become partitions 0 to 5 | partitions 6 to 7\n");
    let split = ok(&["ranges", "split", "orders", "--range", "0", "--at", "6"]);
    assert!(split.starts_with("done: split of range 0 at 6 made ranges 1,2 (no appends for "), "{split}");
    let merged: Value =
        serde_json::from_str(&ok(&["ranges", "merge", "orders", "--ranges", "1,2", "--json"])).unwrap();
    for key in ["operation", "state", "closed", "created", "paused_ms"] {
        assert!(merged.get(key).is_some(), "{key} in {merged}");
    }
    assert_eq!((&merged["state"], &merged["created"]), (&json!("done"), &json!([3])));
    let listed = ok(&["ranges", "list", "orders"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..4], ["RANGE", "PARTITIONS", "STATE", "PRIMARY"]);
    assert!(rows.iter().any(|row| row[..3] == ["0", "0-7", "closed"]), "{listed}");
    assert!(rows.iter().any(|row| row[..3] == ["3", "0-7", "active"]), "{listed}");
    let body = node.http("GET", "/api/v1/topics/orders/ranges", "", "").1;
    assert_eq!(ok(&["ranges", "list", "orders", "--json"]).trim_end(), body);

    let operations = ok(&["operations", "list"]);
    assert_eq!(operations.lines().count(), 3, "{operations}");
    assert!(operations.contains("merge of ranges 1 and 2"), "{operations}");
    let id = merged["operation"].as_str().unwrap();
    let over = node.admin(&["operations", "abort", id, "--json"]);
    assert_eq!(over.status.code(), Some(1));
    assert_eq!(code(&serde_json::from_slice(&over.stderr).unwrap()), "impossible");
    let explained = ok(&["ranges", "explain", "orders"]);
    for part in ["0 -> 1 + 2", "1 + 2 -> 3", "merge of ranges 1 and 2", "took no appends for", "records/s"] {
        assert!(explained.contains(part), "{part} in {explained}");
    }

    for (args, exit) in [
        (&["ranges", "split", "orders", "--range", "0"][..], 1),
        (&["ranges", "split", "orders", "--range", "3", "--at", "8"], 1),
        (&["ranges", "split", "none", "--range", "3"], 1),
        (&["ranges", "split", "orders"], 2),
        (&["ranges", "merge", "orders", "--ranges", "1"], 2),
        (&["ranges", "merge", "orders", "--ranges", "1,2,3"], 2),
        (&["operations", "abort"], 2),
    ] {
        let refused = node.admin(args);
        assert_eq!(refused.status.code(), Some(exit), "{args:?}: {}", text(&refused.stderr));
        assert_eq!(text(&refused.stdout), "");
    }
    let refused = node.admin(&["ranges", "split", "orders", "--range", "0"]);
    assert_eq!(text(&refused.stderr), "error: range 0 is closed\nhint: its partitions went on in 1 and 2\n");
}
