//! One coordinator per partition of an internal topic: the topic is made when something has to be stored for the first
//! time, a partition is loaded at its first use, and all end together.

mod hash;

pub(crate) use hash::{PARTITIONS, partition_of};

use futures_util::future::join_all;
use parking_lot::Mutex;
use rangeway_core::api::{Api, Catalog, NewTopic};
use rangeway_core::error::{TopicError, TopicPartition};
use rangeway_core::replicated::{ApiLog, Machine, Options, Partition, Unavailable};
use rangeway_core::types::{NodeId, TopicId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// An append that takes longer counts as of unknown outcome.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often what has expired is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// Why no coordinator answers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoCoordinator {
    /// It reads what is stored; until it has.
    Loading,
    /// It is not here or leaves; until it is looked for again.
    Elsewhere,
    /// The internal topic is not there and cannot be made, or is not ours; until somebody helps.
    NotAvailable,
}

impl From<Unavailable> for NoCoordinator {
    fn from(e: Unavailable) -> NoCoordinator {
        match e {
            Unavailable::Loading => NoCoordinator::Loading,
            Unavailable::NotLeader { .. }
            | Unavailable::Unknown
            | Unavailable::Storage(_)
            | Unavailable::Stopping => NoCoordinator::Elsewhere,
        }
    }
}

/// What a kind of coordinator is made of.
pub(crate) struct Kind<M: Machine> {
    /// The internal topic.
    pub topic: &'static str,
    /// What each machine is made with.
    pub settings: M::Settings,
    /// Asked now and then of each coordinator that runs, so that it drops what has expired.
    pub sweep: fn(&Api) -> M::Event,
    /// What runs beside a coordinator as long as it does.
    pub beside: Option<Beside<M>>,
}

/// Starts what runs beside the coordinator of a partition.
pub(crate) type Beside<M> = Box<dyn Fn(Arc<Partition<M>>, TopicPartition) -> JoinHandle<()> + Send + Sync>;

/// The coordinators of one internal topic on this node.
pub(crate) struct Coordinators<M: Machine> {
    inner: Arc<Inner<M>>,
    sweeper: Mutex<Option<JoinHandle<()>>>,
}

struct Inner<M: Machine> {
    api: Api,
    kind: Kind<M>,
    slots: Vec<Mutex<Option<Running<M>>>>,
    creating: tokio::sync::Mutex<()>,
    stopped: AtomicBool,
}

struct Running<M: Machine> {
    coordinator: Arc<Partition<M>>,
    beside: Option<JoinHandle<()>>,
}

impl<M: Machine> Drop for Running<M> {
    fn drop(&mut self) {
        if let Some(beside) = self.beside.take() {
            beside.abort();
        }
    }
}

impl<M: Machine> std::fmt::Debug for Coordinators<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coordinators({})", self.inner.kind.topic)
    }
}

impl<M: Machine> Coordinators<M> {
    /// Nothing runs before the first question or [`Coordinators::resume`].
    pub(crate) fn new(api: Api, kind: Kind<M>) -> Coordinators<M> {
        let slots = (0..PARTITIONS).map(|_| Mutex::default()).collect();
        let (creating, stopped) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        Coordinators {
            inner: Arc::new(Inner { api, kind, slots, creating, stopped }),
            sweeper: Mutex::default(),
        }
    }

    /// Starts all coordinators if there is anything of a run before.
    pub(crate) fn resume(&self) {
        let Some(Ok(topic)) = self.inner.known(&self.inner.api.catalog()) else { return };
        for number in 0..PARTITIONS {
            if let Err(error) = self.inner.start(topic, number) {
                tracing::debug!(
                    topic = self.inner.kind.topic,
                    ?error,
                    number,
                    "a coordinator was not started"
                );
            }
        }
        self.start_sweeper();
    }

    /// Ends all coordinators for good: what waits, and what comes, is answered that this is not the coordinator.
    pub(crate) async fn stop(&self) {
        self.inner.stopped.store(true, Ordering::Release);
        self.abort_sweeper();
        let running: Vec<_> = self.inner.slots.iter().filter_map(|slot| slot.lock().take()).collect();
        join_all(running.iter().map(|running| running.coordinator.stop())).await;
    }

    /// Whether anything was ever stored.
    pub(crate) fn topic_exists(&self) -> bool {
        self.inner.api.catalog().by_name.contains_key(self.inner.kind.topic)
    }

    /// The partition that keeps `id`; the topic is made if it is not there.
    pub(crate) async fn place(&self, id: &str) -> Result<TopicPartition, NoCoordinator> {
        Ok(TopicPartition { topic: self.inner.topic().await?, partition: partition_of(id) })
    }

    /// Asks the coordinator of a partition, which is started if it does not run.
    pub(crate) async fn ask(&self, number: i32, event: M::Event) -> Result<M::Reply, NoCoordinator> {
        let coordinator = self.inner.partition(number).await?;
        self.start_sweeper();
        Ok(coordinator.call(event).await?)
    }

