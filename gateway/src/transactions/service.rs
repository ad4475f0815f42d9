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
use crate::groups::{Groups, PARTITIONS, partition_of};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rangeway_core::api::{Api, Catalog, NewTopic};
use rangeway_core::error::{AppendError, TopicError, TopicPartition};
use rangeway_core::replicated::{ApiLog, Options, Partition};
use rangeway_core::types::{NodeId, TopicId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The internal topic that keeps transactions.
pub const TOPIC: &str = "__transactions";
/// An append that takes longer counts as of unknown outcome.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often expired transactional ids are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
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
    inner: Arc<Inner>,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inner {
    api: Api,
    settings: Settings,
    partitions: Vec<Mutex<Option<Running>>>,
    markers: Arc<NodeMarkers>,
    attempts: Arc<Semaphore>,
    creating: tokio::sync::Mutex<()>,
    stopped: AtomicBool,
}

/// One coordinator and what writes its markers.
#[derive(Debug)]
struct Running {
    coordinator: Arc<Partition<Coordinator>>,
    writer: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// What a transactional write needs to have been done with its partitions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// They were added before.
    Added,
    /// They are added by writing them.
    ByWriting,
}

/// How a batch was let in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LetIn {
    /// Its partition was known to be in the transaction.
    Known,
    /// The coordinator was asked: it may be the first of its transaction there.
    Asked,
}

impl Transactions {
    /// Nothing runs before the first question or [`Transactions::resume`].
    pub fn new(api: Api, groups: Arc<Groups>, settings: Settings) -> Transactions {
        let markers = NodeMarkers { api: api.clone(), groups, writers: Writers::default() };
        let inner = Inner {
            api,
            settings,
            partitions: (0..PARTITIONS).map(|_| Mutex::default()).collect(),
            markers: Arc::new(markers),
            attempts: Arc::new(Semaphore::new(ATTEMPTS_MAX)),
            creating: tokio::sync::Mutex::new(()),
            stopped: AtomicBool::new(false),
        };
        Transactions { inner: Arc::new(inner), sweeper: Mutex::new(None) }
    }

    /// Starts all coordinators if there is anything of a run before: what was decided is completed, what takes too long
    /// is aborted, whether its producer comes back or not.
    pub fn resume(&self) {
        let Some(Ok(topic)) = known(&self.inner.api.catalog()) else { return };
        for number in 0..PARTITIONS {
            if let Err(error) = self.inner.start(topic, number) {
                tracing::debug!(%error, number, "a transaction coordinator was not started");
            }
        }
        self.start_sweeper();
    }

    /// Ends all coordinators for good: what waits, and what comes, is answered that this is not the coordinator.
    pub async fn stop(&self) {
        self.inner.stopped.store(true, Ordering::Release);
        let sweeper = self.sweeper.lock().take();
        if let Some(sweeper) = sweeper {
            sweeper.abort();
        }
        let running: Vec<_> = self.inner.partitions.iter().filter_map(|slot| slot.lock().take()).collect();
        join_all(running.iter().map(|running| running.coordinator.stop())).await;
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
        if !self.inner.topic_exists() {
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
        if !self.inner.topic_exists() {
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
        if !self.inner.topic_exists() {
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
    ) -> (Admitted, Vec<Result<LetIn, TxnError>>) {
        let mut admitted = Admitted::default();
        let mut answers = vec![Ok(LetIn::Known); places.len()];
        let writers = &self.inner.markers.writers;
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
                        Ok(LetIn::Asked)
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
            let asking = self.inner.markers.writers.ask(producer.id, place);
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
        self.inner.markers.write_one(place, producer, commit, coordinator_epoch).await
    }

    /// DescribeTransactions, of one; `None` when it is not known.
    pub(crate) async fn describe(&self, id: String) -> Result<Option<Described>, TxnError> {
        if !self.inner.topic_exists() {
            return Ok(None);
        }
        match self.ask(&id.clone(), Ask::Describe { id }).await? {
            Answer::Describe(answer) => Ok(answer),
            _ => Err(TxnError::NotAvailable),
        }
    }

    /// ListTransactions: of all partitions.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, TxnError> {
        if !self.inner.topic_exists() {
            return Ok(Vec::new());
        }
        let answers = join_all((0..PARTITIONS).map(|n| self.ask_partition(n, Ask::List))).await;
        let mut all = Vec::new();
        for answer in answers {
            match answer? {
                Answer::List(listed) => all.extend(listed),
                _ => return Err(TxnError::NotAvailable),
            }
        }
        Ok(all)
    }

    async fn new_producer_id(&self) -> Result<i64, TxnError> {
        self.inner.api.new_producer_id().await.map_err(|error| {
            tracing::warn!(%error, "no producer id");
            TxnError::NotAvailable
        })
    }

    async fn ask(&self, id: &str, ask: Ask) -> Result<Answer, TxnError> {
        self.ask_partition(partition_of(id), ask).await
    }

    async fn ask_partition(&self, number: i32, ask: Ask) -> Result<Answer, TxnError> {
        let coordinator = self.inner.partition(number).await?;
        self.start_sweeper();
        Ok(coordinator.call(ask).await?)
    }

    fn start_sweeper(&self) {
        let mut sweeper = self.sweeper.lock();
        if sweeper.is_none() {
            *sweeper = Some(tokio::spawn(sweep(Arc::downgrade(&self.inner))));
        }
    }
}

impl Drop for Transactions {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.lock().take() {
            sweeper.abort();
        }
    }
}

impl Inner {
    fn topic_exists(&self) -> bool {
        self.api.catalog().by_name.contains_key(TOPIC)
    }

