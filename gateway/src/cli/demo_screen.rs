//! What `rangeway demo` shows while it runs: a picture that is drawn over itself on a terminal, lines elsewhere.

use crate::demo::script::{Range, Step};
use crate::demo::{Snapshot, View};
use std::fmt::Write as _;
use std::time::Duration;

/// Columns of a partition in the range map.
const PARTITION_COLUMNS: usize = 4;
/// Where no terminal is, one line in so much time.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// On a terminal.
#[derive(Debug)]
pub struct Live {
    partitions: i32,
    colours: bool,
    drawn: bool,
    last_step: String,
}

impl Live {
    /// Nothing is drawn yet. `NO_COLOR` is heeded.
    pub fn new(partitions: i32) -> Live {
        let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Live { partitions, colours, drawn: false, last_step: "nothing yet".to_owned() }
    }
}

impl View for Live {
    fn stepped(&mut self, step: Step, outcome: &Result<Option<f64>, String>) {
        self.last_step = sentence(step, outcome);
    }

    fn show(&mut self, now: &Snapshot) {
        let map = match self.colours {
            true => coloured_map(&now.ranges),
            false => range_map(&now.ranges, self.partitions),
        };
        let lines = [
            format!("{:>3} of {} s", now.elapsed.as_secs(), now.time.as_secs()),
            map,
            counts(now),
            pauses(now),
            format!("last: {}", self.last_step),
            verdict(now),
        ];
        // What is wider than the terminal is cut there: a line that went on below would move the picture.
        let mut text = String::from("\x1b[?7l");
        if self.drawn {
            // Writing to a String cannot fail.
            let _ = write!(text, "\x1b[{}A", lines.len());
        }
        for line in lines {
            let _ = writeln!(text, "\x1b[2K{line}");
        }
        text.push_str("\x1b[?7h");
        self.drawn = true;
        // A terminal that went away ends the process by its signal.
        let _ = super::print(&text);
    }
}

/// Where no terminal is.
#[derive(Debug)]
pub struct Lines {
    partitions: i32,
    next: Duration,
}

impl Lines {
    /// The first line comes after a second.
    pub fn new(partitions: i32) -> Lines {
        Lines { partitions, next: LINE_EVERY }
    }
}

impl View for Lines {
    fn stepped(&mut self, step: Step, outcome: &Result<Option<f64>, String>) {
        // Whoever reads may have gone (`| head`); the demo goes on and its exit code tells.
        let _ = super::print(&format!("{}\n", sentence(step, outcome)));
    }

    fn show(&mut self, now: &Snapshot) {
        if now.elapsed < self.next {
            return;
        }
        self.next = now.elapsed + LINE_EVERY;
        let map = range_map(&now.ranges, self.partitions);
        let (seconds, counts, verdict) = (now.elapsed.as_secs(), counts(now), verdict(now));
        let _ = super::print(&format!("{seconds:>3} s {map}\n      {counts}, {verdict}\n"));
    }
}

fn sentence(step: Step, outcome: &Result<Option<f64>, String>) -> String {
    let what = match step {
        Step::Split { range, at } => format!("split {range} at partition {at}"),
        Step::Merge { left, right } => format!("merge {left} and {right}"),
    };
    match outcome {
        Ok(Some(ms)) => format!("{what}: no appends for {ms:.1} ms"),
        Ok(None) => what,
        Err(why) => format!("{what}: not now: {why}"),
    }
}

fn counts(now: &Snapshot) -> String {
    format!(
        "produced {:>9} {:>7.0}/s   consumed {:>9} {:>7.0}/s",
        now.produced, now.produced_per_second, now.consumed, now.consumed_per_second
    )
}

fn pauses(now: &Snapshot) -> String {
    let steps = &now.steps;
    format!(
        "splits {} merges {}   pause {:.1} ms, longest {:.1} ms",
        steps.splits, steps.merges, steps.last_pause_ms, steps.longest_pause_ms
    )
}

fn verdict(now: &Snapshot) -> String {
    match now.faults {
        0 => "in order, nothing lost, nothing twice".to_owned(),
        faults => format!("{faults} FAULTS"),
    }
}

/// The keyspace from left to right, a cell for each range: `|12         |15 |16 |`.
fn range_map(ranges: &[Range], partitions: i32) -> String {
    let mut line = String::from("|");
    let mut shown = 0;
    for range in ranges {
        let columns = columns(range);
        line.push_str(&cell(range.id, columns - 1));
        line.push('|');
        shown += columns;
    }
    let whole = usize::try_from(partitions).unwrap_or(0) * PARTITION_COLUMNS;
    line.push_str(&" ".repeat(whole.saturating_sub(shown)));
    line
}

/// The same in colours, neighbours never alike.
fn coloured_map(ranges: &[Range]) -> String {
    const COLOURS: [u8; 6] = [24, 64, 94, 54, 30, 88];
    let mut line = String::new();
    let mut before = None;
    for range in ranges {
        let mut at = range.id as usize % COLOURS.len();
        if before == Some(at) {
            at = (at + 1) % COLOURS.len();
        }
        before = Some(at);
        let colour = COLOURS.get(at).copied().unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = write!(line, "\x1b[48;5;{colour}m\x1b[97m{}\x1b[0m", cell(range.id, columns(range)));
    }
    line
}

fn columns(range: &Range) -> usize {
    usize::try_from(range.width()).unwrap_or(0).max(1) * PARTITION_COLUMNS
}

/// A number cut or filled to so many columns.
fn cell(id: u32, columns: usize) -> String {
    let text = id.to_string();
    // Digits only: bytes are columns.
    match text.get(text.len().saturating_sub(columns)..) {
        Some(end) => format!("{end:<columns$}"),
        None => " ".repeat(columns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_as_wide_as_the_topic_and_names_every_range() {
        let range = |id, first, last| Range { id, first, last };
        let ranges = [range(7, 0, 1), range(12345, 2, 2), range(9, 3, 3)];
        assert_eq!(range_map(&ranges, 4), "|7      |345|9  |");
        assert_eq!(range_map(&ranges[..1], 4), "|7      |        ");
        let coloured = coloured_map(&[range(0, 0, 0), range(6, 1, 1)]);
        assert_eq!(coloured, "\x1b[48;5;24m\x1b[97m0   \x1b[0m\x1b[48;5;64m\x1b[97m6   \x1b[0m");
    }
}
