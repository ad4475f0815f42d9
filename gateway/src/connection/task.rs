//! One connection: a task that reads frames, polls what is in progress, and writes replies in request order.

use super::Service;
use crate::handlers::ConnectionInfo;
use crate::metrics::Metrics;
use crate::protocol::dispatch::{Answer, Close, Decoded, Frame, Reply, Routed, Work, route};
use crate::protocol::table::{Row, Stage};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use rangeway_core::api::Piece;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context as Cx, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

/// Requests in progress on one connection.
const IN_PROGRESS_MAX: usize = 64;

/// Why a connection ended.
enum End {
    /// The client closed it.
    Client,
    /// The socket failed.
    Io(io::Error),
    /// Nothing came for too long.
    Idle,
    /// The node stops.
    Stopping,
    /// A request says so.
    Refused(Close),
}

/// A request in progress.
struct Slot {
    row: &'static Row,
    since: Instant,
    state: State,
}

enum State {
    /// Not issued.
    Issue(Work<Result<Answer, Close>>),
    /// Issued, not done.
    Wait(Work<Result<Reply, Close>>),
    /// Done.
    Done(Result<Reply, Close>),
}

/// Requests in progress, in order of arrival.
#[derive(Default)]
struct Pipeline {
    slots: VecDeque<Slot>,
}

impl Pipeline {
    fn is_full(&self) -> bool {
        self.slots.len() >= IN_PROGRESS_MAX
    }

    /// Goes on with everything that may go on; the oldest request's reply once it is there.
    fn poll(&mut self, cx: &mut Cx<'_>) -> Poll<(&'static Row, Instant, Result<Reply, Close>)> {
        let mut earlier_unissued = false;
        for slot in &mut self.slots {
            if let State::Issue(work) = &mut slot.state {
                let held = slot.row.stage == Stage::Ordered && earlier_unissued;
                if !held {
                    match work.as_mut().poll(cx) {
                        Poll::Pending => {}
                        Poll::Ready(Ok(Answer::Now(reply))) => slot.state = State::Done(Ok(reply)),
                        Poll::Ready(Ok(Answer::Later(work))) => slot.state = State::Wait(work),
                        Poll::Ready(Err(close)) => slot.state = State::Done(Err(close)),
                    }
                }
            }
            if slot.row.stage == Stage::Ordered && matches!(slot.state, State::Issue(_)) {
                earlier_unissued = true;
            }
            if let State::Wait(work) = &mut slot.state
                && let Poll::Ready(reply) = work.as_mut().poll(cx)
            {
                slot.state = State::Done(reply);
            }
        }
        match self.slots.front().map(|slot| &slot.state) {
            Some(State::Done(_)) => {}
            _ => return Poll::Pending,
        }
        match self.slots.pop_front() {
            Some(Slot { row, since, state: State::Done(reply) }) => Poll::Ready((row, since, reply)),
            _ => Poll::Pending,
        }
    }
}

/// Serves one connection to its end; logs and counts why it ended.
pub(super) async fn run<T, S>(stream: T, info: Arc<ConnectionInfo>, service: Arc<S>, stop: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
    S: Service,
{
    let end = drive(stream, &info, &*service, stop).await;
    let metrics = service.metrics();
    metrics.connections.fetch_sub(1, Relaxed);
    report(&end, &info, metrics);
}

fn report(end: &End, info: &ConnectionInfo, metrics: &Metrics) {
    let (connection, peer) = (info.number, info.peer);
    let reason = match end {
        End::Client => "client",
        End::Io(error) => {
            tracing::debug!(connection, %peer, %error, "connection failed");
            "io"
        }
        End::Idle => "idle",
        End::Stopping => "stopping",
        End::Refused(close) => {
            tracing::warn!(connection, %peer, reason = %close, "connection closed");
            close.reason()
        }
    };
    metrics.count_closed(reason);
}

async fn drive<T, S>(mut stream: T, info: &Arc<ConnectionInfo>, service: &S, stop: CancellationToken) -> End
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
    S: Service,
{
    let settings = service.settings();
    let mut received = BytesMut::new();
    let mut pipeline = Pipeline::default();
    loop {
        loop {
            if pipeline.is_full() {
                break;
            }
            let frame = match next_frame(&mut received, settings.frame_bytes_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(close) => return End::Refused(close),
            };
            match begin(frame, info, service) {
                Ok(slot) => pipeline.slots.push_back(slot),
                Err(close) => return End::Refused(close),
            }
        }
        tokio::select! {
            biased;
            (row, since, reply) = poll_fn(|cx| pipeline.poll(cx)) => {
                let counters = service.metrics().api(row);
                match reply {
                    Ok(reply) => {
                        let size = reply.as_ref().map_or(0, |f| f.iter().map(Piece::len).sum());
                        if let Some(counters) = counters {
                            counters.count_reply(since.elapsed(), size);
                        }
                        if let Some(frame) = reply
                            && let Err(error) = write(&mut stream, frame).await
                        {
                            return End::Io(error);
                        }
                    }
                    Err(close) => {
                        if let Some(counters) = counters {
                            counters.count_error(&close);
                        }
                        return End::Refused(close);
                    }
                }
            }
            read = stream.read_buf(&mut received), if !pipeline.is_full() => match read {
                Ok(0) => return End::Client,
                Ok(_) => {}
                Err(error) => return End::Io(error),
            },
            () = tokio::time::sleep(settings.connection_idle), if pipeline.slots.is_empty() => return End::Idle,
            () = stop.cancelled(), if pipeline.slots.is_empty() => return End::Stopping,
        }
    }
}

fn begin<S: Service>(frame: Bytes, info: &Arc<ConnectionInfo>, service: &S) -> Result<Slot, Close> {
    let bytes = frame.len() as u64;
    let since = Instant::now();
    let (row, state) = match route(frame)? {
        Routed::Reply(row, frame) => (row, State::Done(Ok(Some(frame)))),
        Routed::Call(request) => (request.row, State::Issue(guarded(request, info, service))),
    };
    if let Some(counters) = service.metrics().api(row) {
        counters.requests.fetch_add(1, Relaxed);
        counters.bytes_in.fetch_add(bytes, Relaxed);
    }
    Ok(Slot { row, since, state })
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

/// Takes a whole frame off what was received, without its length prefix.
fn next_frame(received: &mut BytesMut, most: usize) -> Result<Option<Bytes>, Close> {
    let Some(prefix) = received.first_chunk::<4>() else { return Ok(None) };
    let got = i32::from_be_bytes(*prefix);
    let length = usize::try_from(got).ok().filter(|n| *n <= most).ok_or(Close::FrameSize { got, most })?;
    if received.len() < 4 + length {
        return Ok(None);
    }
    let mut frame = received.split_to(4 + length);
    let _ = frame.split_to(4);
    Ok(Some(frame.freeze()))
}

async fn write<T: AsyncWrite + Unpin>(stream: &mut T, frame: Frame) -> io::Result<()> {
    for piece in frame {
        match piece {
            Piece::Memory(bytes) => stream.write_all(&bytes).await?,
            Piece::File(slice) => {
                let mut bytes = vec![0; slice.len as usize];
                std::os::unix::fs::FileExt::read_exact_at(&*slice.file, &mut bytes, slice.position)?;
                stream.write_all(&bytes).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
