//! ListGroups (16), versions 0 to 5. v4: states, and a filter by them (KIP-518). v5: types (KIP-1043).

use super::words::wire;
use super::{Context, Operation, Resource};
use crate::groups::{GroupError, Listed};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

/// Lists the groups that the principal may see.
pub async fn handle(context: Context, request: ListGroupsRequest) -> Result<ListGroupsResponse, Close> {
    let listed = context.shared.groups.list().await;
    let all = context.authorize(Operation::Describe, Resource::Cluster);
    let may_see = |group: &str| all || context.authorize(Operation::Describe, Resource::Group(group));
    Ok(respond(context.version, &request, listed, may_see))
}

fn respond(
    version: i16,
    request: &ListGroupsRequest,
    listed: Result<Vec<Listed>, GroupError>,
    may_see: impl Fn(&str) -> bool,
) -> ListGroupsResponse {
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => return ListGroupsResponse::default().with_error_code(error.code()),
    };
    let passes = |filter: &[StrBytes], word: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(word))
    };
    let wanted = listed.into_iter().filter(|group| {
        passes(&request.states_filter, group.state)
            && passes(&request.types_filter, group.group_type.name())
            && may_see(&group.group)
    });
    let groups = wanted.map(|group| {
        let listed = ListedGroup::default()
            .with_group_id(GroupId(wire(group.group)))
            .with_protocol_type(wire(group.protocol_type));
        let listed = if version >= 4 { listed.with_group_state(wire(group.state)) } else { listed };
        if version >= 5 { listed.with_group_type(wire(group.group_type.name())) } else { listed }
    });
    ListGroupsResponse::default().with_groups(groups.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response};
    use super::*;
    use crate::groups::GroupType;

    fn listed() -> Vec<Listed> {
        let group = |name: &str, state, group_type, protocol_type: &str| Listed {
            group: name.into(),
            state,
            group_type,
            protocol_type: protocol_type.into(),
        };
        vec![
            group("a", "Stable", GroupType::Classic, "consumer"),
            group("b", "Empty", GroupType::Classic, ""),
            group("c", "Assigning", GroupType::Consumer, "consumer"),
        ]
    }

    #[test]
    fn every_version_round_trips() {
        for version in 0..=5 {
            let sent = request(ListGroupsRequest::default(), version, 3);
            let read = response(respond(version, &sent, Ok(listed()), |_| true), version);
            assert_eq!(read.groups.len(), 3);
            assert_eq!(read.groups[1].protocol_type.as_str(), "");
            assert_eq!(read.groups[0].group_state.as_str(), if version >= 4 { "Stable" } else { "" });
            assert_eq!(read.groups[0].group_type.as_str(), if version >= 5 { "classic" } else { "" });
            assert_eq!(read.groups[2].group_type.as_str(), if version >= 5 { "consumer" } else { "" });
            let read = response(respond(version, &sent, Err(GroupError::Loading), |_| true), version);
            assert_eq!(read.error_code, 14);
        }
    }

    #[test]
    fn filters_match_without_case_and_hidden_groups_are_left_out() {
        let names = |sent: ListGroupsRequest, may_see: fn(&str) -> bool| {
            let sent = request(sent, 5, 3);
            let read = response(respond(5, &sent, Ok(listed()), may_see), 5);
            read.groups.iter().map(|g| g.group_id.to_string()).collect::<Vec<_>>()
        };
        let all = ListGroupsRequest::default();
        assert_eq!(names(all.clone().with_states_filter(vec![wire("EMPTY")]), |_| true), vec!["b"]);
        assert_eq!(names(all.clone().with_types_filter(vec![wire("Classic")]), |_| true), vec!["a", "b"]);
        assert_eq!(names(all.clone().with_types_filter(vec![wire("CONSUMER")]), |_| true), vec!["c"]);
        assert_eq!(names(all.clone().with_states_filter(vec![wire("assigning")]), |_| true), vec!["c"]);
        assert!(names(all.clone().with_types_filter(vec![wire("share")]), |_| true).is_empty());
        assert_eq!(names(all, |group| group == "a"), vec!["a"]);
    }
}