    /// Asks all coordinators the same; nobody while nothing was ever stored.
    pub(crate) async fn ask_all(&self, event: impl Fn() -> M::Event) -> Result<Vec<M::Reply>, NoCoordinator> {
        if !self.topic_exists() {
            return Ok(Vec::new());
        }
        let answers = join_all((0..PARTITIONS).map(|number| self.ask(number, event()))).await;
        answers.into_iter().collect()
    }

    fn start_sweeper(&self) {
        let start = || tokio::spawn(sweep(Arc::downgrade(&self.inner)));
        self.sweeper.lock().get_or_insert_with(start);
    }

    fn abort_sweeper(&self) {
        if let Some(sweeper) = self.sweeper.lock().take() {
            sweeper.abort();
        }
    }
}

impl<M: Machine> Drop for Coordinators<M> {
    fn drop(&mut self) {
        self.abort_sweeper();
    }
}

impl<M: Machine> Inner<M> {
    async fn partition(&self, number: i32) -> Result<Arc<Partition<M>>, NoCoordinator> {
        let running = self.slot(number)?.lock().as_ref().map(|running| running.coordinator.clone());
        match running {
            Some(running) => Ok(running),
            None => self.start(self.topic().await?, number),
        }
    }

    fn slot(&self, number: i32) -> Result<&Mutex<Option<Running<M>>>, NoCoordinator> {
        let slot = usize::try_from(number).ok().and_then(|n| self.slots.get(n));
        slot.ok_or(NoCoordinator::Elsewhere)
    }

    fn start(&self, topic: TopicId, number: i32) -> Result<Arc<Partition<M>>, NoCoordinator> {
        let mut slot = self.slot(number)?.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(NoCoordinator::Elsewhere);
        }
        let running = slot.get_or_insert_with(|| {
            let at = TopicPartition { topic, partition: number };
            let log = ApiLog::new(self.api.clone(), at, APPEND_TIMEOUT);
            let coordinator = Arc::new(Partition::start(log, self.kind.settings.clone(), Options::default()));
            let beside = self.kind.beside.as_ref().map(|start| start(coordinator.clone(), at));
            Running { coordinator, beside }
        });
        Ok(running.coordinator.clone())
    }

    /// The internal topic; made if it is not there.
    async fn topic(&self) -> Result<TopicId, NoCoordinator> {
        let _one_at_a_time = self.creating.lock().await;
        if let Some(found) = self.known(&self.api.catalog()) {
            return found;
        }
        match self.api.create_topic(new_topic(self.kind.topic)).await {
            Ok(topic) => Ok(topic.id),
            Err(TopicError::Exists(_)) => {
                self.known(&self.api.catalog()).unwrap_or(Err(NoCoordinator::NotAvailable))
            }
            Err(error) => {
                tracing::warn!(topic = self.kind.topic, %error, "the internal topic cannot be made");
                Err(NoCoordinator::NotAvailable)
            }
        }
    }

    fn known(&self, catalog: &Catalog) -> Option<Result<TopicId, NoCoordinator>> {
        let topic = catalog.by_name.get(self.kind.topic)?;
        if topic.partitions != PARTITIONS {
            tracing::error!(
                topic = self.kind.topic,
                partitions = topic.partitions,
                "a topic of the name is there and not the internal one, which has {PARTITIONS} partitions"
            );
            return Some(Err(NoCoordinator::NotAvailable));
        }
        Some(Ok(topic.id))
    }
}

/// What is kept lives as long as the topic: nothing of it goes by age or size, only below a snapshot.
fn new_topic(name: &str) -> NewTopic {
    let configs = ["retention.ms", "retention.bytes"].map(|key| (key.to_owned(), "-1".to_owned()));
    NewTopic {
        name: name.to_owned(),
        partitions: Some(PARTITIONS),
        replication_factor: None,
        configs: BTreeMap::from(configs),
        internal: true,
        validate_only: false,
    }
}

async fn sweep<M: Machine>(inner: Weak<Inner<M>>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        let running = inner.slots.iter().filter_map(|slot| Some(slot.lock().as_ref()?.coordinator.clone()));
        let running: Vec<_> = running.collect();
        for coordinator in running {
            if let Err(error) = coordinator.call((inner.kind.sweep)(&inner.api)).await {
                tracing::debug!(%error, "a coordinator was not swept; it is at the next turn");
            }
        }
    }
}

/// Who leads the partition of an internal topic that keeps `id`; `None` while there is none.
pub(crate) fn leader_of(catalog: &Catalog, topic: &str, id: &str) -> Option<NodeId> {
    let topic = catalog.by_name.get(topic)?;
    topic.leader(partition_of(id)).map(|(leader, _)| leader)
}
