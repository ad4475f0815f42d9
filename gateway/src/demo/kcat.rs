//! The demo's load through an installed kcat: one process that produces lines, one that prints what it consumes.

use super::{Load, pause};
use crate::bench::client::{Broken, broken};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Lines gather for so long.
const LINGER: Duration = Duration::from_millis(5);
/// kcat is given so long to deliver what it has once its input ended.
const DELIVER_MAX: Duration = Duration::from_secs(60);

fn kcat(load: &Load, arguments: &[&str]) -> Command {
    let mut command = Command::new("kcat");
    command.args(["-q", "-b", &load.address, "-t", load.topic.as_str()]).args(arguments);
    command.stderr(Stdio::piped());
    command
}

/// Writes `key:number` lines to kcat at the rate until told to stop, and waits until it has delivered all.
///
/// Errors: kcat cannot be started, ends early, or says that it did not deliver all.
pub fn produce(load: &Load) -> Result<(), Broken> {
    let settings = ["topic.partitioner=murmur2_random", "enable.idempotence=true", "linger.ms=5"];
    let mut arguments = vec!["-P", "-K:"];
    settings.iter().for_each(|setting| arguments.extend(["-X", setting]));
    let mut child =
        kcat(load, &arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(broken("kcat"))?;
    let Some(mut input) = child.stdin.take() else { return Err(Broken("kcat takes no input".to_owned())) };
    let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
    let (began, mut sent) = (Instant::now(), 0u64);
    while !load.state.produced_enough.load(Relaxed) && !load.state.is_broken() {
        let due = (began.elapsed().as_secs_f64() * f64::from(load.rate)) as u64;
        let mut lines = String::new();
        let from = sent;
        while sent < due {
            let at = usize::try_from(sent).unwrap_or(0) % load.keys.len().max(1);
            let Some(key) = load.keys.get(at) else { break };
            let number = numbers.entry(at).or_insert(0);
            lines.push_str(&format!("{}:{number}\n", key.text));
            *number += 1;
            sent += 1;
        }
        if input.write_all(lines.as_bytes()).is_err() {
            return Err(Broken(format!("kcat -P ended early: {}", last_words(&mut child))));
        }
        load.state.acknowledged.fetch_add(sent - from, Relaxed);
        pause(LINGER);
    }
    drop(input);
    let asked = Instant::now();
    let status = loop {
        match child.try_wait().map_err(broken("kcat -P"))? {
            Some(status) => break status,
            None if asked.elapsed() > DELIVER_MAX => {
                // It is no longer of use, whether or not it can be ended.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Broken(format!("kcat -P did not deliver all within {DELIVER_MAX:?}")));
            }
            None => pause(LINGER),
        }
    };
    if !status.success() {
        return Err(Broken(format!("kcat -P ended with {status}: {}", last_words(&mut child))));
    }
    // It ends well only when every line was acknowledged.
    for (at, count) in numbers {
        if let Some(key) = load.keys.get(at) {
            key.acknowledged.store(count, Relaxed);
        }
    }
    Ok(())
}

/// Reads what kcat consumes until told to stop, and has every line judged.
///
/// Errors: kcat cannot be started or ends early.
pub fn consume(load: &Load) -> Result<(), Broken> {
    let arguments = ["-C", "-o", "beginning", "-u", "-f", "%p %o %k %s\\n"];
    let mut child =
        kcat(load, &arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(broken("kcat"))?;
    let Some(output) = child.stdout.take() else { return Err(Broken("kcat gives no output".to_owned())) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                judge(load, &line);
            }
        });
        let outcome = loop {
            if load.state.consumed_enough.load(Relaxed) || load.state.is_broken() {
                break Ok(());
            }
            match child.try_wait() {
                Ok(None) => pause(LINGER),
                Ok(Some(status)) => {
                    let why = format!("kcat -C ended with {status}: {}", last_words(&mut child));
                    break Err(Broken(why));
                }
                Err(e) => break Err(Broken(format!("kcat -C: {e}"))),
            }
        };
        // Ended already in one of the cases.
        let _ = child.kill().and_then(|()| child.wait());
        outcome
    })
}

fn judge(load: &Load, line: &str) {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (partition, offset, key, number) = (word().parse(), word().parse(), word(), word().parse());
    let mut judge = load.state.judge.lock();
    match (partition, offset, number) {
        (Ok(partition), Ok(offset), Ok(number)) => judge.saw(partition, offset, key, number),
        _ => judge.saw_nonsense(format!("kcat printed '{line}', no record of the demo")),
    }
}

/// The last line that it wrote to its standard error.
fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(errors) = child.stderr.as_mut() {
        // It has ended, or is about to: what can be read is told.
        let _ = errors.take(64 << 10).read_to_string(&mut text);
    }
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
