//! Errors over HTTP: status and [`ErrorBody`], in one place.

use super::shapes::ErrorBody;
use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use rangeway_core::error::{ReshardError, TopicError};
use std::time::Duration;

/// An answer that is an error.
#[derive(Debug)]
pub struct HttpError {
    status: StatusCode,
    body: ErrorBody,
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

impl HttpError {
    fn new(status: StatusCode, body: ErrorBody) -> HttpError {
        HttpError { status, body }
    }

    /// Recovery runs.
    pub fn recovering() -> HttpError {
        let body = ErrorBody::new("recovering", "the node recovers its data and does not serve yet");
        HttpError::new(StatusCode::SERVICE_UNAVAILABLE, body.hint("ask again soon; /readyz says when"))
    }

    /// A request of another site.
    pub fn cross_origin() -> HttpError {
        let body = ErrorBody::new("cross_origin", "pages of other sites may not change anything here");
        HttpError::new(StatusCode::FORBIDDEN, body)
    }

    /// A path that leads nowhere.
    pub fn no_such_page(path: &str) -> HttpError {
        let body = ErrorBody::new("not_found", format!("there is nothing at {path}"))
            .hint("GET / lists what there is");
        HttpError::new(StatusCode::NOT_FOUND, body)
    }

    /// A path that has other methods.
    pub fn no_such_method(method: &Method, path: &str) -> HttpError {
        let body = ErrorBody::new("method_not_allowed", format!("{path} does not take {method}"))
            .hint("the Allow header and GET / name what it takes");
        HttpError::new(StatusCode::METHOD_NOT_ALLOWED, body)
    }

    /// A body that is not what the route takes.
    pub fn bad_body(message: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::BAD_REQUEST, ErrorBody::new("bad_request", message))
    }

    /// A body that cannot be read.
    pub fn unreadable(status: StatusCode, message: impl Into<String>) -> HttpError {
        HttpError::new(status, ErrorBody::new("bad_request", message))
    }

    /// A body of more bytes than are taken.
    pub fn body_too_large(bytes_max: usize) -> HttpError {
        let message = format!("the body is larger than {bytes_max} bytes, the most that is taken");
        let body = ErrorBody::new("bad_request", message).hint("ask for less at once");
        HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, body)
    }

    /// A body that did not come to its end in time.
    pub fn body_too_slow(time_max: Duration) -> HttpError {
        let message = format!("the body did not come to its end within {time_max:?}");
        let body = ErrorBody::new("timeout", message).hint("send it at once, whole");
        HttpError::new(StatusCode::REQUEST_TIMEOUT, body)
    }

    /// A request that did not get as far as its route.
    pub fn refused(status: StatusCode, said: &str) -> HttpError {
        let reason = status.canonical_reason().unwrap_or("refused");
        let message = if said.is_empty() { reason.to_owned() } else { format!("{reason}: {said}") };
        let code = if status.is_server_error() { "internal" } else { "bad_request" };
        HttpError::new(status, ErrorBody::new(code, message))
    }

    /// The body as text.
    pub fn into_json(self) -> String {
        // Serializing strings cannot fail.
        serde_json::to_string(&self.body).unwrap_or_default()
    }

    /// A topic that is not there, perhaps with the name of one that is.
    pub fn unknown_topic(name: &str, near: Option<&str>) -> HttpError {
        let body = ErrorBody::new("unknown_topic", format!("there is no topic '{name}'"));
        let hint = match near {
            Some(near) => format!("did you mean '{near}'?"),
            None => "`rangeway topics list` shows all".to_owned(),
        };
        HttpError::new(StatusCode::NOT_FOUND, body.hint(hint))
    }

    /// A range that is closed and gave its partitions to others.
    pub fn range_closed(range: u32, children: &[u32]) -> HttpError {
        let body = ErrorBody::new("range_closed", format!("range {range} is closed"));
        let heirs = children.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
        HttpError::new(StatusCode::CONFLICT, body.hint(format!("its partitions went on in {heirs}")))
    }

    /// An operation that was given up while its caller waited.
    pub fn aborted(kind: &str, operation: &str, why: &str) -> HttpError {
        let body = ErrorBody::new("aborted", format!("the {kind} was given up: {why}"));
        let hint = format!("the ranges go on as they were; it was operation {operation}");
        HttpError::new(StatusCode::CONFLICT, body.hint(hint))
    }

    /// A topic that the node keeps for itself.
    pub fn internal_topic(name: &str) -> HttpError {
        let body = ErrorBody::new("internal_topic", format!("'{name}' is kept by the node for itself"));
        HttpError::new(StatusCode::FORBIDDEN, body.hint("it can be read, not changed"))
    }
}

impl From<TopicError> for HttpError {
    fn from(error: TopicError) -> HttpError {
        let (status, code) = match &error {
            TopicError::Exists(_) => (StatusCode::CONFLICT, "topic_exists"),
            TopicError::Reserved(_) => (StatusCode::FORBIDDEN, "internal_topic"),
            TopicError::Unknown => (StatusCode::NOT_FOUND, "unknown_topic"),
            TopicError::InvalidPartitions(_) => (StatusCode::BAD_REQUEST, "invalid_partitions"),
            TopicError::InvalidName(_) => (StatusCode::BAD_REQUEST, "invalid_name"),
            TopicError::InvalidConfig(_) => (StatusCode::BAD_REQUEST, "invalid_config"),
            TopicError::InvalidDrive(_) => (StatusCode::BAD_REQUEST, "invalid_drive"),
            TopicError::NoDisk(_) => (StatusCode::SERVICE_UNAVAILABLE, "no_disk"),
            TopicError::InvalidReplication(_) => (StatusCode::BAD_REQUEST, "invalid_replication_factor"),
            TopicError::Control(_) => (StatusCode::SERVICE_UNAVAILABLE, "control_plane"),
        };
        HttpError::new(status, ErrorBody::new(code, error.to_string()))
    }
}

impl From<ReshardError> for HttpError {
    fn from(error: ReshardError) -> HttpError {
        let (status, code, hint) = match &error {
            ReshardError::UnknownTopic => {
                (StatusCode::NOT_FOUND, "unknown_topic", "`rangeway topics list` shows all")
            }
            ReshardError::UnknownRange(_) => {
                (StatusCode::NOT_FOUND, "unknown_range", "`rangeway ranges list TOPIC` shows all")
            }
            ReshardError::UnknownOperation(_) => {
                (StatusCode::NOT_FOUND, "unknown_operation", "`rangeway operations list` shows what is known")
            }
            ReshardError::Impossible(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "impossible",
                "`rangeway ranges list TOPIC` shows what is there",
            ),
            ReshardError::Busy(_) => {
                (StatusCode::CONFLICT, "busy", "ask again later; `rangeway operations list` shows what runs")
            }
            ReshardError::Control(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "control_plane", "ask again; the node's log says why")
            }
            ReshardError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", "ask again once it runs"),
        };
        HttpError::new(status, ErrorBody::new(code, error.to_string()).hint(hint))
    }
}
