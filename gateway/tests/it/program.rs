//! The program as its users meet it: a started process, its command line, its HTTP and Kafka ports.

use crate::process::{Node, rangeway, serve, text};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::EpochEndOffset;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    AlterConfigsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest, DescribeConfigsRequest, FetchRequest, IncrementalAlterConfigsRequest,
    ListOffsetsRequest, OffsetForLeaderEpochRequest, TopicName, alter_configs_request,
    create_partitions_request::CreatePartitionsTopic, incremental_alter_configs_request,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_gateway::bench::client::Connection;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn word(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn named(name: &str) -> TopicName {
    TopicName(word(name))
}

#[test]
fn a_node_says_when_it_is_ready_and_stops_cleanly_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(dir.path(), &["--node-id", "7"]);
    assert_eq!(node.http("GET", "/healthz", "", ""), (200, "ok\n".to_owned()));
    assert_eq!(node.http("GET", "/readyz", "", ""), (200, "ok\n".to_owned()));
    let (_, cluster) = node.json("GET", "/api/v1/cluster", &Value::Null);
    assert_eq!(cluster["nodes"][0]["id"], 7);
    assert_eq!(cluster["nodes"][0]["address"], node.kafka);
    assert_eq!(cluster["nodes"][0]["state"], "alive");
    assert_eq!(cluster["blocked"], json!([]));

    let asked = Instant::now();
    node.signal(rustix::process::Signal::TERM);
    let status = node.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let mut rest = String::new();
    node.child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "stdout has the one line only");
}

#[test]
fn a_second_signal_stops_at_once_with_code_1() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(dir.path(), &[]);
    // Held still, so that the second one comes while the first is acted upon.
    node.signal(Signal::STOP);
    let state = format!("/proc/{}/stat", node.child.id());
    let stopped = || std::fs::read_to_string(&state).unwrap().contains(") T ");
    let until = Instant::now() + Duration::from_secs(20);
    while !stopped() {
        assert!(Instant::now() < until, "the process does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    for signal in [Signal::TERM, Signal::INT, Signal::CONT] {
        node.signal(signal);
    }
    assert_eq!(node.child.wait().unwrap().code(), Some(1));
    drop(node);
    drop(Node::start(dir.path(), &[]));
}

#[test]
fn a_data_directory_given_twice_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let again = dir.path().join("..").join(dir.path().file_name().unwrap());
    for again in [dir.path(), &again] {
        let twice = serve(dir.path(), &["--data", again.to_str().unwrap()]).output().unwrap();
        assert_eq!(twice.status.code(), Some(3));
        assert!(text(&twice.stderr).contains("is given twice"), "{}", text(&twice.stderr));
    }
}

#[test]
fn a_data_directory_in_use_and_a_taken_port_end_with_code_3() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = Node::start(dir.path(), &[]);
    let second = serve(dir.path(), &[]).output().unwrap();
    assert_eq!(second.status.code(), Some(3), "{}", text(&second.stderr));
    assert_eq!(text(&second.stdout), "");

    let mut command = Command::new(env!("CARGO_BIN_EXE_rangeway"));
    let taken = command
        .args(["serve", "--kafka", &node.kafka, "--http", "127.0.0.1:0", "--data"])
        .arg(other.path())
        .output()
        .unwrap();
    assert_eq!(taken.status.code(), Some(3), "{}", text(&taken.stderr));
    assert!(text(&taken.stderr).contains("in use"), "{}", text(&taken.stderr));
}

#[test]
fn a_start_that_fails_leaves_no_directories_behind_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&dir.path().join("other"), &[]);
    let new = dir.path().join("new");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--kafka", &node.kafka, "--http", "127.0.0.1:0"], 3, "in use"),
        (&["--kafka", "127.0.0.1:0", "--http", &node.http], 3, "in use"),
        (&["--set", "num.partitions=x"], 2, "num.partitions"),
        (&["--drive", "quorum(3, write=2)"], 3, "cannot be used here"),
        (&["--set", "disk.reserve.bytes=1000000GiB"], 3, "take a larger disk"),
        (&["--data", file.to_str().unwrap()], 3, "is a file"),
    ];
    for (args, code, said) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rangeway"));
        command.arg("serve");
        if !args.contains(&"--kafka") {
            command.args(["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        }
        if !args.contains(&"--data") {
            command.arg("--data").arg(&new);
        }
        let failed = command.args(args).output().unwrap();
        let message = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(said), "{args:?}: {message}");
        assert!(!new.exists(), "{args:?}");
    }
}

