//! The HTTP port's connections: how many there are, how long each lasts, how they end. Knows no routes.

use super::limits::Limits;
use super::listen::Shaped;
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// That connections wait is logged at most so often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Serves until `stop` completes, then lets running requests end.
pub(super) async fn serve(
    mut listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()>,
    limits: Limits,
) {
    let mut door = Door { free: Arc::new(Semaphore::new(limits.connections)), logged_at: None, limits };
    let (stopping, sessions) = (CancellationToken::new(), TaskTracker::new());
    let mut stop = pin!(stop);
    loop {
        let (stream, place) = tokio::select! {
            next = door.next(&mut listener) => next,
            () = &mut stop => break,
        };
        sessions.spawn(session(stream, routes.clone(), stopping.clone(), limits, place));
    }
    stopping.cancel();
    sessions.close();
    sessions.wait().await;
}

/// Lets in one connection after another.
struct Door {
    free: Arc<Semaphore>,
    logged_at: Option<Instant>,
    limits: Limits,
}

impl Door {
    /// The next connection, once there is a place for it.
    async fn next(&mut self, listener: &mut TcpListener) -> (TcpStream, OwnedSemaphorePermit) {
        if self.free.available_permits() == 0 && self.logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged_at = Some(Instant::now());
            tracing::warn!("{} HTTP connections are open: further ones wait", self.limits.connections);
        }
        // The semaphore is never closed.
        let place = self.free.clone().acquire_owned().await.expect("an open semaphore");
        // Waits where descriptors run out.
        let (stream, _) = Listener::accept(listener).await;
        (stream, place)
    }
}

/// One connection, from its first byte to its end.
async fn session(
    stream: TcpStream,
    routes: Router,
    stopping: CancellationToken,
    limits: Limits,
    place: OwnedSemaphorePermit,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let connection =
        builder.serve_connection(TokioIo::new(Shaped::new(stream)), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    // How it ended is the client's affair.
    tokio::select! {
        _ = &mut connection => return,
        () = stopping.cancelled() => {}
        () = tokio::time::sleep(limits.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits.last_answer, connection).await;
    drop(place);
}

#[cfg(test)]
#[path = "sessions_test.rs"]
mod tests;
