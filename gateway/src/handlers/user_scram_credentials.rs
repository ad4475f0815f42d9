//! DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), version 0 (KIP-554).
//!
//! No listener takes SASL, so no credentials are kept: none is found, and none can be set.

use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_user_scram_credentials_request::ScramCredentialUpsertion;
use kafka_protocol::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use kafka_protocol::messages::describe_user_scram_credentials_response::DescribeUserScramCredentialsResult;
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;

/// SCRAM-SHA-256 and SCRAM-SHA-512.
const MECHANISMS: std::ops::RangeInclusive<i8> = 1..=2;
/// How often a password may be hashed.
const ITERATIONS: std::ops::RangeInclusive<i32> = 4096..=16_384;

/// Finds nobody.
pub async fn describe(
    context: Context,
    request: DescribeUserScramCredentialsRequest,
) -> Result<DescribeUserScramCredentialsResponse, Close> {
    let response = DescribeUserScramCredentialsResponse::default().with_error_message(None);
    if !context.authorize(Operation::Describe, Resource::Cluster) {
        return Ok(response
            .with_error_code(ResponseError::ClusterAuthorizationFailed.code())
            .with_error_message(text("not allowed to see users")));
    }
    let mut times: BTreeMap<&StrBytes, usize> = BTreeMap::new();
    let named = request.users.iter().flatten().map(|user| &user.name);
    named.for_each(|name| *times.entry(name).or_default() += 1);
    let results = times.into_iter().map(|(name, times)| {
        let (code, message) = match times {
            1 => (
                ResponseError::ResourceNotFound,
                format!("Attempt to describe a user credential that does not exist: {}", name.as_str()),
            ),
            _ => (
                ResponseError::DuplicateResource,
                format!(
                    "Cannot describe SCRAM credentials for the same user twice in a single request: {}",
                    name.as_str()
                ),
            ),
        };
        DescribeUserScramCredentialsResult::default()
            .with_user(name.clone())
            .with_error_code(code.code())
            .with_error_message(text(message))
    });
    Ok(response.with_results(results.collect()))
}

/// Why a user is not made: what is wrong with it, or that there is no place for it.
fn judge(user: &ScramCredentialUpsertion) -> Refused {
    let unacceptable = |why: &str| (ResponseError::UnacceptableCredential, why.to_owned());
    let unsupported = |why: &str| (ResponseError::UnsupportedSaslMechanism, why.to_owned());
    match user {
        _ if user.name.is_empty() => unacceptable("Username must not be empty"),
        _ if !MECHANISMS.contains(&user.mechanism) => unsupported("Unknown SCRAM mechanism"),
        _ if user.iterations < *ITERATIONS.start() => unacceptable("Too few iterations"),
        _ if user.iterations > *ITERATIONS.end() => unacceptable("Too many iterations"),
        _ => unsupported("This node has no listener with SASL, so it keeps no credentials."),
    }
}

/// Refuses each user.
pub async fn alter(
    context: Context,
    request: AlterUserScramCredentialsRequest,
) -> Result<AlterUserScramCredentialsResponse, Close> {
    let allowed = context.authorize(Operation::Alter, Resource::Cluster);
    let mut asked: BTreeMap<&StrBytes, Vec<Refused>> = BTreeMap::new();
    for deletion in &request.deletions {
        asked.entry(&deletion.name).or_default().push((
            ResponseError::ResourceNotFound,
            "Attempt to delete a user credential that does not exist".to_owned(),
        ));
    }
    for upsertion in &request.upsertions {
        asked.entry(&upsertion.name).or_default().push(judge(upsertion));
    }
    let results = asked.into_iter().map(|(name, mut refusals)| {
        let twice = || {
            let why = "A user credential cannot be altered twice in the same request";
            (ResponseError::DuplicateResource, why.to_owned())
        };
        let denied = || (ResponseError::ClusterAuthorizationFailed, "not allowed to change users".to_owned());
        let (code, message) = match refusals.pop() {
            _ if !allowed => denied(),
            Some(only) if refusals.is_empty() => only,
            _ => twice(),
        };
        AlterUserScramCredentialsResult::default()
            .with_user(name.clone())
            .with_error_code(code.code())
            .with_error_message(text(message))
    });
    Ok(AlterUserScramCredentialsResponse::default().with_results(results.collect()))
}