#[test]
fn a_start_that_is_refused_for_its_directories_makes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (own, others, foreign, new, again) =
        (at("own"), at("others"), at("foreign"), at("new"), at("./new/"));
    drop(Node::start(own.as_ref(), &[]));
    drop(Node::start(others.as_ref(), &[]));
    std::fs::create_dir_all(root.path().join("foreign/etc")).unwrap();
    let cases: [(&[&str], &[&str], &str); 8] = [
        (&[&new, &new], &[], "is given twice"),
        (&[&new, &again], &[], "is given twice"),
        (&[&own, &new, &again], &[], "is given twice"),
        (&[&foreign], &[], "none of ours ('etc'): a new disk begins in an empty directory"),
        (&[&new, &foreign], &[], "none of ours ('etc')"),
        (&[&new, &own], &[], "name that directory first"),
        (&[&own, &new, &others], &[], "belongs to cluster"),
        (&[&own, &new], &["--node-id", "9"], "belongs to node"),
    ];
    for (dirs, flags, said) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rangeway"));
        command.args(["serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]).args(flags);
        for dir in dirs {
            command.args(["--data", dir]);
        }
        let refused = command.output().unwrap();
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{dirs:?}: {message}");
        assert!(message.contains(said), "{dirs:?}: {message}");
        let mut there: Vec<_> =
            std::fs::read_dir(root.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        there.sort();
        assert_eq!(there, ["foreign", "others", "own"], "{dirs:?}");
        assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "{dirs:?}");
    }
}

#[test]
fn a_new_file_system_and_what_a_first_start_left_half_made_are_begun_in() {
    let dir = tempfile::tempdir().unwrap();
    for made in ["lost+found", "extents", "chunks"] {
        std::fs::create_dir(dir.path().join(made)).unwrap();
    }
    for made in ["lock", "superblock.new"] {
        std::fs::write(dir.path().join(made), "").unwrap();
    }
    for _ in 0..2 {
        let node = Node::start(dir.path(), &[]);
        assert_eq!(node.http("GET", "/readyz", "", ""), (200, "ok\n".to_owned()));
    }
}

#[test]
fn wrong_settings_end_with_code_2_and_name_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    std::fs::write(&file, "[num]\npartitons = 3\n").unwrap();
    let wrong = serve(dir.path(), &["--config", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let message = text(&wrong.stderr);
    assert!(
        message.contains("r.toml:2: there is no key 'num.partitons'; did you mean 'num.partitions'?"),
        "{message}"
    );

    let public =
        serve(dir.path(), &[]).args(["--set", "x=1"]).env("RANGEWAY_EXTENT__BYTES", "1").output().unwrap();
    assert_eq!(public.status.code(), Some(2));
    let message = text(&public.stderr);
    assert!(
        message.contains("RANGEWAY_EXTENT__BYTES: extent.bytes = '1': Value must be at least 65536"),
        "{message}"
    );
    assert!(message.contains("--set x=1: there is no key 'x'"), "{message}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_rangeway"));
    let public = command.args(["serve", "--http", "0.0.0.0:0", "--kafka", "127.0.0.1:0", "--data"]);
    let public = public.arg(dir.path().join("d")).output().unwrap();
    assert_eq!(public.status.code(), Some(2));
    assert!(text(&public.stderr).contains("--http-insecure"), "{}", text(&public.stderr));
}

#[test]
fn file_environment_and_flags_win_in_that_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.toml");
    std::fs::write(&file, "num.partitions = 3\ndefault.replication.factor = 2\nnode.id = 4\n").unwrap();
    let mut command = serve(&dir.path().join("d"), &["--config", file.to_str().unwrap(), "--node-id", "5"]);
    let mut child = command.env("RANGEWAY_NUM__PARTITIONS", "6").stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let http = line.split_whitespace().find_map(|w| w.strip_prefix("http=")).unwrap().to_owned();
    let node = Node { child, kafka: String::new(), http };
    assert!(line.ends_with("node=5\n"), "{line}");
    let (status, topic) = node.json("POST", "/api/v1/topics", &json!({"name": "t"}));
    assert_eq!((status, &topic["partitions"], &topic["replication_factor"]), (201, &json!(6), &json!(2)));
}

