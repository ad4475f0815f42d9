//! The clients of a run: starting them, hearing them, telling them how far to go.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::clients::{Client, Library, Programs};

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(50);

/// All clients that were started, in that order; a client's number is its place.
#[derive(Debug)]
pub struct Drive {
    /// Them.
    pub clients: Vec<Client>,
    /// Whether a member comes or goes, so that assignments are expected.
    pub planned: bool,
    /// Assignments that were not.
    pub rebalances: Vec<String>,
    programs: Programs,
    logs: PathBuf,
    sender: Sender<(usize, Option<String>)>,
    lines: Receiver<(usize, Option<String>)>,
    deadline: Instant,
}

impl Drive {
    /// One without clients yet; their stderr goes to the folder `logs`.
    pub fn new(programs: Programs, logs: PathBuf, deadline: Instant) -> Self {
        let (sender, lines) = mpsc::channel();
        let (clients, rebalances) = (Vec::new(), Vec::new());
        Self { clients, planned: true, rebalances, programs, logs, sender, lines, deadline }
    }

    /// Starts a client; answers its number.
    pub fn start(&mut self, library: Library, name: &str, arguments: &[String]) -> Result<usize> {
        let number = self.clients.len();
        let client = Client::start(
            &self.programs,
            library,
            (number, name),
            arguments,
            &self.logs,
            self.sender.clone(),
        )?;
        self.clients.push(client);
        Ok(number)
    }

    /// Hears the clients until `ready`; calls `tick` in between. Errors: the time is over, or a client ended early.
    pub fn until(
        &mut self,
        what: &str,
        mut tick: impl FnMut(&mut Self),
        ready: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let mut due = Instant::now();
        while !ready(self) {
            if Instant::now() >= due {
                due = Instant::now() + TICK;
                tick(self);
            }
            if Instant::now() > self.deadline {
                bail!("the time was over while waiting for {what}: {}", self.standing());
            }
            if let Ok((number, line)) = self.lines.recv_timeout(TICK) {
                self.hear(number, line)?;
            }
        }
        Ok(())
    }

    /// Tells several the same.
    pub fn tell(&mut self, numbers: &[usize], line: &str) {
        numbers.iter().for_each(|number| self.clients[*number].tell(line));
    }

    /// Tells some to stop and waits until they have said everything.
    pub fn stop(&mut self, numbers: &[usize]) -> Result<()> {
        self.tell(numbers, "stop");
        self.finish(numbers)
    }

    /// Waits until they have said everything.
    pub fn finish(&mut self, numbers: &[usize]) -> Result<()> {
        let done = |drive: &Self| numbers.iter().all(|number| drive.clients[*number].ended);
        self.until("a client's end", |_| (), done)
    }

    fn hear(&mut self, number: usize, line: Option<String>) -> Result<()> {
        let client = &mut self.clients[number];
        let Some(line) = line else {
            client.ended = true;
            if !client.report.done {
                bail!("{} ended early: {}", client.name, client.complaints());
            }
            return Ok(());
        };
        let before = client.report.assignments;
        client.report.take(&line).with_context(|| client.name.clone())?;
        if client.report.assignments > before && !self.planned {
            self.rebalances.push(client.name.clone());
        }
        Ok(())
    }

    /// Where everybody stands, for people.
    fn standing(&self) -> String {
        let of = |client: &Client| {
            let report = &client.report;
            let end = if client.ended { " ended" } else { "" };
            format!("{} acked {} read {}{end}", client.name, report.acked, report.read)
        };
        self.clients.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}
