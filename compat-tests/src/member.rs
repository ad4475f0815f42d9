//! The group member of a crash storm: joins, reads, commits, and after each crash asks where its group stands.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;

use crate::judge::Fault;
use crate::load::{Reader, Shared};
use crate::payload::Place;
use crate::wire::{self, Connection};

const RETRY_PAUSE: Duration = Duration::from_millis(50);
const COMMIT_INTERVAL: Duration = Duration::from_millis(60);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

const MEMBER_ID_REQUIRED: i16 = 79;
const UNKNOWN_MEMBER_ID: i16 = 25;
/// Answers after which a member joins again or tries again: coordinator loading, not available, not here, illegal
/// generation, unknown member, rebalance in progress, and those of an append that could not be made.
const REJOIN: [i16; 9] = [14, 15, 16, 22, UNKNOWN_MEMBER_ID, 27, 6, 7, 56];

/// The only member of one group.
#[derive(Debug)]
pub struct Member<'a> {
    shared: &'a Shared,
    group: String,
    id: StrBytes,
    generation: i32,
}

impl<'a> Member<'a> {
    /// The member of that group.
    pub fn new(shared: &'a Shared, group: &str) -> Self {
        Self { shared, group: group.to_owned(), id: StrBytes::default(), generation: -1 }
    }

    /// Reads and commits until the run stops; joins again whenever it must.
    pub fn run(mut self) {
        while let Some(mut connection) = self.shared.connect() {
            // A broken connection is the storm's doing, and a wrong answer is already in the history.
            let _ = self.live(&mut connection);
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn stopped(&self) -> bool {
        self.shared.stopped.load(std::sync::atomic::Ordering::Acquire)
    }

    fn live(&mut self, connection: &mut Connection) -> Result<()> {
        self.find_coordinator(connection)?;
        self.join(connection)?;
        let mut reader = Reader::from(self.shared, self.positions(connection)?);
        let (mut committed, mut beaten) = (Instant::now(), Instant::now());
        while !self.stopped() {
            reader.read_once(connection)?;
            if committed.elapsed() > COMMIT_INTERVAL {
                self.commit(connection, reader.positions())?;
                committed = Instant::now();
            }
            if beaten.elapsed() > HEARTBEAT_INTERVAL {
                self.heartbeat(connection)?;
                beaten = Instant::now();
            }
        }
        self.commit(connection, reader.positions())
    }

    /// Errors unless the code means success; codes that no rejoin mends are faults.
    fn check(&mut self, what: &str, code: i16) -> Result<()> {
        if code == UNKNOWN_MEMBER_ID {
            self.id = StrBytes::default();
        }
        if code != 0 && !REJOIN.contains(&code) {
            let what = format!("{what} of group {} answered {code}", self.group);
            let place = Place { topic: 0, partition: -1 };
            self.shared.history().fault(Fault::Answer { place, what });
        }
        ensure!(code == 0, "{what} answered {code}");
        Ok(())
    }

    fn find_coordinator(&self, connection: &mut Connection) -> Result<()> {
        let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![wire::text(&self.group)]);
        let response = connection.call(&request, 4)?;
        let found = response.coordinators.first().context("FindCoordinator answered without the group")?;
        ensure!(found.error_code == 0, "FindCoordinator answered {}", found.error_code);
        Ok(())
    }

    fn join(&mut self, connection: &mut Connection) -> Result<()> {
        const TRIES_MAX: u32 = 3;
        for _ in 0..TRIES_MAX {
            let protocol = JoinGroupRequestProtocol::default()
                .with_name(StrBytes::from_static_str("all"))
                .with_metadata(Bytes::from_static(b"storm"));
            let request = JoinGroupRequest::default()
                .with_group_id(self.group_id())
                .with_session_timeout_ms(6_000)
                .with_rebalance_timeout_ms(6_000)
                .with_member_id(self.id.clone())
                .with_protocol_type(StrBytes::from_static_str("consumer"))
                .with_protocols(vec![protocol]);
            let response = connection.call(&request, 5)?;
            if response.error_code == MEMBER_ID_REQUIRED {
                self.id = response.member_id;
                continue;
            }
            self.check("JoinGroup", response.error_code)?;
            self.id = response.member_id;
            self.generation = response.generation_id;
            self.shared.joins.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return self.sync(connection, response.leader == self.id);
        }
        bail!("JoinGroup asked for a member id {TRIES_MAX} times")
    }

    fn sync(&mut self, connection: &mut Connection, leads: bool) -> Result<()> {
        let assignment = SyncGroupRequestAssignment::default()
            .with_member_id(self.id.clone())
            .with_assignment(Bytes::from_static(b"everything"));
        let request = SyncGroupRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone())
            .with_assignments(if leads { vec![assignment] } else { Vec::new() });
        let response = connection.call(&request, 3)?;
        self.check("SyncGroup", response.error_code)
    }