#[test]
fn topics_are_made_shown_changed_and_deleted_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let (status, made) = node.json(
        "POST",
        "/api/v1/topics",
        &json!({"name": "orders", "partitions": 4, "drive": "memory", "configs": {"retention.ms": 1000}}),
    );
    assert_eq!(status, 201, "{made}");
    assert!(made["id"].as_str().unwrap().parse::<uuid::Uuid>().is_ok());
    let shown = json!({
        "name": "orders", "id": made["id"], "partitions": 4, "ranges": 1, "drive": "memory", "replication_factor": 1,
        "configs": {"retention.ms": "1000", "rangeway.drive": "memory"}, "internal": false,
    });
    assert_eq!(made, shown);
    assert_eq!(node.json("GET", "/api/v1/topics/orders", &Value::Null), (200, shown.clone()));
    assert_eq!(node.json("GET", "/api/v1/topics", &Value::Null), (200, json!([shown])));

    let (status, ranges) = node.json("GET", "/api/v1/topics/orders/ranges", &Value::Null);
    assert_eq!((status, ranges[0]["first"].as_i64(), ranges[0]["last"].as_i64()), (200, Some(0), Some(3)));
    let keys: Vec<&str> = ranges[0].as_object().unwrap().keys().map(String::as_str).collect();
    for key in ["id", "first", "last", "state", "primary", "segments", "bytes", "parents", "children"] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }

    let change = json!({"partitions": 6, "configs": {"retention.ms": null, "segment.ms": "5000"}});
    let (status, changed) = node.json("PATCH", "/api/v1/topics/orders", &change);
    assert_eq!((status, &changed["partitions"]), (200, &json!(6)), "{changed}");
    assert_eq!(changed["configs"], json!({"segment.ms": "5000", "rangeway.drive": "memory"}));

    let gone = node.json("DELETE", "/api/v1/topics/orders", &Value::Null);
    assert_eq!(gone, (200, json!({"name": "orders", "id": made["id"], "deleted": true})));
    assert_eq!(node.json("GET", "/api/v1/topics", &Value::Null), (200, json!([])));
}

