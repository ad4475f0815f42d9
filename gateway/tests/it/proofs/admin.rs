//! Administration: places, elections, the control plane; and what is honestly not there.

use super::proofs;
use crate::support::{BROKER, Batch, topic_name};
use kafka_protocol::messages as m;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::messages::alter_client_quotas_request as quota;
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
use kafka_protocol::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::protocol::StrBytes;

const ON_DISK: &[(&str, &str)] = &[("rangeway.drive", "disk")];

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

proofs! {
    bytes_of_partitions_are_told_by_directory: DescribeLogDirsRequest 1..=4, |c, version| {
        let t = c.topic(2, ON_DISK).await;
        c.produce(&t, Batch::of(1).value(1000).bytes()).await;
        let of = |partitions: &[i32]| DescribableLogDirTopic::default()
            .with_topic(topic_name(&t.name))
            .with_partitions(partitions.to_vec());
        let request = m::DescribeLogDirsRequest::default().with_topics(Some(vec![of(&[0, 1, 9])]));
        let response = c.call(version, request).await;
        let dir = &response.results[0];
        assert_eq!((response.error_code, response.results.len(), dir.error_code), (0, 1, 0));
        assert!(dir.log_dir.starts_with('/'));
        let sizes: Vec<_> = dir.topics[0].partitions.iter().map(|p| (p.partition_index, p.partition_size > 1000)).collect();
        assert_eq!((dir.topics[0].name.as_str(), sizes), (t.name.as_str(), vec![(0, true), (1, false)]));
        if version >= 4 {
            assert!(dir.usable_bytes > 0 && dir.total_bytes >= dir.usable_bytes);
        }
        let all = c.call(version, m::DescribeLogDirsRequest::default().with_topics(None)).await;
        assert!(all.results[0].topics.iter().any(|topic| topic.name.as_str() == t.name));
    }
    a_partition_is_not_moved_between_directories: AlterReplicaLogDirsRequest 1..=2, |c, version| {
        let t = c.topic(1, ON_DISK).await;
        let dirs = c.call(4, m::DescribeLogDirsRequest::default().with_topics(None)).await;
        let here = dirs.results[0].log_dir.to_string();
        for (path, partition, code) in [(here.as_str(), 0, 0), (here.as_str(), 5, 3), ("/nowhere", 0, 57)] {
            let topic = AlterReplicaLogDirTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
            let dir = AlterReplicaLogDir::default().with_path(text(path)).with_topics(vec![topic]);
            let response = c.call(version, m::AlterReplicaLogDirsRequest::default().with_dirs(vec![dir])).await;
            assert_eq!(response.results[0].partitions[0].error_code, code, "{path} {partition}");
        }
    }
    no_leader_has_to_be_elected: ElectLeadersRequest 0..=2, |c, version| {
        let t = c.topic(1, &[]).await;
        let named = TopicPartitions::default().with_topic(topic_name(&t.name)).with_partitions(vec![0, 9]);
        let unknown = TopicPartitions::default().with_topic(topic_name("nothing")).with_partitions(vec![0]);
        let request = m::ElectLeadersRequest::default().with_timeout_ms(1000);
        let response = c.call(version, request.clone().with_topic_partitions(Some(vec![named, unknown]))).await;
        let codes: Vec<_> = response
            .replica_election_results
            .iter()
            .flat_map(|topic| topic.partition_result.iter().map(|p| (p.partition_id, p.error_code)))
            .collect();
        assert_eq!((response.error_code, codes), (0, vec![(0, 84), (9, 3), (0, 3)]));
        let all = c.call(version, request.with_topic_partitions(None)).await;
        let of_topic = all.replica_election_results.iter().find(|topic| topic.topic.as_str() == t.name).unwrap();
        assert_eq!((all.error_code, of_topic.partition_result.len()), (0, 0));
    }
    a_partition_stays_on_its_node: AlterPartitionReassignmentsRequest 0..=1, |c, version| {
        let t = c.topic(1, &[]).await;
        let cases: [(i32, Option<&[i32]>, i16); 6] = [
            (0, Some(&[7]), 0),
            (0, Some(&[8]), 39),
            (0, Some(&[7, 7]), 39),
            (0, Some(&[]), 39),
            (0, None, 85),
            (9, Some(&[7]), 3),
        ];
        for (partition, replicas, code) in cases {
            let partition = ReassignablePartition::default()
                .with_partition_index(partition)
                .with_replicas(replicas.map(|nodes| nodes.iter().map(|n| BrokerId(*n)).collect()));
            let topic = ReassignableTopic::default().with_name(topic_name(&t.name)).with_partitions(vec![partition]);
            let request = m::AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
            let response = c.call(version, request).await;
            let row = &response.responses[0].partitions[0];
            assert_eq!((response.error_code, row.error_code), (0, code), "{:?}", row.error_message);
        }
    }
    no_reassignment_is_under_way: ListPartitionReassignmentsRequest 0..=0, |c, version| {
        let t = c.topic(1, &[]).await;
        let named = ListPartitionReassignmentsTopics::default()
            .with_name(topic_name(&t.name))
            .with_partition_indexes(vec![0, 9]);
        for topics in [None, Some(vec![named])] {
            let request = m::ListPartitionReassignmentsRequest::default().with_topics(topics);
            let response = c.call(version, request).await;
            assert_eq!((response.error_code, response.topics.len()), (0, 0));
        }
    }
    the_control_plane_is_described: DescribeQuorumRequest 0..=2, |c, version| {
        let of = |topic: &str, partition: i32| {
            let partition = PartitionData::default().with_partition_index(partition);
            let topic = TopicData::default().with_topic_name(topic_name(topic)).with_partitions(vec![partition]);
            m::DescribeQuorumRequest::default().with_topics(vec![topic])
        };
        let before = c.call(version, of("__cluster_metadata", 0)).await;
        c.topic(1, &[]).await;
        let after = c.call(version, of("__cluster_metadata", 0)).await;
        let partition = &after.topics[0].partitions[0];
        assert_eq!((after.error_code, partition.error_code, partition.leader_id.0), (0, 0, 7));
        assert!(partition.high_watermark > before.topics[0].partitions[0].high_watermark, "a topic was made");
        assert_eq!(partition.current_voters[0].log_end_offset, partition.high_watermark);
        if version >= 2 {
            assert_eq!(after.nodes[0].listeners[0].port, BROKER.address.port());
            assert!(!partition.current_voters[0].replica_directory_id.is_nil());
        }
        for (topic, partition) in [("__cluster_metadata", 1), ("other", 0)] {
            let response = c.call(version, of(topic, partition)).await;
            assert_eq!((response.error_code, response.topics[0].partitions[0].error_code), (0, 3));
        }
    }
    features_come_with_the_program: UpdateFeaturesRequest 0..=2, |c, version| {
        let mut update = async |feature: &str, level: i16| {
            let mut update = FeatureUpdateKey::default().with_feature(text(feature)).with_max_version_level(level);
            update.upgrade_type = if version == 0 { update.upgrade_type } else { 3 };
            update.allow_downgrade = version == 0;
            let request = m::UpdateFeaturesRequest::default().with_feature_updates(vec![update]);
            let response = c.call(version, request).await;
            (response.error_code, response.results.len())
        };
        assert_eq!(update("metadata.version", 27).await, (0, usize::from(version < 2)));
        assert_eq!(update("metadata.version", 26).await, (95, 0));
        assert_eq!(update("no.such.feature", 1).await, (95, 0));
    }
    no_access_rules_are_shown: DescribeAclsRequest 1..=3, |c, version| {
        let request = m::DescribeAclsRequest::default()
            .with_resource_type_filter(1)
            .with_pattern_type_filter(1)
            .with_operation(1)
            .with_permission_type(1);
        assert_eq!(c.call(version, request).await.error_code, 54);
    }
    no_access_rules_are_made: CreateAclsRequest 1..=3, |c, version| {
        let rule = AclCreation::default()
            .with_resource_type(2)
            .with_resource_name(text("t"))
            .with_resource_pattern_type(3)
            .with_principal(text("User:a"))
            .with_host(text("*"))
            .with_operation(3)
            .with_permission_type(3);
        let response = c.call(version, m::CreateAclsRequest::default().with_creations(vec![rule.clone(), rule])).await;
        assert_eq!(response.results.iter().map(|row| row.error_code).collect::<Vec<_>>(), [54, 54]);
    }
    no_access_rules_are_deleted: DeleteAclsRequest 1..=3, |c, version| {
        let filter = DeleteAclsFilter::default()
            .with_resource_type_filter(1)
            .with_pattern_type_filter(1)
            .with_operation(1)
            .with_permission_type(1);
        let response = c.call(version, m::DeleteAclsRequest::default().with_filters(vec![filter])).await;
        assert_eq!(response.filter_results[0].error_code, 54);
    }
    no_handshake_is_made: SaslHandshakeRequest 0..=1, |c, version| {
        let request = m::SaslHandshakeRequest::default().with_mechanism(text("PLAIN"));
        let response = c.call(version, request).await;
        assert_eq!((response.error_code, response.mechanisms.len()), (34, 0));
    }
    nobody_is_authenticated: SaslAuthenticateRequest 0..=2, |c, version| {
        let request = m::SaslAuthenticateRequest::default().with_auth_bytes(bytes::Bytes::from_static(b"\0u\0p"));
        let response = c.call(version, request).await;
        assert_eq!((response.error_code, response.auth_bytes.len()), (34, 0));
        assert!(response.error_message.is_some());
    }
    no_token_is_given_out: CreateDelegationTokenRequest 1..=3, |c, version| {
        let response = c.call(version, m::CreateDelegationTokenRequest::default()).await;
        assert_eq!((response.error_code, response.principal_name.as_str()), (64, "ANONYMOUS"));
    }
    no_token_is_renewed: RenewDelegationTokenRequest 1..=2, |c, version| {
        assert_eq!(c.call(version, m::RenewDelegationTokenRequest::default()).await.error_code, 64);
    }
    no_token_is_ended: ExpireDelegationTokenRequest 1..=2, |c, version| {
        assert_eq!(c.call(version, m::ExpireDelegationTokenRequest::default()).await.error_code, 64);
    }
    no_token_is_shown: DescribeDelegationTokenRequest 1..=3, |c, version| {
        let response = c.call(version, m::DescribeDelegationTokenRequest::default().with_owners(None)).await;
        assert_eq!((response.error_code, response.tokens.len()), (64, 0));
    }
    no_quota_is_shown: DescribeClientQuotasRequest 0..=1, |c, version| {
        let any = ComponentData::default().with_entity_type(text("user")).with_match_type(2).with_match(None);
        let response = c.call(version, m::DescribeClientQuotasRequest::default().with_components(vec![any])).await;
        assert_eq!((response.error_code, response.entries.map(|entries| entries.len())), (0, Some(0)));
        let other = ComponentData::default().with_entity_type(text("tenant")).with_match_type(2).with_match(None);
        let response = c.call(version, m::DescribeClientQuotasRequest::default().with_components(vec![other])).await;
        assert_eq!((response.error_code, response.entries), (35, None));
    }
    no_quota_is_set: AlterClientQuotasRequest 0..=1, |c, version| {
        for (remove, code) in [(true, 0), (false, 35)] {
            let entity = quota::EntityData::default().with_entity_type(text("client-id")).with_entity_name(Some(text("a")));
            let op = quota::OpData::default()
                .with_key(text("producer_byte_rate"))
                .with_value(if remove { 0.0 } else { 1024.5 })
                .with_remove(remove);
            let entry = quota::EntryData::default().with_entity(vec![entity]).with_ops(vec![op]);
            let response = c.call(version, m::AlterClientQuotasRequest::default().with_entries(vec![entry])).await;
            let row = &response.entries[0];
            assert_eq!((row.error_code, row.entity[0].entity_type.as_str()), (code, "client-id"));
        }
    }
    no_user_is_shown: DescribeUserScramCredentialsRequest 0..=0, |c, version| {
        let all = c.call(version, m::DescribeUserScramCredentialsRequest::default().with_users(None)).await;
        assert_eq!((all.error_code, all.results.len()), (0, 0));
        let user = |name: &str| UserName::default().with_name(text(name));
        let users = Some(vec![user("a"), user("b"), user("b")]);
        let named = c.call(version, m::DescribeUserScramCredentialsRequest::default().with_users(users)).await;
        assert_eq!(named.results.iter().map(|row| row.error_code).collect::<Vec<_>>(), [91, 92]);
    }
    no_user_is_made: AlterUserScramCredentialsRequest 0..=0, |c, version| {
        let gone = ScramCredentialDeletion::default().with_name(text("a")).with_mechanism(1);
        let new = |name: &str| ScramCredentialUpsertion::default()
            .with_name(text(name))
            .with_mechanism(1)
            .with_iterations(if name == "d" { 100 } else { 4096 });
        let request = m::AlterUserScramCredentialsRequest::default()
            .with_deletions(vec![gone])
            .with_upsertions(vec![new("b"), new("c"), new("c"), new("d")]);
        let response = c.call(version, request).await;
        assert_eq!(response.results.iter().map(|row| row.error_code).collect::<Vec<_>>(), [91, 33, 92, 93]);
    }
}
