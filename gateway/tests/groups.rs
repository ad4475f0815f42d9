//! Groups through the Kafka port: two members, a rebalance, a restart with committed offsets.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    CreateTopicsRequest, DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, GroupId,
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest,
    MetadataRequest, OffsetCommitRequest, OffsetFetchRequest, RequestHeader, ResponseHeader,
    SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rangeway_core::config::node::NodeConfig;
use rangeway_core::node::{Node, NodeOptions};
use rangeway_gateway::{Settings, Shared, serve};
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(30);

struct Broker {
    node: Node,
    shared: Arc<Shared>,
    at: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Broker {
    async fn start(dir: &Path) -> Broker {
        let mut config = NodeConfig::default();
        for (key, value) in [("disk.reserve.bytes", "64KiB"), ("group.initial.rebalance.delay.ms", "0")] {
            config.set(key, value).expect("a known key");
        }
        let settings = Settings { node: Arc::new(config.clone()), ..Settings::default() };
        let codec = Arc::new(rangeway_gateway::Codecs);
        let options = NodeOptions {
            data: vec![dir.to_path_buf()],
            node_id: 7,
            rack: None,
            accept_new_disks: false,
            config,
            codec,
        };
        let node = Node::start(options).await.expect("starts");
        let shared = Shared::new(node.api(), settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, shared.clone(), stop.clone()));
        Broker { node, shared, at, stop, task }
    }

    async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.at).await.expect("connects");
        Client { stream, correlation: 0 }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.shared.stop_coordinators().await;
        timeout(LONG, self.task).await.expect("connections end").expect("no panic").expect("no error");
        drop(self.shared);
        self.node.stop().await;
    }
}

struct Client {
    stream: TcpStream,
    correlation: i32,
}

impl Client {
    async fn call<R: Request>(&mut self, request: R, version: i16) -> R::Response {
        self.correlation += 1;
        let mut bytes = BytesMut::new();
        bytes.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("test")));
        header.encode(&mut bytes, R::header_version(version)).expect("a header");
        request.encode(&mut bytes, version).expect("a request");
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&bytes).await.expect("sent");
        let length = timeout(LONG, self.stream.read_u32()).await.expect("in time").expect("an answer");
        let mut answer = vec![0; length as usize];
        self.stream.read_exact(&mut answer).await.expect("a whole answer");
        let mut answer = Bytes::from(answer);
        let header =
            ResponseHeader::decode(&mut answer, R::Response::header_version(version)).expect("a header");
        assert_eq!(header.correlation_id, self.correlation);
        R::Response::decode(&mut answer, version).expect("a response")
    }

    async fn create(&mut self, topic: &'static str, partitions: i32) {
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(topic)))
            .with_num_partitions(partitions)
            .with_replication_factor(1);
        let created = self.call(CreateTopicsRequest::default().with_topics(vec![topic]), 5).await;
        assert_eq!(created.topics[0].error_code, 0);
    }

    async fn join(&mut self, member: &str) -> JoinGroupResponse {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff"));
        let request = JoinGroupRequest::default()
            .with_group_id(group())
            .with_member_id(StrBytes::from_string(member.to_owned()))
            .with_session_timeout_ms(10_000)
            .with_rebalance_timeout_ms(20_000)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        let joined = self.call(request.clone(), 9).await;
        if joined.error_code != 79 {
            return joined;
        }
        self.call(request.with_member_id(joined.member_id), 9).await
    }

    async fn sync(&mut self, joined: &JoinGroupResponse) -> (i16, Bytes) {
        let assignments = joined.members.iter().map(|member| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member.member_id.clone())
                .with_assignment(Bytes::from(format!("for {}", member.member_id)))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(group())
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone())
            .with_assignments(assignments.collect());
        let synced = self.call(request, 5).await;
        (synced.error_code, synced.assignment)
    }

    async fn heartbeat(&mut self, joined: &JoinGroupResponse) -> i16 {
        let request = HeartbeatRequest::default()
            .with_group_id(group())
            .with_generation_id(joined.generation_id)
            .with_member_id(joined.member_id.clone());
        self.call(request, 4).await.error_code
    }

    async fn commit(&mut self, joined: Option<&JoinGroupResponse>, partition: i32, offset: i64) -> i16 {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(partition)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(1)
            .with_committed_metadata(Some(text("here")));
        let topic = OffsetCommitRequestTopic::default()
            .with_name(TopicName(text("t")))
            .with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group())
            .with_generation_id_or_member_epoch(joined.map_or(-1, |j| j.generation_id))
            .with_member_id(joined.map(|j| j.member_id.clone()).unwrap_or_default())
            .with_topics(vec![topic]);
        self.call(request, 9).await.topics[0].partitions[0].error_code
    }

    /// Partition and offset of all that is committed.
    async fn committed(&mut self) -> Vec<(i32, i64)> {
        let wanted = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
        let request = OffsetFetchRequest::default().with_topics(Some(vec![])).with_groups(vec![wanted]);
        let fetched = self.call(request, 8).await;
        assert_eq!(fetched.groups[0].error_code, 0);
        let partitions = fetched.groups[0].topics.iter().flat_map(|t| &t.partitions);
        partitions.map(|p| (p.partition_index, p.committed_offset)).collect()
    }
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn group() -> GroupId {
    GroupId(text("g"))
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { timeout(2 * LONG, test).await.expect("in time") });
}