#[test]
fn bad_requests_over_http_are_answered_with_a_code_and_a_reason() {
    const TWICE: &str = r#"{"configs": {"retention.ms": null, "retention.ms": 5}}"#;
    const CREATED_TWICE: &str = r#"{"name": "a", "configs": {"retention.ms": 4, "retention.ms": 5}}"#;
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    node.json("POST", "/api/v1/topics", &json!({"name": "orders"}));
    let topics = "/api/v1/topics";
    for (method, path, body, status, code) in [
        ("POST", topics, "{", 400, "bad_request"),
        ("POST", topics, "", 400, "bad_request"),
        ("POST", topics, "{\"name\": 5}", 400, "bad_request"),
        ("POST", topics, "{\"name\": \"a\", \"partition\": 5}", 400, "bad_request"),
        ("POST", topics, "{\"name\": \"orders\"}", 409, "topic_exists"),
        ("POST", topics, "{\"name\": \"a b\"}", 400, "invalid_name"),
        ("POST", topics, "{\"name\": \"a\", \"partitions\": 0}", 400, "invalid_partitions"),
        ("POST", topics, "{\"name\": \"a\", \"configs\": {\"no.such\": 1}}", 400, "invalid_config"),
        ("POST", topics, "{\"name\": \"a\", \"drive\": \"tape\"}", 400, "invalid_config"),
        ("POST", topics, "{\"name\": \"a\", \"replication_factor\": 0}", 400, "invalid_replication_factor"),
        ("GET", "/api/v1/topics/ordres", "", 404, "unknown_topic"),
        ("PATCH", "/api/v1/topics/orders", "{}", 400, "bad_request"),
        ("PATCH", "/api/v1/topics/orders", "{\"partitions\": 1}", 400, "invalid_partitions"),
        ("DELETE", "/api/v1/topics/none", "", 404, "unknown_topic"),
        ("DELETE", topics, "", 405, "method_not_allowed"),
        ("GET", "/api/v1/topics/%FF", "", 400, "bad_request"),
        ("PATCH", "/api/v1/topics/orders", TWICE, 400, "bad_request"),
        ("POST", topics, CREATED_TWICE, 400, "bad_request"),
        ("GET", "/nowhere", "", 404, "not_found"),
    ] {
        let (got, answer) = node.http(method, path, "", body);
        let answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{method} {path}: {e}: {answer}"));
        assert_eq!(
            (got, answer["error"]["code"].as_str()),
            (status, Some(code)),
            "{method} {path} {body}: {answer}"
        );
        assert!(answer["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    }
    // What is no request at all is refused in the same shape.
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(70_000));
    let heads = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    for (bytes, status) in [("nonsense\r\n\r\n", 400), (&*long, 414), (&*heads, 431)] {
        let mut stream = TcpStream::connect(&node.http).unwrap();
        // The node may answer and close before it has read all.
        let _ = stream.write_all(bytes.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = text(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "bad_request", "{answer}");
    }
    let (_, hinted) = node.json("GET", "/api/v1/topics/ordres", &Value::Null);
    assert_eq!(hinted["error"]["hint"], "did you mean 'orders'?");
    let large = "x".repeat(2 << 20);
    assert_eq!(node.http("POST", topics, "", &large).0, 413);
}

#[test]
fn pages_of_other_sites_cannot_change_anything() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let body = "{\"name\": \"t\"}";
    let (status, answer) = node.http("POST", "/api/v1/topics", "origin: http://evil.example\r\n", body);
    assert_eq!(status, 403, "{answer}");
    let own = format!("origin: http://{}\r\n", node.http);
    assert_eq!(node.http("POST", "/api/v1/topics", &own, body).0, 201);
}

#[test]
fn metrics_count_what_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let request = DescribeConfigsRequest::default();
    node.kafka().call(&request, 4).unwrap();
    let (status, metrics) = node.http("GET", "/metrics", "", "");
    assert_eq!(status, 200);
    assert!(metrics.contains("rangeway_requests_total{api=\"DescribeConfigs\"} 1\n"), "{metrics}");
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("rangeway_"), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn admin_commands_print_tables_or_the_body_and_exit_with_1_on_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let made = node.admin(&["topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=5"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let listed = node.admin(&["topics", "list"]);
    assert!(
        text(&listed.stdout).lines().nth(1).is_some_and(|line| line.starts_with("orders ")),
        "{listed:?}"
    );

    let described = node.admin(&["topics", "describe", "orders", "--json"]);
    let body = node.http("GET", "/api/v1/topics/orders", "", "").1;
    assert_eq!(text(&described.stdout).trim_end(), body);
    let explained = node.admin(&["ranges", "explain", "orders"]);
    assert!(text(&explained.stdout).contains("partitions 0 to 2"), "{explained:?}");
    assert!(text(&explained.stdout).contains("by load (rangeway.reshard): advise."), "{explained:?}");
    assert!(
        text(&explained.stdout).contains("the target is 32.0 MiB/s or 50,000 records/s."),
        "{explained:?}"
    );

    let refused = node.admin(&["topics", "describe", "none"]);
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(1), ""));
    assert!(text(&refused.stderr).starts_with("error: there is no topic 'none'\n"), "{refused:?}");
    let refused = node.admin(&["topics", "describe", "none", "--json"]);
    let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(error["error"]["code"], "unknown_topic");

    assert_eq!(node.admin(&["topics", "alter", "orders"]).status.code(), Some(2));
    let both = ["topics", "alter", "orders", "--config", "retention.ms=5", "--unset", "retention.ms"];
    let refused = node.admin(&both);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("config retention.ms is named more than once"), "{refused:?}");
    let twice = ["topics", "create", "x", "--config", "retention.ms=5", "--config", "retention.ms=6"];
    assert_eq!(node.admin(&twice).status.code(), Some(2));
    assert_eq!(node.admin(&["topics", "alter", "orders", "--unset", "retention.ms"]).status.code(), Some(0));
    assert_eq!(node.admin(&["topics", "delete", "orders"]).status.code(), Some(0));
    let nobody = rangeway(&["topics", "list", "--server", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("rangeway serve"), "{nobody:?}");
    assert_eq!(rangeway(&["topics", "creat"]).status.code(), Some(2));
}

#[test]
fn config_keys_are_listed_and_explained_without_a_node() {
    let listed = rangeway(&["config", "list", "--json"]);
    let keys: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(keys.iter().any(|key| key["key"] == "num.partitions" && key["default"] == "16"), "{keys:?}");
    let described = rangeway(&["config", "describe", "http.bind"]);
    assert!(text(&described.stdout).contains("RANGEWAY_HTTP__BIND"), "{described:?}");
    let topics = rangeway(&["config", "list", "--topics"]);
    assert!(text(&topics.stdout).contains("\nmin.insync.replicas "), "{topics:?}");
    let described = rangeway(&["config", "describe", "flush.ms"]);
    assert!(text(&described.stdout).contains("without effect"), "{described:?}");
    let by_kafkas_name = rangeway(&["config", "describe", "max.connections"]);
    assert!(text(&by_kafkas_name.stdout).starts_with("connections.max\n"));
    let not_there = rangeway(&["config", "describe", "num.io.threads"]);
    assert!(text(&not_there.stderr).contains("There are no pools of threads"));
    let unknown = rangeway(&["config", "describe", "num.partition"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("did you mean 'num.partitions'?"), "{unknown:?}");
}

#[test]
fn a_short_bench_of_every_workload_counts_records_and_leaves_no_topic() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let args = ["bench", "--json", "--seconds", "1", "--many", "40", "--rate", "200", "--bootstrap"];
    let run = rangeway(&[&args[..], &[&node.kafka]].concat());
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let outcomes: Vec<Value> = serde_json::from_slice(&run.stdout).unwrap();
    let names: Vec<&str> = outcomes.iter().filter_map(|o| o["workload"].as_str()).collect();
    assert_eq!(names, ["produce", "consume", "partitions", "latency"]);
    for outcome in &outcomes {
        assert!(outcome["records"].as_u64().is_some_and(|n| n > 0), "{outcome}");
        assert!(outcome["p50_ms"].as_f64() <= outcome["p999_ms"].as_f64(), "{outcome}");
    }
    assert_eq!(outcomes[0]["records"], outcomes[1]["records"], "what was produced is what is consumed");
    assert_eq!(outcomes[3]["records"], 200);
    assert_eq!(node.json("GET", "/api/v1/topics", &Value::Null), (200, json!([])));
    let nobody = rangeway(&["bench", "produce", "--bootstrap", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn a_bench_that_is_stopped_deletes_its_topics() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rangeway"));
    bench.args(["bench", "produce", "--seconds", "600", "--bootstrap", &node.kafka]);
    let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let topics = || node.json("GET", "/api/v1/topics", &Value::Null).1.as_array().unwrap().len();
    let until = Instant::now() + Duration::from_secs(20);
    while topics() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(topics(), 0);
}

#[test]
fn verify_finds_a_flipped_byte_in_an_entry_and_in_the_control_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    let mut node = Node::start(dir.path(), &["--set", "extent.bytes=1MiB"]);
    let bench = ["bench", "produce", "--seconds", "1", "--keep", "--size", "100", "--bootstrap", &node.kafka];
    assert_eq!(rangeway(&bench).status.code(), Some(0));
    assert_eq!(rangeway(&["verify", "--data", &path]).status.code(), Some(3), "a node uses it");
    node.signal(rustix::process::Signal::TERM);
    node.child.wait().unwrap();
    let clean = rangeway(&["verify", "--data", &path]);
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    assert!(text(&clean.stdout).ends_with("no damage\n"), "{clean:?}");

    let extents: Vec<_> =
        std::fs::read_dir(dir.path().join("extents")).unwrap().map(|f| f.unwrap().path()).collect();
    let extent = extents.iter().find(|f| f.ends_with("00000000.ext")).unwrap();
    for (file, place, kind) in
        [(extent.clone(), 300_000, "entry"), (dir.path().join("control.redb"), 64, "control state")]
    {
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[place] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
        let found = rangeway(&["verify", "--data", &path, "--json"]);
        assert_eq!(found.status.code(), Some(1), "{found:?}");
        let verified: Value = serde_json::from_slice(&found.stdout).unwrap();
        let findings = verified["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{verified}");
        assert_eq!(findings[0]["kind"], kind, "{verified}");
        assert_eq!(findings[0]["file"].as_str(), file.to_str());
        if kind == "entry" {
            assert!(findings[0]["segment"].is_string() && findings[0]["address"].is_u64(), "{verified}");
        }
        bytes[place] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
    }
    assert_eq!(rangeway(&["verify", "--data", &path]).status.code(), Some(0));
    let control = std::fs::read(dir.path().join("control.redb")).unwrap();
    for len in [0, 100, control.len() / 2, control.len() - 1] {
        std::fs::write(dir.path().join("control.redb"), &control[..len]).unwrap();
        let found = rangeway(&["verify", "--data", &path]);
        assert_eq!(found.status.code(), Some(1), "cut to {len} bytes: {found:?}");
        assert!(text(&found.stdout).contains("control state: "), "{found:?}");
        let refused = serve(dir.path(), &[]).output().unwrap();
        assert_eq!(refused.status.code(), Some(3), "cut to {len} bytes");
        assert!(text(&refused.stderr).contains("control.redb is damaged"), "{}", text(&refused.stderr));
    }
    std::fs::write(dir.path().join("control.redb"), &control).unwrap();
    assert_eq!(rangeway(&["verify", "--data", &path]).status.code(), Some(0));
    assert_eq!(rangeway(&["verify", "--data", "/nowhere/at/all"]).status.code(), Some(3));
}

#[test]
fn a_range_with_a_damaged_entry_serves_what_is_intact_and_says_storage_error_for_the_rest() {
    const STORAGE: i16 = 56;
    let dir = tempfile::tempdir().unwrap();
    // No checkpoint comes after the damage, however fast the machine: then the range needs what is damaged.
    let sizes = [
        "extent.bytes=1MiB",
        "num.partitions=1",
        "checkpoint.bytes=64GiB",
        "checkpoint.unfolded.bytes=64GiB",
    ];
    let mut node = Node::start(dir.path(), &sizes.map(|set| ["--set", set]).concat());
    let bench = ["bench", "produce", "--seconds", "1", "--keep", "--size", "100", "--bootstrap", &node.kafka];
    assert_eq!(rangeway(&bench).status.code(), Some(0));
    let (_, topics) = node.json("GET", "/api/v1/topics", &Value::Null);
    let topic = topics[0]["name"].as_str().unwrap().to_owned();
    node.signal(rustix::process::Signal::KILL);
    node.child.wait().unwrap();
    // The header of the fourth batch's entry: magic, version, kind.
    let path = dir.path().join("extents/00000000.ext");
    let mut bytes = std::fs::read(&path).unwrap();
    let entries = bytes.windows(4).enumerate().filter(|(_, w)| *w == [0x57, 0x52, 1, 1]);
    let at = entries.map(|(at, _)| at).nth(3).unwrap();
    bytes[at + 20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();

    let node = Node::start(dir.path(), &["--set", "extent.bytes=1MiB"]);
    let (status, why) = node.http("GET", "/readyz", "", "");
    assert_eq!(status, 503);
    for part in [&*format!("topic '{topic}' range r0"), "segment ", " address ", "00000000.ext", "damaged: "]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(node.http("GET", "/metrics", "", "").1.contains("damaged_places{disk="), "shown");
    let mut kafka = node.kafka();
    let mut fetch = |offset: i64, last_fetched_epoch: i32| {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_fetch_offset(offset)
            .with_last_fetched_epoch(last_fetched_epoch)
            .with_partition_max_bytes(1);
        let wanted = FetchTopic::default().with_topic(named(&topic)).with_partitions(vec![partition]);
        let request =
            FetchRequest::default().with_session_epoch(-1).with_max_bytes(1).with_topics(vec![wanted]);
        let answer = kafka.call(&request, 12).unwrap();
        let row = &answer.responses[0].partitions[0];
        assert_eq!(row.diverging_epoch, EpochEndOffset::default());
        (row.error_code, row.records.as_ref().is_some_and(|r| !r.is_empty()))
    };
    assert_eq!(fetch(0, -1), (0, true));
    assert_eq!(fetch(0, 0), (0, true), "as a consumer asks that has read before");
    assert_eq!(fetch(1 << 40, -1), (STORAGE, false));
    assert_eq!(fetch(1 << 40, 0), (STORAGE, false), "not diverging");
    let list = |timestamp: i64| {
        let partition = ListOffsetsPartition::default().with_partition_index(0).with_timestamp(timestamp);
        let wanted = ListOffsetsTopic::default().with_name(named(&topic)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_topics(vec![wanted]);
        let row = node.kafka().call(&request, 7).unwrap().topics[0].partitions[0].clone();
        (row.error_code, row.offset)
    };
    assert_eq!((list(-2), list(-1)), ((0, 0), (STORAGE, -1)));
    let partition = OffsetForLeaderPartition::default().with_partition(0).with_leader_epoch(0);
    let wanted = OffsetForLeaderTopic::default().with_topic(named(&topic)).with_partitions(vec![partition]);
    let request = OffsetForLeaderEpochRequest::default().with_topics(vec![wanted]);
    let answer = node.kafka().call(&request, 4).unwrap();
    assert_eq!(answer.topics[0].partitions[0].error_code, STORAGE);
}

fn wanted(name: &str, partitions: i32, copies: i16, configs: &[(&str, Option<&str>)]) -> CreatableTopic {
    let configs = configs
        .iter()
        .map(|(key, value)| CreatableTopicConfig::default().with_name(word(key)).with_value(value.map(word)));
    CreatableTopic::default()
        .with_name(named(name))
        .with_num_partitions(partitions)
        .with_replication_factor(copies)
        .with_configs(configs.collect())
}

fn create(kafka: &mut Connection, topics: Vec<CreatableTopic>, validate_only: bool) -> Vec<(String, i16)> {
    let request = CreateTopicsRequest::default().with_topics(topics).with_validate_only(validate_only);
    let answer = kafka.call(&request, 7).unwrap();
    for row in &answer.topics {
        let message = row.error_message.as_ref().map_or("", |m| m.as_str());
        assert_eq!(row.error_code == 0, message.is_empty(), "{row:?}");
    }
    answer.topics.iter().map(|row| (row.name.to_string(), row.error_code)).collect()
}

#[test]
fn create_topics_answers_as_kafka_does() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut kafka = node.kafka();
    let mut code = |topic: CreatableTopic| create(&mut kafka, vec![topic], false)[0].1;
    assert_eq!(code(wanted("t", 3, 1, &[])), 0);
    assert_eq!(code(wanted("t", 3, 1, &[])), 36);
    assert_eq!(code(wanted("t", 0, 0, &[("x", None)])), 36, "an existing name is looked at before the rest");
    assert_eq!(code(wanted("a b", 1, 1, &[])), 17);
    assert_eq!(code(wanted("..", 1, 1, &[])), 17);
    assert_eq!(code(wanted("a.b", 1, 1, &[])), 0);
    assert_eq!(code(wanted("a_b", 1, 1, &[])), 17, "collides with a.b");
    assert_eq!(code(wanted("c", 1, 1, &[("no.such.config", Some("1"))])), 40);
    assert_eq!(code(wanted("c", 1, 1, &[("retention.ms", Some("x"))])), 40);
    assert_eq!(code(wanted("c", 1, 1, &[("retention.ms", None)])), 40);
    assert_eq!(code(wanted("c", 1, 0, &[])), 38);
    assert_eq!(code(wanted("c", 0, 1, &[])), 37);
    assert_eq!(code(wanted("c", 1, 3, &[])), 0, "a lone node takes any replication factor");

    let twice = create(
        &mut kafka,
        vec![wanted("d", 1, 1, &[]), wanted("d", 1, 1, &[]), wanted("e", 1, 1, &[])],
        false,
    );
    assert_eq!(twice, [("d".to_owned(), 42), ("e".to_owned(), 0)]);
    assert_eq!(
        create(&mut kafka, vec![wanted("v", 1, 1, &[]), wanted("e", 1, 1, &[])], true),
        [("v".to_owned(), 0), ("e".to_owned(), 36)]
    );
    let (_, topics) = node.json("GET", "/api/v1/topics/v", &Value::Null);
    assert_eq!(topics["error"]["code"], "unknown_topic", "only checked");
}

#[test]
fn a_created_topic_is_echoed_with_its_shape_and_configs() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let topics = vec![wanted("t", -1, 3, &[("retention.ms", Some("604800000"))])];
    let request = CreateTopicsRequest::default().with_topics(topics);
    let answer = node.kafka().call(&request, 7).unwrap();
    let row = &answer.topics[0];
    assert_eq!((row.error_code, row.num_partitions, row.replication_factor), (0, 16, 3));
    assert!(!row.topic_id.is_nil());
    let configs = row.configs.as_ref().unwrap();
    let find = |name: &str| configs.iter().find(|c| c.name.as_str() == name).unwrap();
    assert!(configs.len() >= 30, "{}", configs.len());
    assert_eq!(find("retention.ms").config_source, 1, "equal to the default and still the topic's own");
    assert_eq!(find("segment.ms").config_source, 5);
}

#[test]
fn configs_are_described_changed_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &["--set", "segment.roll.ms=1d"]);
    let mut kafka = node.kafka();
    create(&mut kafka, vec![wanted("t", 1, 1, &[("flush.ms", Some("5"))])], false);
    let describe = |kafka: &mut Connection, kind: i8, name: &str, keys: Option<Vec<&str>>| {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(word(name))
            .with_configuration_keys(keys.map(|keys| keys.into_iter().map(word).collect()));
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(true)
            .with_include_documentation(true);
        kafka.call(&request, 4).unwrap().results.remove(0)
    };
    let all = describe(&mut kafka, 2, "t", None);
    assert_eq!(all.error_code, 0);
    assert_eq!(
        all.configs.len(),
        describe(&mut kafka, 2, "t", Some(vec![])).configs.len(),
        "no keys are all keys"
    );
    let find = |name: &str| all.configs.iter().find(|c| c.name.as_str() == name).unwrap();
    let flush = find("flush.ms");
    assert_eq!((flush.config_source, flush.config_type, flush.read_only), (1, 5, false));
    assert!(flush.documentation.as_ref().unwrap().contains("without effect"), "{flush:?}");
    let roll = find("segment.ms");
    assert_eq!((roll.value.as_ref().unwrap().as_str(), roll.config_source), ("86400000", 4));
    let sources: Vec<(&str, i8)> = roll.synonyms.iter().map(|s| (s.name.as_str(), s.source)).collect();
    assert_eq!(sources, [("log.roll.ms", 4)], "Kafka's default of it is null");
    let two = describe(&mut kafka, 2, "t", Some(vec!["retention.ms", "no.such", "flush.ms"]));
    assert_eq!(two.configs.len(), 2);

    assert_eq!(describe(&mut kafka, 2, "none", None).error_code, 3);
    assert_eq!(describe(&mut kafka, 2, "a b", None).error_code, 17);
    assert!(describe(&mut kafka, 4, "1", None).configs.iter().any(|c| c.name.as_str() == "num.partitions"));
    assert_eq!(describe(&mut kafka, 4, "", None).error_code, 0);
    assert_eq!(describe(&mut kafka, 4, "9", None).error_code, 42);
    assert_eq!(describe(&mut kafka, 99, "t", None).error_code, 42);

    let alter = |kafka: &mut Connection, topic: &str, changes: &[(&str, i8, Option<&str>)]| {
        let configs = changes.iter().map(|(key, operation, value)| {
            incremental_alter_configs_request::AlterableConfig::default()
                .with_name(word(key))
                .with_config_operation(*operation)
                .with_value(value.map(word))
        });
        let resource = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(word(topic))
            .with_configs(configs.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        kafka.call(&request, 1).unwrap().responses[0].error_code
    };
    let configs = || node.json("GET", "/api/v1/topics/t", &Value::Null).1["configs"].clone();
    assert_eq!(alter(&mut kafka, "t", &[("retention.ms", 0, Some("7")), ("flush.ms", 1, None)]), 0);
    assert_eq!(configs(), json!({"retention.ms": "7"}));
    assert_eq!(alter(&mut kafka, "t", &[("retention.ms", 0, Some("x"))]), 40);
    assert_eq!(alter(&mut kafka, "t", &[("retention.ms", 2, Some("7"))]), 40);
    assert_eq!(alter(&mut kafka, "t", &[("retention.ms", 0, None)]), 42);
    assert_eq!(alter(&mut kafka, "none", &[("retention.ms", 0, Some("7"))]), 3);
    assert_eq!(configs(), json!({"retention.ms": "7"}), "a refused change changes nothing");

    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(word("t"))
        .with_configs(vec![
            alter_configs_request::AlterableConfig::default()
                .with_name(word("segment.ms"))
                .with_value(Some(word("60000"))),
        ]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    assert_eq!(kafka.call(&request, 2).unwrap().responses[0].error_code, 0);
    assert_eq!(configs(), json!({"segment.ms": "60000"}), "what is not named is gone");
}

#[test]
fn partitions_are_added_records_deleted_and_topics_removed_over_the_wire() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    let mut kafka = node.kafka();
    create(&mut kafka, vec![wanted("t", 2, 1, &[])], false);
    let grow = |kafka: &mut Connection, name: &str, count: i32, validate_only: bool| {
        let topic =
            CreatePartitionsTopic::default().with_name(named(name)).with_count(count).with_assignments(None);
        let request =
            CreatePartitionsRequest::default().with_topics(vec![topic]).with_validate_only(validate_only);
        kafka.call(&request, 3).unwrap().results[0].error_code
    };
    assert_eq!(grow(&mut kafka, "t", 2, false), 37);
    assert_eq!(grow(&mut kafka, "t", 1, false), 37);
    assert_eq!(grow(&mut kafka, "none", 5, false), 3);
    assert_eq!(grow(&mut kafka, "t", 5, true), 0);
    assert_eq!(node.json("GET", "/api/v1/topics/t", &Value::Null).1["partitions"], 2, "only checked");
    assert_eq!(grow(&mut kafka, "t", 5, false), 0);
    assert_eq!(node.json("GET", "/api/v1/topics/t", &Value::Null).1["partitions"], 5);

    let delete_records = |kafka: &mut Connection, name: &str, partition: i32, offset: i64| {
        let row = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
        let topic = DeleteRecordsTopic::default().with_name(named(name)).with_partitions(vec![row]);
        let answer = kafka.call(&DeleteRecordsRequest::default().with_topics(vec![topic]), 2).unwrap();
        let row = &answer.topics[0].partitions[0];
        (row.error_code, row.low_watermark)
    };
    assert_eq!(delete_records(&mut kafka, "t", 0, -1), (0, 0), "an empty partition starts at its end");
    assert_eq!(delete_records(&mut kafka, "t", 0, 1), (1, -1));
    assert_eq!(delete_records(&mut kafka, "t", 0, -2), (1, -1));
    assert_eq!(delete_records(&mut kafka, "t", 9, 0), (3, -1));
    assert_eq!(delete_records(&mut kafka, "none", 0, 0), (3, -1));

    let delete = |kafka: &mut Connection, topics: Vec<DeleteTopicState>| -> Vec<i16> {
        let answer = kafka.call(&DeleteTopicsRequest::default().with_topics(topics), 6).unwrap();
        answer.responses.iter().map(|row| row.error_code).collect()
    };
    let by_name = |name: &str| DeleteTopicState::default().with_name(Some(named(name)));
    let by_id = |id: uuid::Uuid| DeleteTopicState::default().with_name(None).with_topic_id(id);
    let unknown = uuid::Uuid::new_v4();
    assert_eq!(delete(&mut kafka, vec![by_name("none"), by_id(unknown)]), [3, 100]);
    assert_eq!(delete(&mut kafka, vec![by_name("t").with_topic_id(unknown)]), [42]);
    let id = node.json("GET", "/api/v1/topics/t", &Value::Null).1["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(delete(&mut kafka, vec![by_id(id)]), [0]);
    create(&mut kafka, vec![wanted("t", 1, 1, &[])], false);
    let again = node.json("GET", "/api/v1/topics/t", &Value::Null).1["id"].clone();
    assert_ne!(again, json!(id.to_string()), "a name that is used again is another topic");
}
