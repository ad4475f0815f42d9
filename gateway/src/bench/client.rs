//! A small Kafka client: one blocking connection, requests pipelined by whoever owns it. Owns versions, framing and
//! finding leaders.

use super::Plan;
use crate::protocol::guard;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest, RequestHeader,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, StrBytes};
use parking_lot::Mutex;
use rangeway_core::config::topic::DRIVE;
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A peer that is silent for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: i32 = 256 << 20;
/// Time for a new topic to have leaders.
const LEADERS_MAX: Duration = Duration::from_secs(30);
/// Time that a broker gets for one request, in ms.
pub(crate) const TIMEOUT_MS: i32 = 30_000;

/// Why a bench ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// Names what was being done when something failed.
pub(crate) fn broken<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Broken {
    move |error| Broken(format!("{what}: {error}"))
}

/// A refusal by its number.
pub(crate) fn refused(
    what: impl std::fmt::Display,
    code: i16,
    message: Option<&StrBytes>,
) -> Result<(), Broken> {
    let Some(error) = ResponseError::try_from_code(code) else { return Ok(()) };
    let detail = message.map(|m| format!(" ({})", m.as_str())).unwrap_or_default();
    Err(Broken(format!("{what} was refused with {code} {error:?}{detail}")))
}

/// The broker or brokers that are measured.
#[derive(Debug)]
pub struct Target {
    bootstrap: String,
    versions: BTreeMap<i16, (i16, i16)>,
    made: Made,
}

/// Topics that a bench has made and not deleted, shared with whoever ends it early.
#[derive(Clone, Debug, Default)]
pub struct Made(Arc<Mutex<Vec<TopicName>>>);

impl Made {
    /// Deletes what is left, through the port at `bootstrap`.
    ///
    /// Errors: of the first that is not deleted.
    pub fn delete(&self, bootstrap: &str) -> Result<(), Broken> {
        if self.0.lock().is_empty() {
            return Ok(());
        }
        let target = Target::find(bootstrap, self)?;
        let left = self.0.lock().clone();
        left.iter().try_for_each(|name| target.delete_topic(name))
    }
}

/// A topic made for a bench.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// Partitions by the address of their leader.
    pub leaders: BTreeMap<String, Vec<i32>>,
}

impl Target {
    /// Asks what the broker at `bootstrap` speaks.
    pub fn find(bootstrap: &str, made: &Made) -> Result<Target, Broken> {
        let mut connection = Connection::open(bootstrap)?;
        let answer = connection.call(&ApiVersionsRequest::default(), 0)?;
        refused("ApiVersions", answer.error_code, None)?;
        let versions =
            answer.api_keys.iter().map(|api| (api.api_key, (api.min_version, api.max_version))).collect();
        Ok(Target { bootstrap: bootstrap.to_owned(), versions, made: made.clone() })
    }

    /// The newest version of `R` that both sides speak, at most `most`.
    pub fn version<R: Request>(&self, most: i16) -> Result<i16, Broken> {
        let ours = R::VERSIONS;
        let (min, max) = self.versions.get(&R::KEY).copied().unwrap_or((0, -1));
        let version = max.min(most).min(ours.max);
        if version < min || version < ours.min {
            let why = format!(
                "the broker has versions {min} to {max} of API {}, none of {} to {most}",
                R::KEY,
                ours.min
            );
            return Err(Broken(why));
        }
        Ok(version)
    }

