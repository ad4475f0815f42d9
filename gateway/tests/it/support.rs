//! One node for all tests, a raw client, and batches made by hand.

use bytes::{Buf, BufMut, Bytes};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    CreateTopicsRequest, FetchRequest, FetchResponse, MetadataRequest, ProduceRequest, RequestHeader,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rangeway_core::api::batch::BatchHead;
use rangeway_core::api::{AppendBatch, Appended, FirstSequence, Lane, Marker, TransactionVersion, crc32c};
use rangeway_core::config::node::NodeConfig;
use rangeway_core::error::TopicPartition;
use rangeway_core::node::{Node, NodeOptions};
use rangeway_core::types::TopicId;
use rangeway_gateway::{Settings, Shared};
use std::collections::HashSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A running node with its Kafka port.
pub struct Broker {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
    node: Node,
    _data: tempfile::TempDir,
}

/// The node that tests share; they use topics of their own.
pub static BROKER: LazyLock<Broker> = LazyLock::new(|| RUNTIME.block_on(start(Settings::default())));

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

/// Runs a test beside the node.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    LazyLock::force(&BROKER);
    RUNTIME.block_on(test)
}

/// Appends one record of now to partition 0 as part of a transaction of `producer_id`, as the coordinator has it.
pub async fn in_transaction(topic: &Topic, producer_id: i64, sequence: i32) {
    let batch = Batch { attributes: 0x10, ..Batch::of(1).by(producer_id, 0, sequence) };
    let bytes = batch.bytes();
    let head = BatchHead::parse(&bytes).unwrap();
    let batch = AppendBatch { partition: 0, head, bytes, first: FirstSequence::Any };
    let api = BROKER.node.api();
    let outcome = api.append(&Lane::default(), TopicId(topic.id), vec![batch], soon()).wait().await;
    assert!(matches!(outcome.batches[0], Appended::Ok { .. }), "{outcome:?}");
}

