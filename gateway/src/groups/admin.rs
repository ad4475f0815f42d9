//! What tools ask: describe, list, delete.

use super::ask::{Absent, Described, DescribedMember, GroupError, GroupType, Listed, State};
use super::coordinator::{Coordinator, Turn};
use super::record::{Blob, Record};
use super::subscription::PROTOCOL_TYPE;

impl Coordinator {
    /// Whether tools see the group: also one that has only given out member ids, while one of them can be used.
    pub(super) fn is_known(&self, group: &str) -> bool {
        self.state(group) != State::Dead
    }

    /// One group.
    pub(super) fn describe(&self, group: &str) -> Result<Described, Absent> {
        let state = self.state(group);
        if self.consumers.groups.contains_key(group) {
            return Err(Absent::OtherType);
        }
        if !self.is_known(group) {
            return Err(Absent::NotFound);
        }
        let image = self.stored.get(group).map(|s| &s.group);
        let protocol = image.and_then(|i| i.protocol.as_deref()).unwrap_or_default();
        let members = self.live.get(group).into_iter().flat_map(|l| l.members.iter());
        let members = members.map(|(id, member)| DescribedMember {
            member_id: id.clone(),
            instance_id: member.info.instance_id.clone(),
            client_id: member.info.client_id.clone(),
            client_host: member.info.client_host.clone(),
            metadata: match state {
                State::Stable => member.info.metadata(protocol).cloned().unwrap_or_default(),
                _ => Blob::default(),
            },
            assignment: image
                .and_then(|i| i.members.get(id))
                .map(|m| m.assignment.clone())
                .unwrap_or_default(),
        });
        Ok(Described {
            state,
            protocol_type: self.protocol_type(group),
            protocol: if state == State::Stable { protocol.to_owned() } else { String::new() },
            members: members.collect(),
        })
    }

    /// All groups.
    pub(super) fn list(&self) -> Vec<Listed> {
        let is_forming =
            |id: &String| !self.stored.contains_key(id) && !self.consumers.groups.contains_key(id);
        let forming = self.live.iter().filter(|(id, live)| is_forming(id) && !live.is_nothing());
        let groups = self.names().into_iter().chain(forming.map(|(id, _)| id.clone()));
        groups.map(|group| self.listed(group)).collect()
    }

    fn listed(&self, group: String) -> Listed {
        match self.consumers.groups.get(&group) {
            Some(image) => Listed {
                group,
                state: image.state().name(),
                group_type: GroupType::Consumer,
                protocol_type: PROTOCOL_TYPE.to_owned(),
            },
            None => Listed {
                state: self.state(&group).name(),
                group_type: GroupType::Classic,
                protocol_type: self.protocol_type(&group),
                group,
            },
        }
    }

    fn protocol_type(&self, group: &str) -> String {
        let live = self.live.get(group).and_then(|l| l.protocol_type.clone());
        live.or_else(|| self.stored.get(group)?.group.protocol_type.clone()).unwrap_or_default()
    }
}

impl Turn<'_> {
    /// DeleteGroups: an empty group and its offsets.
    pub(super) fn delete(&mut self) -> Result<(), GroupError> {
        let group = self.group.to_owned();
        match self.consumer() {
            Some(image) if !image.members.is_empty() => return Err(GroupError::NonEmptyGroup),
            Some(_) => {
                self.emit(Record::GroupDropped { group });
                self.live().pending.clear();
                return Ok(());
            }
            None => {}
        }
        match self.state() {
            State::Dead => Err(GroupError::GroupNotFound),
            State::Empty => {
                if self.coordinator.stored.contains_key(&group) {
                    self.emit(Record::GroupDropped { group });
                }
                // Ids that were given out and not used: their joins are refused.
                self.live().pending.clear();
                Ok(())
            }
            State::PreparingRebalance | State::CompletingRebalance | State::Stable => {
                Err(GroupError::NonEmptyGroup)
            }
        }
    }
}
