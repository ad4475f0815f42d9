//! From a frame to its row, and around a handler: decode before, encode after.

use super::guard::{self, DecodeError, Guarded};
use super::table::{self, Row, Versions};
use crate::handlers::Context;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsResponse, RequestHeader, api_versions_response::ApiVersion};
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request, StrBytes};
use rangeway_core::api::Piece;
use smallvec::SmallVec;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;

/// A future that is owned by its connection.
pub type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Decodes a request, works, encodes the reply.
pub type Handler = fn(Context, Decoded) -> Work<Result<Answer, Close>>;

/// What a handler leaves behind once its request is issued: later requests of its stage may go on.
pub enum Answer {
    /// The reply.
    Now(Reply),
    /// The reply comes when something issued is done.
    Later(Work<Result<Reply, Close>>),
}

/// What a request comes to.
#[derive(Default)]
pub struct Reply {
    /// Bytes for the peer; `None` where the protocol wants no answer.
    pub frame: Option<Frame>,
    /// Dropped when they are written, or their connection has ended.
    pub hold: Option<Box<dyn Any + Send>>,
}

impl From<Frame> for Reply {
    fn from(frame: Frame) -> Reply {
        Reply { frame: Some(frame), hold: None }
    }
}

/// One response: its length prefix, head and body, as pieces in memory and in files.
pub type Frame = SmallVec<[Piece; 1]>;

/// Ends a connection: the reason is logged and counted; nothing more is sent after earlier replies, save with
/// [`Close::ProduceHeld`].
#[derive(Debug, thiserror::Error)]
pub enum Close {
    /// The frame's length is negative or above the limit.
    #[error("frame of {got} bytes, at most {most} are allowed")]
    FrameSize {
        /// As claimed.
        got: i32,
        /// The limit in bytes.
        most: usize,
    },
    /// The bytes are not a request.
    #[error("malformed {api} request: {why}")]
    Malformed {
        /// Which API.
        api: &'static str,
        /// Details.
        why: DecodeError,
    },
    /// No such API here.
    #[error("unknown API key {0}")]
    UnknownApi(i16),
    /// The API is known, its version is not.
    #[error("{api} version {got} is not served ({}-{})", served.min, served.max)]
    UnsupportedVersion {
        /// Which API.
        api: &'static str,
        /// Asked for.
        got: i16,
        /// What is.
        served: Versions,
    },
    /// A Produce that wants no answer failed: closing tells the client to look again.
    #[error("a produce request without acknowledgement failed: {0}")]
    UnacknowledgedFailure(String),
    /// Plain produce batches could not be stored within their request's time. Were later ones of the connection taken,
    /// they would go first; so this reply is sent, what was read is answered, and no more is.
    #[error("produce batches without sequence numbers waited for longer than their request allows")]
    ProduceHeld(Frame),
    /// A reply could not be encoded, or its stored bytes could not be read: a fault of ours.
    #[error("{api} reply: {why}")]
    Internal {
        /// Which API.
        api: &'static str,
        /// Details.
        why: String,
    },
    /// A handler panicked: a fault of ours.
    #[error("the {0} handler panicked")]
    Panic(&'static str),
}

impl Close {
    /// One word, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Close::FrameSize { .. } => "frame_size",
            Close::Malformed { .. } => "malformed",
            Close::UnknownApi(_) => "unknown_api",
            Close::UnsupportedVersion { .. } => "unsupported_version",
            Close::UnacknowledgedFailure(_) => "unacknowledged_failure",
            Close::ProduceHeld(_) => "produce_held",
            Close::Internal { .. } => "internal",
            Close::Panic(_) => "panic",
        }
    }
}

/// A request whose head was read.
#[derive(Debug)]
pub struct Decoded {
    /// Its row.
    pub row: &'static Row,
    /// Version.
    pub version: i16,
    /// Comes back in the reply.
    pub correlation: i32,
    /// As the client calls itself.
    pub client_id: Option<StrBytes>,
    /// The rest.
    pub body: Bytes,
}

