//! Rows of the local control store: keys, and values as {version, CRC-32C, postcard} (docs/formats-control.md).

use super::Delta;
use super::state::*;
use crate::codec::crc32c;
use crate::types::{LogletId, NodeId, RangeId, TopicId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Version of a row's value.
const ROW_VERSION: u8 = 1;
const ROW_HEAD: usize = 5;

/// Key of the counters.
pub(super) const COUNTERS: &[u8] = b"c";

/// A row's value.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    let mut row = vec![ROW_VERSION, 0, 0, 0, 0];
    row = postcard::to_extend(value, row).map_err(|e| format!("row cannot be encoded: {e}"))?;
    let crc = crc32c(&[&[ROW_VERSION], row.get(ROW_HEAD..).unwrap_or_default()]);
    row[1..ROW_HEAD].copy_from_slice(&crc.to_le_bytes());
    Ok(row)
}

/// Reads a row's value.
///
/// Errors: what is wrong with it.
pub(super) fn decode<T: DeserializeOwned>(row: &[u8]) -> Result<T, String> {
    let (head, body) = row.split_at_checked(ROW_HEAD).ok_or_else(|| format!("{} bytes only", row.len()))?;
    let (version, crc) = head.split_at(1);
    if version != [ROW_VERSION] {
        return Err(format!("row version {version:?}, known is {ROW_VERSION}"));
    }
    let found = crc32c(&[version, body]);
    if crc != found.to_le_bytes() {
        return Err("checksum does not fit".to_owned());
    }
    let (value, rest) = postcard::take_from_bytes(body).map_err(|e| e.to_string())?;
    if rest.is_empty() { Ok(value) } else { Err(format!("{} bytes too many", rest.len())) }
}

/// Where a delta's row is kept. Keys sort as: kind, then big-endian identity.
pub(super) fn key(delta: &Delta) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    match delta {
        Delta::Topic(id) => {
            key.push(b't');
            key.extend_from_slice(id.0.as_bytes());
        }
        Delta::Range(topic, range) => {
            key.push(b'r');
            key.extend_from_slice(topic.0.as_bytes());
            key.extend_from_slice(&range.0.to_be_bytes());
        }
        Delta::Tombstone(loglet) => {
            key.push(b'd');
            key.extend_from_slice(&loglet.0.to_be_bytes());
        }
        Delta::Name(name) => {
            key.push(b'n');
            key.extend_from_slice(name.as_bytes());
        }
        Delta::Node(node) => {
            key.push(b'm');
            key.extend_from_slice(&node.0.to_be_bytes());
        }
        Delta::Operation(id) => {
            key.push(b'o');
            key.extend_from_slice(id.as_bytes());
        }
        Delta::NodeConfigs(node) => {
            key.push(b'g');
            key.extend(node.iter().flat_map(|node| node.0.to_be_bytes()));
        }
        Delta::Acl(acl) => {
            key.push(b'a');
            key.extend_from_slice(&acl_id(acl));
        }
        Delta::DiskStarts(node) => {
            key.push(b's');
            key.extend_from_slice(&node.0.to_be_bytes());
        }
    }
    key
}

/// What tells a rule from all others: its numbers, then its texts, each with its length before it.
fn acl_id(acl: &Acl) -> Vec<u8> {
    let numbers = [acl.resource, acl.pattern, acl.operation, acl.permission];
    let mut id: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    for text in [&acl.name, &acl.principal, &acl.host] {
        id.extend_from_slice(&(text.len() as u32).to_be_bytes());
        id.extend_from_slice(text.as_bytes());
    }
    id
}

/// A delta's row as the state has it; `None`: it is gone.
pub(super) fn value(state: &State, delta: &Delta) -> Result<Option<Vec<u8>>, String> {
    fn row<T: Serialize>(value: Option<&T>) -> Result<Option<Vec<u8>>, String> {
        value.map(encode).transpose()
    }
    match delta {
        Delta::Topic(id) => row(state.topics.get(id).map(Arc::as_ref)),
        Delta::Range(topic, range) => row(state.range(*topic, *range).map(Arc::as_ref)),
        Delta::Tombstone(loglet) => row(state.tombstones.get(loglet)),
        Delta::Name(name) => row(state.name_tombstones.get(name)),
        Delta::Node(node) => row(state.nodes.get(node)),
        Delta::Operation(id) => row(state.operations.get(id)),
        Delta::NodeConfigs(node) => row(state.node_configs.get(node)),
        Delta::Acl(acl) => row(state.acls.get(acl)),
        Delta::DiskStarts(node) => row(state.disk_starts.get(node)),
    }
}

