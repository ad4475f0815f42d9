//! What configs do to records, and what can be changed while a node runs.

use crate::proofs::configs::config;
use crate::support::{
    Batch, Broker, Client, Topic, batches, fetch_request, now_ms, only, produce_request, run, start,
};
use crate::transactions::producers;
use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::messages::alter_configs_request as replace;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request as change;
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::batch::{BatchHead, CRC_FROM};
use rangeway_core::api::crc32c;
use rangeway_gateway::Settings;
use rangeway_gateway::logs::Levels;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// One operation on one config; the answer's code and sentence.
async fn alter(
    c: &mut Client,
    (kind, name): (i8, &str),
    key: &str,
    operation: i8,
    value: Option<&str>,
) -> (i16, String) {
    let config = change::AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(operation)
        .with_value(value.map(text));
    let resource = change::AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(vec![config]);
    let request = m::IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let row = c.call(1, request).await.responses.remove(0);
    (row.error_code, row.error_message.map(|m| m.to_string()).unwrap_or_default())
}

/// (value, source, synonyms' sources) of one config.
async fn shown(c: &mut Client, resource: (i8, &str), key: &str) -> (String, i8, Vec<i8>) {
    let row = config(c, 4, resource, key).await;
    (row.value.unwrap().to_string(), row.config_source, row.synonyms.iter().map(|s| s.source).collect())
}

/// The one batch that a partition holds, its CRC looked at.
async fn stored(c: &mut Client, t: &Topic) -> (BatchHead, Bytes) {
    let records = c.fetch(t, 0).await.records.unwrap();
    assert_eq!(batches(&Some(records.clone())).len(), 1);
    let head = BatchHead::parse(&records).unwrap();
    assert_eq!(head.crc, crc32c(&[&records[CRC_FROM..]]));
    (head, records)
}

#[test]
fn records_of_a_topic_of_append_time_carry_the_nodes_time() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("message.timestamp.type", "LogAppendTime")]).await;
        let before = now_ms();
        // Neither bound is asked of times that are not kept.
        let row = c.produce(&t, Batch::at(vec![5, before + 10_000_000]).bytes()).await;
        let after = now_ms();
        assert_eq!(row.error_code, 0);
        assert!((before..=after).contains(&row.log_append_time_ms), "{}", row.log_append_time_ms);
        let (head, _) = stored(&mut c, &t).await;
        assert_eq!((head.attributes & 8, head.max_timestamp), (8, row.log_append_time_ms));
        // From the next batch on it is the producer's again.
        assert_eq!(alter(&mut c, (TOPIC, &t.name), "message.timestamp.type", DELETE, None).await.0, 0);
        let row = c.produce(&t, Batch::at(vec![before]).bytes()).await;
        assert_eq!((row.error_code, row.log_append_time_ms), (0, -1));
        let data = c.fetch(&t, 2).await.records.unwrap();
        let head = BatchHead::parse(&data).unwrap();
        assert_eq!((head.base_offset, head.attributes & 8, head.max_timestamp), (2, 0, before));
    });
}

#[test]
fn batches_are_stored_in_the_topics_codec() {
    run(async {
        let mut c = Client::new().await;
        for (word, codec) in [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)] {
            let t = c.topic(1, &[("compression.type", word)]).await;
            let sent = Batch::of(50).value(200).bytes();
            assert_eq!(c.produce(&t, sent.clone()).await.error_code, 0);
            let (head, records) = stored(&mut c, &t).await;
            assert_eq!((head.codec(), head.record_count), (codec, 50));
            assert_eq!(records.len() < sent.len() / 5, codec != 0, "{word}: {}", records.len());
        }
    });
}

#[test]
fn clients_that_do_not_know_zstd_are_told_so() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("compression.type", "zstd")]).await;
        c.produce(&t, Batch::of(1).bytes()).await;
        for (version, code) in [(9, 76), (10, 0)] {
            let response = c.call(version, fetch_request(&t, &[(0, 0)])).await;
            assert_eq!(only(&response).error_code, code, "version {version}");
        }
    });
}

