//! SyncGroup (14), versions 0 to 5. Answered when the leader's assignment is stored.
//!
//! v3: `group.instance.id`. v5: protocol type and name, checked and answered (KIP-559).

use super::words::{GROUP_DENIED, blob, optional, wire};
use super::{Context, Operation, Resource};
use crate::groups::{Caller, GroupError, Sync, Synced};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

/// Hands in or fetches the assignment.
pub async fn handle(context: Context, request: SyncGroupRequest) -> Result<SyncGroupResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(SyncGroupResponse::default().with_error_code(GROUP_DENIED));
    }
    Ok(respond(context.version, context.shared.groups.sync(ask(&request)).await))
}

fn ask(request: &SyncGroupRequest) -> Sync {
    let assignments = request.assignments.iter();
    Sync {
        caller: Caller {
            group: request.group_id.to_string(),
            member_id: request.member_id.to_string(),
            instance_id: optional(request.group_instance_id.as_ref()),
            generation: request.generation_id,
        },
        protocol_type: optional(request.protocol_type.as_ref()),
        protocol: optional(request.protocol_name.as_ref()),
        assignments: assignments.map(|a| (a.member_id.to_string(), blob(&a.assignment))).collect(),
    }
}

fn respond(version: i16, synced: Result<Synced, GroupError>) -> SyncGroupResponse {
    match synced {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type((version >= 5).then(|| wire(synced.protocol_type)))
            .with_protocol_name((version >= 5).then(|| wire(synced.protocol)))
            .with_assignment(synced.assignment.0),
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::*;
    use crate::groups::Blob;
    use bytes::Bytes;
    use kafka_protocol::messages::GroupId;
    use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=5 {
            let assignment = SyncGroupRequestAssignment::default()
                .with_member_id(wire("m"))
                .with_assignment(Bytes::from_static(b"all"));
            let mut sent = SyncGroupRequest::default()
                .with_group_id(GroupId(wire("g")))
                .with_generation_id(4)
                .with_member_id(wire("m"))
                .with_assignments(vec![assignment]);
            if version >= 3 {
                sent = sent.with_group_instance_id(Some(wire("i")));
            }
            if version >= 5 {
                sent =
                    sent.with_protocol_type(Some(wire("consumer"))).with_protocol_name(Some(wire("range")));
            }
            let sync = ask(&request(sent, version, 4));
            assert_eq!((sync.caller.group.as_str(), sync.caller.generation), ("g", 4));
            assert_eq!(sync.caller.instance_id.is_some(), version >= 3);
            assert_eq!(sync.protocol.as_deref(), (version >= 5).then_some("range"));
            assert_eq!(sync.assignments, vec![("m".to_owned(), Blob(Bytes::from_static(b"all")))]);

            let synced = Synced {
                protocol_type: "consumer".into(),
                protocol: "range".into(),
                assignment: Blob(Bytes::from_static(b"all")),
            };
            let read = response(respond(version, Ok(synced)), version);
            assert_eq!((read.error_code, &read.assignment[..]), (0, &b"all"[..]));
            assert_eq!(read.protocol_name.is_some(), version >= 5);
            let read = response(respond(version, Err(GroupError::RebalanceInProgress)), version);
            assert_eq!((read.error_code, read.assignment.len()), (27, 0));
        }
    }
}
