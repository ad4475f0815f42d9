//! What tools ask: describe, list, delete.

use super::ask::{Described, DescribedMember, GroupError, Listed, State};
use super::coordinator::{Coordinator, Turn};
use super::record::Record;

impl Coordinator {
    /// One group; `None` when there is none.
    pub(super) fn describe(&self, group: &str) -> Option<Described> {
        let state = self.state(group);
        if state == State::Dead {
            return None;
        }
        let image = self.stored.get(group).map(|s| &s.group);
        let protocol = image.and_then(|i| i.protocol.as_deref()).unwrap_or_default();
        let members = self.live.get(group).into_iter().flat_map(|l| l.members.iter());
        let members = members.map(|(id, member)| DescribedMember {
            member_id: id.clone(),
            instance_id: member.info.instance_id.clone(),
            client_id: member.info.client_id.clone(),
            client_host: member.info.client_host.clone(),
            metadata: member.info.metadata(protocol).cloned().unwrap_or_default(),
            assignment: image
                .and_then(|i| i.members.get(id))
                .map(|m| m.assignment.clone())
                .unwrap_or_default(),
        });
        Some(Described {
            state,
            protocol_type: self.protocol_type(group),
            protocol: if state == State::Stable { protocol.to_owned() } else { String::new() },
            members: members.collect(),
        })
    }

    /// All groups.
    pub(super) fn list(&self) -> Vec<Listed> {
        let forming =
            self.live.iter().filter(|(id, live)| !self.stored.contains_key(*id) && !live.members.is_empty());
        let groups = self.stored.keys().chain(forming.map(|(id, _)| id));
        groups
            .map(|group| Listed {
                group: group.clone(),
                state: self.state(group),
                protocol_type: self.protocol_type(group),
            })
            .collect()
    }

    fn protocol_type(&self, group: &str) -> String {
        let live = self.live.get(group).and_then(|l| l.protocol_type.clone());
        live.or_else(|| self.stored.get(group)?.group.protocol_type.clone()).unwrap_or_default()
    }
}

impl Turn<'_> {
    /// DeleteGroups: an empty group and its offsets.
    pub(super) fn delete(&mut self) -> Result<(), GroupError> {
        match self.state() {
            State::Dead => Err(GroupError::GroupNotFound),
            State::Empty => {
                let group = self.group.to_owned();
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
