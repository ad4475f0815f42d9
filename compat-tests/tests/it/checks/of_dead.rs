//! Check 10: what was in flight when its owner died, and is not there when the next one serves, is never there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use rangeway_compat_tests::checks::Client;
use rangeway_compat_tests::checks::client::{LATEST, is_broken, is_retriable};
use rangeway_compat_tests::checks::numbered::{number_of, record};
use rangeway_compat_tests::turmoil::{Plan, Turmoil};
use rangeway_compat_tests::wire::{self, Connection, PRODUCE_VERSION};

use super::{PARTITIONS, TOPIC, TOPICS, check};

const IN_FLIGHT: usize = 8;

/// What is known of one partition, whose records have numbers that are used once.
#[derive(Default)]
struct Log {
    /// Offset after the last that was read.
    next: i64,
    /// Numbers that were read.
    read: BTreeSet<u64>,
    /// Acknowledged: number and offset.
    acked: BTreeMap<u64, i64>,
    /// Sent without an answer, and not there when the next owner was asked.
    dead: BTreeSet<u64>,
}

impl Log {
    /// Takes records from `from` on. Errors: one that is dead, that is there twice, or that is not where it was acknowledged.
    fn take(&mut self, partition: i32, from: i64, numbers: &[(i64, u64)]) -> Result<()> {
        for (offset, number) in numbers.iter().filter(|(offset, _)| *offset >= from) {
            ensure!(
                *offset == self.next,
                "partition {partition}: offset {offset} where {} was due",
                self.next
            );
            ensure!(
                !self.dead.contains(number),
                "partition {partition}: record {number}, given up, appears at {offset}"
            );
            ensure!(self.read.insert(*number), "partition {partition}: record {number} again at {offset}");
            let due = self.acked.get(number).copied().unwrap_or(*offset);
            ensure!(
                due == *offset,
                "partition {partition}: record {number} at {offset}, acknowledged at {due}"
            );
            self.next += 1;
        }
        Ok(())
    }
}

#[test]
fn check_10_what_a_dead_owner_had_in_flight_and_lost_never_appears() {
    let plan = Plan::from_env(14_410, TOPICS);
    check("check 10", &plan, |turmoil| {
        let mut logs: Vec<Log> = (0..PARTITIONS).map(|_| Log::default()).collect();
        let (mut next, mut lives) = (0, 0);
        let mut client = Client::new(turmoil);
        while turmoil.goes_on() {
            let kills = turmoil.kills.load(Ordering::Acquire);
            let unanswered = life(turmoil, &mut logs, &mut next)?;
            lives += 1;
            for partition in 0..PARTITIONS {
                // What the next owner says is the end: all that is not below it by now never will be there.
                let end = client.list_offset(TOPIC, partition, LATEST, 0)?.0;
                read_to(turmoil, &mut client, partition, end, &mut logs[partition as usize])?;
                if turmoil.kills.load(Ordering::Acquire) == kills {
                    continue; // its owner lives, and may be about to store it
                }
                let log = &mut logs[partition as usize];
                let lost =
                    unanswered.iter().filter(|(of, number)| *of == partition && !log.read.contains(number));
                log.dead.extend(lost.map(|(_, number)| *number));
            }
        }
        for partition in 0..PARTITIONS {
            let end = client.list_offset(TOPIC, partition, LATEST, 0)?.0;
            let log = &mut logs[partition as usize];
            read_to(turmoil, &mut client, partition, end, log)?;
            let missing = log.acked.keys().find(|number| !log.read.contains(number));
            ensure!(
                missing.is_none(),
                "partition {partition}: {missing:?} was acknowledged and is not there"
            );
        }
        let dead: usize = logs.iter().map(|log| log.dead.len()).sum();
        println!("check 10: {lives} lives, {dead} records that were given up");
        Ok(())
    });
}

fn read_to(
    turmoil: &Turmoil,
    client: &mut Client<'_>,
    partition: i32,
    end: i64,
    log: &mut Log,
) -> Result<()> {
    while log.next < end {
        turmoil.in_time()?;
        let from = log.next;
        let fetched = client.fetch(TOPIC, partition, from, 20)?;
        for batch in &fetched.batches {
            let mut numbers = Vec::new();
            for (offset, found) in (batch.base_offset..).zip(&batch.records) {
                let number = number_of(partition, found, turmoil.began_ms).map_err(anyhow::Error::msg)?;
                numbers.push((offset, number));
            }
            log.take(partition, from, &numbers)?;
            turmoil.checked(numbers.len());
        }
    }
    Ok(())
}

/// Sends plain batches of one record until the connection ends or the turmoil does; answers what was not answered.
fn life(turmoil: &Turmoil, logs: &mut [Log], next: &mut u64) -> Result<Vec<(i32, u64)>> {
    let mut flying: VecDeque<(i32, u64)> = VecDeque::new();
    let Ok(mut connection) = Connection::open(turmoil.address, Duration::from_secs(30)) else {
        thread::sleep(Duration::from_millis(10));
        return Ok(Vec::new());
    };
    let mut gone = Vec::new();
    while turmoil.goes_on() || !flying.is_empty() {
        match exchange(turmoil, &mut connection, &mut flying, &mut gone, logs, next) {
            Err(error) if is_broken(&error) => break,
            done => done?,
        }
    }
    gone.extend(flying);
    Ok(gone)
}

fn exchange(
    turmoil: &Turmoil,
    connection: &mut Connection,
    flying: &mut VecDeque<(i32, u64)>,
    gone: &mut Vec<(i32, u64)>,
    logs: &mut [Log],
    next: &mut u64,
) -> Result<()> {
    if flying.len() < IN_FLIGHT && turmoil.goes_on() {
        let partition = (*next % PARTITIONS as u64) as i32;
        flying.push_back((partition, *next));
        let bytes = wire::batch(&mut [record(partition, *next, turmoil.began_ms)], None)?;
        *next += 1;
        return connection
            .send(&wire::produce_request(vec![(TOPIC, partition, bytes)], -1, 30_000), PRODUCE_VERSION);
    }
    let response: ProduceResponse = connection.receive::<ProduceRequest>()?;
    let (partition, number) = flying.pop_front().context("a request in flight")?;
    let answer = &response.responses[0].partition_responses[0];
    match answer.error_code {
        0 => drop(logs[partition as usize].acked.insert(number, answer.base_offset)),
        code if is_retriable(code) => gone.push((partition, number)),
        code => ensure!(code == 0, "partition {partition}: record {number} was answered {code}"),
    }
    Ok(())
}
