//! The HTTP port's streams. What the HTTP library refuses before there is a request (no HTTP, too long a path, too many
//! headers), it answers itself, with a status and no body: here that answer gets the body of all errors.

use super::error::HttpError;
use axum::http::StatusCode;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that writes another answer in place of a refusal without a body, and tells when it has written all it was given.
pub(super) struct Shaped<S> {
    stream: S,
    flushed: Box<dyn Fn() + Send>,
    /// What is written instead, how much of it is, and what it stands for.
    instead: Option<Instead>,
}

impl<S> Shaped<S> {
    pub(super) fn new(stream: S, flushed: impl Fn() + Send + 'static) -> Shaped<S> {
        Shaped { stream, flushed: Box::new(flushed), instead: None }
    }
}

struct Instead {
    bytes: Vec<u8>,
    written: usize,
    stands_for: usize,
}

/// The answer that takes the place of the library's own one: the whole of a head with status 4xx and an empty body.
/// Routes never answer so: each of their errors has a body.
fn instead_of(answer: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(answer).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let empty = |line: &str| line.eq_ignore_ascii_case("content-length: 0");
    if !(400..500).contains(&status) || !lines.any(empty) {
        return None;
    }
    let status = StatusCode::from_u16(status).ok()?;
    let body = HttpError::refused(status, "this is no request that can be taken").into_json();
    let reason = status.canonical_reason().unwrap_or_default();
    let (code, length) = (status.as_u16(), body.len());
    Some(
        format!(
            "HTTP/1.1 {code} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        )
        .into_bytes(),
    )
}

impl<S: AsyncRead + Unpin> AsyncRead for Shaped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Shaped<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            let Some(instead) = instead_of(bytes) else {
                return Pin::new(&mut this.stream).poll_write(cx, bytes);
            };
            this.instead = Some(Instead { bytes: instead, written: 0, stands_for: bytes.len() });
        }
        let Some(instead) = &mut this.instead else { return Poll::Ready(Ok(0)) };
        while let Some(rest) = instead.bytes.get(instead.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut this.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => instead.written += n,
            }
        }
        let stands_for = instead.stands_for;
        this.instead = None;
        Poll::Ready(Ok(stands_for))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match pieces.iter().find(|piece| !piece.is_empty()) {
            // A refusal is written in one piece.
            Some(first) if this.instead.is_some() || instead_of(first).is_some() => {
                Pin::new(this).poll_write(cx, first)
            }
            _ => Pin::new(&mut this.stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        (self.flushed)();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[test]
    fn only_a_whole_refusal_without_a_body_is_replaced() {
        let refusal = "HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let instead = instead_of(refusal.as_bytes()).expect("replaced");
        assert!(instead.starts_with(b"HTTP/1.1 414 URI Too Long\r\n"));
        assert!(instead.ends_with(b"}}"));
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 414 URI Too Long\r\ncontent-length: 0\r\n",
            "",
        ] {
            assert_eq!(instead_of(other.as_bytes()), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_replacement_is_written_whole_through_a_narrow_stream() {
        let (near, mut far) = tokio::io::duplex(7);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut far, &mut all).await.map(|_| all)
        });
        let refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let mut shaped = Shaped::new(near, || ());
        shaped.write_all(refusal).await.expect("written");
        shaped.shutdown().await.expect("ended");
        drop(shaped);
        let read = reading.await.expect("read").expect("read");
        assert_eq!(Some(read), instead_of(refusal));
    }
}