#[test]
fn more_copies_in_sync_than_replicas_are_not_asked_for() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let t = c.topic(1, &[("min.insync.replicas", "2")]).await;
        for acks in [-1, 1] {
            let request = produce_request(&t, acks, &[(0, Some(Batch::of(1).bytes()))]);
            let response = c.call(9, request).await;
            assert_eq!(response.responses[0].partition_responses[0].error_code, 0, "acks {acks}");
        }
        assert_eq!(shown(&mut c, (TOPIC, &t.name), "min.insync.replicas").await.0, "2");
        let plain = c.topic(1, &[]).await;
        assert_eq!(alter(&mut c, (BROKER, ""), "min.insync.replicas", SET, Some("3")).await.0, 0);
        assert_eq!(c.produce(&plain, Batch::of(1).bytes()).await.error_code, 0);
        let drive = [("min.insync.replicas", "2"), ("rangeway.drive", "quorum(write=2, memory, memory)")];
        let t = c.topic(1, &drive).await;
        assert_eq!(c.produce(&t, Batch::of(1).bytes()).await.error_code, 0);
    });
}

#[test]
fn a_topic_may_have_no_policy_and_then_keeps_everything() {
    run(async {
        let (broker, mut c) = own_broker().await;
        let t = c.topic(1, &[("cleanup.policy", ""), ("retention.ms", "1")]).await;
        let topic = (TOPIC, t.name.as_str());
        assert_eq!(shown(&mut c, topic, "cleanup.policy").await.0, "");
        let keyless = Batch { key: false, ..Batch::of(1) };
        assert_eq!(c.produce(&t, keyless.bytes()).await.error_code, 0, "nor is it compacted");
        let cleanup = |name: &str| broker.shared.api.catalog().by_name[name].config.cleanup;
        assert!(!cleanup(&t.name).delete && !cleanup(&t.name).compact);
        assert_eq!(alter(&mut c, topic, "cleanup.policy", APPEND, Some("delete")).await.0, 0);
        assert!(cleanup(&t.name).delete);
        assert_eq!(alter(&mut c, topic, "cleanup.policy", SUBTRACT, Some("delete")).await.0, 0);
        assert!(!cleanup(&t.name).delete);
        assert_eq!(shown(&mut c, topic, "cleanup.policy").await.0, "");
        assert_eq!(alter(&mut c, (BROKER, ""), "log.cleanup.policy", SET, Some("")).await.0, 0);
    });
}

#[test]
fn a_throttle_is_set_shown_and_taken_back() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let this = (BROKER, "7");
        for key in [
            "leader.replication.throttled.rate",
            "follower.replication.throttled.rate",
            "replica.alter.log.dirs.io.max.bytes.per.second",
        ] {
            assert_eq!(alter(&mut c, this, key, SET, Some("1000")).await, (0, String::new()), "{key}");
            assert_eq!(shown(&mut c, this, key).await, ("1000".to_owned(), 2, vec![2]), "{key}");
            for bad in ["-1", "x"] {
                assert_eq!(alter(&mut c, this, key, SET, Some(bad)).await.0, 42, "{key}={bad}");
            }
            assert_eq!(alter(&mut c, this, key, DELETE, None).await.0, 0, "{key}");
        }
    });
}

#[test]
fn values_are_shown_as_they_were_understood() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[("compression.type", " gzip ")]).await;
        let topic = (TOPIC, t.name.as_str());
        for (key, value, want) in [("flush.ms", " +5 ", "5"), ("preallocate", "TRUE", "true")] {
            assert_eq!(alter(&mut c, topic, key, SET, Some(value)).await.0, 0, "{key}");
            assert_eq!(shown(&mut c, topic, key).await.0, want, "{key}");
        }
        assert_eq!(shown(&mut c, topic, "compression.type").await.0, "gzip");
    });
}

/// All configs of a resource.
async fn all(c: &mut Client, (kind, name): (i8, &str)) -> Vec<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request =
        m::DescribeConfigsRequest::default().with_resources(vec![resource]).with_include_synonyms(true);
    let result = c.call(4, request).await.results.remove(0);
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    result.configs
}

/// Whether a client can read a value as what its type says.
fn is_of_type(value: &str, config_type: i8) -> bool {
    match config_type {
        1 => value.parse::<bool>().is_ok(),
        2 | 7 => true,
        3 => value.parse::<i32>().is_ok(),
        5 => value.parse::<i64>().is_ok(),
        6 => value.parse::<f64>().is_ok(),
        _ => false,
    }
}