/// Puts a state together from its rows, which may come in any order.
#[derive(Default)]
pub(super) struct Loader {
    state: State,
    ranges: Vec<(TopicId, Range)>,
}

impl Loader {
    /// Takes one row.
    ///
    /// Errors: what is wrong with it.
    pub(super) fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.take(key, value).map_err(|e| format!("row {}: {e}", shown(key)))
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let state = &mut self.state;
        let (kind, id) = key.split_first().ok_or("empty key")?;
        match kind {
            b'c' => state.counters = decode(value)?,
            b't' => {
                let topic: Topic = decode(value)?;
                check_key(topic.id == TopicId(uuid(id)?))?;
                Arc::make_mut(&mut state.names).insert(folded(&topic.name), topic.id);
                state.topics.insert(topic.id, Arc::new(topic));
            }
            b'r' => {
                let (topic, range_id) = id.split_at_checked(16).ok_or("short key")?;
                let range: Range = decode(value)?;
                check_key(range.id == RangeId(u32::from_be_bytes(fixed(range_id)?)))?;
                self.ranges.push((TopicId(uuid(topic)?), range));
            }
            b'd' => {
                let loglet = LogletId(u64::from_be_bytes(fixed(id)?));
                Arc::make_mut(&mut state.tombstones).insert(loglet, decode(value)?);
            }
            b'n' => {
                let name = std::str::from_utf8(id).map_err(|e| e.to_string())?;
                Arc::make_mut(&mut state.name_tombstones).insert(name.to_owned(), decode(value)?);
            }
            b'm' => {
                let node: Node = decode(value)?;
                check_key(node.id == NodeId(i32::from_be_bytes(fixed(id)?)))?;
                Arc::make_mut(&mut state.nodes).insert(node.id, node);
            }
            b'o' => {
                let operation: Operation = decode(value)?;
                check_key(operation.id == uuid(id)?)?;
                Arc::make_mut(&mut state.operations).insert(operation.id, operation);
            }
            b'g' => {
                let node = if id.is_empty() { None } else { Some(NodeId(i32::from_be_bytes(fixed(id)?))) };
                Arc::make_mut(&mut state.node_configs).insert(node, decode(value)?);
            }
            b'a' => {
                let acl: Acl = decode(value)?;
                check_key(acl_id(&acl) == id)?;
                Arc::make_mut(&mut state.acls).insert(acl);
            }
            b's' => {
                let node = NodeId(i32::from_be_bytes(fixed(id)?));
                Arc::make_mut(&mut state.disk_starts).insert(node, decode(value)?);
            }
            _ => return Err("unknown kind".to_owned()),
        }
        Ok(())
    }

    /// The state, its invariants checked.
    ///
    /// Errors: which invariant does not hold.
    pub(super) fn finish(self) -> Result<State, String> {
        let Loader { mut state, ranges } = self;
        let mut homes: BTreeMap<TopicId, Topic> = std::mem::take(&mut state.topics)
            .into_iter()
            .map(|(id, t)| (id, Arc::unwrap_or_clone(t)))
            .collect();
        for (topic, range) in ranges {
            let home =
                homes.get_mut(&topic).ok_or_else(|| format!("{} without its topic {topic}", range.id))?;
            if range.state != RangeState::Closed {
                home.layout.insert(range.span.first, range.id);
            }
            home.ranges.insert(range.id, Arc::new(range));
        }
        state.topics = homes.into_iter().map(|(id, topic)| (id, Arc::new(topic))).collect();
        state.check()?;
        Ok(state)
    }
}

fn check_key(fits: bool) -> Result<(), String> {
    if fits { Ok(()) } else { Err("stands under another one's key".to_owned()) }
}

fn uuid(bytes: &[u8]) -> Result<Uuid, String> {
    Uuid::from_slice(bytes).map_err(|e| e.to_string())
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], String> {
    bytes.try_into().map_err(|_| format!("key of {} bytes, wanted {N}", bytes.len()))
}

fn shown(key: &[u8]) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect()
}
