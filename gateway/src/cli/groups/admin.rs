//! Asks a broker's coordinators about groups, through the Kafka port. Owns finding coordinators and leaders, versions and
//! codes; decides nothing.

use super::super::failure::Failure;
use super::reset::{Bounds, Move, Partition, Selection, To};
use super::show::{DeletedOffset, DeletedOffsets, Description, Member, Offset, Summary};
use crate::bench::Made;
use crate::bench::client::{Broken, Connection, Target};
use crate::groups::member_assignment;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::consumer_group_describe_response::Assignment;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{
    BrokerId, ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest,
    FindCoordinatorRequest, GroupId, ListGroupsRequest, ListOffsetsRequest, MetadataRequest,
    MetadataResponse, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A coordinator that is being loaded, or moves, is asked again for so long.
const COORDINATOR_MAX: Duration = Duration::from_secs(15);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// ListOffsets: the first record, and the end.
const EARLIEST: i64 = -2;
const LATEST: i64 = -1;

/// A broker, or one of many.
#[derive(Debug)]
pub(super) struct Admin {
    target: Target,
    connection: Connection,
}

fn failed(broken: Broken) -> Failure {
    Failure::failed("kafka", broken.0)
}

fn refused(what: &str, code: i16) -> Failure {
    Failure::failed("refused", format!("{what} was refused: {}", why(code)))
}

/// A refusal in words.
fn why(code: i16) -> String {
    match ResponseError::try_from_code(code) {
        Some(ResponseError::GroupIdNotFound) => "there is no such group".to_owned(),
        Some(ResponseError::NonEmptyGroup) => "it has members".to_owned(),
        Some(ResponseError::GroupSubscribedToTopic) => "members read this topic".to_owned(),
        Some(ResponseError::UnknownTopicOrPartition) => "there is no such partition".to_owned(),
        Some(error) => format!("{error:?} ({code})"),
        None => format!("code {code}"),
    }
}

fn is_refusal(code: i16) -> bool {
    ResponseError::try_from_code(code).is_some()
}

fn is_nobody(code: i16) -> bool {
    code == ResponseError::GroupIdNotFound.code()
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

/// Partitions by topic.
fn by_topic<'a>(partitions: impl Iterator<Item = &'a Partition>) -> BTreeMap<&'a str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in partitions {
        topics.entry(topic).or_default().push(*partition);
    }
    topics
}

impl Admin {
    /// Connects.
    pub(super) fn open(bootstrap: &str) -> Result<Admin, Failure> {
        let connect = || Ok((Target::find(bootstrap, &Made::default())?, Connection::open(bootstrap)?));
        let (target, connection) = connect().map_err(|broken: Broken| {
            Failure::failed("no_broker", broken.0)
                .hint("start a node with `rangeway serve`, or name a Kafka port with --bootstrap HOST:PORT")
        })?;
        Ok(Admin { target, connection })
    }

    fn call<R: Request>(&mut self, request: &R, most: i16) -> Result<R::Response, Failure> {
        let version = self.target.version::<R>(most).map_err(failed)?;
        self.connection.call(request, version).map_err(failed)
    }

    /// Asks the group's coordinator; once more while it is not there yet, which `code` tells. Answers where it is, too.
    fn ask<R: Request>(
        &mut self,
        group: &str,
        request: &R,
        most: i16,
        code: impl Fn(&R::Response) -> i16,
    ) -> Result<(R::Response, String), Failure> {
        let version = self.target.version::<R>(most).map_err(failed)?;
        let until = Instant::now() + COORDINATOR_MAX;
        let waits = |code: i16| {
            let later = [
                ResponseError::CoordinatorLoadInProgress,
                ResponseError::CoordinatorNotAvailable,
                ResponseError::NotCoordinator,
            ];
            later.iter().any(|error| error.code() == code) && Instant::now() < until
        };
        loop {
            let found = self.call(&FindCoordinatorRequest::default().with_key(text(group)), 3)?;
            if found.error_code == 0 {
                let address = format!("{}:{}", found.host.as_str(), found.port);
                let mut connection = Connection::open(&address).map_err(failed)?;
                let answer = connection.call(request, version).map_err(failed)?;
                if !waits(code(&answer)) {
                    return Ok((answer, address));
                }
            } else if !waits(found.error_code) {
                return Err(refused(&format!("the coordinator of group '{group}'"), found.error_code));
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn metadata(&mut self, topics: impl Iterator<Item = String>) -> Result<MetadataResponse, Failure> {
        let topics =
            topics.map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(&name)))).collect();
        let request =
            MetadataRequest::default().with_topics(Some(topics)).with_allow_auto_topic_creation(false);
        self.call(&request, 9)
    }

