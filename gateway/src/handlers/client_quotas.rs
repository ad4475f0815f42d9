//! DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0 and 1 (KIP-546).
//!
//! v1: flexible. No quotas are kept, since none would be enforced: none is found, there is nothing to take away, and
//! setting one is refused.

use super::configs::{Refused, text};
use super::{Context, Operation, Resource};
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_client_quotas_request::EntryData as AskedEntry;
use kafka_protocol::messages::alter_client_quotas_response::{EntityData, EntryData};
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
};
use std::collections::HashSet;

/// What quotas can be about.
const ENTITIES: [&str; 3] = ["user", "client-id", "ip"];
/// Kinds of quotas, and whether they are about addresses.
const KEYS: [(&str, bool); 5] = [
    ("consumer_byte_rate", false),
    ("controller_mutation_rate", false),
    ("producer_byte_rate", false),
    ("request_percentage", false),
    ("connection_creation_rate", true),
];
/// A name that must be the one given.
const EXACT: i8 = 0;
/// Any name, the default entity's too.
const ANY: i8 = 2;

/// Finds none.
pub async fn describe(
    context: Context,
    request: DescribeClientQuotasRequest,
) -> Result<DescribeClientQuotasResponse, Close> {
    let response = DescribeClientQuotasResponse::default().with_error_message(None);
    let judged = match context.authorize(Operation::DescribeConfigs, Resource::Cluster) {
        true => filter(&request.components),
        false => Err((ResponseError::ClusterAuthorizationFailed, "not allowed to see quotas".to_owned())),
    };
    Ok(match judged {
        Ok(()) => response.with_entries(Some(Vec::new())),
        Err((code, message)) => {
            response.with_error_code(code.code()).with_error_message(text(message)).with_entries(None)
        }
    })
}

/// Whether this is a filter, as Kafka judges it.
fn filter(components: &[ComponentData]) -> Result<(), Refused> {
    let invalid = |why: String| Err((ResponseError::InvalidRequest, why));
    let mut seen = HashSet::new();
    for component in components {
        let kind = component.entity_type.as_str();
        if kind.is_empty() {
            return invalid("Invalid empty entity type.".to_owned());
        }
        if !ENTITIES.contains(&kind) {
            let why = format!("Unsupported entity type {kind}");
            return Err((ResponseError::UnsupportedVersion, why));
        }
        if !seen.insert(kind) {
            return invalid(format!("Duplicate {kind} filter component entity type"));
        }
        match (component.match_type, &component._match) {
            (EXACT, None) => {
                return invalid(
                    "Request specified MATCH_TYPE_EXACT, but set match string to null.".to_owned(),
                );
            }
            (EXACT, Some(_)) | (1..=ANY, None) => {}
            (1..=ANY, Some(_)) => {
                return invalid("a name is matched for match type 0 (exact) only".to_owned());
            }
            (other, _) => return invalid(format!("Unknown match type {other}")),
        }
    }
    if seen.contains("ip") && seen.len() > 1 {
        return invalid("Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component.".to_owned());
    }
    Ok(())
}

/// Takes away what is not there; refuses the rest.
pub async fn alter(
    context: Context,
    request: AlterClientQuotasRequest,
) -> Result<AlterClientQuotasResponse, Close> {
    let allowed = context.authorize(Operation::AlterConfigs, Resource::Cluster);
    let entries = request.entries.into_iter().map(|asked| {
        let outcome = match allowed {
            true => judge(&asked),
            false => Err((ResponseError::ClusterAuthorizationFailed, "not allowed to set quotas".to_owned())),
        };
        let entity = asked.entity.into_iter().map(|part| {
            EntityData::default().with_entity_type(part.entity_type).with_entity_name(part.entity_name)
        });
        let row = EntryData::default().with_entity(entity.collect()).with_error_message(None);
        match outcome {
            Ok(()) => row,
            Err((code, message)) => row.with_error_code(code.code()).with_error_message(text(message)),
        }
    });
    Ok(AlterClientQuotasResponse::default().with_entries(entries.collect()))
}

