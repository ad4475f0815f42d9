//! ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848). v1: members' types.

use super::describe_groups::operations;
use super::words::{GROUP_DENIED, wire, wire_optional};
use super::{Context, Operation, Resource};
use crate::groups::{Absent, DescribedConsumer, DescribedConsumers, GroupError, NamedPartitions};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, GroupId, TopicName,
};

/// `member_type` of a member of the classic protocol, and of the consumer protocol.
const TYPE_CLASSIC: i8 = 0;
const TYPE_CONSUMER: i8 = 1;

/// Describes groups one by one.
pub async fn handle(
    context: Context,
    request: ConsumerGroupDescribeRequest,
) -> Result<ConsumerGroupDescribeResponse, Close> {
    let mut groups = Vec::with_capacity(request.group_ids.len());
    for group in request.group_ids {
        if !context.authorize(Operation::Describe, Resource::Group(&group)) {
            groups.push(DescribedGroup::default().with_group_id(group).with_error_code(GROUP_DENIED));
            continue;
        }
        let described = context.shared.groups.describe_consumers(group.to_string()).await;
        let mut answer = respond(context.version, group, described);
        if request.include_authorized_operations {
            answer.authorized_operations = operations(&context, &answer.group_id);
        }
        groups.push(answer);
    }
    Ok(ConsumerGroupDescribeResponse::default().with_groups(groups))
}

fn respond(
    version: i16,
    group: GroupId,
    described: Result<Result<DescribedConsumers, Absent>, GroupError>,
) -> DescribedGroup {
    let described = match described {
        Ok(Ok(described)) => described,
        Ok(Err(absent)) => {
            let text = match absent {
                Absent::NotFound => format!("Group {} not found.", group.0),
                Absent::OtherType => format!("Group {} is not a consumer group.", group.0),
            };
            return DescribedGroup::default()
                .with_group_id(group)
                .with_error_code(GroupError::GroupNotFound.code())
                .with_error_message(Some(wire(text)));
        }
        Err(error) => return DescribedGroup::default().with_group_id(group).with_error_code(error.code()),
    };
    DescribedGroup::default()
        .with_group_id(group)
        .with_group_state(wire(described.state.name()))
        .with_group_epoch(described.epoch)
        .with_assignment_epoch(described.target_epoch)
        .with_assignor_name(wire(described.assignor))
        .with_members(described.members.into_iter().map(|m| member(version, m)).collect())
}

fn member(version: i16, member: DescribedConsumer) -> Member {
    let topics = member.topics.into_iter().map(|name| TopicName(wire(name)));
    let kind = if member.is_classic { TYPE_CLASSIC } else { TYPE_CONSUMER };
    Member::default()
        .with_member_id(wire(member.member_id))
        .with_instance_id(wire_optional(member.instance_id))
        .with_rack_id(wire_optional(member.rack_id))
        .with_member_epoch(member.epoch)
        .with_client_id(wire(member.client_id))
        .with_client_host(wire(member.client_host))
        .with_subscribed_topic_names(topics.collect())
        .with_subscribed_topic_regex(Some(wire(member.regex.unwrap_or_default())))
        .with_assignment(assignment(member.assigned))
        .with_target_assignment(assignment(member.target))
        .with_member_type(if version >= 1 { kind } else { -1 })
}

fn assignment(partitions: Vec<NamedPartitions>) -> Assignment {
    let topics = partitions.into_iter().map(|topic| {
        TopicPartitions::default()
            .with_topic_id(topic.id.0)
            .with_topic_name(TopicName(wire(topic.name)))
            .with_partitions(topic.partitions)
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{request, response, topic_id};
    use super::*;
    use crate::groups::ConsumerState;

    #[test]
    fn every_version_round_trips() {
        for version in 0..=1 {
            let sent = ConsumerGroupDescribeRequest::default()
                .with_group_ids(vec![GroupId(wire("g"))])
                .with_include_authorized_operations(true);
            assert_eq!(request(sent.clone(), version, 0), sent);
            let has = |partitions: &[i32]| {
                vec![NamedPartitions { id: topic_id("t"), name: "t".into(), partitions: partitions.to_vec() }]
            };
            let described = DescribedConsumers {
                state: ConsumerState::Reconciling,
                epoch: 4,
                target_epoch: 3,
                assignor: "range-scoped",
                members: vec![DescribedConsumer {
                    member_id: "m".into(),
                    instance_id: Some("i".into()),
                    rack_id: None,
                    epoch: 2,
                    client_id: "c".into(),
                    client_host: "/127.0.0.1".into(),
                    topics: vec!["t".into()],
                    regex: Some("t.*".into()),
                    assigned: has(&[0]),
                    target: has(&[0, 1]),
                    is_classic: false,
                }],
            };
            let groups = vec![
                respond(version, GroupId(wire("g")), Ok(Ok(described))),
                respond(version, GroupId(wire("absent")), Ok(Err(Absent::NotFound))),
                respond(version, GroupId(wire("classic")), Ok(Err(Absent::OtherType))),
                respond(version, GroupId(wire("away")), Err(GroupError::NotCoordinator)),
            ];
            let read = response(ConsumerGroupDescribeResponse::default().with_groups(groups), version);
            let group = &read.groups[0];
            assert_eq!(
                (group.group_state.as_str(), group.group_epoch, group.assignment_epoch),
                ("Reconciling", 4, 3)
            );
            let member = &group.members[0];
            assert_eq!(member.member_type, if version >= 1 { 1 } else { -1 });
            assert_eq!(member.assignment.topic_partitions[0].partitions, vec![0]);
            assert_eq!(member.target_assignment.topic_partitions[0].partitions, vec![0, 1]);
            let texts: Vec<_> = read.groups.iter().map(|g| (g.error_code, g.error_message.clone())).collect();
            assert_eq!(texts[1], (69, Some(wire("Group absent not found."))));
            assert_eq!(texts[2], (69, Some(wire("Group classic is not a consumer group."))));
            assert_eq!(texts[3], (16, None));
        }
    }
}
