//! A node within a command: as `serve` assembles it, on free ports of this machine.

use super::failure::Failure;
use super::serve::{Reach, bind, local, not_started, options, settings};
use crate::config::{self, layers::Origin, layers::Setting};
use crate::connection;
use crate::http::{self, HttpState};
use crate::shared::Shared;
use rangeway_core::api::Api;
use rangeway_core::node::Node;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A running node with its ports.
pub struct Embedded {
    /// The door into core.
    pub api: Api,
    /// Its Kafka port.
    pub kafka: SocketAddr,
    /// Its HTTP port.
    pub http: SocketAddr,
    node: Node,
    shared: Arc<Shared>,
    state: Arc<HttpState>,
    stop: CancellationToken,
}

impl Embedded {
    /// Starts one on the data in `data`. Settings of the environment are for `serve` and do not count.
    ///
    /// Errors: as of `serve`.
    pub async fn start(data: &Path) -> Result<Embedded, Failure> {
        let flags = [("kafka.bind", "127.0.0.1:0"), ("http.bind", "127.0.0.1:0")];
        let flags = flags.map(|(key, value)| Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: Origin::Flag { flag: key.to_owned() },
        });
        let mut loaded =
            config::load(&flags).map_err(|errors| Failure::usage("invalid_config", errors.join("\n")))?;
        loaded.program.data = vec![data.to_owned()];
        let kafka = bind("kafka", &loaded.program.kafka, Reach::Loopback).await?;
        let http = bind("http", &loaded.program.http, Reach::Loopback).await?;
        let (kafka_at, http_at) = (local(&kafka)?, local(&http)?);
        let node = Node::start(options(&loaded)).await.map_err(not_started)?;
        let (state, stop) = (HttpState::new(), CancellationToken::new());
        let shared = Shared::new(node.api(), settings(&loaded));
        let metrics = shared.metrics.clone();
        state.count(Box::new(move || http::metrics::kafka(&metrics)));
        let coordinators = shared.clone();
        state.also_blocked(Box::new(move || coordinators.blocked()));
        // Both end with the token; the runtime's end ends what is left of them.
        tokio::spawn(http::serve(http, state.clone(), stop.clone().cancelled_owned()));
        tokio::spawn(connection::serve(kafka, shared.clone(), stop.clone()));
        state.ready(node.api(), kafka_at.to_string());
        Ok(Embedded { api: node.api(), kafka: kafka_at, http: http_at, node, shared, state, stop })
    }

    /// Stops it cleanly.
    pub async fn stop(self) {
        self.state.stopping();
        self.stop.cancel();
        self.shared.stop_coordinators().await;
        self.node.stop().await;
    }
}
