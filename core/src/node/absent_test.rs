//! What a node makes of a data directory of which files are gone: no number is given twice, and it is said what is missing.

use super::damage_test::{extents, killed_with, read_at};
use super::tests::{append, batch, options};
use crate::api::Appended;
use crate::error::{AppendError, ReadFailure};
use crate::node::Node;
use std::path::Path;

/// What is done to the files that hold a range's only records.
#[derive(Copy, Clone, Debug)]
enum Harm {
    Emptied,
    Cut,
    Removed,
    DirectoryRemoved,
}

fn harm(dir: &Path, harm: Harm) {
    for path in extents(dir) {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
        match harm {
            Harm::Emptied => file.set_len(0).expect("emptied"),
            Harm::Cut => file.set_len(4096).expect("cut"),
            Harm::Removed => std::fs::remove_file(&path).expect("removed"),
            Harm::DirectoryRemoved => {}
        }
    }
    if matches!(harm, Harm::DirectoryRemoved) {
        std::fs::remove_dir_all(dir.join("extents")).expect("removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_whose_extents_are_gone_takes_no_writes_and_numbers_nothing_again() {
    for what in [Harm::Emptied, Harm::Cut, Harm::Removed, Harm::DirectoryRemoved] {
        for clean in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let id = killed_with(dir.path(), 100).await;
            if clean {
                Node::start(options(&[dir.path()], &[])).await.expect("starts").stop().await;
            }
            harm(dir.path(), what);
            for start in 0..2 {
                let node = Node::start(options(&[dir.path()], &[])).await.expect("starts");
                let case = format!("{what:?}, clean {clean}, start {start}");
                assert_eq!(node.api().blocked().len(), 1, "{case}");
                assert!(!node.api().damage().is_empty(), "{case}");
                let dirs = node.api().log_dirs(|_| true).await;
                let listed: Vec<_> = dirs[0].partitions.keys().copied().collect();
                assert_eq!(listed, [(id, 0)], "{case}: its directory says that it lies there");
                // Of an idempotent producer: a plain one's would wait for the range.
                let refused = append(&node, id, vec![batch(0, 1, Some((4, 0, 0)), 0, "no")]).await.remove(0);
                assert!(matches!(refused, Appended::Err(AppendError::Storage(_))), "{case}: {refused:?}");
                let read = read_at(&node, id, 0).await;
                assert!(matches!(read, Err(ReadFailure::Storage(_))), "{case}: {read:?}");
                node.crash().await;
            }
        }
    }
}
