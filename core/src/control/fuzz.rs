//! Entry point for fuzzing: rows of the control store, with checksums that fit.

use super::Delta;
use super::rows::{COUNTERS, Loader, decode, key};
use super::state::{Acl, Node, Operation, Range, Topic};
use crate::codec::crc32c;
use crate::types::{LogletId, NodeId, TopicId};
use uuid::Uuid;

/// Rows, each {kind, length, value}; the keys are those that the values stand under. What loads keeps its invariants.
///
/// Panics when a decoder does.
pub fn rows(data: &[u8]) {
    let mut loader = Loader::default();
    let mut topic = TopicId(Uuid::nil());
    let mut rest = data;
    while let Some((&[kind, len], after)) = rest.split_first_chunk() {
        let (value, after) = after.split_at(usize::from(len).min(after.len()));
        let row = mended(value);
        let key = match kind % 11 {
            0 => COUNTERS.to_vec(),
            1 => {
                topic = decode::<Topic>(&row).map_or(topic, |t| t.id);
                key(&Delta::Topic(topic))
            }
            2 => decode::<Range>(&row).map_or(vec![b'r'], |r| key(&Delta::Range(topic, r.id))),
            3 => key(&Delta::Tombstone(LogletId(u64::from(len)))),
            4 => key(&Delta::Name("name".to_owned())),
            5 => decode::<Node>(&row).map_or(vec![b'm'], |n| key(&Delta::Node(n.id))),
            6 => decode::<Operation>(&row).map_or(vec![b'o'], |o| key(&Delta::Operation(o.id))),
            7 => key(&Delta::NodeConfigs(Some(NodeId(i32::from(len))))),
            8 => decode::<Acl>(&row).map_or(vec![b'a'], |acl| key(&Delta::Acl(acl))),
            9 => key(&Delta::DiskStarts(NodeId(i32::from(len)))),
            _ => value.to_vec(),
        };
        // What is wrong with one row is said, and the next one is read.
        if let Err(error) = loader.row(&key, &row) {
            assert!(error.starts_with("row "), "{error}");
        }
        rest = after;
    }
    if let Ok(state) = loader.finish() {
        state.check().expect("what was loaded was checked");
    }
}

fn mended(value: &[u8]) -> Vec<u8> {
    let crc = crc32c(&[&[1], value]);
    let mut row = vec![1];
    row.extend_from_slice(&crc.to_le_bytes());
    row.extend_from_slice(value);
    row
}

#[cfg(test)]
mod tests {
    use super::super::command::Command;
    use super::super::rows::value;
    use super::super::state::State;
    use super::*;
    use crate::testing::fuzz::smoke;

    #[test]
    fn any_rows_are_read_without_panic() {
        smoke(8000, 400, rows);
    }

    #[test]
    fn mended_rows_are_read() {
        let mut state = State::default();
        state
            .apply(&Command::StartNode { node: NodeId(1), disks: vec![], begun: Default::default(), now: 5 })
            .expect("a node starts");
        let row = value(&state, &Delta::Node(NodeId(1))).expect("encoded").expect("there");
        assert_eq!(mended(&row[5..]), row);
        decode::<Node>(&row).expect("read");
    }
}
