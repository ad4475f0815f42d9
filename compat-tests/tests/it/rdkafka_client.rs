//! The Rust client on librdkafka, in this process.

mod admin;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rangeway_compat_tests::broker::{Broker, Kind};
use rangeway_compat_tests::suite::{Report, amid_reshards, broker, settle};
use rangeway_compat_tests::wire::Connection;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientContext, util::Timeout};

const RECORDS: i64 = 400;
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn rdkafka_passes_its_lines() {
    let kind = Kind::from_env();
    let mut suite = Suite { broker: broker(kind).unwrap(), began_ms: now_ms(), report: Report::default() };
    amid_reshards(suite.broker.http_address(), || {
        run_lines(&mut suite);
        Ok(())
    })
    .unwrap();
    settle("rdkafka", kind, &suite.report).unwrap();
    suite.broker.stop().unwrap();
}

fn run_lines(suite: &mut Suite) {
    suite.compaction_begins();
    for codec in CODECS {
        suite.line(&format!("produce-consume-{codec}"), |suite| suite.codec(codec));
    }
    suite.line("consume-from-offset", |suite| {
        let got = suite.read("gzip", RECORDS - 123, 123);
        assert_eq!(got.first(), Some(&(123, suite.made(123))));
    });
    suite.line("consume-from-time", Suite::reads_from_a_time);
    suite.line("group-rest-after-consumer-restart", |suite| suite.group_rest("rest", &CLASSIC, |_| {}));
    suite.line("group-rest-after-broker-restart", |suite| {
        suite.group_rest("broker", &CLASSIC, |broker| {
            broker.stop().unwrap();
            broker.restart().unwrap();
        });
    });
    suite.line("group-of-two-shares", |suite| suite.group_shared("shared", &CLASSIC));
    suite.line("new-group-rest-after-consumer-restart", |suite| suite.group_rest("new-rest", &NEW, |_| {}));
    suite.line("new-group-rest-after-broker-restart", |suite| {
        suite.group_rest("new-broker", &NEW, |broker| {
            broker.stop().unwrap();
            broker.restart().unwrap();
        });
    });
    suite.line("new-group-of-two-shares", |suite| suite.group_shared("new-shared", &NEW));
    suite.line("idempotent-over-broker-restart", Suite::idempotent);
    suite.line("transactions-commit-and-abort", |suite| suite.transactions());
    suite.line("transactions-fence-the-producer-before", |suite| suite.fenced());
    suite.line("consume-transform-produce-exactly-once", |suite| suite.exactly_once("once", |_| {}));
    suite.line("exactly-once-over-broker-restart", |suite| {
        suite.exactly_once("again", |broker| {
            broker.stop().unwrap();
            broker.restart().unwrap();
        });
    });
    suite.line("records-survive-broker-restart", |suite| {
        for codec in CODECS {
            let got = suite.read(codec, RECORDS, 0);
            assert!(got.iter().all(|(offset, row)| *row == suite.made(*offset)), "{codec}");
        }
    });
    suite.line("admin", |suite| suite.admin());
    suite.line("admin-configs", |suite| suite.admin_configs());
    suite.line("admin-groups", |suite| suite.admin_groups());
    suite.line("compaction-keeps-the-newest", |suite| suite.compacted());
}

/// Configs of a member of a group.
type Protocol = [(&'static str, &'static str)];
const CLASSIC: [(&str, &str); 2] = [("heartbeat.interval.ms", "500"), ("session.timeout.ms", "10000")];
/// The group protocol in which the broker assigns (KIP-848).
const NEW: [(&str, &str); 1] = [("group.protocol", "consumer")];

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Collects what each record's delivery came to.
#[derive(Clone, Default)]
struct Deliveries(Arc<Mutex<Vec<Result<i64, String>>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let outcome = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.to_string()),
        };
        self.0.lock().unwrap().push(outcome);
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    timestamp_ms: Option<i64>,
}

impl Row {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().into_iter().flat_map(|all| all.iter());
        Self {
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect(),
            timestamp_ms: message.timestamp().to_millis(),
        }
    }
}

struct Suite {
    broker: Broker,
    began_ms: i64,
    report: Report,
}

