//! Runs one coordinator per partition of the internal topic `__transactions` and leads each question to the right one.
//!
//! The topic is made when a transactional id is initialised for the first time; until then every id is unknown. When a
//! node starts, all its coordinators are loaded, since decided transactions of the run before have to be completed.

use super::ask::{Add, Answer, Ask, Described, End, Init, Listed, TxnError};
use super::coordinator::{Coordinator, Settings};
use super::markers::{self, ATTEMPTS_MAX};
use super::node_markers::{CoordinatorMarkers, NodeMarkers};
use super::record::{Place, Producer, Rules};
use super::writers::{Admitted, Writers};
use crate::coordinators::{self, Coordinators, Kind, partition_of};
use crate::groups::Groups;
use rangeway_core::api::{Api, Catalog};
use rangeway_core::error::AppendError;
use rangeway_core::types::{NodeId, TRANSACTIONS_TOPIC};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The internal topic that keeps transactions.
pub const TOPIC: &str = TRANSACTIONS_TOPIC;
/// How often, and after what pause, what meets the completing of the transaction before is tried again here before the
/// client is told to do so: markers take a few ms as a rule.
const CONCURRENT_TRIES: usize = 20;
const CONCURRENT_PAUSE: Duration = Duration::from_millis(5);

/// How often the coordinator is asked about a partition where a transaction ended meanwhile: as a rule it was the one before,
/// whose marker was on its way.
const ASK_TRIES: usize = 8;

/// The transaction coordinators of this node.
#[derive(Debug)]
pub struct Transactions {
    api: Api,
    markers: Arc<NodeMarkers>,
    coordinators: Coordinators<Coordinator>,
}

/// What a transactional write needs to have been done with its partitions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// They were added before.
    Added,
    /// They are added by writing them.
    ByWriting,
}

impl Transactions {
    /// Nothing runs before the first question or [`Transactions::resume`].
    pub fn new(api: Api, groups: Arc<Groups>, settings: Settings) -> Transactions {
        let markers = Arc::new(NodeMarkers { api: api.clone(), groups, writers: Writers::default() });
        let (node, attempts) = (markers.clone(), Arc::new(Semaphore::new(ATTEMPTS_MAX)));
        let writer = move |coordinator, at| {
            let markers = Arc::new(CoordinatorMarkers { node: node.clone(), coordinator: at });
            tokio::spawn(markers::run(coordinator, markers, attempts.clone()))
        };
        let sweep = |_: &Api| Ask::Sweep;
        let kind = Kind { topic: TOPIC, settings, sweep, beside: Some(Box::new(writer)) };
        Transactions { api: api.clone(), markers, coordinators: Coordinators::new(api, kind) }
    }

    /// Starts all coordinators if there is anything of a run before: what was decided is completed, what takes too long
    /// is aborted, whether its producer comes back or not.
    pub fn resume(&self) {
        self.coordinators.resume();
    }

    /// Ends all coordinators for good: what waits, and what comes, is answered that this is not the coordinator.
    pub async fn stop(&self) {
        self.coordinators.stop().await;
    }

    /// What keeps transactions from being coordinated here; empty when nothing does.
    pub fn blocked(&self) -> Vec<String> {
        self.coordinators.blocked()
    }

    /// InitProducerId with a transactional id.
    pub(crate) async fn init(&self, mut init: Init) -> Result<Producer, TxnError> {
        loop {
            match self.ask(&init.id.clone(), Ask::Init(init.clone())).await? {
                Answer::Init(answer) => return answer,
                Answer::NeedsProducerId if init.fresh_id.is_none() => {
                    init.fresh_id = Some(self.new_producer_id().await?);
                }
                _ => return Err(TxnError::NotAvailable),
            }
        }
    }

    /// AddPartitionsToTxn and AddOffsetsToTxn: the number of the transaction.
    pub(crate) async fn add(&self, add: Add) -> Result<u64, TxnError> {
        if !self.coordinators.topic_exists() {
            return Err(TxnError::UnknownProducerId);
        }
        let mut tries = 0;
        loop {
            let answer = match self.ask(&add.id.clone(), Ask::Add(add.clone())).await? {
                Answer::Add(answer) => answer,
                _ => Err(TxnError::NotAvailable),
            };
            tries += 1;
            if answer != Err(TxnError::Concurrent) || tries >= CONCURRENT_TRIES {
                return answer;
            }
            tokio::time::sleep(CONCURRENT_PAUSE).await;
        }
    }

    /// Whether each partition takes part, in order, and the number of the transaction.
    pub(crate) async fn verify(&self, add: Add) -> Result<(u64, Vec<Result<(), TxnError>>), TxnError> {
        if !self.coordinators.topic_exists() {
            return Err(TxnError::UnknownProducerId);
        }
        let places = add.places.clone();
        match self.ask(&add.id.clone(), Ask::Verify(add)).await? {
            Answer::Verify(answer) => answer.map(|verified| {
                let has = |place| verified.places.contains(place);
                let each = places.iter().map(|p| if has(p) { Ok(()) } else { Err(TxnError::NotAdded) });
                (verified.number, each.collect())
            }),
            _ => Err(TxnError::NotAvailable),
        }
    }

