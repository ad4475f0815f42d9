//! What runs on top of the Java client: Kafka Streams and Kafka Connect, each against a broker of its own.

use rangeway_compat_tests::{java, suite};

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