impl Suite {
    fn line(&mut self, name: &str, work: impl FnOnce(&mut Self)) {
        match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(()) => self.report.line(&format!("ok {name}")),
            Err(_) => self.report.line(&format!("FAIL {name}: see above")),
        }
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.broker.address().to_string());
        config
    }

    fn made(&self, i: i64) -> Row {
        let value = (0..i % 300).map(|j| (i * 31 + j * j) as u8).collect();
        let mut headers = vec![("h".to_owned(), Some(i.to_string().into_bytes())), ("null".to_owned(), None)];
        headers.truncate((i % 3) as usize);
        Row {
            key: (i % 7 != 0).then(|| format!("key-{i}").into_bytes()),
            value: (i % 50 != 11).then_some(value),
            headers,
            timestamp_ms: Some(self.began_ms - (RECORDS - i) * 1_000),
        }
    }

    fn create(&self, topic: &str, partitions: i32) {
        let mut connection = Connection::open(self.broker.address(), PATIENCE).unwrap();
        connection.create_topic(topic, partitions, &[]).unwrap();
    }

    /// Produces the rows; gives back the acknowledged offsets in order.
    fn produce(&self, topic: &str, partition: i32, codec: &str, rows: &[Row]) -> Vec<i64> {
        let mut config = self.config();
        config.set("compression.type", codec).set("linger.ms", "20").set("enable.idempotence", "true");
        let deliveries = Deliveries::default();
        let producer: BaseProducer<Deliveries> = config.create_with_context(deliveries.clone()).unwrap();
        for row in rows {
            let headers = row.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_ref() })
            });
            let mut record: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to(topic).partition(partition).headers(headers);
            record.key = row.key.as_deref();
            record.payload = row.value.as_deref();
            record.timestamp = row.timestamp_ms;
            producer.send(record).map_err(|(error, _)| error).unwrap();
            producer.poll(Duration::ZERO);
        }
        producer.flush(PATIENCE).unwrap();
        let outcomes = deliveries.0.lock().unwrap().clone();
        outcomes.into_iter().map(Result::unwrap).collect()
    }

    fn consumer(&self, group: &str, protocol: &Protocol) -> BaseConsumer {
        let mut config = self.config();
        config.set("group.id", group).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
        for (key, value) in protocol {
            config.set(*key, *value);
        }
        config.create().unwrap()
    }

    fn read(&self, topic: &str, count: i64, offset: i64) -> Vec<(i64, Row)> {
        let consumer = self.consumer("unused", &CLASSIC);
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
        consumer.assign(&assignment).unwrap();
        take(&consumer, count as usize)
    }

    fn codec(&self, codec: &str) {
        self.create(codec, 1);
        let rows: Vec<Row> = (0..RECORDS).map(|i| self.made(i)).collect();
        let offsets = self.produce(codec, 0, codec, &rows);
        assert_eq!(offsets, (0..RECORDS).collect::<Vec<_>>());
        let got = self.read(codec, RECORDS, 0);
        assert_eq!(got, (0..RECORDS).zip(rows).collect::<Vec<_>>());
    }

    fn reads_from_a_time(&mut self) {
        let consumer = self.consumer("unused", &CLASSIC);
        let at = self.made(200).timestamp_ms.unwrap();
        for (asked, wanted) in [
            (at, Offset::Offset(200)),
            (at - 1, Offset::Offset(200)),
            (at + 1, Offset::Offset(201)),
            (0, Offset::Offset(0)),
            (at + 3_600_000, Offset::End),
        ] {
            let mut times = TopicPartitionList::new();
            times.add_partition_offset("zstd", 0, Offset::Offset(asked)).unwrap();
            let found = consumer.offsets_for_times(times, PATIENCE).unwrap();
            assert_eq!(found.find_partition("zstd", 0).unwrap().offset(), wanted, "offset at {asked}");
        }
        assert_eq!(consumer.fetch_watermarks("zstd", 0, PATIENCE).unwrap(), (0, RECORDS));
    }

    fn fill(&self, topic: &str, partitions: i32) -> BTreeSet<Vec<u8>> {
        self.create(topic, partitions);
        let mut all = BTreeSet::new();
        for partition in 0..partitions {
            let row = |i: i64| Row { value: Some(format!("{partition}-{i}").into_bytes()), ..self.made(i) };
            let rows: Vec<Row> = (0..100).map(row).collect();
            self.produce(topic, partition, "none", &rows);
            all.extend(rows.into_iter().filter_map(|row| row.value));
        }
        all
    }

    fn group_rest(&mut self, topic: &str, protocol: &Protocol, between: impl FnOnce(&mut Broker)) {
        let all = self.fill(topic, 3);
        let mut got = Vec::new();
        {
            let first = self.consumer(topic, protocol);
            first.subscribe(&[topic]).unwrap();
            got.extend(take(&first, 150));
            first.commit_consumer_state(CommitMode::Sync).unwrap();
        }
        between(&mut self.broker);
        let second = self.consumer(topic, protocol);
        second.subscribe(&[topic]).unwrap();
        got.extend(take(&second, 150));
        assert!(second.poll(Duration::from_secs(1)).is_none(), "a message more than the rest");
        second.commit_consumer_state(CommitMode::Sync).unwrap();
        let values: BTreeSet<Vec<u8>> = got.into_iter().filter_map(|(_, row)| row.value).collect();
        assert_eq!(values, all);
    }

    /// Records that are on their way while the broker restarts are there once, in their order.
    fn idempotent(&mut self) {
        self.create("idempotent", 1);
        let mut config = self.config();
        config.set("enable.idempotence", "true").set("linger.ms", "5");
        let deliveries = Deliveries::default();
        let producer: BaseProducer<Deliveries> = config.create_with_context(deliveries.clone()).unwrap();
        let broker = &mut self.broker;
        thread::scope(|scope| {
            let mut restart = Some(|| {
                broker.stop().unwrap();
                broker.restart().unwrap();
            });
            for n in 0..300 {
                send(&producer, "idempotent", 0, &n.to_string());
                if n == 100 {
                    restart.take().map(|restart| scope.spawn(restart));
                }
                thread::sleep(Duration::from_millis(10));
            }
            producer.flush(PATIENCE).unwrap();
        });
        let outcomes: Vec<_> = deliveries.0.lock().unwrap().clone();
        assert_eq!(outcomes, (0..300).map(Ok).collect::<Vec<_>>());
        let wanted: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        assert_eq!(self.values("idempotent", "read_uncommitted", 300), wanted);
    }

    fn transactional(&self, id: &str) -> BaseProducer<Deliveries> {
        let mut config = self.config();
        config.set("transactional.id", id).set("linger.ms", "5").set("transaction.timeout.ms", "30000");
        let producer: BaseProducer<Deliveries> = config.create_with_context(Deliveries::default()).unwrap();
        producer.init_transactions(PATIENCE).unwrap();
        producer
    }

    /// Values of a topic's first partition, as far as a reader of that isolation sees them, once there are so many.
    fn values(&self, topic: &str, isolation: &str, count: usize) -> Vec<String> {
        let began = Instant::now();
        loop {
            let rows = self.rows(topic, isolation);
            if rows.len() >= count {
                let value = |row: Row| String::from_utf8(row.value.unwrap()).unwrap();
                return rows.into_iter().map(|(_, row)| value(row)).collect();
            }
            assert!(began.elapsed() < PATIENCE, "{} of {count} values", rows.len());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Records of a topic's first partition up to its end, as a reader of that isolation sees them.
    fn rows(&self, topic: &str, isolation: &str) -> Vec<(i64, Row)> {
        let mut config = self.config();
        config
            .set("group.id", "unused")
            .set("isolation.level", isolation)
            .set("enable.partition.eof", "true");
        config.set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&assignment).unwrap();
        let (mut got, began) = (Vec::new(), Instant::now());
        loop {
            assert!(began.elapsed() < PATIENCE, "{} records, and no end", got.len());
            match consumer.poll(Duration::from_millis(500)) {
                None => {}
                Some(Ok(message)) => got.push((message.offset(), Row::of(&message))),
                Some(Err(KafkaError::PartitionEOF(_))) => return got,
                Some(Err(other)) => panic!("{other}"),
            }
        }
    }

    fn transactions(&mut self) {
        self.create("txn", 1);
        let producer = self.transactional("txn");
        let (mut all, mut committed) = (Vec::new(), Vec::new());
        for round in 0..6 {
            producer.begin_transaction().unwrap();
            for n in 0..10 {
                let value = format!("{round}-{n}");
                send(&producer, "txn", 0, &value);
                all.push(value.clone());
                if round % 2 == 0 {
                    committed.push(value);
                }
            }
            producer.flush(PATIENCE).unwrap();
            match round % 2 {
                0 => producer.commit_transaction(PATIENCE).unwrap(),
                _ => producer.abort_transaction(PATIENCE).unwrap(),
            }
        }
        assert_eq!(self.values("txn", "read_committed", committed.len()), committed);
        assert_eq!(self.values("txn", "read_uncommitted", all.len()), all);
    }

    fn fenced(&mut self) {
        self.create("fenced", 1);
        let first = self.transactional("fenced");
        first.begin_transaction().unwrap();
        send(&first, "fenced", 0, "first");
        first.flush(PATIENCE).unwrap();
        let second = self.transactional("fenced");
        second.begin_transaction().unwrap();
        send(&second, "fenced", 0, "second");
        second.flush(PATIENCE).unwrap();
        second.commit_transaction(PATIENCE).unwrap();
        let error = first.commit_transaction(PATIENCE).expect_err("it was fenced");
        assert!(
            format!("{error:?}").contains("is_fatal: true")
                || error.to_string().to_lowercase().contains("fenced"),
            "{error:?}"
        );
        assert_eq!(self.values("fenced", "read_committed", 1), ["second"]);
    }

    /// Copies a topic within transactions; some are aborted, and one is left open by a producer that is replaced.
    fn exactly_once(&mut self, run: &str, between: impl FnOnce(&mut Broker)) {
        let (input, output) = (format!("{run}-in"), format!("{run}-out"));
        let all: BTreeSet<String> =
            self.fill(&input, 3).into_iter().map(|value| String::from_utf8(value).unwrap()).collect();
        self.create(&output, 1);
        let mut between = Some(between);
        let mut copied = 0;
        'instances: for instance in 0.. {
            assert!(instance < 20, "{copied} of {} records after many instances", all.len());
            let consumer = self.committed_consumer(&input);
            consumer.subscribe(&[&input]).unwrap();
            let producer = self.transactional(&format!("copy-{run}"));
            for transaction in 0.. {
                producer.begin_transaction().unwrap();
                let batch = some(&consumer, 20);
                for (_, value) in &batch {
                    send(&producer, &output, 0, value);
                }
                if instance == 0 && transaction == 1 {
                    // It dies with its transaction open.
                    producer.flush(PATIENCE).unwrap();
                    if let Some(between) = between.take() {
                        between(&mut self.broker);
                    }
                    continue 'instances;
                }
                let offsets = consumer.position().unwrap();
                let group = consumer.group_metadata().unwrap();
                producer.send_offsets_to_transaction(&offsets, &group, PATIENCE).unwrap();
                producer.flush(PATIENCE).unwrap();
                if transaction % 4 == 2 {
                    producer.abort_transaction(PATIENCE).unwrap();
                    continue 'instances;
                }
                producer.commit_transaction(PATIENCE).unwrap();
                copied += batch.len();
                if copied == all.len() {
                    break 'instances;
                }
            }
        }
        assert!(between.is_none(), "no producer died within a transaction");
        let got = self.values(&output, "read_committed", all.len());
        assert_eq!(got.len(), all.len(), "none is there twice");
        assert_eq!(got.into_iter().collect::<BTreeSet<String>>(), all);
    }

    fn committed_consumer(&self, group: &str) -> BaseConsumer {
        let mut config = self.config();
        config.set("group.id", group).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed").set("session.timeout.ms", "10000");
        config.set("heartbeat.interval.ms", "500").create().unwrap()
    }

    fn group_shared(&self, topic: &str, protocol: &Protocol) {
        let all = self.fill(topic, 4);
        let members = [self.consumer(topic, protocol), self.consumer(topic, protocol)];
        members.iter().for_each(|member| member.subscribe(&[topic]).unwrap());
        let began = Instant::now();
        let mut values = BTreeSet::new();
        let parts = |member: &BaseConsumer| member.assignment().map_or(0, |list| list.count());
        while values.len() < all.len() || members.iter().any(|member| parts(member) != 2) {
            assert!(began.elapsed() < PATIENCE, "{} of {} values", values.len(), all.len());
            for member in &members {
                if let Some(message) = member.poll(Timeout::After(Duration::from_millis(20))) {
                    values.extend(message.unwrap().payload().map(<[u8]>::to_vec));
                }
            }
        }
        assert_eq!(values, all);
    }
}

