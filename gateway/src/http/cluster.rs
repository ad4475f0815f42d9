//! `/api/v1/cluster`.

use super::HttpState;
use super::error::HttpError;
use super::shapes::{ClusterStatus, NodeStatus, VnodeStatus};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// `GET /api/v1/cluster`. A lone node is a control plane of one vnode with one voter.
pub async fn status(State(state): State<Arc<HttpState>>) -> Result<Json<ClusterStatus>, HttpError> {
    let serving = state.serving()?;
    let cluster = serving.api.cluster();
    let nodes = cluster
        .nodes
        .iter()
        .map(|(id, rack)| NodeStatus {
            id: id.0,
            address: serving.kafka_address.clone(),
            state: "alive".to_owned(),
            rack: rack.clone(),
        })
        .collect();
    let vnodes = vec![VnodeStatus { id: 0, leader: cluster.node.0, voters: vec![cluster.node.0] }];
    let (blocked, under_replicated) = (state.blocked(), state.under_replicated());
    Ok(Json(ClusterStatus { cluster_id: cluster.cluster_id, nodes, vnodes, blocked, under_replicated }))
}
