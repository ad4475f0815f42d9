//! Words of the group and transaction handlers, from the wire and back. Owned: what a group keeps outlives the request's buffer.

use crate::groups::Blob;
use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::{Catalog, TopicView};
use std::sync::Arc;

/// `ResponseError::GroupAuthorizationFailed`.
pub(super) const GROUP_DENIED: i16 = 30;
/// `ResponseError::TopicAuthorizationFailed`.
pub(super) const TOPIC_DENIED: i16 = 29;
/// `ResponseError::TransactionalIdAuthorizationFailed`.
pub(super) const TRANSACTION_DENIED: i16 = 53;
/// `ResponseError::UnknownTopicOrPartition`.
pub(super) const UNKNOWN_TOPIC: i16 = 3;

/// An optional text, owned.
pub(super) fn optional(text: Option<&StrBytes>) -> Option<String> {
    text.map(|t| t.to_string())
}

/// For the wire.
pub(super) fn wire(text: impl Into<String>) -> StrBytes {
    StrBytes::from_string(text.into())
}

/// For the wire, where it may be null.
pub(super) fn wire_optional(text: Option<String>) -> Option<StrBytes> {
    text.map(StrBytes::from_string)
}

/// Bytes that the group keeps.
pub(super) fn blob(bytes: &Bytes) -> Blob {
    Blob(Bytes::copy_from_slice(bytes))
}

/// A topic that clients may name.
pub(super) fn client_topic<'a>(catalog: &'a Catalog, name: &str) -> Option<&'a Arc<TopicView>> {
    catalog.by_name.get(name).filter(|topic| !topic.internal)
}
