//! Clients that hold their connections, over real sockets. Times are short here; nothing is asserted of how long anything
//! took, save that it ends.

use super::super::limits::Limits;
use super::super::{HttpState, router};
use axum::routing::post;
use axum::{Router, middleware};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Long enough never to come in a test.
const NEVER: Duration = Duration::from_secs(3600);
/// Generous: a test that waits so long has failed.
const HUNG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(50);

fn endless() -> Limits {
    Limits { head: NEVER, body: NEVER, age: NEVER, last_answer: NEVER, ..Limits::default() }
}

struct Port {
    at: SocketAddr,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

async fn port(limits: Limits) -> Port {
    port_of(limits, router(HttpState::new(), limits)).await
}

async fn port_of(limits: Limits, routes: Router) -> Port {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (at, stop) = (listener.local_addr().expect("an address"), CancellationToken::new());
    let stopped = stop.clone().cancelled_owned();
    let served = tokio::spawn(super::serve(listener, routes, stopped, limits));
    Port { at, stop, served }
}

impl Port {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.expect("a connection")
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(HUNG, self.served).await.expect("it ends").expect("no panic");
    }
}

/// What comes until the node closes the connection.
async fn to_the_end(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    // A connection that is reset is closed too.
    let _ = tokio::time::timeout(HUNG, stream.read_to_end(&mut all)).await.expect("the node closes");
    String::from_utf8(all).expect("text")
}

async fn ask(mut stream: TcpStream, request: impl AsRef<[u8]>) -> String {
    stream.write_all(request.as_ref()).await.expect("written");
    to_the_end(stream).await
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_head_that_does_not_come_to_its_end_ends_the_connection() {
    let port = port(Limits { head: SOON, ..endless() }).await;
    for begun in ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: "] {
        let answer = ask(port.connect().await, begun).await;
        assert!(!answer.contains("200"), "{begun}: {answer}");
    }
    // One that drips is no better, nor one that had an answer already.
    let mut drips = port.connect().await;
    let dripping = async {
        while drips.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HUNG, dripping).await.expect("the node closes");
    let idle = ask(port.connect().await, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(idle.starts_with("HTTP/1.1 200 OK\r\n") && idle.ends_with("ok\n"), "{idle}");
    port.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_to_its_end_is_answered_408() {
    let port = port(Limits { body: SOON, ..endless() }).await;
    for (method, path) in [("POST", "/api/v1/topics"), ("GET", "/healthz"), ("POST", "/nowhere")] {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{");
        let answer = ask(port.connect().await, head).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{path}: {answer}");
        assert!(answer.contains("\"timeout\"") && answer.contains("within 50ms"), "{path}: {answer}");
    }
    port.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_413_with_the_limit() {
    let port = port(Limits { body_bytes: 100, ..endless() }).await;
    let head = "POST /api/v1/topics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let requests = [
        // Longer than is read on: the node closes in the middle.
        format!("{head}content-length: 100000\r\nexpect: 100-continue\r\n\r\n"),
        format!("{head}content-length: 101\r\n\r\n{}", "x".repeat(101)),
        // A client that reads only once all is written.
        format!("{head}content-length: 1500\r\n\r\n{}", "x".repeat(1500)),
        format!("{head}transfer-encoding: chunked\r\n\r\n65\r\n{}\r\n0\r\n\r\n", "x".repeat(101)),
        // One that never ends.
        format!(
            "{head}transfer-encoding: chunked\r\n\r\n{}",
            format!("64\r\n{}\r\n", "x".repeat(100)).repeat(19)
        ),
    ];
    for request in requests {
        let answer = ask(port.connect().await, &request).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{request}: {answer}");
        assert!(answer.contains("larger than 100 bytes"), "{request}: {answer}");
    }
    let fits = format!("{head}content-length: 100\r\n\r\n{}", "x".repeat(100));
    let answer = ask(port.connect().await, fits).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"recovering\""), "{answer}");
    port.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_before_it_has_come() {
    // None comes to its end within the test.
    let port = port(Limits { body_bytes: 100, body: 2 * HUNG, ..endless() }).await;
    let head = "POST /api/v1/topics HTTP/1.1\r\nhost: localhost\r\n";
    for begun in [
        format!("{head}content-length: 2000\r\n\r\n"),
        format!("{head}content-length: 101\r\n\r\nx"),
        format!("{head}transfer-encoding: chunked\r\n\r\n65\r\n{}\r\n", "x".repeat(101)),
    ] {
        let mut stream = port.connect().await;
        stream.write_all(begun.as_bytes()).await.expect("taken");
        let mut answer = [0; 13];
        let answered = tokio::time::timeout(HUNG, stream.read_exact(&mut answer)).await;
        answered.expect("at once").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413 ", "{begun}");
    }
    port.stop().await;
}

/// Two hundred, where 128 have a place: some send nothing, some a part of a head, some had an answer.
async fn idle_ones(port: &Port) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    for (n, sent) in
        (0..200).zip(["", "GET /heal", "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"].iter().cycle())
    {
        let mut stream = port.connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap_or_else(|e| panic!("connection {n}: {e}"));
        idle.push(stream);
    }
    idle
}

#[tokio::test]
async fn idle_connections_hold_off_no_probe() {
    let port = port(endless()).await;
    let idle = idle_ones(&port).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let answer = ask(port.connect().await, request).await;
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
    }
    drop(idle);
    port.stop().await;
}

