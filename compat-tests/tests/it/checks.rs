//! The black-box checks of the offsets contract (protocol.md 14.4), each while ranges split and merge and the broker is killed.
//!
//! `RANGEWAY_COMPAT_KILLS=100` makes them as long as one likes.

mod by_clients;
mod of_dead;
mod of_transactions;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::checks::client::{EARLIEST, ISOLATIONS, LATEST, MAX_TIMESTAMP, is_retriable};
use rangeway_compat_tests::checks::numbered::{follow, timestamp};
use rangeway_compat_tests::checks::proxy::Proxy;
use rangeway_compat_tests::checks::{Client, Writer};
use rangeway_compat_tests::turmoil::{self, Plan, TopicOf, Turmoil};
use rangeway_compat_tests::wire;

const PARTITIONS: i32 = 6;
const TOPIC: &str = "checked";
const TOPICS: &[TopicOf<'static>] = &[(TOPIC, PARTITIONS, &[])];
const WAIT_MS: i32 = 20;
const SEED: u64 = 7;
/// Answers that a proxy lost; fewer say nothing.
const LOST_MIN: u64 = 10;

/// Runs a check against the broker under test; the reference has no ranges.
fn check(name: &str, plan: &Plan<'_>, clients: impl FnOnce(&Turmoil) -> Result<()>) {
    if Kind::from_env() == Kind::Reference {
        return;
    }
    let figures = turmoil::run(plan, clients).unwrap();
    println!("{name}: {figures}");
}

fn places() -> Vec<AtomicI64> {
    (0..PARTITIONS).map(|_| AtomicI64::new(0)).collect()
}

fn at(places: &[AtomicI64], partition: i32) -> i64 {
    places[partition as usize].load(Ordering::Acquire)
}

/// Runs clients beside a writer to the topic that goes on as long as `more` says so.
fn beside_a_writer(
    turmoil: &Turmoil,
    acked: &[AtomicI64],
    more: impl Fn() -> bool + Sync,
    clients: impl FnOnce() -> Result<()>,
) -> Result<()> {
    thread::scope(|threads| {
        let writer = Writer::new(turmoil, TOPIC, acked, SEED);
        let writing = threads.spawn(|| turmoil.client(|| writer.run(&more, |_, _, _| Ok(()))));
        let checked = turmoil.client(clients);
        let written = writing.join().unwrap();
        checked.and(written.map(drop))
    })
}

/// Reads all partitions from 0 while the turmoil goes on, then until everything acknowledged was read; `seen` is told partition,
/// offset asked for and what was fetched.
fn read_along(
    turmoil: &Turmoil,
    acked: &[AtomicI64],
    mut seen: impl FnMut(&mut Client<'_>, i32, i64, &rangeway_compat_tests::checks::Fetched) -> Result<()>,
) -> Result<Vec<i64>> {
    let mut client = Client::new(turmoil);
    let mut next = vec![0; PARTITIONS as usize];
    loop {
        let goes_on = turmoil.goes_on();
        for partition in 0..PARTITIONS {
            let from = next[partition as usize];
            let fetched = client.fetch(TOPIC, partition, from, WAIT_MS)?;
            next[partition as usize] =
                follow(partition, from, &fetched.batches, turmoil.began_ms).map_err(anyhow::Error::msg)?;
            turmoil.checked((next[partition as usize] - from) as usize);
            seen(&mut client, partition, from, &fetched)?;
        }
        turmoil.in_time()?;
        if !goes_on && (0..PARTITIONS).all(|p| next[p as usize] >= at(acked, p)) {
            return Ok(next);
        }
    }
}

#[test]
fn check_1_a_reader_from_0_sees_each_number_once_at_its_offset() {
    let plan = Plan::from_env(14_401, TOPICS);
    check("check 1", &plan, |turmoil| {
        let acked = places();
        thread::scope(|threads| {
            let writer = Writer::new(turmoil, TOPIC, &acked, plan.seed);
            let writing =
                threads.spawn(|| turmoil.client(|| writer.run(|| turmoil.goes_on(), |_, _, _| Ok(()))));
            let along = threads.spawn(|| turmoil.client(|| read_along(turmoil, &acked, |_, _, _, _| Ok(()))));
            let written = writing.join().unwrap()?;
            along.join().unwrap()?;
            // Once more from 0, now that nobody writes: exactly what was sent.
            let again = read_along(turmoil, &acked, |_, _, _, _| Ok(()))?;
            ensure!(again.iter().sum::<i64>() as u64 == written, "{again:?} read of {written} sent");
            Ok(())
        })
    });
}

#[test]
fn check_2_no_bound_of_a_log_ever_goes_back() {
    let plan = Plan::from_env(14_402, TOPICS);
    check("check 2", &plan, |turmoil| {
        let acked = places();
        beside_a_writer(
            turmoil,
            &acked,
            || turmoil.goes_on(),
            || {
                thread::scope(|threads| {
                    let polls = [EARLIEST, LATEST]
                        .map(|first| threads.spawn(move || turmoil.client(|| poll_bounds(turmoil, first))));
                    let trims = threads.spawn(|| turmoil.client(|| trim(turmoil, &acked)));
                    polls.into_iter().try_for_each(|poll| poll.join().unwrap())?;
                    trims.join().unwrap()
                })
            },
        )
    });
}

/// Asks for log starts, ends and what fetches say of both; none may be lower than any that was told before it was asked for.
fn poll_bounds(turmoil: &Turmoil, first: i64) -> Result<()> {
    let mut client = Client::new(turmoil);
    let mut lowest: BTreeMap<(i32, &str), i64> = BTreeMap::new();
    let mut told = |partition: i32, what: &'static str, value: i64| -> Result<i64> {
        let before = lowest.insert((partition, what), value).unwrap_or(0);
        ensure!(value >= before, "partition {partition}: {what} went from {before} to {value}");
        turmoil.checked(1);
        Ok(value)
    };
    while turmoil.goes_on() {
        for partition in 0..PARTITIONS {
            if first == LATEST {
                // In the other order, so that an end comes right after a kill, too.
                told(partition, "the end", client.list_offset(TOPIC, partition, LATEST, ISOLATIONS[0])?.0)?;
            }
            let mut start = 0;
            for isolation in ISOLATIONS {
                start = told(
                    partition,
                    "the start",
                    client.list_offset(TOPIC, partition, EARLIEST, isolation)?.0,
                )?;
            }
            let stable = client.list_offset(TOPIC, partition, LATEST, ISOLATIONS[1])?.0;
            let stable = told(partition, "the last stable offset", stable)?;
            let end =
                told(partition, "the end", client.list_offset(TOPIC, partition, LATEST, ISOLATIONS[0])?.0)?;
            ensure!(start <= stable && stable <= end, "partition {partition}: {start}, {stable}, {end}");
            let fetched = client.fetch(TOPIC, partition, end, 0)?;
            if fetched.code == 0 {
                let [start, stable, high] = fetched.bounds;
                ensure!(start <= stable && stable <= high, "partition {partition}: {:?}", fetched.bounds);
                told(partition, "the start", start)?;
                told(partition, "the last stable offset", stable)?;
                told(partition, "the end", high)?;
            }
        }
    }
    Ok(())
}

/// Raises log starts now and then.
fn trim(turmoil: &Turmoil, acked: &[AtomicI64]) -> Result<()> {
    let mut client = Client::new(turmoil);
    let mut random = fastrand::Rng::with_seed(3);
    while turmoil.goes_on() {
        let partition = random.i32(0..PARTITIONS);
        let offset = at(acked, partition) / 2;
        let wanted = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
        let topic = DeleteRecordsTopic::default().with_name(wire::topic(TOPIC)).with_partitions(vec![wanted]);
        let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let response = client.call(&request, 2)?;
        let done = &response.topics[0].partitions[0];
        ensure!(
            done.error_code == 0 || is_retriable(done.error_code),
            "DeleteRecords answered {}",
            done.error_code
        );
        if done.error_code == 0 {
            let start = client.list_offset(TOPIC, partition, EARLIEST, 0)?.0;
            ensure!(
                start >= offset,
                "partition {partition}: starts at {start} after all below {offset} was deleted"
            );
        }
        thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

#[test]
fn check_3_what_is_acknowledged_is_readable_at_once_on_another_connection() {
    let plan = Plan::from_env(14_403, TOPICS);
    check("check 3", &plan, |turmoil| {
        let acked = places();
        let mut reader = Client::new(turmoil);
        let writer = Writer::new(turmoil, TOPIC, &acked, plan.seed).one_at_a_time();
        writer.run(
            || turmoil.goes_on(),
            |partition, base, next| {
                let (_, fetched) = reader.settled(|reader| {
                    let fetched = reader.fetch(TOPIC, partition, base, 0)?;
                    Ok((fetched.code, fetched))
                })?;
                let read = follow(partition, base, &fetched.batches, turmoil.began_ms)
                    .map_err(anyhow::Error::msg)?;
                ensure!(
                    read >= next,
                    "partition {partition}: acknowledged up to {next}, readable up to {read}"
                );
                turmoil.checked(1);
                Ok(())
            },
        )?;
        Ok(())
    });
}

#[test]
fn check_5_what_is_sent_again_since_its_answer_was_lost_is_stored_once() {
    let plan = Plan::from_env(14_405, TOPICS);
    check("check 5", &plan, |turmoil| {
        let (acked, proxy) = (places(), Proxy::new()?);
        let stopped = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| proxy.run(turmoil.address, plan.seed, || !stopped.load(Ordering::Acquire)));
            let writer = Writer::new(turmoil, TOPIC, &acked, plan.seed).through(proxy.address);
            let lost = || proxy.lost.load(Ordering::Relaxed);
            let more = || turmoil.goes_on_until(lost() > LOST_MIN);
            let written = turmoil.client(|| writer.run(more, |_, _, _| Ok(())));
            stopped.store(true, Ordering::Release);
            let written = written?;
            let read = read_along(turmoil, &acked, |_, _, _, _| Ok(()))?;
            ensure!(read.iter().sum::<i64>() as u64 == written, "{read:?} read of {written} sent");
            ensure!(lost() > LOST_MIN, "{} answers were lost, too few to say anything", lost());
            println!("check 5: {} answers lost, {written} records sent and stored", lost());
            Ok(())
        })
    });
}

