//! A compacted topic through librdkafka, while ranges split and merge and the broker is killed: of each key the newest record is
//! there at its offset, for whoever reads along and for whoever reads in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::turmoil::{self, Plan, TopicOf, Turmoil};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

const PARTITIONS: i32 = 4;
const KEYS: u64 = 40;
/// Records that are written at least.
const RECORDS_MIN: u64 = 4000;
const TOPIC: &str = "compacted";
const TOPICS: &[TopicOf<'static>] = &[(
    TOPIC,
    PARTITIONS,
    &[
        ("cleanup.policy", "compact"),
        ("segment.bytes", "65536"),
        ("segment.ms", "400"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("delete.retention.ms", "300"),
    ],
)];
const PATIENCE: Duration = Duration::from_secs(60);

/// Newest offset and number of each key of each partition, as acknowledged.
type Newest = BTreeMap<(i32, Vec<u8>), (i64, u64)>;

#[derive(Clone, Default)]
struct Acknowledged(Arc<Mutex<(Newest, Option<String>)>>);

impl ClientContext for Acknowledged {}

impl ProducerContext for Acknowledged {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<u64>) {
        let mut all = self.0.lock().unwrap();
        match result {
            Ok(message) => {
                let key = (message.partition(), message.key().unwrap_or_default().to_vec());
                let newest = all.0.entry(key).or_insert((message.offset(), *number));
                *newest = (*newest).max((message.offset(), *number));
            }
            Err((error, _)) => all.1 = Some(error.to_string()),
        }
    }
}

/// A record's key; those of one number go to one partition.
fn key_of(number: u64) -> (i32, String) {
    let key = number * 7919 % KEYS;
    ((key % PARTITIONS as u64) as i32, format!("key-{key}"))
}

/// One of nine is a tombstone.
fn is_tombstone(number: u64) -> bool {
    number % 9 == 4
}

fn write(turmoil: &Turmoil, acknowledged: &Acknowledged) -> Result<u64> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", turmoil.address.to_string());
    config.set("enable.idempotence", "true").set("linger.ms", "2").set("compression.type", "lz4");
    let producer: BaseProducer<Acknowledged> = config.create_with_context(acknowledged.clone())?;
    let mut number = 0;
    while turmoil.goes_on() || number < RECORDS_MIN {
        turmoil.in_time()?;
        let (partition, key) = key_of(number);
        let value = format!("{number}-{}", "v".repeat((number % 90) as usize));
        let mut record = BaseRecord::with_opaque_to(TOPIC, Box::new(number)).partition(partition).key(&key);
        if !is_tombstone(number) {
            record = record.payload(&value);
        }
        match producer.send(record) {
            Ok(()) => number += 1,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {}
            Err((error, _)) => bail!("{error}"),
        }
        producer.poll(Duration::ZERO);
        if number % 500 == 0 {
            producer.flush(PATIENCE)?;
        }
    }
    producer.flush(PATIENCE)?;
    match acknowledged.0.lock().unwrap().1.take() {
        Some(error) => bail!("not delivered: {error}"),
        None => Ok(number),
    }
}

/// Reads all there is from the beginning to where it ended when it began: what was newest of each key, and how many records.
fn read(turmoil: &Turmoil) -> Result<(Newest, usize)> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", turmoil.address.to_string());
    config.set("group.id", "unused").set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(TOPIC, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let (mut newest, mut count) = (Newest::new(), 0);
    let mut next = vec![0; PARTITIONS as usize];
    let mut ended = vec![false; PARTITIONS as usize];
    let began = Instant::now();
    while ended.contains(&false) {
        ensure!(began.elapsed() < PATIENCE, "no end after {count} records");
        turmoil.in_time()?;
        let message = match consumer.poll(Duration::from_millis(200)) {
            None => continue,
            Some(Ok(message)) => message,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ended[partition as usize] = true;
                continue;
            }
            // The broker is away, or leads under another epoch.
            Some(Err(_)) => continue,
        };
        let (partition, offset) = (message.partition(), message.offset());
        ensure!(offset >= next[partition as usize], "partition {partition}: offset {offset} again");
        next[partition as usize] = offset + 1;
        let key = message.key().unwrap_or_default().to_vec();
        let number = match message.payload() {
            Some(value) => {
                let text = std::str::from_utf8(value)?;
                let number: u64 = text.split('-').next().unwrap_or_default().parse()?;
                ensure!(key_of(number) == (partition, String::from_utf8(key.clone())?), "{text} at {offset}");
                ensure!(!is_tombstone(number), "{text} was a tombstone");
                number
            }
            None => u64::MAX,
        };
        newest.insert((partition, key), (offset, number));
        count += 1;
        turmoil.checked(1);
    }
    Ok((newest, count))
}

/// Whatever was newest is there, or something newer; a tombstone may be gone.
fn compare(acknowledged: &Newest, found: &Newest, at_rest: bool) -> Result<()> {
    for (key, &(offset, number)) in acknowledged {
        let shown = || format!("partition {} {}", key.0, String::from_utf8_lossy(&key.1));
        match found.get(key) {
            Some(&(got, value)) if got == offset => {
                let expected = if is_tombstone(number) { u64::MAX } else { number };
                ensure!(value == expected, "{}: {value} at {offset}, {number} was written", shown());
            }
            Some(&(got, _)) if got > offset && !at_rest => {}
            None if is_tombstone(number) => {}
            other => bail!("{}: {other:?}, newest is {number} at {offset}", shown()),
        }
    }
    Ok(())
}

#[test]
fn the_newest_of_each_key_is_there_amid_splits_merges_and_kills() {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let plan = Plan::from_env(14_501, TOPICS);
    let figures = turmoil::run(&plan, |turmoil| {
        let acknowledged = Acknowledged::default();
        thread::scope(|threads| {
            let writing = threads.spawn(|| turmoil.client(|| write(turmoil, &acknowledged)));
            let reading = threads.spawn(|| {
                turmoil.client(|| {
                    while turmoil.goes_on() {
                        let before = acknowledged.0.lock().unwrap().0.clone();
                        compare(&before, &read(turmoil)?.0, false)?;
                    }
                    Ok(())
                })
            });
            let written = writing.join().unwrap()?;
            reading.join().unwrap()?;
            let newest = acknowledged.0.lock().unwrap().0.clone();
            ensure!(newest.len() as u64 == KEYS, "{} keys", newest.len());
            // Compaction goes on until little more than the newest is there.
            let until = Instant::now() + PATIENCE;
            loop {
                let (found, count) = read(turmoil)?;
                compare(&newest, &found, true)?;
                if (count as u64) < written / 10 {
                    println!("{count} of {written} records are left");
                    return Ok(());
                }
                ensure!(Instant::now() < until, "{count} of {written} records are left");
                thread::sleep(Duration::from_millis(300));
            }
        })
    });
    println!("compaction: {}", figures.unwrap());
}