#[tokio::test]
async fn slow_bodies_hold_off_no_probe_for_long() {
    let port = port(Limits { connections: 2, patience: SOON, ..endless() }).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = port.connect().await;
        let begun = "POST /api/v1/topics HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{";
        stream.write_all(begun.as_bytes()).await.expect("written");
        slow.push(stream);
    }
    assert!(ask(port.connect().await, HEALTH).await.ends_with("ok\n"));
    drop(slow);
    port.stop().await;
}

#[tokio::test]
async fn a_request_that_the_node_works_for_is_not_cut_and_a_further_connection_waits() {
    let limits = Limits { connections: 2, patience: 4 * SOON, ..endless() };
    let work = Arc::new(Semaphore::new(0));
    let begun = Arc::new(Semaphore::new(0));
    let (working, told) = (work.clone(), begun.clone());
    let route = move |body: String| async move {
        told.add_permits(1);
        let _turn = working.acquire().await;
        body
    };
    let body = middleware::from_fn(move |request, next| super::super::body::read(limits, request, next));
    let port = port_of(limits, Router::new().route("/work", post(route)).layer(body)).await;
    let head = "POST /work HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
    let mut asked = Vec::new();
    for _ in 0..2 {
        asked.push(tokio::spawn(ask(port.connect().await, format!("{head}done"))));
    }
    begun.acquire_many(2).await.expect("both are at work").forget();
    let third = tokio::spawn(ask(port.connect().await, format!("{head}next")));
    tokio::time::sleep(8 * SOON).await;
    assert!(!third.is_finished() && asked.iter().all(|asked| !asked.is_finished()));
    work.add_permits(3);
    for asked in asked {
        assert!(asked.await.expect("asked").ends_with("done"));
    }
    assert!(third.await.expect("asked").ends_with("next"));
    port.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_old_gets_its_last_answer_and_ends() {
    let port = port(Limits { age: SOON, last_answer: SOON, ..endless() }).await;
    assert_eq!(to_the_end(port.connect().await).await, "");
    // It does not take what it asked for: many answers are asked for and none is read.
    let mut deaf = port.connect().await;
    let index = "GET /page.js HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let asking = async { while deaf.write_all(index.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(HUNG, asking).await.expect("the node closes");
    port.stop().await;
}

#[tokio::test]
async fn a_stop_ends_what_is_idle_at_once() {
    let port = port(endless()).await;
    let mut idle = port.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
    let mut some = [0; 15];
    idle.read_exact(&mut some).await.expect("an answer");
    port.stop().await;
    assert!(to_the_end(idle).await.ends_with("ok\n"));
}
