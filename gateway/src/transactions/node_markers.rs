//! Markers of a node's coordinators: to the ranges' logs, and to the groups' machines for offsets.

use super::markers::{Attempt, Marker, Markers};
use super::record::{Place, Producer, Rules, at};
use super::writers::Writers;
use crate::groups::{self, Ended, Groups};
use rangeway_core::api::{self, Api, TransactionVersion};
use rangeway_core::error::{AppendError, TopicPartition};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An attempt that takes longer is made again.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of a marker that is of no particular transaction.
const NO_NUMBER: u64 = 0;

/// What writing markers needs of the node.
#[derive(Debug)]
pub(super) struct NodeMarkers {
    pub(super) api: Api,
    pub(super) groups: Arc<Groups>,
    pub(super) writers: Writers,
}

/// The same for one coordinator, whose leader epoch its markers carry.
pub(super) struct CoordinatorMarkers {
    pub(super) node: Arc<NodeMarkers>,
    pub(super) coordinator: TopicPartition,
}

impl Markers for CoordinatorMarkers {
    async fn write(&self, place: Place, marker: Marker) -> Attempt {
        let coordinator_epoch = match self.node.api.offsets(self.coordinator) {
            Ok(offsets) => offsets.leader_epoch,
            Err(error) => return Attempt::Failed(error.to_string()),
        };
        self.node.write(place, marker, coordinator_epoch).await
    }
}

impl NodeMarkers {
    /// One attempt, behind everything that was let in for the transaction.
    pub(super) async fn write(&self, place: Place, marker: Marker, coordinator_epoch: i32) -> Attempt {
        let let_in = self.writers.end(marker.producer.id, place);
        let catalog = self.api.catalog();
        let Some(topic) = catalog.by_id.get(&place.0) else { return Attempt::Gone };
        if let (Some(let_in), Rules::V1) = (let_in, marker.rules) {
            // At most as long as an append may wait. By rules 2 the raised epoch keeps them from being stored behind.
            let_in.wait().await;
        }
        let Marker { producer, number, commit, .. } = marker;
        if &*topic.name == groups::TOPIC {
            let ended = Ended { producer_id: producer.id, number, commit };
            return match self.groups.end_transaction(place.1, ended).await {
                Ok(()) => Attempt::Written,
                Err(error) => Attempt::Failed(error.to_string()),
            };
        }
        match self.append(place, marker, coordinator_epoch).await {
            Ok(()) => Attempt::Written,
            // Deleted since the catalog was looked at.
            Err(AppendError::UnknownPartition) if !self.api.catalog().by_id.contains_key(&place.0) => {
                Attempt::Gone
            }
            // A marker of a higher epoch, as an operator may write one, has ended it.
            Err(AppendError::ProducerFenced { got, current }) => {
                tracing::warn!(topic = %topic.name, partition = place.1, got, current, "a transaction was ended before");
                Attempt::Written
            }
            Err(error) => Attempt::Failed(error.to_string()),
        }
    }

    /// A marker without a number: it ends whatever is open.
    pub(super) async fn write_one(
        &self,
        place: Place,
        producer: Producer,
        commit: bool,
        coordinator_epoch: i32,
    ) -> Result<(), AppendError> {
        if let Some(let_in) = self.writers.end(producer.id, place) {
            let_in.wait().await;
        }
        let marker = Marker { producer, number: NO_NUMBER, commit, rules: Rules::V1 };
        self.append(place, marker, coordinator_epoch).await
    }

    async fn append(&self, place: Place, marker: Marker, coordinator_epoch: i32) -> Result<(), AppendError> {
        let Marker { producer, number, commit, rules } = marker;
        let marker = api::Marker {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            coordinator_epoch,
            number,
            commit,
            version: match rules {
                Rules::V1 => TransactionVersion::V1,
                Rules::V2 => TransactionVersion::V2,
            },
        };
        self.api.write_marker(at(place), marker, Instant::now() + ATTEMPT_TIMEOUT).await
    }
}
