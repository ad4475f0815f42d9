//! What runs on top of the Java client: Kafka Streams, Kafka Connect and MirrorMaker 2, each against a broker of its own.

use rangeway_compat_tests::broker::{Broker, Kind, reference_is_installed};
use rangeway_compat_tests::{java, skip, suite};

/// Between two splits or merges at most.
const RESHARD_PAUSE_MS: u64 = 50;

#[test]
fn kafka_streams_counts_exactly_once_amid_splits_and_merges() {
    if java::is_installed("streams") {
        let class_path = java::compile("streams", "Streams").unwrap();
        let program = java::program(&class_path, "Streams", 384);
        suite::run_amid_reshards("streams", program, RESHARD_PAUSE_MS).unwrap();
    }
}

#[test]
fn kafka_connect_copies_files() {
    if java::is_installed("connect") {
        let class_path = java::compile("connect", "Connect").unwrap();
        suite::run("connect", java::program(&class_path, "Connect", 192)).unwrap();
    }
}

#[test]
fn mirror_maker_copies_into_and_out_of() {
    if java::is_installed("mirror") {
        let class_path = java::compile("mirror", "Mirror").unwrap();
        let mut peer = Broker::start(peer(), &[]).unwrap();
        let mut program = java::program(&class_path, "Mirror", 256);
        program.arg(peer.address().to_string());
        suite::run("mirror", program).unwrap();
        peer.stop().unwrap();
    }
}

/// The other side: the reference broker where it is installed.
fn peer() -> Kind {
    if reference_is_installed() {
        return Kind::Reference;
    }
    let missing = "no reference broker, so that both sides are of one kind";
    skip::announce("mirror-reference", missing, "compat-tests/install reference");
    Kind::from_env()
}