#[test]
fn two_members_share_a_group_that_a_restart_does_not_disturb() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let broker = Broker::start(dir.path()).await;
        let (mut a, mut b) = (broker.client().await, broker.client().await);
        a.create("t", 4).await;

        let alone = a.join("").await;
        assert_eq!((alone.error_code, alone.generation_id, alone.members.len()), (0, 1, 1));
        assert_eq!(alone.leader, alone.member_id);
        assert!(alone.member_id.starts_with("test-"), "{}", alone.member_id);
        let (code, assignment) = a.sync(&alone).await;
        assert_eq!((code, assignment), (0, Bytes::from(format!("for {}", alone.member_id))));

        // The second member's join is answered when the first has come again.
        let (of_b, of_a) = tokio::join!(b.join(""), async {
            while a.heartbeat(&alone).await != 27 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            a.join(&alone.member_id).await
        });
        assert_eq!((of_a.generation_id, of_b.generation_id), (2, 2));
        assert_eq!((of_a.members.len(), of_b.members.len()), (2, 0));
        let (to_b, to_a) = tokio::join!(b.sync(&of_b), a.sync(&of_a));
        assert_eq!(to_a.1, Bytes::from(format!("for {}", of_a.member_id)));
        assert_eq!(to_b.1, Bytes::from(format!("for {}", of_b.member_id)));

        assert_eq!(a.commit(Some(&of_a), 0, 10).await, 0);
        assert_eq!(b.commit(Some(&of_b), 1, 11).await, 0);
        assert_eq!(a.commit(Some(&alone), 0, 5).await, 22, "of an earlier generation");
        assert_eq!(a.commit(None, 0, 5).await, 25, "of nobody, while the group is in use");
        assert_eq!(a.commit(Some(&of_a), 99, 5).await, 3);
        assert_eq!(a.committed().await, vec![(0, 10), (1, 11)]);
        broker.stop().await;

        let broker = Broker::start(dir.path()).await;
        let (mut a, mut b) = (broker.client().await, broker.client().await);
        assert_eq!(a.committed().await, vec![(0, 10), (1, 11)]);
        assert_eq!((a.heartbeat(&of_a).await, b.heartbeat(&of_b).await), (0, 0), "stable as before");
        assert_eq!(b.commit(Some(&of_b), 1, 12).await, 0);
        assert_eq!(b.sync(&of_b).await.1, Bytes::from(format!("for {}", of_b.member_id)));

        let leave = |member: &JoinGroupResponse| {
            let member = MemberIdentity::default().with_member_id(member.member_id.clone());
            LeaveGroupRequest::default().with_group_id(group()).with_members(vec![member])
        };
        for member in [&of_a, &of_b] {
            assert_eq!(a.call(leave(member), 5).await.members[0].error_code, 0);
        }
        assert_eq!(a.committed().await, vec![(0, 10), (1, 12)]);
        let deleted = a.call(DeleteGroupsRequest::default().with_groups_names(vec![group()]), 2).await;
        assert_eq!(deleted.results[0].error_code, 0);
        assert_eq!(a.committed().await, vec![]);
        broker.stop().await;
    });
}

#[test]
fn groups_that_nobody_made_are_unknown_and_make_no_topic() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let broker = Broker::start(dir.path()).await;
        let mut client = broker.client().await;
        let found = client.call(FindCoordinatorRequest::default().with_key(text("g")), 2).await;
        assert_eq!((found.error_code, found.node_id.0, found.port), (0, 7, i32::from(broker.at.port())));
        assert_eq!(client.committed().await, vec![]);
        assert!(client.call(ListGroupsRequest::default(), 5).await.groups.is_empty());
        let described = client.call(DescribeGroupsRequest::default().with_groups(vec![group()]), 5).await;
        assert_eq!(described.groups[0].group_state.as_str(), "Dead");
        let deleted = client.call(DeleteGroupsRequest::default().with_groups_names(vec![group()]), 2).await;
        assert_eq!(deleted.results[0].error_code, 69);
        assert!(broker.shared.api.catalog().by_name.is_empty());
        broker.stop().await;
    });
}

#[test]
fn the_topic_of_groups_is_hidden_and_groups_are_listed() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let broker = Broker::start(dir.path()).await;
        let mut client = broker.client().await;
        client.create("t", 1).await;
        assert_eq!(client.commit(None, 0, 3).await, 0, "a consumer that assigns itself");
        let names: Vec<String> = {
            let all = client.call(MetadataRequest::default().with_topics(None), 9).await;
            all.topics.iter().filter_map(|t| t.name.as_ref().map(|n| n.to_string())).collect()
        };
        assert_eq!(
            names,
            vec!["__consumer_offsets", "t"],
            "one is shown as tools know it, `__groups` is not"
        );
        let listed = client.call(ListGroupsRequest::default(), 5).await;
        let groups: Vec<_> = listed
            .groups
            .iter()
            .map(|g| (g.group_id.as_str(), g.group_state.as_str(), g.protocol_type.as_str()))
            .collect();
        assert_eq!(groups, vec![("g", "Empty", "")]);
        broker.stop().await;
    });
}

#[test]
fn a_join_that_waits_does_not_hold_the_broker_back_from_stopping() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let broker = Broker::start(dir.path()).await;
        let (mut a, mut b) = (broker.client().await, broker.client().await);
        let joined = a.join("").await;
        assert_eq!(a.sync(&joined).await.0, 0);
        let waiting = tokio::spawn(async move { b.join("").await.error_code });
        while a.heartbeat(&joined).await != 27 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        timeout(Duration::from_secs(10), broker.stop()).await.expect("stops");
        assert_eq!(waiting.await.expect("answered"), 16);
    });
}