#[test]
fn every_value_is_of_its_type_as_in_kafka() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut types = HashMap::new();
        for resource in [(BROKER, "7"), (TOPIC, t.name.as_str()), (32, "any-group")] {
            let rows = all(&mut c, resource).await;
            assert!(rows.len() >= 3);
            for row in rows {
                let shown = row.synonyms.iter().map(|synonym| &synonym.value).chain([&row.value]);
                for value in shown.flatten() {
                    assert!(is_of_type(value, row.config_type), "{}: {value} {}", row.name, row.config_type);
                }
                types.insert(row.name.to_string(), row.config_type);
            }
        }
        let times = ["max.timeout.ms", "expiration.ms"];
        let is_int = |name: &str| name.starts_with("group.") || times.iter().any(|end| name.ends_with(end));
        for (name, config_type) in types.iter().filter(|(name, _)| name.ends_with(".ms") && is_int(name)) {
            assert_eq!(*config_type, 3, "{name}");
        }
        for name in
            ["log.cleaner.backoff.ms", "log.retention.check.interval.ms", "log.roll.ms", "retention.ms"]
        {
            assert_eq!(types[name], 5, "{name}");
        }
        assert_eq!(types["rangeway.disk.reserve.bytes"], 2, "it may be auto");
    });
}

#[test]
fn what_kafka_leaves_to_another_setting_has_no_value_and_is_no_synonym() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let t = c.topic(1, &[]).await;
        for (name, of_topic, value) in [
            ("log.flush.interval.ms", "flush.ms", "9223372036854775807"),
            ("log.roll.jitter.ms", "segment.jitter.ms", "0"),
            ("log.roll.ms", "segment.ms", "604800000"),
        ] {
            let row = config(&mut c, 4, (BROKER, "7"), name).await;
            assert_eq!((row.value, row.config_source, row.synonyms.len()), (None, 5, 0), "{name}");
            assert_eq!(shown(&mut c, (TOPIC, &t.name), of_topic).await, (value.to_owned(), 5, vec![]));
            assert_eq!(alter(&mut c, (BROKER, ""), name, SET, Some("3600000")).await.0, 0);
            for (resource, name) in [((BROKER, "7"), name), ((TOPIC, t.name.as_str()), of_topic)] {
                assert_eq!(shown(&mut c, resource, name).await, ("3600000".to_owned(), 3, vec![3]), "{name}");
            }
        }
    });
}

#[test]
fn a_check_tells_the_configs_that_a_topic_would_have() {
    run(async {
        let mut c = Client::new().await;
        let config =
            CreatableTopicConfig::default().with_name(text("retention.ms")).with_value(Some(text("5")));
        let topic = CreatableTopic::default()
            .with_name(m::TopicName(text("only-checked")))
            .with_num_partitions(2)
            .with_replication_factor(3)
            .with_configs(vec![config]);
        let request = m::CreateTopicsRequest::default().with_validate_only(true).with_topics(vec![topic]);
        let row = c.call(7, request).await.topics.remove(0);
        assert_eq!((row.error_code, row.num_partitions, row.replication_factor), (0, 2, 3));
        let configs = row.configs.unwrap();
        let retention = configs.iter().find(|config| config.name.as_str() == "retention.ms").unwrap();
        assert_eq!((retention.value.as_ref().unwrap().as_str(), retention.config_source), ("5", 1));
    });
}

async fn own_broker() -> (Broker, Client) {
    let applied = Box::new(|_| Ok(()));
    let logs = Some(Arc::new(Levels::new("info".to_owned(), applied)));
    let broker = start(Settings { logs, ..Settings::default() }).await;
    let client = Client::to(&broker).await;
    (broker, client)
}

#[test]
fn what_topics_have_by_default_is_changed_while_the_node_runs() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let t = c.topic(1, &[]).await;
        let own = c.topic(1, &[("max.message.bytes", "2000")]).await;
        let (all, this) = ((BROKER, ""), (BROKER, "7"));
        let large = Batch::of(1).value(1000).bytes();
        assert_eq!(alter(&mut c, all, "message.max.bytes", SET, Some("500")).await, (0, String::new()));
        assert_eq!(c.produce(&t, large.clone()).await.error_code, 10);
        assert_eq!(c.produce(&own, large.clone()).await.error_code, 0, "its own value wins");
        let expected = ("500".to_owned(), 3, vec![3, 5]);
        assert_eq!(shown(&mut c, (TOPIC, &t.name), "max.message.bytes").await, expected);
        assert_eq!(shown(&mut c, this, "message.max.bytes").await, expected);
        assert_eq!(shown(&mut c, all, "message.max.bytes").await, ("500".to_owned(), 3, vec![3]));

        assert_eq!(alter(&mut c, this, "message.max.bytes", SET, Some("5000")).await.0, 0);
        assert_eq!(c.produce(&t, large.clone()).await.error_code, 0);
        let expected = ("5000".to_owned(), 2, vec![2, 3, 5]);
        assert_eq!(shown(&mut c, (TOPIC, &t.name), "max.message.bytes").await, expected);
        let new = c.topic(1, &[]).await;
        assert_eq!(shown(&mut c, (TOPIC, &new.name), "max.message.bytes").await, expected);

        for resource in [this, all] {
            assert_eq!(alter(&mut c, resource, "message.max.bytes", DELETE, None).await.0, 0);
        }
        let expected = ("1048588".to_owned(), 5, vec![5]);
        assert_eq!(shown(&mut c, (TOPIC, &t.name), "max.message.bytes").await, expected);
        assert_eq!(alter(&mut c, all, "log.message.timestamp.type", SET, Some("LogAppendTime")).await.0, 0);
        assert!(c.produce(&t, Batch::of(1).bytes()).await.log_append_time_ms > 0);
    });
}

