//! UpdateFeatures (57), versions 0 to 2 (KIP-584).
//!
//! v1: kinds of upgrades, validation only (KIP-778). v2: one error for all. The levels are the program's own: what asks for
//! the level that there is, is done already; nothing else can be.

use super::api_versions::FEATURES;
use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::update_features_response::UpdatableFeatureResult;
use kafka_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use kafka_protocol::protocol::StrBytes;

/// Refuses what would be a change; all of the request or nothing, as in Kafka.
pub async fn handle(
    context: Context,
    request: UpdateFeaturesRequest,
) -> Result<UpdateFeaturesResponse, Close> {
    let response = UpdateFeaturesResponse::default().with_error_message(None);
    if !context.authorize(Operation::Alter, Resource::Cluster) {
        return Ok(response
            .with_error_code(ResponseError::ClusterAuthorizationFailed.code())
            .with_error_message(text("not allowed to change features")));
    }
    let refused = request.feature_updates.iter().find_map(|update| judge(update).err());
    match refused {
        Some((code, message)) => Ok(response.with_error_code(code.code()).with_error_message(text(message))),
        None if context.version <= 1 => {
            let done = |update: &FeatureUpdateKey| {
                UpdatableFeatureResult::default()
                    .with_feature(update.feature.clone())
                    .with_error_message(Some(StrBytes::default()))
            };
            Ok(response.with_results(request.feature_updates.iter().map(done).collect()))
        }
        None => Ok(response),
    }
}

fn judge(update: &FeatureUpdateKey) -> Result<(), Refused> {
    let (name, level) = (update.feature.as_str(), update.max_version_level);
    let refused = |why: &str| {
        let why = format!(
            "The update failed for all features since the following feature had an error: Invalid update version \
             {level} for feature {name}. {why}"
        );
        Err((ResponseError::InvalidUpdateVersion, why))
    };
    match FEATURES.iter().find(|feature| feature.name == name) {
        None => refused("This node does not support this feature."),
        Some(feature) if feature.level == level => Ok(()),
        Some(feature) => {
            let why =
                format!("Its level is {}; it comes with the program and cannot be changed.", feature.level);
            refused(&why)
        }
    }
}
