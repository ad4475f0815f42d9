//! DeleteGroups (42), versions 0 to 2. A group that is named twice is answered once.

use super::words::GROUP_DENIED;
use super::{Context, Operation, Resource};
use crate::groups::GroupError;
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse, GroupId};
use std::collections::HashSet;

/// Deletes groups without members, one by one.
pub async fn handle(context: Context, request: DeleteGroupsRequest) -> Result<DeleteGroupsResponse, Close> {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group in distinct(request.groups_names) {
        let code = if context.authorize(Operation::Delete, Resource::Group(&group)) {
            context.shared.groups.delete(group.to_string()).await.err().map_or(0, GroupError::code)
        } else {
            GROUP_DENIED
        };
        results.push(result(group, code));
    }
    Ok(DeleteGroupsResponse::default().with_results(results))
}

/// Each group once, in order.
fn distinct(groups: Vec<GroupId>) -> Vec<GroupId> {
    let mut seen = HashSet::new();
    groups.into_iter().filter(|group| seen.insert(group.0.clone())).collect()
}

fn result(group: GroupId, code: i16) -> DeletableGroupResult {
    DeletableGroupResult::default().with_group_id(group).with_error_code(code)
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::super::words::wire;
    use super::*;

    #[test]
    fn a_group_that_is_named_twice_is_answered_once() {
        let groups = |names: &[&str]| names.iter().map(|name| GroupId(wire(*name))).collect::<Vec<_>>();
        assert_eq!(distinct(groups(&["g", "h", "", "g", ""])), groups(&["g", "h", ""]));
    }

    #[test]
    fn every_version_round_trips() {
        for version in 0..=2 {
            let group = GroupId(wire("g"));
            let sent = DeleteGroupsRequest::default().with_groups_names(vec![group.clone()]);
            assert_eq!(request(sent.clone(), version, 2), sent);
            let answer = DeleteGroupsResponse::default()
                .with_results(vec![result(group, GroupError::NonEmptyGroup.code())]);
            assert_eq!(response(answer.clone(), version), answer);
        }
    }
}
