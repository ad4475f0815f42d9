//! Records and offsets, and what a client asks first.

use super::proofs;
use crate::support::{Batch, Topic, fetch_request, produce_request, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_gateway::protocol::table::TABLE;

fn end_of_log(t: &Topic) -> m::ListOffsetsRequest {
    let partitions = vec![ListOffsetsPartition::default().with_timestamp(-1)];
    let topic = ListOffsetsTopic::default().with_name(topic_name(&t.name)).with_partitions(partitions);
    m::ListOffsetsRequest::default().with_topics(vec![topic])
}

proofs! {
    a_batch_is_stored: ProduceRequest 3..=13, |c, version| {
        let t = c.topic(1, &[]).await;
        for base in [0, 1] {
            let response = c.call(version, produce_request(&t, 1, &[(0, Some(Batch::of(1).bytes()))])).await;
            let row = &response.responses[0].partition_responses[0];
            assert_eq!((row.error_code, row.base_offset), (0, base));
        }
    }
    what_was_stored_is_read: FetchRequest 4..=17, |c, version| {
        let t = c.topic(1, &[]).await;
        c.produce(&t, Batch::of(1).bytes()).await;
        let response = c.call(version, fetch_request(&t, &[(0, 0)])).await;
        let partition = &response.responses[0].partitions[0];
        assert_eq!((partition.error_code, partition.high_watermark), (0, 1));
        assert!(partition.records.as_ref().is_some_and(|r| r.len() > 61));
    }
    the_end_of_a_log_is_told: ListOffsetsRequest 1..=10, |c, version| {
        let t = c.topic(1, &[]).await;
        c.produce(&t, Batch::of(3).bytes()).await;
        let response = c.call(version, end_of_log(&t)).await;
        let row = &response.topics[0].partitions[0];
        assert_eq!((row.error_code, row.offset), (0, 3));
    }
    the_end_of_an_epoch_is_told: OffsetForLeaderEpochRequest 2..=4, |c, version| {
        let t = c.topic(1, &[]).await;
        c.produce(&t, Batch::of(3).bytes()).await;
        let partition = OffsetForLeaderPartition::default().with_current_leader_epoch(-1);
        let topic = OffsetForLeaderTopic::default().with_topic(topic_name(&t.name)).with_partitions(vec![partition]);
        let request = m::OffsetForLeaderEpochRequest::default()
            .with_replica_id((-2).into())
            .with_topics(vec![topic]);
        let response = c.call(version, request).await;
        let row = &response.topics[0].partitions[0];
        assert_eq!((row.error_code, row.end_offset), (0, 3));
    }
    the_log_start_is_raised: DeleteRecordsRequest 0..=2, |c, version| {
        let t = c.topic(1, &[]).await;
        c.produce(&t, Batch::of(3).bytes()).await;
        let partition = DeleteRecordsPartition::default().with_offset(2);
        let topic = DeleteRecordsTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
        let request = m::DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = c.call(version, request).await;
        let row = &response.topics[0].partitions[0];
        assert_eq!((row.error_code, row.low_watermark), (0, 2));
    }
    a_producer_id_is_given_out_once: InitProducerIdRequest 0..=5, |c, version| {
        let mut ids = Vec::new();
        for _ in 0..2 {
            let response = c.call(version, m::InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(1)).await;
            assert_eq!((response.error_code, response.producer_epoch), (0, 0));
            ids.push(response.producer_id);
        }
        assert_ne!(ids[0], ids[1]);
    }
    the_table_is_told: ApiVersionsRequest 0..=4, |c, version| {
        let word = StrBytes::from_static_str("it");
        let mut request = m::ApiVersionsRequest::default();
        if version >= 3 {
            request = request.with_client_software_name(word.clone()).with_client_software_version(word);
        }
        let response = c.call(version, request).await;
        let told: Vec<_> = response.api_keys.iter().map(|k| (k.api_key, k.min_version, k.max_version)).collect();
        let table: Vec<_> = TABLE.iter().map(|row| (row.key, row.advertised.min, row.advertised.max)).collect();
        assert_eq!((response.error_code, told), (0, table));
        assert!(version < 3 || response.supported_features.iter().all(|f| version >= 4 || f.min_version > 0));
    }
}
