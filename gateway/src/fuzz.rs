//! Entry points for fuzzing, one per target of `gateway/fuzz`; compiled for tests and fuzzing only. Each panics when a
//! decoder does, or when it breaks a rule that its callers rely on.

use crate::connection::receive::Receive;
use crate::protocol::batch::{self, Records, Rules, inflate};
use crate::protocol::dispatch::{Decoded, Routed, decode, route};
use crate::protocol::table::{Row, TABLE};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages as m;
use rangeway_core::api::batch::{BATCH_HEAD_LEN, BatchHead, CRC_FROM, set_crc};
use rangeway_core::api::crc32c;
use rangeway_core::config::topic::Compression;

/// Largest frame that the connection takes, bytes.
const FRAME_MAX: usize = 1 << 16;
/// What a connection may hold of bytes that came, beyond a small multiple of them.
const HELD_MAX: usize = 512 << 10;

/// A connection's bytes, read in steps of the first byte's size: frames, then their heads.
pub fn frame(data: &[u8]) {
    let Some((&step, mut rest)) = data.split_first() else { return };
    let (came, mut taken) = (rest.len(), 0);
    let mut receive = Receive::new(FRAME_MAX);
    while !rest.is_empty() {
        let Ok(room) = receive.room() else { return };
        assert!(room.capacity() <= 4 * came + HELD_MAX, "a claimed length costs nothing");
        let n = rest.len().min(usize::from(step) + 1).min(room.capacity() - room.len());
        assert!(n > 0, "there is always room to read into");
        room.put_slice(rest.get(..n).unwrap_or_default());
        receive.came(n);
        rest = rest.get(n..).unwrap_or_default();
        loop {
            match receive.next_frame() {
                Ok(Some(frame)) => {
                    taken += frame.len() + 4;
                    assert!(taken <= came, "frames are made of what came");
                    routed(frame);
                }
                Ok(None) => break,
                Err(close) => {
                    assert_eq!(close.reason(), "frame_size");
                    return;
                }
            }
        }
    }
}

fn routed(frame: Bytes) {
    match route(frame) {
        Ok(Routed::Call(request)) => decoded(&request),
        Ok(Routed::Reply(_, reply)) => assert!(!reply.is_empty()),
        Err(close) => assert!(!close.reason().is_empty()),
    }
}

/// A request of one API and version: two bytes choose them, the rest is the request behind its fixed head.
pub fn request(data: &[u8]) {
    let Some((&[api, version], rest)) = data.split_first_chunk() else { return };
    let row = &TABLE[usize::from(api) % TABLE.len()];
    let versions = row.served.max - row.served.min + 1;
    let version = row.served.min + i16::from(version) % versions;
    let mut frame = BytesMut::with_capacity(rest.len() + 8);
    frame.put_i16(row.key);
    frame.put_i16(version);
    frame.put_i32(1);
    frame.put_slice(rest);
    routed(frame.freeze());
}