    /// All groups of all brokers.
    pub(super) fn list(&mut self) -> Result<Vec<Summary>, Failure> {
        let brokers = self.metadata(std::iter::empty())?.brokers;
        let version = self.target.version::<ListGroupsRequest>(5).map_err(failed)?;
        let mut all = Vec::new();
        for broker in brokers {
            let address = format!("{}:{}", broker.host.as_str(), broker.port);
            let mut connection = Connection::open(&address).map_err(failed)?;
            let answer = connection.call(&ListGroupsRequest::default(), version).map_err(failed)?;
            if is_refusal(answer.error_code) {
                return Err(refused(&format!("the list of groups of {address}"), answer.error_code));
            }
            all.extend(answer.groups.into_iter().map(|row| Summary {
                group: row.group_id.to_string(),
                kind: row.group_type.to_string(),
                state: row.group_state.to_string(),
                protocol: row.protocol_type.to_string(),
            }));
        }
        Ok(all)
    }

    /// A group; `None`: there is none of that id.
    pub(super) fn describe(&mut self, group: &str) -> Result<Option<Description>, Failure> {
        let Some(mut described) = self.members(group)? else { return Ok(None) };
        let committed = self.committed(group)?;
        let mut readers = BTreeMap::new();
        for member in &described.members {
            for (topic, partitions) in &member.reads {
                readers.extend(partitions.iter().map(|p| ((topic.clone(), *p), member.member.clone())));
            }
        }
        let all: BTreeSet<Partition> = committed.keys().chain(readers.keys()).cloned().collect();
        let all: Vec<Partition> = all.into_iter().collect();
        let ends = self.offsets_at(&all, LATEST)?;
        described.offsets = all
            .into_iter()
            .map(|partition| {
                let (committed, end) = (committed.get(&partition).copied(), ends.get(&partition).copied());
                Offset {
                    committed,
                    end,
                    lag: committed.zip(end).map(|(committed, end)| end - committed),
                    member: readers.get(&partition).cloned(),
                    topic: partition.0,
                    partition: partition.1,
                }
            })
            .collect();
        Ok(Some(described))
    }

    /// State and count of members of a group that is not to be touched.
    pub(super) fn active(&mut self, group: &str) -> Result<Option<(String, usize)>, Failure> {
        let described = self.members(group)?;
        let active = described.filter(|d| !d.members.is_empty() || !matches!(&*d.state, "Empty" | "Dead"));
        Ok(active.map(|described| (described.state, described.members.len())))
    }

    /// A group without its offsets.
    fn members(&mut self, group: &str) -> Result<Option<Description>, Failure> {
        match self.consumer_members(group)? {
            Some(described) => Ok(Some(described)),
            None => self.classic_members(group),
        }
    }

