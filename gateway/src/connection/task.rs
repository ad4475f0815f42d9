//! One connection: a task that reads frames, polls what is in progress, and writes replies in request order.
//!
//! ```text
//! socket → frames → slots (in order) → replies of the front slots → one vectored write
//! ```
//! An ordered request is taken up when all earlier ordered ones are issued, so Produce on one connection is sequenced
//! in the order it came while earlier batches still wait for their disk. Nothing else runs between socket and core.
//! Work does not run ahead of what is written: a request is taken up while the replies before it that are not written are
//! below [`REPLIES_BYTES_MAX`], and a Fetch when the one before it is written.

use super::Service;
use super::accept::Quiet;
use super::budget::{Arrival, Charge};
use super::pace::Pace;
use super::receive::Receive;
use super::send::{Wire, send};
use crate::handlers::ConnectionInfo;
use crate::metrics::Metrics;
use crate::protocol::dispatch::{Answer, Close, Decoded, Frame, Reply, Routed, Work, route};
use crate::protocol::table::{Row, Stage};
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use rangeway_core::api::Piece;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context as Cx, Poll};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

/// Requests in progress on one connection.
const IN_PROGRESS_MAX: usize = 64;
/// Bytes of unwritten replies of a connection, beyond which nothing more is taken up.
const REPLIES_BYTES_MAX: usize = 256 << 10;
/// How often a connection looks at its clock.
const TICK: Duration = Duration::from_secs(5);
/// What a stopping node gives to requests in progress.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The client closed it.
    Client,
    /// The socket failed.
    Io(io::Error),
    /// Nothing came for too long.
    Idle,
    /// A frame had the idle limit and did not become whole, nor came it at any pace.
    Unfinished,
    /// A frame came too slowly while others waited for memory.
    Stalled,
    /// The node stops.
    Stopping,
    /// A request says so.
    Refused(Close),
}

/// A request in progress.
struct Slot {
    row: &'static Row,
    since: Instant,
    /// Whether it was taken up.
    begun: bool,
    state: State,
    /// Its memory, until its reply is taken.
    _charge: Charge,
}

enum State {
    /// Not issued.
    Issue(Work<Result<Answer, Close>>),
    /// Issued, not done.
    Wait(Work<Result<Reply, Close>>),
    /// Done; with the bytes of the reply.
    Done(Result<Reply, Close>, usize),
}

impl State {
    fn done(reply: Result<Reply, Close>) -> State {
        let frame = match &reply {
            Ok(reply) => reply.frame.as_ref(),
            Err(Close::ProduceHeld(frame)) => Some(frame),
            Err(_) => None,
        };
        let bytes = frame.map_or(0, |frame| frame.iter().map(Piece::len).sum());
        State::Done(reply, bytes)
    }
}

/// Replies that are not written.
#[derive(Copy, Clone, Debug, Default)]
struct Unwritten {
    bytes: usize,
    /// Whether one of a request in turn is, or will be, among them.
    in_turn: bool,
}

impl Unwritten {
    /// Whether a request behind these is not to be taken up yet.
    fn hold(self, stage: Stage) -> bool {
        self.bytes >= REPLIES_BYTES_MAX || stage == Stage::InTurn && self.in_turn
    }
}

/// The oldest request, once it is done.
struct Taken {
    row: &'static Row,
    since: Instant,
    reply: Result<Reply, Close>,
    bytes: usize,
}

/// Requests in progress, in order of arrival.
#[derive(Default)]
struct Pipeline {
    slots: VecDeque<Slot>,
    /// What was taken and is not written.
    unwritten: Unwritten,
}

impl Pipeline {
    fn is_full(&self) -> bool {
        self.slots.len() >= IN_PROGRESS_MAX
    }

