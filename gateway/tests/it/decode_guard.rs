//! No decode of bytes from a peer allocates more than a small constant times what came, and none panics: every API and
//! version of the table, under a counting allocator.

use bytes::Bytes;
use kafka_protocol::messages as m;
use kafka_protocol::protocol::Request;
use proptest::prelude::*;
use rangeway_gateway::protocol::guard;
use rangeway_gateway::protocol::table::{Row, TABLE};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what the current thread holds and the most it ever asked for at once.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn count(size: usize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(size));
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

#[allow(unsafe_code, reason = "an allocator that counts has to be an allocator")]
// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(layout.size())));
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that the thread holds while `work` runs, above what it held before.
fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    work();
    MOST.with(Cell::get) - before
}

/// Bytes in memory for a byte on the wire: the largest element of any request's array over the least it takes there.
const PER_BYTE: usize = 400;
/// And for the message itself, its errors, and lengths up to the guard's slack.
const CONSTANT: usize = 160 << 10;

/// Something to do with the request type of a key.
trait With {
    type Out;
    fn with<R: Request + Default>(self) -> Self::Out;
}

fn dispatch<W: With>(key: i16, work: W) -> W::Out {
    macro_rules! by_key {
        ($($request:ident)*) => {
            match key {
                $(<m::$request as Request>::KEY => work.with::<m::$request>(),)*
                key => panic!("API key {key} is not covered here"),
            }
        };
    }
    by_key!(ProduceRequest FetchRequest ListOffsetsRequest MetadataRequest ApiVersionsRequest
        OffsetForLeaderEpochRequest
        OffsetCommitRequest OffsetFetchRequest FindCoordinatorRequest JoinGroupRequest HeartbeatRequest
        LeaveGroupRequest SyncGroupRequest DescribeGroupsRequest ListGroupsRequest CreateTopicsRequest
        DeleteTopicsRequest DeleteRecordsRequest InitProducerIdRequest DescribeConfigsRequest
        AlterConfigsRequest CreatePartitionsRequest DeleteGroupsRequest IncrementalAlterConfigsRequest
        OffsetDeleteRequest DescribeClusterRequest DescribeTopicPartitionsRequest DescribeLogDirsRequest
        ElectLeadersRequest AlterPartitionReassignmentsRequest ListPartitionReassignmentsRequest
        ConsumerGroupHeartbeatRequest ConsumerGroupDescribeRequest ListConfigResourcesRequest
        DescribeProducersRequest DescribeAclsRequest CreateAclsRequest DeleteAclsRequest
        AlterReplicaLogDirsRequest CreateDelegationTokenRequest RenewDelegationTokenRequest ExpireDelegationTokenRequest DescribeDelegationTokenRequest DescribeClientQuotasRequest AlterClientQuotasRequest DescribeUserScramCredentialsRequest AlterUserScramCredentialsRequest DescribeQuorumRequest UpdateFeaturesRequest
        AddPartitionsToTxnRequest AddOffsetsToTxnRequest EndTxnRequest WriteTxnMarkersRequest
        TxnOffsetCommitRequest DescribeTransactionsRequest ListTransactionsRequest
        SaslHandshakeRequest SaslAuthenticateRequest)
}

struct Decode<'a>(&'a Bytes, i16, bool);

impl With for Decode<'_> {
    type Out = bool;
    fn with<R: Request + Default>(self) -> bool {
        guard::decode::<R>(self.0, self.1, self.2).is_ok()
    }
}

struct EncodeDefault(i16);

impl With for EncodeDefault {
    type Out = Bytes;
    fn with<R: Request + Default>(self) -> Bytes {
        let mut out = Vec::new();
        R::default().encode(&mut out, self.0).map(|()| Bytes::from(out)).unwrap_or_default()
    }
}

fn check(row: &Row, version: i16, body: &[u8]) {
    let body = Bytes::copy_from_slice(body);
    let compact = version >= row.flexible;
    let most = most_held(|| {
        dispatch(row.key, Decode(&body, version, compact));
    });
    let allowed = body.len() * PER_BYTE + CONSTANT;
    assert!(
        most <= allowed,
        "{} v{version}: {} bytes made {most} ({allowed} allowed): {:02x?}",
        row.name,
        body.len(),
        &body[..body.len().min(64)]
    );
}

fn all() -> impl Iterator<Item = (&'static Row, i16)> {
    TABLE.iter().flat_map(|row| (row.served.min..=row.served.max).map(move |v| (row, v)))
}

#[test]
fn lengths_that_lie_allocate_nothing_wherever_they_stand() {
    for (row, version) in all() {
        for lead in 0..24 {
            for filler in [0u8, 1, 2, 0xff] {
                for lie in [
                    [0x7f, 0xff, 0xff, 0xff],
                    [0x7f, 0xff, 0xff, 0xb6],
                    [0xff, 0xff, 0xff, 0x7f],
                    [3, 0x33, 0x33, 0x33],
                ] {
                    let mut body = vec![filler; lead];
                    body.extend(lie);
                    check(row, version, &body);
                    body.extend([0; 40]);
                    check(row, version, &body);
                    body.extend([0xff; 40]);
                    check(row, version, &body);
                }
            }
        }
    }
}

#[test]
fn every_prefix_and_every_changed_byte_of_a_good_request_is_harmless() {
    for (row, version) in all() {
        let good = dispatch(row.key, EncodeDefault(version));
        for cut in 0..good.len() {
            check(row, version, &good[..cut]);
        }
        for at in 0..good.len() {
            for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                let mut body = good.to_vec();
                body[at] = byte;
                check(row, version, &body);
                body.extend([0x10; 50]);
                check(row, version, &body);
            }
        }
    }
}

#[test]
fn a_large_frame_of_tiny_elements_is_refused_before_it_fills_the_memory() {
    for (row, version) in all() {
        // A length of 2 Mi in both forms, then elements that are as small as they can be.
        for (filler, length) in [(0u8, [0, 0x20, 0, 0]), (1, [0x81, 0x80, 0x80, 0x01])] {
            let mut body = vec![filler; 2 << 20];
            body[..4].copy_from_slice(&length);
            let body = Bytes::from(body);
            let compact = version >= row.flexible;
            let most = most_held(|| {
                dispatch(row.key, Decode(&body, version, compact));
            });
            assert!(most <= 512 << 20, "{} v{version}: {most}", row.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn random_bytes_allocate_little_and_never_panic(body in proptest::collection::vec(
        prop_oneof![any::<u8>(), Just(0u8), Just(0xffu8), Just(0x7fu8), 0u8..6], 0..400)) {
        for (row, version) in all() {
            check(row, version, &body);
        }
    }
}

#[test]
fn the_counter_counts() {
    assert!(most_held(|| drop(std::hint::black_box(vec![0u8; 1 << 20]))) >= 1 << 20);
}
