//! The order proof in its small, seeded form; `order` is the command for the big one.

use std::time::Duration;

use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::order::{self, Plan, Programs};
use rangeway_compat_tests::{skip, storm};

#[test]
fn no_real_client_notices_forty_splits_and_merges() {
    if let Some(missing) = Programs::missing() {
        return skip::announce("order", &missing.what, missing.install);
    }
    let kind = Kind::from_env();
    let plan = Plan {
        kind,
        seed: 20_261_130,
        records: 200_000,
        reshards: if kind == Kind::Rangeway { 40 } else { 0 },
        reshard_pause_ms: 50,
        partitions: 8,
        keys: 500,
        value_bytes: 64,
        lag_rate: 2_000,
        limit: Duration::from_secs(300),
        settings: storm::small_sizes(kind),
    };
    let summary = order::run(&plan).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
    assert_eq!(summary.records, plan.records);
}
