//! OffsetFetch (9), versions 1 to 9.
//!
//! v2: null topics ask for all that is committed; an error of the group. v5: leader epochs. v7: `require_stable`: what waits
//! for the end of a transaction is answered UNSTABLE_OFFSET_COMMIT (KIP-447). v8: many groups (KIP-709). v9: member id and
//! epoch, which groups of the consumer protocol check (KIP-848); an epoch without a member id is nobody's: UNKNOWN_MEMBER_ID,
//! where Kafka 4.4 fails for want of a name and answers UNKNOWN_SERVER_ERROR.
//! What was never committed has offset -1 and no error, unknown topics and groups too.

use super::words::{GROUP_DENIED, TOPIC_DENIED, client_topic, optional, wire};
use super::{Context, Operation, Resource};
use crate::groups::{GroupError, Key, Position};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::Catalog;
use std::collections::{BTreeMap, BTreeSet};

/// `ResponseError::UnstableOffsetCommit`.
const UNSTABLE: i16 = 88;

/// Committed offsets of one group or many.
pub async fn handle(context: Context, request: OffsetFetchRequest) -> Result<OffsetFetchResponse, Close> {
    let mut fetched = Vec::new();
    let stable = request.require_stable;
    for wanted in wanted(context.version, request) {
        fetched.push(fetch(&context, wanted, stable).await);
    }
    Ok(respond(context.version, fetched))
}

/// What one group is asked for, in any version's form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    group: StrBytes,
    /// `None`: all.
    topics: Option<Vec<(TopicName, Vec<i32>)>>,
    /// The member that asks and its epoch, where it says so.
    reader: Option<(String, i32)>,
}

/// What one group answered.
#[derive(Debug)]
struct Fetched {
    group: StrBytes,
    error: i16,
    topics: Vec<(TopicName, Vec<FetchedPartition>)>,
}

#[derive(Debug, PartialEq, Eq)]
struct FetchedPartition {
    index: i32,
    error: i16,
    position: Option<Position>,
}

fn wanted(version: i16, request: OffsetFetchRequest) -> Vec<Wanted> {
    if version < 8 {
        let topics = request.topics.map(|t| t.into_iter().map(|t| (t.name, t.partition_indexes)).collect());
        return vec![Wanted { group: request.group_id.0, topics, reader: None }];
    }
    let groups = request.groups.into_iter().map(|group| {
        let topics = group.topics.map(|t| t.into_iter().map(|t| (t.name, t.partition_indexes)).collect());
        let member_id = optional(group.member_id.as_ref());
        let reader = match (member_id, group.member_epoch) {
            (None, ..0) => None,
            (member_id, epoch) => Some((member_id.unwrap_or_default(), epoch)),
        };
        Wanted { group: group.group_id.0, topics, reader }
    });
    groups.collect()
}

async fn fetch(context: &Context, wanted: Wanted, stable: bool) -> Fetched {
    if !context.authorize(Operation::Describe, Resource::Group(&wanted.group)) {
        return failed(wanted, GROUP_DENIED);
    }
    let may_see = |topic: &str| context.authorize(Operation::Describe, Resource::Topic(topic));
    let catalog = context.api.catalog();
    let (group, reader) = (wanted.group.to_string(), wanted.reader.clone());
    let groups = &context.shared.groups;
    // Asked for before the offsets: what commits in between is shown as unstable, never as it was before.
    let unstable = match stable {
        true => match groups.pending(group.clone()).await {
            Ok(keys) => keys,
            Err(error) => return failed(wanted, error.code()),
        },
        false => BTreeSet::new(),
    };
    match &wanted.topics {
        None => match groups.offsets(group, None, reader).await {
            Ok(positions) => all(&catalog, wanted.group, positions, &unstable, may_see),
            Err(error) => failed(wanted, error.code()),
        },
        Some(topics) => {
            let keys = keys(&catalog, topics, may_see);
            let known = keys.iter().filter_map(|key| key.ok().flatten()).collect();
            match groups.offsets(group, Some(known), reader).await {
                Ok(positions) => some(wanted, &keys, positions, &unstable),
                Err(error) => failed(wanted, error.code()),
            }
        }
    }
}

