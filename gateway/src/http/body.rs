//! The body of a request: read whole before its route is asked, within a size and a time.

use super::error::HttpError;
use super::limits::Limits;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};

/// Of a body that is too large, so many times the limit are read and forgotten: who writes before it reads would find its
/// connection reset otherwise, and no answer.
const READ_ON: usize = 16;

/// Reads the body of `request`. Answers 413 to one that is too large, 408 to one that is too slow.
pub(super) async fn read(limits: Limits, request: Request<Body>, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let waits = head.headers.contains_key(header::EXPECT);
    match tokio::time::timeout(limits.body, collect(body, limits.body_bytes, waits)).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(refused)) => refused.into_response(),
        Err(_) => HttpError::body_too_slow(limits.body).into_response(),
    }
}

/// `waits`: the client sends its body only once it is asked for it.
async fn collect(mut body: Body, bytes_max: usize, waits: bool) -> Result<Bytes, HttpError> {
    let claimed = axum::body::HttpBody::size_hint(&body).lower();
    if claimed <= bytes_max as u64 {
        match Limited::new(&mut body, bytes_max).collect().await {
            Ok(whole) => return Ok(whole.to_bytes()),
            Err(e) if e.is::<LengthLimitError>() => {}
            Err(e) => {
                return Err(HttpError::unreadable(
                    StatusCode::BAD_REQUEST,
                    format!("the body broke off: {e}"),
                ));
            }
        }
    } else if waits {
        return Err(HttpError::body_too_large(bytes_max));
    }
    let mut rest = Limited::new(&mut body, bytes_max.saturating_mul(READ_ON));
    while let Some(Ok(_)) = rest.frame().await {}
    Err(HttpError::body_too_large(bytes_max))
}
