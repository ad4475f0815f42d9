//! What the Rust client can ask of a cluster besides, and a compacted topic.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::{CLASSIC, PATIENCE, Row, Suite, take};

const KEYS: usize = 10;

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for an answer, which librdkafka gives up by itself.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    let (mut answer, waker) = (pin!(answer), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

impl Suite {
    fn administrator(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().unwrap()
    }

    fn options() -> AdminOptions {
        AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE))
    }

    fn create_with(&self, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let new = configs.iter().fold(new, |new, (key, value)| new.set(key, value));
        wait(self.administrator().create_topics([&new], &Self::options())).unwrap().remove(0).unwrap();
        until("the topic is known", || self.partitions(topic) == partitions as usize);
    }

    /// How many partitions a topic has, none when there is no such topic.
    fn partitions(&self, topic: &str) -> usize {
        let metadata = self.consumer("unused", &CLASSIC).fetch_metadata(None, PATIENCE).unwrap();
        metadata.topics().iter().find(|t| t.name() == topic).map_or(0, |t| t.partitions().len())
    }

    pub(super) fn admin(&self) {
        let admin = self.administrator();
        self.create_with("admin", 2, &[]);
        let grown = NewPartitions::new("admin", 5);
        wait(admin.create_partitions([&grown], &Self::options())).unwrap().remove(0).unwrap();
        until("five partitions", || self.partitions("admin") == 5);
        let rows: Vec<Row> = (0..10).map(|i| self.made(i)).collect();
        self.produce("admin", 0, "none", &rows);
        let mut before = TopicPartitionList::new();
        before.add_partition_offset("admin", 0, Offset::Offset(4)).unwrap();
        let deleted = wait(admin.delete_records(&before, &Self::options())).unwrap();
        assert_eq!(deleted.find_partition("admin", 0).unwrap().offset(), Offset::Offset(4));
        let watermarks = self.consumer("unused", &CLASSIC).fetch_watermarks("admin", 0, PATIENCE);
        assert_eq!(watermarks.unwrap(), (4, 10));
        assert_eq!(self.read("admin", 6, 4), (4..10).map(|i| (i, self.made(i))).collect::<Vec<_>>());
        wait(admin.delete_topics(&["admin"], &Self::options())).unwrap().remove(0).unwrap();
        until("the topic is gone", || self.partitions("admin") == 0);
    }

    pub(super) fn admin_configs(&self) {
        let admin = self.administrator();
        self.create_with("configs", 1, &[("retention.ms", "3600000")]);
        let value = |name: &str| {
            let topic = ResourceSpecifier::Topic("configs");
            let found = wait(admin.describe_configs([&topic], &Self::options())).unwrap().remove(0).unwrap();
            found.get(name).and_then(|entry| entry.value.clone()).unwrap()
        };
        assert_eq!(value("retention.ms"), "3600000");
        assert_eq!(value("cleanup.policy"), "delete");
        let change =
            AlterConfig::new(ResourceSpecifier::Topic("configs")).set("max.message.bytes", "2000000");
        wait(admin.alter_configs([&change], &Self::options())).unwrap().remove(0).unwrap();
        until("the config is altered", || value("max.message.bytes") == "2000000");
        // What this call does not name goes back to its default.
        assert_eq!(value("retention.ms"), "604800000");
    }

    pub(super) fn admin_groups(&self) {
        self.fill("groups", 1);
        let state = || {
            let all = self.consumer("unused", &CLASSIC).fetch_group_list(Some("groups"), PATIENCE).unwrap();
            all.groups().iter().map(|g| (g.state().to_owned(), g.members().len())).collect::<Vec<_>>()
        };
        let reader = self.consumer("groups", &CLASSIC);
        reader.subscribe(&["groups"]).unwrap();
        take(&reader, 100);
        reader.commit_consumer_state(CommitMode::Sync).unwrap();
        assert_eq!(state(), [("Stable".to_owned(), 1)]);
        drop(reader);
        until("the group is empty", || state() == [("Empty".to_owned(), 0)]);
        let mut asked = TopicPartitionList::new();
        asked.add_partition("groups", 0);
        let reader: BaseConsumer = self.consumer("groups", &CLASSIC);
        let committed = reader.committed_offsets(asked, PATIENCE).unwrap();
        assert_eq!(committed.find_partition("groups", 0).unwrap().offset(), Offset::Offset(100));
        drop(reader);
        wait(self.administrator().delete_groups(&["groups"], &Self::options())).unwrap().remove(0).unwrap();
        assert_eq!(state(), [], "the deleted group is listed");
    }

    /// Of each of ten keys thirty records; the newest of one key is a tombstone.
    fn superseded() -> Vec<Row> {
        (0..30 * KEYS)
            .map(|n| Row {
                key: Some(format!("k{}", n % KEYS).into_bytes()),
                value: (n != 30 * KEYS - 4).then(|| format!("value {n}").into_bytes()),
                headers: Vec::new(),
                timestamp_ms: None,
            })
            .collect()
    }

    pub(super) fn compaction_begins(&self) {
        let configs =
            [("cleanup.policy", "compact"), ("segment.ms", "500"), ("min.cleanable.dirty.ratio", "0.01")];
        self.create_with("compacted", 1, &configs);
        self.produce("compacted", 0, "none", &Self::superseded());
    }

    /// Only the newest record of each key is left in the end, where it was.
    pub(super) fn compacted(&self) {
        let newest: Vec<(i64, Row)> = (0..).zip(Self::superseded()).skip(29 * KEYS).collect();
        let roll = Row {
            key: Some(b"roll".to_vec()),
            value: Some(Vec::new()),
            headers: Vec::new(),
            timestamp_ms: None,
        };
        until("only the newest of each key is left", || {
            thread::sleep(Duration::from_millis(500));
            // With it the segment before closes.
            self.produce("compacted", 0, "none", std::slice::from_ref(&roll));
            let mut left = self.rows("compacted", "read_uncommitted");
            left.retain(|(_, row)| row.key != roll.key);
            left.iter_mut().for_each(|(_, row)| row.timestamp_ms = None);
            assert_eq!(left[left.len() - KEYS..], newest);
            left.len() == KEYS
        });
    }
}
