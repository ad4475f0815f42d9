//! Replies to a socket: memory in vectored writes, files straight from the page cache where the stream is plain TCP.

use crate::protocol::dispatch::Frame;
use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use rangeway_core::api::{FileSlice, Piece};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

/// Slices per system call.
const SLICES_MAX: usize = 64;
/// Bytes of a file per system call.
const FILE_STEP: usize = 1 << 20;
/// Places this far apart are touched to have what is between them read.
const READ_AHEAD: usize = 128 << 10;
/// Bytes of a file copied at a time where they must be.
const COPY_STEP: usize = 256 << 10;

/// A stream that a connection runs over.
pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {
    /// The socket, where bytes written are bytes sent.
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }

    /// Whether the peer is known to send nothing more, though what it sent may not be read yet.
    fn is_left(&self) -> bool {
        let ready = self.tcp().and_then(|tcp| tcp.ready(Interest::READABLE).now_or_never());
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }
}

impl Wire for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Wire for tokio::io::DuplexStream {}

/// Writes frames in order.
///
/// Errors: the socket's, or a stored file that is shorter than it was.
pub async fn send<T: Wire>(stream: &mut T, frames: &mut Vec<Frame>) -> io::Result<()> {
    let mut run: VecDeque<Bytes> = VecDeque::new();
    for piece in frames.drain(..).flatten() {
        match piece {
            Piece::Memory(bytes) => run.push_back(bytes),
            Piece::File(slice) => {
                write_all(stream, &mut run).await?;
                write_file(stream, &slice).await?;
            }
        }
    }
    write_all(stream, &mut run).await
}

async fn write_all<T: Wire>(stream: &mut T, run: &mut VecDeque<Bytes>) -> io::Result<()> {
    while !run.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let filled =
            slices.iter_mut().zip(run.iter()).map(|(slot, bytes)| *slot = IoSlice::new(bytes)).count();
        let mut written = stream.write_vectored(slices.get(..filled).unwrap_or_default()).await?;
        if written == 0 && run.iter().any(|b| !b.is_empty()) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(front) = run.front_mut() {
            if front.len() > written {
                front.advance(written);
                break;
            }
            written -= front.len();
            run.pop_front();
        }
    }
    Ok(())
}

async fn write_file<T: Wire>(stream: &mut T, slice: &FileSlice) -> io::Result<()> {
    let end = slice.position + u64::from(slice.len);
    let mut at = slice.position;
    if let Some(tcp) = stream.tcp() {
        at = sendfile(tcp, slice, at, end).await?;
    }
    copy(stream, slice, at, end).await
}

/// Sends from the page cache; answers how far it came, short of `end` only where the file system cannot do it.
async fn sendfile(tcp: &TcpStream, slice: &FileSlice, mut at: u64, end: u64) -> io::Result<u64> {
    while at < end {
        let step = usize::try_from(end - at).unwrap_or(FILE_STEP).min(FILE_STEP);
        warm(slice, at, step).await?;
        let sent = tcp.try_io(Interest::WRITABLE, || {
            rustix::fs::sendfile(tcp, &*slice.file, Some(&mut at), step).map_err(io::Error::from)
        });
        match sent {
            Ok(0) => return Err(truncated()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => tcp.writable().await?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
                return Ok(at);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

/// Sees to it that the next bytes of a file are in the page cache: waiting for a disk is nothing for a thread that
/// serves other connections.
async fn warm(slice: &FileSlice, at: u64, step: usize) -> io::Result<()> {
    let last = at + step as u64 - 1;
    if is_cached(&slice.file, at) && is_cached(&slice.file, last) {
        return Ok(());
    }
    let slice = slice.clone();
    let read = tokio::task::spawn_blocking(move || {
        let ahead = u64::from(slice.len).min(2 * FILE_STEP as u64);
        // Only an advice; the reads below do the waiting.
        let _ = rustix::fs::fadvise(
            &*slice.file,
            at,
            std::num::NonZeroU64::new(ahead),
            rustix::fs::Advice::WillNeed,
        );
        let mut byte = [0];
        for place in (at..=last).step_by(READ_AHEAD).chain([last]) {
            slice.file.read_at(&mut byte, place)?;
        }
        Ok(())
    });
    read.await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Whether a byte can be read without a disk. Where the kernel cannot say, it is taken as cached.
fn is_cached(file: &std::fs::File, at: u64) -> bool {
    let mut byte = [0];
    let mut into = [io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(file, &mut into, at, rustix::io::ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::AGAIN)
}

async fn copy<T: Wire>(stream: &mut T, slice: &FileSlice, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = Vec::new();
    while at < end {
        let step = usize::try_from(end - at).unwrap_or(COPY_STEP).min(COPY_STEP);
        buffer.resize(step, 0);
        slice.file.read_exact_at(&mut buffer, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => truncated(),
            _ => e,
        })?;
        stream.write_all(&buffer).await?;
        at += step as u64;
    }
    Ok(())
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "a stored file is shorter than its directory says")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    fn frames(file: &Arc<std::fs::File>) -> (Vec<Frame>, Vec<u8>) {
        let part =
            |position, len| Piece::File(FileSlice { file: file.clone(), position, len, pin: Arc::new(()) });
        let memory = |n: usize| Piece::Memory(Bytes::from(vec![b'm'; n]));
        let frames = vec![
            Frame::from_iter([memory(3), part(10, 2_000_000), memory(0), memory(100_000), part(0, 5)]),
            Frame::from_iter((0..200).map(|_| memory(7))),
        ];
        let pattern = |from: usize, n: usize| (from..from + n).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
        let want =
            [vec![b'm'; 3], pattern(10, 2_000_000), vec![b'm'; 100_000], pattern(0, 5), vec![b'm'; 1400]]
                .concat();
        (frames, want)
    }

    fn stored() -> Arc<std::fs::File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..3_000_000).map(|i| (i % 251) as u8).collect::<Vec<u8>>()).unwrap();
        Arc::new(file)
    }

    #[tokio::test]
    async fn memory_and_files_arrive_in_order_over_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut writer, _) = listener.accept().await.unwrap();
        let (mut frames, want) = frames(&stored());
        let sender = tokio::spawn(async move { send(&mut writer, &mut frames).await });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        sender.await.unwrap().unwrap();
        assert!(got == want);
    }

    #[tokio::test]
    async fn a_file_that_left_the_page_cache_is_sent_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut writer, _) = listener.accept().await.unwrap();
        let file = stored();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let (mut frames, want) = frames(&file);
        let sender = tokio::spawn(async move { send(&mut writer, &mut frames).await });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        sender.await.unwrap().unwrap();
        assert!(got == want);
        assert!(is_cached(&file, 1_000_000), "reading brought it back");
    }

    #[tokio::test]
    async fn memory_and_files_arrive_in_order_over_any_stream() {
        let (mut writer, mut reader) = tokio::io::duplex(1000);
        let (mut frames, want) = frames(&stored());
        let sender = tokio::spawn(async move { send(&mut writer, &mut frames).await });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        sender.await.unwrap().unwrap();
        assert!(got == want);
    }

    #[tokio::test]
    async fn a_file_that_became_shorter_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut writer, _) = listener.accept().await.unwrap();
        let file = stored();
        file.set_len(100).unwrap();
        let piece = Piece::File(FileSlice { file, position: 0, len: 200, pin: Arc::new(()) });
        let error = send(&mut writer, &mut vec![Frame::from_iter([piece])]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
