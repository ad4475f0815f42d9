//! What one client does with much of the node's memory, and what others notice of it: nothing.

use crate::support::{Batch, Broker, Client, Topic, batches, fetch_request, frame, start};
use bytes::BufMut;
use kafka_protocol::messages::ApiVersionsRequest;
use rangeway_gateway::Settings;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

const CLAIMED: i32 = 100_000_000;

/// Sends `first` bytes of a frame that claims to be large, then a few now and again if it is to drip.
fn half_frame(broker: &Broker, first: usize, drips: bool) -> JoinHandle<()> {
    let address = broker.address;
    tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut head = Vec::new();
        head.put_i32(CLAIMED);
        head.put_slice(&[0, 0, 0, 7, 0, 0, 0, 7, 0, 1, b'r']);
        let body = vec![b'x'; first];
        // The node reads no further than it likes, and ends the connection when others need its memory.
        let _ = stream.write_all(&[head, body].concat()).await;
        while drips && stream.write_all(b"z").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        std::future::pending::<()>().await;
    })
}

fn closed(broker: &Broker, reason: &str) -> u64 {
    broker.shared.metrics.closed().find(|(r, _)| *r == reason).unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_of_many_connections_stop_nobody() {
    let settings = Settings { request_memory_bytes: 8 << 20, ..Settings::default() };
    let broker = start(settings).await;
    let held = || broker.shared.metrics.request_bytes.load(Ordering::Relaxed);
    let mut old = Client::to(&broker).await;
    let topic = old.topic(1, &[("max.message.bytes", "2000000")]).await;
    let silent = (0..40).map(|_| half_frame(&broker, 3_000_000, false));
    let dripping = (0..20).map(|_| half_frame(&broker, 3_000_000, true));
    let attackers: Vec<_> = silent.chain(dripping).collect();
    while held() < 4 << 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..20 {
        let mut new = Client::to(&broker).await;
        for client in [&mut old, &mut new] {
            assert_eq!(client.call(0, ApiVersionsRequest::default()).await.error_code, 0);
            assert_eq!(client.produce(&topic, Batch::of(10).bytes()).await.error_code, 0);
        }
    }
    assert!(held() > 1 << 20, "the half frames are there still");
    // A large one gets its turn: half frames that do not come end for it.
    for _ in 0..3 {
        let large = Batch::of(1).value(1_500_000).bytes();
        assert_eq!(old.produce(&topic, large).await.error_code, 0);
    }
    assert!(held() <= 16 << 20, "{} bytes", held());
    for attacker in attackers {
        attacker.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_end_when_a_whole_one_needs_their_memory_and_not_before() {
    let settings = Settings { request_memory_bytes: 4 << 20, ..Settings::default() };
    let broker = start(settings).await;
    let mut client = Client::to(&broker).await;
    let topic = client.topic(1, &[("max.message.bytes", "4000000")]).await;
    let alone = half_frame(&broker, 600_000, true);
    let large = Batch::of(1).value(900_000).bytes();
    for _ in 0..5 {
        assert_eq!(client.produce(&topic, large.clone()).await.error_code, 0);
    }
    assert_eq!(closed(&broker, "stalled"), 0, "it is slow, and harms nobody");
    let more: Vec<_> = (0..10).map(|_| half_frame(&broker, 1_000_000, false)).collect();
    while closed(&broker, "stalled") == 0 {
        let large = Batch::of(1).value(1_800_000).bytes();
        assert_eq!(client.produce(&topic, large).await.error_code, 0);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for attacker in more.into_iter().chain([alone]) {
        attacker.abort();
    }
}

const SMALL_BATCHES: usize = 400;

/// A topic of batches of one record and about 7 KB each, which answers hold in memory.
async fn small_batches(client: &mut Client) -> Topic {
    let topic = client.topic(1, &[]).await;
    let batch = Batch::of(1).value(7000).bytes();
    for _ in 0..SMALL_BATCHES {
        assert_eq!(client.produce(&topic, batch.clone()).await.error_code, 0);
    }
    topic
}

/// A fetch of all that there is.
fn greedy(topic: &Topic, offset: i64) -> kafka_protocol::messages::FetchRequest {
    let mut request = fetch_request(topic, &[(0, offset)]);
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_read_hold_bounded_memory_and_stop_nobody() {
    const LIMIT: u64 = 1 << 20;
    const UNREAD: u64 = 20;
    let settings = Settings { response_memory_bytes: LIMIT as usize, ..Settings::default() };
    let broker = start(settings).await;
    let held = || broker.shared.metrics.response_bytes.load(Ordering::Relaxed);
    let mut client = Client::to(&broker).await;
    let topic = small_batches(&mut client).await;
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(broker.address).await.unwrap();
        let fetches: Vec<u8> = (0..60).flat_map(|n| frame(n, 12, &greedy(&topic, 0))).collect();
        stream.write_all(&fetches).await.unwrap();
        unread.push(stream);
    }
    // Until the buffers of the sockets are full.
    let (mut most, mut same) = (0, 0);
    while same < 50 {
        let before = held();
        tokio::time::sleep(Duration::from_millis(10)).await;
        same = if held() == before { same + 1 } else { 0 };
        most = most.max(held());
    }
    // What each has at least, and a batch.
    let above = (UNREAD + 1) * ((64 << 10) + 8192);
    assert!(most > LIMIT / 2, "{most} bytes");
    assert!(most <= LIMIT + above, "{most} bytes");
    let mut offset = 0;
    while offset < SMALL_BATCHES as i64 {
        let response = client.call(12, greedy(&topic, offset)).await;
        let got = batches(&crate::support::only(&response).records);
        assert_eq!(got[0].0, offset);
        offset = got[got.len() - 1].1 + 1;
        assert!(held() <= LIMIT + above, "{} bytes", held());
    }
    drop(unread);
    for _ in 0..1000 {
        if held() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(held(), 0, "they ended with their connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_no_larger_than_the_node_says_and_is_not_waited_for_when_memory_is_short() {
    let settings =
        Settings { fetch_bytes_max: 200_000, response_memory_bytes: 64 << 10, ..Settings::default() };
    let broker = start(settings).await;
    let mut client = Client::to(&broker).await;
    let topic = small_batches(&mut client).await;
    // 64 KiB hold nine. What is wanted does not come by waiting.
    let wishes = greedy(&topic, 0).with_min_bytes(100_000).with_max_wait_ms(300_000);
    let response = client.call(12, wishes).await;
    assert_eq!(batches(&crate::support::only(&response).records).len(), 9);
    let settings = Settings { fetch_bytes_max: 20_000, ..Settings::default() };
    let broker = start(settings).await;
    let mut client = Client::to(&broker).await;
    let topic = small_batches(&mut client).await;
    let response = client.call(12, greedy(&topic, 0)).await;
    assert_eq!(batches(&crate::support::only(&response).records).len(), 2);
}