    fn heartbeat(&mut self, connection: &mut Connection) -> Result<()> {
        let request = HeartbeatRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id(self.generation)
            .with_member_id(self.id.clone());
        let response = connection.call(&request, 3)?;
        self.check("Heartbeat", response.error_code)
    }

    /// Where the group stands, as the broker answers; the start where it has committed nothing.
    fn positions(&mut self, connection: &mut Connection) -> Result<BTreeMap<Place, i64>> {
        let topics = self.shared.topics.iter().map(|topic| {
            OffsetFetchRequestTopic::default()
                .with_name(wire::topic(&topic.name))
                .with_partition_indexes((0..topic.partitions).collect())
        });
        let request = OffsetFetchRequest::default()
            .with_group_id(self.group_id())
            .with_topics(Some(topics.collect()))
            .with_require_stable(true);
        let response = connection.call(&request, 7)?;
        self.check("OffsetFetch", response.error_code)?;
        let mut positions = BTreeMap::new();
        for place in self.shared.places() {
            let name = self.shared.topics.get(usize::from(place.topic)).map_or("", |t| &t.name);
            let topic = response.topics.iter().find(|t| t.name.0.as_str() == name);
            let found =
                topic.and_then(|t| t.partitions.iter().find(|p| p.partition_index == place.partition));
            let found = found.with_context(|| format!("OffsetFetch answered without {place}"))?;
            self.check("OffsetFetch", found.error_code)?;
            self.shared.history().position(&self.group, place, found.committed_offset);
            positions.insert(place, found.committed_offset.max(0));
        }
        Ok(positions)
    }

    fn commit(&mut self, connection: &mut Connection, positions: &BTreeMap<Place, i64>) -> Result<()> {
        let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
        for topic in &self.shared.topics {
            topics.push(OffsetCommitRequestTopic::default().with_name(wire::topic(&topic.name)));
        }
        {
            let mut history = self.shared.history();
            for (place, offset) in positions {
                history.committing(&self.group, *place, *offset);
                let partition = OffsetCommitRequestPartition::default()
                    .with_partition_index(place.partition)
                    .with_committed_offset(*offset)
                    .with_committed_leader_epoch(-1);
                if let Some(topic) = topics.get_mut(usize::from(place.topic)) {
                    topic.partitions.push(partition);
                }
            }
        }
        let request = OffsetCommitRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id_or_member_epoch(self.generation)
            .with_member_id(self.id.clone())
            .with_topics(topics);
        let response = connection.call(&request, 7)?;
        let mut refused = 0;
        for (topic, answer) in (0..).zip(&response.topics) {
            for part in &answer.partitions {
                let place = Place { topic, partition: part.partition_index };
                match positions.get(&place) {
                    Some(offset) if part.error_code == 0 => {
                        self.shared.history().committed(&self.group, place, *offset);
                    }
                    _ => refused = part.error_code,
                }
            }
        }
        self.check("OffsetCommit", refused)
    }

    fn group_id(&self) -> GroupId {
        GroupId(wire::text(&self.group))
    }
}