/// A key per partition asked for, in order; none for one that does not exist; or a code at once.
fn keys(
    catalog: &Catalog,
    topics: &[(TopicName, Vec<i32>)],
    may_see: impl Fn(&str) -> bool,
) -> Vec<Result<Option<Key>, i16>> {
    let mut keys = Vec::new();
    for (name, partitions) in topics {
        let id = client_topic(catalog, name).map(|topic| topic.id);
        let allowed = may_see(name);
        keys.extend(partitions.iter().map(|partition| match allowed {
            true => Ok(id.map(|id| (id, *partition))),
            false => Err(TOPIC_DENIED),
        }));
    }
    keys
}

fn some(
    wanted: Wanted,
    keys: &[Result<Option<Key>, i16>],
    positions: Vec<(Key, Option<Position>)>,
    unstable: &BTreeSet<Key>,
) -> Fetched {
    let (mut keys, mut positions) = (keys.iter(), positions.into_iter());
    let mut partition = |index: i32| match keys.next() {
        Some(Err(code)) => FetchedPartition { index, error: *code, position: None },
        Some(Ok(Some(key))) => {
            let position = positions.next().and_then(|(_, position)| position);
            fetched_partition(index, unstable.contains(key), position)
        }
        Some(Ok(None)) | None => FetchedPartition { index, error: 0, position: None },
    };
    let topics = wanted.topics.unwrap_or_default().into_iter();
    let topics = topics.map(|(name, indexes)| (name, indexes.into_iter().map(&mut partition).collect()));
    Fetched { group: wanted.group, error: 0, topics: topics.collect() }
}

fn fetched_partition(index: i32, is_unstable: bool, position: Option<Position>) -> FetchedPartition {
    match is_unstable {
        true => FetchedPartition { index, error: UNSTABLE, position: None },
        false => FetchedPartition { index, error: 0, position },
    }
}

fn all(
    catalog: &Catalog,
    group: StrBytes,
    positions: Vec<(Key, Option<Position>)>,
    unstable: &BTreeSet<Key>,
    may_see: impl Fn(&str) -> bool,
) -> Fetched {
    let mut topics: BTreeMap<&str, Vec<FetchedPartition>> = BTreeMap::new();
    for ((id, index), position) in positions {
        // Offsets of a topic that is gone are not shown, whenever they are dropped.
        if let Some(topic) = catalog.by_id.get(&id).filter(|topic| may_see(&topic.name)) {
            let partition = fetched_partition(index, unstable.contains(&(id, index)), position);
            topics.entry(&topic.name).or_default().push(partition);
        }
    }
    let topics = topics.into_iter().map(|(name, partitions)| (TopicName(wire(name)), partitions));
    Fetched { group, error: 0, topics: topics.collect() }
}

fn failed(wanted: Wanted, error: i16) -> Fetched {
    // A coordinator that is away is looked for again on this code; on 15 some consumers would give up.
    let error =
        if error == GroupError::NotAvailable.code() { GroupError::NotCoordinator.code() } else { error };
    let partition = |index| FetchedPartition { index, error, position: None };
    let topics = wanted.topics.unwrap_or_default().into_iter();
    let topics = topics.map(|(name, indexes)| (name, indexes.into_iter().map(partition).collect()));
    Fetched { group: wanted.group, error, topics: topics.collect() }
}

fn respond(version: i16, fetched: Vec<Fetched>) -> OffsetFetchResponse {
    if version >= 8 {
        return OffsetFetchResponse::default().with_groups(fetched.into_iter().map(group).collect());
    }
    let Some(fetched) = fetched.into_iter().next() else { return OffsetFetchResponse::default() };
    if version >= 2 && fetched.error != 0 {
        return OffsetFetchResponse::default().with_error_code(fetched.error);
    }
    let topics = fetched.topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|p| {
            let (offset, epoch, metadata) = shown(p.position);
            OffsetFetchResponsePartition::default()
                .with_partition_index(p.index)
                .with_error_code(p.error)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(if version >= 5 { epoch } else { -1 })
                .with_metadata(metadata)
        });
        OffsetFetchResponseTopic::default().with_name(name).with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default().with_topics(topics.collect())
}