fn send(producer: &BaseProducer<Deliveries>, topic: &str, partition: i32, value: &str) {
    let record: BaseRecord<'_, (), str> = BaseRecord::to(topic).partition(partition).payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.poll(Duration::ZERO);
}

/// At least one message and at most `most`, with what they say.
fn some(consumer: &BaseConsumer, most: usize) -> Vec<(i64, String)> {
    let mut got: Vec<(i64, String)> = Vec::new();
    let began = Instant::now();
    while got.is_empty() || (got.len() < most && began.elapsed() < Duration::from_millis(300)) {
        assert!(began.elapsed() < PATIENCE, "no message within the time limit");
        if let Some(message) = consumer.poll(Duration::from_millis(50)) {
            let message = message.unwrap();
            got.push((message.offset(), String::from_utf8(message.payload().unwrap().to_vec()).unwrap()));
        }
    }
    got
}

fn take(consumer: &BaseConsumer, count: usize) -> Vec<(i64, Row)> {
    let (mut got, began) = (Vec::new(), Instant::now());
    while got.len() < count {
        assert!(began.elapsed() < PATIENCE, "{} of {count} messages within the time limit", got.len());
        if let Some(message) = consumer.poll(Duration::from_millis(500)) {
            let message = message.unwrap();
            got.push((message.offset(), Row::of(&message)));
        }
    }
    got
}
