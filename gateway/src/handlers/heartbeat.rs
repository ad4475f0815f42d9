//! Heartbeat (12), versions 0 to 4. v3: `group.instance.id`.

use super::words::{GROUP_DENIED, optional};
use super::{Context, Operation, Resource};
use crate::groups::Caller;
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

/// A sign of life; the answer says when the member has to join again.
pub async fn handle(context: Context, request: HeartbeatRequest) -> Result<HeartbeatResponse, Close> {
    if !context.authorize(Operation::Read, Resource::Group(&request.group_id)) {
        return Ok(HeartbeatResponse::default().with_error_code(GROUP_DENIED));
    }
    let answer = context.shared.groups.heartbeat(ask(&request)).await;
    Ok(HeartbeatResponse::default().with_error_code(answer.err().map_or(0, |e| e.code())))
}

fn ask(request: &HeartbeatRequest) -> Caller {
    Caller {
        group: request.group_id.to_string(),
        member_id: request.member_id.to_string(),
        instance_id: optional(request.group_instance_id.as_ref()),
        generation: request.generation_id,
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::GroupId;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=4 {
            let mut sent = HeartbeatRequest::default()
                .with_group_id(GroupId(wire("g")))
                .with_generation_id(4)
                .with_member_id(wire("m"));
            if version >= 3 {
                sent = sent.with_group_instance_id(Some(wire("i")));
            }
            let caller = ask(&request(sent, version, 4));
            assert_eq!((caller.group.as_str(), caller.member_id.as_str(), caller.generation), ("g", "m", 4));
            assert_eq!(caller.instance_id.is_some(), version >= 3);
            assert_eq!(response(HeartbeatResponse::default().with_error_code(27), version).error_code, 27);
        }
    }
}
