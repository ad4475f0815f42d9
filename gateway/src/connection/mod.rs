//! Sockets of Kafka clients: accepting, reading frames, keeping replies in order, writing.
//!
//! Owns connections and the memory of requests. Knows nothing of what a request means: a [`Service`] does.

mod accept;
mod budget;
mod coming;
mod door;
mod pace;
pub(crate) mod receive;
mod send;
mod task;

pub use budget::Budget;
pub use send::Wire;

use crate::handlers::{ClientInfo, ConnectionInfo, Context, Principal};
use crate::metrics::Metrics;
use crate::protocol::dispatch::{Answer, Close, Decoded, Work};
use crate::shared::{Settings, Shared};
use parking_lot::Mutex;
use rangeway_core::api::Lane;
use rangeway_core::config::connections::ConnectionLimits;
use rangeway_core::config::dynamic::DynamicConfigs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What answers requests.
pub trait Service: Send + Sync + 'static {
    /// Starts on a request. The future is polled by the connection's task, in the row's stage.
    fn call(&self, request: Decoded, connection: &Arc<ConnectionInfo>) -> Work<Result<Answer, Close>>;
    /// Told once, before the first connection: what is to be done whether clients come or not.
    fn begin(&self) {}
    /// What the operator set.
    fn settings(&self) -> &Settings;
    /// Connections at once; may be set anew while the node runs.
    fn connections_max(&self) -> usize {
        self.settings().connections_max
    }
    /// How they are bounded beside that; may be set anew while the node runs.
    fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits::of(&self.settings().node, &DynamicConfigs::default())
    }
    /// Where to count.
    fn metrics(&self) -> &Metrics;
    /// Memory of requests.
    fn budget(&self) -> &Arc<Budget>;
}

impl Service for Shared {
    fn call(&self, request: Decoded, connection: &Arc<ConnectionInfo>) -> Work<Result<Answer, Close>> {
        let Some(shared) = self.me() else {
            let api = request.row.name;
            return Box::pin(async move {
                Err(Close::Internal { api, why: "the gateway is stopping".to_owned() })
            });
        };
        let context = Context {
            api: self.api.clone(),
            principal: Principal::anonymous(),
            client: ClientInfo { id: request.client_id.clone(), connection: connection.clone() },
            version: request.version,
            shared,
        };
        (request.row.handler)(context, request)
    }

    fn begin(&self) {
        self.transactions.resume();
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn connections_max(&self) -> usize {
        let set = self.api.catalog().dynamic.connections_max().unwrap_or(self.settings.connections_max);
        set.min(self.settings.connections_fit)
    }

    fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits::of(&self.settings.node, &self.api.catalog().dynamic)
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

/// Accepts connections until `stop`, then lets requests in progress finish for a short while.
///
/// Errors: only those of the listener itself; what happens on a connection stays there.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: Arc<S>,
    stop: CancellationToken,
) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let tracker = TaskTracker::new();
    let mut failures = accept::Failures::default();
    let quiet = Arc::new(Mutex::new(accept::Quiet::default()));
    let (addresses, mut rate) = (Arc::new(door::Addresses::default()), door::Rate::default());
    service.begin();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // Neither is the listener's end.
            Err(error) => {
                let pause = failures.pause(&error, Instant::now());
                if let Some(times) = pause.log {
                    tracing::warn!(%error, times, "connections cannot be accepted");
                }
                service.metrics().accept_failures.fetch_add(1, Relaxed);
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(pause.wait) => continue,
                }
            }
        };
        failures.over();
        let metrics = service.metrics();
        metrics.accepted.fetch_add(1, Relaxed);
        let limits = service.connection_limits();
        let wait = rate.wait(limits.rate, Instant::now());
        if !wait.is_zero() {
            if let Some(suppressed) = quiet.lock().line(Instant::now()) {
                tracing::warn!(%peer, rate = limits.rate, suppressed, "connections come too fast: they wait");
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        let limit = service.connections_max();
        if metrics.connections.load(Relaxed) >= limit as u64 {
            if let Some(suppressed) = quiet.lock().line(Instant::now()) {
                tracing::warn!(%peer, limit, suppressed, "connection refused: too many");
            }
            metrics.count_closed("too_many");
            continue;
        }
        let address = peer.ip().to_canonical();
        let limit = limits.of_address(address);
        let Some(seat) = addresses.enter(address, limit) else {
            if let Some(suppressed) = quiet.lock().line(Instant::now()) {
                tracing::warn!(%address, limit, suppressed, "connection refused: too many of its address");
            }
            metrics.count_closed("too_many_per_ip");
            continue;
        };
        let local = stream.local_addr().unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "TCP_NODELAY not set");
        }
        let info = Arc::new(ConnectionInfo {
            number: NUMBER.fetch_add(1, Relaxed),
            peer,
            local,
            software: Mutex::new(None),
            lane: Lane::default(),
        });
        metrics.connections.fetch_add(1, Relaxed);
        let task = task::run(stream, info, service.clone(), stop.clone(), quiet.clone());
        tracker.spawn(async move {
            task.await;
            drop(seat);
        });
    }
    tracker.close();
    tracker.wait().await;
    Ok(())
}
