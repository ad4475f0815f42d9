//! What a group stores: records, and the state they fold to. Kinds of records are appended only, and so are fields of
//! the image; either comes with a new [`VERSION`], and every version from [`VERSION_OLDEST`] on is read.

use super::consumer::image::ConsumerRecord;
use super::pending::{Ended, PendingOffsets};
use rangeway_core::replicated::Shared;
use rangeway_core::types::TopicId;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Version of the layout of everything in this file.
pub(crate) const VERSION: u8 = 5;
/// Oldest version that is read.
pub(crate) const VERSION_OLDEST: u8 = 1;

/// A partition as offsets are kept for: by topic id, so that a topic made anew under an old name starts without any.
pub(crate) type Key = (TopicId, i32);

/// One durable fact of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// A generation was formed, or members of the present one changed without a rebalance.
    Formed {
        /// The group.
        group: String,
        /// All of it but its offsets.
        image: GroupImage,
    },
    /// The leader's assignment of the present generation; the group is stable.
    Assigned {
        /// The group.
        group: String,
        /// Assignment by member id; members that are not named have an empty one.
        assignments: Vec<(String, Blob)>,
        /// Wall clock, ms.
        at: i64,
    },
    /// Offsets were committed.
    Committed {
        /// The group.
        group: String,
        /// What was committed.
        positions: Vec<(Key, Position)>,
    },
    /// Offsets were deleted or expired.
    OffsetsDropped {
        /// The group.
        group: String,
        /// Of these partitions.
        keys: Vec<Key>,
    },
    /// The group and its offsets are gone.
    GroupDropped {
        /// The group.
        group: String,
    },
    /// A fact of a group of the consumer protocol. Since version 2.
    Consumer {
        /// The group.
        group: String,
        /// What is so.
        fact: ConsumerRecord,
    },
    /// All configs that are set for a group. Since version 2.
    Configured {
        /// The group.
        group: String,
        /// Value by name; empty: none is set.
        configs: BTreeMap<String, String>,
    },
    /// Offsets were committed within a transaction: they wait for its end. Since version 3.
    OffsetsPending(PendingOffsets),
    /// A transaction ended: what it committed of offsets counts, or is dropped. Since version 3.
    TransactionEnded(Ended),
}

/// Durable part of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// Members and generation.
    pub(crate) group: Shared<GroupImage>,
    /// Committed offsets.
    pub(crate) offsets: Shared<BTreeMap<Key, Position>>,
}

/// Where a group stands between rebalances; preparing one is soft state.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// No members.
    #[default]
    Empty,
    /// The generation is formed, its assignment is not known.
    Completing,
    /// Members have their assignment.
    Stable,
}

/// A group's newest generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupImage {
    /// `consumer`, `connect`, …; none for a group that only commits offsets.
    pub(crate) protocol_type: Option<String>,
    /// Number of the generation; grows by one, 0 before the first.
    pub(crate) generation: i32,
    /// The protocol that the members chose.
    pub(crate) protocol: Option<String>,
    /// The member that assigns.
    pub(crate) leader: Option<String>,
    /// By member id.
    pub(crate) members: BTreeMap<String, MemberImage>,
    /// Its phase.
    pub(crate) phase: Phase,
    /// When the phase began, wall clock ms.
    pub(crate) changed_at: i64,
}

/// A member of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberImage {
    /// What it said when it joined.
    pub(crate) info: MemberInfo,
    /// What the leader gave it.
    pub(crate) assignment: Blob,
}

/// What a member says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberInfo {
    /// `group.instance.id` of a static member.
    pub(crate) instance_id: Option<String>,
    /// Client id of its connection.
    pub(crate) client_id: String,
    /// Where it connects from, `/address`.
    pub(crate) client_host: String,
    /// ms.
    pub(crate) session_timeout_ms: u32,
    /// ms.
    pub(crate) rebalance_timeout_ms: u32,
    /// Protocols it can use, best first, with their metadata.
    pub(crate) protocols: Vec<(String, Blob)>,
}

impl MemberInfo {
    /// Its metadata for a protocol.
    pub(crate) fn metadata(&self, protocol: &str) -> Option<&Blob> {
        self.protocols.iter().find(|(name, _)| name == protocol).map(|(_, blob)| blob)
    }

    /// Whether it can use a protocol.
    pub(crate) fn supports(&self, protocol: &str) -> bool {
        self.metadata(protocol).is_some()
    }
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Any number that the client chose.
    pub(crate) offset: i64,
    /// Leader epoch of the last record consumed; -1 when unknown.
    pub(crate) leader_epoch: i32,
    /// The client's text.
    pub(crate) metadata: String,
    /// Wall clock, ms.
    pub(crate) committed_at: i64,
    /// Wall clock ms, where an old client gave a retention time with its commit.
    pub(crate) expires_at: Option<i64>,
}

/// Bytes that only clients understand.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Blob(pub(crate) bytes::Bytes);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        struct BlobVisitor;
        impl Visitor<'_> for BlobVisitor {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes::Bytes::copy_from_slice(bytes)))
            }
        }
        deserializer.deserialize_bytes(BlobVisitor)
    }
}

/// Applies one record.
pub(crate) fn apply(groups: &mut BTreeMap<String, Stored>, record: &Record) {
    match record {
        Record::Formed { group, image } => {
            groups.entry(group.clone()).or_default().group = Shared::new(image.clone());
        }
        Record::Assigned { group, assignments, at } => {
            let Some(stored) = groups.get_mut(group) else { return };
            let image = stored.group.to_mut();
            image.phase = Phase::Stable;
            image.changed_at = *at;
            for (id, assignment) in assignments {
                if let Some(member) = image.members.get_mut(id) {
                    member.assignment = assignment.clone();
                }
            }
        }
        Record::Committed { group, positions } => {
            let stored = groups.entry(group.clone()).or_default();
            stored.offsets.to_mut().extend(positions.iter().cloned());
        }
        Record::OffsetsDropped { group, keys } => {
            let Some(stored) = groups.get_mut(group) else { return };
            let offsets = stored.offsets.to_mut();
            for key in keys {
                offsets.remove(key);
            }
        }
        Record::GroupDropped { group } => {
            groups.remove(group);
        }
        Record::Consumer { group, fact: ConsumerRecord::Formed(_) } => {
            if let Some(stored) = groups.get_mut(group) {
                stored.group = Shared::default();
            }
        }
        // Of `Consumers::apply`.
        Record::Consumer { .. } | Record::Configured { .. } => {}
        // Of `Pending::apply`.
        Record::OffsetsPending(_) | Record::TransactionEnded(_) => {}
    }
}