    /// The running coordinator of a partition; started if it is not.
    async fn partition(&self, number: i32) -> Result<Arc<Partition<Coordinator>>, TxnError> {
        let running = self.slot(number)?.lock().as_ref().map(|running| running.coordinator.clone());
        match running {
            Some(running) => Ok(running),
            None => self.start(self.topic().await?, number),
        }
    }

    fn slot(&self, number: i32) -> Result<&Mutex<Option<Running>>, TxnError> {
        let slot = usize::try_from(number).ok().and_then(|n| self.partitions.get(n));
        slot.ok_or(TxnError::NotCoordinator)
    }

    fn start(&self, topic: TopicId, number: i32) -> Result<Arc<Partition<Coordinator>>, TxnError> {
        let mut slot = self.slot(number)?.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(TxnError::NotCoordinator);
        }
        let running = slot.get_or_insert_with(|| {
            let at = TopicPartition { topic, partition: number };
            let log = ApiLog::new(self.api.clone(), at, APPEND_TIMEOUT);
            let coordinator = Partition::start(log, self.settings.clone(), Options::default());
            let coordinator = Arc::new(coordinator);
            let markers = Arc::new(CoordinatorMarkers { node: self.markers.clone(), coordinator: at });
            let writer = markers::run(coordinator.clone(), markers, self.attempts.clone());
            Running { coordinator, writer: tokio::spawn(writer) }
        });
        Ok(running.coordinator.clone())
    }

    /// The internal topic; made if it is not there.
    async fn topic(&self) -> Result<TopicId, TxnError> {
        let _one_at_a_time = self.creating.lock().await;
        if let Some(found) = known(&self.api.catalog()) {
            return found;
        }
        match self.api.create_topic(new_topic()).await {
            Ok(topic) => Ok(topic.id),
            Err(TopicError::Exists(_)) => known(&self.api.catalog()).unwrap_or(Err(TxnError::NotAvailable)),
            Err(error) => {
                tracing::warn!(%error, "the topic {TOPIC} cannot be made");
                Err(TxnError::NotAvailable)
            }
        }
    }
}

/// Transactions live as long as the topic: nothing of it goes by age or size, only below a snapshot.
fn new_topic() -> NewTopic {
    let configs = ["retention.ms", "retention.bytes"].map(|key| (key.to_owned(), "-1".to_owned()));
    NewTopic {
        name: TOPIC.to_owned(),
        partitions: Some(PARTITIONS),
        replication_factor: None,
        configs: BTreeMap::from(configs),
        internal: true,
        validate_only: false,
    }
}

fn known(catalog: &Catalog) -> Option<Result<TopicId, TxnError>> {
    let topic = catalog.by_name.get(TOPIC)?;
    if topic.partitions != PARTITIONS {
        tracing::error!(
            partitions = topic.partitions,
            "the topic {TOPIC} is not the one that keeps transactions"
        );
        return Some(Err(TxnError::NotAvailable));
    }
    Some(Ok(topic.id))
}

/// Asks the running coordinators now and then to forget what has expired.
async fn sweep(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let running =
            inner.partitions.iter().filter_map(|slot| Some(slot.lock().as_ref()?.coordinator.clone()));
        let running: Vec<_> = running.collect();
        for coordinator in running {
            if let Err(error) = coordinator.call(Ask::Sweep).await {
                tracing::debug!(%error, "a coordinator was not swept; it is at the next turn");
            }
        }
    }
}

/// Who leads the partition that keeps a transactional id; `None` while there is none.
pub(crate) fn leader_of(catalog: &Catalog, id: &str) -> Option<NodeId> {
    let topic = catalog.by_name.get(TOPIC)?;
    topic.leader(partition_of(id)).map(|(leader, _)| leader)
}