    fn consumer_members(&mut self, group: &str) -> Result<Option<Description>, Failure> {
        if self.target.version::<ConsumerGroupDescribeRequest>(1).is_err() {
            return Ok(None);
        }
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id(group)]);
        let (answer, coordinator) =
            self.ask(group, &request, 1, |answer| answer.groups.first().map_or(0, |row| row.error_code))?;
        let Some(row) = answer.groups.into_iter().next().filter(|row| !is_nobody(row.error_code)) else {
            return Ok(None);
        };
        if is_refusal(row.error_code) {
            return Err(refused(&format!("a description of group '{group}'"), row.error_code));
        }
        let members = row.members.into_iter().map(|member| Member {
            member: member.member_id.to_string(),
            instance: member.instance_id.map(|id| id.to_string()),
            client: member.client_id.to_string(),
            host: member.client_host.to_string(),
            epoch: Some(member.member_epoch),
            reads: reads(&member.assignment),
        });
        Ok(Some(Description {
            group: group.to_owned(),
            kind: "consumer",
            state: row.group_state.to_string(),
            coordinator,
            assignor: row.assignor_name.to_string(),
            epoch: Some(row.group_epoch),
            assignment_epoch: Some(row.assignment_epoch),
            members: members.collect(),
            offsets: Vec::new(),
        }))
    }

    fn classic_members(&mut self, group: &str) -> Result<Option<Description>, Failure> {
        let request = DescribeGroupsRequest::default().with_groups(vec![group_id(group)]);
        let (answer, coordinator) =
            self.ask(group, &request, 5, |answer| answer.groups.first().map_or(0, |row| row.error_code))?;
        let Some(row) = answer.groups.into_iter().next() else { return Ok(None) };
        if is_nobody(row.error_code) || row.group_state.as_str() == "Dead" {
            return Ok(None);
        }
        if is_refusal(row.error_code) {
            return Err(refused(&format!("a description of group '{group}'"), row.error_code));
        }
        let consumes = row.protocol_type.as_str() == "consumer";
        let members = row.members.into_iter().map(|member| {
            let assigned = Some(&member.member_assignment).filter(|bytes| consumes && !bytes.is_empty());
            Member {
                member: member.member_id.to_string(),
                instance: member.group_instance_id.map(|id| id.to_string()),
                client: member.client_id.to_string(),
                host: member.client_host.to_string(),
                epoch: None,
                reads: assigned.and_then(|bytes| member_assignment(bytes)).into_iter().flatten().collect(),
            }
        });
        Ok(Some(Description {
            group: group.to_owned(),
            kind: "classic",
            state: row.group_state.to_string(),
            coordinator,
            assignor: row.protocol_data.to_string(),
            epoch: None,
            assignment_epoch: None,
            members: members.collect(),
            offsets: Vec::new(),
        }))
    }

    /// Where a group stands.
    pub(super) fn committed(&mut self, group: &str) -> Result<BTreeMap<Partition, i64>, Failure> {
        let request = OffsetFetchRequest::default().with_group_id(group_id(group)).with_topics(None);
        let (answer, _) = self.ask(group, &request, 7, |answer| answer.error_code)?;
        if is_nobody(answer.error_code) {
            return Ok(BTreeMap::new());
        }
        if is_refusal(answer.error_code) {
            return Err(refused(&format!("where group '{group}' stands"), answer.error_code));
        }
        let mut committed = BTreeMap::new();
        for topic in &answer.topics {
            for row in &topic.partitions {
                if is_refusal(row.error_code) {
                    return Err(refused(&format!("where group '{group}' stands"), row.error_code));
                }
                if row.committed_offset >= 0 {
                    committed.insert((topic.name.to_string(), row.partition_index), row.committed_offset);
                }
            }
        }
        Ok(committed)
    }

    /// The partitions that are named.
    ///
    /// Errors: a topic or partition that is not there.
    pub(super) fn partitions_of(&mut self, selections: &[Selection]) -> Result<Vec<Partition>, Failure> {
        let names: BTreeSet<String> = selections.iter().map(|selection| selection.topic.clone()).collect();
        let topics = self.metadata(names.into_iter())?.topics;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for topic in topics.iter().filter(|topic| topic.error_code == 0) {
            let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
            counts.insert(name, topic.partitions.len());
        }
        let mut chosen = BTreeSet::new();
        for Selection { topic, partitions } in selections {
            let count = counts.get(topic).copied().ok_or_else(|| {
                Failure::failed("unknown_topic", format!("there is no topic '{topic}'"))
                    .hint("`rangeway topics list` shows all")
            })?;
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            let all = || (0..count).collect();
            for partition in partitions.clone().unwrap_or_else(all) {
                if partition >= count {
                    let message =
                        format!("topic '{topic}' has no partition {partition}, but 0 to {}", count - 1);
                    return Err(Failure::failed("unknown_partition", message));
                }
                chosen.insert((topic.clone(), partition));
            }
        }
        Ok(chosen.into_iter().collect())
    }

    /// What a reset has to know.
    ///
    /// Errors: a partition that cannot be asked.
    pub(super) fn bounds(
        &mut self,
        partitions: &[Partition],
        to: To,
    ) -> Result<BTreeMap<Partition, Bounds>, Failure> {
        let starts = self.offsets_at(partitions, EARLIEST)?;
        let ends = self.offsets_at(partitions, LATEST)?;
        let times = match to {
            To::Time(ms) => self.offsets_at(partitions, ms)?,
            _ => BTreeMap::new(),
        };
        let of = |partition: &Partition| {
            let (start, end) = starts.get(partition).zip(ends.get(partition)).ok_or_else(|| {
                let message = format!("partition {} of topic {} says no offsets", partition.1, partition.0);
                Failure::failed("partition_unavailable", message)
                    .hint("is the topic there, and has it leaders?")
            })?;
            let at_time = times.get(partition).copied();
            Ok((partition.clone(), Bounds { start: *start, end: *end, at_time }))
        };
        partitions.iter().map(of).collect()
    }

    /// Offsets of a time, or of one of the ends; without partitions that have none.
    fn offsets_at(
        &mut self,
        partitions: &[Partition],
        time: i64,
    ) -> Result<BTreeMap<Partition, i64>, Failure> {
        let names: BTreeSet<String> = partitions.iter().map(|(topic, _)| topic.clone()).collect();
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let metadata = self.metadata(names.into_iter())?;
        let brokers: BTreeMap<BrokerId, String> =
            metadata.brokers.iter().map(|b| (b.node_id, format!("{}:{}", b.host.as_str(), b.port))).collect();
        let mut led: BTreeMap<&str, Vec<Partition>> = BTreeMap::new();
        for topic in &metadata.topics {
            let name = topic.name.as_ref().map(|name| name.to_string()).unwrap_or_default();
            for row in &topic.partitions {
                let partition = (name.clone(), row.partition_index);
                if let Some(leader) = brokers.get(&row.leader_id).filter(|_| partitions.contains(&partition))
                {
                    led.entry(leader).or_default().push(partition);
                }
            }
        }
        let version = self.target.version::<ListOffsetsRequest>(7).map_err(failed)?;
        let mut found = BTreeMap::new();
        for (leader, partitions) in led {
            let topics = by_topic(partitions.iter()).into_iter().map(|(topic, of)| {
                let row = |p| {
                    ListOffsetsPartition::default()
                        .with_partition_index(p)
                        .with_current_leader_epoch(-1)
                        .with_timestamp(time)
                };
                ListOffsetsTopic::default()
                    .with_name(topic_name(topic))
                    .with_partitions(of.into_iter().map(row).collect())
            });
            let request =
                ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(topics.collect());
            let mut connection = Connection::open(leader).map_err(failed)?;
            let answer = connection.call(&request, version).map_err(failed)?;
            for topic in &answer.topics {
                for row in topic.partitions.iter().filter(|row| row.error_code == 0 && row.offset >= 0) {
                    found.insert((topic.name.to_string(), row.partition_index), row.offset);
                }
            }
        }
        Ok(found)
    }

    /// Commits what was planned.
    pub(super) fn commit(&mut self, group: &str, planned: &[Move]) -> Result<(), Failure> {
        let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        for row in planned {
            topics.entry(&row.topic).or_default().push(
                OffsetCommitRequestPartition::default()
                    .with_partition_index(row.partition)
                    .with_committed_offset(row.to)
                    .with_committed_leader_epoch(-1)
                    .with_committed_metadata(Some(StrBytes::default())),
            );
        }
        let topics = topics.into_iter().map(|(topic, partitions)| {
            OffsetCommitRequestTopic::default().with_name(topic_name(topic)).with_partitions(partitions)
        });
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(group))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics.collect());
        let (answer, _) = self.ask(group, &request, 8, |answer| {
            answer.topics.first().and_then(|topic| topic.partitions.first()).map_or(0, |row| row.error_code)
        })?;
        let mut rows =
            answer.topics.iter().flat_map(|topic| topic.partitions.iter().map(move |row| (topic, row)));
        if let Some((topic, row)) = rows.find(|(_, row)| is_refusal(row.error_code)) {
            let what =
                format!("the offset of partition {} of topic {}", row.partition_index, topic.name.as_str());
            return Err(refused(&what, row.error_code));
        }
        Ok(())
    }

    /// Forgets where a group stands; a row for each partition.
    pub(super) fn delete_offsets(
        &mut self,
        group: &str,
        partitions: &[Partition],
    ) -> Result<DeletedOffsets, Failure> {
        let topics = by_topic(partitions.iter()).into_iter().map(|(topic, of)| {
            let row = |p| OffsetDeleteRequestPartition::default().with_partition_index(p);
            OffsetDeleteRequestTopic::default()
                .with_name(topic_name(topic))
                .with_partitions(of.into_iter().map(row).collect())
        });
        let request =
            OffsetDeleteRequest::default().with_group_id(group_id(group)).with_topics(topics.collect());
        let (answer, _) = self.ask(group, &request, 0, |answer| answer.error_code)?;
        if is_nobody(answer.error_code) {
            return Err(super::not_found(group));
        }
        if is_refusal(answer.error_code) {
            return Err(refused(&format!("deleting offsets of group '{group}'"), answer.error_code));
        }
        let rows = answer.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|row| DeletedOffset {
                topic: topic.name.to_string(),
                partition: row.partition_index,
                error: is_refusal(row.error_code).then(|| why(row.error_code)),
            })
        });
        Ok(DeletedOffsets { group: group.to_owned(), offsets: rows.collect() })
    }

    /// Deletes a group; why it was not, if it was not.
    pub(super) fn delete(&mut self, group: &str) -> Result<Option<String>, Failure> {
        let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
        let code = |answer: &kafka_protocol::messages::DeleteGroupsResponse| {
            answer.results.first().map_or(0, |row| row.error_code)
        };
        let (answer, _) = self.ask(group, &request, 2, code)?;
        Ok(Some(code(&answer)).filter(|code| is_refusal(*code)).map(why))
    }
}

fn reads(assignment: &Assignment) -> BTreeMap<String, Vec<i32>> {
    let topics = assignment.topic_partitions.iter();
    topics.map(|topic| (topic.topic_name.to_string(), topic.partitions.clone())).collect()
}
