//! A connection over real TCP with a service that needs no node.

use super::super::{Budget, serve};
use super::*;
use crate::handlers::api_versions;
use crate::protocol::dispatch::encode;
use crate::shared::Settings;
use bytes::{Buf, BufMut, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use std::net::SocketAddr;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

struct Fake {
    settings: Settings,
    metrics: Arc<Metrics>,
    budget: Arc<Budget>,
    /// Requests that were taken up.
    begun: AtomicUsize,
    /// One for each Fetch that may end.
    fetches: Semaphore,
    me: Weak<Fake>,
}

/// More than the buffers of a socket take.
const LARGE: usize = 16 << 20;

/// A response that has nothing in it but its number.
fn numbered(correlation: i32, len: usize) -> Frame {
    let mut bytes = BytesMut::with_capacity(len + 4);
    bytes.put_i32(len as i32);
    bytes.put_i32(correlation);
    bytes.resize(len + 4, 0);
    Frame::from_iter([Piece::Memory(bytes.freeze())])
}

impl Fake {
    fn new(settings: Settings) -> Arc<Fake> {
        let metrics = Arc::new(Metrics::new());
        let budget = Budget::new(settings.request_memory_bytes, metrics.clone());
        Arc::new_cyclic(|me| Fake {
            settings,
            metrics,
            budget,
            begun: AtomicUsize::new(0),
            fetches: Semaphore::new(0),
            me: me.clone(),
        })
    }
}

impl Service for Fake {
    fn call(&self, request: Decoded, info: &Arc<ConnectionInfo>) -> Work<Result<Answer, Close>> {
        let info = info.clone();
        let Some(me) = self.me.upgrade() else { panic!("the service is in use") };
        Box::pin(async move {
            me.begun.fetch_add(1, Relaxed);
            if request.row.name == "Fetch" {
                me.fetches.acquire().await.unwrap().forget();
                return Ok(Answer::Now(numbered(request.correlation, 4).into()));
            }
            if request.client_id.as_ref().is_some_and(|id| id.as_str() == "large") {
                return Ok(Answer::Now(numbered(request.correlation, LARGE).into()));
            }
            let body = crate::protocol::dispatch::decode::<ApiVersionsRequest>(&request)?;
            if request.client_id.as_ref().is_some_and(|id| id.as_str() == "panic") {
                panic!("as the test asks");
            }
            let response = api_versions::respond(request.version, &info, &body);
            let reply = encode("ApiVersions", &response, request.version, request.correlation)?;
            if request.client_id.as_ref().is_some_and(|id| id.as_str() == "held") {
                return Ok(Answer::Later(Box::pin(async { Err(Close::ProduceHeld(reply)) })));
            }
            Ok(Answer::Now(reply.into()))
        })
    }
    fn settings(&self) -> &Settings {
        &self.settings
    }
    fn metrics(&self) -> &Metrics {
        &self.metrics
    }
    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

async fn start() -> (SocketAddr, Arc<Fake>, CancellationToken) {
    start_with(Settings::default()).await
}

async fn start_with(settings: Settings) -> (SocketAddr, Arc<Fake>, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (service, stop) = (Fake::new(settings), CancellationToken::new());
    tokio::spawn(serve(listener, service.clone(), stop.clone()));
    (address, service, stop)
}

fn request(version: i16, correlation: i32, client: Option<&'static str>) -> Vec<u8> {
    let mut body = Vec::new();
    let header = RequestHeader::default()
        .with_request_api_key(18)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(client.map(StrBytes::from_static_str));
    header.encode(&mut body, if version >= 3 { 2 } else { 1 }).unwrap();
    let word = StrBytes::from_static_str(if version >= 3 { "raw" } else { "" });
    let request = ApiVersionsRequest::default()
        .with_client_software_name(word.clone())
        .with_client_software_version(word);
    request.encode(&mut body, version.min(4)).unwrap();
    let mut frame = Vec::new();
    frame.put_i32(body.len() as i32);
    frame.extend(body);
    frame
}

async fn response(stream: &mut TcpStream) -> Option<Bytes> {
    let length = stream.read_i32().await.ok()?;
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await.ok()?;
    Some(Bytes::from(body))
}

#[tokio::test]
async fn every_advertised_version_of_api_versions_is_answered_in_request_order() {
    let (address, _, stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let frames: Vec<u8> = (0..=4).flat_map(|v| request(v, 100 + i32::from(v), None)).collect();
    stream.write_all(&frames).await.unwrap();
    for version in 0..=4 {
        let mut body = response(&mut stream).await.unwrap();
        assert_eq!(body.get_i32(), 100 + i32::from(version));
        let decoded = ApiVersionsResponse::decode(&mut body, version).unwrap();
        assert_eq!(decoded.error_code, 0);
        assert!(decoded.api_keys.iter().any(|k| k.api_key == 18 && k.max_version == 4));
        assert!(body.is_empty());
    }
    stop.cancel();
}

#[tokio::test]
async fn a_newer_api_versions_request_is_answered_as_version_0_and_the_connection_lives() {
    let (address, _, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request(127, 7, None)).await.unwrap();
    let mut body = response(&mut stream).await.unwrap();
    assert_eq!(body.get_i32(), 7);
    let decoded = ApiVersionsResponse::decode(&mut body, 0).unwrap();
    assert_eq!((decoded.error_code, decoded.api_keys.len()), (35, 1));
    stream.write_all(&request(0, 8, None)).await.unwrap();
    assert_eq!(response(&mut stream).await.unwrap().get_i32(), 8);
}

#[tokio::test]
async fn what_is_no_request_closes_the_connection_without_a_word_and_is_counted() {
    let (address, service, _stop) = start().await;
    let mut unknown = request(0, 1, None);
    unknown[4..6].copy_from_slice(&999i16.to_be_bytes());
    let mut old = request(0, 1, None);
    old[6..8].copy_from_slice(&(-1i16).to_be_bytes());
    let cases: [(&str, &[u8]); 6] = [
        ("frame_size", &[0xff, 0xff, 0xff, 0xff]),
        ("frame_size", &[0x7f, 0, 0, 0]),
        ("malformed", &[0, 0, 0, 0]),
        ("frame_size", b"GET / HTTP/1.1\r\n\r\n"),
        ("unknown_api", &unknown),
        ("unsupported_version", &old),
    ];
    for (reason, bytes) in cases {
        let count = || service.metrics.closed().find(|(r, _)| *r == reason).map(|(_, n)| n);
        let before = count();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        assert!(response(&mut stream).await.is_none(), "{reason}");
        assert_eq!(count(), before.map(|n| n + 1), "{reason}");
    }
}

#[tokio::test]
async fn a_panic_in_a_handler_ends_its_connection_only() {
    let (address, service, _stop) = start().await;
    let mut other = TcpStream::connect(address).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request(0, 1, Some("panic"))).await.unwrap();
    assert!(response(&mut stream).await.is_none());
    assert!(service.metrics.closed().any(|(reason, n)| reason == "panic" && n == 1));
    other.write_all(&request(3, 2, Some("calm"))).await.unwrap();
    assert_eq!(response(&mut other).await.unwrap().get_i32(), 2);
}

#[tokio::test]
async fn requests_before_a_bad_one_are_answered_before_the_connection_closes() {
    let (address, _, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut bytes = [request(0, 1, None), request(3, 2, None)].concat();
    bytes.extend([0xff; 4]);
    stream.write_all(&bytes).await.unwrap();
    assert_eq!(response(&mut stream).await.unwrap().get_i32(), 1);
    assert_eq!(response(&mut stream).await.unwrap().get_i32(), 2);
    assert!(response(&mut stream).await.is_none());
}

#[tokio::test]
async fn dribbled_bytes_make_a_request() {
    let (address, _, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for byte in request(3, 9, Some("slow")) {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(response(&mut stream).await.unwrap().get_i32(), 9);
}

#[tokio::test]
async fn a_frame_that_drips_or_stays_half_ends_like_an_idle_connection_and_is_told_from_it() {
    let settings = Settings { connection_idle: Duration::from_millis(100), ..Settings::default() };
    let (address, service, _stop) = start_with(settings).await;
    let count = |of: &str| service.metrics.closed().find(|(r, _)| *r == of).map_or(0, |(_, n)| n);
    let (mut idle, mut half) =
        (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
    half.write_all(&[0, 0]).await.unwrap();
    let mut drips = TcpStream::connect(address).await.unwrap();
    drips.write_all(&1000i32.to_be_bytes()).await.unwrap();
    let dripping = async {
        while drips.write_all(&[7]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let patience = 4 * TICK;
    tokio::time::timeout(patience, dripping).await.expect("the node closes");
    for stream in [&mut idle, &mut half] {
        let closed = tokio::time::timeout(patience, response(stream)).await;
        assert!(closed.expect("the node closes").is_none());
    }
    until(|| (count("idle"), count("unfinished")) == (1, 2)).await;
}

#[tokio::test]
async fn half_frames_hold_what_came_and_others_go_on_beside_them() {
    let settings = Settings { request_memory_bytes: 512 << 10, ..Settings::default() };
    let (address, service, _stop) = start_with(settings).await;
    let mut halves = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&(64i32 << 20).to_be_bytes()).await.unwrap();
        let mut sent = 0;
        // Until the node stops reading.
        let more = vec![0; 64 << 10];
        while sent < 2 << 20 {
            let write = tokio::time::timeout(Duration::from_millis(200), stream.write(&more)).await;
            let Ok(Ok(n)) = write else { break };
            sent += n;
        }
        halves.push(stream);
    }
    // One of them may be above its limit, by what it sent.
    let held = service.metrics.request_bytes.load(Relaxed);
    assert!(held <= (512 << 10) + (8 << 20), "{held} bytes");
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(&request(0, 5, None)).await.unwrap();
    assert_eq!(response(&mut other).await.unwrap().get_i32(), 5);
    drop(halves);
}

#[tokio::test]
async fn a_stopping_node_closes_idle_connections() {
    let (address, service, stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request(0, 1, None)).await.unwrap();
    assert!(response(&mut stream).await.is_some());
    stop.cancel();
    assert!(response(&mut stream).await.is_none());
    assert!(service.metrics.closed().any(|(reason, n)| reason == "stopping" && n == 1));
    assert_eq!(service.metrics.connections.load(Relaxed), 0);
}

#[tokio::test]
async fn a_reply_that_ends_the_connection_is_sent_and_what_was_read_is_answered() {
    let (address, service, stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut frames = request(3, 1, Some("held"));
    frames.extend(request(3, 2, None));
    frames.extend(request(3, 3, Some("held")));
    stream.write_all(&frames).await.unwrap();
    for correlation in 1..=3 {
        assert_eq!(response(&mut stream).await.unwrap().get_i32(), correlation);
    }
    assert!(response(&mut stream).await.is_none(), "closed");
    let counted = || service.metrics.closed().any(|(reason, n)| reason == "produce_held" && n == 1);
    for _ in 0..100 {
        if counted() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(counted());
    stop.cancel();
}

fn fetch(correlation: i32) -> Vec<u8> {
    let mut frame = request(0, correlation, None);
    frame[4..8].copy_from_slice(&[0, 1, 0, 4]);
    frame
}

/// Waits until `done`; bounded.
async fn until(done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come to be");
}

#[tokio::test]
async fn a_fetch_is_taken_up_when_the_one_before_it_is_answered() {
    let (address, service, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let frames = [fetch(1), request(3, 2, None), fetch(3), request(3, 4, None), fetch(5)].concat();
    stream.write_all(&frames).await.unwrap();
    for (answered, correlation) in [1, 3, 5].into_iter().enumerate() {
        // The other two go ahead.
        until(|| service.begun.load(Relaxed) == 3 + answered).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(service.begun.load(Relaxed), 3 + answered);
        service.fetches.add_permits(1);
        assert_eq!(response(&mut stream).await.unwrap().get_i32(), correlation);
        if correlation < 5 {
            assert_eq!(response(&mut stream).await.unwrap().get_i32(), correlation + 1);
        }
    }
}

#[tokio::test]
async fn nothing_is_taken_up_while_much_that_was_answered_is_not_written() {
    let (address, service, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let frames: Vec<u8> = (0..10).flat_map(|n| request(3, n, Some("large"))).collect();
    stream.write_all(&frames).await.unwrap();
    until(|| service.begun.load(Relaxed) == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(service.begun.load(Relaxed), 1);
    for correlation in 0..10 {
        let mut body = response(&mut stream).await.unwrap();
        assert_eq!((body.len(), body.get_i32()), (LARGE, correlation));
    }
}

#[tokio::test]
async fn fetches_end_with_their_client_though_more_was_sent_than_is_read() {
    let (address, service, _stop) = start().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let frames: Vec<u8> = (0..4 * IN_PROGRESS_MAX as i32).flat_map(fetch).collect();
    stream.write_all(&frames).await.unwrap();
    until(|| service.begun.load(Relaxed) == 1).await;
    drop(stream);
    until(|| service.metrics.connections.load(Relaxed) == 0).await;
}