    /// Makes a topic of a new name and waits until all partitions have leaders.
    pub fn make_topic(&self, plan: &Plan, what: &str, partitions: i32) -> Result<Topic, Broken> {
        let name = format!("rangeway-bench-{what}-{}", uuid::Uuid::new_v4().simple());
        let name = TopicName(StrBytes::from_string(name));
        let configs = plan.drive.iter().map(|drive| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_static_str(DRIVE))
                .with_value(Some(StrBytes::from_string(drive.clone())))
        });
        let topic = CreatableTopic::default()
            .with_name(name.clone())
            .with_num_partitions(partitions)
            .with_replication_factor(plan.replication_factor)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(TIMEOUT_MS);
        let mut connection = Connection::open(&self.bootstrap)?;
        let version = self.version::<CreateTopicsRequest>(6)?;
        // Noted before it is there: an answer that is lost is no topic that is left.
        self.made.0.lock().push(name.clone());
        let answer = connection.call(&request, version)?;
        for row in &answer.topics {
            refused(format!("creating topic {}", name.as_str()), row.error_code, row.error_message.as_ref())?;
        }
        let leaders = self.leaders(&mut connection, &name, partitions)?;
        Ok(Topic { name, leaders })
    }

    fn leaders(
        &self,
        connection: &mut Connection,
        name: &TopicName,
        partitions: i32,
    ) -> Result<BTreeMap<String, Vec<i32>>, Broken> {
        let version = self.version::<MetadataRequest>(9)?;
        let topic = MetadataRequestTopic::default().with_name(Some(name.clone()));
        let request =
            MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(false);
        let until = Instant::now() + LEADERS_MAX;
        loop {
            let answer = connection.call(&request, version)?;
            let brokers: BTreeMap<BrokerId, String> = answer
                .brokers
                .iter()
                .map(|b| (b.node_id, format!("{}:{}", b.host.as_str(), b.port)))
                .collect();
            let mut leaders: BTreeMap<String, Vec<i32>> = BTreeMap::new();
            for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                if let Some(address) = brokers.get(&partition.leader_id).filter(|_| partition.error_code == 0)
                {
                    leaders.entry(address.clone()).or_default().push(partition.partition_index);
                }
            }
            if leaders.values().map(Vec::len).sum::<usize>() == usize::try_from(partitions).unwrap_or(0) {
                return Ok(leaders);
            }
            if Instant::now() > until {
                return Err(Broken(format!("topic {} has partitions without a leader", name.as_str())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Deletes a topic.
    pub fn delete_topic(&self, name: &TopicName) -> Result<(), Broken> {
        let request =
            DeleteTopicsRequest::default().with_topic_names(vec![name.clone()]).with_timeout_ms(TIMEOUT_MS);
        let mut connection = Connection::open(&self.bootstrap)?;
        let answer = connection.call(&request, self.version::<DeleteTopicsRequest>(5)?)?;
        self.made.0.lock().retain(|made| made != name);
        let gone = ResponseError::UnknownTopicOrPartition.code();
        answer.responses.iter().filter(|row| row.error_code != gone).try_for_each(|row| {
            let what = format!("deleting topic {}", name.as_str());
            refused(what, row.error_code, row.error_message.as_ref())
        })
    }
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    address: String,
    write: TcpStream,
    read: BufReader<TcpStream>,
    correlation: i32,
}

impl Connection {
    /// Connects.
    pub fn open(address: &str) -> Result<Connection, Broken> {
        let connect = || -> std::io::Result<(TcpStream, TcpStream)> {
            let mut last = std::io::Error::other("the name has no address");
            for at in address.to_socket_addrs()? {
                match TcpStream::connect_timeout(&at, Duration::from_secs(5)) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(SILENCE_MAX))?;
                        stream.set_write_timeout(Some(SILENCE_MAX))?;
                        return Ok((stream.try_clone()?, stream));
                    }
                    Err(e) => last = e,
                }
            }
            Err(last)
        };
        let (read, write) = connect().map_err(broken(format!("no broker answers at {address}")))?;
        Ok(Connection {
            address: address.to_owned(),
            write,
            read: BufReader::with_capacity(256 << 10, read),
            correlation: 0,
        })
    }

    /// The two directions, for two threads.
    pub fn split(self) -> Result<(Connection, Connection), Broken> {
        let write = self.write.try_clone().map_err(broken(&self.address))?;
        let read = self.write.try_clone().map_err(broken(&self.address))?;
        let other = Connection {
            address: self.address.clone(),
            write,
            read: BufReader::with_capacity(64 << 10, read),
            correlation: self.correlation,
        };
        Ok((self, other))
    }

    /// Sends a request and waits for its answer.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response, Broken> {
        self.send(&mut frame(request, version)?)?;
        let body = self.receive()?;
        answer::<R>(&body, version)
    }

    /// Sends a frame under the next correlation id.
    pub fn send(&mut self, frame: &mut [u8]) -> Result<(), Broken> {
        self.correlation = self.correlation.wrapping_add(1);
        if let Some(id) = frame.get_mut(8..12) {
            id.copy_from_slice(&self.correlation.to_be_bytes());
        }
        self.write.write_all(frame).map_err(broken(format!("sending to {}", self.address)))
    }

    /// The next answer without its length prefix, correlation id included: answers come in the order of requests.
    pub fn receive(&mut self) -> Result<Bytes, Broken> {
        let failed = |e: std::io::Error| Broken(format!("waiting for an answer of {}: {e}", self.address));
        let mut length = [0; 4];
        self.read.read_exact(&mut length).map_err(failed)?;
        let length = i32::from_be_bytes(length);
        if !(4..=ANSWER_BYTES_MAX).contains(&length) {
            return Err(Broken(format!("{} answered with a frame of {length} bytes", self.address)));
        }
        let mut body = Vec::with_capacity(length as usize);
        let read = self.read.by_ref().take(length as u64).read_to_end(&mut body).map_err(failed)?;
        if read < length as usize {
            return Err(Broken(format!("{} closed the connection within an answer", self.address)));
        }
        Ok(Bytes::from(body))
    }
}

/// How the program's own clients (`bench`, `demo`, `groups`) call themselves.
const CLIENT_ID: &str = "rangeway";

/// Encodes a request with its length prefix; the correlation id is at bytes 8 to 12.
pub(crate) fn frame<R: Request>(request: &R, version: i16) -> Result<Vec<u8>, Broken> {
    let header = RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_client_id(Some(StrBytes::from_static_str(CLIENT_ID)));
    let mut bytes = BytesMut::new();
    bytes.put_i32(0);
    header.encode(&mut bytes, R::header_version(version)).map_err(broken("encoding a request"))?;
    request.encode(&mut bytes, version).map_err(broken("encoding a request"))?;
    let length = i32::try_from(bytes.len() - 4).map_err(broken("encoding a request"))?;
    if let Some(prefix) = bytes.first_chunk_mut::<4>() {
        *prefix = length.to_be_bytes();
    }
    Ok(bytes.to_vec())
}

/// Decodes an answer.
pub(crate) fn answer<R: Request>(frame: &Bytes, version: i16) -> Result<R::Response, Broken> {
    let flexible = <R::Response as HeaderVersion>::header_version(version) >= 1;
    // A flexible head has a count of tagged fields, of which there are none.
    let head = if flexible { 5 } else { 4 };
    if frame.len() < head {
        return Err(Broken(format!("an answer of {} bytes has no head", frame.len())));
    }
    decode(&frame.slice(head..), version, flexible)
}

fn decode<M: Decodable + Message>(body: &Bytes, version: i16, flexible: bool) -> Result<M, Broken> {
    guard::decode(body, version, flexible).map_err(broken("an answer is not understood"))
}
