//! DescribeCluster (60), versions 0 to 2.
//!
//! v1: endpoint type (KIP-919); only brokers are here. v2: fenced brokers (KIP-1073); there are none.

use super::Context;
use super::metadata::{OPERATIONS_UNKNOWN, cluster_operations};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;

/// Endpoint type of brokers.
const BROKERS: i8 = 1;
/// Endpoint type of controllers.
const CONTROLLERS: i8 = 2;

/// Describes the nodes.
pub async fn handle(
    context: Context,
    request: DescribeClusterRequest,
) -> Result<DescribeClusterResponse, Close> {
    let response = DescribeClusterResponse::default().with_cluster_authorized_operations(OPERATIONS_UNKNOWN);
    if context.version >= 1 && request.endpoint_type != BROKERS {
        let code = match request.endpoint_type {
            CONTROLLERS => ResponseError::MismatchedEndpointType,
            _ => ResponseError::UnsupportedEndpointType,
        };
        let message = "this listener has broker endpoints (type 1) only";
        return Ok(response
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_static_str(message)))
            .with_endpoint_type(request.endpoint_type));
    }
    let cluster = context.api.cluster();
    let (host, port) = context.client.node_address(&context.shared);
    let brokers = cluster
        .nodes
        .iter()
        .filter(|(node, _)| *node == cluster.node)
        .map(|(node, rack)| {
            DescribeClusterBroker::default()
                .with_broker_id(BrokerId(node.0))
                .with_host(StrBytes::from_string(host.clone()))
                .with_port(i32::from(port))
                .with_rack(rack.clone().map(StrBytes::from_string))
        })
        .collect();
    let mut response = response
        .with_endpoint_type(BROKERS)
        .with_cluster_id(StrBytes::from_string(cluster.cluster_id))
        .with_controller_id(BrokerId(cluster.node.0))
        .with_brokers(brokers);
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = cluster_operations(&context);
    }
    Ok(response)
}