    /// EndTxn: who goes on.
    pub(crate) async fn end(&self, mut end: End) -> Result<Producer, TxnError> {
        if !self.coordinators.topic_exists() {
            return Err(TxnError::UnknownProducerId);
        }
        loop {
            match self.ask(&end.id.clone(), Ask::End(end.clone())).await? {
                Answer::End(answer) => return answer,
                Answer::NeedsProducerId if end.fresh_id.is_none() => {
                    end.fresh_id = Some(self.new_producer_id().await?);
                }
                _ => return Err(TxnError::NotAvailable),
            }
        }
    }

    /// Lets batches of a transaction in, one answer per partition in order. The coordinator is asked about those that are
    /// not known. What is answered with it is to be held until the outcome of the batches is known.
    pub(crate) async fn admit(
        &self,
        id: &str,
        producer: Producer,
        places: &[Place],
        admission: Admission,
    ) -> (Admitted, Vec<Result<(), TxnError>>) {
        let mut admitted = Admitted::default();
        let mut answers = vec![Ok(()); places.len()];
        let writers = &self.markers.writers;
        let mut unknown = Vec::new();
        for (n, place) in places.iter().enumerate() {
            match writers.enter(producer, *place) {
                Some(token) => admitted.hold(token),
                None => unknown.push((n, *place)),
            }
        }
        for _ in 0..ASK_TRIES {
            if unknown.is_empty() {
                break;
            }
            let asking: Vec<_> = unknown.iter().map(|(_, place)| writers.ask(producer.id, *place)).collect();
            let asked = unknown.iter().map(|(_, place)| *place).collect();
            let told = self.are_added(id, producer, asked, admission).await;
            let mut again = Vec::new();
            for ((n, place), (told, asking)) in unknown.into_iter().zip(told.into_iter().zip(asking)) {
                let answer = match told.map(|()| asking.confirm(producer.epoch)) {
                    Ok(Some(token)) => {
                        admitted.hold(token);
                        Ok(())
                    }
                    Ok(None) => {
                        again.push((n, place));
                        Err(TxnError::NotAdded)
                    }
                    Err(error) => Err(error),
                };
                if let Some(row) = answers.get_mut(n) {
                    *row = answer;
                }
            }
            unknown = again;
        }
        (admitted, answers)
    }

    /// The same for offsets of a group, in its partition of the groups' topic; and the number of the transaction.
    pub(crate) async fn admit_offsets(
        &self,
        id: &str,
        producer: Producer,
        place: Place,
        admission: Admission,
    ) -> Result<(Admitted, u64), TxnError> {
        let add = |rules| Add { id: id.to_owned(), producer, places: vec![place], rules };
        for _ in 0..ASK_TRIES {
            let asking = self.markers.writers.ask(producer.id, place);
            let number = match admission {
                Admission::Added => {
                    let (number, each) = self.verify(add(Rules::V1)).await?;
                    each.into_iter().collect::<Result<(), TxnError>>()?;
                    number
                }
                Admission::ByWriting => self.add(add(Rules::V2)).await?,
            };
            if let Some(token) = asking.confirm(producer.epoch) {
                let mut admitted = Admitted::default();
                admitted.hold(token);
                return Ok((admitted, number));
            }
        }
        Err(TxnError::NotAdded)
    }

    async fn are_added(
        &self,
        id: &str,
        producer: Producer,
        places: Vec<Place>,
        admission: Admission,
    ) -> Vec<Result<(), TxnError>> {
        let count = places.len();
        let add = |rules| Add { id: id.to_owned(), producer, places, rules };
        let told = match admission {
            Admission::Added => self.verify(add(Rules::V1)).await.map(|(_, each)| each),
            Admission::ByWriting => self.add(add(Rules::V2)).await.map(|_| vec![Ok(()); count]),
        };
        told.unwrap_or_else(|error| vec![Err(error); count])
    }

    /// WriteTxnMarkers, of one: ends what a producer has open in a partition, whichever transaction it is.
    pub(crate) async fn write_marker(
        &self,
        place: Place,
        producer: Producer,
        commit: bool,
        coordinator_epoch: i32,
    ) -> Result<(), AppendError> {
        self.markers.write_one(place, producer, commit, coordinator_epoch).await
    }

    /// DescribeTransactions, of one; `None` when it is not known.
    pub(crate) async fn describe(&self, id: String) -> Result<Option<Described>, TxnError> {
        if !self.coordinators.topic_exists() {
            return Ok(None);
        }
        match self.ask(&id.clone(), Ask::Describe { id }).await? {
            Answer::Describe(answer) => Ok(answer),
            _ => Err(TxnError::NotAvailable),
        }
    }

    /// ListTransactions: of all partitions.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, TxnError> {
        let mut all = Vec::new();
        for answer in self.coordinators.ask_all(|| Ask::List).await? {
            match answer {
                Answer::List(listed) => all.extend(listed),
                _ => return Err(TxnError::NotAvailable),
            }
        }
        Ok(all)
    }

    async fn new_producer_id(&self) -> Result<i64, TxnError> {
        self.api.new_producer_id().await.map_err(|error| {
            tracing::warn!(%error, "no producer id");
            TxnError::NotAvailable
        })
    }

    async fn ask(&self, id: &str, ask: Ask) -> Result<Answer, TxnError> {
        Ok(self.coordinators.ask(partition_of(id), ask).await?)
    }
}

/// Who leads the partition that keeps a transactional id; `None` while there is none.
pub(crate) fn leader_of(catalog: &Catalog, id: &str) -> Option<NodeId> {
    coordinators::leader_of(catalog, TOPIC, id)
}
