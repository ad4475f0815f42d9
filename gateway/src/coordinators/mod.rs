//! One coordinator per partition of an internal topic: the topic is made when something has to be stored for the first
//! time, a partition is loaded at its first use, and all end together.

mod hash;

pub(crate) use hash::{PARTITIONS, partition_of};

use futures_util::future::join_all;
use parking_lot::Mutex;
use rangeway_core::api::{Api, Catalog, NewTopic, TopicView};
use rangeway_core::error::{TopicError, TopicPartition};
use rangeway_core::replicated::{ApiLog, Machine, Options, Partition, Together, Unavailable, Voice};
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
    /// It was logged that the topic of the name is not ours.
    refused: AtomicBool,
    /// What all of them say together.
    together: Arc<Together>,
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
        let creating = tokio::sync::Mutex::new(());
        let (stopped, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        let together = Together::of(kind.topic);
        Coordinators {
            inner: Arc::new(Inner { api, kind, slots, creating, stopped, refused, together }),
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

    /// Whether anything was ever stored. A topic of the name that is not the internal one counts: nothing is known then.
    pub(crate) fn topic_exists(&self) -> bool {
        self.inner.api.catalog().by_name.contains_key(self.inner.kind.topic)
    }

    /// What keeps them from working, in one line: a topic that is not ours, or what is stored cannot be loaded.
    pub(crate) fn blocked(&self) -> Vec<String> {
        let name = self.inner.kind.topic;
        let catalog = self.inner.api.catalog();
        if let Some(why) = catalog.by_name.get(name).and_then(|topic| not_ours(topic)) {
            return vec![why];
        }
        let failing = self.inner.slots.iter().enumerate().filter_map(|(number, slot)| {
            let why = slot.lock().as_ref()?.coordinator.failing()?;
            Some((number, why))
        });
        not_loaded(name, &failing.collect::<Vec<_>>()).into_iter().collect()
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
            let voice = Voice { together: self.together.clone(), partition: number };
            let options = Options { voice, ..Options::default() };
            let coordinator = Arc::new(Partition::start(log, self.kind.settings.clone(), options));
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
        let Some(why) = not_ours(topic) else { return Some(Ok(topic.id)) };
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::error!("blocked: {why}");
        }
        Some(Err(NoCoordinator::NotAvailable))
    }
}

/// Why a topic of an internal topic's name is not the one that the node made, and what to do; `None` when it is.
///
/// Such a one is never adopted: whoever made it may have had it lose what a coordinator needs, or write to it.
fn not_ours(topic: &TopicView) -> Option<String> {
    let (name, partitions) = (&topic.name, topic.partitions);
    match (topic.internal, partitions) {
        (true, PARTITIONS) => None,
        (true, _) => Some(format!(
            "topic '{name}' has {partitions} partitions instead of {PARTITIONS}: another version of the program made it, \
             run that one"
        )),
        (false, _) => Some(format!(
            "topic '{name}' was made by a client and is not the node's own, so that nothing is kept in it: delete it \
             (rangeway topics delete {name}), and the node makes its own when it needs it"
        )),
    }
}

/// What is said of partitions whose coordinators cannot be loaded, each with why; the first stands for all.
fn not_loaded(topic: &str, failing: &[(usize, String)]) -> Option<String> {
    let (number, why) = failing.first()?;
    Some(match failing.len() - 1 {
        0 => format!("topic '{topic}' partition {number}: its coordinator cannot be loaded: {why}"),
        more => format!(
            "topic '{topic}' partition {number} and {more} more of {PARTITIONS}: their coordinators cannot be loaded: {why}"
        ),
    })
}

/// What is kept lives as long as the topic: nothing of it goes by age or size, only below a snapshot.
fn new_topic(name: &str) -> NewTopic {
    let configs = [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")];
    let configs = configs.map(|(key, value)| (key.to_owned(), value.to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rangeway_core::types::GROUPS_TOPIC;
    use std::sync::Arc;

    #[test]
    fn coordinators_that_cannot_be_loaded_are_one_line() {
        let failing: Vec<(usize, String)> = (3..50).map(|n| (n, format!("why {n}"))).collect();
        assert_eq!(not_loaded("__groups", &[]), None);
        let one = "topic '__groups' partition 3: its coordinator cannot be loaded: why 3";
        assert_eq!(not_loaded("__groups", &failing[..1]).as_deref(), Some(one));
        let all =
            "topic '__groups' partition 3 and 46 more of 50: their coordinators cannot be loaded: why 3";
        assert_eq!(not_loaded("__groups", &failing).as_deref(), Some(all));
    }

    #[test]
    fn only_the_topic_that_the_node_made_is_ours() {
        let topic = |internal, partitions| TopicView {
            id: TopicId(uuid::Uuid::from_u128(1)),
            name: GROUPS_TOPIC.into(),
            partitions,
            configs: Arc::default(),
            config: Arc::default(),
            internal,
            derived_from: None,
            version: 1,
            replication_factor: 1,
            drive: rangeway_core::api::DriveExpr::Disk,
            ranges: Arc::from([]),
        };
        assert_eq!(not_ours(&topic(true, PARTITIONS)), None);
        for squatter in [topic(false, PARTITIONS), topic(false, 16)] {
            let why = not_ours(&squatter).unwrap();
            assert!(why.contains("rangeway topics delete __groups"), "{why}");
        }
        assert!(not_ours(&topic(true, 16)).is_some());
    }
}