/// Ends the first transaction of `producer_id` in partition 0.
pub async fn end_transaction(topic: &Topic, producer_id: i64, commit: bool) {
    let (producer_epoch, coordinator_epoch, number, version) = (0, 0, 1, TransactionVersion::V1);
    let marker = Marker { producer_id, producer_epoch, coordinator_epoch, number, commit, version };
    let at = TopicPartition { topic: TopicId(topic.id), partition: 0 };
    BROKER.node.api().write_marker(at, marker, soon()).await.unwrap();
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A node of its own.
pub async fn start(settings: Settings) -> Broker {
    let data = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::default();
    for (key, value) in [("drive", "memory"), ("disk.reserve.bytes", "64KiB"), ("num.partitions", "4")] {
        config.set(key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
    }
    let codec = Arc::new(rangeway_gateway::Codecs);
    let options = NodeOptions {
        data: vec![data.path().to_owned()],
        node_id: 7,
        rack: None,
        accept_new_disks: false,
        config,
        codec,
    };
    let node = Node::start(options).await.unwrap();
    let shared = Shared::new(node.api(), settings);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(rangeway_gateway::serve(listener, shared.clone(), CancellationToken::new()));
    Broker { address, shared, node, _data: data }
}

/// A connection that speaks raw requests.
pub struct Client {
    stream: TcpStream,
    correlation: i32,
    answered: HashSet<(i16, i16)>,
}

impl Client {
    pub async fn new() -> Client {
        Client::to(&BROKER).await
    }

    pub async fn to(broker: &Broker) -> Client {
        Client::at(broker.address).await
    }

    pub async fn at(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        Client { stream, correlation: 0, answered: HashSet::new() }
    }

    /// From an address of this machine.
    pub async fn from(address: &str, broker: &Broker) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        let stream = socket.connect(broker.address).await.unwrap();
        Client { stream, correlation: 0, answered: HashSet::new() }
    }

    /// Sends and awaits the answer.
    pub async fn call<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        self.send(version, request).await;
        self.receive::<R>(version).await
    }

    /// Sends only; the correlation id.
    pub async fn send<R: Request>(&mut self, version: i16, request: R) -> i32 {
        self.correlation += 1;
        let frame = frame(self.correlation, version, &request);
        self.stream.write_all(&frame).await.unwrap();
        self.correlation
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        // The node may have closed already; what it answered is looked at.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next answer's correlation id and body; `None` when the connection was closed.
    pub async fn receive_bytes(&mut self) -> Option<(i32, Bytes)> {
        let length = self.stream.read_i32().await.ok()?;
        let mut body = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut body).await.ok()?;
        let mut body = Bytes::from(body);
        Some((body.get_i32(), body))
    }

    /// The answer to the request sent last, wholly decoded.
    pub async fn receive<R: Request>(&mut self, version: i16) -> R::Response {
        let (correlation, mut body) = self.receive_bytes().await.expect("an answer, not a closed connection");
        assert_eq!(correlation, self.correlation);
        if <R::Response as HeaderVersion>::header_version(version) >= 1 {
            assert_eq!(body.get_u8(), 0, "no tagged fields in the response header");
        }
        let response = R::Response::decode(&mut body, version).unwrap();
        assert!(body.is_empty(), "{} bytes after the answer", body.len());
        self.answered.insert((R::KEY, version));
        response
    }

    /// The keys and versions of all requests that got an answer which was decoded to its last byte.
    pub fn answered(&self) -> &HashSet<(i16, i16)> {
        &self.answered
    }

    /// Whether the node closes the connection without a further word.
    pub async fn is_closed(&mut self) -> bool {
        self.receive_bytes().await.is_none()
    }

    /// Makes a topic of its own with `partitions`; its name and id.
    pub async fn topic(&mut self, partitions: i32, configs: &[(&str, &str)]) -> Topic {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("topic-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let configs = configs
            .iter()
            .map(|(k, v)| {
                CreatableTopicConfig::default()
                    .with_name(StrBytes::from_string((*k).to_owned()))
                    .with_value(Some(StrBytes::from_string((*v).to_owned())))
            })
            .collect();
        let topic = CreatableTopic::default()
            .with_name(topic_name(&name))
            .with_num_partitions(partitions)
            .with_replication_factor(-1)
            .with_configs(configs);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = self.call(7, request).await;
        let row = &response.topics[0];
        assert_eq!(row.error_code, 0, "{:?}", row.error_message);
        Topic { name, id: row.topic_id }
    }

    /// Produces to partition 0 with the newest version by name.
    pub async fn produce(&mut self, topic: &Topic, records: Bytes) -> PartitionProduceResponse {
        self.produce_at(12, topic, 0, Some(records)).await
    }

    pub async fn produce_at(
        &mut self,
        version: i16,
        topic: &Topic,
        partition: i32,
        records: Option<Bytes>,
    ) -> PartitionProduceResponse {
        let response = self.call(version, produce_request(topic, -1, &[(partition, records)])).await;
        assert_eq!(response.responses.len(), 1);
        response.responses[0].partition_responses[0].clone()
    }

    /// Fetches one partition by name.
    pub async fn fetch(&mut self, topic: &Topic, offset: i64) -> PartitionData {
        let response = self.call(12, fetch_request(topic, &[(0, offset)])).await;
        only(&response)
    }

    pub async fn metadata(
        &mut self,
        version: i16,
        names: &[&str],
    ) -> kafka_protocol::messages::MetadataResponse {
        let topics =
            names.iter().map(|n| MetadataRequestTopic::default().with_name(Some(topic_name(n)))).collect();
        let mut request = MetadataRequest::default().with_topics(Some(topics));
        request.allow_auto_topic_creation = version < 4;
        self.call(version, request).await
    }
}

/// The only partition of an answer.
pub fn only(response: &FetchResponse) -> PartitionData {
    assert_eq!((response.error_code, response.responses.len()), (0, 1));
    assert_eq!(response.responses[0].partitions.len(), 1);
    response.responses[0].partitions[0].clone()
}

#[derive(Clone, Debug)]
pub struct Topic {
    pub name: String,
    pub id: Uuid,
}

pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// A request with its length prefix and header.
pub fn frame<R: Request>(correlation: i32, version: i16, request: &R) -> Vec<u8> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str("it")));
    let mut body = Vec::new();
    header.encode(&mut body, R::header_version(version)).unwrap();
    request.encode(&mut body, version).unwrap();
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.put_i32(body.len() as i32);
    frame.extend(body);
    frame
}

