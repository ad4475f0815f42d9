//! The exactly-once proof in its small, seeded form; `once` is the command for the big one.

use std::time::Duration;

use rangeway_compat_tests::broker::Kind;
use rangeway_compat_tests::once::{self, Plan};
use rangeway_compat_tests::order::Programs;
use rangeway_compat_tests::{skip, storm};

#[test]
fn what_real_clients_copy_is_there_once_whatever_is_killed() {
    if let Some(missing) = Programs::missing() {
        return skip::announce("once", &missing.what, missing.install);
    }
    let kind = Kind::from_env();
    let plan = Plan {
        kind,
        seed: 20_261_130,
        records: 20_000,
        partitions: 6,
        kills: 8,
        kill_pause_ms: 1_500,
        reshard: kind == Kind::Rangeway,
        limit: Duration::from_secs(150),
        settings: storm::small_sizes(kind),
    };
    let summary = once::run(&plan).unwrap();
    println!("{summary}");
    assert!(summary.faults.is_empty(), "{summary}");
    assert_eq!(summary.broker_kills + summary.copier_kills, plan.kills);
}