/// Decodes a request as its handler does; the batches of a Produce are looked into as well.
fn decoded(request: &Decoded) {
    macro_rules! each {
        ($($key:literal $message:ident,)*) => {
            match request.row.key {
                0 => produce(request),
                $($key => drop(decode::<m::$message>(request)),)*
                key => unreachable!("the fuzz target does not know API {key}"),
            }
        };
    }
    each! {
        1 FetchRequest,
        2 ListOffsetsRequest,
        3 MetadataRequest,
        8 OffsetCommitRequest,
        9 OffsetFetchRequest,
        10 FindCoordinatorRequest,
        11 JoinGroupRequest,
        12 HeartbeatRequest,
        13 LeaveGroupRequest,
        14 SyncGroupRequest,
        15 DescribeGroupsRequest,
        16 ListGroupsRequest,
        17 SaslHandshakeRequest,
        18 ApiVersionsRequest,
        19 CreateTopicsRequest,
        20 DeleteTopicsRequest,
        21 DeleteRecordsRequest,
        22 InitProducerIdRequest,
        23 OffsetForLeaderEpochRequest,
        24 AddPartitionsToTxnRequest,
        25 AddOffsetsToTxnRequest,
        26 EndTxnRequest,
        27 WriteTxnMarkersRequest,
        28 TxnOffsetCommitRequest,
        29 DescribeAclsRequest,
        30 CreateAclsRequest,
        31 DeleteAclsRequest,
        32 DescribeConfigsRequest,
        33 AlterConfigsRequest,
        34 AlterReplicaLogDirsRequest,
        35 DescribeLogDirsRequest,
        36 SaslAuthenticateRequest,
        37 CreatePartitionsRequest,
        38 CreateDelegationTokenRequest,
        39 RenewDelegationTokenRequest,
        40 ExpireDelegationTokenRequest,
        41 DescribeDelegationTokenRequest,
        42 DeleteGroupsRequest,
        43 ElectLeadersRequest,
        44 IncrementalAlterConfigsRequest,
        45 AlterPartitionReassignmentsRequest,
        46 ListPartitionReassignmentsRequest,
        47 OffsetDeleteRequest,
        48 DescribeClientQuotasRequest,
        49 AlterClientQuotasRequest,
        50 DescribeUserScramCredentialsRequest,
        51 AlterUserScramCredentialsRequest,
        55 DescribeQuorumRequest,
        57 UpdateFeaturesRequest,
        60 DescribeClusterRequest,
        61 DescribeProducersRequest,
        65 DescribeTransactionsRequest,
        66 ListTransactionsRequest,
        68 ConsumerGroupHeartbeatRequest,
        69 ConsumerGroupDescribeRequest,
        74 ListConfigResourcesRequest,
        75 DescribeTopicPartitionsRequest,
    }
}

fn produce(request: &Decoded) {
    let Ok(message) = decode::<m::ProduceRequest>(request) else { return };
    for partition in message.topic_data.iter().flat_map(|topic| &topic.partition_data) {
        records(partition.records.as_ref(), request.version);
    }
}

fn records(bytes: Option<&Bytes>, version: i16) {
    for (keys, before_max_ms) in [(false, None), (true, Some(1000))] {
        let rules = Rules {
            bytes_max: FRAME_MAX,
            keys,
            broker_time: false,
            before_max_ms,
            after_max_ms: 1000,
            compression: keys.then_some(Compression::Snappy),
            opened: keys,
        };
        if let Ok((head, stored)) = batch::check(bytes, version, 0, &rules) {
            let sent = bytes.map(|bytes| bytes.as_ref()).unwrap_or_default();
            let came = BatchHead::parse(sent).filter(|came| came.codec() != head.codec());
            match came.as_ref().filter(|_| rules.compression.is_some()) {
                None => assert_eq!(stored.len(), sent.len(), "a batch is stored as it came"),
                Some(came) => assert_eq!(
                    inflate(&stored, &head, FRAME_MAX).ok(),
                    inflate(sent, came, FRAME_MAX).ok(),
                    "compressed anew, the records are the same"
                ),
            }
            assert_eq!(BatchHead::parse(&stored), Some(head), "what is answered is what is stored");
            let crc = crc32c(&[stored.get(CRC_FROM..).unwrap_or_default()]);
            assert_eq!(crc, head.crc, "what is stored has its checksum");
        }
    }
}

/// A batch whose length and checksum fit: its head and records, in every codec.
pub fn records_of_a_batch(data: &[u8]) {
    let mut bytes = data.to_vec();
    if bytes.len() < BATCH_HEAD_LEN {
        return;
    }
    let length = (bytes.len() - 12) as u32;
    bytes[..8].fill(0);
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    let crc = crc32c(&[&bytes[CRC_FROM..]]);
    if let Some(head) = bytes.first_chunk_mut() {
        set_crc(head, crc);
    }
    let bytes = Bytes::from(bytes);
    records(Some(&bytes), 9);
    let Some(head) = BatchHead::parse(&bytes) else { return };
    if let Ok(inflated) = inflate(&bytes, &head, FRAME_MAX) {
        assert!(inflated.len() <= FRAME_MAX.max(bytes.len()), "inflating is bounded");
        let count = Records::new(&inflated, head.record_count).filter(Result::is_ok).count();
        assert!(count <= inflated.len(), "a record has a byte at least");
    }
}

