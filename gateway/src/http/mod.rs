//! The HTTP port: health, metrics and administration. Owns routes, JSON bodies and status codes. Knows nothing of the
//! Kafka protocol; everything it does goes through core's door.
//!
//! It answers from the moment the port is bound: `/healthz` says that the process lives, `/readyz` what it waits
//! for, and the rest answers 503 until recovery is done.

mod body;
mod cluster;
mod error;
mod explain;
mod limits;
mod listen;
pub mod metrics;
mod operations;
mod page;
mod places;
mod ranges;
mod reshard;
mod sessions;
pub mod shapes;
mod topics;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use error::HttpError;
use limits::Limits;
use metrics::Source;
use rangeway_core::api::Api;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::net::TcpListener;

/// Of what a layer refused, so much is said, in bytes.
const REFUSAL_BYTES_MAX: usize = 1 << 16;

/// What the routes need. Made before recovery, completed by [`HttpState::ready`].
pub struct HttpState {
    started: Instant,
    serving: OnceLock<Serving>,
    stopping: OnceLock<()>,
    metrics: OnceLock<Source>,
    also_blocked: OnceLock<Reasons>,
}

/// Asks what keeps a part of the node from working.
pub type Reasons = Box<dyn Fn() -> Vec<String> + Send + Sync>;

impl fmt::Debug for HttpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpState").field("serving", &self.serving).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Serving {
    api: Api,
    kafka_address: String,
}

impl HttpState {
    /// A state that is not ready.
    pub fn new() -> Arc<HttpState> {
        Arc::new(HttpState {
            started: Instant::now(),
            serving: OnceLock::new(),
            stopping: OnceLock::new(),
            metrics: OnceLock::new(),
            also_blocked: OnceLock::new(),
        })
    }

    /// Also scrapes these counters, besides core's and the process's.
    pub fn count(&self, source: Source) {
        // There is one Kafka port; a second source would be a fault of the caller.
        assert!(self.metrics.set(source).is_ok(), "counters are named once");
    }

    /// Also shows these reasons, besides core's: those of the Kafka port.
    pub fn also_blocked(&self, reasons: Reasons) {
        // There is one Kafka port, as for its counters.
        assert!(self.also_blocked.set(reasons).is_ok(), "reasons are named once");
    }

    /// From here on the node serves. `kafka_address` is where clients reach it.
    pub fn ready(&self, api: Api, kafka_address: String) {
        // A second call would name the same node.
        let _ = self.serving.set(Serving { api, kafka_address });
    }

    /// From here on `/readyz` says that the node stops.
    pub fn stopping(&self) {
        let _ = self.stopping.set(());
    }

    fn serving(&self) -> Result<&Serving, HttpError> {
        self.serving.get().ok_or_else(HttpError::recovering)
    }

    fn api(&self) -> Result<&Api, HttpError> {
        self.serving().map(|serving| &serving.api)
    }

    fn under_replicated(&self) -> Vec<String> {
        self.serving.get().map_or_else(Vec::new, |serving| serving.api.under_replicated())
    }

    /// What the node waits for; empty when it serves everything.
    fn blocked(&self) -> Vec<String> {
        if self.stopping.get().is_some() {
            return vec!["stopping".to_owned()];
        }
        match self.serving.get() {
            Some(serving) => {
                let mut reasons = serving.api.blocked();
                reasons.extend(self.also_blocked.get().map_or_else(Vec::new, |more| more()));
                reasons
            }
            None => vec!["recovering".to_owned()],
        }
    }
}

/// Serves until `stop` completes, then lets running requests end. No client holds a connection for good: [`Limits`].
pub async fn serve(
    listener: TcpListener,
    state: Arc<HttpState>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let limits = Limits::default();
    sessions::serve(listener, router(state, limits), stop, limits).await;
}

