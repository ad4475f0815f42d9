//! What is no request: the connection ends with a counted reason and no word, others are unaffected.

use crate::support::{BROKER, Batch, Client, frame, produce_request, run};
use bytes::BufMut;
use kafka_protocol::messages::{ApiVersionsRequest, MetadataRequest};
use std::time::{Duration, Instant};

fn closed(reason: &str) -> u64 {
    BROKER.shared.metrics.closed().find(|(r, _)| *r == reason).map(|(_, n)| n).unwrap()
}

/// A frame of a key, a version and a body behind a header without client id.
fn raw(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_i32(body.len() as i32 + 10);
    out.put_i16(key);
    out.put_i16(version);
    out.put_i32(1);
    out.put_i16(-1);
    out.extend(body);
    out
}

#[test]
fn bad_frames_close_their_connection_and_are_counted() {
    run(async {
        let oversize = ((100i32 << 20) + 1).to_be_bytes();
        let mut short = frame(1, 9, &MetadataRequest::default());
        short.pop();
        short[3] -= 1;
        let cases: Vec<(&str, &str, Vec<u8>)> = vec![
            ("negative length", "frame_size", (-1i32).to_be_bytes().to_vec()),
            ("oversize", "frame_size", oversize.to_vec()),
            ("empty frame", "malformed", vec![0; 4]),
            ("http", "frame_size", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
            ("unknown key", "unknown_api", raw(999, 0, &[])),
            ("broker's key", "unknown_api", raw(4, 0, &[])),
            ("controller's key", "unknown_api", raw(52, 0, &[])),
            ("version above", "unsupported_version", raw(3, 14, &[])),
            ("version below", "unsupported_version", raw(3, -1, &[])),
            ("removed version", "unsupported_version", raw(1, 3, &[])),
            ("unstable version", "unsupported_version", raw(22, 6, &[])),
            ("array of 2^31 topics", "malformed", raw(3, 0, &[0x7f, 0xff, 0xff, 0xff])),
            ("array of 154 GB", "malformed", raw(3, 0, &[0x7f, 0xff, 0xff, 0xb6])),
            ("compact array of 2^28 topics", "malformed", raw(3, 9, &[0, 0xff, 0xff, 0xff, 0x7f])),
            ("short by a byte", "malformed", short),
        ];
        for (name, reason, bytes) in cases {
            let before = closed(reason);
            let mut c = Client::new().await;
            c.send_bytes(&bytes).await;
            assert!(c.is_closed().await, "{name}");
            // The socket closes first, so that what is counted is over.
            let until = Instant::now() + Duration::from_secs(30);
            while closed(reason) == before {
                assert!(Instant::now() < until, "{name} is counted as {reason}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let mut other = Client::new().await;
        assert_eq!(other.call(0, ApiVersionsRequest::default()).await.error_code, 0);
    });
}

#[test]
fn half_a_frame_then_silence_hurts_nobody() {
    run(async {
        let mut half = Client::new().await;
        let mut bytes = (90i32 << 20).to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 9]);
        half.send_bytes(&bytes).await;
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        assert_eq!(c.produce(&t, Batch::of(1).bytes()).await.error_code, 0);
    });
}

#[test]
fn a_null_client_id_is_accepted() {
    run(async {
        let mut c = Client::new().await;
        c.send_bytes(&raw(18, 0, &[])).await;
        assert_eq!(c.receive_bytes().await.unwrap().0, 1);
    });
}

#[test]
fn bytes_behind_a_message_are_ignored() {
    run(async {
        let mut c = Client::new().await;
        // All topics as librdkafka asks for them: a null array of four bytes where one is its length, three booleans or
        // two by version, no tagged fields. Then another API with letters behind it.
        for (version, booleans) in [(9, 3), (10, 3), (12, 2), (13, 2)] {
            let body = vec![0; 1 + 4 + booleans + 1];
            c.send_bytes(&raw(3, version, &body)).await;
            assert_eq!(c.receive_bytes().await.unwrap().0, 1, "Metadata {version}");
        }
        c.send_bytes(&raw(16, 0, b"letters")).await;
        assert_eq!(c.receive_bytes().await.unwrap().0, 1);
    });
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    run(async {
        let mut c = Client::new().await;
        // Header: one field of tag 10000, 3 bytes. Body: no topics, two booleans, one field of tag 5, 1 byte.
        let mut body = vec![1, 0x90, 0x4e, 3, 1, 2, 3];
        body.extend([1, 0, 0, 0, 1, 5, 1, 7]);
        c.send_bytes(&raw(3, 9, &body)).await;
        assert_eq!(c.receive_bytes().await.unwrap().0, 1);
    });
}

#[test]
fn garbage_behind_a_good_request_is_answered_up_to_there() {
    run(async {
        let mut c = Client::new().await;
        let t = c.topic(1, &[]).await;
        let mut bytes = frame(50, 9, &produce_request(&t, -1, &[(0, Some(Batch::of(1).bytes()))]));
        bytes.extend([0xff; 16]);
        c.send_bytes(&bytes).await;
        assert_eq!(c.receive_bytes().await.unwrap().0, 50);
        assert!(c.is_closed().await);
        assert_eq!(Client::new().await.fetch(&t, 0).await.high_watermark, 1);
    });
}
