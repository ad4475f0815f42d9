//! A Kafka client at the level of frames: the caller decides what is on the wire, when, and how often.
//!
//! Requests of one connection may be in flight together; answers are taken in their order.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, InitProducerIdRequest, ListOffsetsRequest, MetadataRequest,
    ProduceRequest, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use kafka_protocol::records::{
    Compression, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record, RecordBatchDecoder,
    RecordBatchEncoder, RecordEncodeOptions,
};

/// Largest answer that is taken, in bytes.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Bytes of a batch before its length counts.
const BATCH_PREFIX_BYTES: usize = 12;

/// A name as the protocol's crate wants it.
pub fn text(name: &str) -> StrBytes {
    StrBytes::from_string(name.to_owned())
}

/// A topic's name as the protocol's crate wants it.
pub fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

/// A request as it goes on the wire, its length first.
pub fn frame<R: Request>(request: &R, version: i16, correlation: i32) -> Result<BytesMut> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(StrBytes::from_static_str("compat")));
    let mut frame = BytesMut::new();
    frame.put_u32(0);
    header.encode(&mut frame, R::header_version(version))?;
    request.encode(&mut frame, version)?;
    let length = u32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// The next answer of a connection, of any kind: what follows its length.
pub fn read_frame(stream: &mut impl Read) -> Result<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).context("waiting for an answer")?;
    let length = usize::try_from(u32::from_be_bytes(length))?;
    ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes");
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).context("reading an answer")?;
    Ok(frame.into())
}

/// One connection to a broker.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    next_correlation: i32,
    waiting: VecDeque<(i32, i16, i16)>,
}

impl Connection {
    /// Connects; `patience` bounds connecting, each read and each write.
    pub fn open(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, next_correlation: 0, waiting: VecDeque::new() })
    }

    /// Requests sent and not yet answered.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a request that is answered in its turn. Errors: the connection is of no further use.
    pub fn send<R: Request>(&mut self, request: &R, version: i16) -> Result<()> {
        let correlation = self.next_correlation;
        self.next_correlation = self.next_correlation.wrapping_add(1);
        self.stream.write_all(&frame(request, version, correlation)?).context("sending a request")?;
        self.waiting.push_back((correlation, R::KEY, version));
        Ok(())
    }

    /// Takes the next answer, which must be to a request of that kind.
    pub fn receive<R: Request>(&mut self) -> Result<R::Response> {
        let Some((correlation, key, version)) = self.waiting.pop_front() else {
            bail!("no request is waiting for an answer");
        };
        ensure!(key == R::KEY, "the next answer is to API {key}, not {}", R::KEY);
        let mut frame = read_frame(&mut self.stream)?;
        let header = ResponseHeader::decode(&mut frame, R::Response::header_version(version))?;
        ensure!(
            header.correlation_id == correlation,
            "an answer to request {} where {correlation} is next",
            header.correlation_id
        );
        let response = R::Response::decode(&mut frame, version)?;
        ensure!(frame.is_empty(), "{} bytes after the answer to API {key} v{version}", frame.len());
        Ok(response)
    }

    /// Sends a request and takes its answer.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.send(request, version)?;
        self.receive::<R>()
    }

    /// Writes bytes as they are; nothing is expected back.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the peer ends this connection within the connection's patience, sending nothing more.
    pub fn is_closed_by_peer(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// Creates a topic with these configs; an existing one is left as it is.
    pub fn create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<()> {
        const ALREADY_EXISTS: i16 = 36;
        let configs = configs.iter().map(|(key, value)| {
            CreatableTopicConfig::default().with_name(text(key)).with_value(Some(text(value)))
        });
        let wanted = CreatableTopic::default()
            .with_name(topic(name))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(30_000);
        let response = self.call(&request, 7)?;
        for result in response.topics {
            let (code, why) = (result.error_code, result.error_message);
            ensure!(code == 0 || code == ALREADY_EXISTS, "creating {name}: error {code} {why:?}");
        }
        Ok(())
    }

    /// A producer id with its epoch, or the error code.
    pub fn init_producer(&mut self) -> Result<std::result::Result<(i64, i16), i16>> {
        let request =
            InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
        let response = self.call(&request, 4)?;
        Ok(match response.error_code {
            0 => Ok((response.producer_id.0, response.producer_epoch)),
            code => Err(code),
        })
    }

    /// (error code, offset) of a partition at a timestamp; -1 asks for the end, -2 for the start.
    pub fn list_offset(&mut self, name: &str, partition: i32, timestamp: i64) -> Result<(i16, i64)> {
        let wanted = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let of_topic = ListOffsetsTopic::default().with_name(topic(name)).with_partitions(vec![wanted]);
        let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![of_topic]);
        let response = self.call(&request, 7)?;
        let found = response.topics.first().and_then(|t| t.partitions.first());
        let found = found.context("ListOffsets answered without the partition")?;
        Ok((found.error_code, found.offset))
    }

    /// (index, error code) of each partition of a topic, with the topic's own error code first.
    pub fn partitions(&mut self, name: &str) -> Result<(i16, Vec<(i32, i16)>)> {
        let wanted = MetadataRequestTopic::default().with_name(Some(topic(name)));
        let request =
            MetadataRequest::default().with_topics(Some(vec![wanted])).with_allow_auto_topic_creation(false);
        let response = self.call(&request, 12)?;
        let found = response.topics.into_iter().next().context("Metadata answered without the topic")?;
        let partitions = found.partitions.iter().map(|p| (p.partition_index, p.error_code));
        Ok((found.error_code, partitions.collect()))
    }
}