    /// Goes on with everything that may go on; the oldest request's reply once it is there. Pending when there is none.
    fn poll(&mut self, cx: &mut Cx<'_>) -> Poll<Taken> {
        let mut earlier_unissued = false;
        let mut ahead = self.unwritten;
        for slot in &mut self.slots {
            if let State::Issue(work) = &mut slot.state {
                let stage = slot.row.stage;
                let held = stage == Stage::Ordered && earlier_unissued || !slot.begun && ahead.hold(stage);
                if !held {
                    slot.begun = true;
                    match work.as_mut().poll(cx) {
                        Poll::Pending => {}
                        Poll::Ready(Ok(Answer::Now(reply))) => slot.state = State::done(Ok(reply)),
                        Poll::Ready(Ok(Answer::Later(work))) => slot.state = State::Wait(work),
                        Poll::Ready(Err(close)) => slot.state = State::done(Err(close)),
                    }
                }
            }
            if slot.row.stage == Stage::Ordered && matches!(slot.state, State::Issue(_)) {
                earlier_unissued = true;
            }
            if let State::Wait(work) = &mut slot.state
                && let Poll::Ready(reply) = work.as_mut().poll(cx)
            {
                slot.state = State::done(reply);
            }
            ahead.in_turn |= slot.row.stage == Stage::InTurn;
            if let State::Done(_, bytes) = &slot.state {
                ahead.bytes += bytes;
            }
        }
        match self.slots.front().map(|slot| &slot.state) {
            Some(State::Done(..)) => {}
            _ => return Poll::Pending,
        }
        match self.slots.pop_front() {
            Some(Slot { row, since, state: State::Done(reply, bytes), .. }) => {
                self.unwritten.bytes += bytes;
                self.unwritten.in_turn |= row.stage == Stage::InTurn;
                Poll::Ready(Taken { row, since, reply, bytes })
            }
            _ => Poll::Pending,
        }
    }

    /// What was taken is written.
    fn written(&mut self) {
        self.unwritten = Unwritten::default();
    }

    /// Nobody is there to be told what requests in turn, which change nothing, come to: they end without.
    fn give_up(&mut self) {
        for slot in &mut self.slots {
            if slot.row.stage == Stage::InTurn && !matches!(slot.state, State::Done(..)) {
                slot.state = State::done(Ok(Reply::default()));
            }
        }
    }
}

/// Serves one connection to its end; logs and counts why it ended.
pub(super) async fn run<T: Wire, S: Service>(
    stream: T,
    info: Arc<ConnectionInfo>,
    service: Arc<S>,
    stop: CancellationToken,
    quiet: Arc<Mutex<Quiet>>,
) {
    struct Open<'a>(&'a Metrics);
    impl Drop for Open<'_> {
        fn drop(&mut self) {
            self.0.connections.fetch_sub(1, Relaxed);
        }
    }
    let _open = Open(service.metrics());
    let mut connection = Connection {
        stream,
        info: &info,
        service: &*service,
        receive: Receive::new(service.settings().frame_bytes_max),
        coming: None,
        pace: Pace::default(),
        pipeline: Pipeline::default(),
        refused: None,
        active: Instant::now(),
        stopping: None,
    };
    let end = connection.drive(stop).await;
    // The socket closes before the end is counted, so that what is counted is over.
    drop(connection);
    report(&end, &info, service.metrics(), || quiet.lock().line(Instant::now()));
}

/// Counts why a connection ended, and logs it where that is its client's doing, as far as `line` lets it.
fn report(end: &End, info: &ConnectionInfo, metrics: &Metrics, line: impl FnOnce() -> Option<u64>) {
    let (connection, peer) = (info.number, info.peer);
    let reason = match end {
        End::Client => "client",
        End::Io(error) => {
            tracing::debug!(connection, %peer, %error, "connection failed");
            "io"
        }
        End::Idle => "idle",
        End::Unfinished => {
            if let Some(suppressed) = line() {
                let why = "a part of a frame came and the rest did not in time (connections.idle.ms)";
                tracing::warn!(connection, %peer, reason = why, suppressed, "connection closed");
            }
            "unfinished"
        }
        End::Stalled => {
            if let Some(suppressed) = line() {
                let why = "others wait for memory (request.memory.bytes) and its frame came too slowly";
                tracing::warn!(connection, %peer, reason = why, suppressed, "connection closed");
            }
            "stalled"
        }
        End::Stopping => "stopping",
        End::Refused(close) => {
            if let Some(suppressed) = line() {
                tracing::warn!(connection, %peer, reason = %close, suppressed, "connection closed");
            }
            close.reason()
        }
    };
    metrics.count_closed(reason);
}

struct Connection<'a, T, S> {
    stream: T,
    info: &'a Arc<ConnectionInfo>,
    service: &'a S,
    receive: Receive,
    /// A frame that is still coming and needs more than an ordinary buffer.
    coming: Option<Arrival>,
    pace: Pace,
    pipeline: Pipeline,
    /// Why nothing more is read; the connection ends when what came before is answered.
    refused: Option<Close>,
    /// When bytes last moved.
    active: Instant,
    /// Since when the node stops.
    stopping: Option<Instant>,
}