#[test]
fn check_6_leader_epochs_end_where_the_next_begins_and_behind_all_that_carries_them() {
    let plan = Plan::from_env(14_406, TOPICS);
    check("check 6", &plan, |turmoil| {
        let acked = places();
        beside_a_writer(
            turmoil,
            &acked,
            || turmoil.goes_on(),
            || {
                let mut last: Vec<BTreeMap<i32, i64>> = vec![BTreeMap::new(); PARTITIONS as usize];
                read_along(turmoil, &acked, |client, partition, _, fetched| {
                    let last = &mut last[partition as usize];
                    for batch in &fetched.batches {
                        let newest = last.keys().last().copied().unwrap_or(0);
                        ensure!(
                            batch.epoch >= newest,
                            "partition {partition}: epoch {} at {} after {newest}",
                            batch.epoch,
                            batch.base_offset
                        );
                        last.insert(batch.epoch, batch.base_offset + batch.records.len() as i64 - 1);
                    }
                    let mut before = 0;
                    for epoch in 0..=last.keys().last().copied().unwrap_or(-1) {
                        let (found, end) = client.epoch_end(TOPIC, partition, epoch)?;
                        ensure!(found <= epoch, "partition {partition}: epoch {found} for {epoch}");
                        ensure!(
                            end >= before,
                            "partition {partition}: epoch {epoch} ends at {end}, before {before}"
                        );
                        let carries = last.get(&epoch).copied().unwrap_or(-1);
                        ensure!(
                            end > carries,
                            "partition {partition}: epoch {epoch} ends at {end}, {carries} carries it"
                        );
                        before = end;
                        turmoil.checked(1);
                    }
                    Ok(())
                })?;
                let epochs = last.iter().map(BTreeMap::len).max().unwrap_or(0);
                ensure!(epochs > 1, "all batches carry one epoch, and the broker was killed");
                Ok(())
            },
        )
    });
}

