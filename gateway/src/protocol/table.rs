//! One row per API. Dispatch, ApiVersions, metrics and the generated page of the docs read it.
//!
//! *Served* is what a handler answers; *advertised* is what ApiVersions lists. They differ for Produce: versions 0 to 2
//! are listed because clients test for compression by asking for exactly 0, and are answered by closing, as Kafka does
//! (KAFKA-18659).

use super::dispatch::{Decoded, Handler, handle};
use crate::handlers::{self, Operation};
use kafka_protocol::messages as m;

/// Versions, both ends included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Lowest.
    pub min: i16,
    /// Highest.
    pub max: i16,
}

impl Versions {
    /// Whether `version` is one of them.
    pub fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

/// In which order the requests of a connection are worked on. Replies leave in request order always.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Taken up only when all earlier ordered requests were issued.
    Ordered,
    /// Worked on beside others.
    Overlapping,
}

/// Which quota a request is counted under.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Bytes produced.
    Produce,
    /// Bytes fetched.
    Fetch,
    /// Time.
    Request,
    /// Changes of control state.
    Mutation,
}

/// One API.
#[derive(Debug)]
pub struct Row {
    /// API key.
    pub key: i16,
    /// Kafka's name for it.
    pub name: &'static str,
    /// Versions that the handler answers.
    pub served: Versions,
    /// Versions that ApiVersions lists.
    pub advertised: Versions,
    /// First version with compact lengths and tagged fields.
    pub flexible: i16,
    /// Order on a connection.
    pub stage: Stage,
    /// Memory that one byte of a request may cost while it is worked on, in bytes.
    pub memory: usize,
    /// What the principal must be allowed to do; on which resource is the handler's matter.
    pub operation: Operation,
    /// Which quota counts.
    pub quota: Quota,
    /// What it is, in a line.
    pub doc: &'static str,
    /// Decodes, works, encodes.
    pub handler: Handler,
}

const fn versions(min: i16, max: i16) -> Versions {
    Versions { min, max }
}

/// `row!(Name request, key, served min-max, flexible from, stage, memory, operation, quota, handler path, doc)`.
macro_rules! row {
    ($name:literal, $request:ty, $key:literal, $min:literal..=$max:literal, flexible $flexible:literal, $stage:ident,
     $memory:literal, $operation:ident, $quota:ident, $handler:path, $doc:literal) => {
        Row {
            key: $key,
            name: $name,
            served: versions($min, $max),
            advertised: versions($min, $max),
            flexible: $flexible,
            stage: Stage::$stage,
            memory: $memory,
            operation: Operation::$operation,
            quota: Quota::$quota,
            doc: $doc,
            handler: |context, decoded: Decoded| {
                Box::pin(handle::<$request, _, _>(context, decoded, $handler))
            },
        }
    };
}

/// All APIs, by key.
pub static TABLE: &[Row] = &[row!(
    "ApiVersions", m::ApiVersionsRequest, 18, 0..=4, flexible 3, Overlapping, 8, None, Request,
    handlers::api_versions::handle, "What this node speaks, and its features"
)];

/// The row of a key.
pub fn find(key: i16) -> Option<&'static Row> {
    // Keys are few and small: an index built once beats a search.
    static INDEX: std::sync::LazyLock<Vec<Option<&'static Row>>> = std::sync::LazyLock::new(|| {
        let mut index = vec![None; TABLE.iter().map(|r| r.key as usize + 1).max().unwrap_or(0)];
        for row in TABLE {
            if let Some(slot) = index.get_mut(row.key as usize) {
                *slot = Some(row);
            }
        }
        index
    });
    INDEX.get(usize::try_from(key).ok()?).copied().flatten()
}