/// The rows that [`request`] chooses from, for seeds.
pub fn rows() -> &'static [Row] {
    TABLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::RequestHeader;
    use kafka_protocol::protocol::Encodable;

    /// SplitMix64.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % n as u64) as usize
        }
    }

    /// Random and mutated inputs; `seed` makes a well-formed one.
    fn smoke(count: usize, seed: fn(&mut Rng) -> Vec<u8>, entry: fn(&[u8])) {
        let mut rng = Rng(7);
        for turn in 0..count {
            let mut input = seed(&mut rng);
            for _ in 0..rng.below(6) {
                let at = rng.below(input.len() + 1);
                match rng.below(4) {
                    0 => input.truncate(at),
                    1 => input.insert(at, rng.below(256) as u8),
                    _ if at < input.len() => {
                        input[at] = [0, 1, 127, 128, 255, rng.below(256) as u8][rng.below(6)]
                    }
                    _ => {}
                }
            }
            let run = std::panic::catch_unwind(|| entry(&input));
            assert!(run.is_ok(), "input {turn}: {input:?}");
        }
    }

    /// A header without client id, then noise with many zeros.
    fn some_request(rng: &mut Rng) -> Vec<u8> {
        let mut input = vec![rng.below(256) as u8, rng.below(256) as u8, 0xff, 0xff, 0];
        let len = rng.below(120);
        input.extend((0..len).map(|_| if rng.below(3) == 0 { rng.below(256) as u8 } else { 0 }));
        input
    }

    fn some_frames(rng: &mut Rng) -> Vec<u8> {
        let mut input = vec![rng.below(256) as u8];
        for _ in 0..1 + rng.below(4) {
            let row = &TABLE[rng.below(TABLE.len())];
            let body = some_request(rng);
            input.put_i32(body.len() as i32 + 6);
            input.put_i16(row.key);
            input.put_i16(row.served.min + rng.below((row.served.max - row.served.min + 1) as usize) as i16);
            input.put_i32(5);
            input.extend(&body[2..]);
        }
        input
    }

    fn some_batch(rng: &mut Rng) -> Vec<u8> {
        let mut input = vec![0; BATCH_HEAD_LEN];
        input[22] = rng.below(6) as u8;
        input[60] = 1;
        let record = [14, 0, 0, 0, 1, 2, b'v', 0];
        input.extend(record);
        let noise = rng.below(40);
        input.extend((0..noise).map(|_| rng.below(256) as u8));
        input
    }

    #[test]
    fn any_bytes_of_a_connection_are_read_without_panic() {
        smoke(5000, some_frames, frame);
    }

    #[test]
    fn any_request_of_every_api_and_version_is_decoded_without_panic() {
        smoke(20_000, some_request, request);
    }

    #[test]
    fn any_batch_is_judged_without_panic() {
        smoke(20_000, some_batch, records_of_a_batch);
    }

    #[test]
    fn every_row_of_the_table_is_known_to_the_target() {
        for row in TABLE {
            for version in row.served.min..=row.served.max {
                let header = RequestHeader::default()
                    .with_request_api_key(row.key)
                    .with_request_api_version(version)
                    .with_client_id(None);
                let mut frame = BytesMut::new();
                header.encode(&mut frame, if version >= row.flexible { 2 } else { 1 }).unwrap();
                frame.extend_from_slice(&[0; 64]);
                routed(frame.freeze());
            }
        }
    }

    #[test]
    fn a_mended_batch_is_taken() {
        let mut rng = Rng(1);
        let mut input = some_batch(&mut rng);
        input.truncate(BATCH_HEAD_LEN + 8);
        input[22] = 0;
        records_of_a_batch(&input);
    }
}
