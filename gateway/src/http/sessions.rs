//! The HTTP port's connections: how many there are, how long each lasts, how they end. Knows no routes.

use super::limits::Limits;
use super::listen::Shaped;
use super::places::{Entry, Event, Places};
use axum::Router;
use axum::extract::Request;
use axum::serve::Listener;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// That no place is left is logged at most so often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Serves until `stop` completes, then lets running requests end.
pub(super) async fn serve(
    mut listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()>,
    limits: Limits,
) {
    let mut door = Door::new(limits);
    let (stopping, sessions) = (CancellationToken::new(), TaskTracker::new());
    let mut stop = pin!(stop);
    loop {
        let (stream, seat) = tokio::select! {
            next = door.next(&mut listener) => next,
            () = &mut stop => break,
        };
        sessions.spawn(session(stream, routes.clone(), stopping.clone(), limits, seat));
    }
    stopping.cancel();
    sessions.close();
    sessions.wait().await;
}

/// The places, and that one of them changed.
struct Room {
    places: Mutex<Places>,
    changed: Notify,
}

/// Lets in one connection after another.
struct Door {
    room: Arc<Room>,
    logged_at: Option<Instant>,
    limits: Limits,
}

impl Door {
    fn new(limits: Limits) -> Door {
        let room = Room { places: Mutex::new(Places::new(limits)), changed: Notify::new() };
        Door { room: Arc::new(room), logged_at: None, limits }
    }

    /// The next connection, once there is a place for it.
    async fn next(&mut self, listener: &mut TcpListener) -> (TcpStream, Seat) {
        // Waits where descriptors run out.
        let (stream, _) = Listener::accept(listener).await;
        loop {
            let entry = self.room.places.lock().enter(Instant::now());
            match entry {
                Entry::Taken(id, end) => {
                    return (stream, Seat { at: At { room: self.room.clone(), id }, end });
                }
                Entry::Full(wait) => {
                    self.say_full();
                    // The one waiter: what changes meanwhile is not missed.
                    let _ =
                        tokio::time::timeout(wait.unwrap_or(LOG_EVERY), self.room.changed.notified()).await;
                }
            }
        }
    }

    fn say_full(&mut self) {
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged_at = Some(Instant::now());
            tracing::warn!(
                "{} HTTP connections are open: for each further one that is closed which has waited longest for a request",
                self.limits.connections
            );
        }
    }
}

/// Where a connection is in the room.
#[derive(Clone)]
struct At {
    room: Arc<Room>,
    id: u64,
}

impl At {
    /// Takes note of what happened; whether the connection goes on.
    fn tell(&self, event: Event) -> bool {
        let goes_on = self.room.places.lock().tell(self.id, event, Instant::now());
        self.room.changed.notify_one();
        goes_on
    }
}

/// A connection's place, as long as it is open.
struct Seat {
    at: At,
    /// The place is needed.
    end: CancellationToken,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.at.room.places.lock().leave(self.at.id);
        self.at.room.changed.notify_one();
    }
}

/// The connection ends for another one.
#[derive(Debug, thiserror::Error)]
#[error("closed to make room")]
struct MadeRoom;

/// One connection, from its first byte to its end.
async fn session(stream: TcpStream, routes: Router, stopping: CancellationToken, limits: Limits, seat: Seat) {
    let (at, routes) = (seat.at.clone(), TowerToHyperService::new(routes));
    let flushed = seat.at.clone();
    let stream = Shaped::new(stream, move || {
        flushed.tell(Event::Flushed);
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let answer = service_fn(move |request| answer(request, at.clone(), routes.clone()));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    // How it ended is the client's affair.
    tokio::select! {
        _ = &mut connection => return,
        () = seat.end.cancelled() => return,
        () = stopping.cancelled() => {}
        () = tokio::time::sleep(limits.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = tokio::time::timeout(limits.last_answer, connection) => {}
        () = seat.end.cancelled() => {}
    }
}

/// One request, with what the place is told of it.
async fn answer(
    request: Request<Incoming>,
    at: At,
    routes: TowerToHyperService<Router>,
) -> Result<axum::http::Response<Told<axum::body::Body>>, MadeRoom> {
    if !at.tell(Event::Head) {
        return Err(MadeRoom);
    }
    let request = request.map(|body| Told { body, at: at.clone(), gone: Event::BodyRead });
    let Ok(answer) = routes.call(request).await;
    at.tell(Event::Answered);
    Ok(answer.map(|body| Told { body, at, gone: Event::Handed }))
}

/// A body that tells when it is done with.
struct Told<B> {
    body: B,
    at: At,
    gone: Event,
}

impl<B> Drop for Told<B> {
    fn drop(&mut self) {
        self.at.tell(self.gone);
    }
}

impl<B: Body + Unpin> Body for Told<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "sessions_test.rs"]
mod tests;
