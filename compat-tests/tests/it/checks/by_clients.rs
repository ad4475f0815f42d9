//! Checks 4 and 7, by real client libraries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rangeway_compat_tests::checks::Writer;
use rangeway_compat_tests::order::{Client, Library, Programs};
use rangeway_compat_tests::skip;
use rangeway_compat_tests::turmoil::{Plan, Turmoil};

use super::{PARTITIONS, TOPIC, TOPICS, beside_a_writer, check, places};

const LIBRARIES: [Library; 2] = [Library::Librdkafka, Library::Java];
/// How long a client may be silent while the run goes on.
const LINE_POLL: Duration = Duration::from_millis(100);

type Lines = Receiver<(usize, Option<String>)>;

/// A client that was started, and what it says.
struct Started {
    client: Client,
    lines: Lines,
}

impl Started {
    fn new(
        programs: &Programs,
        turmoil: &Turmoil,
        library: Library,
        mode: &str,
        folder: &std::path::Path,
    ) -> Result<Self> {
        let (sender, lines) = mpsc::channel();
        let arguments = [
            mode.to_owned(),
            format!("bootstrap={}", turmoil.address),
            format!("topic={TOPIC}"),
            format!("partitions={PARTITIONS}"),
            "group=checked".to_owned(),
        ];
        let number = turmoil.checks.load(Ordering::Acquire) as usize;
        let name = format!("{library:?}-{mode}").to_lowercase();
        let client = Client::start(programs, library, (number, &name), &arguments, folder, sender)?;
        Ok(Self { client, lines })
    }

    /// The next line that begins with `word`, what follows it. Errors: a fault that it tells, or its end.
    fn hear(&mut self, turmoil: &Turmoil, word: &str) -> Result<String> {
        loop {
            let Ok((_, line)) = self.lines.recv_timeout(LINE_POLL) else {
                turmoil.in_time().with_context(|| format!("{} says nothing", self.client.name))?;
                continue;
            };
            let Some(line) = line else {
                bail!("{} ended early: {}", self.client.name, self.client.complaints());
            };
            ensure!(!line.starts_with("fault"), "{}: {line}", self.client.name);
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Hears its end. Errors: it logged that a log was truncated.
    fn end(mut self, turmoil: &Turmoil) -> Result<()> {
        self.hear(turmoil, "done")?;
        let log = self.client.stderr().to_lowercase();
        ensure!(
            !log.contains("truncat"),
            "{} logs truncation: {}",
            self.client.name,
            self.client.complaints()
        );
        Ok(())
    }
}

/// The programs, or what is missing was announced.
fn programs(suite: &str) -> Option<Programs> {
    if let Some(missing) = Programs::missing() {
        skip::announce(suite, &missing.what, missing.install);
        return None;
    }
    Some(Programs::prepare("checks.py", "Checks").unwrap())
}

#[test]
fn check_4_real_consumers_that_read_to_the_end_come_to_it() {
    let Some(programs) = programs("check-4") else { return };
    let plan = Plan::from_env(14_404, TOPICS);
    let folder = tempfile::tempdir().unwrap();
    check("check 4", &plan, |turmoil| {
        let acked = places();
        let start = |library| Started::new(&programs, turmoil, library, "to-end", folder.path());
        let mut clients = LIBRARIES.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        // Writers stop half way; splits, merges and kills go on.
        let half = plan.kills.div_ceil(2);
        let more = || turmoil.goes_on() && turmoil.kills.load(Ordering::Acquire) < half;
        let written = Writer::new(turmoil, TOPIC, &acked, plan.seed).run(more, |_, _, _| Ok(()))?;
        clients.iter_mut().for_each(|started| started.client.tell("stopped"));
        for mut started in clients {
            let reached = started.hear(turmoil, "reached")?;
            let (seconds, records) = reached.split_once(' ').context("seconds and records")?;
            ensure!(records.parse() == Ok(written), "{}: read {records} of {written}", started.client.name);
            println!("check 4: {} was at the end after {seconds} s", started.client.name);
            turmoil.checked(1);
            started.end(turmoil)?;
        }
        while turmoil.goes_on() {
            thread::sleep(LINE_POLL);
        }
        Ok(())
    });
}

#[test]
fn check_7_a_consumer_that_was_stopped_goes_on_where_it_committed() {
    let Some(programs) = programs("check-7") else { return };
    let mut plan = Plan::from_env(14_407, TOPICS);
    // Each life waits for ten; where the group's state is splits and merges too.
    (plan.reshards, plan.internal) = (20 * u64::from(plan.kills.max(2)), &["__groups"]);
    let folder = tempfile::tempdir().unwrap();
    check("check 7", &plan, |turmoil| {
        let (acked, over) = (places(), AtomicBool::new(false));
        beside_a_writer(
            turmoil,
            &acked,
            || !over.load(Ordering::Acquire),
            || {
                let (mut committed, mut lives) = (BTreeMap::new(), 0);
                while turmoil.goes_on() || lives < 3 {
                    let library = LIBRARIES[lives % LIBRARIES.len()];
                    let mut life = Started::new(&programs, turmoil, library, "resume", folder.path())?;
                    let first = offsets(&life.hear(turmoil, "first")?)?;
                    for (partition, offset) in &first {
                        let due = committed.get(partition).copied().unwrap_or(0);
                        ensure!(
                            *offset == due,
                            "life {lives}, {library:?}: partition {partition} begins at {offset}, committed was {due}"
                        );
                        turmoil.checked(1);
                    }
                    ensure!(first.len() == PARTITIONS as usize, "{first:?} of {PARTITIONS} partitions");
                    committed = offsets(&life.hear(turmoil, "committed")?)?;
                    life.end(turmoil)?;
                    turmoil.await_reshards(10)?;
                    lives += 1;
                }
                println!("check 7: {lives} lives");
                over.store(true, Ordering::Release);
                Ok(())
            },
        )
    });
}

/// `P:OFFSET` of each partition.
fn offsets(line: &str) -> Result<BTreeMap<i32, i64>> {
    let parts = line.split_whitespace().map(|part| {
        let (partition, offset) = part.split_once(':').context("P:OFFSET")?;
        Ok((partition.parse()?, offset.parse()?))
    });
    parts.collect()
}