#[test]
fn what_is_read_at_the_start_only_is_not_changed() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let (all, this) = ((BROKER, ""), (BROKER, "7"));
        let fixed = alter(&mut c, this, "num.partitions", SET, Some("3")).await;
        assert_eq!(fixed, (42, "Cannot update these configs dynamically: [num.partitions]".to_owned()));
        assert_eq!(alter(&mut c, all, "no.such.setting", SET, Some("3")).await.0, 40);
        let (code, why) = alter(&mut c, all, "background.threads", SET, Some("3")).await;
        assert!(code == 40 && why.starts_with("background.threads is not supported. There are no"), "{why}");
        let hours = alter(&mut c, this, "log.retention.hours", SET, Some("1")).await;
        assert_eq!(hours, (42, "Cannot update these configs dynamically: [log.retention.hours]".to_owned()));
        let dirs = alter(&mut c, this, "log.dirs", SET, Some("/x")).await;
        assert_eq!(dirs, (42, "Cannot update these configs dynamically: [log.dirs]".to_owned()));
        // What a reassignment clears when it is done.
        assert_eq!(alter(&mut c, this, "leader.replication.throttled.rate", DELETE, None).await.0, 0);
        assert_eq!(alter(&mut c, all, "log.retention.ms", SET, Some("x")).await.0, 42);
        assert_eq!(alter(&mut c, all, "log.retention.ms", APPEND, Some("1")).await.0, 40);
        assert_eq!(alter(&mut c, all, "log.cleanup.policy", SET, Some("no")).await.0, 42);
        assert_eq!(alter(&mut c, (BROKER, "8"), "log.retention.ms", SET, Some("1")).await.0, 42);
        assert_eq!(alter(&mut c, (16, "x"), "metrics", SET, Some("1")).await.0, 42);
        for (topic, code) in [("", 42), ("no/name", 17), ("no-such-topic", 3)] {
            assert_eq!(
                alter(&mut c, (TOPIC, topic), "retention.ms", SET, Some("1")).await.0,
                code,
                "{topic}"
            );
        }
        for (key, read_only) in
            [("num.partitions", true), ("log.retention.ms", false), ("max.connections", false)]
        {
            assert_eq!(config(&mut c, 4, this, key).await.read_only, read_only, "{key}");
        }
        for key in ["listeners", "log.dirs", "node.id"] {
            let row = config(&mut c, 4, this, key).await;
            assert!(row.read_only && row.config_source == 4 && !row.value.unwrap().is_empty(), "{key}");
        }
    });
}

#[test]
fn what_a_list_names_twice_is_taken_and_shown_once() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let t = c.topic(1, &[("cleanup.policy", "delete,delete")]).await;
        let (topic, this) = ((TOPIC, t.name.as_str()), (BROKER, "7"));
        assert_eq!(shown(&mut c, topic, "cleanup.policy").await.0, "delete");
        assert_eq!(alter(&mut c, topic, "cleanup.policy", SET, Some("compact, delete,compact")).await.0, 0);
        assert_eq!(shown(&mut c, topic, "cleanup.policy").await.0, "compact,delete");
        let empty = alter(&mut c, topic, "cleanup.policy", SET, Some("delete,")).await;
        assert!(empty.0 == 40 && empty.1.contains("must not be empty"), "{empty:?}");
        assert_eq!(alter(&mut c, this, "log.cleanup.policy", SET, Some("compact,compact")).await.0, 0);
        assert_eq!(shown(&mut c, this, "log.cleanup.policy").await.0, "compact");
    });
}

