//! For tests of handlers: messages through the codec and its guard, as a client would send and read them.

use super::{ClientInfo, ConnectionInfo};
use crate::protocol::guard;
use bytes::BytesMut;
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};
use rangeway_core::api::{Catalog, DriveExpr, TopicView};
use rangeway_core::types::TopicId;
use std::net::SocketAddr;
use std::sync::Arc;
use uuid::Uuid;

/// A request as the handler gets it.
pub(super) fn request<R: Request + Encodable>(request: R, version: i16, flexible: i16) -> R {
    let mut bytes = BytesMut::new();
    request.encode(&mut bytes, version).expect("the request has only what its version has");
    guard::decode::<R>(&bytes.freeze(), version, version >= flexible).expect("the guard lets it through")
}

/// A response as the client reads it.
pub(super) fn response<R: Encodable + Decodable>(response: R, version: i16) -> R {
    let mut bytes = BytesMut::new();
    response.encode(&mut bytes, version).expect("the response has only what its version has");
    let size = response.compute_size(version).expect("a size");
    assert_eq!(bytes.len(), size);
    let mut bytes = bytes.freeze();
    let read = R::decode(&mut bytes, version).expect("clients can read it");
    assert!(bytes.is_empty(), "{} bytes too many", bytes.len());
    read
}

/// A client called `test` on this machine.
pub(super) fn client() -> ClientInfo {
    let connection = ConnectionInfo {
        number: 1,
        peer: SocketAddr::from(([127, 0, 0, 1], 50_000)),
        local: SocketAddr::from(([127, 0, 0, 1], 9092)),
        software: parking_lot::Mutex::new(None),
        lane: Default::default(),
    };
    ClientInfo { id: Some(StrBytes::from_static_str("test")), connection: Arc::new(connection) }
}

/// The id that [`catalog`] gives a topic.
pub(super) fn topic_id(name: &str) -> TopicId {
    let mut bytes = [0u8; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    TopicId(Uuid::from_bytes(bytes))
}

/// Topics by name and partition count.
pub(super) fn catalog(topics: &[(&str, i32)]) -> Catalog {
    let mut catalog = Catalog::default();
    for (name, partitions) in topics {
        let view = Arc::new(TopicView {
            id: topic_id(name),
            name: Arc::from(*name),
            partitions: *partitions,
            configs: Arc::default(),
            config: Arc::default(),
            internal: false,
            derived_from: None,
            version: 1,
            replication_factor: 1,
            drive: DriveExpr::Disk,
            ranges: Arc::from([]),
        });
        catalog.by_name.insert(view.name.clone(), view.clone());
        catalog.by_id.insert(view.id, view);
    }
    catalog
}
