//! DescribeGroups (15), versions 0 to 6.
//!
//! v3: authorised operations (KIP-430). v4: `group.instance.id`. v6: an absent group is an error with a text (KIP-1043);
//! before it, it is a group in state Dead.

use super::words::{GROUP_DENIED, wire, wire_optional};
use super::{Context, Operation, Resource};
use crate::groups::{Absent, Described, GroupError, State};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};

/// What a principal may do with a group, as the bits of Kafka's operation numbers.
const OPERATIONS: [(Operation, u32); 5] = [
    (Operation::Read, 3),
    (Operation::Delete, 6),
    (Operation::Describe, 8),
    (Operation::DescribeConfigs, 10),
    (Operation::AlterConfigs, 11),
];

/// Describes groups one by one.
pub async fn handle(
    context: Context,
    request: DescribeGroupsRequest,
) -> Result<DescribeGroupsResponse, Close> {
    let mut groups = Vec::with_capacity(request.groups.len());
    for group in request.groups {
        if !context.authorize(Operation::Describe, Resource::Group(&group)) {
            groups.push(refused(group, GROUP_DENIED));
            continue;
        }
        let described = context.shared.groups.describe(group.to_string()).await;
        let mut answer = respond(context.version, group, described);
        if request.include_authorized_operations {
            answer.authorized_operations = operations(&context, &answer.group_id);
        }
        groups.push(answer);
    }
    Ok(DescribeGroupsResponse::default().with_groups(groups))
}

pub(super) fn operations(context: &Context, group: &GroupId) -> i32 {
    let allowed = OPERATIONS.iter().filter(|(op, _)| context.authorize(*op, Resource::Group(group)));
    allowed.fold(0, |bits, (_, bit)| bits | (1 << bit))
}

fn refused(group: GroupId, code: i16) -> DescribedGroup {
    DescribedGroup::default().with_group_id(group).with_error_code(code)
}

fn respond(
    version: i16,
    group: GroupId,
    described: Result<Result<Described, Absent>, GroupError>,
) -> DescribedGroup {
    let described = match described {
        Ok(Ok(described)) => described,
        Ok(Err(why)) => return absent(version, group, why),
        Err(error) => return refused(group, error.code()),
    };
    let members = described.members.into_iter().map(|member| {
        DescribedGroupMember::default()
            .with_member_id(wire(member.member_id))
            .with_group_instance_id(wire_optional(member.instance_id.filter(|_| version >= 4)))
            .with_client_id(wire(member.client_id))
            .with_client_host(wire(member.client_host))
            .with_member_metadata(member.metadata.0)
            .with_member_assignment(member.assignment.0)
    });
    DescribedGroup::default()
        .with_group_id(group)
        .with_group_state(wire(described.state.name()))
        .with_protocol_type(wire(described.protocol_type))
        .with_protocol_data(wire(described.protocol))
        .with_members(members.collect())
}

fn absent(version: i16, group: GroupId, why: Absent) -> DescribedGroup {
    let dead = DescribedGroup::default().with_group_state(wire(State::Dead.name()));
    if version < 6 {
        return dead.with_group_id(group);
    }
    let text = match why {
        Absent::NotFound => format!("Group {} not found.", group.0),
        Absent::OtherType => format!("Group {} is not a classic group.", group.0),
    };
    dead.with_group_id(group)
        .with_error_code(GroupError::GroupNotFound.code())
        .with_error_message(Some(wire(text)))
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::*;
    use crate::groups::{Blob, DescribedMember};
    use bytes::Bytes;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=6 {
            let mut sent = DescribeGroupsRequest::default().with_groups(vec![GroupId(wire("g"))]);
            if version >= 3 {
                sent = sent.with_include_authorized_operations(true);
            }
            assert_eq!(request(sent.clone(), version, 5), sent);
            let described = Described {
                state: State::Stable,
                protocol_type: "consumer".into(),
                protocol: "range".into(),
                members: vec![DescribedMember {
                    member_id: "m".into(),
                    instance_id: Some("i".into()),
                    client_id: "c".into(),
                    client_host: "/127.0.0.1".into(),
                    metadata: Blob(Bytes::from_static(b"meta")),
                    assignment: Blob(Bytes::from_static(b"all")),
                }],
            };
            let groups = vec![
                respond(version, GroupId(wire("g")), Ok(Ok(described))),
                respond(version, GroupId(wire("absent")), Ok(Err(Absent::NotFound))),
                respond(version, GroupId(wire("away")), Err(GroupError::NotCoordinator)),
                respond(version, GroupId(wire("consumer")), Ok(Err(Absent::OtherType))),
            ];
            let read = response(DescribeGroupsResponse::default().with_groups(groups), version);
            let group = &read.groups[0];
            assert_eq!((group.group_state.as_str(), group.protocol_data.as_str()), ("Stable", "range"));
            assert_eq!(&group.members[0].member_assignment[..], b"all");
            assert_eq!(group.members[0].group_instance_id.is_some(), version >= 4);
            assert_eq!(group.authorized_operations, i32::MIN);
            let absent = &read.groups[1];
            assert_eq!(absent.group_state.as_str(), "Dead");
            assert_eq!(absent.error_code, if version >= 6 { 69 } else { 0 });
            assert_eq!(absent.error_message.is_some(), version >= 6);
            assert_eq!(read.groups[2].error_code, 16);
            let other = &read.groups[3];
            assert_eq!((other.group_state.as_str(), other.error_code), ("Dead", absent.error_code));
            let text = (version >= 6).then(|| wire("Group consumer is not a classic group."));
            assert_eq!(other.error_message, text);
        }
    }
}
