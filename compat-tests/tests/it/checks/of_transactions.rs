//! Check 9: beside transactional writers that commit, abort and die, readers of committed records see exactly those, readers of all
//! records see all, both at the same offsets.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use rangeway_compat_tests::checks::client::{ISOLATIONS, LATEST};
use rangeway_compat_tests::checks::numbered::number_of;
use rangeway_compat_tests::checks::transactional::{Book, Rule, Transactional, transaction_of};
use rangeway_compat_tests::checks::{Client, Committed};
use rangeway_compat_tests::turmoil::{Plan, Turmoil};

use super::{PARTITIONS, TOPIC, TOPICS, WAIT_MS, check};

const WRITERS: [Rule; 4] = [Rule::Asked, Rule::Written, Rule::Asked, Rule::Written];

/// What a reader saw of each partition: the number at each offset.
type Seen = Vec<BTreeMap<i64, u64>>;

#[test]
fn check_9_readers_of_committed_records_see_those_and_no_others() {
    let mut plan = Plan::from_env(14_409, TOPICS);
    plan.internal = &["__transactions"];
    check("check 9", &plan, |turmoil| {
        let over = &AtomicBool::new(false);
        let (books, along) = thread::scope(|threads| {
            let reads = ISOLATIONS
                .map(|isolation| threads.spawn(move || turmoil.client(|| read(turmoil, isolation, over))));
            let writes: Vec<_> = (0..)
                .zip(WRITERS)
                .map(|(n, rule)| {
                    let writer = Transactional::new(turmoil, TOPIC, PARTITIONS, n, rule);
                    threads.spawn(move || turmoil.client(|| writer.run()))
                })
                .collect();
            let books = writes.into_iter().map(|write| write.join().unwrap()).collect::<Result<Vec<Book>>>();
            over.store(true, Ordering::Release);
            let along = reads.into_iter().map(|read| read.join().unwrap()).collect::<Result<Vec<Seen>>>();
            Ok::<_, anyhow::Error>((books?, along?))
        })?;
        let (mut committed, mut aborted) = (0, 0);
        for ends in books.iter().flat_map(|book| book.committed.values()) {
            *if *ends { &mut committed } else { &mut aborted } += 1;
        }
        ensure!(committed > 50 && aborted > 20, "{committed} committed and {aborted} aborted say too little");
        println!("check 9: {committed} transactions committed, {aborted} aborted");
        judge(turmoil, &books, &along)?;
        // Once more from the start, now that all has ended.
        let again = ISOLATIONS.map(|isolation| read(turmoil, isolation, over));
        judge(turmoil, &books, &again.into_iter().collect::<Result<Vec<Seen>>>()?)
    });
}

/// Reads all partitions from 0 until nobody writes and nothing is left.
fn read(turmoil: &Turmoil, isolation: i8, over: &AtomicBool) -> Result<Seen> {
    let mut client = Client::new(turmoil);
    let mut seen = vec![BTreeMap::new(); PARTITIONS as usize];
    let mut readers: Vec<_> = (0..PARTITIONS).map(|_| Committed::default()).collect();
    loop {
        let last_pass = over.load(Ordering::Acquire);
        let mut left = false;
        for partition in 0..PARTITIONS {
            let at = partition as usize;
            let reader = &mut readers[at];
            let end = if last_pass { client.list_offset(TOPIC, partition, LATEST, 0)?.0 } else { 0 };
            let fetched = client.fetch_as(isolation, TOPIC, partition, reader.next, WAIT_MS)?;
            for found in reader.take(&fetched, isolation) {
                let number = number_of(partition, &found, turmoil.began_ms).map_err(anyhow::Error::msg)?;
                let before = seen[at].insert(found.offset, number);
                ensure!(before.is_none(), "partition {partition}: offset {} was read again", found.offset);
                turmoil.checked(1);
            }
            left |= reader.next < end;
        }
        turmoil.in_time()?;
        if last_pass && !left {
            return Ok(seen);
        }
    }
}

/// `seen` by the reader of all records, then by the one of committed ones.
fn judge(turmoil: &Turmoil, books: &[Book], seen: &[Seen]) -> Result<()> {
    let is_committed = |number: u64| {
        books.iter().any(|book| book.committed.get(&transaction_of(number)).copied().unwrap_or(false))
    };
    for partition in 0..PARTITIONS {
        let [all, committed] = [0, 1].map(|reader: usize| &seen[reader][partition as usize]);
        let due: BTreeMap<i64, u64> =
            all.iter().filter(|(_, number)| is_committed(**number)).map(|(o, n)| (*o, *n)).collect();
        let wrong = committed.iter().find(|(offset, number)| due.get(offset) != Some(number));
        ensure!(wrong.is_none(), "partition {partition}: {wrong:?} was shown as committed");
        let missed = due.iter().find(|(offset, _)| !committed.contains_key(offset));
        ensure!(missed.is_none(), "partition {partition}: {missed:?} was committed and not shown");
        let mut places: BTreeMap<u64, i64> = BTreeMap::new();
        for (offset, number) in all {
            let before = places.insert(*number, *offset);
            ensure!(before.is_none(), "partition {partition}: record {number} at {before:?} and at {offset}");
        }
        let acked = books.iter().flat_map(|book| &book.acked).filter(|((of, _), _)| *of == partition);
        for ((_, number), offset) in acked {
            let found = places.get(number);
            ensure!(
                found == Some(offset),
                "partition {partition}: record {number}, acknowledged at {offset}, is at {found:?}"
            );
            turmoil.checked(1);
        }
    }
    Ok(())
}