pub fn produce_request(topic: &Topic, acks: i16, partitions: &[(i32, Option<Bytes>)]) -> ProduceRequest {
    let rows = partitions
        .iter()
        .map(|(p, r)| PartitionProduceData::default().with_index(*p).with_records(r.clone()))
        .collect();
    // Below version 13 the name is sent, from there the id.
    let data = TopicProduceData::default()
        .with_name(topic_name(&topic.name))
        .with_topic_id(topic.id)
        .with_partition_data(rows);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(vec![data])
}

/// A fetch without a session that does not wait.
pub fn fetch_request(topic: &Topic, partitions: &[(i32, i64)]) -> FetchRequest {
    let rows = partitions
        .iter()
        .map(|(p, offset)| {
            FetchPartition::default()
                .with_partition(*p)
                .with_fetch_offset(*offset)
                .with_partition_max_bytes(1 << 20)
        })
        .collect();
    let data = FetchTopic::default()
        .with_topic(topic_name(&topic.name))
        .with_topic_id(topic.id)
        .with_partitions(rows);
    FetchRequest::default()
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![data])
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A batch under construction.
#[derive(Clone, Debug)]
pub struct Batch {
    pub times: Vec<i64>,
    pub value: usize,
    pub key: bool,
    /// Producer id, epoch, first sequence.
    pub producer: (i64, i16, i32),
    pub attributes: i16,
}

impl Batch {
    /// `n` records of now.
    pub fn of(n: usize) -> Batch {
        Batch::at(vec![now_ms(); n])
    }

    /// One record per timestamp.
    pub fn at(times: Vec<i64>) -> Batch {
        Batch { times, value: 10, key: true, producer: (-1, -1, -1), attributes: 0 }
    }

    pub fn by(self, producer: i64, epoch: i16, sequence: i32) -> Batch {
        Batch { producer: (producer, epoch, sequence), ..self }
    }

    pub fn value(self, bytes: usize) -> Batch {
        Batch { value: bytes, ..self }
    }

    pub fn bytes(&self) -> Bytes {
        self.with(|_| ())
    }

    /// The batch after `change` had its way with all but the CRC, which is right.
    pub fn with(&self, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let base = self.times[0];
        let mut b = Vec::new();
        b.put_i64(0);
        b.put_i32(0);
        b.put_i32(-1);
        b.put_i8(2);
        b.put_u32(0);
        b.put_i16(self.attributes);
        b.put_i32(self.times.len() as i32 - 1);
        b.put_i64(base);
        b.put_i64(self.times.iter().copied().max().unwrap());
        b.put_i64(self.producer.0);
        b.put_i16(self.producer.1);
        b.put_i32(self.producer.2);
        b.put_i32(self.times.len() as i32);
        for (i, time) in self.times.iter().enumerate() {
            let mut r = vec![0];
            varint(&mut r, time - base);
            varint(&mut r, i as i64);
            match self.key {
                true => {
                    varint(&mut r, 1);
                    r.push(b'k');
                }
                false => varint(&mut r, -1),
            }
            varint(&mut r, self.value as i64);
            r.extend(std::iter::repeat_n(b'v', self.value));
            varint(&mut r, 0);
            varint(&mut b, r.len() as i64);
            b.extend(r);
        }
        let length = b.len() as i32 - 12;
        b[8..12].copy_from_slice(&length.to_be_bytes());
        change(&mut b);
        if b.len() > 21 {
            let crc = crc32c(&[&b[21..]]);
            b[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        Bytes::from(b)
    }
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// (first offset, last offset, leader epoch, bytes) of each batch in records.
pub fn batches(records: &Option<Bytes>) -> Vec<(i64, i64, i32, usize)> {
    let mut rest = records.clone().unwrap_or_default();
    let mut all = Vec::new();
    while rest.len() >= 61 {
        let mut head = rest.clone();
        let base = head.get_i64();
        let length = head.get_i32() as usize + 12;
        let epoch = head.get_i32();
        head.advance(7);
        let last = base + i64::from(head.get_i32());
        all.push((base, last, epoch, length));
        assert!(rest.len() >= length, "whole batches only");
        rest.advance(length);
    }
    assert!(rest.is_empty());
    all
}
