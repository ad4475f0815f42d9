//! Every version that is listed is answered: asked by the client's half of the codec, decoded to the last byte.

use crate::support::{Batch, Client, fetch_request, produce_request, run, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::protocol::{Message, Request, StrBytes};
use rangeway_gateway::protocol::table::{Row, TABLE};

/// Asks with an empty request of each of these types; `false` when the key is none of them.
macro_rules! ask_empty {
    ($client:ident, $key:expr, $version:expr, $($request:ident)*) => {
        match $key {
            $(<m::$request as Request>::KEY => {
                assert!($version <= <m::$request as Message>::VERSIONS.max);
                $client.call($version, m::$request::default()).await;
                true
            })*
            _ => false,
        }
    };
}

async fn ask(c: &mut Client, row: &Row, version: i16) -> bool {
    let t = c.topic(1, &[]).await;
    let name = topic_name(&t.name);
    match row.key {
        0 => {
            let response = c.call(version, produce_request(&t, 1, &[(0, Some(Batch::of(1).bytes()))])).await;
            assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        }
        1 => {
            c.produce(&t, Batch::of(1).bytes()).await;
            let response = c.call(version, fetch_request(&t, &[(0, 0)])).await;
            let partition = &response.responses[0].partitions[0];
            assert_eq!((partition.error_code, partition.high_watermark), (0, 1));
            assert!(partition.records.as_ref().is_some_and(|r| r.len() > 61));
        }
        2 => {
            let partitions = vec![ListOffsetsPartition::default().with_timestamp(-1)];
            let topic = ListOffsetsTopic::default().with_name(name).with_partitions(partitions);
            let response = c.call(version, m::ListOffsetsRequest::default().with_topics(vec![topic])).await;
            assert_eq!(
                (response.topics[0].partitions[0].error_code, response.topics[0].partitions[0].offset),
                (0, 0)
            );
        }
        3 => {
            let topic = MetadataRequestTopic::default().with_name(Some(name));
            let response =
                c.call(version, m::MetadataRequest::default().with_topics(Some(vec![topic]))).await;
            assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 1));
        }
        18 => {
            let word = StrBytes::from_static_str("it");
            let mut request = m::ApiVersionsRequest::default();
            if version >= 3 {
                request = request.with_client_software_name(word.clone()).with_client_software_version(word);
            }
            let response = c.call(version, request).await;
            assert_eq!((response.error_code, response.api_keys.len()), (0, TABLE.len()));
        }
        23 => {
            let partition = OffsetForLeaderPartition::default().with_current_leader_epoch(-1);
            let topic = OffsetForLeaderTopic::default().with_topic(name).with_partitions(vec![partition]);
            let request = m::OffsetForLeaderEpochRequest::default()
                .with_replica_id((-2).into())
                .with_topics(vec![topic]);
            let response = c.call(version, request).await;
            assert_eq!(response.topics[0].partitions[0].error_code, 0);
        }
        key => {
            return ask_empty!(c, key, version,
                OffsetCommitRequest OffsetFetchRequest FindCoordinatorRequest JoinGroupRequest HeartbeatRequest
                LeaveGroupRequest SyncGroupRequest DescribeGroupsRequest ListGroupsRequest CreateTopicsRequest
                DeleteTopicsRequest DeleteRecordsRequest InitProducerIdRequest DescribeConfigsRequest
                AlterConfigsRequest CreatePartitionsRequest DeleteGroupsRequest IncrementalAlterConfigsRequest
                OffsetDeleteRequest DescribeClusterRequest DescribeTopicPartitionsRequest DescribeLogDirsRequest
                ElectLeadersRequest AlterPartitionReassignmentsRequest ListPartitionReassignmentsRequest
                ConsumerGroupHeartbeatRequest ConsumerGroupDescribeRequest ListConfigResourcesRequest
                DescribeProducersRequest DescribeAclsRequest CreateAclsRequest DeleteAclsRequest);
        }
    }
    true
}

#[test]
fn every_listed_version_of_every_api_is_answered() {
    run(async {
        let mut c = Client::new().await;
        for row in TABLE {
            for version in row.served.min..=row.served.max {
                assert!(ask(&mut c, row, version).await, "{} has no round trip here", row.name);
            }
            assert_eq!(row.advertised.max, row.served.max, "{}", row.name);
            let listed_only = row.advertised.min < row.served.min;
            assert_eq!(listed_only, row.name == "Produce", "{}", row.name);
        }
    });
}

#[test]
fn produce_0_to_2_are_listed_and_closed() {
    run(async {
        let mut c = Client::new().await;
        let listed = c.call(0, m::ApiVersionsRequest::default()).await;
        let produce = listed.api_keys.iter().find(|k| k.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
        for version in 0..=2i16 {
            let mut c = Client::new().await;
            let mut frame = vec![0, 0, 0, 10, 0, 0];
            frame.extend(version.to_be_bytes());
            frame.extend([0, 0, 0, 1, 0xff, 0xff]);
            c.send_bytes(&frame).await;
            assert!(c.is_closed().await);
        }
    });
}

#[test]
fn software_names_are_checked_and_features_shown() {
    run(async {
        let mut c = Client::new().await;
        for (name, want) in [("", 42), ("a b", 42), ("ok-1.0", 0)] {
            let word = StrBytes::from_static_str(name);
            let request = m::ApiVersionsRequest::default()
                .with_client_software_name(word.clone())
                .with_client_software_version(word);
            let response = c.call(4, request).await;
            assert_eq!((response.error_code, response.api_keys.is_empty()), (want, want != 0), "{name:?}");
        }
    });
}

#[test]
fn the_docs_list_the_table() {
    let mut page = String::from(
        "# Kafka APIs\n\nWhat a client finds in ApiVersions. Written from the table in `gateway/src/protocol/table.rs`; \
         a test compares them\nand `UPDATE_DOCS=1 cargo test -p rangeway-gateway --test it the_docs` writes this page anew.\n\n\
         | key | API | versions | what it does |\n|---|---|---|---|\n",
    );
    for row in TABLE {
        let note = if row.advertised == row.served {
            String::new()
        } else {
            format!(" ({} to {} are closed)", row.advertised.min, row.served.min - 1)
        };
        let (from, to) = (row.advertised.min, row.advertised.max);
        page += &format!("| {} | {} | {from}-{to}{note} | {} |\n", row.key, row.name, row.doc);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kafka-apis.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/kafka-apis.md is not what the table says: run with UPDATE_DOCS=1");
}

#[test]
fn rows_are_in_order_and_within_what_the_codec_can_do() {
    assert!(TABLE.is_sorted_by_key(|row| row.key));
    for row in TABLE {
        let key = m::ApiKey::try_from(row.key).unwrap();
        let able = key.valid_versions();
        assert!(able.min <= row.served.min && row.served.max <= able.max, "{}: {able}", row.name);
        for version in row.served.min..=row.served.max {
            let header = if version >= row.flexible { 2 } else { 1 };
            assert_eq!(key.request_header_version(version), header, "{} {version}", row.name);
        }
    }
}
