//! JoinGroup (11), versions 0 to 9. Answered when the group's next generation is formed.
//!
//! v1: rebalance timeout; before it the session timeout counts. v4: a new member is first told its id (KIP-394).
//! v5: `group.instance.id` (KIP-345). v7: protocol type in the answer, protocol name may be null (KIP-559).
//! v8: a reason, which is only logged. v9: a returning static leader may skip the assignment (KIP-814).

use super::words::{GROUP_DENIED, blob, optional, wire, wire_optional};
use super::{ClientInfo, Context, Operation, Resource};
use crate::groups::{Join, JoinRefused, Joined, MemberInfo};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// Joins; waits for the others.
pub async fn handle(context: Context, request: JoinGroupRequest) -> Result<JoinGroupResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(refused(context.version, GROUP_DENIED, request.member_id.to_string()));
    }
    if let Some(reason) = request.reason.as_ref().filter(|r| !r.is_empty()) {
        tracing::debug!(group = %request.group_id.0, member = %request.member_id, %reason, "join");
    }
    let join = ask(context.version, &context.client, &request);
    Ok(respond(context.version, context.shared.groups.join(join).await))
}

fn ask(version: i16, client: &ClientInfo, request: &JoinGroupRequest) -> Join {
    let rebalance_timeout_ms =
        if version >= 1 { request.rebalance_timeout_ms } else { request.session_timeout_ms };
    let instance_id = optional(request.group_instance_id.as_ref());
    let name = instance_id.as_deref().unwrap_or(client.id());
    let protocols = request.protocols.iter().map(|p| (p.name.to_string(), blob(&p.metadata)));
    Join {
        group: request.group_id.to_string(),
        member_id: request.member_id.to_string(),
        fresh_id: format!("{name}-{}", Uuid::new_v4()),
        protocol_type: request.protocol_type.to_string(),
        info: MemberInfo {
            client_id: client.id().to_owned(),
            client_host: format!("/{}", client.connection.peer.ip().to_canonical()),
            // A negative one is below every bound.
            session_timeout_ms: u32::try_from(request.session_timeout_ms).unwrap_or(0),
            rebalance_timeout_ms: u32::try_from(rebalance_timeout_ms).unwrap_or(0),
            protocols: protocols.collect(),
            instance_id,
        },
        requires_known_id: version >= 4,
        may_skip_assignment: version >= 9,
    }
}

fn respond(version: i16, joined: Result<Joined, JoinRefused>) -> JoinGroupResponse {
    let joined = match joined {
        Ok(joined) => joined,
        Err(JoinRefused { error, member_id }) => return refused(version, error.code(), member_id),
    };
    let members = joined.members.into_iter().map(|(id, instance_id, metadata)| {
        JoinGroupResponseMember::default()
            .with_member_id(wire(id))
            .with_group_instance_id(wire_optional(instance_id.filter(|_| version >= 5)))
            .with_metadata(metadata.0)
    });
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type((version >= 7).then(|| wire(joined.protocol_type)))
        .with_protocol_name(Some(wire(joined.protocol)))
        .with_leader(wire(joined.leader))
        .with_skip_assignment(joined.skip_assignment && version >= 9)
        .with_member_id(wire(joined.member_id))
        .with_members(members.collect())
}

fn refused(version: i16, code: i16, member_id: String) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(code)
        .with_generation_id(-1)
        .with_protocol_type(None)
        .with_protocol_name((version < 7).then(StrBytes::default))
        .with_member_id(wire(member_id))
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{client, request, response};
    use super::*;
    use crate::groups::{Blob, GroupError};
    use bytes::Bytes;
    use kafka_protocol::messages::GroupId;
    use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;

    fn sent(version: i16) -> JoinGroupRequest {
        let protocol = JoinGroupRequestProtocol::default()
            .with_name(wire("range"))
            .with_metadata(Bytes::from_static(b"topics"));
        let mut sent = JoinGroupRequest::default()
            .with_group_id(GroupId(wire("g")))
            .with_session_timeout_ms(10_000)
            .with_member_id(wire("m"))
            .with_protocol_type(wire("consumer"))
            .with_protocols(vec![protocol]);
        if version >= 1 {
            sent = sent.with_rebalance_timeout_ms(60_000);
        }
        if version >= 5 {
            sent = sent.with_group_instance_id(Some(wire("i")));
        }
        if version >= 8 {
            sent = sent.with_reason(Some(wire("why not")));
        }
        sent
    }

    #[test]
    fn every_version_asks_for_what_was_sent() {
        for version in 0..=9 {
            let join = ask(version, &client(), &request(sent(version), version, 6));
            assert_eq!((join.group.as_str(), join.member_id.as_str()), ("g", "m"));
            assert_eq!(join.info.session_timeout_ms, 10_000);
            assert_eq!(join.info.rebalance_timeout_ms, if version >= 1 { 60_000 } else { 10_000 });
            assert_eq!(join.info.instance_id.is_some(), version >= 5);
            assert_eq!((join.requires_known_id, join.may_skip_assignment), (version >= 4, version >= 9));
            assert!(
                join.fresh_id.starts_with(if version >= 5 { "i-" } else { "test-" }),
                "{}",
                join.fresh_id
            );
            assert_eq!(
                (join.info.client_id.as_str(), join.info.client_host.as_str()),
                ("test", "/127.0.0.1")
            );
        }
    }

    #[test]
    fn every_version_carries_the_generation() {
        for version in 0..=9 {
            let joined = Joined {
                generation: 3,
                protocol_type: "consumer".into(),
                protocol: "range".into(),
                leader: "m".into(),
                skip_assignment: true,
                member_id: "m".into(),
                members: vec![("m".into(), Some("i".into()), Blob(Bytes::from_static(b"topics")))],
            };
            let read = response(respond(version, Ok(joined)), version);
            assert_eq!((read.error_code, read.generation_id, read.members.len()), (0, 3, 1));
            assert_eq!(read.protocol_name.as_deref(), Some("range"));
            assert_eq!(read.protocol_type.is_some(), version >= 7);
            assert_eq!(read.skip_assignment, version >= 9);
            assert_eq!(read.members[0].group_instance_id.is_some(), version >= 5);
        }
    }

    #[test]
    fn every_version_carries_a_refusal_and_the_id() {
        for version in 0..=9 {
            let refusal = JoinRefused { error: GroupError::MemberIdRequired, member_id: "m".into() };
            let read = response(respond(version, Err(refusal)), version);
            assert_eq!((read.error_code, read.generation_id, read.member_id.as_str()), (79, -1, "m"));
            assert_eq!(read.protocol_name.is_none(), version >= 7);
        }
    }

    #[test]
    fn negative_timeouts_are_below_every_bound() {
        let request = sent(1).with_session_timeout_ms(-5).with_rebalance_timeout_ms(-1);
        let join = ask(1, &client(), &request);
        assert_eq!((join.info.session_timeout_ms, join.info.rebalance_timeout_ms), (0, 0));
    }
}