#[test]
fn a_nodes_settings_are_replaced_as_a_whole() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let this = (BROKER, "7");
        assert_eq!(alter(&mut c, this, "log.retention.ms", SET, Some("5")).await.0, 0);
        let config = replace::AlterableConfig::default()
            .with_name(text("max.connections"))
            .with_value(Some(text("50")));
        let resource = replace::AlterConfigsResource::default()
            .with_resource_type(BROKER)
            .with_resource_name(text("7"))
            .with_configs(vec![config]);
        let request = m::AlterConfigsRequest::default().with_resources(vec![resource]);
        assert_eq!(c.call(2, request).await.responses[0].error_code, 0);
        assert_eq!(shown(&mut c, this, "max.connections").await.0, "50");
        assert_eq!(shown(&mut c, this, "log.retention.ms").await.1, 5, "not named, so its default again");
    });
}

#[test]
fn fewer_connections_may_be_allowed_while_the_node_runs() {
    run(async {
        let (broker, mut c) = own_broker().await;
        assert_eq!(alter(&mut c, (BROKER, ""), "max.connections", SET, Some("1")).await.0, 0);
        assert!(Client::to(&broker).await.is_closed().await);
        assert_eq!(alter(&mut c, (BROKER, ""), "max.connections", SET, Some("2")).await.0, 0);
        let mut second = Client::to(&broker).await;
        assert_eq!(second.call(0, m::ApiVersionsRequest::default()).await.error_code, 0);
    });
}

#[test]
fn how_long_a_silent_producer_is_remembered_is_changed_while_the_node_runs() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let t = c.topic(1, &[("segment.bytes", "65536")]).await;
        assert_eq!(c.produce(&t, Batch::of(1).by(9, 0, 0).bytes()).await.error_code, 0);
        // Enough for a new segment, which begins with a checkpoint.
        let roll = async |c: &mut Client| {
            for _ in 0..4 {
                assert_eq!(c.produce(&t, Batch::of(1).value(40_000).bytes()).await.error_code, 0);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        roll(&mut c).await;
        assert_eq!(producers(&mut c, &t).await.len(), 1);
        const NAME: &str = "producer.id.expiration.ms";
        assert_eq!(alter(&mut c, (BROKER, ""), NAME, SET, Some("0")).await.0, 42);
        assert_eq!(alter(&mut c, (BROKER, ""), NAME, SET, Some("1")).await.0, 0);
        assert_eq!(shown(&mut c, (BROKER, "7"), NAME).await, ("1".to_owned(), 3, vec![3, 5]));
        for _ in 0..100 {
            roll(&mut c).await;
            if producers(&mut c, &t).await.is_empty() {
                return;
            }
        }
        panic!("it is remembered");
    });
}

async fn answers(client: &mut Client) -> bool {
    client.call(0, m::ApiVersionsRequest::default()).await.error_code == 0
}

#[test]
fn an_address_has_so_many_connections_and_others_have_theirs() {
    run(async {
        let (broker, mut c) = own_broker().await;
        let all = (BROKER, "");
        let (limit, overrides) = ("max.connections.per.ip", "max.connections.per.ip.overrides");
        assert_eq!(shown(&mut c, (BROKER, "7"), limit).await.0, "2147483647");
        assert_eq!(alter(&mut c, all, limit, SET, Some("2")).await.0, 0);
        let mut second = Client::from("127.0.0.1", &broker).await;
        assert!(answers(&mut second).await);
        assert!(Client::from("127.0.0.1", &broker).await.is_closed().await, "the third of its address");
        let mut other = Client::from("127.0.0.2", &broker).await;
        assert!(answers(&mut other).await, "another address has its own");
        assert_eq!(alter(&mut c, all, overrides, SET, Some("127.0.0.2:1,127.0.0.3:3")).await.0, 0);
        assert!(Client::from("127.0.0.2", &broker).await.is_closed().await);
        let mut three = Vec::new();
        for _ in 0..3 {
            let mut client = Client::from("127.0.0.3", &broker).await;
            assert!(answers(&mut client).await);
            three.push(client);
        }
        let refused =
            broker.shared.metrics.closed().find(|(reason, _)| *reason == "too_many_per_ip").unwrap().1;
        assert_eq!(refused, 2);
        // One that ends makes room.
        drop(second);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let mut again = Client::from("127.0.0.1", &broker).await;
            again.send(0, m::ApiVersionsRequest::default()).await;
            if !again.is_closed().await {
                break;
            }
            assert!(std::time::Instant::now() < until, "the count falls when a connection ends");
        }
        // What would shut everybody out is refused.
        assert_eq!(alter(&mut c, all, limit, SET, Some("0")).await.0, 0, "the overrides are there");
        assert!(Client::from("127.0.0.1", &broker).await.is_closed().await);
        let (code, why) = alter(&mut c, all, overrides, DELETE, None).await;
        assert!(code == 42 && why.contains("can be set to zero only if"), "{code} {why}");
        let (code, why) = alter(&mut c, all, overrides, SET, Some("localhost:1")).await;
        assert!(code == 42 && why.contains("is no ADDRESS:COUNT"), "{code} {why}");
    });
}

