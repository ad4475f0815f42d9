//! The body of a request: read whole before its route is asked, within a size and a time.

use super::error::HttpError;
use super::limits::Limits;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};

/// Of a body that is too large, so many times the limit are read and forgotten behind the answer: who writes before it reads
/// would find its connection reset otherwise, and no answer.
const READ_ON: usize = 16;

/// Reads the body of `request`. Answers 413 to one that is too large, as soon as that is known; 408 to one that is too slow.
pub(super) async fn read(limits: Limits, request: Request<Body>, next: Next) -> Response {
    let (head, mut body) = request.into_parts();
    let waits = head.headers.contains_key(header::EXPECT);
    match tokio::time::timeout(limits.body, collect(&mut body, limits.body_bytes)).await {
        Ok(Ok(bytes)) => {
            // Its client has done its part.
            drop(body);
            next.run(Request::from_parts(head, Body::from(bytes))).await
        }
        Ok(Err(Unread::TooLarge)) => {
            // A client that sends its body only once it is asked for it is not asked.
            if !waits {
                // Ends with the connection, which yields no body any more, or by its limits.
                tokio::spawn(read_on(body, limits));
            }
            HttpError::body_too_large(limits.body_bytes).into_response()
        }
        Ok(Err(Unread::Broken(why))) => {
            HttpError::unreadable(StatusCode::BAD_REQUEST, format!("the body broke off: {why}"))
                .into_response()
        }
        Err(_) => HttpError::body_too_slow(limits.body).into_response(),
    }
}

enum Unread {
    TooLarge,
    Broken(String),
}

async fn collect(body: &mut Body, bytes_max: usize) -> Result<Bytes, Unread> {
    if axum::body::HttpBody::size_hint(body).lower() > bytes_max as u64 {
        return Err(Unread::TooLarge);
    }
    match Limited::new(body, bytes_max).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(e) => Err(Unread::Broken(e.to_string())),
    }
}

async fn read_on(body: Body, limits: Limits) {
    let mut rest = Limited::new(body, limits.body_bytes.saturating_mul(READ_ON));
    let all = async { while let Some(Ok(_)) = rest.frame().await {} };
    // What comes later is cut off.
    let _ = tokio::time::timeout(limits.body, all).await;
}
