//! A node's settings: defaults, units, errors.

use super::node::{NODE_KEYS, NodeConfig, find};
use crate::drive::spec::DriveExpr;
use std::collections::BTreeSet;

#[test]
fn every_default_is_a_value_that_the_setting_takes() {
    for key in NODE_KEYS {
        let mut config = NodeConfig::default();
        config.set(key.name, &key.default()).unwrap();
        assert_eq!(config, NodeConfig::default(), "{}", key.name);
        assert!(key.doc.ends_with('.'), "{}", key.name);
    }
    let names: BTreeSet<&str> = NODE_KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), NODE_KEYS.len());
    NodeConfig::default().check().unwrap();
}

#[test]
fn all_sizes_go_down_to_64_kib() {
    let sizes = NODE_KEYS.iter().filter(|key| key.name.ends_with(".bytes"));
    for key in sizes {
        NodeConfig::default().set(key.name, "64KiB").unwrap();
    }
}

#[test]
fn values_are_read_with_units_and_shown_without() {
    let mut config = NodeConfig::default();
    config.set("extent.bytes", "1MiB").unwrap();
    config.set("retention.ms", "2d").unwrap();
    config.set("journal.bytes", "16 MiB").unwrap();
    config.set("drive", "striped(2, disk)").unwrap();
    let shown = |name| find(name).unwrap().value(&config);
    assert_eq!(shown("extent.bytes"), "1048576");
    assert_eq!(shown("retention.ms"), "172800000");
    assert_eq!(shown("journal.bytes"), "16777216");
    assert_eq!(config.journal_bytes_of(0), 16 << 20);
    assert!(matches!(config.drive, DriveExpr::Striped { .. }));
    assert_eq!(find("extent.bytes").unwrap().variable(), "RANGEWAY_EXTENT__BYTES");
}

#[test]
fn what_is_wrong_is_said() {
    let mut config = NodeConfig::default();
    let mut error = |name, value| config.set(name, value).unwrap_err().to_string();
    assert_eq!(
        error("extend.bytes", "1"),
        "Unknown node config name: extend.bytes; did you mean extent.bytes?"
    );
    assert_eq!(error("nonsense", "1"), "Unknown node config name: nonsense");
    assert_eq!(
        error("extent.bytes", "1"),
        "Invalid value 1 for configuration extent.bytes: Value must be at least 65536"
    );
    assert!(error("disk.reserve.bytes", "much").ends_with("(KiB, MiB, GiB, TiB), or auto"));
    assert!(error("drive", "floppy").starts_with("Invalid value floppy for configuration drive: "));
    assert_eq!(config, NodeConfig::default());
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    let mut config = NodeConfig::default();
    config.set("journal.bytes", "1MiB").unwrap();
    assert!(config.check().unwrap_err().to_string().contains("extent.bytes (67108864)"));
    let mut config = NodeConfig::default();
    config.set("request.max.bytes", "1MiB").unwrap();
    assert!(config.check().unwrap_err().to_string().contains("message.max.bytes (1048588)"));
    let mut config = NodeConfig::default();
    config.set("reshard.ranges.min", "300").unwrap();
    assert!(config.check().unwrap_err().to_string().contains("reshard.ranges.max (256)"));
    let mut config = NodeConfig::default();
    config.set("ranges.initial", "1000").unwrap();
    assert_eq!(config.check(), Ok(()), "a topic may begin with more than splits would give it");
}

#[test]
fn auto_follows_the_machine_within_bounds() {
    let config = NodeConfig::default();
    assert_eq!(config.journal_bytes_of(1 << 40), 4 << 30);
    assert_eq!(config.journal_bytes_of(1 << 20), 128 << 20, "two extents at least");
    assert_eq!(config.disk_reserve_bytes_of(1 << 30), 256 << 20);
    assert_eq!(config.disk_reserve_bytes_of(100 << 40), 2 << 40);
}
