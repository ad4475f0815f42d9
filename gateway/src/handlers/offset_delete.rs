//! OffsetDelete (47), version 0 (KIP-496).

use super::words::GROUP_DENIED;
use super::{Context, Operation, Resource, places};
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
    let known = known(&request, &places);
    let answers = context.shared.groups.delete_offsets(request.group_id.to_string(), known).await;
    Ok(answer(&request, &places, answers))
}

/// What of the request is kept somewhere, with its topic's name.
fn known(request: &OffsetDeleteRequest, places: &[Result<Key, i16>]) -> Vec<(Key, String)> {
    let names =
        request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|_| topic.name.to_string()));
    places.iter().zip(names).filter_map(|(place, name)| Some(((*place).ok()?, name))).collect()
}

/// Where each partition of the request is kept, in order; or a code at once.
fn place(
    catalog: &Catalog,
    request: &OffsetDeleteRequest,
    may_read: impl Fn(&str) -> bool,
) -> Vec<Result<Key, i16>> {
    let topics = request.topics.iter();
    let topics =
        topics.map(|t| (t.name.as_str(), t.partitions.iter().map(|partition| partition.partition_index)));
    places::find(catalog, topics, may_read)
}

fn answer(
    request: &OffsetDeleteRequest,
    places: &[Result<Key, i16>],
    answers: Result<Vec<Result<(), GroupError>>, GroupError>,
) -> OffsetDeleteResponse {
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => return OffsetDeleteResponse::default().with_error_code(error.code()),
    };
    let mut code = places::codes(places, Ok(answers));
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
        let kept = [0, 1].map(|n| ((topic_id("t"), n), "t".to_owned()));
        assert_eq!(known(&sent, &places), kept);
        let answers = Ok(vec![Ok(()), Err(GroupError::SubscribedToTopic)]);
        let read = response(answer(&sent, &places, answers), 0);
        let codes: Vec<i16> = read.topics[0].partitions.iter().map(|p| p.error_code).collect();
        assert_eq!((read.error_code, codes), (0, vec![0, 3, 86]));
        let read = response(answer(&sent, &places, Err(GroupError::GroupNotFound)), 0);
        assert_eq!((read.error_code, read.topics.len()), (69, 0));
    }
}
