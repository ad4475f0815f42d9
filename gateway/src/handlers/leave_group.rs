//! LeaveGroup (13), versions 0 to 5. v0 to v2: one member. v3: many, one answer each (KIP-345). v5: a reason, logged.

use super::words::{GROUP_DENIED, optional};
use super::{Context, Operation, Resource};
use crate::groups::{GroupError, Leaver};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

/// Takes members out of their group.
pub async fn handle(context: Context, request: LeaveGroupRequest) -> Result<LeaveGroupResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(LeaveGroupResponse::default().with_error_code(GROUP_DENIED));
    }
    let members = named(context.version, &request);
    for member in members.iter().filter(|m| m.reason.as_ref().is_some_and(|r| !r.is_empty())) {
        let reason = member.reason.as_deref().unwrap_or_default();
        tracing::debug!(group = %request.group_id.0, member = %member.member_id, reason, "leave");
    }
    let leavers = members.iter().map(leaver).collect();
    let answer = context.shared.groups.leave(request.group_id.to_string(), leavers).await;
    Ok(respond(context.version, members, answer))
}

/// The members of any version's form.
fn named(version: i16, request: &LeaveGroupRequest) -> Vec<MemberIdentity> {
    if version >= 3 {
        return request.members.clone();
    }
    vec![MemberIdentity::default().with_member_id(request.member_id.clone())]
}

fn leaver(member: &MemberIdentity) -> Leaver {
    Leaver {
        member_id: member.member_id.to_string(),
        instance_id: optional(member.group_instance_id.as_ref()),
    }
}

fn respond(
    version: i16,
    members: Vec<MemberIdentity>,
    answer: Result<Vec<Result<(), GroupError>>, GroupError>,
) -> LeaveGroupResponse {
    let answers = match answer {
        Ok(answers) => answers,
        Err(error) => return LeaveGroupResponse::default().with_error_code(error.code()),
    };
    let code = |answer: &Result<(), GroupError>| answer.err().map_or(0, GroupError::code);
    if version < 3 {
        return LeaveGroupResponse::default().with_error_code(answers.first().map_or(0, code));
    }
    let members = members.into_iter().zip(&answers).map(|(member, answer)| {
        MemberResponse::default()
            .with_member_id(member.member_id)
            .with_group_instance_id(member.group_instance_id)
            .with_error_code(code(answer))
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::GroupId;

    #[test]
    fn old_versions_name_one_member() {
        for version in 0..=2 {
            let sent =
                LeaveGroupRequest::default().with_group_id(GroupId(wire("g"))).with_member_id(wire("m"));
            let members = named(version, &request(sent, version, 4));
            assert_eq!(leaver(&members[0]), Leaver { member_id: "m".into(), instance_id: None });
            let read = response(respond(version, members, Ok(vec![Err(GroupError::UnknownMember)])), version);
            assert_eq!(read.error_code, 25);
        }
    }

    #[test]
    fn later_versions_name_many_and_answer_each() {
        for version in 3..=5 {
            let mut member = MemberIdentity::default().with_group_instance_id(Some(wire("i")));
            if version >= 5 {
                member = member.with_reason(Some(wire("tired")));
            }
            let other = MemberIdentity::default().with_member_id(wire("m"));
            let sent = LeaveGroupRequest::default()
                .with_group_id(GroupId(wire("g")))
                .with_members(vec![member, other]);
            let members = named(version, &request(sent, version, 4));
            assert_eq!(
                leaver(&members[0]),
                Leaver { member_id: String::new(), instance_id: Some("i".into()) }
            );
            let answer = Ok(vec![Ok(()), Err(GroupError::FencedInstance)]);
            let read = response(respond(version, members, answer), version);
            assert_eq!(read.error_code, 0);
            assert_eq!(read.members.iter().map(|m| m.error_code).collect::<Vec<_>>(), vec![0, 82]);
            assert_eq!(read.members[0].group_instance_id.as_deref(), Some("i"));
        }
    }
}