/// What to do with a frame.
#[derive(Debug)]
pub enum Routed {
    /// Call the row's handler.
    Call(Decoded),
    /// This is the reply already.
    Reply(&'static Row, Frame),
}

/// Finds the row of a frame (without its length prefix) and reads its head.
///
/// An ApiVersions request that is newer than ours is answered in version 0 with our own range, so that any client can
/// start over (KIP-511); everything else that is unknown ends the connection, as Kafka's does.
pub fn route(frame: Bytes) -> Result<Routed, Close> {
    let Some(fixed) = frame.first_chunk::<8>() else {
        return Err(malformed("frame", DecodeError::Malformed(format!("{} bytes, no header", frame.len()))));
    };
    let key = i16::from_be_bytes([fixed[0], fixed[1]]);
    let version = i16::from_be_bytes([fixed[2], fixed[3]]);
    let correlation = i32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
    let row = table::find(key).ok_or(Close::UnknownApi(key))?;
    if key == 18 && version > row.served.max {
        return Ok(Routed::Reply(row, own_versions(row, correlation)?));
    }
    if !row.served.contains(version) {
        return Err(Close::UnsupportedVersion { api: row.name, got: version, served: row.served });
    }
    let compact = version >= row.flexible;
    let (header, body) = Guarded::header::<RequestHeader>(frame, if compact { 2 } else { 1 }, compact)
        .map_err(|e| malformed(row.name, e))?;
    Ok(Routed::Call(Decoded { row, version, correlation, client_id: header.client_id, body }))
}

fn malformed(api: &'static str, why: DecodeError) -> Close {
    Close::Malformed { api, why }
}

fn own_versions(row: &Row, correlation: i32) -> Result<Frame, Close> {
    let own = ApiVersion::default()
        .with_api_key(row.key)
        .with_min_version(row.advertised.min)
        .with_max_version(row.advertised.max);
    let response = ApiVersionsResponse::default()
        .with_error_code(kafka_protocol::ResponseError::UnsupportedVersion.code())
        .with_api_keys(vec![own]);
    encode(row.name, &response, 0, correlation)
}

/// Decodes a request's body.
pub fn decode<R: Request>(decoded: &Decoded) -> Result<R, Close> {
    guard::decode::<R>(&decoded.body, decoded.version, decoded.version >= decoded.row.flexible)
        .map_err(|e| malformed(decoded.row.name, e))
}

/// The plain shape of a handler: one request in, one response out.
pub async fn handle<R, F, W>(context: Context, decoded: Decoded, handler: F) -> Result<Answer, Close>
where
    R: Request,
    F: FnOnce(Context, R) -> W,
    W: Future<Output = Result<R::Response, Close>>,
{
    let request = decode::<R>(&decoded)?;
    let Decoded { row, version, correlation, .. } = decoded;
    let response = handler(context, request).await?;
    Ok(Answer::Now(encode(row.name, &response, version, correlation)?.into()))
}

/// Encodes a response that has no stored bytes in it.
pub fn encode<T: Encodable + HeaderVersion>(
    api: &'static str,
    response: &T,
    version: i16,
    correlation: i32,
) -> Result<Frame, Close> {
    let failed = |e: anyhow::Error| Close::Internal { api, why: e.to_string() };
    let size = response.compute_size(version).map_err(failed)?;
    let mut bytes = BytesMut::with_capacity(size + 9);
    bytes.put_i32(0);
    bytes.put_i32(correlation);
    if T::header_version(version) >= 1 {
        bytes.put_u8(0);
    }
    response.encode(&mut bytes, version).map_err(failed)?;
    let length = i32::try_from(bytes.len() - 4)
        .map_err(|_| Close::Internal { api, why: format!("{} bytes do not fit a frame", bytes.len()) })?;
    if let Some(prefix) = bytes.first_chunk_mut::<4>() {
        *prefix = length.to_be_bytes();
    }
    Ok(Frame::from_iter([Piece::Memory(bytes.freeze())]))
}
