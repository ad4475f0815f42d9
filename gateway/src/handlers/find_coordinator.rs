//! FindCoordinator (10), versions 0 to 6.
//!
//! v1: key type. v4: many keys (KIP-699). v5, v6: no change here (new errors; share groups).
//! Answered at once and always: a coordinator does not have to be found by making its topic first.

use super::words::{GROUP_DENIED, TRANSACTION_DENIED, wire};
use super::{Context, Operation, Resource};
use crate::groups;
use crate::protocol::dispatch::Close;
use crate::transactions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::types::NodeId;

const KEY_GROUP: i8 = 0;
const KEY_TRANSACTION: i8 = 1;
const KEY_SHARE: i8 = 2;

/// Answers this node for every group and transactional id that it coordinates.
pub async fn handle(
    context: Context,
    request: FindCoordinatorRequest,
) -> Result<FindCoordinatorResponse, Close> {
    if context.version >= 4 {
        let keys = request.coordinator_keys.into_iter();
        let coordinators = keys.map(|key| find(&context, request.key_type, key)).collect();
        return Ok(FindCoordinatorResponse::default().with_coordinators(coordinators));
    }
    let found = find(&context, request.key_type, request.key);
    Ok(single(found))
}

fn find(context: &Context, key_type: i8, key: StrBytes) -> Coordinator {
    let found = coordinator(context, key_type, &key);
    found.unwrap_or_else(|(code, why)| refused(code, why)).with_key(key)
}

fn coordinator(context: &Context, key_type: i8, key: &StrBytes) -> Result<Coordinator, (i16, &'static str)> {
    let leader = match key_type {
        KEY_GROUP if !context.authorize(Operation::Describe, Resource::Group(key)) => {
            return Err((GROUP_DENIED, "not allowed to describe this group"));
        }
        KEY_GROUP => groups::leader_of(&context.api.catalog(), key),
        KEY_TRANSACTION if !context.authorize(Operation::Describe, Resource::Transaction(key)) => {
            return Err((TRANSACTION_DENIED, "not allowed to describe this transactional id"));
        }
        KEY_TRANSACTION => transactions::leader_of(&context.api.catalog(), key),
        KEY_SHARE => {
            return Err((
                ResponseError::UnsupportedVersion.code(),
                "share groups are not served by this broker",
            ));
        }
        _ => return Err((ResponseError::InvalidRequest.code(), "unknown key type")),
    };
    let node = context.api.cluster().node;
    if leader.is_some_and(|leader| leader != node) {
        let code = ResponseError::CoordinatorNotAvailable.code();
        return Err((code, "another node is the coordinator and cannot be reached from here"));
    }
    let (host, port) = context.client.node_address(&context.shared);
    Ok(found(node, host, port))
}

fn found(node: NodeId, host: String, port: u16) -> Coordinator {
    Coordinator::default().with_node_id(BrokerId(node.0)).with_host(wire(host)).with_port(i32::from(port))
}

fn refused(code: i16, why: &'static str) -> Coordinator {
    Coordinator::default()
        .with_node_id(BrokerId(-1))
        .with_port(-1)
        .with_error_code(code)
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

/// The form of versions below 4.
fn single(found: Coordinator) -> FindCoordinatorResponse {
    FindCoordinatorResponse::default()
        .with_error_code(found.error_code)
        .with_error_message(found.error_message.filter(|_| found.error_code != 0))
        .with_node_id(found.node_id)
        .with_host(found.host)
        .with_port(found.port)
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::*;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=3 {
            let sent = FindCoordinatorRequest::default().with_key(wire("g"));
            assert_eq!(request(sent.clone(), version, 3), sent);
            let found = single(found(NodeId(7), "localhost".into(), 9092).with_key(wire("g")));
            assert_eq!(response(found.clone(), version).port, 9092);
            let refused = single(refused(35, "why"));
            let read = response(refused, version);
            assert_eq!((read.error_code, read.node_id.0, read.port), (35, -1, -1));
            assert_eq!(read.error_message.as_deref() == Some("why"), version >= 1);
        }
        for version in 4..=6 {
            let sent = FindCoordinatorRequest::default()
                .with_key_type(1)
                .with_coordinator_keys(vec![wire("a"), wire("b")]);
            assert_eq!(request(sent.clone(), version, 3), sent);
            let answer = FindCoordinatorResponse::default().with_coordinators(vec![
                found(NodeId(7), "h".into(), 1).with_key(wire("a")),
                refused(35, "why"),
            ]);
            assert_eq!(response(answer.clone(), version), answer);
        }
    }
}
