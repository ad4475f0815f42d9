//! What a client sees of a partition: found by name or id, led by a node, in an epoch.
//!
//! Owns the checks that every data request makes before it asks core. Cursors are core's; a Kafka offset goes to core
//! as it is.

use crate::offsets_view;
use kafka_protocol::ResponseError;
use rangeway_core::api::{Api, Catalog, TopicView};
use rangeway_core::error::{ReadFailure, TopicPartition};
use rangeway_core::types::{
    GROUPS_TOPIC, NodeId, Offset, Partition, TRANSACTIONS_TOPIC, TopicId, is_reserved_topic,
};
use std::sync::Arc;
use uuid::Uuid;

/// Longest topic name.
const NAME_LEN_MAX: usize = 249;

/// A topic by name, as clients may see it.
pub fn by_name<'a>(catalog: &'a Catalog, name: &str) -> Option<&'a Arc<TopicView>> {
    catalog.by_name.get(name).filter(|topic| !topic.internal)
}

/// A topic by id, as clients may see it.
pub fn by_id(catalog: &Catalog, id: Uuid) -> Option<&Arc<TopicView>> {
    catalog.by_id.get(&TopicId(id)).filter(|topic| !topic.internal)
}

/// Whether a name may be a topic's: letters, digits, `.`, `_` and `-`, at most 249, neither `.` nor `..`.
///
/// Errors: Kafka's sentence.
pub fn check_topic_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = if name.is_empty() {
        "the empty string is not allowed".to_owned()
    } else if name == "." || name == ".." {
        format!("'{name}' is not allowed")
    } else if name.len() > NAME_LEN_MAX {
        format!("the length of '{name}' is longer than the max allowed length {NAME_LEN_MAX}")
    } else if !name.chars().all(legal) {
        format!("'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")
    } else {
        return Ok(());
    };
    Err(format!("Topic name is invalid: {why}"))
}

/// Whether asking for a topic of this name may create it.
pub fn may_be_auto_created(name: &str) -> bool {
    !is_reserved_topic(name)
}

/// Whether a name is that of one of our own topics, which clients are not shown; also while it is not there.
pub fn is_own_name(name: &str) -> bool {
    matches!(name, GROUPS_TOPIC | TRANSACTIONS_TOPIC)
}

/// Why a topic that [`by_name`] does not know cannot be changed.
pub fn not_there(name: &str) -> (ResponseError, String) {
    if is_own_name(name) {
        let why = format!("'{name}' is kept by the node for itself and cannot be changed");
        return (ResponseError::InvalidTopicException, why);
    }
    let why = "This server does not host this topic-partition.";
    (ResponseError::UnknownTopicOrPartition, why.to_owned())
}

/// A partition that this node leads, in the epoch that the client believes in.
///
/// `believed` is -1 where the client does not say. Errors: unknown partition, not the leader, a fenced or an unknown
/// epoch.
pub fn led_here(
    topic: &TopicView,
    partition: Partition,
    believed: i32,
    node: NodeId,
) -> Result<TopicPartition, ResponseError> {
    let (leader, epoch) = topic.leader(partition).ok_or(ResponseError::UnknownTopicOrPartition)?;
    if leader != node {
        return Err(ResponseError::NotLeaderOrFollower);
    }
    // Only -1 stands for none.
    if believed != -1 && believed < epoch {
        return Err(ResponseError::FencedLeaderEpoch);
    }
    if believed > epoch {
        return Err(ResponseError::UnknownLeaderEpoch);
    }
    Ok(TopicPartition { topic: topic.id, partition })
}

/// That a topic is stored, and so may be written, changed and deleted.
///
/// Errors: Kafka's code for what clients may not do to an internal topic, with `what` of a sentence.
pub fn check_stored(topic: &TopicView, what: &str) -> Result<(), (ResponseError, String)> {
    match topic.derived_from {
        None => Ok(()),
        Some(_) => Err((
            ResponseError::InvalidTopicException,
            format!("Cannot {what} internal topic {}", topic.name),
        )),
    }
}

/// The partition of `__consumer_offsets` that this is, and the stored one that it is derived from; `None` for all
/// others.
pub fn derived(topic: &TopicView, partition: Partition) -> Option<(offsets_view::At, TopicPartition)> {
    let from = TopicPartition { topic: topic.derived_from?, partition };
    let (_, epoch) = topic.leader(partition)?;
    Some((offsets_view::At { partition, epoch }, from))
}

/// The largest known epoch at or below `epoch` and its end offset, as KIP-320 answers it: `(-1, -1)` for an epoch that
/// is not known, `(epoch, log start)` for one older than all that are.
pub fn end_of_epoch(api: &Api, at: TopicPartition, epoch: i32) -> Result<(i32, Offset), ReadFailure> {
    let (offsets, whole) = api.known_offsets(at)?;
    if !whole && epoch >= offsets.leader_epoch {
        return api.offsets(at).map(|_| (-1, -1)); // the error that says why nothing is known of it
    }
    match epoch {
        -1 => return Ok((-1, -1)),
        // Below all that there are: it ends where the first of them begins.
        i32::MIN..0 => return Ok((epoch, offsets.log_start)),
        _ if epoch > offsets.leader_epoch => return Ok((-1, -1)),
        _ => {}
    }
    Ok(api.end_of_epoch(at, epoch)?.unwrap_or((epoch, offsets.log_start)))
}

/// The leader epoch in which the record at `offset` was written, or would be.
pub fn epoch_of(api: &Api, at: TopicPartition, offset: Offset) -> Result<i32, ReadFailure> {
    let mut epoch = api.known_offsets(at)?.0.leader_epoch;
    // Epochs are few per partition: one per start or move of its primary above the log start.
    while epoch > 0 {
        match api.end_of_epoch(at, epoch - 1)? {
            Some((earlier, end)) if end > offset && earlier < epoch => epoch = earlier,
            _ => break,
        }
    }
    Ok(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_kafkas_rules() {
        for good in ["a", "A.b_c-9", "__groups", &"x".repeat(249)] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", &"x".repeat(250)] {
            assert!(check_topic_name(bad).is_err(), "{bad}");
        }
    }
}