#[test]
fn connections_that_come_too_fast_wait_and_are_not_refused() {
    run(async {
        let (broker, mut c) = own_broker().await;
        let all = (BROKER, "");
        assert_eq!(alter(&mut c, all, "max.connection.creation.rate", SET, Some("4")).await.0, 0);
        let begun = std::time::Instant::now();
        for _ in 0..8 {
            assert!(answers(&mut Client::to(&broker).await).await);
        }
        // Five at once, then a quarter of a second for each.
        assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
        assert_eq!(alter(&mut c, all, "max.connection.creation.rate", SET, Some("0")).await.0, 42);
    });
}

#[test]
fn log_levels_are_shown_and_changed() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        let this = (LOGGER, "7");
        assert_eq!(shown(&mut c, this, "root").await, ("INFO".to_owned(), 6, vec![]));
        assert_eq!(alter(&mut c, this, "rangeway_core::store", SET, Some("DEBUG")).await.0, 0);
        assert_eq!(shown(&mut c, this, "rangeway_core::store").await.0, "DEBUG");
        assert_eq!(alter(&mut c, this, "rangeway_core::store", DELETE, None).await.0, 0);
        assert_eq!(alter(&mut c, this, "root", SET, Some("LOUD")).await.0, 40);
        assert_eq!(alter(&mut c, this, "kafka.server", SET, Some("DEBUG")).await.0, 40);
        let all = DescribeConfigsResource::default()
            .with_resource_type(LOGGER)
            .with_resource_name(text("7"))
            .with_configuration_keys(None);
        let request = m::DescribeConfigsRequest::default().with_resources(vec![all]);
        let names: Vec<String> =
            c.call(4, request).await.results[0].configs.iter().map(|row| row.name.to_string()).collect();
        for name in ["rangeway_core", "rangeway_core::store", "rangeway_gateway::groups", "root"] {
            assert!(names.iter().any(|shown| shown == name), "{name}");
        }
    });
}

#[test]
fn configs_of_groups_are_shown_and_changed() {
    run(async {
        let (_broker, mut c) = own_broker().await;
        const GROUP: i8 = 32;
        const SESSION: &str = "consumer.session.timeout.ms";
        let group = (GROUP, "configured");
        assert_eq!(shown(&mut c, group, SESSION).await.0, "45000");
        for (name, value) in
            [("consumer.assignment.interval.ms", "0"), ("consumer.heartbeat.interval.ms", "500")]
        {
            assert_eq!(shown(&mut c, group, name).await.0, value, "{name}");
        }
        assert_eq!(alter(&mut c, group, SESSION, SET, Some("44999")).await.0, 40, "below the node's least");
        assert_eq!(alter(&mut c, group, SESSION, SET, Some("60001")).await.0, 40, "above its most");
        assert_eq!(alter(&mut c, group, SESSION, SET, Some("46000")).await.0, 0);
        let (value, source, _) = shown(&mut c, group, SESSION).await;
        assert_eq!((value.as_str(), source), ("46000", 8));
        assert_eq!(alter(&mut c, group, SESSION, SET, Some("soon")).await.0, 40);
        assert_eq!(alter(&mut c, group, "no.such.config", SET, Some("1")).await.0, 40);
        let asked = m::ListConfigResourcesRequest::default().with_resource_types(vec![GROUP]);
        let named = c.call(1, asked).await.config_resources;
        assert_eq!(named.iter().map(|r| r.resource_name.as_str()).collect::<Vec<_>>(), vec!["configured"]);
        assert_eq!(alter(&mut c, group, SESSION, DELETE, None).await.0, 0);
        assert_eq!(shown(&mut c, group, SESSION).await.0, "45000");
    });
}
