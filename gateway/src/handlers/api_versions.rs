//! ApiVersions (18), versions 0 to 4.
//!
//! v3: client software name and version (KIP-511), features (KIP-584). v4: features whose lowest level is 0.
//! Versions above are answered before they get here, see [`route`](crate::protocol::dispatch::route).

use super::{ConnectionInfo, Context};
use crate::protocol::dispatch::Close;
use crate::protocol::table::TABLE;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

/// One feature (KIP-584): what clients and tools may count on.
#[derive(Copy, Clone, Debug)]
pub(super) struct Feature {
    /// Its name.
    pub(super) name: &'static str,
    /// Lowest level that the program could run with. 0 is hidden from version 3, which cannot say it.
    pub(super) min: i16,
    /// The level that holds, which is the highest there is.
    pub(super) level: i16,
}

/// All of them, by name. `metadata.version` is that of the Kafka release whose behaviour is matched (4.1); with
/// `transaction.version` 2 writing adds partitions to transactions and each end raises the epoch (KIP-890);
/// `group.version` 1: coordinators assign (KIP-848).
pub(super) const FEATURES: &[Feature] = &[
    Feature { name: "group.version", min: 0, level: 1 },
    Feature { name: "metadata.version", min: 7, level: 27 },
    Feature { name: "transaction.version", min: 0, level: 2 },
];

/// Answers the table.
pub async fn handle(context: Context, request: ApiVersionsRequest) -> Result<ApiVersionsResponse, Close> {
    Ok(respond(context.version, &context.client.connection, &request))
}

/// The table, as a version shows it; notes the client's software.
pub(crate) fn respond(
    version: i16,
    connection: &ConnectionInfo,
    request: &ApiVersionsRequest,
) -> ApiVersionsResponse {
    if version >= 3 {
        let (name, release) = (&request.client_software_name, &request.client_software_version);
        if !is_software_word(name) || !is_software_word(release) {
            return ApiVersionsResponse::default().with_error_code(ResponseError::InvalidRequest.code());
        }
        *connection.software.lock() = Some((name.to_string(), release.to_string()));
    }
    let keys = TABLE
        .iter()
        .map(|row| {
            ApiVersion::default()
                .with_api_key(row.key)
                .with_min_version(row.advertised.min)
                .with_max_version(row.advertised.max)
        })
        .collect();
    let response = ApiVersionsResponse::default().with_api_keys(keys);
    if version < 3 {
        return response;
    }
    let supported = FEATURES.iter().filter(|feature| version >= 4 || feature.min > 0).map(|feature| {
        SupportedFeatureKey::default()
            .with_name(StrBytes::from_static_str(feature.name))
            .with_min_version(feature.min)
            .with_max_version(feature.level)
    });
    let finalized = FEATURES.iter().map(|feature| {
        FinalizedFeatureKey::default()
            .with_name(StrBytes::from_static_str(feature.name))
            .with_min_version_level(feature.level)
            .with_max_version_level(feature.level)
    });
    response
        .with_supported_features(supported.collect())
        .with_finalized_features_epoch(0)
        .with_finalized_features(finalized.collect())
}

/// Letters, digits, dots and dashes, starting and ending with a letter or digit.
fn is_software_word(word: &str) -> bool {
    let bytes = word.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}
