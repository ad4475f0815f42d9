//! One request to a node's HTTP port. Owns the connection for that request; knows nothing of what is asked.

use super::AdminArgs;
use super::failure::{Exit, Failure};
use crate::http::shapes::ErrorBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::time::Duration;

/// Time for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time for the whole request; above the 30 s that a node may take to answer.
const REQUEST_MAX: Duration = Duration::from_secs(40);
/// Largest answer read, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Sends a request and returns the body of a successful answer.
///
/// Errors: no node there, a node that does not answer in time, or the error that it answered.
pub fn call(
    admin: &AdminArgs,
    method: Method,
    path: &str,
    body: Option<&serde_json::Value>,
) -> Result<Bytes, Failure> {
    let runtime = super::small_runtime()?;
    let body = body.map(serde_json::Value::to_string);
    runtime.block_on(async {
        tokio::time::timeout(REQUEST_MAX, exchange(&admin.server, method, path, body)).await.map_err(
            |_| Failure::failed("timeout", format!("{} did not answer within {REQUEST_MAX:?}", admin.server)),
        )?
    })
}

async fn exchange(server: &str, method: Method, path: &str, body: Option<String>) -> Result<Bytes, Failure> {
    let address = server.strip_prefix("http://").unwrap_or(server).trim_end_matches('/');
    let stream = connect(address).await?;
    let lost = |e: hyper::Error| {
        let failure = Failure::failed("connection", format!("the connection to {server} failed: {e}"));
        // Who does not speak HTTP closes, or answers something else.
        match e.is_incomplete_message() || e.is_parse() {
            true => failure.hint("is that the HTTP port of a node? --server wants it, not the Kafka port"),
            false => failure,
        }
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(|e| Failure::usage("bad_request", format!("this cannot be asked over HTTP: {e}")))?;
    let answer = sender.send_request(request).await.map_err(lost)?;
    let status = answer.status();
    let bytes = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await
        .map_err(|e| Failure::failed("connection", format!("the answer of {server} broke off: {e}")))?
        .to_bytes();
    driver.abort();
    if status.is_success() {
        return Ok(bytes);
    }
    Err(Failure { exit: Exit::Failed, body: refused(server, status, &bytes) })
}

async fn connect(address: &str) -> Result<tokio::net::TcpStream, Failure> {
    let nobody = |why: String| {
        Failure::failed("no_node", format!("no node answers at {address}: {why}"))
            .hint("start one with `rangeway serve`, or name its HTTP address with --server HOST:PORT")
    };
    match tokio::time::timeout(CONNECT_MAX, tokio::net::TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(e)) => Err(nobody(e.to_string())),
        Err(_) => Err(nobody(format!("no connection within {CONNECT_MAX:?}"))),
    }
}

/// The node's own error, or what can be said of an answer that is none of ours.
fn refused(server: &str, status: hyper::StatusCode, body: &[u8]) -> ErrorBody {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        ErrorBody::new("not_a_node", format!("{server} answered {status} and no error that a node gives"))
            .hint("is that the HTTP port of a node? --server wants it, not the Kafka port")
    })
}

/// Percent-encodes one segment of a path.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_carry_any_text() {
        assert_eq!(segment("a-b_c.d~9"), "a-b_c.d~9");
        assert_eq!(segment("a/b ü"), "a%2Fb%20%C3%BC");
    }

    #[test]
    fn an_answer_that_is_not_ours_is_named_as_such() {
        let ours = refused("h:1", hyper::StatusCode::NOT_FOUND, br#"{"error":{"code":"x","message":"m"}}"#);
        assert_eq!(ours, ErrorBody::new("x", "m"));
        let foreign = refused("h:1", hyper::StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(foreign.error.code, "not_a_node");
    }
}