/// What a connection wakes for.
enum Event {
    Reply(Taken),
    Read(io::Result<usize>),
    Room,
    Ended,
    Tick,
    Stop,
}

impl<T: Wire, S: Service> Connection<'_, T, S> {
    async fn drive(&mut self, stop: CancellationToken) -> End {
        let tick = tokio::time::sleep(TICK);
        tokio::pin!(tick);
        loop {
            self.take_up();
            if self.pipeline.slots.is_empty() {
                if let Some(close) = self.refused.take() {
                    return End::Refused(close);
                }
                if self.stopping.is_some() {
                    return End::Stopping;
                }
            }
            let open = self.refused.is_none() && self.stopping.is_none() && !self.pipeline.is_full();
            let room = if open { self.make_room() } else { self.rest() };
            match room && self.receive.is_begun() {
                true => self.pace.waits(Instant::now()),
                false => self.pace.ends(),
            }
            let event = {
                let budget = self.service.budget();
                let ended = self.coming.as_ref().map(Arrival::ended);
                let coming = &self.coming;
                let wait = async {
                    match coming {
                        Some(coming) => coming.wait().await,
                        None => budget.wait().await,
                    }
                };
                let pipeline = &mut self.pipeline;
                let stream = &mut self.stream;
                // A length out of bounds was found by `take_up`, before this.
                let into = if room { self.receive.room().ok() } else { None };
                let read = async {
                    match into {
                        Some(into) => stream.read_buf(into).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    taken = poll_fn(|cx| pipeline.poll(cx)) => Event::Reply(taken),
                    read = read => Event::Read(read),
                    () = wait, if open && !room => Event::Room,
                    () = over(ended) => Event::Ended,
                    () = &mut tick => Event::Tick,
                    () = stop.cancelled(), if self.stopping.is_none() => Event::Stop,
                }
            };
            let end = match event {
                Event::Reply(taken) => {
                    self.rest();
                    self.answer(taken).await
                }
                Event::Read(Ok(0)) => Some(End::Client),
                Event::Read(Ok(bytes)) => {
                    self.active = Instant::now();
                    self.receive.came(bytes);
                    self.pace.came(bytes);
                    if let Some(coming) = &self.coming {
                        coming.came(bytes);
                    }
                    self.account();
                    None
                }
                Event::Read(Err(error)) => Some(End::Io(error)),
                Event::Room => None,
                Event::Ended => Some(End::Stalled),
                Event::Tick => {
                    tick.as_mut().reset(tokio::time::Instant::now() + TICK);
                    // Where it is read, the read tells.
                    if !room && self.stream.is_left() {
                        self.pipeline.give_up();
                    }
                    self.look_at_clock()
                }
                Event::Stop => {
                    self.stopping = Some(Instant::now());
                    tick.as_mut().reset(tokio::time::Instant::now() + DRAIN_MAX);
                    None
                }
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Starts on the frames that are here.
    fn take_up(&mut self) {
        while self.refused.is_none() && self.stopping.is_none() && !self.pipeline.is_full() {
            match self.receive.next_frame() {
                Ok(Some(frame)) => {
                    self.coming = None;
                    self.pace.ends();
                    let charge = self.service.budget().charge(frame.len());
                    match begin(frame, charge, self.info, self.service) {
                        Ok(slot) => self.pipeline.slots.push_back(slot),
                        Err(close) => self.refused = Some(close),
                    }
                }
                Ok(None) => return,
                Err(close) => self.refused = Some(close),
            }
        }
    }

    /// Makes room to read into, if there is memory for it.
    fn make_room(&mut self) -> bool {
        let budget = self.service.budget();
        let may = match self.receive.unfinished() {
            None => budget.has_room(),
            Some(frame) => {
                let grows = self.receive.grows();
                self.coming.get_or_insert_with(|| budget.arrival()).may_read(&frame, grows)
            }
        };
        // A length out of bounds was found by `take_up`, before this.
        if may && self.receive.room().is_ok() {
            self.account();
        }
        may
    }

    /// Nothing is read for now, which is not the client's fault.
    fn rest(&mut self) -> bool {
        if let Some(coming) = &self.coming {
            coming.rests();
        }
        false
    }

    /// Accounts for a frame that is coming.
    fn account(&mut self) {
        match self.receive.unfinished() {
            None => self.coming = None,
            Some(frame) => {
                let budget = self.service.budget();
                self.coming.get_or_insert_with(|| budget.arrival()).holds(&frame);
            }
        }
    }

    /// Writes this reply and all that are ready behind it.
    async fn answer(&mut self, taken: Taken) -> Option<End> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut holds = Vec::new();
        let mut next = Some(taken);
        let mut end = None;
        while let Some(Taken { row, since, reply, bytes }) = next.take() {
            let counters = self.service.metrics().api(row);
            match reply {
                Ok(reply) => {
                    if let Some(counters) = counters {
                        counters.count_reply(since.elapsed(), bytes);
                    }
                    frames.extend(reply.frame);
                    holds.extend(reply.hold);
                }
                Err(Close::ProduceHeld(reply)) => {
                    if let Some(counters) = counters {
                        counters.count_reply(since.elapsed(), bytes);
                    }
                    frames.push(reply);
                    self.refused.get_or_insert_with(|| Close::ProduceHeld(Frame::new()));
                }
                Err(close) => {
                    if let Some(counters) = counters {
                        counters.count_error(&close);
                    }
                    end = Some(End::Refused(close));
                    break;
                }
            }
            next = poll_fn(|cx| match self.pipeline.poll(cx) {
                Poll::Ready(reply) => Poll::Ready(Some(reply)),
                Poll::Pending => Poll::Ready(None),
            })
            .await;
        }
        let patience = self.service.settings().connection_idle;
        match tokio::time::timeout(patience, send(&mut self.stream, &mut frames)).await {
            Ok(Ok(())) => {
                drop(holds);
                self.pipeline.written();
                self.active = Instant::now();
                end
            }
            Ok(Err(error)) => Some(End::Io(error)),
            Err(_) => Some(End::Idle),
        }
    }

    fn look_at_clock(&mut self) -> Option<End> {
        if self.stopping.is_some_and(|since| since.elapsed() >= DRAIN_MAX) {
            return Some(End::Stopping);
        }
        let limit = self.service.settings().connection_idle;
        if !self.pipeline.slots.is_empty() {
            return None;
        }
        if self.pace.is_too_slow(limit, Instant::now()) {
            return Some(End::Unfinished);
        }
        let idle = self.active.elapsed() >= limit;
        idle.then_some(if self.receive.is_begun() { End::Unfinished } else { End::Idle })
    }
}

/// Completes when a frame is to end; never without one.
async fn over(ended: Option<CancellationToken>) {
    match ended {
        Some(ended) => ended.cancelled().await,
        None => std::future::pending().await,
    }
}

fn begin<S: Service>(
    frame: Bytes,
    mut charge: Charge,
    info: &Arc<ConnectionInfo>,
    service: &S,
) -> Result<Slot, Close> {
    let bytes = frame.len();
    let since = Instant::now();
    let (row, state) = match route(frame)? {
        Routed::Reply(row, frame) => (row, State::done(Ok(frame.into()))),
        Routed::Call(request) => (request.row, State::Issue(guarded(request, info, service))),
    };
    charge.add(bytes.saturating_mul(row.memory.saturating_sub(1)));
    if let Some(counters) = service.metrics().api(row) {
        counters.requests.fetch_add(1, Relaxed);
        counters.bytes_in.fetch_add(bytes as u64, Relaxed);
    }
    Ok(Slot { row, since, begun: false, state, _charge: charge })
}

/// The service's work; a panic in it ends this connection only.
fn guarded<S: Service>(
    request: Decoded,
    info: &Arc<ConnectionInfo>,
    service: &S,
) -> Work<Result<Answer, Close>> {
    let api = request.row.name;
    let work = AssertUnwindSafe(service.call(request, info)).catch_unwind();
    Box::pin(work.map(move |done| match done {
        Ok(Ok(Answer::Later(work))) => Ok(Answer::Later(Box::pin(
            AssertUnwindSafe(work).catch_unwind().map(move |done| done.unwrap_or(Err(Close::Panic(api)))),
        ))),
        Ok(answer) => answer,
        Err(_) => Err(Close::Panic(api)),
    }))
}

#[cfg(test)]
mod tests;
