//! OffsetDelete (47), version 0 (KIP-496).

use super::words::{GROUP_DENIED, TOPIC_DENIED, UNKNOWN_TOPIC, client_topic};
use super::{Context, Operation, Resource};
use crate::groups::{GroupError, Key};
use crate::protocol::dispatch::Close;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use rangeway_core::api::Catalog;

/// Deletes offsets of topics that nobody in the group consumes.
pub async fn handle(context: Context, request: OffsetDeleteRequest) -> Result<OffsetDeleteResponse, Close> {
    if !context.authorize(Operation::Delete, Resource::Group(&request.group_id)) {
        return Ok(OffsetDeleteResponse::default().with_error_code(GROUP_DENIED));
    }
    let may_read = |topic: &str| context.authorize(Operation::Read, Resource::Topic(topic));
    let places = place(&context.api.catalog(), &request, may_read);
    let known = places.iter().filter_map(|place| place.clone().ok()).collect();
    let answers = context.shared.groups.delete_offsets(request.group_id.to_string(), known).await;
    Ok(answer(&request, &places, answers))
}

/// Where each partition of the request is kept, in order, with its topic's name; or a code at once.
fn place(
    catalog: &Catalog,
    request: &OffsetDeleteRequest,
    may_read: impl Fn(&str) -> bool,
) -> Vec<Result<(Key, String), i16>> {
    let mut places = Vec::new();
    for topic in &request.topics {
        let found = client_topic(catalog, &topic.name);
        let allowed = may_read(&topic.name);
        places.extend(topic.partitions.iter().map(|partition| match found {
            _ if !allowed => Err(TOPIC_DENIED),
            Some(view) if (0..view.partitions).contains(&partition.partition_index) => {
                Ok(((view.id, partition.partition_index), topic.name.to_string()))
            }
            _ => Err(UNKNOWN_TOPIC),
        }));
    }
    places
}

fn answer(
    request: &OffsetDeleteRequest,
    places: &[Result<(Key, String), i16>],
    answers: Result<Vec<Result<(), GroupError>>, GroupError>,
) -> OffsetDeleteResponse {
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let (mut places, mut answers) = (places.iter(), answers.into_iter());
    let mut code = || match places.next() {
        Some(Ok(_)) => answers.next().map_or(0, |answer| answer.err().map_or(0, GroupError::code)),
        Some(Err(code)) => *code,
        None => UNKNOWN_TOPIC,
    };
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetDeleteResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code())
        });
        OffsetDeleteResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{catalog, request, response, topic_id};
    use super::super::words::wire;
    use super::*;
    use kafka_protocol::messages::offset_delete_request::{
        OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
    };
    use kafka_protocol::messages::{GroupId, TopicName};

    #[test]
    fn version_0_round_trips_with_a_code_per_partition() {
        let partition = |n| OffsetDeleteRequestPartition::default().with_partition_index(n);
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(TopicName(wire("t")))
            .with_partitions(vec![partition(0), partition(7), partition(1)]);
        let sent = OffsetDeleteRequest::default().with_group_id(GroupId(wire("g"))).with_topics(vec![topic]);
        let sent = request(sent, 0, i16::MAX);
        let places = place(&catalog(&[("t", 2)]), &sent, |_| true);
        assert_eq!(places[2], Ok(((topic_id("t"), 1), "t".to_owned())));
        let answers = Ok(vec![Ok(()), Err(GroupError::SubscribedToTopic)]);
        let read = response(answer(&sent, &places, answers), 0);
        let codes: Vec<i16> = read.topics[0].partitions.iter().map(|p| p.error_code).collect();
        assert_eq!((read.error_code, codes), (0, vec![0, 3, 86]));
        let read = response(answer(&sent, &places, Err(GroupError::GroupNotFound)), 0);
        assert_eq!((read.error_code, read.topics.len()), (69, 0));
    }
}