#[test]
fn check_8_timestamps_lead_to_the_first_offset_that_a_model_says() {
    let plan = Plan::from_env(14_408, TOPICS);
    check("check 8", &plan, |turmoil| {
        let acked = places();
        beside_a_writer(
            turmoil,
            &acked,
            || turmoil.goes_on(),
            || {
                let mut client = Client::new(turmoil);
                let mut random = fastrand::Rng::with_seed(plan.seed);
                // Of each partition: the highest timestamp of offsets 0 to n.
                let mut highest: Vec<Vec<i64>> = vec![Vec::new(); PARTITIONS as usize];
                while turmoil.goes_on() {
                    let partition = random.i32(0..PARTITIONS);
                    let known = at(&acked, partition);
                    let highest = &mut highest[partition as usize];
                    for offset in highest.len() as i64..known {
                        let before = highest.last().copied().unwrap_or(i64::MIN);
                        highest.push(before.max(timestamp(partition, offset as u64, turmoil.began_ms)));
                    }
                    let Some(latest) = highest.last().copied() else { continue };
                    // The first records settle nearly all of the range of times: most questions are close to its upper end.
                    let most = if random.bool() { 2_000 } else { 100_000 };
                    let wanted = latest + 100 - random.i64(0..most);
                    let due = highest.partition_point(|time| *time < wanted) as i64;
                    let (offset, time) = client.list_offset(TOPIC, partition, wanted, 0)?;
                    let told = |offset: i64| timestamp(partition, offset as u64, turmoil.began_ms);
                    if due < known {
                        ensure!(
                            (offset, time) == (due, told(due)),
                            "partition {partition} at {wanted}: offset {offset} at {time}, not {due} at {}",
                            told(due)
                        );
                    } else {
                        let later = offset >= known && time == told(offset) && time >= wanted;
                        ensure!(
                            offset == -1 || later,
                            "partition {partition} at {wanted}: offset {offset} at {time}"
                        );
                    }
                    let (offset, time) = client.list_offset(TOPIC, partition, MAX_TIMESTAMP, 0)?;
                    ensure!(
                        time >= latest && time == told(offset),
                        "partition {partition}: latest is {latest}, told was {time} at {offset}"
                    );
                    turmoil.checked(2);
                }
                Ok(())
            },
        )
    });
}