fn group(fetched: Fetched) -> OffsetFetchResponseGroup {
    let answer = OffsetFetchResponseGroup::default().with_group_id(fetched.group.into());
    if fetched.error != 0 {
        return answer.with_error_code(fetched.error);
    }
    let topics = fetched.topics.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|p| {
            let (offset, epoch, metadata) = shown(p.position);
            OffsetFetchResponsePartitions::default()
                .with_partition_index(p.index)
                .with_error_code(p.error)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_metadata(metadata)
        });
        OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions.collect())
    });
    answer.with_topics(topics.collect())
}

/// Offset, leader epoch and metadata as clients see them.
fn shown(position: Option<Position>) -> (i64, i32, Option<StrBytes>) {
    match position {
        Some(p) => (p.offset, p.leader_epoch, Some(wire(p.metadata))),
        None => (-1, -1, Some(StrBytes::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, request, response, topic_id};
    use super::*;
    use kafka_protocol::messages::GroupId;
    use kafka_protocol::messages::offset_fetch_request::{
        OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    };

    fn position(offset: i64) -> Position {
        Position { offset, leader_epoch: 5, metadata: "m".into(), committed_at: 1, expires_at: None }
    }

    fn sent(version: i16, topics: Option<&[(&'static str, i32)]>) -> OffsetFetchRequest {
        if version < 8 {
            let topics = topics.map(|t| {
                let topic = |(name, p): &(&'static str, i32)| {
                    OffsetFetchRequestTopic::default()
                        .with_name(TopicName(wire(*name)))
                        .with_partition_indexes(vec![*p])
                };
                t.iter().map(topic).collect()
            });
            return OffsetFetchRequest::default().with_group_id(GroupId(wire("g"))).with_topics(topics);
        }
        let topics = topics.map(|t| {
            let topic = |(name, p): &(&'static str, i32)| {
                OffsetFetchRequestTopics::default()
                    .with_name(TopicName(wire(*name)))
                    .with_partition_indexes(vec![*p])
            };
            t.iter().map(topic).collect()
        });
        let group = OffsetFetchRequestGroup::default().with_group_id(GroupId(wire("g"))).with_topics(topics);
        OffsetFetchRequest::default().with_topics(Some(vec![])).with_groups(vec![group])
    }

    #[test]
    fn who_names_neither_itself_nor_an_epoch_is_no_member_and_is_asked_for_none() {
        let reader = |member: Option<&'static str>, epoch: i32| {
            let mut request = sent(9, None);
            let group = &mut request.groups[0];
            group.member_id = member.map(wire);
            group.member_epoch = epoch;
            wanted(9, request).remove(0).reader
        };
        let named = |id: &str, epoch| Some((id.to_owned(), epoch));
        assert_eq!(reader(None, -1), None);
        assert_eq!(reader(None, 0), named("", 0), "nobody's epoch");
        assert_eq!(reader(Some("m"), -1), named("m", -1), "stale");
        assert_eq!(reader(Some(""), -1), named("", -1));
    }

    /// Offset, epoch and code per partition, in order, of any version.
    fn flat(read: &OffsetFetchResponse) -> Vec<(String, i64, i32, i16)> {
        let old = read.topics.iter().flat_map(|t| {
            let name = t.name.to_string();
            t.partitions
                .iter()
                .map(move |p| (name.clone(), p.committed_offset, p.committed_leader_epoch, p.error_code))
        });
        let new = read.groups.iter().flat_map(|g| &g.topics).flat_map(|t| {
            let name = t.name.to_string();
            t.partitions
                .iter()
                .map(move |p| (name.clone(), p.committed_offset, p.committed_leader_epoch, p.error_code))
        });
        old.chain(new).collect()
    }

    #[test]
    fn every_version_answers_what_was_committed_and_minus_one_for_the_rest() {
        let catalog = catalog(&[("t", 2), ("u", 1)]);
        for version in 1..=9 {
            let sent = request(sent(version, Some(&[("none", 0), ("t", 1), ("u", 0)])), version, 6);
            let wanted = wanted(version, sent).remove(0);
            let keys = keys(&catalog, wanted.topics.as_deref().unwrap_or_default(), |_| true);
            assert_eq!(keys, vec![Ok(None), Ok(Some((topic_id("t"), 1))), Ok(Some((topic_id("u"), 0)))]);
            let positions = vec![((topic_id("t"), 1), Some(position(41))), ((topic_id("u"), 0), None)];
            let none = BTreeSet::new();
            let read = response(respond(version, vec![some(wanted, &keys, positions, &none)]), version);
            let epoch = if version >= 5 { 5 } else { -1 };
            let expected =
                vec![("none".into(), -1, -1, 0), ("t".into(), 41, epoch, 0), ("u".into(), -1, -1, 0)];
            assert_eq!(flat(&read), expected, "v{version}");
        }
    }

    #[test]
    fn null_topics_ask_for_all_that_is_committed() {
        let catalog = catalog(&[("t", 2)]);
        for version in 2..=9 {
            let wanted = wanted(version, request(sent(version, None), version, 6)).remove(0);
            assert_eq!(wanted.topics, None);
            let gone = topic_id("gone");
            let positions = vec![((topic_id("t"), 0), Some(position(7))), ((gone, 0), Some(position(8)))];
            let read = response(
                respond(version, vec![all(&catalog, wanted.group, positions, &BTreeSet::new(), |_| true)]),
                version,
            );
            assert_eq!(flat(&read), vec![("t".into(), 7, if version >= 5 { 5 } else { -1 }, 0)]);
        }
    }

    #[test]
    fn an_error_of_the_group_is_where_the_version_has_it() {
        for version in 1..=9 {
            let wanted = wanted(version, sent(version, Some(&[("t", 0)]))).remove(0);
            let read = response(respond(version, vec![failed(wanted, 15)]), version);
            match version {
                1 => assert_eq!(flat(&read), vec![("t".into(), -1, -1, 16)]),
                2..=7 => assert_eq!((read.error_code, read.topics.len()), (16, 0)),
                _ => assert_eq!((read.groups[0].error_code, read.groups[0].group_id.as_str()), (16, "g")),
            }
        }
    }

    #[test]
    fn topics_that_may_not_be_seen_are_denied_or_left_out() {
        let catalog = catalog(&[("t", 2)]);
        let topics = vec![(TopicName(wire("t")), vec![0, 1])];
        assert_eq!(keys(&catalog, &topics, |_| false), vec![Err(29), Err(29)]);
        let positions = vec![((topic_id("t"), 0), Some(position(7)))];
        assert!(all(&catalog, wire("g"), positions, &BTreeSet::new(), |_| false).topics.is_empty());
    }

    #[test]
    fn what_waits_for_the_end_of_a_transaction_is_unstable() {
        let catalog = catalog(&[("t", 2)]);
        let unstable = BTreeSet::from([(topic_id("t"), 1)]);
        for version in 7..=9 {
            let mut sent = sent(version, Some(&[("t", 0), ("t", 1)]));
            sent.require_stable = true;
            let sent = request(sent, version, 6);
            assert!(sent.require_stable);
            let wanted = wanted(version, sent).remove(0);
            let keys = keys(&catalog, wanted.topics.as_deref().unwrap_or_default(), |_| true);
            let positions =
                || vec![((topic_id("t"), 0), Some(position(7))), ((topic_id("t"), 1), Some(position(8)))];
            let read = response(respond(version, vec![some(wanted, &keys, positions(), &unstable)]), version);
            assert_eq!(flat(&read), vec![("t".into(), 7, 5, 0), ("t".into(), -1, -1, 88)]);
            let of_all = all(&catalog, wire("g"), positions(), &unstable, |_| true);
            let read = response(respond(version, vec![of_all]), version);
            assert_eq!(flat(&read), vec![("t".into(), 7, 5, 0), ("t".into(), -1, -1, 88)]);
        }
    }
}