fn judge(asked: &AskedEntry) -> Result<(), Refused> {
    let invalid = |why: String| Err((ResponseError::InvalidRequest, why));
    if asked.entity.is_empty() {
        return invalid("Invalid empty client quota entity".to_owned());
    }
    let mut seen = HashSet::new();
    for part in &asked.entity {
        let kind = part.entity_type.as_str();
        if !ENTITIES.contains(&kind) {
            return invalid(format!("Unhandled client quota entity type: {kind}"));
        }
        if part.entity_name.as_ref().is_some_and(|name| name.is_empty()) {
            return invalid(format!("Empty {kind} not supported"));
        }
        if !seen.insert(kind) {
            return invalid(format!("Duplicate {kind} in client quota entity"));
        }
    }
    let by_address = seen.contains("ip");
    if by_address && seen.len() > 1 {
        return invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
                .to_owned(),
        );
    }
    let mut keys = HashSet::new();
    for op in &asked.ops {
        let key = op.key.as_str();
        if !keys.insert(key) {
            return invalid(format!("Duplicate quota key {key}"));
        }
        if op.remove {
            continue;
        }
        if !KEYS.contains(&(key, by_address)) {
            return invalid(format!("Invalid configuration key {key}"));
        }
        let why = format!("{key}: this node enforces no quotas, so none can be set.");
        return Err((ResponseError::UnsupportedVersion, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::alter_client_quotas_request as alter_request;
    use kafka_protocol::protocol::StrBytes;

    fn entry(entity: &[(&'static str, Option<&'static str>)], ops: &[(&'static str, bool)]) -> AskedEntry {
        let entity = entity.iter().map(|(kind, name)| {
            alter_request::EntityData::default()
                .with_entity_type(StrBytes::from_static_str(kind))
                .with_entity_name(name.map(StrBytes::from_static_str))
        });
        let ops = ops.iter().map(|(key, remove)| {
            alter_request::OpData::default().with_key(StrBytes::from_static_str(key)).with_remove(*remove)
        });
        AskedEntry::default().with_entity(entity.collect()).with_ops(ops.collect())
    }

    #[test]
    fn what_is_not_there_can_be_taken_away_and_nothing_can_be_set() {
        let code = |entry: AskedEntry| judge(&entry).err().map(|(code, _)| code.code());
        let user: &[_] = &[("user", Some("a"))];
        assert_eq!(code(entry(user, &[("producer_byte_rate", true)])), None);
        assert_eq!(code(entry(user, &[("producer_byte_rate", false)])), Some(35));
        assert_eq!(
            code(entry(&[("user", None), ("client-id", None)], &[("request_percentage", true)])),
            None
        );
        assert_eq!(code(entry(&[("ip", None)], &[("connection_creation_rate", false)])), Some(35));
        for wrong in [
            entry(&[], &[]),
            entry(&[("tenant", None)], &[]),
            entry(&[("user", Some(""))], &[]),
            entry(&[("user", None), ("user", Some("a"))], &[]),
            entry(&[("user", None), ("ip", None)], &[]),
            entry(&[("ip", None)], &[("producer_byte_rate", false)]),
            entry(user, &[("connection_creation_rate", false)]),
            entry(user, &[("no.such.key", false)]),
            entry(user, &[("producer_byte_rate", true), ("producer_byte_rate", true)]),
        ] {
            assert_eq!(code(wrong.clone()), Some(42), "{wrong:?}");
        }
    }

    #[test]
    fn filters_are_judged_as_kafka_judges_them() {
        let one = |kind: &'static str, how: i8, name: Option<&'static str>| {
            ComponentData::default()
                .with_entity_type(StrBytes::from_static_str(kind))
                .with_match_type(how)
                .with_match(name.map(StrBytes::from_static_str))
        };
        let code = |parts: &[ComponentData]| filter(parts).err().map(|(code, _)| code.code());
        assert_eq!(code(&[]), None);
        assert_eq!(code(&[one("user", 2, None), one("client-id", 0, Some("a"))]), None);
        assert_eq!(code(&[one("tenant", 2, None)]), Some(35));
        assert_eq!(code(&[one("", 2, None)]), Some(42));
        assert_eq!(code(&[one("user", 2, None), one("user", 1, None)]), Some(42));
        assert_eq!(code(&[one("user", 0, None)]), Some(42));
        assert_eq!(code(&[one("user", 3, None)]), Some(42));
        assert_eq!(code(&[one("ip", 2, None), one("user", 2, None)]), Some(42));
    }
}