/// What is asked of one partition in a fetch.
#[derive(Clone, Debug)]
pub struct FetchFrom<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Partition index.
    pub partition: i32,
    /// First offset wanted.
    pub offset: i64,
}

/// A sessionless fetch of those partitions.
pub fn fetch_request(from: &[FetchFrom<'_>], max_wait_ms: i32, partition_max_bytes: i32) -> FetchRequest {
    let mut topics: Vec<FetchTopic> = Vec::new();
    for part in from {
        let partition = FetchPartition::default()
            .with_partition(part.partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(part.offset)
            .with_partition_max_bytes(partition_max_bytes);
        match topics.iter_mut().find(|t| t.topic.0.as_str() == part.topic) {
            Some(topic) => topic.partitions.push(partition),
            None => topics
                .push(FetchTopic::default().with_topic(topic(part.topic)).with_partitions(vec![partition])),
        }
    }
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(32 << 20)
        .with_session_epoch(-1)
        .with_topics(topics)
}

/// A produce request of these batches, each with its topic and partition.
pub fn produce_request(batches: Vec<(&str, i32, Bytes)>, acks: i16, timeout_ms: i32) -> ProduceRequest {
    let mut topics: Vec<TopicProduceData> = Vec::new();
    for (name, partition, records) in batches {
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(records));
        match topics.iter_mut().find(|t| t.name.0.as_str() == name) {
            Some(topic) => topic.partition_data.push(data),
            None => topics
                .push(TopicProduceData::default().with_name(topic(name)).with_partition_data(vec![data])),
        }
    }
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(acks)
        .with_timeout_ms(timeout_ms)
        .with_topic_data(topics)
}

/// Version of [`fetch_request`]: the last that names topics.
pub const FETCH_VERSION: i16 = 12;
/// Version of produce requests: the first with tagged fields, error messages included.
pub const PRODUCE_VERSION: i16 = 9;

/// One uncompressed batch of these records, as it goes on the wire.
///
/// `producer` is (id, epoch, first sequence), the sequences not wrapping inside; `None` makes a batch without.
pub fn batch(records: &mut [Record], producer: Option<(i64, i16, i32)>) -> Result<Bytes> {
    let (id, epoch, first) = producer.unwrap_or((NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE));
    for (index, record) in (0_i32..).zip(records.iter_mut()) {
        record.offset = i64::from(index);
        record.producer_id = id;
        record.producer_epoch = epoch;
        // Counted on without a producer too: the encoder cuts a batch where sequence and offset part.
        record.sequence = first + index;
    }
    let mut encoded = BytesMut::new();
    let options = RecordEncodeOptions { version: 2, compression: Compression::None };
    RecordBatchEncoder::encode(&mut encoded, records.iter(), &options)?;
    Ok(encoded.freeze())
}

/// A batch as it came back.
#[derive(Clone, Debug)]
pub struct FetchedBatch {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Leader epoch that the batch carries.
    pub epoch: i32,
    /// Its records.
    pub records: Vec<Record>,
}

/// The whole batches of a fetched record set; a cut one at the end is left out.
pub fn batches(mut records: Bytes) -> Result<Vec<FetchedBatch>> {
    let mut found = Vec::new();
    while records.len() > BATCH_PREFIX_BYTES + 4 {
        let mut head = records.slice(..BATCH_PREFIX_BYTES + 4);
        let base_offset = head.get_i64();
        let length = usize::try_from(head.get_i32()).context("a batch of negative length")?;
        let epoch = head.get_i32();
        if records.len() < BATCH_PREFIX_BYTES + length {
            break;
        }
        let mut whole = records.split_to(BATCH_PREFIX_BYTES + length);
        let set = RecordBatchDecoder::decode(&mut whole)?;
        found.push(FetchedBatch { base_offset, epoch, records: set.records });
    }
    Ok(found)
}