fn router(state: Arc<HttpState>, limits: Limits) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route("/page.css", get(page::style))
        .route("/page.js", get(page::script))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .route("/api/v1/topics", get(topics::list).post(topics::create))
        .route("/api/v1/topics/{topic}", get(topics::describe).patch(topics::alter).delete(topics::delete))
        .route("/api/v1/topics/{topic}/ranges", get(ranges::list))
        .route("/api/v1/topics/{topic}/ranges/explain", get(ranges::explain))
        .route("/api/v1/topics/{topic}/ranges/merge", post(reshard::merge))
        .route("/api/v1/topics/{topic}/ranges/{range}/split", post(reshard::split))
        .route("/api/v1/operations", get(operations::list))
        .route("/api/v1/operations/{operation}", get(operations::show))
        .route("/api/v1/operations/{operation}/abort", post(operations::abort))
        .route("/api/v1/cluster", get(cluster::status))
        .fallback(no_such_page)
        .method_not_allowed_fallback(no_such_method)
        // Bodies are read, and bounded, by the layer below.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(move |request, next| body::read(limits, request, next)))
        .layer(middleware::from_fn(refuse_other_sites))
        .layer(middleware::from_fn(shape_errors))
        .with_state(state)
}

/// A page of another site must not administer a node through its visitor's browser: browsers name the site of a
/// request that changes something in `Origin`. A page whose own name was made to resolve to this node names itself there
/// and in `Host`, so a browser is served under an address or `localhost` only.
async fn refuse_other_sites(request: Request<Body>, next: Next) -> Response {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if changes && let Some(origin) = request.headers().get(header::ORIGIN) {
        let site = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host);
        let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok());
        if site.is_none() || site != host || !host.is_some_and(is_no_name) {
            return HttpError::cross_origin().into_response();
        }
    }
    next.run(request).await
}

/// What a layer or an extractor refused in plain text gets the shape of all errors. `/readyz` answers lines on purpose.
async fn shape_errors(request: Request<Body>, next: Next) -> Response {
    let lines = request.uri().path() == "/readyz";
    let response = next.run(request).await;
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|t| t == "application/json");
    if lines || is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let said = axum::body::to_bytes(body, REFUSAL_BYTES_MAX).await.unwrap_or_default();
    let mut shaped = HttpError::refused(status, &String::from_utf8_lossy(&said)).into_response();
    if let Some(allow) = parts.headers.get(header::ALLOW) {
        shaped.headers_mut().insert(header::ALLOW, allow.clone());
    }
    shaped
}

/// Whether a `Host` is an address or `localhost`, with or without a port.
fn is_no_name(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok()
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(state): State<Arc<HttpState>>) -> (StatusCode, String) {
    let damage = state.serving.get().map_or_else(Vec::new, |serving| serving.api.damage());
    let damage = damage.iter().map(|line| format!("damaged: {line}"));
    let thin = state.under_replicated();
    let thin = thin.iter().map(|line| format!("under-replicated: {line}"));
    let (status, mut lines) = match state.blocked() {
        lines if lines.is_empty() => (StatusCode::OK, vec!["ok".to_owned()]),
        lines => (StatusCode::SERVICE_UNAVAILABLE, lines),
    };
    lines.extend(damage);
    lines.extend(thin);
    (status, lines.join("\n") + "\n")
}

async fn scrape(State(state): State<Arc<HttpState>>) -> Response {
    let mut families = metrics::process(state.started);
    if let Some(source) = state.metrics.get() {
        families.extend(source());
    }
    if let Some(serving) = state.serving.get() {
        families.extend(metrics::core(serving.api.metrics()));
    }
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], metrics::render(&families)).into_response()
}

async fn no_such_page(request: Request<Body>) -> HttpError {
    HttpError::no_such_page(request.uri().path())
}

async fn no_such_method(request: Request<Body>) -> HttpError {
    HttpError::no_such_method(request.method(), request.uri().path())
}

#[cfg(test)]
mod tests {
    use super::is_no_name;

    #[test]
    fn a_browser_is_served_under_addresses_and_localhost_only() {
        for host in ["127.0.0.1", "127.0.0.1:9180", "localhost:9180", "LOCALHOST", "[::1]:9180", "[::1]"] {
            assert!(is_no_name(host), "{host}");
        }
        for host in ["evil.example:9180", "127.0.0.1.evil.example", "", "[evil]", "localhost.evil.example"] {
            assert!(!is_no_name(host), "{host}");
        }
    }
}
